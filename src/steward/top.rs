//! `gpu-steward top` shows one node in the terminal. It is a client of the agent's JSON API and reads nothing else.
//!
//! ```text
//!   settings ─▶ agent_api ──Snapshot──▶ state ◀──Key── screen
//!                                         │
//!             gpus load pods processes ◀──┴──▶ draw ─▶ screen | frame (plain text) | JSON
//! ```
//!
//! What must never happen here: a reading of the machine (the agent does this), a frame that depends on anything but
//! the state, an exit that does not restore the terminal.

mod settings;
pub(crate) mod show;
mod table;
mod pods;
mod processes;
mod gpus;
mod load;
mod key;
#[cfg(test)]
mod stage;
mod state;
mod look;
mod draw;
mod frame;
mod screen;

pub(crate) use settings::{Settings, command};

use crate::agent_api::{Agent, FetchError};
use look::Look;
use screen::ScreenError;
use serve::exit::Exit;
use serve::lifecycle;
use state::{Input, State};
use std::io::{self, IsTerminal, Write};
use std::sync::Arc;
use std::time::Duration;

/// Width of a plain frame if neither a terminal nor `COLUMNS` gives one. All columns fit.
const PLAIN_WIDTH: u16 = 144;

/// The error that ended `top`.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TopError {
    #[error(transparent)]
    Fetch(#[from] FetchError),
    #[error(transparent)]
    Screen(#[from] ScreenError),
    #[error("cannot start the HTTP client: {0}")]
    Runtime(io::Error),
    #[error("cannot write the answers as JSON: {0}")]
    Json(#[from] serde_json::Error),
    #[error("cannot write to standard output: {0}")]
    Output(io::Error),
}

impl TopError {
    /// The exit code for this error.
    pub(crate) fn exit(&self) -> Exit {
        match self {
            TopError::Fetch(error) | TopError::Screen(ScreenError::Fetch(error)) if error.is_usage() => Exit::Usage,
            TopError::Fetch(_) | TopError::Screen(ScreenError::Fetch(_)) => Exit::Unavailable,
            _ => Exit::Failure,
        }
    }
}

/// Shows the node until the user quits, or once.
///
/// # Errors
/// [`TopError`]; its text says what failed and what to do.
pub(crate) fn run(settings: &Settings) -> Result<(), TopError> {
    let agent = settings.agent.agent()?;
    let terminal = io::stdout().is_terminal() && io::stdin().is_terminal() && variable("TERM") != "dumb";
    if settings.json || settings.once || !terminal {
        return print(&agent, settings);
    }
    let look = Look { colour: variable("NO_COLOR").is_empty() };
    Ok(screen::live(agent, settings.interval, look)?)
}

fn print(agent: &Agent, settings: &Settings) -> Result<(), TopError> {
    let snapshot = lifecycle::run_once(agent.fetch()).map_err(TopError::Runtime)??;
    let text = if settings.json {
        serde_json::to_string(&snapshot)? + "\n"
    } else {
        let mut state = State::new(settings.interval);
        state.apply(Input::Snapshot(Arc::new(snapshot)), Duration::ZERO);
        frame::plain(&state, plain_width())
    };
    match io::stdout().write_all(text.as_bytes()) {
        // `top --once | head` is not a failure.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        result => result.map_err(TopError::Output),
    }
}

/// The width from `COLUMNS`, otherwise of the terminal, otherwise [`PLAIN_WIDTH`].
fn plain_width() -> u16 {
    let from_variable = variable("COLUMNS").parse().ok();
    let from_terminal =
        || crossterm::terminal::size().ok().filter(|_| io::stdout().is_terminal()).map(|(width, _)| width);
    from_variable.or_else(from_terminal).unwrap_or(PLAIN_WIDTH).clamp(40, 500)
}

fn variable(name: &str) -> String {
    std::env::var(name).unwrap_or_default()
}
