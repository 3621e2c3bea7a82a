//! The streams of the agents. Takes over each agent's reports about its own node, and replies with what the leader
//! knows about the node.
//!
//! ```text
//!   first message (everything) ─┐                    ┌─▶ LockedCluster: evidence, open or closed
//!   changes, beats ─────────────┼─▶ rate, bounds ────┤
//!   end of the stream ──────────┘                    └─▶ LeaderView: after a change, after a beat, or after 10 s
//! ```
//!
//! The rate limit applies to a node, over all its streams ([`super::stream_limit`]).
//!
//! There may be 5,000 streams, so a stream wakes up only when it has work to do. One task checks for all streams whether this process
//! still leads, and another task checks which nodes were closed or opened ([`super::closings`]); it wakes only the streams of those
//! nodes.
//!
//! What must never happen here: an agent reports about another agent's node; a stream waits forever; a message counts
//! after its stream has ended; a stream outlives the token of its agent.

use super::callers::AgentIdentity;
use super::leadership::{Leader, Leadership};
use super::live_callers::{LiveCallers, StreamSignals};
use super::locked_cluster::LockedCluster;
use super::planted::{PlantedMistake, planted};
use super::stream_counts::{StreamCounts, StreamEnd};
use super::stream_limit::{AgentAct, NodeRates};
use decide::cluster::{ReportRefusal, StreamId};
use model::agent_stream::{AgentMessage, AgentReport, LeaderView, REPORT_LEAST, REPORT_MOST};
use model::id::NodeName;
use model::time::Monotonic;
use parking_lot::Mutex;
use proto::stream::{AgentMessage as WireMessage, LeaderMessage, StreamEnd as WireEnd};
use std::sync::Arc;
use std::time::Duration;
use stream::{FIRST_WITHIN, MessageError, MessageStream, convert};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::{Instant, interval, sleep_until, timeout};
use tokio_util::sync::CancellationToken;

/// How long an agent may take to read a message. It is less than the port's own limit, so that the log names the slow
/// agent.
const READ_WITHIN: Duration = Duration::from_secs(8);
/// A stream ends if its agent sends nothing for this long. By then three of the agent's beats are missing, for example
/// because its node has lost power.
const SILENCE: Duration = Duration::from_secs(35);
/// How long an agent may take to close its side after the last message. If the extender closed first and the agent sent
/// more data, the kernel would discard the last message.
const CLOSES_WITHIN: Duration = Duration::from_secs(2);
/// Reply to an agent's message when the last reply is older than this, even if nothing has changed. A beat arrives
/// every ten seconds, so the leader replies to it in the same wake-up.
const ANSWER_AGAIN: Duration = Duration::from_secs(5);
/// If an agent opens too many streams or sends too many messages, each opening or message is delayed by a quarter of a
/// second at a time. After this many delays in a row the stream ends. An agent that opens streams as fast as its own
/// pauses allow is delayed at most twice.
const TOO_MANY: u32 = 16;

/// Serves the streams.
#[derive(Debug)]
pub(super) struct AgentStreams {
    cluster: Arc<LockedCluster>,
    pub(super) leadership: Arc<Leadership>,
    pub(super) live: Arc<LiveCallers>,
    pub(super) counts: Arc<StreamCounts>,
    /// Cancelled when all streams must end.
    closing: CancellationToken,
    /// Cancelled when this process no longer leads; the next term gets a new token.
    term: Mutex<CancellationToken>,
    rates: NodeRates,
}

/// The reason if the agent closed the stream.
const ENDED: &str = "the agent has ended the stream";

/// The transport of a stream: a connection, or a pipe in the simulation.
pub(super) trait Connection: AsyncRead + AsyncWrite + Send + Unpin {}

impl<C: AsyncRead + AsyncWrite + Send + Unpin> Connection for C {}

/// Why a stream ended: the reason, and a sentence for the agent.
#[derive(Debug)]
struct Ended {
    end: StreamEnd,
    text: String,
}

/// One stream whose first message has arrived.
struct Served {
    streams: Arc<AgentStreams>,
    id: StreamId,
    agent: AgentIdentity,
    /// How many messages in a row were delayed.
    over: u32,
    sent: Option<(LeaderView, Instant)>,
    /// The signals that end or wake the stream.
    signals: Arc<StreamSignals>,
    term: CancellationToken,
}

impl AgentStreams {
    /// Starts without open streams. All streams end when `closing` is cancelled.
    pub(super) fn new(
        cluster: Arc<LockedCluster>,
        leadership: Arc<Leadership>,
        live: Arc<LiveCallers>,
        closing: CancellationToken,
    ) -> AgentStreams {
        let (counts, term, rates) = (Arc::default(), Mutex::default(), NodeRates::default());
        AgentStreams { cluster, leadership, live, counts, closing, term, rates }
    }

    /// Ends all streams when this process no longer leads. Never returns.
    pub(super) async fn watch_term(&self) {
        let mut look = interval(REPORT_LEAST);
        loop {
            look.tick().await;
            if let Leader::Other(_) = self.leadership.leader() {
                std::mem::take(&mut *self.term.lock()).cancel();
            }
        }
    }

    /// Serves the stream of this agent to its end, and tells the agent why it ends.
    pub(super) async fn serve(self: Arc<Self>, agent: AgentIdentity, mut messages: MessageStream<impl Connection>) {
        let streams = Arc::clone(&self);
        let Ended { end, text } = self.serve_to_end(agent, &mut messages).await;
        streams.counts.ended(end);
        if end == StreamEnd::Slow {
            // Half a message is already sent, so no other message can follow it.
            return;
        }
        let leader = streams.leadership.leader_address().filter(|_| end == StreamEnd::NotLeading);
        let view = LeaderView { leader, ..LeaderView::default() };
        let end = Some(WireEnd { reason: end.code().to_owned(), text });
        let last = LeaderMessage { end, ..convert::from_leader(&view) };
        if let Ok(Ok(())) = timeout(READ_WITHIN, messages.send(&last)).await {
            let _ = timeout(CLOSES_WITHIN, messages.close()).await;
        }
    }

    async fn serve_to_end(
        self: Arc<Self>,
        agent: AgentIdentity,
        messages: &mut MessageStream<impl Connection>,
    ) -> Ended {
        // Take the token before asking who leads: if the term ends after that, the token ends this stream.
        let term = self.term.lock().clone();
        if let Leader::Other(_) = self.leadership.leader() {
            return self.refer();
        }
        // Check the rate before reading the first message, because it is the largest.
        if let Err(end) = self.admit(&agent.node.0, AgentAct::Opening, &mut 0).await {
            return end;
        }
        let report = match first(&agent, messages).await {
            Ok(report) => report,
            Err(end) => return end,
        };
        if term.is_cancelled() {
            return self.refer();
        }
        let (node, now) = (agent.node.0.clone(), clock::monotonic());
        let (id, signals) = match self.live.opens(&agent.node, agent.pod.as_ref()) {
            Ok(opened) => opened,
            Err(why) => return Ended::because(StreamEnd::CallerGone, why),
        };
        let ended = match self.take_report(id, report, now) {
            Err(why) => refused(&why),
            Ok(()) => {
                self.counts.opened();
                tracing::debug!(%node, "the agent of {node} reports");
                let streams = Arc::clone(&self);
                let mut served = Served { streams, id, agent, over: 0, sent: None, signals, term };
                let ended = served.run(messages).await;
                self.closed(&node, id);
                ended
            }
        };
        self.live.closes(id, &node);
        tracing::debug!(%node, why = ended.text, "the stream of the agent of {node} has ended: {}", ended.text);
        ended
    }

    /// Waits until the rate limit lets the agent of this node do this. Adds the number of delays to `waits`.
    async fn admit(&self, node: &NodeName, act: AgentAct, waits: &mut u32) -> Result<(), Ended> {
        while !self.rates.allows(node, act, clock::monotonic()) {
            *waits += 1;
            if *waits > TOO_MANY {
                let why = match act {
                    AgentAct::Opening => "the agent opens more streams than two a second",
                    AgentAct::Message => "the agent sends more messages than two a second",
                };
                return Err(Ended::because(StreamEnd::TooFast, why));
            }
            tokio::time::sleep(REPORT_LEAST / 4).await;
        }
        Ok(())
    }

    /// Takes over a complete report.
    fn take_report(&self, id: StreamId, report: AgentReport, now: Monotonic) -> Result<(), ReportRefusal> {
        take_report(&self.cluster, &self.leadership, (id, report), now)
    }

    /// Records that a stream has ended whose agent has sent a report.
    fn closed(&self, node: &NodeName, id: StreamId) {
        if planted(PlantedMistake::StreamEndUnseen) {
            return;
        }
        self.cluster.agent_closed(node, id, clock::monotonic());
        if planted(PlantedMistake::OldEndClosesNewStream) {
            let newer = id.0..id.0 + 1000;
            newer.for_each(|newer| self.cluster.agent_closed(node, StreamId(newer), clock::monotonic()));
        }
    }

    /// The end of a stream at an extender that does not lead. The last message names the leader.
    fn refer(&self) -> Ended {
        match self.leadership.leader_address() {
            Some(leader) => Ended::because(StreamEnd::NotLeading, format!("{leader} leads")),
            None => Ended::because(StreamEnd::NotLeading, "no extender leads at this moment"),
        }
    }
}

fn take_report(
    cluster: &LockedCluster,
    leadership: &Leadership,
    (id, report): (StreamId, AgentReport),
    now: Monotonic,
) -> Result<(), ReportRefusal> {
    let taken = cluster.agent_reports(id, report, now);
    // All reports are forgotten when the term ends. A stream that has not ended yet may add a report after that. The
    // report would stay, and a claim could then wait for the end of processes that no agent reports any more.
    if let Leader::Other(_) = leadership.leader() {
        cluster.forget_agents();
    }
    taken
}

/// Reads the first message, which must be the complete report of the caller's own node.
async fn first(agent: &AgentIdentity, messages: &mut MessageStream<impl Connection>) -> Result<AgentReport, Ended> {
    let message = match timeout(FIRST_WITHIN, messages.next()).await {
        Ok(Ok(Some(message))) => message,
        Ok(Ok(None)) => return Err(Ended::because(StreamEnd::Closed, ENDED)),
        Ok(Err(why)) => return Err(Ended::from(why)),
        Err(_) => return Err(Ended::because(StreamEnd::BadMessage, "the first message did not come in time")),
    };
    match convert::agent_message(message) {
        Ok(AgentMessage::Full(report)) if report.node == agent.node.0 => Ok(report),
        Ok(AgentMessage::Full(report)) => {
            let why = format!("the token is of node {}, and the report of node {}", agent.node.0, report.node);
            Err(Ended::because(StreamEnd::OtherNode, why))
        }
        Ok(_) => Err(Ended::because(StreamEnd::BadMessage, "the first message must have the full state")),
        Err(why) => Err(Ended::because(StreamEnd::BadMessage, why)),
    }
}

fn refused(why: &ReportRefusal) -> Ended {
    let end = match why {
        ReportRefusal::Replaced => StreamEnd::Replaced,
        ReportRefusal::TooLarge(_) => StreamEnd::BadMessage,
    };
    Ended::because(end, why)
}

impl Ended {
    fn because(end: StreamEnd, text: impl ToString) -> Ended {
        Ended { end, text: text.to_string() }
    }
}

impl From<MessageError> for Ended {
    fn from(why: MessageError) -> Ended {
        let end = match why {
            MessageError::Connection(_) | MessageError::Truncated => StreamEnd::Closed,
            MessageError::TooLarge(_) | MessageError::Schema(_) => StreamEnd::BadMessage,
        };
        Ended::because(end, why)
    }
}

impl Served {
    async fn run(&mut self, messages: &mut MessageStream<impl Connection>) -> Ended {
        let (streams, signals, term) = (Arc::clone(&self.streams), Arc::clone(&self.signals), self.term.clone());
        let (mut fresh, mut heard) = (Duration::ZERO, Instant::now());
        loop {
            let look = match self.answer(messages, fresh).await {
                Ok(look) => look,
                Err(end) => return end,
            };
            let message = tokio::select! {
                // Check the reasons to end first: no message counts once the stream has to end.
                biased;
                () = streams.closing.cancelled() => {
                    return Ended::because(StreamEnd::Stopping, "the extender is stopping");
                }
                () = signals.ends.cancelled() => return self.told_to_end(),
                () = sleep_until(self.agent.until) => {
                    return Ended::because(StreamEnd::TokenExpired, "the token of the agent has expired");
                }
                () = term.cancelled() => return streams.refer(),
                () = signals.look.notified() => {
                    fresh = REPORT_MOST;
                    continue;
                }
                () = sleep_until(look.min(heard + SILENCE)) => {
                    if heard.elapsed() >= SILENCE {
                        return Ended::because(StreamEnd::Silent, "the agent is silent");
                    }
                    fresh = REPORT_MOST;
                    continue;
                }
                message = messages.next() => message,
            };
            (fresh, heard) = (ANSWER_AGAIN, Instant::now());
            let taken = match message {
                Ok(Some(message)) => self.take(message).await,
                Ok(None) => Err(Ended::because(StreamEnd::Closed, ENDED)),
                Err(why) => Err(Ended::from(why)),
            };
            if let Err(end) = taken {
                return end;
            }
        }
    }

    /// Why the stream was told to end: its caller is gone, or has opened a newer stream.
    fn told_to_end(&self) -> Ended {
        let AgentIdentity { node, pod, .. } = &self.agent;
        match self.streams.live.check(node, pod.as_ref()) {
            Ok(()) => refused(&ReportRefusal::Replaced),
            Err(why) => Ended::because(StreamEnd::CallerGone, why),
        }
    }

    /// Handles one message, and then counts it.
    async fn take(&mut self, message: WireMessage) -> Result<(), Ended> {
        let taken = self.take_over(message).await;
        self.streams.counts.message();
        taken
    }

    async fn take_over(&mut self, message: WireMessage) -> Result<(), Ended> {
        let streams = Arc::clone(&self.streams);
        let before = self.over;
        streams.admit(&self.agent.node.0, AgentAct::Message, &mut self.over).await?;
        if self.over == before {
            self.over = 0;
        }
        if self.signals.ends.is_cancelled() || self.term.is_cancelled() || Instant::now() >= self.agent.until {
            // The message is too late; `run` ends the stream.
            return Ok(());
        }
        let message = convert::agent_message(message);
        let message = message.map_err(|why| Ended::because(StreamEnd::BadMessage, why))?;
        let (node, now) = (&self.agent.node.0, clock::monotonic());
        let taken = match message {
            AgentMessage::Full(report) if report.node == *node => streams.take_report(self.id, report, now),
            AgentMessage::Full(_) => {
                return Err(Ended::because(StreamEnd::OtherNode, "the report is of another node than the token"));
            }
            AgentMessage::Change(change) => streams.cluster.agent_changes(node, self.id, change, now),
            AgentMessage::Beat => streams.cluster.agent_beats(node, self.id, now),
        };
        taken.map_err(|why| refused(&why))
    }

    /// Sends the leader's view of the node if the view has changed, or if the last message is older than `fresh`.
    /// Returns when to check again.
    async fn answer(
        &mut self,
        messages: &mut MessageStream<impl Connection>,
        fresh: Duration,
    ) -> Result<Instant, Ended> {
        let view = self.streams.cluster.leader_view(&self.agent.node.0);
        let next = |sent: Instant| {
            // A leaving agent waits for the node's pods, and only these messages tell it which pods are left.
            if view.leaving { Instant::now() + REPORT_LEAST } else { sent + REPORT_MOST }
        };
        if let Some((sent, at)) = &self.sent
            && *sent == view
            && at.elapsed() < fresh
        {
            return Ok(next(*at));
        }
        match timeout(READ_WITHIN, messages.send(&convert::from_leader(&view))).await {
            Ok(Ok(())) => {
                let now = Instant::now();
                let next = next(now);
                self.sent = Some((view, now));
                Ok(next)
            }
            Ok(Err(why)) => Err(Ended::from(MessageError::from(why))),
            Err(_) => Err(Ended::because(StreamEnd::Slow, "the agent does not read its answers")),
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
        let cluster = LockedCluster::new(ClusterRules::default(), RequestRules::default(), lease);
        let leadership = Leadership::new(Elector::new("a".into(), ElectionTimes::default()));
        let node = NodeName::parse("n1").unwrap();
        let taken = take_report(&cluster, &leadership, (StreamId(1), AgentReport::of(node.clone())), Monotonic(1));
        assert_eq!(taken, Ok(()), "its stream ends with the others");
        assert!(cluster.inspect(|cluster| cluster.agent_report(&node).is_none()));
    }
}
