//! The session with the driver: opened with backoff, verified by reading a list of GPUs, closed as often as it was
//! opened.
//!
//! ```text
//!   open ──▶ unverified ──a list of GPUs──▶ verified ──the driver is gone──▶ closed ──pause──▶ open
//!                └─────────────any failure────────────────────────────────────▲
//! ```
//!
//! What must never happen here: a library that is initialised twice and shut down once, because it would
//! continue to return values of a driver that is gone; a backoff that starts again before a list of GPUs was read.

use crate::nvml::absence::VERSION_MISMATCH;
use crate::nvml::heartbeat::Heartbeat;
use crate::nvml::library::{self, Missing};
use crate::nvml::message::Message;
use crate::nvml::raw;
use crate::nvml::settings::{DriverPatience, Settings};
use crate::report::Reporter;
use model::Absence;
use model::backoff::Backoff;
use model::observation::{ErrorCounter, Fact, GpuSourceState};
use nvml_wrapper::Nvml;
use std::sync::Arc;
use std::sync::mpsc::{self, SyncSender};
use std::time::Duration;

/// Time limit for the event thread to leave the library: it waits for a second at a time.
const LEAVE: Duration = Duration::from_secs(4);

/// The state of the session that a replacement poller takes over.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Open {
    /// The library, if it is open.
    pub(super) nvml: Option<&'static Nvml>,
    /// A list of GPUs has been read in this session.
    pub(super) verified: bool,
    /// A list of GPUs has been read since the agent started.
    pub(super) worked: bool,
}

/// One poller's session.
#[derive(Debug)]
pub(super) struct Session {
    settings: Arc<Settings>,
    reporter: Reporter,
    heartbeat: Arc<Heartbeat>,
    messages: SyncSender<Message>,
    /// The library, once it was initialised; it is never unloaded.
    loaded: Option<&'static Nvml>,
    /// How often the library was initialised since its last shutdown. It is not shut down while a thread may hang in
    /// it; then the count grows by one each time the driver goes away.
    inits: u32,
    open: bool,
    verified: bool,
    worked: bool,
    /// The pauses between tries to open the library.
    retry: Backoff,
    /// The last reported reason why there are no GPUs.
    reported: Option<Absence>,
}

impl Session {
    pub(super) fn new(
        settings: Arc<Settings>,
        reporter: Reporter,
        heartbeat: Arc<Heartbeat>,
        messages: SyncSender<Message>,
        open: Open,
    ) -> Self {
        let retry = Backoff::new(settings.patience.first_retry, DriverPatience::LAST_RETRY);
        Session {
            settings,
            reporter,
            heartbeat,
            messages,
            loaded: open.nvml,
            inits: u32::from(open.nvml.is_some()),
            open: open.nvml.is_some(),
            verified: open.verified,
            worked: open.worked,
            retry,
            reported: None,
        }
    }

    /// The library; opens it if needed.
    ///
    /// # Errors
    /// Why the library cannot be opened.
    pub(super) fn open(&mut self) -> Result<&'static Nvml, Missing> {
        if let Some(nvml) = self.loaded.filter(|_| self.open) {
            return Ok(nvml);
        }
        let nvml = library::open(self.settings.library.as_deref(), self.loaded, &self.heartbeat)?;
        self.loaded = Some(nvml);
        self.inits = self.inits.saturating_add(1);
        (self.open, self.verified) = (true, false);
        self.send(Message::Session(nvml));
        Ok(nvml)
    }

    /// Whether a list of GPUs has been read. Until then any failure ends the session: initialising alone proves
    /// nothing.
    pub(super) fn verified(&self) -> bool {
        self.verified
    }

    /// Records that a list of GPUs was read.
    pub(super) fn prove(&mut self, nvml: &'static Nvml) {
        self.retry.reset();
        (self.reported, self.worked) = (None, true);
        if !std::mem::replace(&mut self.verified, true) {
            if let Some(load) = library::driver_load(&self.settings.roots.sysfs) {
                self.reporter.fact(Fact::GpuDriverLoaded(load));
            }
            self.send(Message::Source(library::versions(nvml, &self.heartbeat)));
        }
    }

    /// Ends the session. Without the shutdown, initialising again would only increase NVML's count of sessions and
    /// keep the old session.
    pub(super) fn close(&mut self) {
        (self.open, self.verified) = (false, false);
        // If a thread hangs inside the library, the shutdown may hang as well.
        if !self.heartbeat.skips_any() && self.stop_events() {
            let _ = self.heartbeat.call(None, || self.shut_down());
            self.inits = 0;
        }
    }

    /// Makes every thread leave the library and closes all its sessions, so that no file of the driver stays open. The
    /// caller must hold no handle or sample of a GPU.
    ///
    /// # Errors
    /// Why the library stays open.
    pub(super) fn release(&mut self) -> Result<(), &'static str> {
        let Some(nvml) = self.loaded else { return Ok(()) };
        if self.heartbeat.skips_any() {
            return Err("a call about a GPU does not return");
        }
        if !self.stop_events() {
            return Err("the wait for events does not return");
        }
        self.heartbeat.call(None, || raw::shut_down_all(nvml)).map_err(|why| {
            self.reporter.trouble(ErrorCounter::NvmlFailed);
            tracing::warn!(reason = %why, "NVML could not be closed");
            "the driver's library refuses to be closed"
        })?;
        (self.open, self.verified, self.inits) = (false, false, 0);
        self.retry.reset();
        self.reported = None;
        Ok(())
    }

    /// Closes the library and opens it again, so that NVML lists new GPUs. The event thread leaves the library first.
    /// Returns `false` if it stayed open.
    pub(super) fn reopen(&mut self, nvml: &'static Nvml) -> bool {
        if !self.stop_events() {
            self.reporter.trouble(ErrorCounter::NvmlFailed);
            tracing::warn!("a GPU was added, but NVML cannot be reopened while a wait for events hangs");
            return false;
        }
        tracing::info!("a GPU was added; the agent reopens NVML");
        let again = self.heartbeat.open(|| self.shut_down().and_then(|()| raw::initialise(nvml)));
        self.inits = u32::from(again.is_ok());
        match again {
            Ok(()) => self.send(Message::Session(nvml)),
            Err(why) => {
                self.reporter.trouble(ErrorCounter::NvmlFailed);
                tracing::warn!(reason = %why, "NVML could not be reopened");
            }
        }
        true
    }

    /// Reports why there are no GPUs, once for each reason. Returns the pause before the next try.
    pub(super) fn missing(&mut self, missing: &Missing) -> Duration {
        let why = missing.why;
        let replaced = why == VERSION_MISMATCH && self.worked;
        if replaced {
            // The node task then ends the agent.
            self.reporter.fact(Fact::GpuDriverReplaced);
        }
        if self.reported.replace(why) != Some(why) {
            let advice = if replaced {
                library::replaced(self.settings.library.as_deref())
            } else {
                Arc::clone(&missing.advice)
            };
            // The agent logs every change of the source; a line here would repeat that.
            tracing::debug!(reason = %why, "no GPUs: {advice}");
            self.send(Message::Source(GpuSourceState::Missing { why, advice }));
        }
        self.retry.pause()
    }

    /// Makes the event thread leave the library; returns `false` if it does not.
    fn stop_events(&self) -> bool {
        let (answer, left) = mpsc::sync_channel(1);
        self.send(Message::Close(answer));
        let left = left.recv_timeout(LEAVE).is_ok();
        if left {
            self.send(Message::Closed);
        }
        left
    }

    /// Shuts the library down as often as it was initialised, or until that fails.
    fn shut_down(&self) -> Result<(), nvml_wrapper::error::NvmlError> {
        let Some(nvml) = self.loaded else { return Ok(()) };
        (0..self.inits).try_for_each(|_| raw::shut_down(nvml))
    }

    fn send(&self, message: Message) {
        // Fails only when the supervisor has ended, and then this thread is about to end.
        let _ = self.messages.send(message);
    }
}
