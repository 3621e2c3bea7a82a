//! The supervisor: starts the threads that call NVML, watches their heartbeat, and never calls NVML itself.
//!
//! ```text
//!   poller works ──a call on GPU i hangs──▶ replaced by one that leaves i alone ──another hangs──▶ all GPUs absent
//!        ▲                                        │                                                    │
//!        └──the call returned, the old one ends───┴────────────────a call returned─────────────────────┘
//! ```
//!
//! One thread waits for events; one of its calls that does not return is told and not replaced, because whoever took its
//! place would hang as well: XIDs come from the kernel's log meanwhile. If it panics it is told, and started again.
//!
//! At most two pollers exist. One whose call is about no GPU (opening the library, counting) is not replaced, because
//! nothing could be left alone: all GPUs are absent until it returns.

use crate::clock::monotonic;
use crate::nvml::event::{self, Events};
use crate::nvml::inventory::Known;
use crate::nvml::message::{Message, QUEUE};
use crate::nvml::poll::{Inheritance, Poller, absent};
use crate::nvml::pulse::{GpuKey, Pulse, Stuck};
use crate::nvml::settings::Settings;
use crate::nvml::xid::{News, Recent, from_log, of_switch};
use crate::report::Reporter;
use model::Absence;
use model::gpu::Xid;
use model::hold::Hold;
use model::observation::{GpuSourceState, Observation, Trouble};
use model::time::Monotonic;
use nvml_wrapper::Nvml;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, SyncSender};
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// One that hangs, and its replacement.
const MAX_POLLERS: usize = 2;
/// Longest time between two looks at the heartbeats; also how soon a stop is passed on.
const LONGEST_TICK: Duration = Duration::from_millis(500);
/// Absent GPUs are told again this often, in case the queue was full the first time.
const REPEAT: Duration = Duration::from_secs(10);
/// Pause before a poller that ended by itself (which none should) is started again.
const RESTART: Duration = Duration::from_secs(5);

/// The supervisor's state.
pub(super) struct Supervisor {
    settings: Arc<Settings>,
    reporter: Reporter,
    stop: CancellationToken,
    inbox: Receiver<Message>,
    tell: SyncSender<Message>,
    hold: watch::Receiver<Hold>,
    seats: Vec<Seat>,
    session: Option<&'static Nvml>,
    known: Vec<Known>,
    source: GpuSourceState,
    hanging: bool,
    recent: Recent,
    /// The event thread's.
    lists: Option<mpsc::Sender<Vec<Known>>>,
    listener: Option<JoinHandle<()>>,
    events: Arc<Pulse>,
    /// When the event thread is to be started again after it panicked.
    listen_due: Option<Monotonic>,
    /// The event thread hangs in a call.
    deaf: bool,
    closing: Option<SyncSender<()>>,
    repeat_due: Monotonic,
    restart_due: Monotonic,
}

/// A poller's thread, as seen from outside.
struct Seat {
    pulse: Arc<Pulse>,
    thread: JoinHandle<()>,
    hung: Option<Stuck>,
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
            hanging: false,
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

    /// Where others may tell something.
    pub(super) fn door(&self) -> SyncSender<Message> {
        self.tell.clone()
    }

    /// Starts a poller that leaves these GPUs alone.
    ///
    /// # Errors
    /// When the operating system has no thread to give.
    pub(super) fn seat(&mut self, skipped: BTreeSet<GpuKey>) -> std::io::Result<()> {
        let pulse = Arc::new(Pulse::skipping(skipped));
        let poller =
            Poller::new(Arc::clone(&self.settings), self.reporter.clone(), Arc::clone(&pulse), self.tell.clone());
        let inheritance = Inheritance { nvml: self.session, known: self.known.clone() };
        let thread = std::thread::Builder::new().name("nvml-poll".into()).spawn(move || poller.run(inheritance))?;
        self.seats.push(Seat { pulse, thread, hung: None });
        Ok(())
    }

    /// Supervises until stopped. Threads that hang are left behind: nobody waits for them, so they hold up no exit.
    pub(super) fn run(mut self) {
        let tick = tick(self.settings.hang_after);
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
                if !self.hanging {
                    self.reporter.report(Observation::GpuSource(self.source.clone()));
                }
            }
            Message::Known(known) => {
                self.known = known;
                self.listen();
            }
            Message::Event(xid) => self.pass_on(xid),
            Message::Log(line) => self.pass_on(from_log(&line, &self.known, monotonic())),
            Message::Switch(line) => {
                if !self.reporter.report(Observation::Sxid(of_switch(&line, monotonic()))) {
                    self.reporter.trouble(Trouble::QueueFull);
                }
            }
            Message::LookAgain => self.look_again(),
            // Whoever asked sees at once that nobody will answer.
            Message::Close(answer) if self.deaf => drop(answer),
            Message::Close(answer) => {
                if self.lists.take().is_some() {
                    self.closing = Some(answer);
                } else {
                    let _ = answer.try_send(());
                }
            }
            Message::EventsLeft => match self.closing.take() {
                // Too late: whoever asked has given up, so somebody has to listen again.
                Some(answer) if answer.try_send(()).is_err() => self.listen(),
                Some(_) => {}
                None => self.lists = None,
            },
        }
    }

    fn pass_on(&mut self, xid: Xid) {
        let observation = match self.recent.news(&xid) {
            News::Error => Observation::Xid(xid),
            News::Process => Observation::XidProcess(xid),
            News::None => return,
        };
        if !self.reporter.report(observation) {
            self.reporter.trouble(Trouble::QueueFull);
        }
    }

    fn look_again(&self) {
        for seat in &self.seats {
            seat.pulse.look_again();
        }
    }

    /// Lets the event thread know the GPUs; starts it when it is not there. One that hangs is told when it returns.
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
        };
        match std::thread::Builder::new().name("nvml-events".into()).spawn(move || events.run()) {
            Ok(thread) => {
                let _ = sender.send(self.known.clone());
                self.lists = Some(sender);
                self.listener = Some(thread);
            }
            Err(error) => tracing::warn!(%error, "no thread for NVML's events, so XIDs come from the kernel log only"),
        }
    }

    /// Looks at the heartbeats.
    fn look(&mut self, now: Monotonic) {
        if self.hold.has_changed().unwrap_or(false) {
            self.hold.mark_unchanged();
            self.seats.iter().for_each(|seat| seat.thread.thread().unpark());
        }
        let mut newly = Vec::new();
        for seat in &mut self.seats {
            match (seat.hung.take(), seat.pulse.stuck(now, self.settings.hang_after)) {
                (None, Some(stuck)) => {
                    seat.hung = Some(stuck.clone());
                    newly.push(stuck);
                }
                // One that was replaced ends by itself; any other goes on.
                (Some(stuck), None) if !seat.pulse.dismissed() => {
                    let (uuid, index) = named(&self.known, stuck.gpu.as_ref());
                    tracing::warn!(gpu_uuid = uuid, gpu_index = index, "NVML call returned after all");
                }
                (before, stuck) => seat.hung = stuck.or(before),
            }
        }
        for stuck in newly {
            self.reporter.trouble(Trouble::NvmlFailed);
            let (uuid, index) = named(&self.known, stuck.gpu.as_ref());
            tracing::error!(
                gpu_uuid = uuid,
                gpu_index = index,
                after_seconds = self.settings.hang_after.as_secs_f64(),
                "NVML call does not return: the GPU is left alone until it does"
            );
            if let Some(known) = self.known.iter().find(|known| Some(known.key()) == stuck.gpu) {
                absent(&self.reporter, known, Absence::CallHangs);
            }
        }
        self.clear_away(now);
        self.look_at_events(now);
        self.settle(now);
    }

    /// A panic of the event thread: nobody would hear of an XID but by the kernel's log, and nobody would know.
    fn notice_a_panic(&mut self, now: Monotonic) {
        let Some(thread) = self.listener.take_if(|thread| thread.is_finished()) else { return };
        // One that was sent away ends as well, and says so by `Message::EventsLeft`.
        if thread.join().is_ok() {
            return;
        }
        self.reporter.trouble(Trouble::NvmlFailed);
        tracing::error!(
            again_seconds = RESTART.as_secs(),
            "the thread nvml-events panicked: XIDs come from the kernel log only until it is started again"
        );
        // Whoever wants the library closed sees that nobody will answer; the call that panicked is not under way any more.
        (self.lists, self.closing, self.events) = (None, None, Arc::default());
        self.listen_due = Some(now.after(RESTART));
    }

    /// Says when the event thread hangs, and when it is back.
    fn look_at_events(&mut self, now: Monotonic) {
        self.notice_a_panic(now);
        if self.listen_due.take_if(|due| now >= *due).is_some() {
            self.listen();
        }
        // A wait lasts a while when all is well.
        let after = self.settings.hang_after + event::WAIT;
        let deaf = self.events.stuck(now, after).is_some();
        if deaf == self.deaf {
            return;
        }
        self.deaf = deaf;
        self.reporter.report(Observation::GpuEventsHang(deaf));
        if deaf {
            self.reporter.trouble(Trouble::NvmlFailed);
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

    /// Takes away the seats whose thread has ended.
    fn clear_away(&mut self, now: Monotonic) {
        let (gone, left): (Vec<Seat>, Vec<Seat>) =
            std::mem::take(&mut self.seats).into_iter().partition(|seat| seat.thread.is_finished());
        self.seats = left;
        for seat in gone {
            match seat.hung.and_then(|stuck| stuck.gpu) {
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
                    tracing::error!("the thread nvml-poll ended by itself, it is started again");
                    self.restart_due = now.after(RESTART);
                }
            }
        }
    }

    /// Sees to it that somebody polls, or says that nobody can.
    fn settle(&mut self, now: Monotonic) {
        let works = |seat: &Seat| seat.hung.is_none() && !seat.pulse.dismissed();
        if self.seats.is_empty() {
            if now >= self.restart_due {
                self.start(BTreeSet::new());
            }
        } else if !self.seats.iter().any(works) && self.seats.len() < MAX_POLLERS && self.session.is_some() {
            let hung = self.hung();
            if !hung.is_empty() {
                self.seats.iter().for_each(|seat| seat.pulse.dismiss());
                self.start(hung);
            }
        }
        let hanging = !self.seats.is_empty() && !self.seats.iter().any(works);
        if hanging != self.hanging {
            self.hanging = hanging;
            self.repeat_due = now;
            let state = if hanging { GpuSourceState::Hanging } else { self.source.clone() };
            if hanging {
                tracing::error!("NVML hangs: all GPUs are absent until a call returns, CPU and memory go on");
            }
            self.reporter.report(Observation::GpuSource(state));
        }
        if now >= self.repeat_due {
            self.repeat_due = now.after(REPEAT);
            self.repeat_absent();
            if self.deaf {
                self.reporter.report(Observation::GpuEventsHang(true));
            }
        }
    }

    fn start(&mut self, skipped: BTreeSet<GpuKey>) {
        if let Err(error) = self.seat(skipped) {
            tracing::error!(%error, "no thread for polling NVML");
            self.restart_due = monotonic().after(RESTART);
        }
    }

    fn repeat_absent(&self) {
        let hung = self.hung();
        for known in &self.known {
            if self.hanging || hung.contains(&known.key()) {
                absent(&self.reporter, known, Absence::CallHangs);
            }
        }
    }

    /// The GPUs with a call that does not return.
    fn hung(&self) -> BTreeSet<GpuKey> {
        self.seats.iter().filter_map(|seat| seat.hung.as_ref()?.gpu.clone()).collect()
    }
}

/// Time between two looks at the heartbeats: a call that hangs is seen this long after it has hung for `hang_after`.
fn tick(hang_after: Duration) -> Duration {
    (hang_after / 4).clamp(Duration::from_millis(5), LONGEST_TICK)
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
mod tests {
    use super::*;
    use crate::nvml::gate::Gate;
    use crate::roots::HostRoots;
    use model::id::GpuUuid;

    /// A thread in a call that returns when it is told to.
    fn in_a_call(pulse: &Arc<Pulse>, gpu: &GpuKey) -> JoinHandle<()> {
        let (pulse, gpu) = (Arc::clone(pulse), gpu.clone());
        let (tell, begun) = mpsc::channel();
        let thread = std::thread::spawn(move || {
            pulse.during(Some(&gpu), || {
                tell.send(()).unwrap();
                while !pulse.dismissed() {
                    std::thread::park();
                }
            });
        });
        begun.recv().unwrap();
        thread
    }

    fn supervisor(hang_after: Duration) -> (Supervisor, tokio::sync::mpsc::Receiver<Observation>) {
        let settings = Settings {
            library: None,
            roots: HostRoots::default(),
            period: Duration::from_secs(1),
            process_period: Duration::from_secs(5),
            hang_after,
            kernel_log: None,
            gate: Gate::default(),
        };
        let (reporter, told) = Reporter::channel();
        (Supervisor::new(settings, reporter, CancellationToken::new()), told)
    }

    fn failures(told: &mut tokio::sync::mpsc::Receiver<Observation>) -> usize {
        let told = std::iter::from_fn(|| told.try_recv().ok());
        told.filter(|told| matches!(told, Observation::Trouble(Trouble::NvmlFailed))).count()
    }

    #[test]
    fn an_event_thread_that_panics_is_counted_once_and_started_again() {
        let folder = tempfile::tempdir().unwrap();
        let fake = lab::scenario::FakeNvml::install(folder.path()).unwrap();
        fake.write(&lab::scenario::Scenario::default()).unwrap();
        let (mut supervisor, mut told) = supervisor(Duration::from_secs(2));
        let nvml = Nvml::builder().lib_path(fake.library().as_os_str()).init().unwrap();
        supervisor.session = Some(Box::leak(Box::new(nvml)));
        let (sender, _lists) = mpsc::channel();
        supervisor.lists = Some(sender);
        let pulse = Arc::clone(&supervisor.events);
        let thread = std::thread::spawn(move || pulse.during(None, || panic!("on purpose, in a call")));
        while !thread.is_finished() {
            std::thread::yield_now();
        }
        supervisor.listener = Some(thread);
        let now = monotonic();
        // A new list of GPUs comes before anybody looked.
        supervisor.hear(Message::Known(Vec::new()));
        supervisor.look_at_events(now);
        assert!(supervisor.listener.is_none() && supervisor.lists.is_none());
        supervisor.look_at_events(now.after(Duration::from_secs(60)));
        assert!(supervisor.listener.as_ref().is_some_and(|thread| !thread.is_finished()), "started again");
        assert!(!supervisor.deaf, "the call that panicked does not hang");
        assert_eq!(failures(&mut told), 1);
        supervisor.stop.cancel();
        drop(supervisor.lists.take());
        supervisor.listener.take().unwrap().join().unwrap();
    }

    /// Promise 11 in docs/specification.md, by the time of the look and not by a clock.
    #[test]
    fn a_call_is_given_up_at_the_first_look_after_two_seconds_and_not_before() {
        let hang_after = Duration::from_secs(2);
        assert_eq!(tick(hang_after), Duration::from_millis(500), "so soon is the next look");
        let (mut supervisor, mut told) = supervisor(hang_after);
        let gpu = GpuKey::Uuid(GpuUuid::parse("GPU-1").unwrap());
        let pulse = Arc::new(Pulse::default());
        let before = monotonic();
        let thread = in_a_call(&pulse, &gpu);
        let after = monotonic();
        supervisor.seats.push(Seat { pulse: Arc::clone(&pulse), thread, hung: None });
        let mut look = |at: Monotonic| {
            supervisor.look(at);
            supervisor.hung().contains(&gpu)
        };
        assert!(!look(before.after(hang_after)), "not before");
        assert!(look(Monotonic(after.after(hang_after).0 + 1)), "at the first look");
        assert_eq!(failures(&mut told), 1);
        pulse.dismiss();
        for seat in supervisor.seats {
            seat.thread.thread().unpark();
            seat.thread.join().unwrap();
        }
    }
}
