//! The routes of `/debug/pprof/`: their parameters and limits. Each profile is made by a thread `pprof` of its own, so
//! no Tokio worker blocks.

use crate::cancel::CancelFlag;
use crate::error::Error;
use crate::order::{CapturedStack, OrderBegin, OrderEnd, OrderStep, ProfileForm, ProfileValue};
use crate::worker::SymbolizeWorker;
use crate::{capture, cpu, heap, symbol_request, threads};
use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{DefaultBodyLimit, Query, State};
use axum::http::{StatusCode, Uri, header};
use axum::response::{Html, IntoResponse, Response};
use axum::routing::get;
use futures_core::Stream;
use std::fmt::Display;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};
use tokio::sync::{Semaphore, oneshot};

/// How long a CPU profile waits for a thread profile to free the sampler before it is refused.
const THREADS_TAKE: Duration = Duration::from_secs(2);
/// Default length of a CPU profile in seconds, as in Go.
const DEFAULT_SECONDS: u64 = 30;

/// Maximum length of a profile in seconds: the child gets a snapshot for each 10 ms of processor time, and keeps its
/// counts in memory until the end.
const MAX_SECONDS: u64 = 300;

/// Maximum number of children for heap, threads and symbols at the same time; each may need 100 MiB to read the line
/// tables. A CPU profile has a child of its own.
const CHILDREN: usize = 2;

/// Maximum size of a request body in bytes: 10,000 addresses of 19 bytes for `symbol`.
const MAX_BODY: usize = 256 << 10;

const INDEX: &str = include_str!("index.html");

type Children = Arc<Semaphore>;

/// The routes of `/debug/pprof/`, with the paths and parameters of Go's `net/http/pprof`. At most one CPU profile and
/// two other profiles run at a time. A request beyond that is refused, and the answer names the reason. If the client
/// closes its connection, its profile ends.
///
/// A client that can send these requests sees function names, command line and thread names of the program, and can
/// make it use CPU time: mount the routes on a port that only operators reach.
pub fn router() -> Router {
    Router::new()
        .route("/debug/pprof", get(redirect_to_index))
        .route("/debug/pprof/", get(async || Html(INDEX)))
        .route("/debug/pprof/profile", get(profile))
        .route("/debug/pprof/heap", get(async |children, query| memory(heap::HeapValue::InUse, children, query).await))
        .route(
            "/debug/pprof/allocs",
            get(async |children, query| memory(heap::HeapValue::Allocated, children, query).await),
        )
        .route(
            "/debug/pprof/goroutine",
            get(async |children, query| tasks(threads::ThreadProfileKind::Stacks, children, query).await),
        )
        .route(
            "/debug/pprof/threadcreate",
            get(async |children, query| tasks(threads::ThreadProfileKind::Names, children, query).await),
        )
        .route("/debug/pprof/block", get(async |children| empty("block", children).await))
        .route("/debug/pprof/mutex", get(async |children| empty("mutex", children).await))
        .route("/debug/pprof/cmdline", get(cmdline))
        .route("/debug/pprof/symbol", get(async || "num_symbols: 1\n").post(symbol))
        .route("/debug/pprof/trace", get(trace))
        .layer(DefaultBodyLimit::max(MAX_BODY))
        .with_state(Arc::new(Semaphore::new(CHILDREN)))
}

/// Redirects to the path with a slash at the end, as Go does.
async fn redirect_to_index(uri: Uri) -> Response {
    let query = uri.query().map_or_else(String::new, |query| format!("?{query}"));
    (StatusCode::MOVED_PERMANENTLY, [(header::LOCATION, format!("/debug/pprof/{query}"))]).into_response()
}

/// The query parameters; others (`gc=1`) are ignored, as in Go.
#[derive(Debug, Default, serde::Deserialize)]
struct ProfileParameters {
    seconds: Option<String>,
    debug: Option<String>,
}

impl ProfileParameters {
    fn seconds(&self) -> Result<Option<Duration>, Box<Response>> {
        let Some(text) = self.seconds.as_deref().filter(|text| !text.is_empty()) else { return Ok(None) };
        match text.parse::<u64>() {
            Ok(0) => Ok(None),
            Ok(seconds) if seconds <= MAX_SECONDS => Ok(Some(Duration::from_secs(seconds))),
            _ => Err(Box::new(refuse(
                StatusCode::BAD_REQUEST,
                format_args!("seconds={text:?}: a whole number of seconds from 1 to {MAX_SECONDS} is accepted"),
            ))),
        }
    }

    fn form(&self) -> ProfileForm {
        match self.debug.as_deref() {
            None | Some("" | "0") => ProfileForm::Profile,
            Some(_) => ProfileForm::Text,
        }
    }
}

/// Takes the sampler. A thread profile also uses it for a moment, so this function waits for it; only another CPU
/// profile causes a refusal.
async fn sampler() -> Result<capture::SamplingTurn, Error> {
    let deadline = tokio::time::Instant::now() + THREADS_TAKE;
    loop {
        match capture::SamplingTurn::take() {
            Err(Error::Busy) if tokio::time::Instant::now() < deadline => {
                tokio::time::sleep(THREADS_TAKE / 40).await;
            }
            other => return other,
        }
    }
}

async fn profile(Query(parameters): Query<ProfileParameters>) -> Response {
    let length = match parameters.seconds() {
        Ok(length) => length.unwrap_or(Duration::from_secs(DEFAULT_SECONDS)),
        Err(refusal) => return *refusal,
    };
    let turn = match sampler().await {
        Ok(turn) => turn,
        Err(busy @ Error::Busy) => return refuse(StatusCode::CONFLICT, busy),
        Err(error) => return refuse(StatusCode::INTERNAL_SERVER_ERROR, sentence(&error)),
    };
    let (started, has_started) = oneshot::channel();
    let mut work = Work::start(move |cancel| {
        // `started` has no receiver if the client has left; `cancel` is set then, too.
        cpu::record(turn, length, cancel, || {
            let _ = started.send(());
        })
        .map_err(|error| sentence(&error))
    });
    // The client waits for the headers only a little longer than `seconds`, so they are sent as soon as sampling has
    // begun.
    if has_started.await.is_ok() {
        return download("profile", work);
    }
    match work.answer().await {
        Ok(_) => refuse(StatusCode::INTERNAL_SERVER_ERROR, "the profile ended before it began"),
        Err(error) => refuse(StatusCode::INTERNAL_SERVER_ERROR, error),
    }
}

async fn memory(
    shown: heap::HeapValue,
    State(children): State<Children>,
    Query(parameters): Query<ProfileParameters>,
) -> Response {
    let length = match parameters.seconds() {
        Ok(length) => length,
        Err(refusal) => return *refusal,
    };
    let form = parameters.form();
    let Ok(permit) = children.try_acquire_owned() else { return too_many() };
    let (dumped, has_dumped) = oneshot::channel();
    let mut work = Work::start(move |cancel| {
        let _permit = permit;
        let dump = || heap::dump().map_err(|error| sentence(&error));
        let first = dump()?;
        let _ = dumped.send(());
        let from = Instant::now();
        let Some(length) = length else {
            return heap::profile(&first, None, shown, form, cancel).map_err(|error| sentence(&error));
        };
        while from.elapsed() < length && !cancel.is_cancelled() {
            std::thread::sleep(Duration::from_millis(50).min(length.saturating_sub(from.elapsed())));
        }
        let second = dump()?;
        heap::profile(&second, Some((&first, from.elapsed())), shown, form, cancel).map_err(|error| sentence(&error))
    });
    if has_dumped.await.is_err() {
        let error = work.answer().await.err().unwrap_or_else(|| "there is no heap profile".to_owned());
        return refuse(StatusCode::INTERNAL_SERVER_ERROR, error);
    }
    let name = if shown == heap::HeapValue::InUse { "heap" } else { "allocs" };
    deliver(name, form, work)
}

async fn tasks(
    kind: threads::ThreadProfileKind,
    State(children): State<Children>,
    Query(parameters): Query<ProfileParameters>,
) -> Response {
    let form = parameters.form();
    let Ok(permit) = children.try_acquire_owned() else { return too_many() };
    let work = Work::start(move |cancel| {
        let _permit = permit;
        threads::profile(kind, form, cancel).map_err(|error| sentence(&error))
    });
    let name = if kind == threads::ThreadProfileKind::Stacks { "goroutine" } else { "threadcreate" };
    deliver(name, form, work)
}

/// Profiles without samples, because the time that threads wait for locks and channels is not measured. They exist so
/// that the client's menus work.
async fn empty(name: &'static str, State(children): State<Children>) -> Response {
    let Ok(permit) = children.try_acquire_owned() else { return too_many() };
    let values = vec![ProfileValue::new("contentions", "count"), ProfileValue::new("delay", "nanoseconds")];
    let begin = OrderBegin { values, period: 1, title: name.to_owned(), ..OrderBegin::default() };
    let work = Work::start(move |cancel| {
        let _permit = permit;
        let worker = SymbolizeWorker::start(begin, cancel.clone()).map_err(|error| sentence(&error))?;
        worker.finish(OrderEnd::default()).map_err(|error| sentence(&error))
    });
    download(name, work)
}

async fn symbol(State(children): State<Children>, body: Bytes) -> Response {
    let addresses = symbol_request::addresses(&body);
    let Ok(permit) = children.try_acquire_owned() else { return too_many() };
    let work = Work::start(move |cancel| {
        let _permit = permit;
        let begin = OrderBegin { form: ProfileForm::Symbols.into(), ..OrderBegin::default() };
        let mut worker = SymbolizeWorker::start(begin, cancel.clone()).map_err(|error| sentence(&error))?;
        let stack = CapturedStack { addresses, values: vec![1], ..CapturedStack::default() };
        worker.order(OrderStep::Stack(stack)).map_err(|error| sentence(&error))?;
        worker.finish(OrderEnd::default()).map_err(|error| sentence(&error))
    });
    deliver("symbol", ProfileForm::Symbols, work)
}

async fn cmdline() -> Response {
    match tokio::fs::read("/proc/self/cmdline").await {
        Ok(text) => {
            let text = text.strip_suffix(b"\0").unwrap_or(&text).to_vec();
            ([(header::CONTENT_TYPE, "text/plain; charset=utf-8")], text).into_response()
        }
        Err(error) => refuse(StatusCode::INTERNAL_SERVER_ERROR, format_args!("reading /proc/self/cmdline: {error}")),
    }
}

async fn trace() -> Response {
    refuse(
        StatusCode::NOT_IMPLEMENTED,
        "execution traces are a format of the Go runtime; take a CPU profile (profile) or the threads' stacks (goroutine)",
    )
}

fn refuse(status: StatusCode, why: impl Display) -> Response {
    // With `X-Go-Pprof` the Go client prints the sentence and not only the status.
    (status, [("x-go-pprof", "1")], format!("{why}\n")).into_response()
}

fn too_many() -> Response {
    refuse(
        StatusCode::SERVICE_UNAVAILABLE,
        format_args!("{CHILDREN} profiles are being made already; try again when one has ended"),
    )
}

fn deliver(name: &str, form: ProfileForm, work: Work) -> Response {
    match form {
        ProfileForm::Profile => download(name, work),
        ProfileForm::Text | ProfileForm::Symbols => {
            ([(header::CONTENT_TYPE, "text/plain; charset=utf-8")], Body::from_stream(work)).into_response()
        }
    }
}

fn download(name: &str, work: Work) -> Response {
    let headers = [
        (header::CONTENT_TYPE, "application/octet-stream".to_owned()),
        (header::CONTENT_DISPOSITION, format!("attachment; filename=\"{name}\"")),
    ];
    (headers, Body::from_stream(work)).into_response()
}

/// An error and its causes in one line.
fn sentence(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}

/// Work on its own thread. As a response body it is one chunk, sent when the work ends. Dropping it (the client left)
/// cancels the work.
struct Work {
    answer: oneshot::Receiver<Result<Vec<u8>, String>>,
    cancel: CancelFlag,
    over: bool,
}

impl Work {
    fn start(work: impl FnOnce(&CancelFlag) -> Result<Vec<u8>, String> + Send + 'static) -> Self {
        let cancel = CancelFlag::default();
        let flag = cancel.clone();
        let (sender, answer) = oneshot::channel();
        // If no thread can be started, `sender` is dropped with the closure, and the receiver returns an error.
        let spawned = std::thread::Builder::new().name("pprof".to_owned()).spawn(move || {
            let answer = work(&flag);
            if let (Err(error), false) = (&answer, flag.is_cancelled()) {
                tracing::warn!(%error, "a profile failed");
            }
            drop(sender.send(answer));
        });
        if let Err(error) = spawned {
            tracing::warn!(%error, "cannot start a thread for a profile");
        }
        Work { answer, cancel, over: false }
    }

    async fn answer(&mut self) -> Result<Vec<u8>, String> {
        (&mut self.answer).await.unwrap_or_else(|_| Err("the thread that makes the profile ended".to_owned()))
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        self.cancel.cancel();
    }
}

impl Stream for Work {
    type Item = io::Result<Bytes>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.over {
            return Poll::Ready(None);
        }
        let answer = std::task::ready!(Pin::new(&mut self.answer).poll(context));
        self.over = true;
        let answer = answer.unwrap_or_else(|_| Err("the thread that makes the profile ended".to_owned()));
        Poll::Ready(Some(answer.map(Bytes::from).map_err(io::Error::other)))
    }
}

impl std::fmt::Debug for Work {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Work").field("over", &self.over).field("cancel", &self.cancel).finish_non_exhaustive()
    }
}
