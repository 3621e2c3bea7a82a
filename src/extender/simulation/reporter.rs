//! The streams of one simulated agent: how it finds the leader, what it sends, and how its connections break.
//!
//! ```text
//!   Machine ──report──▶ ReportPace ──▶ on the way ──▶ the extender's own AgentStreams
//!      ▲ leaves, once it may ◀── LeaderView ◀────────────────┘
//!   LeaderSearch ──▶ some extender: serves, or names the leader
//! ```
//!
//! The product's own code decides what is sent and when, and which extender the agent asks next. Only the connection is
//! simulated: its messages are late, or are lost with the connection; its end reaches the extender later, or only after a
//! timeout.

use super::api_server::ApiServers;
use super::etcd::Kind;
use super::machine::Machine;
use super::process::{AgentEnd, Process};
use super::random::Random;
use super::stream_checks::StreamChecks;
use super::weather::{MS, SECOND, Weather};
use decide::leader_search::{LeaderSearch, SearchEnd};
use decide::report_pace::ReportPace;
use model::agent_stream::{AgentMessage, LeaderView, PodStage};
use model::id::{NodeName, ObjectUid, PodUid};
use model::time::Monotonic;
use proto::stream::LeaderMessage;
use std::collections::{BTreeSet, VecDeque};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use stream::convert;

/// The address that an agent asks first.
const SERVICE: &str = "service";
/// Time limit for connecting.
const CONNECTS_WITHIN: u64 = 15 * SECOND;
/// The extender gives up a connection after this silence of the network.
const GIVEN_UP: u64 = 35 * SECOND;
/// The agent connects again after this silence of the leader.
const SILENCE: u64 = 22 * SECOND;
/// An agent opens a stream with a newer token this long before its token expires.
const RENEWS: u64 = 10 * SECOND;
/// How long an agent that leaves stays for pods that are bound.
const STAYS: u64 = 20 * SECOND;

/// What an agent meets.
pub(super) struct Surroundings<'a> {
    pub(super) now: u64,
    pub(super) calm: bool,
    pub(super) api: &'a mut ApiServers,
    /// The extenders that run, and whether packets come through to each.
    pub(super) extenders: Vec<(&'a Process, bool)>,
    pub(super) weather: &'a Weather,
    pub(super) random: &'a mut Random,
    pub(super) checks: &'a mut StreamChecks,
}

/// A message on its way.
struct Underway {
    due: u64,
    message: AgentMessage,
    /// The pods that have processes when the message is sent.
    running: BTreeSet<PodUid>,
}

/// A stream to an extender.
struct Connection {
    process: u64,
    node_uid: String,
    messages: AgentEnd,
    underway: VecDeque<Underway>,
    pace: ReportPace,
    /// The stream's number in the checks, once its first message has arrived.
    number: Option<u64>,
    /// The pods that had processes when the newest message that has arrived was sent.
    running: BTreeSet<PodUid>,
    view: Option<LeaderView>,
    heard: u64,
    /// When packets last came through.
    through: u64,
    /// When the stream's token expires, and whether the agent opens a stream with a newer token before.
    expires: u64,
    renews: bool,
    /// When the extender sees the end of the stream, once it has ended here.
    ends: u64,
    /// No packet comes through any more, and neither end notices.
    dead: bool,
}

/// A connection that is being opened.
#[derive(Clone, Copy, Debug)]
struct Connecting {
    process: u64,
    due: u64,
}

/// The streams of one agent.
pub(super) struct Reporter {
    /// The process of the agent whose streams these are.
    agent: Option<u64>,
    search: LeaderSearch,
    /// When the agent's last stream that worked has ended.
    worked: u64,
    /// The agent looks for the leader at this moment at the earliest.
    not_before: u64,
    connecting: Option<Connecting>,
    /// The open streams. A newer stream replaces the previous stream once it is answered.
    streams: Vec<Connection>,
    /// Streams that have ended here, and not yet at the extender.
    ending: Vec<Connection>,
    /// When the agent was asked to end, and whether no extender could be asked then.
    leaves: Option<(u64, bool)>,
    /// Until this moment the agent stands still.
    silent: u64,
    /// When the agent looks next whether something has changed.
    look: u64,
}

impl<'a> Surroundings<'a> {
    /// The process of this number, and whether packets come through to it.
    fn extender(&self, number: u64) -> Option<(&'a Process, bool)> {
        self.extenders.iter().find(|(process, _)| process.number == number).copied()
    }

    fn way(&mut self) -> u64 {
        self.weather.way(self.random)
    }
}

impl Default for Reporter {
    fn default() -> Reporter {
        Reporter {
            agent: None,
            search: LeaderSearch::new(SERVICE.into()),
            worked: 0,
            not_before: 0,
            connecting: None,
            streams: Vec::new(),
            ending: Vec::new(),
            leaves: None,
            silent: 0,
            look: 0,
        }
    }
}

impl Reporter {
    /// Does what is due.
    pub(super) fn step(&mut self, machine: &mut Machine, around: &mut Surroundings<'_>) {
        if machine.agent_number() != self.agent {
            self.agent_is_another(machine, around);
        }
        self.deliver(&machine.name, around);
        if self.agent.is_none() || around.now < self.silent {
            return;
        }
        self.hear(&machine.name, around);
        if self
            .streams
            .last()
            .is_some_and(|stream| (stream.renews || around.calm) && around.now + RENEWS > stream.expires)
        {
            self.renews(around.now);
        }
        self.connect(&machine.name, around);
        self.send(machine, around);
        self.leave(machine, around);
    }

    /// The agent is asked to end.
    pub(super) fn leaves(&mut self, now: u64) {
        if self.leaves.is_none() {
            (self.leaves, self.look) = (Some((now, self.streams.is_empty())), now);
        }
    }

    /// The agent stands still until this moment.
    pub(super) fn is_silent(&mut self, until: u64) {
        self.silent = until;
    }

    /// The agent opens a stream with a newer token.
    pub(super) fn renews(&mut self, now: u64) {
        if let ([open], None) = (&self.streams[..], self.connecting) {
            self.connecting = Some(Connecting { process: open.process, due: now });
        }
    }

    /// The connection breaks. Messages on the way are lost, or arrive before the stream ends. The next connection may fail
    /// for a while, although the agent runs and the kubelet admits pods.
    pub(super) fn breaks(&mut self, around: &mut Surroundings<'_>) {
        if let Some(stream) = self.streams.pop() {
            self.ends(stream, around);
            self.over(SearchEnd::Broken, around);
            if around.random.chance(500) {
                self.not_before = around.now + around.random.between(SECOND, 12 * SECOND);
            }
        }
    }

    /// The agent's connections to this process die silently.
    pub(super) fn dies(&mut self, process: u64) {
        for stream in self.streams.iter_mut().chain(&mut self.ending).filter(|stream| stream.process == process) {
            stream.dead = true;
        }
    }

    /// Whether the agent's stream to this process is open and answered, or was a moment ago: a token may just have expired.
    pub(super) fn reports_to(&self, process: u64, now: u64) -> bool {
        let open = self.streams.iter().any(|stream| stream.process == process && stream.view.is_some());
        open || now < self.worked + 2 * SECOND
    }

    /// The process of the agent has ended, and another process may run.
    fn agent_is_another(&mut self, machine: &Machine, around: &mut Surroundings<'_>) {
        for mut stream in std::mem::take(&mut self.streams) {
            if machine.up {
                self.ends(stream, around);
            } else {
                // Nothing tells the extender that the machine has lost its power.
                stream.underway.clear();
                stream.ends = around.now + GIVEN_UP;
                self.ending.push(stream);
            }
        }
        let not_before = around.now + around.way();
        let ending = std::mem::take(&mut self.ending);
        *self = Reporter { agent: machine.agent_number(), ending, not_before, ..Reporter::default() };
    }

    /// A stream ends at the side of the agent.
    fn ends(&mut self, mut stream: Connection, around: &mut Surroundings<'_>) {
        if around.random.chance(500) {
            stream.underway.clear();
        }
        let last = stream.underway.back().map_or(0, |last| last.due);
        stream.ends = last.max(around.now + around.way());
        self.ending.push(stream);
    }

    /// The agent has no stream any more, and looks for the leader after a pause.
    fn over(&mut self, end: SearchEnd, around: &mut Surroundings<'_>) {
        if self.streams.is_empty() {
            self.worked = if end == SearchEnd::Broken { around.now } else { self.worked };
            let chance = u32::try_from(around.random.below(1000)).unwrap_or(0);
            let pause = self.search.ended(end, chance);
            self.not_before = around.now + u64::try_from(pause.as_nanos()).unwrap_or(u64::MAX);
        }
    }

    /// What is due arrives.
    fn deliver(&mut self, node: &str, around: &mut Surroundings<'_>) {
        for at in (0..self.streams.len()).rev() {
            let stream = &mut self.streams[at];
            stream.arrive(node, around);
            let given_up = around.now - stream.through > GIVEN_UP;
            if given_up || !stream.underway.is_empty() && around.random.chance(around.weather.broken_watch / 8) {
                let stream = self.streams.remove(at);
                self.ends(stream, around);
                self.over(SearchEnd::Broken, around);
            }
        }
        let mut still = Vec::new();
        for mut stream in std::mem::take(&mut self.ending) {
            stream.arrive(node, around);
            let given_up = around.now - stream.through > GIVEN_UP;
            if given_up || stream.underway.is_empty() && stream.ends <= around.now && stream.through == around.now {
                stream.closed(node, around.checks);
            } else {
                still.push(stream);
            }
        }
        self.ending = still;
    }

    /// Takes in what the extenders have said.
    fn hear(&mut self, node: &str, around: &mut Surroundings<'_>) {
        for at in (0..self.streams.len()).rev() {
            match self.streams[at].hear(node, around) {
                Ok(answered) if answered && at > 0 => {
                    // It replaces the previous stream.
                    let before = self.streams.remove(at - 1);
                    self.ends(before, around);
                    return;
                }
                Ok(_) => {}
                Err(end) => {
                    let stream = self.streams.remove(at);
                    if around.now - stream.heard > SILENCE {
                        self.ends(stream, around);
                    }
                    self.over(end, around);
                }
            }
        }
    }

    fn connect(&mut self, node: &str, around: &mut Surroundings<'_>) {
        if self.connecting.is_none() && self.streams.is_empty() && around.now >= self.not_before {
            let named = self.search.address().strip_prefix("extender-").and_then(|number| number.parse().ok());
            let any = around.extenders.get(around.random.place(around.extenders.len()));
            let process = named.or_else(|| any.map(|(process, _)| process.number)).unwrap_or(0);
            self.connecting = Some(Connecting { process, due: around.now + around.way() });
        }
        let Some(connecting) = self.connecting.filter(|connecting| around.now >= connecting.due) else { return };
        let opened = match around.extender(connecting.process) {
            Some((_, false)) if around.now < connecting.due + CONNECTS_WITHIN => return,
            Some((process, true)) => Connection::open(process, node, around),
            _ => None,
        };
        self.connecting = None;
        match opened {
            Some(stream) => {
                self.streams.push(stream);
                self.look = around.now;
            }
            None => self.over(SearchEnd::Failed, around),
        }
    }

    /// Sends what has changed, over the newest stream.
    fn send(&mut self, machine: &mut Machine, around: &mut Surroundings<'_>) {
        if around.now < self.look {
            return;
        }
        self.look = around.now + around.random.between(100 * MS, 800 * MS);
        let Some(stream) = self.streams.last_mut() else { return };
        let Some(report) = machine.agent_report(self.leaves.is_some(), around.now) else { return };
        if let Some(message) = stream.pace.due(Monotonic(around.now), &report) {
            // Also the processes that the agent cannot see: the extender must not treat them as gone.
            let running = machine.running(around.now).into_keys();
            let last = stream.underway.back().map_or(0, |last| last.due);
            let due = last.max(around.now + around.weather.way(around.random));
            stream.underway.push_back(Underway { due, message, running: running.collect() });
        }
    }

    /// Ends the agent once it may leave.
    fn leave(&mut self, machine: &mut Machine, around: &mut Surroundings<'_>) {
        let Some((asked, alone)) = self.leaves else { return };
        let view = self.streams.last().and_then(|stream| stream.view.as_ref());
        let may = match view.filter(|view| view.leaving) {
            Some(view) => {
                let stages = machine.stages();
                view.awaited.iter().all(|uid| stages.get(uid) >= Some(&PodStage::Allocated))
            }
            None => alone,
        };
        if may || around.now - asked > STAYS {
            let away = around.random.one_of(&[0, SECOND, 5 * SECOND, 20 * SECOND]);
            machine.agent_ends(around.now + if around.calm { 0 } else { away });
        }
    }
}

/// The result of a future that should be ready at once; `None` if it is not.
fn at_once<T>(work: impl Future<Output = T>) -> Option<T> {
    match pin!(work).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(result) => Some(result),
        Poll::Pending => None,
    }
}

impl Connection {
    fn open(process: &Process, node: &str, around: &mut Surroundings<'_>) -> Option<Connection> {
        // A token is for the present Node of this name, and expires.
        let uid = around.api.etcd.get(Kind::Nodes, node)?.node().uid.clone();
        let token = around.random.between(20, 320);
        let of = (NodeName::parse(node).ok()?, ObjectUid::parse(&uid).ok()?);
        let messages = process.stream(of, Duration::from_secs(token));
        around.api.etcd.note(|| format!("the agent of {node} opens a stream to extender-{}", process.number));
        Some(Connection {
            process: process.number,
            node_uid: uid,
            messages,
            underway: VecDeque::new(),
            pace: ReportPace::default(),
            number: None,
            running: BTreeSet::new(),
            view: None,
            heard: around.now,
            through: around.now,
            expires: around.now + token * SECOND,
            renews: around.random.chance(700),
            ends: 0,
            dead: false,
        })
    }

    /// The messages that are due arrive, if packets come through.
    fn arrive(&mut self, node: &str, around: &mut Surroundings<'_>) {
        let process = match around.extender(self.process) {
            Some((process, true)) if !self.dead => process,
            Some(_) => return,
            None => {
                (self.through, self.ends) = (around.now, 0);
                return self.underway.clear();
            }
        };
        self.through = around.now;
        while self.underway.front().is_some_and(|next| next.due <= around.now) {
            let Some(next) = self.underway.pop_front() else { return };
            let number = *self.number.get_or_insert_with(|| around.checks.opens(self.process, node, &self.node_uid));
            if self.view.is_some() {
                around.checks.reaches(process, node, number, &next.running);
            }
            self.running = next.running;
            around.checks.refuses(self.process, node, &next.message);
            around.api.etcd.note(|| format!("extender-{} gets of {node}: {:?}", self.process, next.message));
            // Where the extender has ended the stream, its last message says so.
            let _ = at_once(self.messages.send(&convert::from_agent(&next.message)));
        }
    }

    /// The end arrives at the extender.
    fn closed(self, node: &str, checks: &mut StreamChecks) {
        if let (Some(number), Some(_)) = (self.number, self.view) {
            checks.closes(self.process, node, number);
        }
    }

    /// Takes in the answers. Returns whether there was an answer, or how the stream has ended.
    fn hear(&mut self, node: &str, around: &mut Surroundings<'_>) -> Result<bool, SearchEnd> {
        let mut answered = false;
        while !self.dead && around.extender(self.process).is_none_or(|(_, through)| through) {
            let answer = match at_once(self.messages.next::<LeaderMessage>()) {
                Some(Ok(Some(answer))) if answer.end.is_none() || !answer.leader.is_empty() => answer,
                Some(_) => return Err(self.broken()),
                None => break,
            };
            (self.heard, answered) = (around.now, true);
            let view = convert::leader_view(answer).map_err(|_| SearchEnd::Failed)?;
            if let Some(leader) = &view.leader {
                return Err(SearchEnd::Named(Arc::clone(leader)));
            }
            self.is_answered(view, node, around);
        }
        if around.now - self.heard > SILENCE { Err(self.broken()) } else { Ok(answered) }
    }

    /// The extender serves the stream, and says this.
    fn is_answered(&mut self, view: LeaderView, node: &str, around: &mut Surroundings<'_>) {
        if let (Some(number), Some((process, _))) = (self.number, around.extender(self.process)) {
            if self.view.is_none() {
                around.checks.reaches(process, node, number, &self.running);
            }
            if view.leaving {
                around.checks.awaits(self.process, node, number, &view.awaited);
            }
        }
        self.view = Some(view);
    }

    fn broken(&self) -> SearchEnd {
        if self.view.is_some() { SearchEnd::Broken } else { SearchEnd::Failed }
    }
}
