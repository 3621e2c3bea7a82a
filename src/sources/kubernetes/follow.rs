//! Lists and watches the pods of this node, and keeps the store equal to the API server's state while the agent runs.
//!
//! ```text
//!   list ──version──▶ watch ──event──▶ store, newest version ──▶ reports the pods, at most once in 20 ms
//!    ▲                 │ ▲
//!    │                 ├─┘  ends or fails: the next watch starts at the newest version
//!    └─────────────────┘    version too old (410) or unusable answer: new list
//! ```
//!
//! The newest version is that of the last event, or that of the list if there was no event. After a failure the agent
//! waits before it asks again. A new list follows an answer 400, 404, 410, 422 or 504, and an answer that is too large
//! or cannot be read.

use super::connect::ApiConnection;
use super::pods_client::{Age, Answer, PodsClient, SILENCE, Unanswered};
use super::store::Store;
use crate::clock;
use crate::report::Reporter;
use crate::source_failures::{FailureSeverity, SourceFailures};
use model::observation::{ErrorCounter, Observation};
use model::pod::PodWatchState;
use std::hash::{BuildHasher, RandomState};
use std::time::Duration;
use tokio::time::{Instant, sleep, sleep_until, timeout_at};
use wire::watch::{UnreadablePod, WatchEvent, WatchLines};

/// A watch lasts between this time and twice as long. So the agents of a cluster do not reconnect all at once, and the
/// agent notices a connection that has died silently.
const LASTS: Duration = Duration::from_secs(150);
/// Changes within this time go into one report: fifty pods that start at once are one list.
const TOGETHER: Duration = Duration::from_millis(20);
/// A watch counts as working once it has lasted this long or has sent an event.
const WORKS: Duration = Duration::from_secs(2);
/// Most pages of one list.
const MAX_PAGES: usize = 100;
/// After so many lists in a row for which the server's cache was too old, the agent asks etcd. If etcd was restored to
/// an older state, the cache may never reach the version that the agent saw before.
const BEHIND: u32 = 3;

/// Follows the pods of one node.
pub(super) struct Follower {
    asker: PodsClient,
    store: Store,
    /// The version from which the next watch continues; `None` when a list is due.
    version: Option<String>,
    /// The newest version from a list or a watch. No list may be older, or running pods would vanish.
    seen: Option<String>,
    /// Lists in a row for which the server's cache was too old.
    behind: u32,
    /// The server has answered 410 Gone since a watch last worked. The first 410 only causes a new list; another one
    /// before a watch works is a failure.
    forgot: bool,
    watch: PodWatchState,
    failures: SourceFailures,
    reporter: Reporter,
    untold: Untold,
}

/// Changes that have not been reported yet.
#[derive(Default)]
struct Untold {
    pods: bool,
    since: Option<Instant>,
}

impl Follower {
    pub(super) fn of(asker: PodsClient, reporter: Reporter, failures: SourceFailures) -> Follower {
        Follower {
            asker,
            store: Store::default(),
            version: None,
            seen: None,
            behind: 0,
            forgot: false,
            watch: PodWatchState::default(),
            failures,
            reporter,
            untold: Untold::default(),
        }
    }

    /// Lists and watches for ever.
    pub(super) async fn run(mut self) {
        let ApiConnection { server, from, .. } = self.asker.connection().clone();
        tracing::info!(server = &*server, credentials = &*from, "following this node's pods at the API server");
        self.tell();
        loop {
            if let Err(why) = self.once().await {
                let forgot = why.gone() && !std::mem::replace(&mut self.forgot, why.gone());
                if why.outdated() {
                    self.seen = self.version.take().or(self.seen.take());
                }
                if forgot {
                    tracing::debug!(%why, "the list is read again");
                } else {
                    self.pause(&why).await;
                }
            }
        }
    }

    /// Logs and counts a failure, and waits.
    async fn pause(&mut self, why: &Unanswered) {
        let (trouble, pause) = self.failures.failed(FailureSeverity::Broken, why);
        trouble.inspect(|trouble| self.reporter.trouble(*trouble));
        self.watch.broken = Some(why.to_string().into());
        self.tell();
        sleep(spread(pause).max(why.wait())).await;
    }

    /// Does one list, if it is due, and one watch.
    async fn once(&mut self) -> Result<(), Unanswered> {
        let version = match self.version.take() {
            Some(version) => version,
            None => self.list().await?,
        };
        self.version = Some(version.clone());
        let lasts = spread(2 * LASTS);
        let begun = Instant::now();
        let seconds = u32::try_from(lasts.as_secs()).unwrap_or(u32::MAX);
        let mut answer = self.asker.watch(&version, seconds).await?;
        self.heard();
        self.listen(&mut answer, begun, begun + lasts + SILENCE).await
    }

    async fn list(&mut self) -> Result<String, Unanswered> {
        let age = match &self.seen {
            None => Age::Any,
            Some(seen) if self.behind < BEHIND => Age::NotOlderThan(seen.clone()),
            Some(_) => Age::Newest,
        };
        let first = self.asker.list(&age).await;
        self.behind = if first.as_ref().is_err_and(Unanswered::behind) { self.behind + 1 } else { 0 };
        let mut first = first?;
        let mut next = first.next.take();
        for _ in 1..MAX_PAGES {
            let Some(token) = next else { break };
            let page = self.asker.list(&Age::Continued(token)).await?;
            first.pods.extend(page.pods);
            next = page.next;
        }
        for bad in self.store.listed(first.pods) {
            self.unreadable(&bad);
        }
        self.heard();
        self.untold.pods = true;
        self.tell();
        self.seen = Some(first.version.clone());
        Ok(first.version)
    }

    /// Handles the events of a watch until it ends.
    async fn listen(&mut self, answer: &mut Answer, begun: Instant, end: Instant) -> Result<(), Unanswered> {
        let mut stream = WatchLines::new(self.asker.label_keys());
        let mut works = false;
        loop {
            let tell_at = self.untold.since.map_or(end, |since| since + TOGETHER);
            tokio::select! {
                biased;
                () = sleep_until(tell_at), if self.untold.since.is_some() => self.tell(),
                () = sleep_until(begun + WORKS), if !works => {
                    works = true;
                    self.works();
                }
                piece = timeout_at(end, answer.piece()) => match piece {
                    Ok(Ok(Some(piece))) => {
                        for line in stream.feed(piece.as_ref()).map_err(|why| answer.garbage(why))? {
                            if let WatchEvent::Error(refusal) = line.event {
                                return Err(answer.refused(refusal));
                            }
                            self.version = line.version.or_else(|| self.version.take());
                            self.happened(line.event);
                            works = true;
                            self.works();
                        }
                        self.heard();
                    }
                    // The watch has lasted its time, or the server ended it early, which is allowed.
                    Ok(Ok(None)) if works => return Ok(()),
                    Ok(Ok(None)) => return Err(answer.at_once()),
                    Ok(Err(why)) => return Err(why),
                    // No data, not even the end of the stream: the connection is dead.
                    Err(_) => return Err(answer.slow(begun.elapsed())),
                },
            }
        }
    }

    fn happened(&mut self, event: WatchEvent) {
        self.untold.pods |= matches!(event, WatchEvent::Applied(_) | WatchEvent::Deleted(_));
        if let Some(bad) = self.store.happened(event) {
            self.unreadable(&bad);
        }
    }

    fn unreadable(&self, bad: &UnreadablePod) {
        let lost = "its name comes from another source, and its other fields are unknown";
        tracing::warn!(pod = bad.name.as_deref().unwrap_or_default(), error = %bad.why, lost, "a pod cannot be read");
        self.reporter.trouble(ErrorCounter::PodUnreadable);
    }

    fn heard(&mut self) {
        self.watch.heard = Some(clock::monotonic());
        self.untold.since.get_or_insert_with(Instant::now);
    }

    fn works(&mut self) {
        self.failures.worked();
        self.forgot = false;
        self.watch.broken = None;
        self.untold.since.get_or_insert_with(Instant::now);
    }

    /// Reports the changes that have not been reported yet.
    fn tell(&mut self) {
        if std::mem::take(&mut self.untold.pods) {
            self.reporter.report(Observation::Pods(self.store.list()));
        }
        self.reporter.report(Observation::PodWatch(self.watch.clone()));
        self.untold.since = None;
    }
}

/// A random time between half of `pause` and all of it, so that the agents do not all reconnect at the same moment.
fn spread(pause: Duration) -> Duration {
    let chance = RandomState::new().hash_one(Instant::now()) % 1024;
    pause / 2 + pause.mul_f64(f64::from(u32::try_from(chance).unwrap_or(0)) / 2048.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_are_spread_between_their_half_and_their_whole() {
        let pause = Duration::from_secs(60);
        let spread: Vec<Duration> = (0..100).map(|_| spread(pause)).collect();
        assert!(spread.iter().all(|one| (pause / 2..=pause).contains(one)), "{spread:?}");
        assert!(spread.iter().any(|one| one != &spread[0]), "always {:?}", spread[0]);
    }
}
