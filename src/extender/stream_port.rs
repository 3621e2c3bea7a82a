//! The TLS port of the extender: the streams of agents, and the calls that other extenders forward.
//!
//! Each request carries a token, and the caller's identity decides what it may request: an agent opens its stream,
//! another extender calls the verbs. All other callers are refused.

use super::agent_streams::AgentStreams;
use super::callers::{AgentIdentity, Caller, CallerRefusal, Callers};
use super::leadership::Leader;
use super::port::ExtenderPort;
use super::stream_counts::StreamCounts;
use super::stream_limit::StreamLimit;
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{self, HeaderValue};
use hyper::{Request, Response, StatusCode, Uri};
use parking_lot::Mutex;
use serve::caller::{Access, Ends};
use serve::server::{ConnectionLimits, HttpApplication, Newcomer, TakenConnection};
use std::sync::Arc;
use std::time::Duration;
use stream::opening::{self, STREAM_PATH};
use tokio::time::{Instant, sleep};

/// How long connections wait while no extender decides. An agent gives up a connection after ten seconds.
const HELD: Duration = Duration::from_secs(4);
/// Time between two checks of whether an extender decides.
const LOOK: Duration = Duration::from_millis(20);

/// The limits of the connections. Kubernetes supports 5,000 Nodes, and each has one agent, or two during an upgrade.
pub(super) const CONNECTIONS: ConnectionLimits = ConnectionLimits {
    connections: 12_000,
    // A client can make the extender keep about 100 KiB for it: 64 KiB of an unfinished TLS handshake message, before or
    // after the handshake has ended, and 16 KiB of headers. So clients without a token take at most 50 MiB of the 512
    // MiB that the chart gives to the extender. An agent sends its token some milliseconds after it has connected.
    newcomers: Some(512),
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
    limit: Arc<StreamLimit>,
    /// When connections began to wait because no extender decides.
    undecided: Mutex<Option<Instant>>,
}

impl StreamPort {
    pub(super) fn new(
        callers: Arc<Callers>,
        counts: Arc<StreamCounts>,
        verbs: Arc<ExtenderPort>,
        streams: Arc<AgentStreams>,
    ) -> StreamPort {
        StreamPort { callers, counts, verbs, streams, limit: Arc::default(), undecided: Mutex::new(None) }
    }

    /// Whether no extender decides at this moment, and connections have waited for less than [`HELD`].
    fn is_undecided(&self) -> bool {
        let undecided = matches!(self.streams.leadership.leader(), Leader::CatchingUp | Leader::Other(None));
        let mut since = self.undecided.lock();
        if !undecided {
            *since = None;
        }
        undecided && since.get_or_insert_with(Instant::now).elapsed() < HELD
    }

    /// Opens the stream of an agent.
    fn open(&self, agent: AgentIdentity, mut request: Request<Incoming>) -> Response<Full<Bytes>> {
        let taken = request.extensions_mut().remove::<TakenConnection>();
        if !opening::asks(&request) || taken.is_none() {
            return opening::no_switch();
        }
        let Some(permit) = self.limit.enter(&agent.node.0) else {
            self.counts.refused(CallerRefusal::TooManyStreams);
            return refusal(CallerRefusal::TooManyStreams);
        };
        identified(&request);
        let streams = Arc::clone(&self.streams);
        tokio::spawn(async move {
            // The connection counts as open until the stream ends.
            let (_taken, _permit) = (taken, permit);
            match opening::begun(request).await {
                Ok(messages) => streams.serve(agent, messages).await,
                Err(error) => tracing::debug!(%error, "agent stream closed during the handshake"),
            }
        });
        opening::accepted()
    }
}

impl HttpApplication for StreamPort {
    type Body = Full<Bytes>;

    fn access(&self, _: &Uri) -> &Access {
        // `answer` checks the caller before anything else, because the caller decides which requests are allowed.
        &Access::Everyone
    }

    /// Makes connections wait while no extender decides. After a leader change all agents connect at once, and their
    /// handshakes would take the CPU time that the next leader needs to read the cluster. While no extender leads, the
    /// agents would have to connect again anyway.
    async fn admits(&self) {
        while self.is_undecided() {
            sleep(LOOK).await;
        }
    }

    async fn answer(&self, request: Request<Incoming>, _: Ends) -> Response<Full<Bytes>> {
        let caller = match self.callers.check(request.headers()).await {
            Ok(caller) => caller,
            Err(why) => {
                self.counts.refused(why);
                return refusal(why);
            }
        };
        let streams = request.uri().path() == STREAM_PATH;
        match caller {
            Caller::Agent(agent) if streams => self.open(agent, request),
            Caller::Extender if !streams => {
                identified(&request);
                self.verbs.passed_on(request).await
            }
            Caller::Agent(_) | Caller::Extender => {
                self.counts.refused(CallerRefusal::OtherAccount);
                refusal(CallerRefusal::OtherAccount)
            }
        }
    }
}

/// The connection of this caller is no newcomer any more. A refused caller stays a newcomer. So with one stolen token
/// an attacker keeps [`super::stream_limit::MOST_STREAMS`] connections, as many as the agent may have streams.
fn identified(request: &Request<Incoming>) {
    if let Some(newcomer) = request.extensions().get::<Newcomer>() {
        newcomer.identified();
    }
}

/// The answer to a refused caller.
fn refusal(why: CallerRefusal) -> Response<Full<Bytes>> {
    if why == CallerRefusal::TooManyStreams {
        return text(StatusCode::TOO_MANY_REQUESTS, &why.to_string());
    }
    if !matches!(why, CallerRefusal::NoToken | CallerRefusal::Token(_)) {
        return text(StatusCode::FORBIDDEN, &why.to_string());
    }
    let mut response = text(StatusCode::UNAUTHORIZED, &why.to_string());
    response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    response
}

fn text(status: StatusCode, sentence: &str) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(format!("{sentence}.\n"))));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    response
}
