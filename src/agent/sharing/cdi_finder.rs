//! Asks the API server for the versions of the kubelet and the container runtime, and asks the runtime whether CDI is
//! enabled.

use apiserver::ApiConnection;
use apiserver::versions::{self, VersionsUnknown};
use decide::cdi::NodeCdi;
use model::id::NodeName;
use model::plugin::RegistrationState;
use sources::names::CriSocket;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use wire::versions::NodeVersions;

/// Time limit for an answer.
const WITHIN: Duration = Duration::from_secs(3);
/// Pause between two requests while nothing is known: the kubelet starts its first pods one or two seconds after it has
/// created its Node.
const SOON: Duration = Duration::from_secs(1);
/// Pause between two later requests; the runtime's answer has about 4 KiB.
const LATER: Duration = Duration::from_secs(15);
/// The versions are read again after this number of later requests to the runtime: after five minutes. A runtime that does not
/// say its version to the agent may have been upgraded, and its version decides which CDI specs it reads.
const REPORTS_PER_VERSIONS: u32 = 20;

/// Finds out whether containers get their devices by CDI.
#[derive(Debug)]
pub(crate) struct CdiFinder {
    connection: ApiConnection,
    node: NodeName,
    cri_socket: CriSocket,
    /// Reports why the agent does not register yet.
    registration: watch::Sender<RegistrationState>,
}

impl CdiFinder {
    pub(crate) fn new(
        (connection, node): (ApiConnection, NodeName),
        cri_socket: CriSocket,
        registration: watch::Sender<RegistrationState>,
    ) -> CdiFinder {
        CdiFinder { connection, node, cri_socket, registration }
    }

    /// Asks the runtime until the agent ends, because the runtime may restart with another configuration. Asks for the versions
    /// while they are unknown, and while CDI does not work, because an upgrade may enable it; otherwise every five minutes.
    pub(crate) async fn run(self, known: watch::Sender<NodeCdi>) {
        let mut until_versions = 0_u32;
        loop {
            let works = known.borrow().finding().is_some_and(|finding| finding.works());
            until_versions = until_versions.saturating_sub(1);
            let versions = async { if until_versions > 0 && works { None } else { Some(self.versions().await) } };
            let (versions, report) = tokio::join!(versions, self.report());
            if let Ok(Some((runtime, on))) = &report {
                known.send_if_modified(|cdi| cdi.runtime_reports(runtime, *on));
            }
            match versions {
                None => {}
                Some(Ok(NodeVersions { kubelet, runtime })) => {
                    known.send_if_modified(|cdi| cdi.versions_are(&kubelet, &runtime));
                    until_versions = REPORTS_PER_VERSIONS;
                }
                Some(Err(why)) if known.borrow().finding().is_none() => self.undecided(&why.to_string(), &report),
                Some(Err(why)) => tracing::debug!("the versions of kubelet and runtime are not known: {why}"),
            }
            let undecided = known.borrow().finding().is_none();
            sleep(if undecided { SOON } else { LATER }).await;
        }
    }

    async fn versions(&self) -> Result<NodeVersions, VersionsUnknown> {
        let none = || Err(VersionsUnknown::Unanswered("no answer within 3 s".into()));
        timeout(WITHIN, versions::of_own_node(&self.connection, &self.node)).await.unwrap_or_else(|_| none())
    }

    /// The runtime's name, and whether CDI is enabled in it; `None` if the runtime does not report that.
    ///
    /// # Errors
    /// The socket of the runtime that was tried, and what went wrong.
    async fn report(&self) -> Result<Option<(String, bool)>, String> {
        let response = timeout(WITHIN, sources::names::runtime_cdi(self.cri_socket.clone())).await;
        let response = response.unwrap_or_else(|_| Err("no answer within 3 s".into()));
        let (runtime, on) =
            response.inspect_err(|why| tracing::debug!("the runtime does not say whether its CDI is on: {why}"))?;
        Ok(on.map(|on| (runtime, on)))
    }

    /// Reports why the agent does not register. No container may start before it is known whether CDI works, because
    /// the container would run without its limits.
    fn undecided(&self, why: &str, report: &Result<Option<(String, bool)>, String>) {
        let runtime = match report {
            Err(why) => format!("container runtime not found: {why}"),
            Ok(None) => "the container runtime does not say whether its CDI is on".to_owned(),
            Ok(Some((runtime, on))) => format!("{runtime} says that its CDI is {}", if *on { "on" } else { "off" }),
        };
        let text = format!("it is not known whether containers can get GPUs by CDI: {why}; {runtime}");
        let new = RegistrationState::Undecided(text.as_str().into());
        let changed = self.registration.send_if_modified(|registration| {
            let changes = *registration != new && *registration != RegistrationState::Follows;
            if changes {
                *registration = new;
            }
            changes
        });
        if changed {
            tracing::warn!("GPUs are not offered to kubelet yet: {text}");
        }
    }
}
