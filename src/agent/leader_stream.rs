//! The agent's stream to the leading extender: reports the node, and receives the leader's view of the node.
//!
//! ```text
//!   node view, stages of pods ──report──▶ ReportPace ──▶ stream ──▶ leader
//!   departure ◀── may the agent leave? ◀── LeaderView ◀──────────────┘
//!   the Service ──▶ an extender: serves, or names the leader ──▶ the leader;  afterwards the Service again
//! ```
//!
//! The agent reads the token file for each stream. When the file has a newer token, a stream with that token replaces
//! the open stream.
//!
//! What must never happen here: an agent that does not share the GPUs yet opens a stream; thousands of agents retry
//! immediately after a failure at the same time; a stream ends because its token has expired, although a newer token
//! exists.

use super::departure::{DepartureSeen, LeaveState};
use super::readiness::Progress;
use super::settings::ReportSettings;
use decide::agent_report::{SharingStages, report};
use decide::leader_search::{LeaderSearch, SearchEnd};
use decide::report_pace::ReportPace;
use decide::token_pace;
use model::agent_stream::{LeaderView, PodStage, REPORT_MOST};
use model::id::PodUid;
use model::view::NodeView;
use proto::stream::LeaderMessage;
use std::hash::{BuildHasher, RandomState};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use stream::leader_connection::{self, AlpnProtocol};
use stream::opening::{self, AgentStream};
use stream::{MessageError, SERVER_NAME, convert};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tokio_util::sync::CancellationToken;
use wire::token;

/// How long the agent expects to look for the next leader after a stream to a leader has ended. A leader change takes
/// half a minute in a cluster of 5,000 nodes.
const BETWEEN: Duration = Duration::from_secs(60);
/// Time limit for connecting and for receiving the start of an extender's answer.
const BEGINS_WITHIN: Duration = Duration::from_secs(15);
/// The agent reconnects if the leader sends nothing for this long. By then two of the leader's messages are missing,
/// for example because its node has lost power.
const SILENCE: Duration = Duration::from_secs(22);
/// Time limit for reading the leader's last message from a stream after a send on the stream has failed.
const LAST_WORD: Duration = Duration::from_secs(1);
/// Maximum size of a file in bytes: a token has 1 to 2 KiB, and three certificates have 3 KiB.
const MAX_FILE: u64 = 64 << 10;

/// The stream of one agent.
#[derive(Debug)]
pub(super) struct LeaderStream {
    pub(super) settings: ReportSettings,
    pub(super) view: watch::Receiver<Arc<NodeView>>,
    pub(super) stages: watch::Receiver<SharingStages>,
    pub(super) progress: watch::Receiver<Progress>,
    pub(super) departure: DepartureSeen,
}

/// How a stream has ended.
enum StreamEnd {
    /// The extender named the leader.
    Named(Arc<str>),
    /// The stream worked, and then broke.
    Broken(String),
    /// The stream never worked.
    Failed(String),
}

/// The agent is stopping, so a channel that feeds the report has closed.
struct AgentEnds;

impl LeaderStream {
    /// Reports until `stop` is cancelled.
    pub(super) async fn run(mut self, stop: CancellationToken) {
        tokio::select! {
            () = stop.cancelled() => {}
            _ = self.report_for_ever() => {}
        }
    }

    async fn report_for_ever(&mut self) -> AgentEnds {
        // Until this agent shares the GPUs, the previous agent may still share them and report the node.
        if self.progress.wait_for(|progress| *progress == Progress::Shares).await.is_err() {
            return AgentEnds;
        }
        let (mut search, mut reported) = (LeaderSearch::new(self.settings.address.as_str().into()), true);
        // The last time when a leader was known.
        let mut led = None::<Instant>;
        loop {
            let address = Arc::clone(search.address());
            let end = self.once(&address).await;
            if let Ok(StreamEnd::Broken(_) | StreamEnd::Named(_)) = end {
                led = Some(Instant::now());
            }
            let between = led.is_some_and(|at| at.elapsed() < BETWEEN);
            self.departure.state.send_replace(if between { LeaveState::Between } else { LeaveState::NoStream });
            let end = match end {
                Err(ends) => return ends,
                Ok(StreamEnd::Named(leader)) => {
                    tracing::debug!(address = &*address, leader = &*leader, "{address} says that {leader} leads");
                    SearchEnd::Named(leader)
                }
                Ok(StreamEnd::Broken(why)) => {
                    tracing::info!(
                        address = &*address,
                        why,
                        "the stream to the extender at {address} has ended: {why}"
                    );
                    reported = true;
                    SearchEnd::Broken
                }
                Ok(StreamEnd::Failed(why)) => {
                    if std::mem::replace(&mut reported, false) {
                        let advice =
                            "the extender knows this node only from the API server; retrying with growing pauses";
                        tracing::warn!(
                            address = &*address,
                            why,
                            "cannot report to the extender at {address}: {why}; {advice}"
                        );
                    } else {
                        tracing::debug!(address = &*address, why, "cannot report to the extender at {address}: {why}");
                    }
                    SearchEnd::Failed
                }
            };
            sleep(search.ended(end, chance())).await;
        }
    }

    /// One stream, from its start to its end.
    async fn once(&mut self, address: &Arc<str>) -> Result<StreamEnd, AgentEnds> {
        let opened = match OwnToken::read(&self.settings.token_file).await {
            Ok(token) => open(&self.settings, address, token).await,
            Err(why) => Err(why),
        };
        let mut stream = match opened {
            Ok(opened) => opened,
            Err(why) => return Ok(StreamEnd::Failed(why)),
        };
        let (mut pace, mut view, mut heard) = (ReportPace::default(), None::<LeaderView>, Instant::now());
        let mut looks = stream.token.next_look();
        // The previous stream and its report state. They are kept until the new stream has received its first message.
        let mut replaced = None;
        'stream: loop {
            let end = 'turn: {
                let waits = match self.send(&mut pace, &mut stream.messages).await? {
                    Ok(waits) => waits,
                    Err(why) => break 'turn self.last_word(why, &mut stream.messages, view.is_none(), address).await,
                };
                if let Some(view) = &view {
                    self.judge(view);
                }
                tokio::select! {
                    // Read a message that has already arrived before the timer for silence can end the stream.
                    biased;
                    answer = stream.messages.next() => {
                        heard = Instant::now();
                        match self.hear(answer, view.is_none(), address) {
                            Ok(said) => (view, replaced) = (Some(said), None),
                            Err(end) => break 'turn end,
                        }
                    }
                    () = sleep_until(heard + SILENCE) => {
                        break 'turn ended(view.is_some(), format!("no message within {} s", SILENCE.as_secs()));
                    }
                    changed = self.view.changed() => changed.map_err(|_| AgentEnds)?,
                    changed = self.stages.changed() => changed.map_err(|_| AgentEnds)?,
                    changed = self.departure.leaving.changed() => changed.map_err(|_| AgentEnds)?,
                    () = sleep_until(waits) => {}
                    () = sleep_until(looks) => {
                        if let Some(newer) = self.renewed(&stream.token, address).await {
                            // The new stream starts with a full report.
                            replaced = Some((std::mem::replace(&mut stream, newer), std::mem::take(&mut pace)));
                        }
                        looks = stream.token.next_look();
                    }
                }
                continue 'stream;
            };
            // If the new stream was refused, or has reached an extender that does not lead, continue with the previous
            // stream.
            let Some(before) = replaced.take() else { return Ok(end) };
            tracing::debug!(%address, "the new stream was refused; the previous stream continues");
            ((stream, pace), heard) = (before, Instant::now());
            looks = stream.token.next_look();
        }
    }

    /// Opens a stream with a newer token, if the token file has one. The old stream stays open until the new stream
    /// works, so the extender always has a stream from this node.
    async fn renewed(&self, token: &OwnToken, address: &Arc<str>) -> Option<Opened> {
        let newer = OwnToken::read(&self.settings.token_file).await;
        let newer = newer.ok().filter(|newer| newer.text != token.text)?;
        match open(&self.settings, address, newer).await {
            Ok(opened) => {
                tracing::debug!(%address, "the stream to the extender at {address} continues with a newer token");
                Some(opened)
            }
            Err(why) => {
                tracing::info!(%address, why, "cannot renew the stream to the extender at {address}: {why}; retrying");
                None
            }
        }
    }

    /// Processes a message of the extender.
    fn hear(
        &self,
        answer: Result<Option<LeaderMessage>, MessageError>,
        first: bool,
        address: &Arc<str>,
    ) -> Result<LeaderView, StreamEnd> {
        let said = match answer {
            Ok(Some(LeaderMessage { end: Some(end), leader, .. })) if leader.is_empty() => Err(end.text),
            Ok(Some(said)) => convert::leader_view(said).map_err(|why| why.to_string()),
            Ok(None) => Err("the extender has ended the stream".to_owned()),
            Err(why) => Err(why.to_string()),
        };
        let said = said.map_err(|why| ended(!first, why))?;
        if let Some(leader) = said.leader {
            return Err(StreamEnd::Named(leader));
        }
        if first {
            tracing::info!(%address, epoch = said.epoch, "reports to the extender at {address}");
            self.departure.state.send_replace(LeaveState::Waits(None));
        }
        Ok(said)
    }

    /// Finds out why the stream has ended, after a send on it has failed: the leader's last message may give the
    /// reason.
    async fn last_word(&self, why: String, messages: &mut AgentStream, first: bool, address: &Arc<str>) -> StreamEnd {
        let last = async {
            loop {
                if let Err(end) = self.hear(messages.next().await, first, address) {
                    return end;
                }
            }
        };
        timeout(LAST_WORD, last).await.unwrap_or_else(|_| ended(!first, why))
    }

    /// Sends a report if one is due. Returns the time by which to check again.
    async fn send(
        &mut self,
        pace: &mut ReportPace,
        messages: &mut AgentStream,
    ) -> Result<Result<Instant, String>, AgentEnds> {
        let leaving = *self.departure.leaving.borrow_and_update();
        let now = clock::monotonic();
        let (due, next) = {
            let (view, stages) = (self.view.borrow_and_update(), self.stages.borrow_and_update());
            let mut report = report(&view, &stages, leaving);
            report.check = self.settings.check;
            (pace.due(now, &report), pace.next_at(&report))
        };
        if let Some(message) = due {
            match timeout(BEGINS_WITHIN, messages.send(&convert::from_agent(&message))).await {
                Ok(Ok(())) => {}
                Ok(Err(why)) => return Ok(Err(why.to_string())),
                Err(_) => return Ok(Err("the extender does not read the stream".to_owned())),
            }
        }
        Ok(Ok(Instant::now() + next.unwrap_or(now).since(now).clamp(Duration::from_millis(10), REPORT_MOST)))
    }

    /// Decides from the leader's last message and the newest pod stages whether the agent may leave.
    fn judge(&self, view: &LeaderView) {
        let state = if view.leaving {
            let stages = self.stages.borrow();
            let has_to_ask = |uid: &&PodUid| stages.pods.get(*uid) < Some(&PodStage::Allocated);
            match view.awaited.iter().filter(has_to_ask).count() {
                0 => LeaveState::MayLeave,
                pods => LeaveState::Waits(Some(pods)),
            }
        } else {
            LeaveState::Waits(None)
        };
        self.departure.state.send_if_modified(|before| std::mem::replace(before, state) != state);
    }
}

/// How a stream ended, and why: `Broken` if it had worked, `Failed` if it never worked.
fn ended(worked: bool, why: String) -> StreamEnd {
    if worked { StreamEnd::Broken(why) } else { StreamEnd::Failed(why) }
}

/// This agent's token, as it is in its file now.
struct OwnToken {
    text: String,
    /// When the token expires, in Unix seconds; `None` if the token does not say.
    expires: Option<u64>,
}

impl OwnToken {
    async fn read(path: &Path) -> Result<OwnToken, String> {
        let text = read(path).await?.trim().to_owned();
        let expires = token::decode(&text).ok().map(|token| token.claims.expires);
        Ok(OwnToken { text, expires })
    }

    /// When to check whether there is a newer token.
    fn next_look(&self) -> Instant {
        let now = clock::now().wall.0 / 1_000_000;
        let left = self.expires.map(|expires| Duration::from_secs(expires.saturating_sub(now)));
        Instant::now() + token_pace::pause(left)
    }
}

/// An open stream.
struct Opened {
    messages: AgentStream,
    /// The token with which the stream was opened.
    token: OwnToken,
}

/// Opens a stream to the extender at this address.
async fn open(settings: &ReportSettings, address: &str, token: OwnToken) -> Result<Opened, String> {
    let opened = timeout(BEGINS_WITHIN, begin(settings, address, &token)).await;
    let messages = opened.unwrap_or_else(|_| Err(format!("no answer within {} s", BEGINS_WITHIN.as_secs())))?;
    Ok(Opened { messages, token })
}

async fn begin(settings: &ReportSettings, address: &str, token: &OwnToken) -> Result<AgentStream, String> {
    let trusted = read(&settings.ca_file).await?;
    let connection = leader_connection::connect(address, trusted.as_bytes(), AlpnProtocol::Http1).await;
    let opened = opening::open(connection.map_err(|why| why.to_string())?, SERVER_NAME, &token.text).await;
    opened.map_err(|why| why.to_string())
}

async fn read(path: &Path) -> Result<String, String> {
    let named = |why: &dyn std::fmt::Display| format!("{}: {why}", path.display());
    let length = tokio::fs::metadata(path).await.map_err(|why| named(&why))?.len();
    if length > MAX_FILE {
        return Err(named(&"is too large"));
    }
    tokio::fs::read_to_string(path).await.map_err(|why| named(&why))
}

/// A random number from 0 to 999.
fn chance() -> u32 {
    u32::try_from(RandomState::new().hash_one(Instant::now()) % 1000).unwrap_or(0)
}
