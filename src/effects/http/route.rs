//! The paths of the metrics port: their answers, and which callers get an answer.

mod profiles;

use super::settings::{Limits, Readiness, Settings};
use super::{Shown, footprint};
use crate::api::history::{MAX_QUESTIONS, ProfileSource};
use crate::api::{self, ApiDocument, ApiFilter};
use crate::metrics::{self, MetricSet, MetricsInput, ServerCounts};
use hyper::body::Incoming;
use hyper::header::{self, HeaderMap, HeaderName, HeaderValue};
use hyper::{Method, Request, Response, StatusCode, Uri};
use model::gpu::MissingGpu;
use model::guard::PolicyGuard;
use model::observation::GpuSourceState;
use model::plugin::{CdiState, PluginView, RegistrationState};
use model::view::{NodeView, PodWatchView};
use serve::answer_body::{AnswerBody, AnswerBuffer, AnswerBuffers};
use serve::answer_queue::AnswerQueue;
use serve::caller::{Access, BearerToken, Condition, Ends};
use serve::exposition::ExpositionFormat;
use serve::negotiate;
use serve::query;
use serve::server::HttpApplication;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tokio::sync::{Semaphore, watch};

/// Answers with fewer bytes than this are not compressed, because the gzip header would cost more than it saves.
const WORTH_COMPRESSING: usize = 1024;

/// The type of the API's documents.
const JSON: &str = "application/json";

const INDEX: &str = "gpu-steward\n\n\
/metrics            all enabled metrics, as Prometheus text\n\
/metrics/gpu        gpu-steward's metrics of GPUs, and of pods on them\n\
/metrics/dcgm       dcgm-exporter's names\n\
/metrics/hami       HAMi monitor's names\n\
/metrics/cadvisor   cAdvisor's names\n\
/api/v1/node        this node as JSON\n\
/api/v1/gpus        its GPUs       (?gpu=  ?namespace=  ?pod=)\n\
/api/v1/pods        its pods       (?gpu=  ?namespace=  ?pod=)\n\
/api/v1/processes   its processes  (?gpu=  ?namespace=  ?pod=)\n\
/api/v1/profile     cycles, trends and forecasts of loads  (?subject=)\n\
/api/v1/history     the values of one series  (?series=  ?from=  ?step=  ?format=)\n\
/healthz            whether the program runs\n\
/readyz             whether the program is ready, or why not\n";

/// The kind of answer at a path.
enum Endpoint {
    Index,
    Health,
    Ready,
    Metrics(Vec<MetricSet>),
    Api(ApiDocument),
    Profile,
    History,
}

/// The state that all requests share.
#[derive(Debug)]
pub(super) struct Routes {
    settings: Settings,
    /// The callers that may use the API.
    api: Access,
    view: watch::Receiver<Arc<NodeView>>,
    /// The profiles of loads; `None` if they are off.
    profiles: Option<ProfileSource>,
    /// Bounds the answers about histories, which take memory while they wait for the queue.
    questions: Semaphore,
    ready: Readiness,
    queue: AnswerQueue,
    buffers: AnswerBuffers,
    /// Counters of this port.
    pub(super) own: Arc<ServerCounts>,
}

impl HttpApplication for Routes {
    type Body = AnswerBody;

    /// The API answers every client that has the token. If no token is set, it answers only clients on this machine.
    fn access(&self, uri: &Uri) -> &Access {
        match self.endpoint(uri.path()) {
            Some(Endpoint::Api(_) | Endpoint::Profile | Endpoint::History) => &self.api,
            _ => &Access::Everyone,
        }
    }

    async fn answer(&self, request: Request<Incoming>, ends: Ends) -> Response<AnswerBody> {
        let Some(endpoint) = self.endpoint(request.uri().path()) else {
            return sentence(StatusCode::NOT_FOUND, "no such path; / lists the paths.");
        };
        let metrics_head = request.method() == Method::HEAD && matches!(endpoint, Endpoint::Metrics(_));
        let mut response = match *request.method() {
            Method::GET | Method::HEAD => self.open(endpoint, &request, ends).await,
            _ => {
                let mut response = sentence(StatusCode::METHOD_NOT_ALLOWED, "only GET and HEAD are answered here.");
                set(&mut response, header::ALLOW, "GET, HEAD");
                response
            }
        };
        if !metrics_head {
            let length = response.body().length();
            response.headers_mut().insert(header::CONTENT_LENGTH, HeaderValue::from(length));
        }
        if !hyper::body::Body::is_end_stream(request.body()) {
            set(&mut response, header::CONNECTION, "close");
        }
        if request.method() == Method::HEAD { response.map(AnswerBody::emptied) } else { response }
    }

    fn is_waited_for(&self) -> bool {
        self.queue.is_waited_in()
    }
}

impl Routes {
    pub(super) fn new(settings: Settings, shown: Shown, limits: Limits) -> Routes {
        let condition = match &settings.api_token {
            Some(secret) => {
                Condition::Token(BearerToken { secret: Arc::clone(secret), opens: "the API", name: "token" })
            }
            None => Condition::OnThisMachine(
                "the API answers callers on this machine only; set an API token to open it to others.",
            ),
        };
        let api = Access::Callers(settings.hosts.clone(), condition);
        let own = Arc::<ServerCounts>::default();
        let (queue, buffers) = (AnswerQueue::new(limits.answers), AnswerBuffers::counted(Arc::clone(&own.connections)));
        let (Shown { view, profiles, ready }, questions) = (shown, Semaphore::new(MAX_QUESTIONS));
        Routes { settings, api, view, profiles, questions, ready, queue, buffers, own }
    }

    fn endpoint(&self, path: &str) -> Option<Endpoint> {
        Some(match path {
            "/" => Endpoint::Index,
            "/healthz" => Endpoint::Health,
            "/readyz" => Endpoint::Ready,
            "/metrics" => {
                let sets = self.settings.sets;
                let more = [
                    (sets.dcgm, MetricSet::Dcgm),
                    (sets.dcgm && sets.dcgm_renamed, MetricSet::DcgmRenamed),
                    (sets.hami, MetricSet::Hami),
                    (sets.cadvisor, MetricSet::Cadvisor),
                ];
                let more = more.into_iter().filter_map(|(on, set)| on.then_some(set));
                Endpoint::Metrics(std::iter::once(MetricSet::Own).chain(more).collect())
            }
            "/metrics/gpu" => Endpoint::Metrics(vec![MetricSet::Gpu]),
            "/metrics/dcgm" if self.settings.sets.dcgm_renamed => {
                Endpoint::Metrics(vec![MetricSet::Dcgm, MetricSet::DcgmRenamed])
            }
            "/metrics/dcgm" => Endpoint::Metrics(vec![MetricSet::Dcgm]),
            "/metrics/hami" => Endpoint::Metrics(vec![MetricSet::Hami]),
            "/metrics/cadvisor" => Endpoint::Metrics(vec![MetricSet::Cadvisor]),
            "/api/v1/node" => Endpoint::Api(ApiDocument::Node),
            "/api/v1/gpus" => Endpoint::Api(ApiDocument::Gpus),
            "/api/v1/pods" => Endpoint::Api(ApiDocument::Pods),
            "/api/v1/processes" => Endpoint::Api(ApiDocument::Processes),
            "/api/v1/profile" => Endpoint::Profile,
            "/api/v1/history" => Endpoint::History,
            _ => return None,
        })
    }

    async fn open(&self, endpoint: Endpoint, request: &Request<Incoming>, ends: Ends) -> Response<AnswerBody> {
        match endpoint {
            Endpoint::Index => sentence(StatusCode::OK, INDEX.trim_end()),
            Endpoint::Health => sentence(StatusCode::OK, "ok"),
            Endpoint::Ready => self.readiness(),
            // Nothing is written for an answer without a body: its requests could follow each other without a pause.
            Endpoint::Metrics(sets) if request.method() == Method::HEAD => self.metrics_head(&sets, request.headers()),
            Endpoint::Metrics(sets) => self.metrics(&sets, request.headers(), ends.peer).await,
            Endpoint::Api(document) => self.api(document, request, ends.peer).await,
            Endpoint::Profile => self.profile(request, ends.peer).await,
            Endpoint::History => self.history(request, ends.peer).await,
        }
    }

    /// The answer of `/readyz`: whether the agent is ready, how long ago the API server sent something to the pod
    /// watch, and whether the plugin is registered with the kubelet. Only `/api/v1` shows the error of a failed
    /// registration, because the error contains addresses.
    fn readiness(&self) -> Response<AnswerBody> {
        let view = Arc::clone(&self.view.borrow());
        let kubelet = view.plugin.as_ref().map_or_else(String::new, |plugin| {
            let standing = match &plugin.registration {
                RegistrationState::Registered => "registered".to_owned(),
                RegistrationState::Waiting(_) => "not registered".to_owned(),
                RegistrationState::Follows => format!("not registered: {}", RegistrationState::FOLLOWS),
                RegistrationState::Undecided(why) => format!("not registered: {why}"),
            };
            let withheld: String = plugin.withheld.iter().map(|device| format!("\n{device}")).collect();
            let states = [cdi(plugin), lacks(plugin), guard(plugin), withheld].concat();
            format!("\n{} at kubelet: {standing}{states}", plugin.resource)
        });
        let watch = view.pod_watch.as_ref().map_or_else(String::new, |PodWatchView { watch, left_out, .. }| {
            let last_message = watch.last_received.map(|at| (self.settings.clock)().monotonic.since(at).as_secs());
            let last_message =
                last_message.map_or_else(|| "not heard yet".to_owned(), |age| format!("heard {age} s ago"));
            let broken = if watch.broken.is_some() { ", broken" } else { "" };
            let left_out = match left_out {
                0 => String::new(),
                _ => format!("; {left_out} pods are too many to keep: delete pods of this node that are not needed"),
            };
            format!("\nwatch of pods at the API server: {last_message}{broken}{left_out}")
        });
        let driver = match view.gpu_source {
            GpuSourceState::Released { until } => {
                let left = until.since((self.settings.clock)().monotonic).as_secs_f64().ceil();
                format!("\nGPU driver: released for {left} s at an operator's request")
            }
            _ => String::new(),
        };
        let missing: String = view.gpus_missing.iter().map(missing).collect();
        let rest = format!("{watch}{kubelet}{driver}{missing}");
        match &*self.ready.borrow() {
            Ok(()) => sentence(StatusCode::OK, &format!("ready{rest}")),
            Err(why) => sentence(StatusCode::SERVICE_UNAVAILABLE, &format!("{why}{rest}")),
        }
    }

    async fn metrics(&self, sets: &[MetricSet], headers: &HeaderMap, peer: IpAddr) -> Response<AnswerBody> {
        let Some(mut buffer) = self.buffer(peer).await else { return self.too_many() };
        // A connection writes one answer at a step, however many requests it has sent. The pause is before the text is written: from
        // then on until its bytes are counted, no other answer may be written.
        tokio::task::yield_now().await;
        self.own.scrapes.fetch_add(1, Ordering::Relaxed);
        let view = Arc::clone(&self.view.borrow());
        let now = (self.settings.clock)();
        let format = format(sets, headers);
        let profiles = self.profiles.as_ref().map(ProfileSource::newest);
        let (profiles, footprint) = (profiles.as_deref(), footprint::read(now));
        let input = MetricsInput { view: &view, profiles, now, own: &self.own, footprint };
        metrics::render(sets, &input, format, &mut buffer.bytes);
        let mut response = self.packed(buffer, headers);
        set(&mut response, header::CONTENT_TYPE, ExpositionFormat::content_type(format));
        response
    }

    /// The answer to `HEAD`: without the length of the text, which HTTP allows.
    fn metrics_head(&self, sets: &[MetricSet], headers: &HeaderMap) -> Response<AnswerBody> {
        let mut response = Response::new(AnswerBody::text(Vec::new()));
        set(&mut response, header::CONTENT_TYPE, ExpositionFormat::content_type(format(sets, headers)));
        set(&mut response, header::VARY, "Accept, Accept-Encoding");
        response
    }

    async fn api(&self, document: ApiDocument, request: &Request<Incoming>, peer: IpAddr) -> Response<AnswerBody> {
        let query = request.uri().query().unwrap_or_default();
        let filter = match document {
            ApiDocument::Node => query::values(query, []).map(|[]| ApiFilter::default()),
            ApiDocument::Gpus | ApiDocument::Pods | ApiDocument::Processes => ApiFilter::parse(query),
        };
        let filter = match filter {
            Ok(filter) => filter,
            Err(bad) => return sentence(StatusCode::BAD_REQUEST, &bad.to_string()),
        };
        let view = Arc::clone(&self.view.borrow());
        if let Some(gpu) = filter.missing_gpu(&view) {
            let gpu: String = gpu.chars().take(80).collect();
            return sentence(
                StatusCode::NOT_FOUND,
                &format!("this node has no GPU {gpu:?}: name it by UUID or index; /api/v1/gpus lists all."),
            );
        }
        let Some(mut buffer) = self.buffer(peer).await else { return self.too_many() };
        match api::render(document, &filter, &view, (self.settings.clock)(), &mut buffer.bytes) {
            Ok(()) => self.document(buffer, request.headers(), JSON),
            Err(error) => sentence(StatusCode::INTERNAL_SERVER_ERROR, &format!("cannot write JSON: {error}")),
        }
    }

    /// The buffer as a document of this type, which nobody may keep.
    fn document(&self, buffer: AnswerBuffer, headers: &HeaderMap, kind: &'static str) -> Response<AnswerBody> {
        let mut response = self.packed(buffer, headers);
        set(&mut response, header::CONTENT_TYPE, kind);
        set(&mut response, header::CACHE_CONTROL, "no-store");
        response
    }

    /// The buffer as an answer, compressed if the client accepts gzip. Names and labels repeat, so even gzip's
    /// fastest level reduces the size to a twentieth.
    fn packed(&self, mut buffer: AnswerBuffer, headers: &HeaderMap) -> Response<AnswerBody> {
        let gzip =
            buffer.bytes.len() >= WORTH_COMPRESSING && negotiate::gzip(&values(headers, header::ACCEPT_ENCODING));
        if gzip {
            buffer.compress();
        }
        let mut response = Response::new(AnswerBody::buffer(buffer));
        if gzip {
            set(&mut response, header::CONTENT_ENCODING, "gzip");
        }
        set(&mut response, header::VARY, "Accept, Accept-Encoding");
        response
    }

    /// A buffer, after a wait in the queue for large answers.
    async fn buffer(&self, peer: IpAddr) -> Option<AnswerBuffer> {
        Some(self.buffers.take(self.queue.enter(peer).await?))
    }

    fn too_many(&self) -> Response<AnswerBody> {
        self.own.scrapes_refused.fetch_add(1, Ordering::Relaxed);
        let mut response =
            sentence(StatusCode::SERVICE_UNAVAILABLE, "too many answers are in progress; try again in 5 seconds.");
        set(&mut response, header::RETRY_AFTER, "5");
        response
    }
}

/// A line for `/readyz` if no GPU is offered because CDI is not supported; it counts the pods of an earlier release
/// that still run.
fn cdi(plugin: &PluginView) -> String {
    match &plugin.cdi {
        CdiState::Missing { why, earlier_pods } if *earlier_pods > 0 => format!(
            "\nno free GPU is offered: {why}; pods that an earlier release started without CDI keep their GPUs: {earlier_pods}"
        ),
        CdiState::Unknown | CdiState::Works | CdiState::Missing { .. } => String::new(),
    }
}

/// A line for `/readyz` about a GPU that NVML does not list. The agent is ready for the other GPUs.
fn missing(gpu: &MissingGpu) -> String {
    format!("\nGPU at {} is missing: {}. {}", gpu.pci_bus_id, gpu.reason(), gpu.advice())
}

/// A line for `/readyz` with what containers lack on this host.
fn lacks(plugin: &PluginView) -> String {
    plugin.lacks.as_ref().map(|what| format!("\n{what}")).unwrap_or_default()
}

/// A line for `/readyz` with the known states of the chart's admission policies.
fn guard(plugin: &PluginView) -> String {
    let of = |state: PolicyGuard| -> Vec<&str> {
        plugin.guards.iter().filter(|(_, guard)| *guard == state).map(|(policy, _)| policy.code()).collect()
    };
    let words = [
        (PolicyGuard::InForce, "in force"),
        (PolicyGuard::Open, "NOT in force"),
        (PolicyGuard::Hinders, "blocks this agent"),
    ];
    let lists: Vec<String> = words
        .into_iter()
        .map(|(state, word)| (of(state), word))
        .filter(|(policies, _)| !policies.is_empty())
        .map(|(policies, word)| format!("{word}: {}", policies.join(" ")))
        .collect();
    if lists.is_empty() { String::new() } else { format!("\nadmission policies: {}", lists.join("; ")) }
}

/// The text format that the client accepts for these sets.
fn format(sets: &[MetricSet], headers: &HeaderMap) -> ExpositionFormat {
    let foreign = sets.iter().any(|set| set.has_foreign_counters());
    negotiate::format(&values(headers, header::ACCEPT), foreign)
}

/// All values of a header, as one list.
fn values(headers: &HeaderMap, name: HeaderName) -> String {
    let texts: Vec<&str> = headers.get_all(name).iter().filter_map(|value| value.to_str().ok()).collect();
    texts.join(",")
}

fn sentence(status: StatusCode, text: &str) -> Response<AnswerBody> {
    let mut response = Response::new(AnswerBody::text(format!("{text}\n")));
    *response.status_mut() = status;
    set(&mut response, header::CONTENT_TYPE, "text/plain; charset=utf-8");
    response
}

fn set(response: &mut Response<AnswerBody>, name: HeaderName, value: &'static str) {
    response.headers_mut().insert(name, HeaderValue::from_static(value));
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    fn routes(token: Option<&str>) -> Routes {
        let settings = Settings {
            sets: super::super::settings::MetricSets { dcgm: true, dcgm_renamed: false, hami: false, cadvisor: false },
            api_token: token.map(Arc::from),
            hosts: serve::caller::AllowedHosts::default(),
            certificates: None,
            clock: crate::sample_view::clock,
        };
        let shown = Shown {
            view: watch::channel(Arc::new(crate::sample_view::small())).1,
            profiles: None,
            ready: watch::channel(Ok(())).1,
        };
        Routes::new(settings, shown, Limits::default())
    }

    #[tokio::test]
    async fn a_text_is_written_and_counted_in_one_step() {
        let (routes, headers) = (routes(None), HeaderMap::new());
        let ask = |last| routes.metrics(&[MetricSet::Own], &headers, IpAddr::from([10, 0, 0, last]));
        let (mut first, mut second) = (pin!(ask(1)), pin!(ask(2)));
        let mut context = Context::from_waker(Waker::noop());
        assert!(first.as_mut().poll(&mut context).is_pending());
        assert!(second.as_mut().poll(&mut context).is_pending());
        let written = || routes.own.scrapes.load(Ordering::Relaxed);
        assert_eq!(written(), 0);
        let Poll::Ready(answer) = first.as_mut().poll(&mut context) else { panic!("a text that waits") };
        assert!(written() == 1 && answer.body().length() > 0);
        assert!(second.as_mut().poll(&mut context).is_ready());
    }

    #[test]
    fn the_api_requires_its_token_or_a_caller_on_this_machine_and_other_paths_do_not() {
        let paths: Vec<&str> = INDEX.lines().filter_map(|line| line.split(' ').next()).collect();
        let paths = paths.into_iter().filter(|path| path.starts_with('/'));
        let (local, far) = (IpAddr::from([127, 0, 0, 1]), IpAddr::from([10, 0, 0, 1]));
        for path in paths.chain(["/", "/nothing"]) {
            for (token, peer, expected) in [
                (None, local, None),
                (None, far, Some(403)),
                (Some("t"), local, Some(401)),
                (Some("t"), far, Some(401)),
            ] {
                let routes = routes(token);
                let (uri, ends) = (path.parse().unwrap(), Ends { peer, local: IpAddr::from([10, 0, 0, 2]) });
                let denial = routes.access(&uri).check(&uri, &HeaderMap::new(), ends).err();
                let expected = expected.filter(|_| path.starts_with("/api/"));
                assert_eq!(denial.map(|denial| denial.status.as_u16()), expected, "{token:?} {peer} {path}");
            }
        }
    }
}
