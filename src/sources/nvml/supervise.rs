//! The supervisor: starts the threads that call NVML, watches their heartbeat, and never calls NVML itself.
//!
//! ```text
//!   poller works ──a call on GPU i hangs──▶ replaced by one that leaves i alone ──another hangs──▶ all GPUs absent
//!        ▲                                        │                                                    │
//!        └──the call returned, the old one ends───┴────────────────a call returned─────────────────────┘
//! ```
//!
//! One thread waits for events; one of its calls that does not return is told and not replaced, because whoever took its
//! place would hang as well: XIDs come from the kernel's log meanwhile.
//!
//! At most two pollers exist. One whose call is about no GPU (opening the library, counting) is not replaced, because
//! nothing could be left alone: all GPUs are absent until it returns.

use crate::clock::monotonic;
use crate::nvml::event::{self, Events};
use crate::nvml::inventory::Known;
use crate::nvml::message::{Message, QUEUE};
use crate::nvml::poll::{Inheritance, Poller, absent};
use crate::nvml::pulse::{Pulse, Stuck};
use crate::nvml::settings::Settings;
use crate::nvml::xid::{Recent, from_log};
use crate::report::Reporter;
use model::Absence;
use model::gpu::Xid;
use model::observation::{GpuSourceState, Observation, Trouble};
use model::time::Monotonic;
use nvml_wrapper::Nvml;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, SyncSender};
use std::thread::JoinHandle;
use std::time::Duration;
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
    seats: Vec<Seat>,
    session: Option<&'static Nvml>,
    known: Vec<Known>,
    source: GpuSourceState,
    hanging: bool,
    recent: Recent,
    /// The event thread's.
    lists: Option<mpsc::Sender<Vec<Known>>>,
    events: Arc<Pulse>,
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
            events: Arc::default(),
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
    pub(super) fn seat(&mut self, skipped: BTreeSet<u32>) -> std::io::Result<()> {
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
        let tick = (self.settings.hang_after / 4).clamp(Duration::from_millis(5), LONGEST_TICK);
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
        if self.recent.first(&xid) && !self.reporter.report(Observation::Xid(xid)) {
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
        if self.deaf {
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
            Ok(_) => {
                let _ = sender.send(self.known.clone());
                self.lists = Some(sender);
            }
            Err(error) => tracing::warn!(%error, "no thread for NVML's events, so XIDs come from the kernel log only"),
        }
    }

    /// Looks at the heartbeats.
    fn look(&mut self, now: Monotonic) {
        let mut newly = Vec::new();
        for seat in &mut self.seats {
            match (seat.hung, seat.pulse.stuck(now, self.settings.hang_after)) {
                (None, Some(stuck)) => {
                    seat.hung = Some(stuck);
                    newly.push(stuck);
                }
                // One that was replaced ends by itself; any other goes on.
                (Some(stuck), None) if !seat.pulse.dismissed() => {
                    seat.hung = None;
                    tracing::warn!(gpu_index = stuck.gpu, "NVML call returned after all");
                }
                (Some(_), Some(stuck)) => seat.hung = Some(stuck),
                _ => {}
            }
        }
        for stuck in newly {
            self.reporter.trouble(Trouble::NvmlFailed);
            let known = self.known.iter().find(|known| Some(known.gpu.index) == stuck.gpu);
            let uuid = known.map(|known| known.gpu.uuid.as_str());
            tracing::error!(
                gpu_uuid = uuid,
                gpu_index = stuck.gpu,
                after_seconds = self.settings.hang_after.as_secs_f64(),
                "NVML call does not return: the GPU is left alone until it does"
            );
            if let Some(known) = known {
                absent(&self.reporter, known, Absence::CallHangs);
            }
        }
        self.clear_away(now);
        self.look_at_events(now);
        self.settle(now);
    }

    /// Says when the event thread hangs, and when it is back.
    fn look_at_events(&mut self, now: Monotonic) {
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
                Some(index) if seat.pulse.dismissed() => {
                    tracing::warn!(gpu_index = index, "NVML call returned after all, the GPU is asked again");
                    for seat in &self.seats {
                        seat.pulse.no_longer_skip(index);
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
            let hung: BTreeSet<u32> = self.seats.iter().filter_map(|seat| seat.hung?.gpu).collect();
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

    fn start(&mut self, skipped: BTreeSet<u32>) {
        if let Err(error) = self.seat(skipped) {
            tracing::error!(%error, "no thread for polling NVML");
            self.restart_due = monotonic().after(RESTART);
        }
    }

    fn repeat_absent(&self) {
        let hung: BTreeSet<u32> = self.seats.iter().filter_map(|seat| seat.hung?.gpu).collect();
        for known in &self.known {
            if self.hanging || hung.contains(&known.gpu.index) {
                absent(&self.reporter, known, Absence::CallHangs);
            }
        }
    }
}
