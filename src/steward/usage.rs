//! `gpu-steward usage` reads the usage of this machine's GPUs from the agent's socket and prints it.
//!
//! ```text
//!   socket ──Get or Watch──▶ NodeUsage ──table | json──▶ stdout
//! ```
//!
//! What must never happen here: a call of the driver or a reading of the kernel (only the agent reads the machine),
//! an endless wait.

mod table;

use crate::settings::layer::{Origin, Problem, RawSettings, RawValue};
use crate::settings::table::Key;
use crate::settings::value;
use effects::usage::json;
use proto::usage::usage_client::UsageClient;
use proto::usage::{GetRequest, NodeUsage, WatchRequest};
use serve::exit::Exit;
use serve::lifecycle;
use std::future::Future;
use std::io::{ErrorKind, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::net::UnixStream;
use tokio::time::{sleep, timeout};
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};

/// The setting with the path of the agent's socket.
pub(crate) const SOCKET: &str = "usage-socket";
/// Time limit for an answer. An agent answers in milliseconds; on a machine that swaps it may take a second.
const LIMIT: Duration = Duration::from_secs(5);
/// Maximum time between two states of a stream: three times the agent's longest interval of ten seconds.
const SILENCE: Duration = Duration::from_secs(30);
/// Pause between two attempts to reconnect to the agent.
const AGAIN: Duration = Duration::from_secs(1);

/// The user's choice of output.
#[derive(Clone, Copy, Debug)]
pub(crate) struct UsageOptions {
    /// Print states until the user ends the program.
    pub watch: bool,
    /// The output format.
    pub output: Output,
}

/// The output format (`-o`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Output {
    /// For people.
    Table,
    /// For programs: one document, or with `--watch` one line per state.
    Json,
}

/// The reason why there is nothing to show. Each text says what failed and what to do.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error(
        "no usage socket at {}: is the agent running on this machine? Start it with `gpu-steward agent --standalone`, or \
         name the socket of a running agent with --usage-socket PATH", .0.display()
    )]
    NoSocket(PathBuf),
    #[error("no agent listens on {}: the agent ended without removing its socket; start it again", .0.display())]
    NoListener(PathBuf),
    #[error("no permission to connect to {}: the socket is open to its owner and its group", .0.display())]
    NoPermission(PathBuf),
    #[error("cannot connect to {}: {source}", path.display())]
    Connect { path: PathBuf, source: std::io::Error },
    #[error("{} accepted the connection but did not answer within {} s: is it the agent's socket?", path.display(), limit.as_secs())]
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
/// The problems of the setting that names the socket.
pub(crate) fn run(raw: &RawSettings, options: UsageOptions) -> Result<Exit, Vec<Problem>> {
    let socket = socket(raw)?;
    let mut screen = Screen::new(options);
    let shown = lifecycle::run_once(async {
        match options.watch {
            true => watch(&socket, &mut screen).await,
            false => Ok(screen.show(&get(&socket).await?)?),
        }
    });
    let shown = shown.map_err(Failure::Runtime).flatten();
    Ok(shown.map_or_else(|failure| end(&failure), |()| Exit::Ok))
}

/// The path of the agent's socket. The configuration file is read only if neither flag nor environment names the
/// socket, so that a user who may not read that file can still use the socket.
fn socket(raw: &RawSettings) -> Result<PathBuf, Vec<Problem>> {
    let variable = Key::named(SOCKET).map(Key::variable).unwrap_or_default();
    let flag = raw.flags.get(SOCKET).map(|text| RawValue { text: text.clone(), origin: Origin::Flag });
    let setting = flag.or_else(|| {
        let text = raw.environment.get(&variable)?.clone();
        Some(RawValue { text, origin: Origin::Environment(variable) })
    });
    let setting = match setting {
        Some(setting) => setting,
        None => {
            let mut layers = raw.layer();
            if !layers.faults.is_empty() {
                return Err(layers.faults);
            }
            layers.values.remove(SOCKET).ok_or_else(|| vec![Problem::NotASetting(SOCKET)])?
        }
    };
    let invalid = |why: String| {
        let RawValue { text, origin } = setting.clone();
        vec![Problem::Value { name: SOCKET, text, origin, why }]
    };
    match value::unless_none(&setting.text, value::socket_path) {
        Ok(Some(path)) => Ok(path),
        Ok(None) => Err(invalid("the agent serves no usage socket, so there is nothing to connect to".into())),
        Err(why) => Err(invalid(why)),
    }
}

/// Prints the failure and returns the exit code. A closed pipe (`| head`) is not a failure.
fn end(failure: &Failure) -> Exit {
    if matches!(failure, Failure::Write(error) if error.kind() == ErrorKind::BrokenPipe) {
        return Exit::Ok;
    }
    let _ = writeln!(std::io::stderr(), "error: {failure}");
    match failure {
        Failure::NoSocket(_) | Failure::NoListener(_) | Failure::Silent { .. } => Exit::Unavailable,
        Failure::NoPermission(_) => Exit::NoPermission,
        Failure::Refused { status, .. } if status.code() == Code::Unavailable => Exit::Unavailable,
        Failure::Connect { .. } | Failure::Refused { .. } | Failure::Runtime(_) | Failure::Write(_) => Exit::Failure,
    }
}

async fn get(path: &Path) -> Result<NodeUsage, Failure> {
    let mut client = dial(path).await?;
    within(LIMIT, path, async { client.get(GetRequest {}).await.map(tonic::Response::into_inner) }).await
}

/// Prints states forever. If the agent does not answer at first, this is an error; if it disappears later, this
/// function waits for it.
async fn watch(path: &Path, screen: &mut Screen) -> Result<(), Failure> {
    let mut seen = false;
    let mut reported = false;
    loop {
        let Err(failure) = follow(path, screen, &mut seen).await;
        if !seen || matches!(failure, Failure::Write(_)) {
            return Err(failure);
        }
        // Report each loss of the agent once: the first state of the next connection resets `reported`.
        if !std::mem::replace(&mut reported, true) {
            let _ = writeln!(std::io::stderr(), "waiting for the agent: {failure}");
        }
        sleep(AGAIN).await;
        if screen.take_shown() {
            reported = false;
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
    // Connect directly first: the error of the operating system is clearer than tonic's error.
    drop(UnixStream::connect(path).await.map_err(|source| match source.kind() {
        ErrorKind::NotFound => Failure::NoSocket(path.to_owned()),
        ErrorKind::ConnectionRefused => Failure::NoListener(path.to_owned()),
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

/// Prints states to standard output.
struct Screen {
    options: UsageOptions,
    terminal: bool,
    shown: bool,
    first: bool,
}

impl Screen {
    fn new(options: UsageOptions) -> Screen {
        Screen { options, terminal: std::io::stdout().is_terminal(), shown: false, first: true }
    }

    /// Whether a state was printed since the last call.
    fn take_shown(&mut self) -> bool {
        std::mem::take(&mut self.shown)
    }

    fn show(&mut self, state: &NodeUsage) -> std::io::Result<()> {
        let mut out = std::io::stdout().lock();
        self.shown = true;
        let first = std::mem::take(&mut self.first);
        match self.options.output {
            Output::Json if self.options.watch => writeln!(out, "{}", json::of(state))?,
            Output::Json => writeln!(out, "{:#}", json::of(state))?,
            Output::Table if self.options.watch && self.terminal => {
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
