//! The lifecycle of a mode that runs until it is stopped. A mode starts its tasks here; this file watches them, handles
//! the signals, and drains at the end. It does not depend on what the tasks do.
//!
//! ```text
//!   must_not_end(name, task) ─┐
//!   signals ──────────────────┼─▶ run ──▶ before_drain, while all three on the left go on
//!   Mode::must_end ───────────┘           ──▶ drain_first ends, then stop is cancelled, then all tasks ──▶ Exit
//! ```
//!
//! What must never happen here: a task that ends without a log line with its name; a shutdown longer than its time
//! limit.

use crate::exit::Exit;
use crate::log::level::Level;
use crate::notify;
use crate::stop::StopRequest;
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::task::{Id, JoinError, JoinSet};
use tokio::time::{Instant, timeout, timeout_at};
use tokio_util::sync::CancellationToken;

/// The stack size of a worker, in bytes. Only the pages that a worker touches cost memory.
const STACK: usize = 1024 * 1024;
/// The part of the drain timeout that is reserved for the tasks that drain last.
const RESERVED: Duration = Duration::from_millis(500);

/// The reason why a command does not start or cannot do its work, and the exit code.
#[derive(Debug)]
pub struct StartError {
    /// A sentence that says what could not be done.
    pub what: String,
    /// The exit code.
    pub exit: Exit,
}

impl StartError {
    /// An error of the operating system.
    pub fn io(doing: &str, error: &io::Error) -> StartError {
        StartError { what: format!("cannot {doing}: {error}"), exit: Exit::from_io(error) }
    }

    /// A setting is wrong.
    pub fn usage(what: String) -> StartError {
        StartError { what, exit: Exit::Usage }
    }

    /// Something that the program needs is not available.
    pub fn unavailable(what: String) -> StartError {
        StartError { what, exit: Exit::Unavailable }
    }
}

/// The exit code of a command. Logs the error of a command that did not start.
pub fn outcome(ended: Result<Exit, StartError>) -> Exit {
    ended.unwrap_or_else(|StartError { what, exit }| {
        tracing::error!("{what}");
        exit
    })
}

/// The runtime of a mode, with `workers` worker threads and at most `blocking` threads for blocking work.
///
/// # Errors
/// If the operating system refuses the threads.
pub fn runtime(workers: usize, blocking: usize) -> io::Result<tokio::runtime::Runtime> {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(workers)
        .max_blocking_threads(blocking)
        .thread_stack_size(STACK)
        .thread_name_fn(|| format!("steward-{}", NEXT.fetch_add(1, Ordering::Relaxed)))
        .enable_all()
        .build()
}

/// Runs the work of a command that ends by itself, on a runtime without threads of its own.
///
/// # Errors
/// If the runtime cannot be started.
pub fn run_once<T>(work: impl Future<Output = T>) -> io::Result<T> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    Ok(runtime.block_on(work))
}

/// The parts of the lifecycle that each mode implements.
pub trait Mode {
    /// Reads the configuration again (SIGHUP).
    fn reload(&mut self);
    /// Handles SIGRTMIN; each mode defines its meaning.
    fn realtime_signal(&mut self);
    /// Waits until the mode itself must end the process, and logs the reason. Cancel safe.
    fn must_end(&self) -> impl Future<Output = Exit>;
    /// Starts the work that must be done before anything is closed. The mode limits the time of this work, during which
    /// its other methods are still called. A second SIGTERM or SIGINT ends the process in the signal handler.
    fn before_drain(&mut self) -> Preparation {
        Box::pin(std::future::ready(()))
    }
}

/// The work of a mode before it drains.
pub type Preparation = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The exit code, once decided, and the work to do before the drain.
type Ending = (Exit, Preparation);

/// A part that drains before all others, because its open requests need the other tasks.
#[derive(Debug)]
pub struct DrainFirst {
    /// Cancelled to end the part.
    pub closing: CancellationToken,
    /// Cancelled by the part when it has ended.
    pub closed: CancellationToken,
}

/// A task that has ended although it must not.
#[derive(Debug, PartialEq, Eq)]
pub struct EndedTask {
    /// The name of the task.
    pub task: &'static str,
    /// Why the task has ended.
    pub why: String,
    /// The exit code of the process.
    pub exit: Exit,
}

/// The tasks of a mode.
#[derive(Debug)]
pub struct Lifecycle {
    /// The name of the mode, for the log.
    mode: &'static str,
    tasks: JoinSet<io::Result<()>>,
    /// The name of each task. A mode starts some tens of tasks, all at its start.
    names: Vec<(Id, &'static str)>,
    stop: CancellationToken,
    first: Option<DrainFirst>,
}

impl Lifecycle {
    /// A lifecycle without tasks.
    pub fn new(mode: &'static str) -> Lifecycle {
        Lifecycle { mode, tasks: JoinSet::new(), names: Vec::new(), stop: CancellationToken::new(), first: None }
    }

    /// The token that stops all tasks.
    pub fn stop(&self) -> CancellationToken {
        self.stop.clone()
    }

    /// Starts a task whose end ends the process.
    pub fn must_not_end(&mut self, name: &'static str, task: impl Future<Output = io::Result<()>> + Send + 'static) {
        let id = self.tasks.spawn(task).id();
        self.names.push((id, name));
    }

    /// The same for a task that returns nothing.
    pub fn must_run(&mut self, name: &'static str, task: impl Future<Output = ()> + Send + 'static) {
        self.must_not_end(name, async move {
            task.await;
            Ok(())
        });
    }

    /// Makes a part drain before all others.
    pub fn drain_first(&mut self, part: DrainFirst) {
        self.first = Some(part);
    }

    /// Waits until a task has ended; `None` if there is no task.
    pub async fn ended(&mut self) -> Option<EndedTask> {
        let (id, result) = self.joined().await?;
        let task = self.name(id);
        Some(match result {
            Ok(()) => EndedTask { task, why: "it returned".into(), exit: Exit::Failure },
            // The error determines the exit code. If another process has the socket, for example, a restart does not
            // help.
            Err(failure) => EndedTask { task, why: failure.to_string(), exit: failure.exit() },
        })
    }

    /// Waits until a task has ended, and returns its result; `None` if there is no task.
    async fn joined(&mut self) -> Option<(Id, Result<(), TaskFailure>)> {
        Some(match self.tasks.join_next_with_id().await? {
            Ok((id, result)) => (id, result.map_err(TaskFailure::Error)),
            Err(error) => (error.id(), Err(TaskFailure::Panic(error))),
        })
    }

    fn name(&self, id: Id) -> &'static str {
        self.names.iter().find(|(of, _)| *of == id).map_or("unknown", |(_, name)| name)
    }

    /// Handles signals until the process must end, then drains.
    pub async fn run(
        &mut self,
        mut requests: mpsc::Receiver<StopRequest>,
        mode: &mut impl Mode,
        level: &Level,
        drain: Duration,
    ) -> Exit {
        let mut ending = None::<Ending>;
        let exit = loop {
            tokio::select! {
                request = requests.recv() => match request {
                    Some(StopRequest::Stop(signal)) if ending.is_none() => {
                        tracing::info!(signal, "stopping: requests in flight may end; a second signal ends the process at once");
                        ending = Some((Exit::Ok, mode.before_drain()));
                    }
                    // A second signal ends the process in its handler and never arrives here. This is a copy of the
                    // first signal, which was sent twice.
                    Some(StopRequest::Stop(signal)) => tracing::debug!(signal, "already stopping"),
                    Some(StopRequest::Reload) => mode.reload(),
                    Some(StopRequest::More) => level.change("SIGUSR1", |now| now.more()),
                    Some(StopRequest::Less) => level.change("SIGUSR2", |now| now.less()),
                    Some(StopRequest::Realtime) => mode.realtime_signal(),
                    None => {
                        tracing::error!("the thread that listens for signals has ended");
                        break Exit::Failure;
                    }
                },
                exit = mode.must_end(), if ending.is_none() => ending = Some((exit, mode.before_drain())),
                Some(EndedTask { task, why, exit }) = self.ended() => {
                    let mode = self.mode;
                    tracing::error!(task, why, "a task that must not end has ended; the {mode} ends with it");
                    break exit;
                }
                exit = prepared(&mut ending) => break exit,
            }
        };
        self.drain(drain).await;
        exit
    }

    async fn drain(&mut self, limit: Duration) {
        notify::stopping();
        let until = Instant::now() + limit;
        if let Some(first) = &self.first {
            first.closing.cancel();
            let _ = timeout(limit.saturating_sub(RESERVED), first.closed.cancelled()).await;
        }
        self.stop.cancel();
        match timeout_at(until, self.all_end()).await {
            Ok(()) => tracing::info!("stopped"),
            Err(_) => tracing::warn!(
                left = self.names.iter().map(|(_, name)| *name).collect::<Vec<_>>().join(", "),
                seconds = limit.as_secs_f64(),
                "stopped: some tasks did not end in time (--drain-timeout), and their requests were cut"
            ),
        }
    }

    /// Waits for all tasks, and logs how each has ended. The names that are left belong to tasks that still run.
    async fn all_end(&mut self) {
        while let Some((id, result)) = self.joined().await {
            let task = self.name(id);
            self.names.retain(|(of, _)| *of != id);
            match result {
                Ok(()) => tracing::debug!(task, "a task has ended"),
                Err(why) => tracing::error!(task, %why, "a task failed while the {} stopped", self.mode),
            }
        }
    }
}

/// How a task has failed.
#[derive(Debug, thiserror::Error)]
enum TaskFailure {
    #[error("{0}")]
    Error(io::Error),
    #[error("{0}")]
    Panic(JoinError),
}

impl TaskFailure {
    fn exit(&self) -> Exit {
        match self {
            TaskFailure::Error(error) => Exit::from_io(error),
            TaskFailure::Panic(_) => Exit::Failure,
        }
    }
}

/// Waits until the work before the drain is done, and returns the exit code. Waits for ever while no end is decided.
async fn prepared(ending: &mut Option<Ending>) -> Exit {
    match ending {
        Some((exit, preparation)) => {
            preparation.await;
            *exit
        }
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::level::Verbosity;
    use crate::log::{self, LogFormat};
    use parking_lot::Mutex;
    use std::sync::Arc;
    use tokio::sync::Notify;

    #[test]
    fn a_task_that_panics_is_named_and_its_error_decides_the_exit_code() {
        let mut lifecycle = Lifecycle::new("agent");
        let ended = run_once(async {
            lifecycle.must_run("panics", async { panic!("on purpose") });
            let panics = lifecycle.ended().await.unwrap();
            lifecycle.must_not_end("socket", async { Err(io::ErrorKind::AddrInUse.into()) });
            let socket = lifecycle.ended().await.unwrap();
            [(panics.task, panics.exit), (socket.task, socket.exit)]
        });
        assert_eq!(ended.unwrap(), [("panics", Exit::Failure), ("socket", Exit::Unavailable)]);
    }

    #[test]
    fn the_first_part_ends_before_the_others_are_stopped_and_a_task_that_hangs_is_abandoned() {
        let order = Arc::<Mutex<Vec<&str>>>::default();
        let (first, last) = (Arc::clone(&order), Arc::clone(&order));
        let mut lifecycle = Lifecycle::new("agent");
        let [closing, closed] = [CancellationToken::new(), CancellationToken::new()];
        let (close_requested, ends) = (closing.clone(), closed.clone().drop_guard());
        let stop = lifecycle.stop();
        run_once(async {
            lifecycle.must_run("first", async move {
                close_requested.cancelled().await;
                tokio::time::sleep(Duration::from_millis(20)).await;
                first.lock().push("first");
                drop(ends);
            });
            lifecycle.must_run("last", async move {
                stop.cancelled().await;
                last.lock().push("last");
            });
            lifecycle.must_run("hangs", std::future::pending());
            lifecycle.drain_first(DrainFirst { closing, closed });
            lifecycle.drain(Duration::from_secs(1)).await;
        })
        .unwrap();
        assert_eq!(*order.lock(), ["first", "last"]);
        assert_eq!(lifecycle.tasks.len(), 1, "the task that hangs is left");
    }

    /// Collects log lines.
    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Lines {
        fn write(&mut self, text: &[u8]) -> io::Result<usize> {
            self.0.lock().write(text)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// A mode whose preparation ends when the test cancels `may_drain`.
    struct Waits {
        reloads: Arc<AtomicUsize>,
        prepares: Arc<Notify>,
        may_drain: CancellationToken,
    }

    impl Mode for Waits {
        fn reload(&mut self) {
            self.reloads.fetch_add(1, Ordering::Relaxed);
        }

        fn realtime_signal(&mut self) {}

        async fn must_end(&self) -> Exit {
            std::future::pending().await
        }

        fn before_drain(&mut self) -> Preparation {
            self.prepares.notify_one();
            Box::pin(self.may_drain.clone().cancelled_owned())
        }
    }

    /// Runs a mode with one task. Asks it to stop, to read its settings, and to stop again by a signal that was sent
    /// twice; then calls `then`. Returns the exit code and the number of reloads.
    fn stop_and<T: Future<Output = io::Result<()>> + Send + 'static>(
        task: impl FnOnce(CancellationToken) -> T,
        then: impl FnOnce(&CancellationToken),
    ) -> (Exit, usize) {
        let (requests, seen) = mpsc::channel(4);
        let (reloads, prepares) = (Arc::<AtomicUsize>::default(), Arc::<Notify>::default());
        let may_drain = CancellationToken::new();
        let mut mode =
            Waits { reloads: Arc::clone(&reloads), prepares: Arc::clone(&prepares), may_drain: may_drain.clone() };
        let level = log::start(LogFormat::Text, Verbosity(0)).level;
        let mut lifecycle = Lifecycle::new("agent");
        let exit = run_once(async {
            lifecycle.must_not_end("usage", task(lifecycle.stop()));
            let running = lifecycle.run(seen, &mut mode, &level, Duration::from_secs(10));
            let asking = async {
                requests.send(StopRequest::Stop("SIGTERM")).await.unwrap();
                prepares.notified().await;
                for request in [StopRequest::Reload, StopRequest::Stop("SIGTERM"), StopRequest::Reload] {
                    requests.send(request).await.unwrap();
                }
                while reloads.load(Ordering::Relaxed) < 2 {
                    tokio::task::yield_now().await;
                }
                then(&may_drain);
                std::future::pending::<()>().await;
            };
            tokio::select! { exit = running => exit, () = asking => unreachable!("it waits for ever") }
        });
        (exit.unwrap(), reloads.load(Ordering::Relaxed))
    }

    #[test]
    fn signals_and_tasks_that_end_are_handled_while_the_mode_prepares_its_end() {
        let fails = CancellationToken::new();
        let until = fails.clone();
        let failing = |_: CancellationToken| async move {
            until.cancelled().await;
            Err(io::ErrorKind::AddrInUse.into())
        };
        // The preparation of the mode never ends.
        assert_eq!(stop_and(failing, |_| fails.cancel()), (Exit::Unavailable, 2));
        let stopping = |stop: CancellationToken| async move {
            stop.cancelled().await;
            Ok(())
        };
        assert_eq!(stop_and(stopping, CancellationToken::cancel), (Exit::Ok, 2));
    }

    #[test]
    fn a_task_that_fails_in_the_drain_is_logged_with_its_name_and_one_that_hangs_too() {
        let lines = Lines::default();
        let writer = lines.clone();
        let subscriber = tracing_subscriber::fmt().with_writer(move || writer.clone()).with_ansi(false).finish();
        tracing::subscriber::with_default(subscriber, || {
            let mut lifecycle = Lifecycle::new("agent");
            let stop = lifecycle.stop();
            run_once(async {
                lifecycle.must_not_end("usage", async move {
                    stop.cancelled().await;
                    Err(io::Error::other("no socket"))
                });
                lifecycle.must_run("hangs", std::future::pending());
                lifecycle.drain(Duration::from_millis(50)).await;
            })
        })
        .unwrap();
        let log = String::from_utf8(lines.0.lock().clone()).unwrap();
        assert!(log.contains("a task failed while the agent stopped task=\"usage\" why=no socket"), "{log}");
        assert!(log.contains("left=\"hangs\""), "{log}");
    }
}
