//! Runs an agent that shares GPUs, from start to end: it waits for its turn while another agent runs, serves the
//! kubelet, and hands over to the next agent.
//!
//! ```text
//!   first ─────────────────────────────────▶ recall ──▶ sharing task runs ─┐
//!   behind: prepare ─▶ previous agent closes ─┬─▶ turn ──▶ recall ─▶ ...   ├─▶ closing: tell the next agent, answer
//!                                             └─▶ register with kubelet    ┘   open calls, end connections and task
//! ```
//!
//! If the kubelet calls before the sharing task runs, the call waits for the task.
//!
//! What must never happen here: two sharing tasks that use one state directory; a registration before it is known
//! whether CDI works.

use super::cdi_finder::CdiFinder;
use super::host::HostWatcher;
use super::sharing_task::Sharing;
use super::turn::{self, AgentPlace, AgentQueue, AgentTurn, PredecessorEnd};
use crate::readiness::Progress;
use apiserver::{ApiConnection, versions};
use decide::cdi::NodeCdi;
use decide::rival_ids::RivalIds;
use decide::second_connection::second_connection;
use effects::plugin::{self, PluginCallSender, PluginDevice, RegistrationCourse, RegistrationStart};
use model::id::NodeName;
use model::plugin::RegistrationState;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::sync::{oneshot, watch};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

/// How long this agent may take to register while the previous agent is still registered; it usually takes some tens of
/// milliseconds. After this time the previous agent ends first.
const REGISTERS_WITHIN: Duration = Duration::from_millis(1500);
/// How long a stopping agent waits for the ticket writer (`Keeper`). The files that the next agent reads are written
/// within milliseconds, unless the disk hangs.
const KEPT_WITHIN: Duration = Duration::from_secs(2);

/// How sharing runs and ends together with the whole program.
#[derive(Clone, Debug)]
pub(crate) struct Run {
    /// Cancelled to end the serving of the kubelet.
    pub closing: CancellationToken,
    /// Cancelled when the serving has ended.
    pub closed: CancellationToken,
    /// Cancelled to end everything.
    pub stop: CancellationToken,
    /// Whether this agent shares, or waits for its turn.
    pub progress: watch::Sender<Progress>,
    served: CancellationToken,
    /// Cancelled when the previous agent has ended.
    alone: CancellationToken,
    followed: Arc<OnceLock<bool>>,
    /// Whether this agent registers while the previous agent is still registered.
    beside: Arc<AtomicBool>,
}

impl Run {
    pub(crate) fn new(stop: CancellationToken, progress: watch::Sender<Progress>) -> Run {
        let [closing, closed, served, alone] = std::array::from_fn(|_| CancellationToken::new());
        Run { closing, closed, stop, progress, served, alone, followed: Arc::default(), beside: Arc::default() }
    }

    /// Waits until this agent has to stop and may stop before its turn. If it registered while the previous agent ran,
    /// it must take its turn first: the kubelet already calls this agent, and only this agent's last device list tells
    /// the kubelet that the agent ends.
    async fn stops_before_its_turn(&self) {
        self.closing.cancelled().await;
        if self.beside.load(Ordering::Relaxed) {
            std::future::pending::<()>().await;
        }
    }
}

/// The inputs of the `serving` task.
#[derive(Debug)]
pub(super) struct Serving {
    pub settings: plugin::Settings,
    pub calls: PluginCallSender,
    pub list: watch::Receiver<Arc<[PluginDevice]>>,
    pub registration: watch::Sender<RegistrationState>,
    /// The sources of the kubelet's version: the API server, and the name of this node.
    pub kubelet: (ApiConnection, NodeName),
}

/// Runs the sharing task from this agent's turn to the end.
pub(super) async fn owning(
    mut owner: Sharing,
    (finder, mut watcher): (CdiFinder, HostWatcher),
    (kubelet, registration): ((ApiConnection, NodeName), watch::Sender<RegistrationState>),
    enter: oneshot::Sender<RegistrationStart>,
    run: Run,
) -> io::Result<()> {
    let _ends_serving = run.served.clone().drop_guard();
    let _find = AbortOnDropHandle::new(tokio::spawn(finder.run(owner.cdi.sender())));
    let place = turn::enter(owner.state_dir())?;
    let begins = async {
        match place {
            AgentPlace::First(turn) => {
                run.progress.send_replace(Progress::Shares);
                watcher.first().await;
                let _ = enter.send(RegistrationStart::Fresh);
                Ok(turn)
            }
            AgentPlace::Behind(queue) => {
                follow((&mut owner, &mut watcher), (queue, kubelet), registration, enter, &run).await
            }
        }
    };
    let turn = tokio::select! {
        () = run.stops_before_its_turn() => return Ok(()),
        turn = begins => turn?,
    };
    // A stopping agent must not set `Shares`: the stream would then report to the leader that this node serves pods.
    if !run.closing.is_cancelled() {
        run.progress.send_replace(Progress::Shares);
    }
    owner.recall_all();
    // `stop` ends the work once the kubelet's calls are answered.
    let work = async { tokio::join!(owner.run(run.stop.clone()), watcher.run(run.stop.clone())).0 };
    let keeper = tokio::select! { keeper = work => keeper, () = hands_over(&turn, &run) => return Ok(()) };
    // The next agent reads the ticket files, so keep the turn until they are all written, or until `KEPT_WITHIN` is
    // over.
    let _ = timeout(KEPT_WITHIN, keeper.end()).await;
    drop(turn);
    Ok(())
}

/// Prepares everything, waits until the previous agent is about to end, and starts the registration. If it is known how
/// the kubelet handles a second connection, this agent registers before the previous agent ends, otherwise right after.
async fn follow(
    (owner, watcher): (&mut Sharing, &mut HostWatcher),
    (queue, kubelet): (AgentQueue, (ApiConnection, NodeName)),
    registration: watch::Sender<RegistrationState>,
    enter: oneshot::Sender<RegistrationStart>,
    run: &Run,
) -> io::Result<AgentTurn> {
    tracing::warn!(
        state_dir = %owner.state_dir().display(),
        "another agent shares the GPUs of this node: this agent waits until the other ends, and then shares them"
    );
    registration.send_replace(RegistrationState::Follows);
    owner.report();
    run.progress.send_replace(Progress::Follows { prepared: false });
    let (before, second) = {
        let before = queue.wait();
        tokio::pin!(before);
        let prepared = async {
            let (versions, (), ()) =
                tokio::join!(versions::of_own_node(&kubelet.0, &kubelet.1), watcher.first(), owner.is_prepared());
            run.progress.send_replace(Progress::Follows { prepared: true });
            versions.ok().and_then(|versions| second_connection(&versions.kubelet))
        };
        tokio::select! {
            before = &mut before => (before?, None),
            second = prepared => ((&mut before).await?, second),
        }
    };
    owner.preview().await;
    let second = second.filter(|_| before == PredecessorEnd::Closes);
    tracing::info!(
        registers_before_its_end = second.is_some(),
        "the other agent is ending: this agent shares the GPUs from now on"
    );
    let Some(second) = second else {
        queue.ready()?;
        let turn = queue.turn().await?;
        let _ = enter.send(RegistrationStart::After);
        return Ok(turn);
    };
    run.beside.store(true, Ordering::Relaxed);
    let _ = enter.send(RegistrationStart::Beside(second));
    let is_registered = |registration: &RegistrationState| matches!(registration, RegistrationState::Registered);
    let _ = timeout(REGISTERS_WITHIN, registration.subscribe().wait_for(is_registered)).await;
    queue.ready()?;
    let turn = queue.turn().await?;
    run.alone.cancel();
    Ok(turn)
}

/// Waits for `closing`, tells the next agent, then ends the serving. Never returns.
async fn hands_over(turn: &AgentTurn, run: &Run) {
    run.closing.cancelled().await;
    let followed = turn.hand_over().await;
    tracing::info!(followed, "answering the kubelet's open calls, then closing");
    let _ = run.followed.set(followed);
    run.served.cancel();
    std::future::pending().await
}

/// Serves the kubelet until the end.
pub(super) async fn serving(
    serving: Serving,
    mut cdi: watch::Receiver<NodeCdi>,
    entered: oneshot::Receiver<RegistrationStart>,
    run: Run,
) -> io::Result<()> {
    let _closed = run.closed.clone().drop_guard();
    let Serving { settings, calls, mut list, registration, .. } = serving;
    let begin = async {
        let Ok(entry) = entered.await else { return Ok(None) };
        if cdi.wait_for(|cdi| cdi.finding().is_some()).await.is_err() {
            return Ok(None);
        }
        registration.send_if_modified(|registration| {
            let changes = !matches!(registration, RegistrationState::Waiting(_));
            if changes {
                *registration = RegistrationState::Waiting("a list of GPUs".into());
            }
            changes
        });
        // If a plugin registers without devices, the kubelet writes a capacity of 0, as for a broken plugin.
        if list.wait_for(|list| !list.is_empty()).await.is_err() {
            return Ok(None);
        }
        if entry == RegistrationStart::Fresh {
            refuse_others(&settings).await?;
        }
        Ok::<_, io::Error>(Some(entry))
    };
    let entry = tokio::select! {
        () = run.served.cancelled() => return Ok(()),
        entry = begin => entry?,
    };
    let Some(entry) = entry else { return Ok(()) };
    let course = RegistrationCourse {
        entry,
        closing: run.closing.clone(),
        stop: run.served.clone(),
        alone: run.alone.clone(),
        followed: Arc::clone(&run.followed),
    };
    plugin::serve(settings, list, calls, registration, course).await
}

/// Fails if another plugin serves the resource. An agent with the same state directory waits for its turn, but an agent
/// with another state directory would replace this agent's sockets, and this agent would replace the other's. Two
/// plugins that serve one resource replace each other until the kubelet has neither.
async fn refuse_others(settings: &plugin::Settings) -> io::Result<()> {
    if let Some(second) = plugin::find_second(&settings.socket_paths()).await {
        return Err(second.into());
    }
    for folder in [&settings.plugins, &settings.registry] {
        refuse_rival(folder, settings).await?;
    }
    Ok(())
}

async fn refuse_rival(folder: &Path, settings: &plugin::Settings) -> io::Result<()> {
    let registered = sources::checkpoint::registered(&settings.plugins, &settings.resource);
    let rival = RivalIds::new(&registered);
    match sources::rival_plugin::find(folder, &settings.sockets(), |id| rival.has(id)).await {
        None => Ok(()),
        Some(rival) => Err(io::Error::new(
            io::ErrorKind::AddrInUse,
            format!(
                "another plugin already serves GPUs to kubelet: {rival}; stop it before this agent shares {}",
                settings.resource
            ),
        )),
    }
}
