//! The TLS port of the extender: the streams of agents, and the questions that other extenders pass on.
//!
//! Each request is of a caller with a token. What a caller may ask follows from who it is: an agent opens its stream, another
//! extender asks the verbs. Nobody else gets an answer here.

use super::agent_streams::{AgentService, AgentStreams};
use super::callers::{Caller, CallerRefusal, Callers};
use super::port::ExtenderPort;
use super::stream_counts::StreamCounts;
use effects::caller::{Access, Ends};
use effects::server::{ConnectionLimits, HttpApplication};
use effects::stream::MAX_MESSAGE;
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{self, HeaderValue};
use hyper::{Request, Response, StatusCode, Uri};
use proto::stream::agent_stream_server::AgentStreamServer;
use std::sync::Arc;
use std::time::Duration;
use tonic::body::Body;
use tonic::service::Routes;
use tower::ServiceExt;

/// The path of every call of the streams' service.
const STREAMS: &str = "/gpu_steward.stream.v1.AgentStream/";

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
    routes: Routes,
}

impl StreamPort {
    pub(super) fn new(
        callers: Arc<Callers>,
        counts: Arc<StreamCounts>,
        verbs: Arc<ExtenderPort>,
        streams: Arc<AgentStreams>,
    ) -> StreamPort {
        let service = AgentStreamServer::new(AgentService(streams)).max_decoding_message_size(MAX_MESSAGE);
        StreamPort { callers, counts, verbs, routes: Routes::new(service) }
    }
}

impl HttpApplication for StreamPort {
    type Body = Body;

    fn access(&self, _: &Uri) -> &Access {
        // The caller is checked in `answer`, before anything else: it decides what is asked.
        &Access::Everyone
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
                match self.routes.clone().oneshot(request).await {
                    Ok(response) => response,
                    Err(never) => match never {},
                }
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
