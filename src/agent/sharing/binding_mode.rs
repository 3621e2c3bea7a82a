//! Finds the binding mode of this node: from `--binding`, or from the versions of the kubelet and the container
//! runtime, from the runtime's report about its CDI, and from the devices that containers really got.

use apiserver::ApiConnection;
use apiserver::versions::{self, VersionsUnknown};
use decide::allocator::{BindingChoice, BindingMode, RuntimeCdi, choose, guess};
use effects::binding_file::BindingFile;
use model::cdi_support::CdiSupport;
use model::id::NodeName;
use model::plugin::RegistrationState;
use sources::names::CriSocket;
use sources::state_dir;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};
use wire::versions::NodeVersions;

/// How long the first answer is waited for. The kubelet waits in `Allocate` meanwhile, so after this long the agent
/// takes what the last start found.
const AT_ONCE: Duration = Duration::from_secs(3);
/// Pause between two later requests.
const AGAIN: Duration = Duration::from_secs(10);
/// The same pause while the agent does not register because the mode is unknown: the kubelet's first pods come a second
/// or two after it has made its Node.
const SOON: Duration = Duration::from_secs(1);
/// How long the agent waits for an API server that does not answer, if nothing is known of the runtime. It waits for a
/// missing Node without a limit, because without a Node there are no pods.
const SILENT_FOR: Duration = Duration::from_secs(60);
/// How often the agent asks the runtime whether its CDI is still on; the answer has some 4 KiB.
const FOLLOW: Duration = Duration::from_secs(15);
/// The binding mode that was found, and how certain it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct BindingModeResult {
    /// The binding mode.
    pub binding: BindingMode,
    /// Whether the agent found the mode, so that a later finding may change it.
    pub auto: bool,
    /// Whether it is known that the runtime ignores tickets, so that no container gets the devices of its ticket.
    pub lost: bool,
    /// Whether the runtime reports that its CDI is on. Then a container without its devices does not change the mode.
    pub announced: bool,
    /// Whether only containers have shown that the runtime ignores CDI devices: then a container can show the contrary.
    disproved: bool,
    runtime: String,
}

/// The runtime that answered, and whether it reports that its CDI is on.
type RuntimeReport = (String, bool);

/// Finds the binding mode.
#[derive(Debug)]
pub(crate) struct BindingModeFinder {
    setting: Option<BindingMode>,
    connection: ApiConnection,
    node: NodeName,
    cri_socket: CriSocket,
    state_dir: PathBuf,
    /// Reports why the agent does not register yet.
    registration: watch::Sender<RegistrationState>,
}

impl BindingModeFinder {
    pub(crate) fn new(
        setting: Option<BindingMode>,
        (connection, node): (ApiConnection, NodeName),
        cri_socket: CriSocket,
        state: &Path,
        registration: watch::Sender<RegistrationState>,
    ) -> BindingModeFinder {
        BindingModeFinder { setting, connection, node, cri_socket, state_dir: state.to_owned(), registration }
    }

    /// Sends the mode as soon as it is known, again when a guess has become certain, and when the
    /// runtime reports something else.
    pub(crate) async fn run(self, sender: watch::Sender<Option<BindingModeResult>>) {
        if let Some(binding) = self.setting {
            tracing::info!(?binding, "--binding sets how containers get their devices");
            sender.send_replace(Some(BindingModeResult::of_setting(binding)));
            return;
        }
        let request = || versions::of_own_node(&self.connection, &self.node);
        let at_once = async {
            let none = || Err(VersionsUnknown::Unanswered("no answer at once".into()));
            timeout(AT_ONCE, request()).await.unwrap_or_else(|_| none())
        };
        let (mut answer, mut report) = tokio::join!(at_once, self.report());
        let mut guess = None;
        let mut silent = None;
        let versions = loop {
            let why = match answer {
                Ok(versions) => break versions,
                Err(why) => why,
            };
            let since = match why {
                VersionsUnknown::NoKubelet(_) => None,
                VersionsUnknown::Unanswered(_) => Some(silent.unwrap_or_else(Instant::now)),
            };
            silent = since;
            let tried = since.is_some_and(|since| since.elapsed() >= SILENT_FOR);
            self.guess(&mut guess, &report, (&why.to_string(), tried), &sender);
            sleep(if sender.borrow().is_some() { AGAIN } else { SOON }).await;
            (answer, report) = tokio::join!(request(), self.report());
        };
        let known = |report: &Result<Option<RuntimeReport>, String>| report.clone().ok().flatten();
        let mut report = known(&report);
        let now = sender.borrow().clone();
        sender.send_replace(Some(once_versions_are_known(&self.state_dir, (now, guess), &versions, report.as_ref())));
        // A runtime that restarts may report something else.
        loop {
            sleep(FOLLOW).await;
            let now = known(&self.report().await);
            if now.is_some() && now != report {
                report = now;
                sender.send_replace(Some(by_versions(&self.state_dir, &versions, report.as_ref())));
            }
        }
    }

    /// The runtime's report about its CDI; `None` if it has none.
    ///
    /// # Errors
    /// Where the runtime was looked for, and what went wrong.
    async fn report(&self) -> Result<Option<RuntimeReport>, String> {
        let response = timeout(AT_ONCE, sources::names::runtime_cdi(self.cri_socket.clone())).await;
        let response = response.unwrap_or_else(|_| Err("no answer at once".into()));
        let (runtime, on) =
            response.inspect_err(|why| tracing::debug!("the runtime does not say whether its CDI is on: {why}"))?;
        Ok(on.map(|on| (runtime, on)))
    }

    /// Sends the likely mode, if it is new and containers have not changed the last one. If no mode is likely,
    /// reports why the agent does not register.
    fn guess(
        &self,
        before: &mut Option<BindingModeResult>,
        report: &Result<Option<RuntimeReport>, String>,
        (why, tried): (&str, bool),
        sender: &watch::Sender<Option<BindingModeResult>>,
    ) {
        let last = state_dir::cdi_support(&self.state_dir);
        let own = report.as_ref().ok().and_then(Option::as_ref).map(borrowed);
        let Some(choice) = guess(last.as_ref().map(|(found, runtime)| (*found, &**runtime)), own, tried) else {
            return self.undecided(why, report);
        };
        let runtime = last.map(|(_, runtime)| runtime).unwrap_or_default();
        let because = choice.why.clone();
        let result = Some(BindingModeResult::of(choice, runtime));
        if *before == result || *sender.borrow() != *before {
            return;
        }
        let binding = result.as_ref().map(|result| result.binding);
        tracing::warn!(?binding, because, "it is not known which runtime runs here: {why}");
        sender.send_replace(result.clone());
        *before = result;
    }

    /// Reports why the agent does not register. No container may come before the binding mode is known, because a
    /// container with early binding could loosen its limits.
    fn undecided(&self, why: &str, report: &Result<Option<RuntimeReport>, String>) {
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

/// The mode once the versions are known. Containers that have disproved CDI since the `guess` count more than versions. If
/// containers have proved CDI since, [`BindingModeResult::taken_back`] has saved that, and the versions decide.
fn once_versions_are_known(
    state: &Path,
    (now, guess): (Option<BindingModeResult>, Option<BindingModeResult>),
    versions: &NodeVersions,
    report: Option<&RuntimeReport>,
) -> BindingModeResult {
    match now {
        Some(ref found) if found.disproved && now != guess => found.disproved_on(versions.runtime.clone(), state),
        _ => by_versions(state, versions, report),
    }
}

fn by_versions(
    state: &Path,
    NodeVersions { kubelet, runtime }: &NodeVersions,
    report: Option<&RuntimeReport>,
) -> BindingModeResult {
    let disproved =
        state_dir::cdi_support(state).is_some_and(|(found, seen)| found == CdiSupport::Disproved && seen == *runtime);
    let choice = choose(kubelet, runtime, report.map(borrowed), disproved);
    remember(state, choice.found, runtime);
    tracing::info!(binding = ?choice.binding(), why = choice.why, "how containers get their devices");
    BindingModeResult::of(choice, runtime.clone())
}

fn borrowed((runtime, on): &RuntimeReport) -> RuntimeCdi<'_> {
    (runtime, *on)
}

impl BindingModeResult {
    fn of(choice: BindingChoice, runtime: String) -> BindingModeResult {
        BindingModeResult {
            binding: choice.binding(),
            auto: true,
            lost: choice.lost,
            announced: choice.announced,
            disproved: choice.found == CdiSupport::Disproved,
            runtime,
        }
    }

    /// The mode that `--binding` sets.
    fn of_setting(binding: BindingMode) -> BindingModeResult {
        BindingModeResult {
            binding,
            auto: false,
            lost: false,
            announced: false,
            disproved: false,
            runtime: String::new(),
        }
    }

    /// The runtime has CDI by its version and ignores CDI devices: new containers get their devices early.
    pub(super) fn disproved(&self, state: &Path) -> BindingModeResult {
        self.disproved_on(self.runtime.clone(), state)
    }

    /// A container has the devices of its ticket, so other containers did not disprove CDI: devices are given late
    /// again. `None` if containers had not disproved it: the runtime reports that its CDI is off, or has none.
    pub(super) fn taken_back(&self, state: &Path) -> Option<BindingModeResult> {
        self.disproved.then(|| {
            remember(state, CdiSupport::Late, &self.runtime);
            BindingModeResult { binding: BindingMode::Late, lost: false, disproved: false, ..self.clone() }
        })
    }

    fn disproved_on(&self, runtime: String, state: &Path) -> BindingModeResult {
        remember(state, CdiSupport::Disproved, &runtime);
        BindingModeResult {
            binding: BindingMode::Early,
            auto: self.auto,
            lost: true,
            announced: false,
            disproved: true,
            runtime,
        }
    }
}

/// A container has the devices of its ticket: removes the note of an earlier start that CDI was disproved.
pub(super) fn proved(state: &Path) {
    let file = BindingFile::new(state);
    let disproved = state_dir::cdi_support(state).is_some_and(|(found, _)| found == CdiSupport::Disproved);
    if disproved && let Err(error) = file.remove() {
        tracing::warn!(file = %file.path().display(), %error, "cannot remove what an earlier start found about CDI");
    }
}

fn remember(state: &Path, found: CdiSupport, runtime: &str) {
    let file = BindingFile::new(state);
    if let Err(error) = file.write(found, runtime) {
        tracing::warn!(file = %file.path().display(), %error, "cannot save this for the agent's next start");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_container_with_devices_brings_late_binding_back_unless_the_runtime_has_no_cdi() {
        let folder = tempfile::tempdir().unwrap();
        let runtime = "containerd://2.1.4";
        let by = |found, lost| {
            BindingModeResult::of(BindingChoice { found, lost, announced: false, why: String::new() }, runtime.into())
        };
        let disproved = by(CdiSupport::Late, false).disproved(folder.path());
        assert_eq!((disproved.binding, disproved.lost), (BindingMode::Early, true));
        assert_eq!(disproved, by(CdiSupport::Disproved, true), "as after a restart");
        assert_eq!(disproved.taken_back(folder.path()), Some(by(CdiSupport::Late, false)));
        assert_eq!(state_dir::cdi_support(folder.path()), Some((CdiSupport::Late, runtime.into())));
        for result in [
            by(CdiSupport::Early, true),
            by(CdiSupport::Early, false),
            by(CdiSupport::Late, false),
            BindingModeResult::of_setting(BindingMode::Early),
        ] {
            assert_eq!(result.taken_back(folder.path()), None, "{result:?}");
        }
    }

    #[test]
    fn what_containers_show_before_the_versions_are_known_counts_more_than_the_versions() {
        let folder = tempfile::tempdir().unwrap();
        let runtime = "containerd://2.1.4";
        let versions = NodeVersions { kubelet: "v1.34.9".into(), runtime: runtime.into() };
        let guessed = |found| {
            remember(folder.path(), found, runtime);
            BindingModeResult::of(
                BindingChoice { found, lost: false, announced: false, why: String::new() },
                runtime.into(),
            )
        };
        let mode = |now: BindingModeResult, guess: BindingModeResult| {
            once_versions_are_known(folder.path(), (Some(now), Some(guess)), &versions, None).binding
        };
        let late = guessed(CdiSupport::Late);
        assert_eq!(mode(late.disproved(folder.path()), late), BindingMode::Early, "containers have disproved CDI");
        let early = guessed(CdiSupport::Disproved);
        assert_eq!(
            mode(early.taken_back(folder.path()).unwrap(), early),
            BindingMode::Late,
            "containers have proved CDI"
        );
    }

    #[test]
    fn the_next_start_knows_the_result_and_a_proof_removes_a_disproof() {
        let folder = tempfile::tempdir().unwrap();
        let found = || state_dir::cdi_support(folder.path()).map(|(found, _)| found);
        for (now, after_proof) in [(CdiSupport::Disproved, None), (CdiSupport::Late, Some(CdiSupport::Late))] {
            remember(folder.path(), now, "containerd://2.1.4");
            assert_eq!(found(), Some(now));
            proved(folder.path());
            assert_eq!(found(), after_proof);
        }
    }
}
