//! The task that keeps what has happened to GPUs in the state directory, so that an agent that starts anew does not offer a
//! GPU that its forerunner had condemned.

use crate::settings::Settings;
use effects::incidents::{FoundIncidents, IncidentFile};
use model::incident::KeptIncidents;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::spawn_blocking;
use tokio_util::sync::CancellationToken;

/// Between two writes: a card that dies tells some tens of errors at once.
const PAUSE: Duration = Duration::from_secs(1);
/// Before another try where the file cannot be written.
const AGAIN: Duration = Duration::from_secs(30);

/// What is kept, and where.
#[derive(Debug)]
pub(super) struct IncidentKeeper {
    /// `None` where it is not known which boot this is.
    file: Option<IncidentFile>,
    /// What was found.
    pub(super) found: Vec<KeptIncidents>,
}

impl IncidentKeeper {
    /// Reads what was kept in this boot of the machine. Whatever is wrong with it is told and keeps nothing from starting.
    pub(super) fn open(settings: &Settings) -> IncidentKeeper {
        let file = match sources::boot::boot_id(&settings.roots.procfs) {
            Ok(boot) => IncidentFile::new(&settings.state_dir, boot),
            Err(error) => {
                tracing::warn!(%error, "cannot tell which boot of the machine this is: a restart of the agent forgets what has happened to GPUs");
                return IncidentKeeper { file: None, found: Vec::new() };
            }
        };
        let found = match file.read() {
            FoundIncidents::Kept(kept) => {
                for one in &kept {
                    let incidents: Vec<String> = one.incidents.iter().map(|(incident, _)| incident.code()).collect();
                    tracing::warn!(gpu_uuid = %one.gpu, ?incidents, "this has happened to the GPU before the agent was started");
                }
                kept
            }
            FoundIncidents::Nothing => Vec::new(),
            FoundIncidents::Unreadable(why) => {
                tracing::warn!("what has happened to GPUs before the agent was started is not known: {why}");
                Vec::new()
            }
        };
        IncidentKeeper { file: Some(file), found }
    }

    /// Writes what is to be kept whenever that changes, until `stop` is cancelled.
    ///
    /// # Errors
    /// None: what cannot be written is told and tried again.
    pub(super) async fn run(
        self,
        mut kept: watch::Receiver<Arc<[KeptIncidents]>>,
        stop: CancellationToken,
    ) -> std::io::Result<()> {
        let Some(file) = self.file else {
            stop.cancelled().await;
            return Ok(());
        };
        let mut refused = false;
        loop {
            tokio::select! {
                // What an agent that ends has not changed is the next one's to change.
                () = stop.cancelled() => if !kept.has_changed().unwrap_or(false) { return Ok(()) },
                Ok(()) = kept.changed() => {}
            }
            let now = Arc::clone(&kept.borrow_and_update());
            let writes = file.clone();
            let written = spawn_blocking(move || writes.write(&now, sources::clock::now())).await;
            let written = written.map_err(std::io::Error::other).flatten();
            let pause = match &written {
                Ok(()) => PAUSE,
                Err(_) => AGAIN,
            };
            if let Err(error) = &written
                && !refused
            {
                tracing::warn!(%error, "cannot keep what has happened to GPUs (--state-dir): a restart of the agent forgets it");
            }
            refused = written.is_err();
            if refused {
                kept.mark_changed();
            }
            if stop.is_cancelled() {
                return Ok(());
            }
            tokio::select! {
                () = stop.cancelled() => {}
                () = tokio::time::sleep(pause) => {}
            }
        }
    }
}
