//! `gpu-steward usage`: asks the agent on this machine through its socket, and shows the answer.
//!
//! ```text
//!   socket ──Get or Watch──▶ NodeUsage ──table | json──▶ stdout
//! ```
//!
//! What must never happen here: a question to the driver or the kernel (the agent alone looks at the machine), a wait
//! without an end.

mod table;
mod json;

use crate::exit::Exit;
use crate::settings::key::Key;
use crate::settings::layer::{Origin, Problem, RawSettings, RawValue};
use crate::settings::value;
use model::id::NodeName;
use proto::usage::usage_client::UsageClient;
use proto::usage::{GetRequest, NodeUsage, WatchRequest};
use std::future::Future;
use std::io::{ErrorKind, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::net::UnixStream;
use tokio::time::{sleep, timeout};
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};

/// The setting that says where the agent listens.
pub(crate) const SOCKET: &str = "usage-socket";
/// A living agent answers in milliseconds; on a machine that swaps it may take a second.
const LIMIT: Duration = Duration::from_secs(5);
/// The agent sends at least every ten seconds; three times that is silence.
const SILENCE: Duration = Duration::from_secs(30);
/// Between two attempts to find an agent that went away.
const AGAIN: Duration = Duration::from_secs(1);

/// What the user wants to see.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted {
    /// Go on for ever.
    pub watch: bool,
    /// In which form.
    pub output: Output,
}

/// `-o`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Output {
    /// For people.
    Table,
    /// For programs: one document, with `--watch` one line a state.
    Json,
}

/// Why there is nothing to show; each text says what was tried, and what to do.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error(
        "no usage socket at {}: is the agent running on this machine? Start it with `gpu-steward agent --standalone`, or \
         name the socket of one that runs with --usage-socket PATH", .0.display()
    )]
    NoSocket(PathBuf),
    #[error("nobody listens on {}: an agent has ended without taking its socket away; start it again", .0.display())]
    NobodyListens(PathBuf),
    #[error("no permission to connect to {}: the socket is open to its owner and its group", .0.display())]
    NoPermission(PathBuf),
    #[error("cannot connect to {}: {source}", path.display())]
    Connect { path: PathBuf, source: std::io::Error },
    #[error("{} took the connection and did not answer within {} s: is it the agent's socket?", path.display(), limit.as_secs())]
    Silent { path: PathBuf, limit: Duration },
    #[error("{} answered with an error: {}", path.display(), status.message())]
    Refused { path: PathBuf, status: Box<Status> },
    #[error("cannot start: {0}")]
    Runtime(std::io::Error),
    #[error("cannot write: {0}")]
    Write(#[from] std::io::Error),
}

/// Runs the command.
///
/// # Errors
/// What is wrong with the setting that names the socket.
pub(crate) fn run(spoken: &RawSettings, wanted: Wanted) -> Result<Exit, Vec<Problem>> {
    let socket = socket(spoken)?;
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return Ok(end(&Failure::Runtime(error))),
    };
    let mut screen = Screen::new(wanted);
    let outcome = if wanted.watch {
        runtime.block_on(watch(&socket, &mut screen))
    } else {
        runtime.block_on(get(&socket)).and_then(|state| Ok(screen.show(&state)?))
    };
    Ok(outcome.map_or_else(|failure| end(&failure), |()| Exit::Ok))
}

/// Where the agent listens. The configuration file is read only when neither flag nor environment say it: who may not
/// read that file may still be allowed to ask.
fn socket(spoken: &RawSettings) -> Result<PathBuf, Vec<Problem>> {
    let variable = Key::named(SOCKET).map(Key::variable).unwrap_or_default();
    let flag = spoken.flags.get(SOCKET).map(|text| RawValue { text: text.clone(), origin: Origin::Flag });
    let said = flag.or_else(|| {
        let text = spoken.environment.get(&variable)?.clone();
        Some(RawValue { text, origin: Origin::Environment(variable) })
    });
    let said = match said {
        Some(said) => said,
        None => {
            let mut layers = spoken.layer();
            if !layers.faults.is_empty() {
                return Err(layers.faults);
            }
            layers.said.remove(SOCKET).ok_or_else(|| vec![Problem::NotASetting(SOCKET)])?
        }
    };
    let invalid = |why: String| {
        let RawValue { text, origin } = said.clone();
        vec![Problem::Value { name: SOCKET, text, origin, why }]
    };
    match value::unless_none(&said.text, value::socket_path) {
        Ok(Some(path)) => Ok(path),
        Ok(None) => Err(invalid("the agent serves no usage socket, so there is nobody to ask".into())),
        Err(why) => Err(invalid(why)),
    }
}

/// A reader that went away (`| head`) is no failure.
fn end(failure: &Failure) -> Exit {
    if matches!(failure, Failure::Write(error) if error.kind() == ErrorKind::BrokenPipe) {
        return Exit::Ok;
    }
    let _ = writeln!(std::io::stderr(), "error: {failure}");
    match failure {
        Failure::NoSocket(_) | Failure::NobodyListens(_) | Failure::Silent { .. } => Exit::Unavailable,
        Failure::NoPermission(_) => Exit::NoPermission,
        Failure::Refused { status, .. } if status.code() == Code::Unavailable => Exit::Unavailable,
        Failure::Connect { .. } | Failure::Refused { .. } | Failure::Runtime(_) | Failure::Write(_) => Exit::Failure,
    }
}

/// Whether an agent of this node answers on the socket.
pub(crate) async fn answers(path: &Path, node: &NodeName) -> bool {
    get(path).await.is_ok_and(|state| state.node == node.as_str())
}

async fn get(path: &Path) -> Result<NodeUsage, Failure> {
    let mut client = dial(path).await?;
    within(LIMIT, path, async { client.get(GetRequest {}).await.map(tonic::Response::into_inner) }).await
}

/// Shows states for ever. An agent that was never there is an error; one that goes away is waited for.
async fn watch(path: &Path, screen: &mut Screen) -> Result<(), Failure> {
    let mut seen = false;
    let mut said = false;
    loop {
        let Err(failure) = follow(path, screen, &mut seen).await;
        if !seen || matches!(failure, Failure::Write(_)) {
            return Err(failure);
        }
        // `seen` is set anew by the first state of the next connection, and the next loss is told again.
        if !std::mem::replace(&mut said, true) {
            let _ = writeln!(std::io::stderr(), "waiting for the agent: {failure}");
        }
        sleep(AGAIN).await;
        if screen.take_shown() {
            said = false;
        }
    }
}

async fn follow(path: &Path, screen: &mut Screen, seen: &mut bool) -> Result<std::convert::Infallible, Failure> {
    let mut client = dial(path).await?;
    let mut states =
        within(LIMIT, path, async { client.watch(WatchRequest {}).await.map(tonic::Response::into_inner) }).await?;
    loop {
        let next = async { states.message().await?.ok_or_else(|| Status::unavailable("the agent ended the stream")) };
        let state = within(SILENCE, path, next).await?;
        *seen = true;
        screen.show(&state)?;
    }
}

async fn within<T>(
    limit: Duration,
    path: &Path,
    answer: impl Future<Output = Result<T, Status>>,
) -> Result<T, Failure> {
    match timeout(limit, answer).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(status)) => Err(Failure::Refused { path: path.to_owned(), status: Box::new(status) }),
        Err(_) => Err(Failure::Silent { path: path.to_owned(), limit }),
    }
}

async fn dial(path: &Path) -> Result<UsageClient<Channel>, Failure> {
    // Asked by hand first: what the operating system says is clearer than what is left of it further up.
    drop(UnixStream::connect(path).await.map_err(|source| match source.kind() {
        ErrorKind::NotFound => Failure::NoSocket(path.to_owned()),
        ErrorKind::ConnectionRefused => Failure::NobodyListens(path.to_owned()),
        ErrorKind::PermissionDenied => Failure::NoPermission(path.to_owned()),
        _ => Failure::Connect { path: path.to_owned(), source },
    })?);
    let connecting = async {
        let endpoint = Endpoint::from_shared(format!("unix://{}", path.display()));
        endpoint.map_err(refused)?.connect().await.map_err(refused)
    };
    within(LIMIT, path, connecting).await.map(UsageClient::new)
}

fn refused(error: tonic::transport::Error) -> Status {
    Status::from_error(error.into())
}

/// Where states are shown.
struct Screen {
    wanted: Wanted,
    terminal: bool,
    shown: bool,
    first: bool,
}

impl Screen {
    fn new(wanted: Wanted) -> Screen {
        Screen { wanted, terminal: std::io::stdout().is_terminal(), shown: false, first: true }
    }

    /// Whether a state was shown since this was last asked.
    fn take_shown(&mut self) -> bool {
        std::mem::take(&mut self.shown)
    }

    fn show(&mut self, state: &NodeUsage) -> std::io::Result<()> {
        let mut out = std::io::stdout().lock();
        self.shown = true;
        let first = std::mem::take(&mut self.first);
        match self.wanted.output {
            Output::Json if self.wanted.watch => writeln!(out, "{}", json::of(state))?,
            Output::Json => writeln!(out, "{:#}", json::of(state))?,
            Output::Table if self.wanted.watch && self.terminal => {
                crossterm::queue!(
                    out,
                    crossterm::cursor::MoveTo(0, 0),
                    crossterm::terminal::Clear(crossterm::terminal::ClearType::FromCursorDown)
                )?;
                write!(out, "{}", table::of(state))?;
            }
            Output::Table => {
                let gap = if first { "" } else { "\n" };
                write!(out, "{gap}{}", table::of(state))?;
            }
        }
        out.flush()
    }
}
