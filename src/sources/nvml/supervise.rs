//! The supervisor: starts the threads that call NVML, watches their heartbeat, and never calls NVML itself.
//!
//! ```text
//!   poller works ──a call on GPU i stalls──▶ replaced by one that leaves i alone ──another stalls──▶ all GPUs absent
//!   poller works ──a call on GPU i stalls──▶ replaced by one that skips GPU i ──another stalls──▶ all GPUs absent
//!        ▲                                        │                                                     │
//!        └──the call returned, the old one ends───┴────────────────a call returned──────────────────────┘
//!
//! A call that stalls makes readings absent; a call that hangs, which is reported much later, also makes the GPU unfit.
//!
//! One thread waits for events. If one of its calls does not return, the supervisor reports that and does not replace
//! the thread, because a replacement would hang as well; XIDs come from the kernel log meanwhile. If the thread panics,
//! the supervisor reports that and starts it again.
//!
//! At most two pollers exist. A poller whose call is about no particular GPU (opening the library, counting) is not
//! replaced, because there is no GPU to skip: all GPUs are absent until it returns.

use crate::clock::monotonic;
use crate::nvml::event::{self, Events};
use crate::nvml::heartbeat::{GpuKey, Heartbeat, Stuck};
use crate::nvml::inventory::Known;
use crate::nvml::message::{Message, QUEUE};
use crate::nvml::poll::{Poller, absent};
use crate::nvml::session::Open;
use crate::nvml::settings::Settings;
use crate::nvml::stall::{Reach, Stalls};
use crate::nvml::xid::{News, Recent, from_log, of_switch};
use crate::report::Reporter;
use model::driver_hold::DriverHold;
use model::gpu::Xid;
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

/// One poller that hangs, and its replacement.
const MAX_POLLERS: usize = 2;
/// Longest time between two checks of the heartbeats; also the delay of a stop.
const LONGEST_TICK: Duration = Duration::from_millis(500);
/// Absent GPUs are reported again this often, in case the queue was full the first time.
const REPEAT: Duration = Duration::from_secs(10);
/// Time between two attempts to register for events of a lost GPU, in process periods (10 s): as often as the
/// inventory.
const LOST_AGAIN: u32 = 2;
/// Pause before a poller that ended unexpectedly is started again.
const RESTART: Duration = Duration::from_secs(5);

/// The supervisor's state. One thread owns all its fields and no other thread sees them: the pollers, the event thread,
/// the session of the library, and the deadlines of each.
pub(super) struct Supervisor {
    settings: Arc<Settings>,
    reporter: Reporter,
    stop: CancellationToken,
    inbox: Receiver<Message>,
    tell: SyncSender<Message>,
    hold: watch::Receiver<DriverHold>,
    seats: Vec<Seat>,
    session: Option<&'static Nvml>,
    known: Vec<Known>,
    source: GpuSourceState,
    /// A list of GPUs has been read since the agent started.
    worked: bool,
    reach: Reach,
    stalls: Stalls,
    recent: Recent,
    /// Sends lists of GPUs to the event thread.
    lists: Option<mpsc::Sender<Vec<Known>>>,
    listener: Option<JoinHandle<()>>,
    events: Arc<Heartbeat>,
    /// When to start the event thread again after a panic.
    listen_due: Option<Monotonic>,
    /// The event thread hangs in a call.
    deaf: bool,
    closing: Option<SyncSender<()>>,
    repeat_due: Monotonic,
    restart_due: Monotonic,
}

/// A poller's thread, as the supervisor sees it.
struct Seat {
    pulse: Arc<Heartbeat>,
    thread: JoinHandle<()>,
    stuck: Option<Stuck>,
    /// Whether the GPU that is blamed for the overdue call has been reported.
    counted: bool,
}

impl Seat {
    /// Whether it calls the driver and gets answers.
    fn works(&self) -> bool {
        self.stuck.is_none() && !self.pulse.dismissed()
    }
}

impl Supervisor {
    pub(super) fn new(settings: Settings, reporter: Reporter, stop: CancellationToken) -> Self {
        let (tell, inbox) = mpsc::sync_channel(QUEUE);
        Supervisor {
            hold: settings.gate.seen(),
            settings: Arc::new(settings),
            reporter,
            stop,
            inbox,
            tell,
            seats: Vec::new(),
            session: None,
            known: Vec::new(),
            source: GpuSourceState::Starting,
            worked: false,
            reach: Reach::Free,
            stalls: Stalls::default(),
            recent: Recent::default(),
            lists: None,
            listener: None,
            events: Arc::default(),
            listen_due: None,
            deaf: false,
            closing: None,
            repeat_due: Monotonic::default(),
            restart_due: Monotonic::default(),
        }
    }

    /// A sender for other threads.
    pub(super) fn door(&self) -> SyncSender<Message> {
        self.tell.clone()
    }

    /// Starts a poller that skips these GPUs.
    ///
    /// # Errors
    /// When the operating system cannot start a thread.
    pub(super) fn seat(&mut self, skipped: BTreeSet<GpuKey>) -> std::io::Result<()> {
        let pulse = Arc::new(Heartbeat::skipping(skipped));
        let proven = matches!(self.source, GpuSourceState::Working { .. });
        let open = Open { nvml: self.session, proven, worked: self.worked };
        let poller =
            Poller::new(Arc::clone(&self.settings), self.reporter.clone(), Arc::clone(&pulse), self.tell.clone(), open);
        let known = self.known.clone();
        let thread = std::thread::Builder::new().name("nvml-poll".into()).spawn(move || poller.run(known))?;
        self.seats.push(Seat { pulse, thread, stuck: None, counted: false });
        Ok(())
    }

    /// Supervises until stopped. It does not join threads that hang, so they do not delay the exit.
    pub(super) fn run(mut self) {
        let tick = tick(self.settings.patience.absent_after);
        while !self.stop.is_cancelled() {
            match self.inbox.recv_timeout(tick) {
                Ok(message) => {
                    self.hear(message);
                    while let Ok(message) = self.inbox.try_recv() {
                        self.hear(message);
                    }
                }
                Err(RecvTimeoutError::Timeout) => {}
                // Not possible while `self.tell` lives.
                Err(RecvTimeoutError::Disconnected) => return,
            }
            self.look(monotonic());
        }
        for seat in &self.seats {
            seat.pulse.dismiss();
            seat.thread.thread().unpark();
        }
    }

    fn hear(&mut self, message: Message) {
        match message {
            Message::Session(nvml) => self.session = Some(nvml),
            Message::Source(state) => {
                self.source = state;
                self.worked |= matches!(self.source, GpuSourceState::Working { .. });
                if self.reach != Reach::Hangs {
                    self.reporter.fact(Fact::GpuSource(self.source.clone()));
                }
            }
            Message::Known(known) => {
                self.known = known;
                self.listen();
            }
            Message::Event(xid) => self.pass_on(xid),
            Message::Log(line) => self.pass_on(from_log(&line, &self.known, monotonic())),
            Message::Switch(line) => self.reporter.event(SourceEvent::Sxid(of_switch(&line, monotonic()))),
            Message::LookAgain => self.look_again(),
            // The poller sees at once that no answer will come.
            Message::Close(answer) if self.deaf => drop(answer),
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
                Some(answer) if answer.try_send(()).is_err() => self.listen(),
                Some(_) => {}
                None => self.lists = None,
            },
        }
    }

    fn pass_on(&mut self, xid: Xid) {
        match self.recent.news(&xid) {
            News::Error => self.reporter.event(SourceEvent::Xid(xid)),
            News::Process => self.reporter.event(SourceEvent::XidProcess(xid)),
            News::None => {}
        }
    }

    fn look_again(&self) {
        for seat in &self.seats {
            seat.pulse.look_again();
        }
    }

    /// Sends the list of GPUs to the event thread, and starts the thread if there is none. A thread that hangs gets the
    /// list when its call returns.
    fn listen(&mut self) {
        self.notice_a_panic(monotonic());
        if self.deaf || self.listen_due.is_some() {
            return;
        }
        let told = self.lists.as_ref().is_some_and(|lists| lists.send(self.known.clone()).is_ok());
        if told {
            return;
        }
        let Some(nvml) = self.session else { return };
        let (sender, lists) = mpsc::channel();
        let events = Events {
            nvml,
            lists,
            tell: self.tell.clone(),
            reporter: self.reporter.clone(),
            pulse: Arc::clone(&self.events),
            stop: self.stop.clone(),
            again: self.settings.process_period * LOST_AGAIN,
        };
        match std::thread::Builder::new().name("nvml-events".into()).spawn(move || events.run()) {
            Ok(thread) => {
                let _ = sender.send(self.known.clone());
                self.lists = Some(sender);
                self.listener = Some(thread);
            }
            Err(error) => tracing::warn!(%error, "cannot start nvml-events, so XIDs come from the kernel log only"),
        }
    }

    /// Checks the heartbeats.
    fn look(&mut self, now: Monotonic) {
        if self.hold.has_changed().unwrap_or(false) {
            self.hold.mark_unchanged();
            self.seats.iter().for_each(|seat| seat.thread.thread().unpark());
        }
        let mut newly = Vec::new();
        for seat in &mut self.seats {
            match (seat.stuck.take(), seat.pulse.stuck(now, &self.settings.patience)) {
                (before, Some(stuck)) => {
                    if before.as_ref() != Some(&stuck) {
                        newly.push((stuck.clone(), before.is_none()));
                    }
                    seat.stuck = Some(stuck);
                }
                // A replaced poller ends by itself; any other continues.
                (Some(stuck), None) if !seat.pulse.dismissed() => {
                    let (uuid, index) = named(&self.known, stuck.gpu.as_ref());
                    tracing::warn!(gpu_uuid = uuid, gpu_index = index, "NVML call returned after all");
                }
                (before, None) => seat.stuck = before,
            }
        }
        for (stuck, first) in newly {
            self.say(&stuck, first);
        }
        self.count(now);
        self.clear_away(now);
        self.look_at_events(now);
        self.settle(now);
    }

    /// Logs that a call stalls or hangs.
    fn say(&self, stuck: &Stuck, first: bool) {
        if first {
            self.reporter.trouble(ErrorCounter::NvmlFailed);
        }
        let (uuid, index) = named(&self.known, stuck.gpu.as_ref());
        if stuck.hangs {
            tracing::error!(
                gpu_uuid = uuid,
                gpu_index = index,
                "NVML call does not return: the GPU is left alone and not trusted until it does"
            );
        } else {
            tracing::warn!(
                gpu_uuid = uuid,
                gpu_index = index,
                after_seconds = self.settings.patience.absent_after.as_secs_f64(),
                "NVML call takes long: the GPU is left alone until it returns"
            );
        }
    }

    /// Reports once, as `GpuStalled`, the GPU that is to blame for an overdue call. The GPU of the call is to blame if
    /// the call hangs, or if a call of another poller began and returned while this call was already late. If a call
    /// about no particular GPU hangs, all GPUs are to blame. If no call returns for some seconds, other programs keep
    /// the driver busy, and no GPU is to blame.
    fn count(&mut self, now: Monotonic) {
        let answered = self.seats.iter().filter(|seat| seat.works()).filter_map(|seat| seat.pulse.answered()).max();
        let patience = self.settings.patience.absent_after;
        let late = patience * 2;
        for seat in &mut self.seats {
            let Some(stuck) = &seat.stuck else {
                seat.counted = false;
                continue;
            };
            let since = seat.pulse.began().map(|began| began.after(patience));
            let others_answered = since.is_some_and(|since| answered.is_some_and(|answered| answered >= since));
            let alone = stuck.gpu.is_some() && others_answered && seat.pulse.silent_for(now, late);
            if seat.counted || !(stuck.hangs || alone) {
                continue;
            }
            seat.counted = true;
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
    fn notice_a_panic(&mut self, now: Monotonic) {
        let Some(thread) = self.listener.take_if(|thread| thread.is_finished()) else { return };
        // A thread that was told to leave ends as well; it sends `Message::EventsLeft`.
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
        self.listen_due = Some(now.after(RESTART));
    }

    /// Logs when the event thread hangs, and when it is back.
    fn look_at_events(&mut self, now: Monotonic) {
        self.notice_a_panic(now);
        if self.listen_due.take_if(|due| now >= *due).is_some() {
            self.listen();
        }
        // A wait lasts up to `event::WAIT` when all is well.
        let after = self.settings.patience.absent_after + event::WAIT;
        let deaf = self.events.silent_for(now, after);
        if deaf == self.deaf {
            return;
        }
        self.deaf = deaf;
        self.reporter.fact(Fact::GpuEventsHang(deaf));
        if deaf {
            self.reporter.trouble(ErrorCounter::NvmlFailed);
            tracing::error!(
                after_seconds = after.as_secs_f64(),
                "the wait for NVML's events does not return, so XIDs come from the kernel log only until it does"
            );
        } else {
            tracing::warn!("the wait for NVML's events returned after all");
            if self.lists.is_some() {
                self.listen();
            }
        }
    }

    /// Removes the pollers whose threads have ended.
    fn clear_away(&mut self, now: Monotonic) {
        let (gone, left): (Vec<Seat>, Vec<Seat>) =
            std::mem::take(&mut self.seats).into_iter().partition(|seat| seat.thread.is_finished());
        self.seats = left;
        for seat in gone {
            match seat.stuck.and_then(|stuck| stuck.gpu) {
                Some(gpu) if seat.pulse.dismissed() => {
                    let (uuid, index) = named(&self.known, Some(&gpu));
                    tracing::warn!(
                        gpu_uuid = uuid,
                        gpu_index = index,
                        "NVML call returned after all, the GPU is asked again"
                    );
                    for seat in &self.seats {
                        seat.pulse.no_longer_skip(&gpu);
                    }
                    self.look_again();
                }
                _ => {
                    tracing::error!("the thread nvml-poll ended unexpectedly; the agent starts it again");
                    self.restart_due = now.after(RESTART);
                }
            }
        }
    }

    /// Starts a poller if one is needed, or reports that no poller can call the driver.
    fn settle(&mut self, now: Monotonic) {
        if self.seats.is_empty() {
            if now >= self.restart_due {
                self.start(BTreeSet::new());
            }
        } else if !self.seats.iter().any(Seat::works) && self.seats.len() < MAX_POLLERS && self.session.is_some() {
            let left_alone: BTreeSet<GpuKey> = self.stuck().into_iter().filter_map(|stuck| stuck.gpu).collect();
            if !left_alone.is_empty() {
                self.seats.iter().for_each(|seat| seat.pulse.dismiss());
                self.start(left_alone);
            }
        }
        let free = self.seats.is_empty() || self.seats.iter().any(Seat::works);
        let reach = if free { Reach::Free } else { Reach::of_all(&self.stuck()) };
        let before = std::mem::replace(&mut self.reach, reach);
        if (before == Reach::Hangs) != (reach == Reach::Hangs) {
            let state = if reach == Reach::Hangs { GpuSourceState::Hanging } else { self.source.clone() };
            if reach == Reach::Hangs {
                tracing::error!("NVML hangs: all GPUs are absent until a call returns, CPU and memory go on");
            }
            self.reporter.fact(Fact::GpuSource(state));
        }
        self.tell_absent(now);
    }

    /// Reports the GPUs that cannot be called.
    fn tell_absent(&mut self, now: Monotonic) {
        let again = now >= self.repeat_due;
        let (stuck, gpus) = (self.stuck(), self.known.iter().map(|known| known.gpu.uuid.clone()));
        for (gpu, why) in self.stalls.news(gpus, &stuck, self.reach, again) {
            absent(&self.reporter, &gpu, why);
        }
        if again {
            self.repeat_due = now.after(REPEAT);
            if self.deaf {
                self.reporter.fact(Fact::GpuEventsHang(true));
            }
        }
    }

    fn start(&mut self, skipped: BTreeSet<GpuKey>) {
        if let Err(error) = self.seat(skipped) {
            tracing::error!(%error, "cannot start nvml-poll");
            self.restart_due = monotonic().after(RESTART);
        }
    }

    /// The calls that have not returned in time.
    fn stuck(&self) -> Vec<Stuck> {
        self.seats.iter().filter_map(|seat| seat.stuck.clone()).collect()
    }
}

/// Time between two checks of the heartbeats, which is the delay with which an overdue call is noticed.
fn tick(absent_after: Duration) -> Duration {
    (absent_after / 4).clamp(Duration::from_millis(5), LONGEST_TICK)
}

/// UUID and index of a GPU for a log line, as far as they are known.
fn named<'a>(known: &'a [Known], gpu: Option<&'a GpuKey>) -> (Option<&'a str>, Option<u32>) {
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
