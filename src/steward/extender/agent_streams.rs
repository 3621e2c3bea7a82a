//! The streams of the agents: takes over what each agent reports of its own node, and answers what the leader knows of it.
//!
//! ```text
//!   first message (everything) ─┐                    ┌─▶ ClusterOwner: evidence, open or closed
//!   changes, beats ─────────────┼─▶ rate, bounds ────┤
//!   the end ────────────────────┘                    └─▶ LeaderView, when it differs, with each beat, or after ten seconds
//! ```
//!
//! There may be 5,000 streams, so none of them wakes up unless something is to be done for it: one task looks for all of them
//! whether this process still leads, and a node that is closed or opened wakes its own stream.
//!
//! What must never happen here: a report of a node by the agent of another one; a stream that waits without an end; a message
//! that counts after the stream has ended; a stream that outlives the token of its agent.

use super::callers::AgentIdentity;
use super::leadership::{Leader, Leadership};
use super::live_callers::{LiveCallers, StreamSignals};
use super::owner::ClusterOwner;
use super::planted::{PlantedMistake, planted};
use super::stream_counts::{StreamCounts, StreamEnd};
use decide::cluster::{ReportRefusal, StreamId};
use decide::message_rate::MessageRate;
use effects::stream::{FIRST_WITHIN, convert};
use model::agent_stream::{AgentMessage, AgentReport, LeaderView, REPORT_LEAST, REPORT_MOST};
use model::id::NodeName;
use model::time::Monotonic;
use parking_lot::Mutex;
use proto::stream::{AgentMessage as WireMessage, LeaderMessage};
use sources::clock;
use std::future::{Ready, ready};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::{Instant, interval, sleep_until, timeout};
use tokio_stream::{Stream, StreamExt};
use tokio_util::sync::CancellationToken;
use tonic::server::StreamingService;
use tonic::{Request, Response, Status, Streaming};

/// Messages to one agent that wait for it. An agent that reads has none.
const WAITING: usize = 2;
/// How long an agent may take to read a message.
const READ_WITHIN: Duration = Duration::from_secs(10);
/// Age of the last answer from which on a message of the agent is answered even if nothing differs: a beat comes every ten
/// seconds, so one wake-up serves both.
const ANSWER_AGAIN: Duration = Duration::from_secs(5);
/// How often messages may wait because the agent sends too many; each time a quarter of a second. Then the stream ends.
const TOO_MANY: u32 = 16;

/// Serves the streams.
#[derive(Debug)]
pub(super) struct AgentStreams {
    owner: Arc<ClusterOwner>,
    pub(super) leadership: Arc<Leadership>,
    pub(super) live: Arc<LiveCallers>,
    pub(super) counts: Arc<StreamCounts>,
    /// Cancelled when all streams must end.
    closing: CancellationToken,
    /// Cancelled when this process leads no longer; then there is another one for the next term.
    term: Mutex<CancellationToken>,
    last: AtomicU64,
}

/// The messages of one agent, as they come from its connection.
pub(super) trait AgentMessages: Stream<Item = Result<WireMessage, Status>> + Send + Unpin {}

impl<M: Stream<Item = Result<WireMessage, Status>> + Send + Unpin> AgentMessages for M {}

/// A message in a box, because the channel of each stream has a place for 32.
type Answer = Box<Result<LeaderMessage, Status>>;

type ToAgent = mpsc::Sender<Answer>;

/// The answers of one stream.
#[derive(Debug)]
pub(super) struct Answers(mpsc::Receiver<Answer>);

impl Stream for Answers {
    type Item = Result<LeaderMessage, Status>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.0.poll_recv(cx).map(|answer| answer.map(|answer| *answer))
    }
}

/// One stream whose first message has come.
struct Served {
    streams: Arc<AgentStreams>,
    id: StreamId,
    agent: AgentIdentity,
    rate: MessageRate,
    over: u32,
    sent: Option<(LeaderView, Instant)>,
    /// What ends it.
    signals: Arc<StreamSignals>,
    term: CancellationToken,
}

/// The only call of the service.
#[derive(Clone, Debug)]
pub(super) struct AgentService(pub(super) Arc<AgentStreams>);

impl StreamingService<WireMessage> for AgentService {
    type Response = LeaderMessage;
    type ResponseStream = Answers;
    type Future = Ready<Result<Response<Answers>, Status>>;

    fn call(&mut self, request: Request<Streaming<WireMessage>>) -> Self::Future {
        let Some(agent) = request.extensions().get::<AgentIdentity>().cloned() else {
            return ready(Err(Status::unauthenticated("the caller was not checked")));
        };
        ready(Ok(Response::new(AgentStreams::open(&self.0, agent, request.into_inner()))))
    }
}

impl AgentStreams {
    /// No stream is open yet. All end when `closing` is cancelled.
    pub(super) fn new(
        owner: Arc<ClusterOwner>,
        leadership: Arc<Leadership>,
        live: Arc<LiveCallers>,
        closing: CancellationToken,
    ) -> AgentStreams {
        let (counts, term, last) = (Arc::default(), Mutex::default(), AtomicU64::new(0));
        AgentStreams { owner, leadership, live, counts, closing, term, last }
    }

    /// Opens the stream of this agent, in a task of its own.
    pub(super) fn open(self: &Arc<Self>, agent: AgentIdentity, mut messages: impl AgentMessages + 'static) -> Answers {
        let (sender, receiver) = mpsc::channel(WAITING);
        let streams = Arc::clone(self);
        tokio::spawn(async move {
            let end = streams.serve(agent, &mut messages, &sender).await;
            let _ = timeout(READ_WITHIN, sender.send(Box::new(Err(end)))).await;
        });
        Answers(receiver)
    }

    /// Ends all streams within a second after this process has ceased to lead. A term ends when its time is over, which no
    /// event tells. Never returns.
    pub(super) async fn watch_term(&self) {
        let mut look = interval(REPORT_LEAST);
        loop {
            look.tick().await;
            if let Leader::Other(_) = self.leadership.leader() {
                std::mem::take(&mut *self.term.lock()).cancel();
            }
        }
    }

    /// Serves one stream to its end, and says why it ends.
    async fn serve(
        self: Arc<Self>,
        agent: AgentIdentity,
        messages: &mut impl AgentMessages,
        to_agent: &ToAgent,
    ) -> Status {
        // Before the question who leads: a term that ends after it ends this stream.
        let term = self.term.lock().clone();
        if let Leader::Other(_) = self.leadership.leader() {
            return self.refer(to_agent).await;
        }
        let report = match self.first(&agent, messages).await {
            Ok(report) => report,
            Err((end, why)) => return self.ended(end, why),
        };
        if term.is_cancelled() {
            return self.refer(to_agent).await;
        }
        let id = StreamId(self.last.fetch_add(1, Ordering::Relaxed) + 1);
        let (node, now) = (agent.node.0.clone(), clock::monotonic());
        let signals = match self.live.opens(id.0, &agent.node, agent.pod.as_ref()) {
            Ok(signals) => signals,
            Err(why) => return self.ended(StreamEnd::CallerGone, Status::permission_denied(why.to_string())),
        };
        let status = match self.take_report(id, report, now) {
            Err(why) => self.refused(&why),
            Ok(()) => {
                self.counts.opened();
                tracing::debug!(%node, "the agent of {node} reports");
                let (streams, rate) = (Arc::clone(&self), MessageRate::new(now));
                let mut served = Served { streams, id, agent, rate, over: 0, sent: None, signals, term };
                let status = served.run(messages, to_agent).await;
                self.closed(&node, id);
                status
            }
        };
        self.live.closes(id.0, &node);
        tracing::debug!(%node, why = status.message(), "the stream of the agent of {node} has ended: {}", status.message());
        status
    }

    /// The first message: everything of the caller's own node.
    async fn first(
        &self,
        agent: &AgentIdentity,
        messages: &mut impl AgentMessages,
    ) -> Result<AgentReport, (StreamEnd, Status)> {
        let message = match timeout(FIRST_WITHIN, messages.next()).await {
            Ok(Some(Ok(message))) => message,
            Ok(None) => return Err((StreamEnd::Closed, Status::cancelled("the agent has ended the stream"))),
            Ok(Some(Err(status))) => return Err((end_of(&status), status)),
            Err(_) => {
                return Err((
                    StreamEnd::BadMessage,
                    Status::deadline_exceeded("the first message did not come in time"),
                ));
            }
        };
        let bad = |why: String| (StreamEnd::BadMessage, Status::invalid_argument(why));
        match convert::agent_message(message) {
            Ok(AgentMessage::Full(report)) if report.node == agent.node.0 => Ok(report),
            Ok(AgentMessage::Full(report)) => {
                let why = format!("the token is of node {}, and the report of node {}", agent.node.0, report.node);
                Err((StreamEnd::OtherNode, Status::permission_denied(why)))
            }
            Ok(_) => Err(bad("the first message must have the full state".to_owned())),
            Err(why) => Err(bad(why.to_string())),
        }
    }

    /// Takes over a whole report.
    fn take_report(&self, id: StreamId, report: AgentReport, now: Monotonic) -> Result<(), ReportRefusal> {
        let taken = self.owner.agent_reports(id, report, now);
        // The election forgets all reports once the term is over. A report that comes later, from a stream that has not ended
        // yet, would stay: a claim could then wait for the end of processes that nobody reports any more.
        if let Leader::Other(_) = self.leadership.leader() {
            self.owner.forget_agents();
        }
        taken
    }

    /// A stream that has reported has ended.
    fn closed(&self, node: &NodeName, id: StreamId) {
        if planted(PlantedMistake::StreamEndUnseen) {
            return;
        }
        self.owner.agent_closed(node, id, clock::monotonic());
        if planted(PlantedMistake::OldEndClosesNewStream) {
            let newer = id.0..=self.last.load(Ordering::Relaxed);
            newer.for_each(|newer| self.owner.agent_closed(node, StreamId(newer), clock::monotonic()));
        }
    }

    /// Names the leader.
    async fn refer(&self, to_agent: &ToAgent) -> Status {
        let Some(leader) = self.leadership.leader_address() else {
            return self.ended(StreamEnd::NotLeading, Status::unavailable("no extender leads at this moment"));
        };
        let text = format!("{leader} leads");
        let view = LeaderView { leader: Some(leader), ..LeaderView::default() };
        let _ = timeout(READ_WITHIN, to_agent.send(Box::new(Ok(convert::from_leader(&view))))).await;
        self.ended(StreamEnd::NotLeading, Status::failed_precondition(text))
    }

    fn refused(&self, why: &ReportRefusal) -> Status {
        match why {
            ReportRefusal::Replaced => self.ended(StreamEnd::Replaced, Status::aborted(why.to_string())),
            ReportRefusal::TooLarge(_) => self.ended(StreamEnd::BadMessage, Status::invalid_argument(why.to_string())),
        }
    }

    fn ended(&self, end: StreamEnd, status: Status) -> Status {
        self.counts.ended(end);
        status
    }
}

/// Why a stream has ended whose message could not be read.
fn end_of(status: &Status) -> StreamEnd {
    match status.code() {
        // A message that is too large, or no message of the schema.
        tonic::Code::OutOfRange | tonic::Code::Internal | tonic::Code::InvalidArgument => StreamEnd::BadMessage,
        _ => StreamEnd::Closed,
    }
}

impl Served {
    async fn run(&mut self, messages: &mut impl AgentMessages, to_agent: &ToAgent) -> Status {
        let (streams, signals, term) = (Arc::clone(&self.streams), Arc::clone(&self.signals), self.term.clone());
        let mut fresh = Duration::ZERO;
        loop {
            let look = match self.answer(to_agent, fresh).await {
                Ok(look) => look,
                Err(end) => return end,
            };
            let message = tokio::select! {
                // No message counts once the stream has to end.
                biased;
                () = streams.closing.cancelled() => {
                    return streams.ended(StreamEnd::Stopping, Status::unavailable("the extender is stopping"));
                }
                () = signals.ends.cancelled() => return self.told_to_end(),
                () = sleep_until(self.agent.until) => {
                    let why = "the token of the agent has expired";
                    return streams.ended(StreamEnd::TokenExpired, Status::unauthenticated(why));
                }
                () = term.cancelled() => return streams.refer(to_agent).await,
                () = signals.look.notified() => {
                    fresh = REPORT_MOST;
                    continue;
                }
                () = sleep_until(look) => {
                    fresh = REPORT_MOST;
                    continue;
                }
                message = messages.next() => message,
            };
            fresh = ANSWER_AGAIN;
            let taken = match message {
                Some(Ok(message)) => self.take(message).await,
                None => Err(streams.ended(StreamEnd::Closed, Status::ok("the agent has ended the stream"))),
                Some(Err(status)) => Err(streams.ended(end_of(&status), status)),
            };
            if let Err(end) = taken {
                return end;
            }
        }
    }

    /// The end of a stream whose caller is gone, or has opened a newer one.
    fn told_to_end(&self) -> Status {
        let AgentIdentity { node, pod, .. } = &self.agent;
        match self.streams.live.check(node, pod.as_ref()) {
            Ok(()) => self.streams.refused(&ReportRefusal::Replaced),
            Err(why) => self.streams.ended(StreamEnd::CallerGone, Status::permission_denied(why.to_string())),
        }
    }

    /// Takes over one message.
    async fn take(&mut self, message: WireMessage) -> Result<(), Status> {
        let streams = Arc::clone(&self.streams);
        streams.counts.message();
        while !self.rate.allows(clock::monotonic()) {
            self.over += 1;
            if self.over > TOO_MANY {
                let why = "the agent sends more messages than two a second";
                return Err(streams.ended(StreamEnd::TooFast, Status::resource_exhausted(why)));
            }
            tokio::time::sleep(REPORT_LEAST / 4).await;
        }
        if self.signals.ends.is_cancelled() || self.term.is_cancelled() || Instant::now() >= self.agent.until {
            // It came too late; `run` ends the stream.
            return Ok(());
        }
        let message = convert::agent_message(message);
        let message =
            message.map_err(|why| streams.ended(StreamEnd::BadMessage, Status::invalid_argument(why.to_string())))?;
        let (node, now) = (&self.agent.node.0, clock::monotonic());
        let taken = match message {
            AgentMessage::Full(report) if report.node == *node => streams.take_report(self.id, report, now),
            AgentMessage::Full(_) => {
                let why = "the report is of another node than the token";
                return Err(streams.ended(StreamEnd::OtherNode, Status::permission_denied(why)));
            }
            AgentMessage::Change(change) => streams.owner.agent_changes(node, self.id, change, now),
            AgentMessage::Beat => streams.owner.agent_beats(node, self.id, now),
        };
        taken.map_err(|why| streams.refused(&why))
    }

    /// Sends what the leader knows of the node, if it differs from what was sent last or that is not `fresh` any more.
    /// Returns when to look again.
    async fn answer(&mut self, to_agent: &ToAgent, fresh: Duration) -> Result<Instant, Status> {
        let view = self.streams.owner.leader_view(&self.agent.node.0);
        let next = |sent: Instant| {
            // Pods of the node come and go while its agent waits for them, and nothing else tells it.
            if view.leaving { Instant::now() + REPORT_LEAST } else { sent + REPORT_MOST }
        };
        if let Some((sent, at)) = &self.sent
            && *sent == view
            && at.elapsed() < fresh
        {
            return Ok(next(*at));
        }
        match timeout(READ_WITHIN, to_agent.send(Box::new(Ok(convert::from_leader(&view))))).await {
            Ok(Ok(())) => {
                let now = Instant::now();
                let next = next(now);
                self.sent = Some((view, now));
                Ok(next)
            }
            Ok(Err(_)) => {
                Err(self.streams.ended(StreamEnd::Closed, Status::cancelled("the agent has ended the stream")))
            }
            Err(_) => Err(self
                .streams
                .ended(StreamEnd::Slow, Status::deadline_exceeded("the agent does not read its answers"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use decide::cluster::ClusterRules;
    use decide::election::{ElectionTimes, Elector};
    use model::lease::LeaseName;
    use wire::resource::RequestRules;

    #[test]
    fn a_report_that_comes_after_the_term_does_not_stay() {
        let lease = LeaseName::new("kube-system", "gpu-steward");
        let owner = Arc::new(ClusterOwner::new(ClusterRules::default(), RequestRules::default(), lease));
        let leadership = Arc::new(Leadership::new(Elector::new("a".into(), ElectionTimes::default())));
        let streams = AgentStreams::new(Arc::clone(&owner), leadership, Arc::default(), CancellationToken::new());
        let node = NodeName::parse("n1").unwrap();
        let taken = streams.take_report(StreamId(1), AgentReport::of(node.clone()), Monotonic(1));
        assert_eq!(taken, Ok(()), "its stream ends with the others");
        assert!(owner.inspect(|cluster| cluster.agent_report(&node).is_none()));
    }
}
