//! The supervisor: starts the threads that call NVML, watches their heartbeat, and never calls NVML itself.
//!
//! ```text
//!   poller works ──a call on GPU i stalls──▶ replaced by one that skips GPU i ──another stalls──▶ all GPUs absent
//!        ▲                                        │                                                     │
//!        └──the call returned, the old one ends───┴────────────────a call returned─────────────────────┘
//! ```
//!
//! A call that stalls makes readings absent; a call that hangs, which is reported much later, also makes the GPU unfit.
//!
//! One thread waits for events. If one of its calls does not return, the supervisor reports that and does not replace
//! the thread, because a replacement would hang as well; until then XIDs come from the kernel log. If the thread
//! panics, the supervisor reports that and starts it again.
//!
//! At most two pollers exist. A poller whose call concerns no particular GPU (opening the library, counting) is not
//! replaced, because there is no GPU to skip: all GPUs are absent until it returns.

use crate::nvml::event::{self, Events};
use crate::nvml::heartbeat::{GpuKey, Heartbeat, Stuck};
use crate::nvml::inventory::KnownGpu;
use crate::nvml::message::{Message, QUEUE};
use crate::nvml::poll::{Poller, absent};
use crate::nvml::session::Open;
use crate::nvml::settings::Settings;
use crate::nvml::stall::{Reach, Stalls};
use crate::nvml::xid::{News, Recent, bus_id, from_log, of_switch};
use crate::report::Reporter;
use clock::monotonic;
use model::driver_hold::DriverHold;
use model::gpu::{Xid, XidSource};
use model::id::GpuUuid;
use model::observation::{ErrorCounter, Fact, GpuSourceState, SourceEvent};
use model::time::Monotonic;
use nvml_wrapper::Nvml;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, SyncSender};
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// Maximum number of pollers: one that hangs, and its replacement.
const MAX_POLLERS: usize = 2;
/// Longest time between two checks of the heartbeats; also the longest time until a stop is noticed.
const LONGEST_TICK: Duration = Duration::from_millis(500);
/// Absent GPUs are reported again this often, in case the queue was full the first time.
const REPEAT: Duration = Duration::from_secs(10);
/// Time between two attempts to register for events of a lost GPU, in process periods (10 s): as often as the
/// inventory.
const LOST_AGAIN: u32 = 2;
/// Pause before a poller that ended unexpectedly is started again.
const RESTART: Duration = Duration::from_secs(5);

/// The supervisor's state. Only the supervisor's thread sees it.
pub(super) struct Supervisor {
    settings: Arc<Settings>,
    reporter: Reporter,
    stop: CancellationToken,
    inbox: Receiver<Message>,
    messages: SyncSender<Message>,
    hold: watch::Receiver<DriverHold>,
    pollers: Vec<PollerThread>,
    session: Option<&'static Nvml>,
    known: Vec<KnownGpu>,
    source: GpuSourceState,
    /// A list of GPUs has been read since the agent started.
    worked: bool,
    reach: Reach,
    stalls: Stalls,
    recent: Recent,
    reads_kernel_log: bool,
    /// Sends lists of GPUs to the event thread.
    lists: Option<mpsc::Sender<Vec<KnownGpu>>>,
    event_thread: Option<JoinHandle<()>>,
    events: Arc<Heartbeat>,
    /// When to start the event thread again after a panic.
    event_thread_due: Option<Monotonic>,
    /// The event thread hangs in a call.
    events_hang: bool,
    closing: Option<SyncSender<()>>,
    repeat_due: Monotonic,
    restart_due: Monotonic,
}

/// A poller's thread, as the supervisor sees it.
struct PollerThread {
    heartbeat: Arc<Heartbeat>,
    thread: JoinHandle<()>,
    stuck: Option<Stuck>,
    /// Whether the GPU that is blamed for the overdue call has been reported.
    counted: bool,
}

impl PollerThread {
    /// Whether the poller calls the driver and gets answers.
    fn works(&self) -> bool {
        self.stuck.is_none() && !self.heartbeat.dismissed()
    }
}

impl Supervisor {
    pub(super) fn new(settings: Settings, reporter: Reporter, stop: CancellationToken) -> Self {
        let (messages, inbox) = mpsc::sync_channel(QUEUE);
        Supervisor {
            hold: settings.gate.seen(),
            settings: Arc::new(settings),
            reporter,
            stop,
            inbox,
            messages,
            pollers: Vec::new(),
            session: None,
            known: Vec::new(),
            source: GpuSourceState::Starting,
            worked: false,
            reach: Reach::Free,
            stalls: Stalls::default(),
            recent: Recent::default(),
            reads_kernel_log: false,
            lists: None,
            event_thread: None,
            events: Arc::default(),
            event_thread_due: None,
            events_hang: false,
            closing: None,
            repeat_due: Monotonic::default(),
            restart_due: Monotonic::default(),
        }
    }

    /// A sender for other threads.
    pub(super) fn sender(&self) -> SyncSender<Message> {
        self.messages.clone()
    }

    /// Starts a poller that skips these GPUs.
    ///
    /// # Errors
    /// When the operating system cannot start a thread.
    pub(super) fn spawn_poller(&mut self, skipped: BTreeSet<GpuKey>) -> std::io::Result<()> {
        let heartbeat = Arc::new(Heartbeat::skipping(skipped));
        let verified = matches!(self.source, GpuSourceState::Working { .. });
        let open = Open { nvml: self.session, verified, worked: self.worked };
        let poller = Poller::new(
            Arc::clone(&self.settings),
            self.reporter.clone(),
            Arc::clone(&heartbeat),
            self.messages.clone(),
            open,
        );
        let known = self.known.clone();
        let thread = std::thread::Builder::new().name("nvml-poll".into()).spawn(move || poller.run(known))?;
        self.pollers.push(PollerThread { heartbeat, thread, stuck: None, counted: false });
        Ok(())
    }

    /// Supervises until stopped. It does not join threads that hang, so they do not delay the exit.
    pub(super) fn run(mut self) {
        let tick = tick(self.settings.patience.absent_after);
        while !self.stop.is_cancelled() {
            match self.inbox.recv_timeout(tick) {
                Ok(message) => {
                    self.handle(message);
                    while let Ok(message) = self.inbox.try_recv() {
                        self.handle(message);
                    }
                }
                Err(RecvTimeoutError::Timeout) => {}
                // Not possible while `self.messages` lives.
                Err(RecvTimeoutError::Disconnected) => return,
            }
            self.check(monotonic());
        }
        for poller in &self.pollers {
            poller.heartbeat.dismiss();
            poller.thread.thread().unpark();
        }
    }

    fn handle(&mut self, message: Message) {
        match message {
            Message::Session(nvml) => self.session = Some(nvml),
            Message::Source(state) => {
                self.source = state;
                self.worked |= matches!(self.source, GpuSourceState::Working { .. });
                if self.reach != Reach::Hangs {
                    self.reporter.fact(Fact::GpuSource(self.source.clone()));
                }
            }
            Message::Inventory(known) => {
                self.known = known;
                self.send_gpus();
            }
            Message::Event(xid) => self.report_xid(xid),
            Message::Log(line) => self.report_xid(from_log(&line, &self.known, monotonic())),
            Message::Lost(slot) => self.reporter.event(SourceEvent::GpuFellOff(bus_id(slot))),
            Message::Switch(line) => self.reporter.event(SourceEvent::Sxid(of_switch(&line, monotonic()))),
            Message::GpusChanged => self.request_inventory(),
            // The poller sees at once that no answer will come.
            Message::Close(answer) if self.events_hang => drop(answer),
            Message::Close(answer) => {
                if self.lists.take().is_some() {
                    self.closing = Some(answer);
                } else {
                    let _ = answer.try_send(());
                }
            }
            Message::Closed => self.session = None,
            Message::EventsLeft => match self.closing.take() {
                // Too late: the poller has given up, so the event thread must start again.
                Some(answer) if answer.try_send(()).is_err() => self.send_gpus(),
                Some(_) => {}
                None => self.lists = None,
            },
        }
    }

    fn report_xid(&mut self, xid: Xid) {
        let news = self.recent.news(&xid);
        let complete = if xid.source == XidSource::KernelLog { self.recent.completed(&xid) } else { None };
        match news {
            _ if complete.is_some() => complete.into_iter().for_each(|xid| self.reporter.event(SourceEvent::Xid(xid))),
            News::Error if self.reads_kernel_log => {
                let now = self.recent.wait_for_log(xid);
                now.into_iter().for_each(|xid| self.reporter.event(SourceEvent::Xid(xid)));
            }
            News::Error => self.reporter.event(SourceEvent::Xid(xid)),
            News::Details { process, severity } => {
                let (pid, severity) = (xid.pid.filter(|_| process), xid.severity.filter(|_| severity));
                self.reporter.event(SourceEvent::XidDetails(Xid { pid, severity, ..xid }));
            }
            News::None => {}
        }
    }

    /// Whether a thread reads the kernel log.
    pub(super) fn reads_kernel_log(&mut self, reads: bool) {
        self.reads_kernel_log = reads;
    }

    fn request_inventory(&self) {
        for poller in &self.pollers {
            poller.heartbeat.request_inventory();
        }
    }

    /// Sends the list of GPUs to the event thread, and starts the thread if there is none. A thread that hangs gets the
    /// list when its call returns.
    fn send_gpus(&mut self) {
        self.check_event_thread(monotonic());
        if self.events_hang || self.event_thread_due.is_some() {
            return;
        }
        let sent = self.lists.as_ref().is_some_and(|lists| lists.send(self.known.clone()).is_ok());
        if sent {
            return;
        }
        let Some(nvml) = self.session else { return };
        let (sender, lists) = mpsc::channel();
        let events = Events {
            nvml,
            lists,
            messages: self.messages.clone(),
            reporter: self.reporter.clone(),
            heartbeat: Arc::clone(&self.events),
            stop: self.stop.clone(),
            lost_retry: self.settings.process_period * LOST_AGAIN,
        };
        match std::thread::Builder::new().name("nvml-events".into()).spawn(move || events.run()) {
            Ok(thread) => {
                let _ = sender.send(self.known.clone());
                self.lists = Some(sender);
                self.event_thread = Some(thread);
            }
            Err(error) => tracing::warn!(%error, "cannot start nvml-events, so XIDs come from the kernel log only"),
        }
    }

    /// Checks the heartbeats.
    fn check(&mut self, now: Monotonic) {
        if self.hold.has_changed().unwrap_or(false) {
            self.hold.mark_unchanged();
            self.pollers.iter().for_each(|poller| poller.thread.thread().unpark());
        }
        let mut newly = Vec::new();
        for poller in &mut self.pollers {
            match (poller.stuck.take(), poller.heartbeat.stuck(now, &self.settings.patience)) {
                (before, Some(stuck)) => {
                    if before.as_ref() != Some(&stuck) {
                        newly.push((stuck.clone(), before.is_none()));
                    }
                    poller.stuck = Some(stuck);
                }
                // A replaced poller ends by itself; any other continues.
                (Some(stuck), None) if !poller.heartbeat.dismissed() => {
                    let (uuid, index) = named(&self.known, stuck.gpu.as_ref());
                    tracing::warn!(gpu_uuid = uuid, gpu_index = index, "NVML call returned after all");
                }
                (before, None) => poller.stuck = before,
            }
        }
        for (stuck, first) in newly {
            self.log_overdue(&stuck, first);
        }
        for xid in self.recent.overdue(now) {
            self.reporter.event(SourceEvent::Xid(xid));
        }
        self.report_stalled(now);
        self.remove_ended(now);
        self.check_events(now);
        self.update_pollers(now);
    }

    /// Logs that a call stalls or hangs.
    fn log_overdue(&self, stuck: &Stuck, first: bool) {
        if first {
            self.reporter.trouble(ErrorCounter::NvmlFailed);
        }
        let (uuid, index) = named(&self.known, stuck.gpu.as_ref());
        if stuck.hangs {
            tracing::error!(
                gpu_uuid = uuid,
                gpu_index = index,
                "NVML call does not return: the GPU is not called and not trusted until it does"
            );
        } else {
            tracing::warn!(
                gpu_uuid = uuid,
                gpu_index = index,
                after_seconds = self.settings.patience.absent_after.as_secs_f64(),
                "NVML call takes long: the GPU is not called until it returns"
            );
        }
    }

    /// Reports once, as `GpuStalled`, the GPU that is to blame for an overdue call. The GPU of the call is to blame if
    /// the call hangs, or if a call of another poller began and returned while this call was already late. If a call
    /// about no particular GPU hangs, all GPUs are to blame. If no call returns for some seconds, other programs keep
    /// the driver busy, and no GPU is to blame.
    fn report_stalled(&mut self, now: Monotonic) {
        let answered =
            self.pollers.iter().filter(|poller| poller.works()).filter_map(|poller| poller.heartbeat.answered()).max();
        let patience = self.settings.patience.absent_after;
        let late = patience * 2;
        for poller in &mut self.pollers {
            let Some(stuck) = &poller.stuck else {
                poller.counted = false;
                continue;
            };
            let since = poller.heartbeat.began().map(|began| began.after(patience));
            let others_answered = since.is_some_and(|since| answered.is_some_and(|answered| answered >= since));
            let alone = stuck.gpu.is_some() && others_answered && poller.heartbeat.silent_for(now, late);
            if poller.counted || !(stuck.hangs || alone) {
                continue;
            }
            poller.counted = true;
            let all = self.known.iter().map(|known| &known.gpu.uuid);
            let on: Vec<&GpuUuid> = match &stuck.gpu {
                Some(GpuKey::Uuid(gpu)) => vec![gpu],
                Some(GpuKey::Index(_)) => Vec::new(),
                None => all.collect(),
            };
            for gpu in on {
                self.reporter.event(SourceEvent::GpuStalled(gpu.clone()));
            }
        }
    }

    /// Handles a panic of the event thread, which would otherwise go unnoticed: XIDs would then come from the kernel
    /// log only.
    fn check_event_thread(&mut self, now: Monotonic) {
        let Some(thread) = self.event_thread.take_if(|thread| thread.is_finished()) else { return };
        // A thread that must leave ends as well; it sends `Message::EventsLeft`.
        if thread.join().is_ok() {
            return;
        }
        self.reporter.trouble(ErrorCounter::NvmlFailed);
        tracing::error!(
            again_seconds = RESTART.as_secs(),
            "the thread nvml-events panicked: XIDs come from the kernel log only until it is started again"
        );
        // A poller that waits for the library to be closed sees that no answer will come; the call that panicked is
        // over.
        (self.lists, self.closing, self.events) = (None, None, Arc::default());
        self.event_thread_due = Some(now.after(RESTART));
    }

    /// Logs when the event thread hangs, and when it is back.
    fn check_events(&mut self, now: Monotonic) {
        self.check_event_thread(now);
        if self.event_thread_due.take_if(|due| now >= *due).is_some() {
            self.send_gpus();
        }
        // A wait lasts up to `event::WAIT` when all is well.
        let after = self.settings.patience.absent_after + event::WAIT;
        let events_hang = self.events.silent_for(now, after);
        if events_hang == self.events_hang {
            return;
        }
        self.events_hang = events_hang;
        self.reporter.fact(Fact::GpuEventsHang(events_hang));
        if events_hang {
            self.reporter.trouble(ErrorCounter::NvmlFailed);
            tracing::error!(
                after_seconds = after.as_secs_f64(),
                "the wait for NVML's events does not return, so XIDs come from the kernel log only until it does"
            );
        } else {
            tracing::warn!("the wait for NVML's events returned after all");
            if self.lists.is_some() {
                self.send_gpus();
            }
        }
    }

    /// Removes the pollers whose threads have ended.
    fn remove_ended(&mut self, now: Monotonic) {
        let (gone, left): (Vec<PollerThread>, Vec<PollerThread>) =
            std::mem::take(&mut self.pollers).into_iter().partition(|poller| poller.thread.is_finished());
        self.pollers = left;
        for poller in gone {
            match poller.stuck.and_then(|stuck| stuck.gpu) {
                Some(gpu) if poller.heartbeat.dismissed() => {
                    let (uuid, index) = named(&self.known, Some(&gpu));
                    tracing::warn!(
                        gpu_uuid = uuid,
                        gpu_index = index,
                        "NVML call returned after all; the GPU is called again"
                    );
                    for poller in &self.pollers {
                        poller.heartbeat.no_longer_skip(&gpu);
                    }
                    self.request_inventory();
                }
                _ => {
                    tracing::error!("the thread nvml-poll ended unexpectedly; the agent starts it again");
                    self.restart_due = now.after(RESTART);
                }
            }
        }
    }

    /// Starts a poller if one is needed, or reports that no poller can call the driver.
    fn update_pollers(&mut self, now: Monotonic) {
        if self.pollers.is_empty() {
            if now >= self.restart_due {
                self.start_poller(BTreeSet::new());
            }
        } else if !self.pollers.iter().any(PollerThread::works)
            && self.pollers.len() < MAX_POLLERS
            && self.session.is_some()
        {
            let skipped: BTreeSet<GpuKey> = self.stuck().into_iter().filter_map(|stuck| stuck.gpu).collect();
            if !skipped.is_empty() {
                self.pollers.iter().for_each(|poller| poller.heartbeat.dismiss());
                self.start_poller(skipped);
            }
        }
        let free = self.pollers.is_empty() || self.pollers.iter().any(PollerThread::works);
        let reach = if free { Reach::Free } else { Reach::of_all(&self.stuck()) };
        let before = std::mem::replace(&mut self.reach, reach);
        if (before == Reach::Hangs) != (reach == Reach::Hangs) {
            let state = if reach == Reach::Hangs { GpuSourceState::Hanging } else { self.source.clone() };
            if reach == Reach::Hangs {
                tracing::error!("NVML hangs: all GPUs are absent until a call returns; CPU and memory are still read");
            }
            self.reporter.fact(Fact::GpuSource(state));
        }
        self.report_absent(now);
    }

    /// Reports the GPUs that cannot be called.
    fn report_absent(&mut self, now: Monotonic) {
        let again = now >= self.repeat_due;
        let (stuck, gpus) = (self.stuck(), self.known.iter().map(|known| known.gpu.uuid.clone()));
        for (gpu, why) in self.stalls.changes(gpus, &stuck, self.reach, again) {
            absent(&self.reporter, &gpu, why);
        }
        if again {
            self.repeat_due = now.after(REPEAT);
            if self.events_hang {
                self.reporter.fact(Fact::GpuEventsHang(true));
            }
        }
    }

    fn start_poller(&mut self, skipped: BTreeSet<GpuKey>) {
        if let Err(error) = self.spawn_poller(skipped) {
            tracing::error!(%error, "cannot start nvml-poll");
            self.restart_due = monotonic().after(RESTART);
        }
    }

    /// The calls that have not returned in time.
    fn stuck(&self) -> Vec<Stuck> {
        self.pollers.iter().filter_map(|poller| poller.stuck.clone()).collect()
    }
}

/// Time between two checks of the heartbeats, which is the delay with which an overdue call is noticed.
fn tick(absent_after: Duration) -> Duration {
    (absent_after / 4).clamp(Duration::from_millis(5), LONGEST_TICK)
}

/// UUID and index of a GPU for a log line, as far as they are known.
fn named<'a>(known: &'a [KnownGpu], gpu: Option<&'a GpuKey>) -> (Option<&'a str>, Option<u32>) {
    match gpu {
        Some(GpuKey::Uuid(uuid)) => {
            let known = known.iter().find(|known| known.gpu.uuid == *uuid);
            (Some(uuid.as_str()), known.map(|known| known.gpu.index))
        }
        Some(GpuKey::Index(index)) => (None, Some(*index)),
        None => (None, None),
    }
}

#[cfg(test)]
mod tests;
