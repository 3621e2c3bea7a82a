//! Keeps the incidents of GPUs in the state directory, so that after a restart the agent does not offer a GPU that
//! was unfit before.

use super::event_log::log_kept_incidents;
use super::settings::AgentSettings;
use effects::incidents::{FoundIncidents, IncidentFile};
use model::incident::KeptIncidents;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::spawn_blocking;
use tokio_util::sync::CancellationToken;

/// Pause between two writes: a failing GPU reports dozens of errors at once.
const PAUSE: Duration = Duration::from_secs(1);
/// Pause before the next attempt if the file cannot be written.
const AGAIN: Duration = Duration::from_secs(30);

/// The task that keeps the incidents.
#[derive(Debug)]
pub(super) struct IncidentKeeper {
    /// The file; `None` if the boot id of the machine cannot be read.
    file: Option<IncidentFile>,
    /// The incidents that were in the file at the start.
    pub(super) found: Vec<KeptIncidents>,
}

impl IncidentKeeper {
    /// Reads the incidents that were kept since the machine booted. An error is logged, and the agent starts anyway.
    pub(super) fn open(settings: &AgentSettings) -> IncidentKeeper {
        let file = match sources::boot::boot_id(&settings.sources.roots.procfs) {
            Ok(boot) => IncidentFile::new(&settings.state_dir, boot),
            Err(error) => {
                tracing::warn!(%error, "cannot read the boot id of the machine: a restart of the agent forgets the incidents of GPUs");
                return IncidentKeeper { file: None, found: Vec::new() };
            }
        };
        let found = match file.read() {
            FoundIncidents::Kept(kept) => {
                kept.iter().for_each(log_kept_incidents);
                kept
            }
            FoundIncidents::Nothing => Vec::new(),
            FoundIncidents::Unreadable(why) => {
                tracing::warn!("incidents of GPUs before the agent started are not known: {why}");
                Vec::new()
            }
        };
        IncidentKeeper { file: Some(file), found }
    }

    /// Writes the incidents at each change, until `stop` is cancelled.
    ///
    /// # Errors
    /// None: a failed write is logged and retried.
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
                // Do not write an unchanged file: the next agent may already have written it.
                () = stop.cancelled() => if !kept.has_changed().unwrap_or(false) { return Ok(()) },
                Ok(()) = kept.changed() => {}
            }
            let now = Arc::clone(&kept.borrow_and_update());
            let writes = file.clone();
            let written = spawn_blocking(move || writes.write(&now, clock::now())).await;
            let written = written.map_err(std::io::Error::other).flatten();
            let pause = match &written {
                Ok(()) => PAUSE,
                Err(_) => AGAIN,
            };
            if let Err(error) = &written
                && !refused
            {
                tracing::warn!(%error, "cannot keep the incidents of GPUs (--state-dir): a restart of the agent forgets them");
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
