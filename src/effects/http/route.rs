//! What is answered at which path, to whom.

use super::buffer::{Answer, Buffers};
use super::footprint;
use super::negotiate;
use super::settings::{Readiness, Settings};
use crate::api::{self, Document, Filter};
use crate::exposition::Format;
use crate::metrics::{self, Own, Scene, Set};
use hyper::body::Incoming;
use hyper::header::{self, HeaderMap, HeaderName, HeaderValue};
use hyper::{Method, Request, Response, StatusCode};
use model::view::NodeView;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::sync::{Semaphore, watch};

/// Answers with a large body under way at once. One scraper and one `top` are usual; with 5,000 containers an answer has
/// some 20 MB, so eight stalled readers cost at most 160 MB for the ten seconds until they are cut.
const ANSWERS: usize = 8;
/// Requests that may wait for one of those; together with them far below the number of connections, so that somebody is
/// always idle and makes way for a health check.
const WAITING: usize = 32;
/// How long a request waits; below Prometheus's 10 s.
const WAIT: Duration = Duration::from_secs(5);

/// What a connection hears that finds nobody idle.
pub(super) const BUSY: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: text/plain; charset=utf-8\r\n\
Content-Length: 50\r\nConnection: close\r\nRetry-After: 5\r\n\r\nall connections are busy; try again in 5 seconds.\n";

const INDEX: &str = "gpu-steward\n\n\
/metrics            all that is switched on, as Prometheus text\n\
/metrics/dcgm       dcgm-exporter's names\n\
/metrics/hami       HAMi monitor's names\n\
/metrics/cadvisor   cAdvisor's names\n\
/api/v1/node        this node as JSON\n\
/api/v1/gpus        its GPUs       (?gpu=  ?namespace=  ?pod=)\n\
/api/v1/pods        its pods       (?gpu=  ?namespace=  ?pod=)\n\
/api/v1/processes   its processes  (?gpu=  ?namespace=  ?pod=)\n\
/healthz            the program runs\n\
/readyz             the program is ready, or why not\n";

/// What is behind a path.
enum Place {
    Index,
    Health,
    Ready,
    Metrics(Vec<Set>),
    Api(Document),
}

/// Everything a request may need.
#[derive(Debug)]
pub(super) struct Server {
    settings: Settings,
    view: watch::Receiver<Arc<NodeView>>,
    ready: Readiness,
    answers: Arc<Semaphore>,
    waiting: Semaphore,
    buffers: Buffers,
    /// Counters of this server.
    pub(super) own: Arc<Own>,
}

impl Server {
    pub(super) fn new(settings: Settings, view: watch::Receiver<Arc<NodeView>>, ready: Readiness) -> Server {
        let own = Own { started_seconds: (settings.clock)().wall.as_seconds(), ..Own::default() };
        Server {
            settings,
            view,
            ready,
            answers: Arc::new(Semaphore::new(ANSWERS)),
            waiting: Semaphore::new(WAITING),
            buffers: Buffers::default(),
            own: Arc::new(own),
        }
    }

    /// Answers one request.
    pub(super) async fn answer(&self, request: &Request<Incoming>, peer: IpAddr) -> Response<Answer> {
        let Some(place) = self.place(request.uri().path()) else {
            return sentence(StatusCode::NOT_FOUND, "nothing is served here; see / for what is.");
        };
        let mut response = match *request.method() {
            Method::GET | Method::HEAD => self.open(place, request, peer).await,
            _ => {
                let mut response = sentence(StatusCode::METHOD_NOT_ALLOWED, "only GET and HEAD are answered here.");
                set(&mut response, header::ALLOW, "GET, HEAD");
                response
            }
        };
        let length = response.body().len();
        response.headers_mut().insert(header::CONTENT_LENGTH, HeaderValue::from(length));
        if !hyper::body::Body::is_end_stream(request.body()) {
            set(&mut response, header::CONNECTION, "close");
        }
        if request.method() == Method::HEAD { response.map(Answer::emptied) } else { response }
    }

    fn place(&self, path: &str) -> Option<Place> {
        Some(match path {
            "/" => Place::Index,
            "/healthz" => Place::Health,
            "/readyz" => Place::Ready,
            "/metrics" => {
                let sets = self.settings.sets;
                let more = [(sets.dcgm, Set::Dcgm), (sets.hami, Set::Hami), (sets.cadvisor, Set::Cadvisor)];
                let more = more.into_iter().filter_map(|(on, set)| on.then_some(set));
                Place::Metrics(std::iter::once(Set::Own).chain(more).collect())
            }
            "/metrics/dcgm" => Place::Metrics(vec![Set::Dcgm]),
            "/metrics/hami" => Place::Metrics(vec![Set::Hami]),
            "/metrics/cadvisor" => Place::Metrics(vec![Set::Cadvisor]),
            "/api/v1/node" => Place::Api(Document::Node),
            "/api/v1/gpus" => Place::Api(Document::Gpus),
            "/api/v1/pods" => Place::Api(Document::Pods),
            "/api/v1/processes" => Place::Api(Document::Processes),
            _ => return None,
        })
    }

    async fn open(&self, place: Place, request: &Request<Incoming>, peer: IpAddr) -> Response<Answer> {
        match place {
            Place::Index => sentence(StatusCode::OK, INDEX.trim_end()),
            Place::Health => sentence(StatusCode::OK, "ok"),
            Place::Ready => match &*self.ready.borrow() {
                Ok(()) => sentence(StatusCode::OK, "ready"),
                Err(why) => sentence(StatusCode::SERVICE_UNAVAILABLE, why),
            },
            Place::Metrics(sets) => self.metrics(&sets, request.headers()).await,
            Place::Api(document) => match self.may_read(peer, request.headers()) {
                Ok(()) => self.api(document, request.uri().query().unwrap_or_default()).await,
                Err(refusal) => refusal,
            },
        }
    }

    async fn metrics(&self, sets: &[Set], headers: &HeaderMap) -> Response<Answer> {
        let Some(mut buffer) = self.buffer().await else { return self.too_many() };
        self.own.scrapes.fetch_add(1, Ordering::Relaxed);
        let view = Arc::clone(&self.view.borrow());
        let now = (self.settings.clock)();
        let format = negotiate::format(&values(headers, header::ACCEPT));
        let scene = Scene { view: &view, now, own: &self.own, footprint: footprint::read(now.monotonic) };
        metrics::render(sets, &scene, format, &mut buffer.bytes);
        let mut response = Response::new(Answer::buffer(buffer));
        set(&mut response, header::CONTENT_TYPE, Format::content_type(format));
        set(&mut response, header::VARY, "Accept");
        response
    }

    async fn api(&self, document: Document, query: &str) -> Response<Answer> {
        let filter = match Filter::parse(query) {
            Ok(filter) => filter,
            Err(bad) => return sentence(StatusCode::BAD_REQUEST, &bad.to_string()),
        };
        let Some(mut buffer) = self.buffer().await else { return self.too_many() };
        let view = Arc::clone(&self.view.borrow());
        match api::render(document, &filter, &view, (self.settings.clock)(), &mut buffer.bytes) {
            Ok(()) => {
                let mut response = Response::new(Answer::buffer(buffer));
                set(&mut response, header::CONTENT_TYPE, "application/json");
                set(&mut response, header::CACHE_CONTROL, "no-store");
                response
            }
            Err(error) => sentence(StatusCode::INTERNAL_SERVER_ERROR, &format!("cannot write JSON: {error}")),
        }
    }

    /// A buffer and one of the places for large answers.
    async fn buffer(&self) -> Option<super::buffer::Buffer> {
        let _waiting = self.waiting.try_acquire().ok()?;
        let place = tokio::time::timeout(WAIT, Arc::clone(&self.answers).acquire_owned()).await.ok()?.ok()?;
        Some(self.buffers.take(place))
    }

    fn too_many(&self) -> Response<Answer> {
        self.own.scrapes_refused.fetch_add(1, Ordering::Relaxed);
        let mut response =
            sentence(StatusCode::SERVICE_UNAVAILABLE, "too many answers are under way; try again in 5 seconds.");
        set(&mut response, header::RETRY_AFTER, "5");
        response
    }

    /// From this machine, or with the token.
    fn may_read(&self, peer: IpAddr, headers: &HeaderMap) -> Result<(), Response<Answer>> {
        if peer.to_canonical().is_loopback() {
            return Ok(());
        }
        let Some(token) = &self.settings.api_token else {
            let why = "the API answers callers on this machine only; set an API token to open it to others.";
            return Err(sentence(StatusCode::FORBIDDEN, why));
        };
        let given = headers.get(header::AUTHORIZATION).and_then(|value| bearer(value.as_bytes()));
        match given {
            Some(given) if same(given, token.as_bytes()) => Ok(()),
            Some(_) => Err(sentence(StatusCode::FORBIDDEN, "this token does not open the API.")),
            None => {
                let mut refusal =
                    sentence(StatusCode::UNAUTHORIZED, "the API wants the header Authorization: Bearer <token>.");
                set(&mut refusal, header::WWW_AUTHENTICATE, "Bearer");
                Err(refusal)
            }
        }
    }
}

/// All values of a header, as one list.
fn values(headers: &HeaderMap, name: HeaderName) -> String {
    let texts: Vec<&str> = headers.get_all(name).iter().filter_map(|value| value.to_str().ok()).collect();
    texts.join(",")
}

fn bearer(value: &[u8]) -> Option<&[u8]> {
    let (scheme, token) = value.split_at_checked(7)?;
    scheme.eq_ignore_ascii_case(b"bearer ").then_some(token.trim_ascii())
}

/// Compares in a time that depends on the lengths only.
fn same(given: &[u8], wanted: &[u8]) -> bool {
    let differences = given.iter().zip(wanted).fold(0, |sum, (a, b)| sum | (a ^ b));
    given.len() == wanted.len() && std::hint::black_box(differences) == 0
}

fn sentence(status: StatusCode, text: &str) -> Response<Answer> {
    let mut response = Response::new(Answer::text(format!("{text}\n")));
    *response.status_mut() = status;
    set(&mut response, header::CONTENT_TYPE, "text/plain; charset=utf-8");
    response
}

fn set(response: &mut Response<Answer>, name: HeaderName, value: &'static str) {
    response.headers_mut().insert(name, HeaderValue::from_static(value));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_compared_whole() {
        for (given, fits) in [("abc", true), ("abd", false), ("ab", false), ("abcd", false), ("", false)] {
            assert_eq!(same(given.as_bytes(), b"abc"), fits, "{given}");
        }
        assert_eq!(bearer(b"bEaReR  abc "), Some(&b"abc"[..]));
        assert_eq!(bearer(b"Basic abc"), None);
        assert_eq!(bearer(b"Be"), None);
    }

    #[test]
    fn the_busy_answer_counts_its_own_bytes() {
        let text = std::str::from_utf8(BUSY).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        assert!(head.contains(&format!("Content-Length: {}", body.len())), "{}", body.len());
    }
}
