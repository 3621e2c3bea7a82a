//! The live view: terminal, keys, signals, and a thread that fetches snapshots from the agent.
//!
//! ```text
//!   top-fetch ──Snapshot | Failed──▶ loop ──State──▶ draw
//!   keys, ticks, signals ──────────────┘
//! ```
//!
//! The terminal is restored on every exit: the normal end, an error, a signal, a panic.

use crate::agent_api::{Agent, FetchError};
use crate::top::draw::draw;
use crate::top::key::Key;
use crate::top::look::Look;
use crate::top::state::{Input, State};
use crossterm::cursor::{Hide, Show};
use crossterm::event::{self, Event};
use crossterm::execute;
use crossterm::terminal::{EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode};
use ratatui::Terminal;
use ratatui::backend::CrosstermBackend;
use std::io::{self, Stdout};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, TrySendError, channel, sync_channel};
use std::time::{Duration, Instant};
use tokio::runtime::{Builder, Runtime};
use wire::api::Snapshot;

/// Time between two checks of keys and signals: short enough to feel immediate, long enough to cost almost nothing.
const TICK: Duration = Duration::from_millis(100);
/// Length of the queue of answers: an answer to show, and the next answer.
const WAITING: usize = 2;

/// The error that ended the live view.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ScreenError {
    #[error("the terminal: {0}")]
    Terminal(#[from] io::Error),
    #[error("the thread that queries the agent: {0}")]
    Thread(io::Error),
    #[error("{0}")]
    Fetch(#[from] FetchError),
}

/// Shows the node until the user or a signal ends it.
pub(crate) fn live(agent: Agent, interval: Duration, look: Look) -> Result<(), ScreenError> {
    let stop = signals()?;
    let answers = Answers::start(agent, interval)?;
    // Wait for the first answer before the screen changes, so that a missing agent is reported as a plain error line.
    let mut state = State::new(interval);
    let began = Instant::now();
    state.apply(Input::Snapshot(Arc::new(answers.first()?)), began.elapsed());
    let mut screen = Screen::take()?;
    while !state.done && !stop.load(Ordering::Relaxed) {
        while let Some(input) = answers.next() {
            state.apply(input, began.elapsed());
        }
        if state.redraw {
            state.redraw = false;
            screen.terminal.clear()?;
        }
        let mut visible = 1;
        screen.terminal.draw(|frame| visible = draw(frame, &state, look))?;
        state.page(visible);
        let input = if event::poll(TICK)? { key(&event::read()?) } else { None };
        state.apply(input.map_or(Input::Tick, Input::Key), began.elapsed());
    }
    Ok(())
}

fn key(event: &Event) -> Option<Key> {
    match event {
        Event::Key(event) => Key::from_event(event),
        _ => None,
    }
}

/// A flag that SIGTERM, SIGINT and SIGHUP set.
fn signals() -> io::Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGTERM, signal_hook::consts::SIGINT, signal_hook::consts::SIGHUP] {
        signal_hook::flag::register(signal, Arc::clone(&stop))?;
    }
    Ok(stop)
}

/// The queue of the thread `top-fetch`. The thread ends when this is dropped.
struct Answers {
    answers: Receiver<Result<Snapshot, FetchError>>,
    /// Dropping this wakes the thread from its pause.
    _running: Sender<()>,
}

// === impl Answers ===

impl Answers {
    fn start(agent: Agent, interval: Duration) -> Result<Answers, ScreenError> {
        let (send, answers) = sync_channel(WAITING);
        let (running, ended) = channel();
        let runtime = Builder::new_current_thread().enable_all().build().map_err(ScreenError::Thread)?;
        let fetch = move || fetch_forever(&runtime, &agent, interval, (&send, &ended));
        std::thread::Builder::new().name("top-fetch".to_owned()).spawn(fetch).map_err(ScreenError::Thread)?;
        Ok(Answers { answers, _running: running })
    }

    fn first(&self) -> Result<Snapshot, ScreenError> {
        let gone = || ScreenError::Thread(io::Error::other("the thread top-fetch has ended"));
        Ok(self.answers.recv().map_err(|_| gone())??)
    }

    fn next(&self) -> Option<Input> {
        Some(match self.answers.try_recv().ok()? {
            Ok(snapshot) => Input::Snapshot(Arc::new(snapshot)),
            Err(error) => Input::Failed(error.to_string()),
        })
    }
}

type Ends<'a> = (&'a SyncSender<Result<Snapshot, FetchError>>, &'a Receiver<()>);

/// Fetches at fixed deadlines, so that slow answers do not add to the interval.
fn fetch_forever(runtime: &Runtime, agent: &Agent, interval: Duration, (send, ended): Ends<'_>) {
    loop {
        let deadline = Instant::now() + interval;
        // A full queue means that the screen has not shown the last answers yet: drop this answer, the next answer is
        // newer.
        if let Err(TrySendError::Disconnected(_)) = send.try_send(runtime.block_on(agent.fetch())) {
            return;
        }
        let pause = deadline.saturating_duration_since(Instant::now());
        if ended.recv_timeout(pause) != Err(RecvTimeoutError::Timeout) {
            return;
        }
    }
}

/// The terminal while `top` uses it.
struct Screen {
    terminal: Terminal<CrosstermBackend<Stdout>>,
}

// === impl Screen ===

impl Screen {
    fn take() -> io::Result<Screen> {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            give_back();
            before(panic);
        }));
        enable_raw_mode()?;
        let taken = execute!(io::stdout(), EnterAlternateScreen, Hide)
            .and_then(|()| Terminal::new(CrosstermBackend::new(io::stdout())));
        match taken {
            Ok(terminal) => Ok(Screen { terminal }),
            Err(error) => {
                give_back();
                Err(error)
            }
        }
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        give_back();
    }
}

/// Restores the terminal. An error here cannot be shown, because the terminal may be gone.
fn give_back() {
    let _ = execute!(io::stdout(), LeaveAlternateScreen, Show);
    let _ = disable_raw_mode();
}
