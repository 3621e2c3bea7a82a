//! List, watch, and again: keeps the store as the API server has it, for as long as the program runs.
//!
//! ```text
//!   list ──version──▶ watch ──event──▶ store, version ──▶ told at most every 20 ms
//!    ▲                  │ ended in its time, or broke: again from the same version
//!    └── 410, garbage ◀─┘
//! ```

use super::connect::ApiConnection;
use super::pods_client::{Age, Answer, PodsClient, SILENCE, Unanswered};
use super::store::Store;
use crate::backoff::{Backoff, FailureSeverity};
use crate::clock;
use crate::report::Reporter;
use model::observation::{ErrorCounter, Observation};
use model::pod::PodWatchState;
use std::hash::{BuildHasher, RandomState};
use std::time::Duration;
use tokio::time::{Instant, sleep, sleep_until, timeout_at};
use wire::watch::{UnreadablePod, WatchEvent, WatchLines};

/// A watch lasts this long and up to as long again, so that the agents of a cluster do not come back all at once, and a
/// connection that died without a word is noticed.
const LASTS: Duration = Duration::from_secs(150);
/// What comes within this time is told together: fifty pods that start at once are one list.
const TOGETHER: Duration = Duration::from_millis(20);
/// A watch that has lasted so long, or has said something, works.
const WORKS: Duration = Duration::from_secs(2);
/// Pages of one list.
const MAX_PAGES: usize = 100;
/// Lists for which the server's cache may be too old, before etcd is asked: the cache may never reach a version that was told before
/// etcd was restored to an older state.
const BEHIND: u32 = 3;

/// Follows the pods of one node.
pub(super) struct Follower {
    asker: PodsClient,
    store: Store,
    /// From where a watch goes on; `None` when a list is due.
    version: Option<String>,
    /// The newest version that a list or a watch told: no list may be older, or pods that run would vanish.
    seen: Option<String>,
    /// Lists one after the other for which the server's cache was too old.
    behind: u32,
    /// The server did not know that version any more: no failure, unless it happens again before a watch works.
    forgot: bool,
    watch: PodWatchState,
    spell: Backoff,
    reporter: Reporter,
    untold: Untold,
}

/// What the node's state does not know yet.
#[derive(Default)]
struct Untold {
    pods: bool,
    since: Option<Instant>,
}

impl Follower {
    pub(super) fn of(asker: PodsClient, reporter: Reporter, spell: Backoff) -> Follower {
        Follower {
            asker,
            store: Store::default(),
            version: None,
            seen: None,
            behind: 0,
            forgot: false,
            watch: PodWatchState::default(),
            spell,
            reporter,
            untold: Untold::default(),
        }
    }

    /// For ever.
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

    /// Says and counts a failure, and waits.
    async fn pause(&mut self, why: &Unanswered) {
        let (trouble, pause) = self.spell.failed(FailureSeverity::Broken, why);
        trouble.inspect(|trouble| self.reporter.trouble(*trouble));
        self.watch.broken = Some(why.to_string().into());
        self.tell();
        sleep(spread(pause).max(why.wait())).await;
    }

    /// One list, if it is due, and one watch.
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

    /// Takes in what a watch says until it ends.
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
                    // Its time is over, or the server closes it early, as it may.
                    Ok(Ok(None)) if works => return Ok(()),
                    Ok(Ok(None)) => return Err(answer.at_once()),
                    Ok(Err(why)) => return Err(why),
                    // Nothing, not even an end: the connection is dead.
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
        let lost = "its names come from other sources, and what else it says is not known";
        tracing::warn!(pod = bad.name.as_deref().unwrap_or_default(), error = %bad.why, lost, "a pod cannot be read");
        self.reporter.trouble(ErrorCounter::PodUnreadable);
    }

    fn heard(&mut self) {
        self.watch.heard = Some(clock::monotonic());
        self.untold.since.get_or_insert_with(Instant::now);
    }

    fn works(&mut self) {
        self.spell.worked();
        self.forgot = false;
        self.watch.broken = None;
        self.untold.since.get_or_insert_with(Instant::now);
    }

    /// Reports what is not known yet.
    fn tell(&mut self) {
        if std::mem::take(&mut self.untold.pods) {
            self.reporter.report(Observation::Pods(self.store.list()));
        }
        self.reporter.report(Observation::PodWatch(self.watch.clone()));
        self.untold.since = None;
    }
}

/// Half of it to all of it, by chance, so that not everybody comes back at the same moment.
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
