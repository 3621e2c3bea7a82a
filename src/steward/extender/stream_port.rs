//! The TLS port of the extender: the streams of agents, and the questions that other extenders pass on.
//!
//! Each request is of a caller with a token. What a caller may ask follows from who it is: an agent opens its stream, another
//! extender asks the verbs. Nobody else gets an answer here.

use super::agent_streams::{AgentService, AgentStreams};
use super::callers::{Caller, CallerRefusal, Callers};
use super::leadership::Leader;
use super::port::ExtenderPort;
use super::stream_counts::StreamCounts;
use effects::caller::{Access, Ends};
use effects::server::{ConnectionLimits, HttpApplication};
use effects::stream::MAX_MESSAGE;
use effects::stream::codec::LeaderCodec;
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{self, HeaderValue};
use hyper::{Request, Response, StatusCode, Uri};
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep};
use tonic::body::Body;
use tonic::server::Grpc;

/// The path of every call of the streams' service.
const STREAMS: &str = "/gpu_steward.stream.v1.AgentStream/";
/// Its only call.
const REPORT: &str = "Report";

/// How long connections wait while no extender decides. An agent gives up a connection after ten seconds.
const HELD: Duration = Duration::from_secs(4);
/// Time between two looks whether one decides.
const LOOK: Duration = Duration::from_millis(20);

/// The limits of the connections: Kubernetes supports 5,000 Nodes, each with an agent, and during an upgrade two.
pub(super) const CONNECTIONS: ConnectionLimits = ConnectionLimits {
    connections: 12_000,
    header_timeout: Duration::from_secs(30),
    write_timeout: Duration::from_secs(10),
    busy_write_timeout: Duration::from_secs(2),
    drain: Duration::from_secs(2),
};

/// Answers the requests of the port.
#[derive(Debug)]
pub(super) struct StreamPort {
    callers: Arc<Callers>,
    counts: Arc<StreamCounts>,
    verbs: Arc<ExtenderPort>,
    streams: Arc<AgentStreams>,
    /// Since when no extender decides, as far as connections have waited for one.
    undecided: Mutex<Option<Instant>>,
}

impl StreamPort {
    pub(super) fn new(
        callers: Arc<Callers>,
        counts: Arc<StreamCounts>,
        verbs: Arc<ExtenderPort>,
        streams: Arc<AgentStreams>,
    ) -> StreamPort {
        StreamPort { callers, counts, verbs, streams, undecided: Mutex::new(None) }
    }

    /// Whether no extender decides at this moment, but one soon will.
    fn is_undecided(&self) -> bool {
        let undecided = matches!(self.streams.leadership.leader(), Leader::CatchingUp | Leader::Other(None));
        let mut since = self.undecided.lock();
        if !undecided {
            *since = None;
        }
        undecided && since.get_or_insert_with(Instant::now).elapsed() < HELD
    }

    /// Opens the stream of an agent. What tonic generates for it would do the same with larger buffers.
    async fn report(&self, request: Request<Incoming>) -> Response<Body> {
        if request.uri().path().strip_prefix(STREAMS) != Some(REPORT) {
            return tonic::Status::unimplemented("this service has one call, Report").into_http();
        }
        let mut grpc = Grpc::new(LeaderCodec).apply_max_message_size_config(Some(MAX_MESSAGE), None);
        grpc.streaming(AgentService(Arc::clone(&self.streams)), request).await
    }
}

impl HttpApplication for StreamPort {
    type Body = Body;

    fn access(&self, _: &Uri) -> &Access {
        // The caller is checked in `answer`, before anything else: it decides what is asked.
        &Access::Everyone
    }

    /// After a leader change all agents connect at once, and their handshakes would take the CPU time that the next leader
    /// needs to read the cluster. Where no extender leads, they would only have to come again.
    async fn admits(&self) {
        while self.is_undecided() {
            sleep(LOOK).await;
        }
    }

    async fn answer(&self, mut request: Request<Incoming>, _: Ends) -> Response<Body> {
        let caller = match self.callers.check(request.headers()).await {
            Ok(caller) => caller,
            Err(why) => {
                self.counts.refused(why);
                return refusal(&request, why);
            }
        };
        let streams = request.uri().path().starts_with(STREAMS);
        match caller {
            Caller::Agent(agent) if streams => {
                request.extensions_mut().insert(agent);
                self.report(request).await
            }
            Caller::Extender if !streams => self.verbs.passed_on(request).await.map(Body::new),
            Caller::Agent(_) | Caller::Extender => {
                self.counts.refused(CallerRefusal::OtherAccount);
                refusal(&request, CallerRefusal::OtherAccount)
            }
        }
    }
}

/// The answer to a caller that is refused: for a stream a status of gRPC, otherwise one of HTTP.
fn refusal(request: &Request<Incoming>, why: CallerRefusal) -> Response<Body> {
    let content = request.headers().get(header::CONTENT_TYPE).and_then(|content| content.to_str().ok());
    let known = !matches!(why, CallerRefusal::NoToken | CallerRefusal::Token(_));
    if content.is_some_and(|content| content.starts_with("application/grpc")) {
        let status = match known {
            true => tonic::Status::permission_denied(why.to_string()),
            false => tonic::Status::unauthenticated(why.to_string()),
        };
        return status.into_http();
    }
    let mut response = Response::new(Body::new(Full::new(Bytes::from(format!("{why}.\n")))));
    *response.status_mut() = if known { StatusCode::FORBIDDEN } else { StatusCode::UNAUTHORIZED };
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    if !known {
        headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    }
    response
}
