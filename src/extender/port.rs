//! The port of the extender: the verbs of kube-scheduler, health, metrics and the last decisions.
//!
//! The verbs and the decisions are for callers on this machine only, where kube-scheduler runs in the same pod: a caller
//! that could name pods and nodes from elsewhere would have to be authenticated, as on the TLS port (`stream_port`). Health
//! and metrics are open.

use super::beliefs;
use super::callers::Callers;
use super::decisions::Decisions;
use super::hami_metrics;
use super::leadership::{Leader, Leadership};
use super::measures::{Measures, Verb};
use super::metrics::{self, Scrape, StreamScrape};
use super::port_certificate::PortCertificate;
use super::proxy::LeaderProxy;
use super::scrape_counts::ScrapeCounts;
use super::verbs::Verbs;
use super::watch_health::WatchHealth;
use http_body_util::{Either, Full};
use hyper::body::{Body, Bytes, Incoming};
use hyper::header::{self, HeaderMap, HeaderValue};
use hyper::{Method, Request, Response, StatusCode, Uri};
use model::followed_node::MAX_CLUSTER_NODES;
use model::pod::MAX_CLUSTER_PODS;
use model::pod_memory::MAX_CLUSTER_PODS_BYTES;
use serve::answer_copy::{SharedAnswers, SharedBody};
use serve::answer_queue::{AnswerLimits, AnswerQueue};
use serve::caller::{Access, AllowedHosts, Condition, Ends};
use serve::exposition::ExpositionFormat;
use serve::query;
use serve::server::body::{self, BodyLimits};
use serve::server::{ConnectionCounts, ConnectionLimits, HttpApplication};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::error::Elapsed;
use tokio::time::timeout;
use wire::extender::{MAX_BINDING_ARGS, MAX_EXTENDER_ARGS};

/// Time limit for reading a body. kube-scheduler waits 5 s for the whole answer.
const BODY_WITHIN: Duration = Duration::from_secs(5);
/// A body with more bytes is large: names of 10,000 nodes take 200 KiB, and whole Nodes 10 KiB each.
const LARGE: u64 = 1 << 20;
/// Maximum number of large bodies in memory at once: kube-scheduler handles one pod after the other.
const LARGE_AT_ONCE: usize = 4;
/// The answer to a caller on another machine.
const HERE: &str =
    "the verbs and decisions of the extender are for callers on this machine: run kube-scheduler in the same pod.";

/// The paths that are not verbs.
const PATHS: [&str; 7] =
    ["/healthz", "/readyz", "/leadz", "/metrics", "/metrics/hami", "/api/v1/decisions", "/api/v1/nodes"];

/// The limits of connections. kube-scheduler keeps one connection for its filter calls and one for each bind under way.
pub(super) const CONNECTIONS: ConnectionLimits = ConnectionLimits {
    connections: 512,
    newcomers: None,
    header_timeout: Duration::from_secs(60),
    write_timeout: Duration::from_secs(10),
    busy_write_timeout: Duration::from_secs(2),
    drain: Duration::from_secs(4),
};

/// The requests for `/metrics` and `/metrics/hami` that may wait at the same time, for the counts or the copy that they
/// share. Such a request keeps its connection busy, so that it cannot be closed for another connection. One request more
/// gets 503 at once.
const SCRAPES: AnswerLimits = AnswerLimits {
    // A sixteenth of the connections. The others stay free for kube-scheduler and for probes.
    answers: 32,
    // Two Prometheus servers at one address that scrape both paths.
    answers_per_peer: 4,
    // No scrape waits for the end of another scrape: all wait for the same counts or copy.
    waiting: 0,
    waiting_for_peers: 0,
    waiting_per_peer: 0,
    wait: Duration::ZERO,
};

/// Answers the requests of the port.
#[derive(Debug)]
pub(super) struct ExtenderPort {
    verbs: Arc<Verbs>,
    leadership: Arc<Leadership>,
    measures: Arc<Measures>,
    watches: [Arc<WatchHealth>; 2],
    connections: Arc<ConnectionCounts>,
    /// `None` if this extender forwards no calls.
    proxy: Option<Arc<LeaderProxy>>,
    /// `None` if this extender serves no agents.
    streams: Option<(StreamScrape, StreamReadiness)>,
    /// Permits for large bodies.
    large: Semaphore,
    /// The scrapes that wait.
    scrapes: AnswerQueue,
    counts: ScrapeCounts,
    /// The answers at `/metrics/hami`: 8 MiB for 1,000 nodes.
    hami: SharedAnswers<ExpositionFormat>,
    open: Access,
    here: Access,
}

/// The parts of the TLS port that must be ready before it can answer a caller.
#[derive(Debug)]
pub(super) struct StreamReadiness {
    pub(super) certificate: Arc<PortCertificate>,
    pub(super) callers: Arc<Callers>,
}

type Answer = Response<Full<Bytes>>;

impl ExtenderPort {
    pub(super) fn new(
        verbs: Arc<Verbs>,
        leadership: Arc<Leadership>,
        measures: Arc<Measures>,
        watches: [Arc<WatchHealth>; 2],
        connections: Arc<ConnectionCounts>,
    ) -> ExtenderPort {
        let here = Access::Callers(AllowedHosts::default(), Condition::OnThisMachine(HERE));
        let (proxy, streams, open, large) = (None, None, Access::Everyone, Semaphore::new(LARGE_AT_ONCE));
        let (scrapes, counts, hami) = (AnswerQueue::new(SCRAPES), ScrapeCounts::default(), SharedAnswers::default());
        ExtenderPort {
            verbs,
            leadership,
            measures,
            watches,
            connections,
            proxy,
            streams,
            large,
            scrapes,
            counts,
            hami,
            open,
            here,
        }
    }

    /// The same port, with the streams of agents and a proxy to the leader.
    pub(super) fn with_streams(
        mut self,
        streams: (StreamScrape, StreamReadiness),
        proxy: Option<Arc<LeaderProxy>>,
    ) -> ExtenderPort {
        (self.streams, self.proxy) = (Some(streams), proxy);
        self
    }

    /// Answers a call that another extender has forwarded. It is never forwarded again.
    pub(super) async fn passed_on(&self, request: Request<Incoming>) -> Answer {
        match verb_of(&request) {
            Some(verb) => self.verb(verb, request, false).await,
            None => text(StatusCode::NOT_FOUND, "unknown path; extenders pass on the verbs only.".to_owned()),
        }
    }

    async fn verb(&self, verb: Verb, request: Request<Incoming>, may_pass_on: bool) -> Answer {
        let begun = Instant::now();
        if request.method() != Method::POST {
            self.measures.unanswered(verb);
            return text(StatusCode::METHOD_NOT_ALLOWED, format!("{} is asked with POST.", request.uri().path()));
        }
        let content = request.headers().get(header::CONTENT_TYPE).and_then(|content| content.to_str().ok());
        if !content.is_some_and(is_json) {
            self.measures.unanswered(verb);
            let content = content.unwrap_or("none");
            return text(
                StatusCode::UNSUPPORTED_MEDIA_TYPE,
                format!("expected application/json, and got {content:.80}."),
            );
        }
        let other = self.proxy.as_ref().filter(|_| may_pass_on).zip(self.leadership.leader_address());
        if other.is_none()
            && let Some(answer) = self.not_leading()
        {
            self.measures.unanswered(verb);
            return answer;
        }
        let bytes = if verb == Verb::Bind { MAX_BINDING_ARGS } else { MAX_EXTENDER_ARGS };
        // The permit is held until the answer is made.
        let Ok(_large) = self.room_for(&request).await else {
            self.measures.unanswered(verb);
            return text(
                StatusCode::SERVICE_UNAVAILABLE,
                format!("{LARGE_AT_ONCE} questions of more than {LARGE} bytes are read already; try again."),
            );
        };
        let body = match body::read(request.into_body(), BodyLimits { bytes, time: BODY_WITHIN }).await {
            Ok(body) => body,
            Err(error) => {
                self.measures.unanswered(verb);
                return text(error.status(), format!("{error}."));
            }
        };
        if let Some((proxy, leader)) = other {
            return self.pass_on(verb, proxy, &leader, body).await;
        }
        let answer = match verb {
            Verb::Filter => self.verbs.filter(&body),
            Verb::Prioritize => self.verbs.prioritize(&body),
            Verb::Preempt => self.verbs.preempt(&body),
            Verb::Bind => self.verbs.bind(&body).await,
        };
        match answer {
            Ok(answer) => {
                self.measures.answered(verb, begun.elapsed());
                json(answer)
            }
            Err(why) => {
                self.measures.unanswered(verb);
                text(StatusCode::BAD_REQUEST, format!("{why}."))
            }
        }
    }

    /// Waits until the body of this request may be in memory in addition to others. Only large bodies wait.
    async fn room_for(&self, request: &Request<Incoming>) -> Result<Option<SemaphorePermit<'_>>, Elapsed> {
        if request.body().size_hint().upper().is_some_and(|bytes| bytes <= LARGE) {
            return Ok(None);
        }
        let permit = timeout(BODY_WITHIN, self.large.acquire()).await?;
        // Nobody closes the semaphore.
        Ok(permit.ok())
    }

    /// Forwards a call to the leader.
    async fn pass_on(&self, verb: Verb, proxy: &LeaderProxy, leader: &Arc<str>, body: Bytes) -> Answer {
        match proxy.ask(leader, verb, body).await {
            Ok((status, content, body)) => {
                if let Some((streams, _)) = &self.streams {
                    streams.counts.passed_on();
                }
                let mut response = Response::new(Full::new(body));
                *response.status_mut() = status;
                response.headers_mut().insert(header::CONTENT_TYPE, content);
                response
            }
            Err(why) => {
                self.measures.unanswered(verb);
                tracing::warn!(why, "a question of kube-scheduler is not answered: {why}");
                text(StatusCode::SERVICE_UNAVAILABLE, format!("{why}; try again."))
            }
        }
    }

    /// The answer while this process does not decide.
    fn not_leading(&self) -> Option<Answer> {
        let why = match self.leadership.leader() {
            Leader::This => return None,
            Leader::CatchingUp => "this extender leads and still reads the cluster; try again".to_owned(),
            Leader::Other(Some(leader)) => format!("this extender does not lead; {leader} leads"),
            Leader::Other(None) => "no extender leads at this moment; try again".to_owned(),
        };
        Some(text(StatusCode::SERVICE_UNAVAILABLE, format!("{why}.")))
    }

    /// What is missing for this process to lead, and to answer agents and the other extenders.
    fn not_ready(&self) -> Vec<String> {
        let missing = |watch: &Arc<WatchHealth>| {
            let broken = match (watch.age(), watch.broken()) {
                (_, Some(why)) => Some(format!("the watch of {} is broken: {why}", watch.what())),
                (None, None) => Some(format!("{} are not listed yet", watch.what())),
                (Some(_), None) => None,
            };
            broken.into_iter().chain(watch.blind())
        };
        let mut missing: Vec<String> = self.watches.iter().flat_map(missing).collect();
        if let Some((_, StreamReadiness { certificate, callers })) = &self.streams {
            missing.extend(certificate.missing());
            missing.extend(callers.missing());
        }
        missing
    }

    fn readyz(&self) -> Answer {
        let mut lines = self.not_ready();
        let status = if lines.is_empty() { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
        if lines.is_empty() {
            lines.push("ready".to_owned());
        }
        lines.extend(self.watches.iter().flat_map(|watch| left_out(watch).into_iter().chain(watch.lacks_holders())));
        text(status, lines.join("\n"))
    }

    fn leadz(&self) -> Answer {
        match self.leadership.leader() {
            Leader::This => text(StatusCode::OK, format!("{} leads", self.leadership.identity())),
            _ => self.not_leading().unwrap_or_else(|| text(StatusCode::OK, String::new())),
        }
    }

    async fn metrics(&self, headers: &HeaderMap, peer: IpAddr) -> Answer {
        let Some(_turn) = self.scrapes.enter(peer).await else { return self.too_many_scrapes() };
        let scrape = Scrape {
            leads: self.leadership.decides(),
            open_bindings: self.leadership.open_bindings(),
            watch_lag: self.verbs.cluster.watch_lag(),
            cluster: self.counts.of(&self.verbs.cluster).await,
            measured: self.measures.counts(),
            gaps: self.verbs.cluster.findings().gaps(),
            watches: &self.watches,
            connections: &self.connections,
            readers_cut: self.hami.cut(),
            events_dropped: self.verbs.events.dropped(),
            streams: self.streams.as_ref().map(|(scrape, _)| scrape),
        };
        let format = format(headers);
        answer(StatusCode::OK, HeaderValue::from_static(format.content_type()), metrics::render(&scrape, format))
    }

    /// The answer at `/metrics/hami`, which all readers share.
    async fn hami_metrics(&self, headers: &HeaderMap, peer: IpAddr) -> Response<Either<Full<Bytes>, SharedBody>> {
        let Some(_turn) = self.scrapes.enter(peer).await else { return self.too_many_scrapes().map(Either::Left) };
        let (format, cluster) = (format(headers), Arc::clone(&self.verbs.cluster));
        let make = move |bytes| {
            let (devices, shares) = cluster.shares();
            hami_metrics::render(&devices, &shares, (format, bytes))
        };
        let Some(body) = self.hami.get(format, make).await else {
            return text(StatusCode::INTERNAL_SERVER_ERROR, "the metrics cannot be written.".to_owned())
                .map(Either::Left);
        };
        let mut answer = Response::new(Either::Right(body));
        answer.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(format.content_type()));
        answer
    }

    fn too_many_scrapes(&self) -> Answer {
        self.measures.refused_scrape();
        text(StatusCode::SERVICE_UNAVAILABLE, "too many scrapes wait for their answer; try again.".to_owned())
    }

    /// The answer to a request that calls no verb.
    async fn other(&self, request: &Request<Incoming>, peer: IpAddr) -> Answer {
        let path = request.uri().path();
        let known = PATHS.contains(&path);
        if known && !matches!(*request.method(), Method::GET | Method::HEAD) {
            self.measures.unknown_path();
            return text(StatusCode::METHOD_NOT_ALLOWED, format!("{path} is asked with GET."));
        }
        match path {
            "/healthz" => text(StatusCode::OK, "ok".to_owned()),
            "/readyz" => self.readyz(),
            "/leadz" => self.leadz(),
            "/metrics" => self.metrics(request.headers(), peer).await,
            "/api/v1/decisions" => self.decisions(request.uri()),
            "/api/v1/nodes" => self.nodes(request.uri(), peer).await,
            _ => {
                self.measures.unknown_path();
                text(
                    StatusCode::NOT_FOUND,
                    "unknown path; the verbs are /filter, /prioritize, /bind and /preempt, the rest /healthz, /readyz, \
                     /leadz, /metrics, /metrics/hami, /api/v1/decisions and /api/v1/nodes."
                        .to_owned(),
                )
            }
        }
    }

    /// The last decisions, which only the leader has made.
    fn decisions(&self, uri: &Uri) -> Answer {
        if let Some(answer) = self.not_leading() {
            return answer;
        }
        let pod = match query::values(uri.query().unwrap_or_default(), ["pod"]) {
            Ok([pod]) => pod,
            Err(why) => return text(StatusCode::BAD_REQUEST, format!("{why}.")),
        };
        let decisions: &Decisions = &self.verbs.decisions;
        let found = match decisions.about(pod.as_deref()) {
            Ok(found) => found,
            Err(why) => return text(StatusCode::NOT_FOUND, format!("{why}.")),
        };
        match serde_json::to_string(&found) {
            Ok(body) => json(body),
            Err(why) => text(StatusCode::INTERNAL_SERVER_ERROR, format!("the decisions cannot be written: {why}")),
        }
    }
}

impl ExtenderPort {
    /// What is believed of the nodes. Only the leader knows all of it, because agents report only to the leader.
    async fn nodes(&self, uri: &Uri, peer: IpAddr) -> Answer {
        if let Some(answer) = self.not_leading() {
            return answer;
        }
        let node = match query::values(uri.query().unwrap_or_default(), ["node"]) {
            Ok([node]) => node,
            Err(why) => return text(StatusCode::BAD_REQUEST, format!("{why}.")),
        };
        let Some(_turn) = self.scrapes.enter(peer).await else { return self.too_many_scrapes() };
        match beliefs::of(&self.verbs.cluster, node.as_deref()).map(|nodes| serde_json::to_string(&nodes)) {
            Ok(Ok(body)) => json(body),
            Ok(Err(why)) => text(StatusCode::INTERNAL_SERVER_ERROR, format!("the nodes cannot be written: {why}")),
            Err(why) => text(StatusCode::NOT_FOUND, format!("{why}.")),
        }
    }
}

impl HttpApplication for ExtenderPort {
    type Body = Either<Full<Bytes>, SharedBody>;

    fn access(&self, uri: &Uri) -> &Access {
        match uri.path() {
            "/healthz" | "/readyz" | "/leadz" | "/metrics" | "/metrics/hami" => &self.open,
            _ => &self.here,
        }
    }

    async fn answer(&self, request: Request<Incoming>, Ends { peer, .. }: Ends) -> Response<Self::Body> {
        let is_read = matches!(*request.method(), Method::GET | Method::HEAD);
        match verb_of(&request) {
            Some(verb) => self.verb(verb, request, true).await.map(Either::Left),
            None if is_read && request.uri().path() == "/metrics/hami" => {
                self.hami_metrics(request.headers(), peer).await
            }
            None => self.other(&request, peer).await.map(Either::Left),
        }
    }
}

/// The objects that are not followed, as a line for people. A restart would not help, so the extender stays ready.
fn left_out(watch: &Arc<WatchHealth>) -> Option<String> {
    let (left_out, what) = (watch.left_out(), watch.what());
    let most = match what {
        "pods" => format!("{MAX_CLUSTER_PODS} are, and {} MiB of them", MAX_CLUSTER_PODS_BYTES >> 20),
        _ => format!("{MAX_CLUSTER_NODES} are"),
    };
    (left_out > 0).then(|| {
        format!("{left_out} {what} are not followed: at most {most}; delete {what} that have ended or are not needed")
    })
}

/// The verb of a request.
fn verb_of(request: &Request<Incoming>) -> Option<Verb> {
    Verb::ALL.into_iter().find(|verb| request.uri().path().strip_prefix('/') == Some(verb.word()))
}

/// The text format that a scraper accepts.
fn format(headers: &HeaderMap) -> ExpositionFormat {
    let accepts = headers.get(header::ACCEPT).and_then(|accept| accept.to_str().ok()).unwrap_or_default();
    match accepts.contains("application/openmetrics-text") {
        true => ExpositionFormat::OpenMetrics,
        false => ExpositionFormat::Classic,
    }
}

/// Whether this media type is JSON, whatever its parameters.
fn is_json(content: &str) -> bool {
    let kind = content.split(';').next().unwrap_or_default().trim();
    kind.eq_ignore_ascii_case("application/json")
}

fn json(body: String) -> Answer {
    answer(StatusCode::OK, HeaderValue::from_static("application/json"), body.into())
}

fn text(status: StatusCode, mut body: String) -> Answer {
    body.push('\n');
    answer(status, HeaderValue::from_static("text/plain; charset=utf-8"), body.into())
}

/// An answer of this media type.
fn answer(status: StatusCode, content: HeaderValue, body: Vec<u8>) -> Answer {
    let mut answer = Response::new(Full::new(Bytes::from(body)));
    *answer.status_mut() = status;
    answer.headers_mut().insert(header::CONTENT_TYPE, content);
    answer
}
