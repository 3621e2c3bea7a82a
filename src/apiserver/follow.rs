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

use crate::client::{ApiAnswer, ApiClient, ApiSelection, ObjectForm, ReadAge, SILENCE};
use crate::connect::ApiConnection;
use crate::error::{ApiCall, ApiError, ApiFailure, ApiVerb};
use crate::resource::ApiResource;
use crate::store::Store;
use model::id::NodeName;
use model::pod::{LabelKeys, PodList};
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep, sleep_until, timeout_at};
use wire::watch::{BadWatchAnswer, PodPage, UnreadablePod, WatchEvent, WatchLines, page};

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

/// Receives what a [`Follower`] learns.
pub trait FollowListener: Send {
    /// The server has sent something.
    fn heard(&mut self);
    /// Something has changed, at most once in 20 ms; `pods` if the pods have.
    fn changed(&mut self, pods: Option<PodList>);
    /// A pod cannot be read.
    fn unreadable(&mut self, bad: &UnreadablePod);
    /// A list or watch failed. Returns the pause before the next one.
    fn failed(&mut self, why: &ApiError) -> Duration;
    /// The watch works, maybe after failures.
    fn works(&mut self);
}

/// Follows the pods of one node.
#[derive(Debug)]
pub struct Follower<L> {
    client: ApiClient,
    selection: ApiSelection,
    label_keys: LabelKeys,
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
    listener: L,
    untold: Untold,
}

/// Changes that have not been reported yet.
#[derive(Debug, Default)]
struct Untold {
    pods: bool,
    since: Option<Instant>,
}

impl<L: FollowListener> Follower<L> {
    /// A follower of the pods of `node`; only the labels with these keys are kept.
    pub fn of_node(connection: ApiConnection, node: &NodeName, label_keys: LabelKeys, listener: L) -> Follower<L> {
        let fields = Some(format!("spec.nodeName={node}"));
        Follower {
            client: ApiClient::new(connection),
            selection: ApiSelection { resource: ApiResource::Pods, fields, form: ObjectForm::Whole },
            label_keys,
            store: Store::default(),
            version: None,
            seen: None,
            behind: 0,
            forgot: false,
            listener,
            untold: Untold::default(),
        }
    }

    /// Lists and watches for ever.
    pub async fn run(mut self) {
        let ApiConnection { server, from, .. } = self.client.connection().clone();
        tracing::info!(server = &*server, credentials = &*from, "following this node's pods at the API server");
        self.tell();
        loop {
            if let Err(why) = self.once().await {
                let forgot = why.expired() && !std::mem::replace(&mut self.forgot, why.expired());
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

    /// Reports a failure, and waits.
    async fn pause(&mut self, why: &ApiError) {
        let pause = self.listener.failed(why);
        self.tell();
        sleep(spread(pause).max(why.wait())).await;
    }

    /// Does one list, if it is due, and one watch.
    async fn once(&mut self) -> Result<(), ApiError> {
        let version = match self.version.take() {
            Some(version) => version,
            None => self.list().await?,
        };
        self.version = Some(version.clone());
        let lasts = spread(2 * LASTS);
        let begun = Instant::now();
        let seconds = u32::try_from(lasts.as_secs()).unwrap_or(u32::MAX);
        let mut answer = self.client.watch(&self.selection, &version, seconds).await?;
        self.heard();
        self.listen(&mut answer, begun, begun + lasts + SILENCE).await
    }

    async fn list(&mut self) -> Result<String, ApiError> {
        let age = match &self.seen {
            None => ReadAge::Any,
            Some(seen) if self.behind < BEHIND => ReadAge::NotOlderThan(seen.clone()),
            Some(_) => ReadAge::Newest,
        };
        let first = self.page(&age).await;
        self.behind = if first.as_ref().is_err_and(ApiError::behind) { self.behind + 1 } else { 0 };
        let mut first = first?;
        let mut next = first.next.take();
        for _ in 1..MAX_PAGES {
            let Some(token) = next else { break };
            let page = self.page(&ReadAge::Continued(token)).await?;
            first.pods.extend(page.pods);
            next = page.next;
        }
        for bad in self.store.listed(first.pods) {
            self.listener.unreadable(&bad);
        }
        self.heard();
        self.untold.pods = true;
        self.tell();
        self.seen = Some(first.version.clone());
        Ok(first.version)
    }

    /// Handles the events of a watch until it ends.
    async fn listen(&mut self, answer: &mut ApiAnswer, begun: Instant, end: Instant) -> Result<(), ApiError> {
        let mut stream = WatchLines::new(Arc::clone(&self.label_keys));
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
                        for line in stream.feed(piece.as_ref()).map_err(|why| answer.failed(ApiFailure::Unreadable(why.to_string())))? {
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
                    Ok(Ok(None)) => return Err(answer.failed(ApiFailure::EndedAtOnce)),
                    Ok(Err(why)) => return Err(why),
                    // No data, not even the end of the stream: the connection is dead.
                    Err(_) => return Err(answer.failed(ApiFailure::Slow(begun.elapsed()))),
                },
            }
        }
    }

    /// Reads one page of the list.
    async fn page(&self, age: &ReadAge) -> Result<PodPage, ApiError> {
        let bytes = self.client.list(&self.selection, age, None).await?;
        page(&bytes, &self.label_keys).map_err(|why: BadWatchAnswer| {
            let call = ApiCall::new(ApiVerb::List, self.selection.resource, self.selection.resource.plural());
            self.client.error(call, ApiFailure::Unreadable(why.to_string()))
        })
    }

    fn happened(&mut self, event: WatchEvent) {
        self.untold.pods |= matches!(event, WatchEvent::Applied(_) | WatchEvent::Deleted(_));
        if let Some(bad) = self.store.happened(event) {
            self.listener.unreadable(&bad);
        }
    }

    fn heard(&mut self) {
        self.listener.heard();
        self.untold.since.get_or_insert_with(Instant::now);
    }

    fn works(&mut self) {
        self.listener.works();
        self.forgot = false;
        self.untold.since.get_or_insert_with(Instant::now);
    }

    /// Reports the changes that have not been reported yet.
    fn tell(&mut self) {
        let pods = std::mem::take(&mut self.untold.pods).then(|| self.store.list());
        self.listener.changed(pods);
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
