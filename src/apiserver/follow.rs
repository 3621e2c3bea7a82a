//! Lists and watches one kind of objects, and keeps the store equal to the API server's state.
//!
//! ```text
//!   list ──version──▶ watch ──event──▶ store, newest version ──▶ reports the changes, at most once in 20 ms
//!    ▲ │               │ ▲                ▲
//!    │ └─ not shown ─▶ absence ── get ────┘
//!    └─────────────────┤ │
//!      new list: 410,  └─┘  ends or fails: the next watch starts at the newest version
//!      quiet, wanted,
//!      or room again
//! ```
//!
//! The newest version is the version of the last event, or of the list if there was no event. After a failure the follower
//! waits before the next request. A new list follows an answer 400, 404, 410, 422 or 504, an answer that is too large or
//! cannot be read, and a watch that was quiet for too long. It also follows if an eighth of the places becomes free while
//! objects that may hold devices are left out, but less and less often if this happens again and again (`room_pace`).

use crate::absence::Absences;
use crate::chance;
use crate::client::{ApiAnswer, ApiClient, ReadAge, SILENCE};
use crate::connect::ApiConnection;
use crate::error::{ApiCall, ApiError, ApiFailure, ApiVerb};
use crate::kind::Followed;
use crate::page_size::PageSize;
use crate::read_objects::ReadObjects;
use crate::room_pace::RoomPace;
use crate::store::{Answer, Delta, EventOutcome, GoneEvidence, Listed, Store};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;
use tokio::task::{JoinError, JoinSet, yield_now};
use tokio::time::{Instant, sleep_until, timeout_at};
use wire::watch::{BadWatchAnswer, UnreadableObject, WatchEvent, WatchLines, object, page};

/// A watch lasts between this time and twice as long, so the agents of a cluster do not reconnect all at once.
const LASTS: Duration = Duration::from_secs(150);
/// A watch that has sent nothing for this long may be on a connection that has died silently, so a new list is read on a
/// new connection. An API server that sends bookmarks sends one each minute.
const QUIET: Duration = Duration::from_secs(75);
/// Changes within this time are reported together: fifty pods that start at once cause one report.
const TOGETHER: Duration = Duration::from_millis(20);
/// A watch counts as working once it has lasted this long or has sent an event.
const WORKS: Duration = Duration::from_secs(2);
/// Maximum number of changes that wait for a report: more than a large cluster causes in 20 ms. A change takes two pointers.
const MAX_DELTAS: usize = 4096;
/// After this many lists in a row for which the server's cache was too old, the follower reads from etcd. If etcd was
/// restored to an older state, the cache may never reach the version that the follower saw before.
const BEHIND: u32 = 3;

#[cfg(feature = "simulation")]
thread_local! {
    static STALE_LISTS: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

/// A fault that tests inject: the followers of this thread read their lists from caches.
#[cfg(feature = "simulation")]
pub fn plant_stale_lists(stale: bool) {
    STALE_LISTS.set(stale);
}

#[cfg(feature = "simulation")]
fn stale_lists() -> bool {
    STALE_LISTS.get()
}

#[cfg(not(feature = "simulation"))]
const fn stale_lists() -> bool {
    false
}

/// Receives the reports of a [`Follower`].
pub trait FollowListener<K: Followed>: Send {
    /// The server has sent something.
    fn received(&mut self);
    /// A watch has shown this version of an object. The next [`FollowListener::changed`] reports it together with
    /// everything that the watch showed before it.
    fn watched(&mut self, _object: &K::Object) {}
    /// Reports changes, at most once in 20 ms. `held` is set if the held objects may have changed.
    fn changed(&mut self, deltas: Vec<Delta<K::Object>>, held: Option<&Store<K>>);
    /// The newest version of an object cannot be read.
    fn unreadable(&mut self, bad: &UnreadableObject<K::Uid>);
    /// An object that could not be read can be read again, or is known to be gone.
    fn settled(&mut self, _uid: &K::Uid) {}
    /// No watch is known to work from now on, until [`FollowListener::works`]: a list is read, or a list or watch has failed.
    fn stopped(&mut self) {}
    /// A list or watch failed. Returns the pause before the next try.
    fn failed(&mut self, why: &ApiError) -> Duration;
    /// The watch works, possibly after failures.
    fn works(&mut self);
    /// A list that the follower began at this moment is in the store; [`FollowListener::changed`] has reported it. The version
    /// of the list is `None` if it is not a number.
    fn listed(&mut self, _begun: Instant, _version: Option<u64>, _held: &Store<K>) {}
}

/// Follows the objects of one kind.
#[derive(Debug)]
pub struct Follower<K: Followed, L> {
    client: ApiClient,
    kind: K,
    store: Store<K>,
    absences: Absences<K::Uid>,
    /// The checks that run.
    checks: JoinSet<Checked<K>>,
    /// The last check got no answer, and this is logged.
    unanswered: bool,
    position: Position,
    /// How soon a list may follow because there is room again.
    room: RoomPace,
    listener: L,
    unreported: Unreported,
    /// Notified when a new list is wanted.
    relist: Arc<Notify>,
}

/// How far the follower has read, in the server's versions.
#[derive(Debug)]
struct Position {
    /// The version from which the next watch continues; `None` when a list is due.
    version: Option<String>,
    /// The newest version from a list or a watch. No list may be older, or running pods would vanish.
    seen: Option<String>,
    /// Lists in a row for which the server's cache was too old.
    behind: u32,
    /// The size of the next page of a list.
    page_size: PageSize,
    /// The server has answered 410 Gone since a watch last worked. The first 410 only causes a new list; a second 410 before
    /// a watch works is a failure.
    forgot: bool,
}

/// A list that was read to its end.
struct ReadList<K: Followed> {
    /// The version from which a watch continues.
    version: String,
    read: ReadObjects<K>,
}

/// The result of the check of one object.
type Checked<K> =
    (<K as wire::watch::WatchedKind>::Uid, Result<Presence<<K as wire::watch::WatchedKind>::Object>, ApiError>);

/// What a check of an object found.
#[derive(Debug)]
enum Presence<O> {
    /// The object does not exist any more.
    Gone(GoneEvidence),
    /// The object exists: its newest version, if that can be read.
    Present(Option<Box<O>>),
}

/// Changes that have not been reported yet.
#[derive(Debug, Default)]
struct Unreported {
    objects: bool,
    since: Option<Instant>,
}

impl<K: Followed, L: FollowListener<K>> Follower<K, L> {
    /// A follower of this kind.
    pub fn new(connection: ApiConnection, kind: K, listener: L) -> Follower<K, L> {
        Follower {
            client: ApiClient::new(connection),
            kind,
            store: Store::default(),
            absences: Absences::default(),
            checks: JoinSet::new(),
            unanswered: false,
            position: Position {
                version: None,
                seen: None,
                behind: 0,
                page_size: PageSize::new(K::PAGE),
                forgot: false,
            },
            room: RoomPace::default(),
            listener,
            unreported: Unreported::default(),
            relist: Arc::default(),
        }
    }

    /// Makes the follower start a new list whenever `relist` is notified. A list that it is reading at that time is
    /// dropped.
    #[must_use]
    pub fn relist_on(mut self, relist: Arc<Notify>) -> Follower<K, L> {
        self.relist = relist;
        self
    }

    /// Lists and watches for ever.
    pub async fn run(mut self) {
        let ApiConnection { server, from, .. } = self.client.connection();
        let selection = self.kind.selection();
        let (what, fields) = (selection.resource.plural(), selection.fields.unwrap_or_default());
        tracing::info!(server = &**server, credentials = &**from, what, fields, "following objects at the API server");
        self.report();
        loop {
            if let Err(why) = self.once().await {
                self.listener.stopped();
                let forgot = why.expired() && !std::mem::replace(&mut self.position.forgot, why.expired());
                if why.outdated() {
                    self.position.seen = self.position.version.take().or(self.position.seen.take());
                }
                if forgot {
                    tracing::debug!(%why, "the list is read again");
                } else {
                    self.pause(&why).await;
                }
            }
        }
    }

    /// Reports a failure, and waits. Checks continue during the pause.
    async fn pause(&mut self, why: &ApiError) {
        let pause = self.listener.failed(why);
        self.report();
        let end = Instant::now() + spread(pause).max(why.wait());
        loop {
            let check_at = self.absences.next().unwrap_or(end);
            tokio::select! {
                biased;
                () = sleep_until(end) => return,
                Some(done) = self.checks.join_next() => {
                    self.checked(done);
                    self.report();
                }
                () = sleep_until(check_at), if check_at < end => self.check(),
            }
        }
    }

    /// Reads a list, if one is due, and then runs one watch.
    async fn once(&mut self) -> Result<(), ApiError> {
        let version = match self.position.version.take() {
            Some(version) => version,
            None => {
                self.listener.stopped();
                self.list().await?
            }
        };
        self.position.version = Some(version.clone());
        let lasts = spread(2 * LASTS);
        let begun = Instant::now();
        let seconds = u32::try_from(lasts.as_secs()).unwrap_or(u32::MAX);
        let mut answer = self.client.watch(&self.kind.selection(), &version, seconds).await?;
        self.received();
        self.listen(&mut answer, begun, begun + lasts + SILENCE).await
    }

    async fn list(&mut self) -> Result<String, ApiError> {
        let relist = Arc::clone(&self.relist);
        let (begun, answer, list) = loop {
            let begun = Instant::now();
            tokio::select! {
                biased;
                // The notifier needs a list that begins after the notification, so the list in progress is dropped.
                () = relist.notified() => {}
                read = self.read_list() => {
                    let (answer, list) = read?;
                    break (begun, answer, list);
                }
            }
        };
        let ReadList { version, read: ReadObjects { objects, left_out, .. } } = list;
        let (count, read) = (objects.len() + left_out.len(), begun.elapsed());
        let Listed { bad, missing } = self.store.listed(objects, left_out, answer);
        self.not_shown(&missing);
        self.received();
        self.unreported.objects = true;
        self.report();
        bad.iter().for_each(|bad| self.listener.unreadable(bad));
        self.listener.listed(begun, version.parse().ok(), &self.store);
        let (read_ms, took_ms) = (read.as_millis(), begun.elapsed().as_millis());
        tracing::debug!(kind = K::NAME, objects = count, read_ms, took_ms, "a list was read and taken over");
        self.room.listed(begun.elapsed(), Instant::now());
        self.position.seen = Some(version.clone());
        Ok(version)
    }

    /// Reads a list.
    async fn read_list(&mut self) -> Result<(Answer, ReadList<K>), ApiError> {
        let mut size = self.position.page_size;
        size.begin();
        let read = self.read_pages(&mut size).await;
        if read.is_ok() {
            size.list_was_read();
        }
        self.position.page_size = size;
        read
    }

    /// Reads all pages of a list, the first one of this size.
    async fn read_pages(&mut self, size: &mut PageSize) -> Result<(Answer, ReadList<K>), ApiError> {
        let mut age = self.list_age(*size);
        let mut first = self.page(&age, size).await;
        if size.limit().is_none() && first.as_ref().is_err_and(ApiError::too_large) {
            (age, *size) = (ReadAge::Newest, size.in_pages());
            first = self.page(&age, size).await;
        }
        self.position.behind = if first.as_ref().is_err_and(ApiError::behind) { self.position.behind + 1 } else { 0 };
        let mut bytes = first?;
        let (mut version, mut read) = (None, ReadObjects::default());
        loop {
            let mut page = page(&bytes).map_err(|why| self.unreadable_list(&why))?;
            let version = &*version.get_or_insert_with(|| std::mem::take(&mut page.version));
            let Some(token) = page.next.clone() else {
                read.add(page.objects(&self.kind), &self.store);
                read.leave_out(&self.store);
                let answer = if age == ReadAge::Newest { Answer::FromEtcd } else { Answer::MayLag };
                return Ok((answer, ReadList { version: version.clone(), read }));
            };
            // The server makes the next page while this page is decoded.
            let next = ReadAge::Continued(token);
            let decode = async {
                yield_now().await;
                read.add(page.objects(&self.kind), &self.store);
            };
            let (next, ()) = tokio::join!(biased; self.page(&next, size), decode);
            bytes = next?;
        }
    }

    /// How old the next list may be.
    fn list_age(&self, size: PageSize) -> ReadAge {
        match &self.position.seen {
            _ if stale_lists() => ReadAge::Any,
            // A cache answers in one piece whatever the limit, so pages come from etcd.
            _ if size.limit().is_some() => ReadAge::Newest,
            None => ReadAge::Any,
            Some(seen) if self.position.behind < BEHIND => ReadAge::NotOlderThan(seen.clone()),
            Some(_) => ReadAge::Newest,
        }
    }

    /// Reads one page of the list. A page that is too large is read again with fewer objects.
    async fn page(&self, age: &ReadAge, size: &mut PageSize) -> Result<Vec<u8>, ApiError> {
        loop {
            let begun = Instant::now();
            match self.client.list(&self.kind.selection(), age, size.limit()).await {
                Err(why) if why.too_large() && size.halve() => {
                    tracing::debug!(kind = K::NAME, objects = size.limit(), "a page of a list was too large: {why}");
                }
                Err(why) => {
                    size.page_failed(&why, begun.elapsed());
                    return Err(why);
                }
                Ok(bytes) => {
                    size.was_read(bytes.len());
                    return Ok(bytes);
                }
            }
        }
    }

    fn unreadable_list(&self, why: &BadWatchAnswer) -> ApiError {
        let resource = self.kind.selection().resource;
        let call = ApiCall::new(ApiVerb::List, resource, resource.plural());
        self.client.error(call, ApiFailure::Unreadable(why.to_string()))
    }

    /// Handles the events of a watch until it ends.
    async fn listen(&mut self, answer: &mut ApiAnswer, begun: Instant, end: Instant) -> Result<(), ApiError> {
        let mut stream = WatchLines::new(self.kind.clone());
        let mut works = false;
        let (generation, mut heard) = (self.client.connection().generation(), Instant::now());
        loop {
            let report_at = self.unreported.since.map_or(end, |since| since + TOGETHER);
            let check_at = self.absences.next();
            tokio::select! {
                biased;
                () = sleep_until(report_at), if self.unreported.since.is_some() => self.report(),
                () = sleep_until(begun + WORKS), if !works => {
                    works = true;
                    self.works();
                }
                Some(done) = self.checks.join_next() => self.checked(done),
                () = sleep_until(check_at.unwrap_or(end)), if check_at.is_some() => self.check(),
                () = self.relist.notified() => {
                    self.position.seen = self.position.version.take().or(self.position.seen.take());
                    return Ok(());
                }
                piece = timeout_at(end.min(heard + QUIET), answer.piece()) => match piece {
                    Ok(Ok(Some(piece))) => {
                        heard = Instant::now();
                        works |= self.take_piece(&mut stream, piece.as_ref(), answer)?;
                        if self.store.has_room_again() && self.room.allows(heard) {
                            // No event would bring them back.
                            self.position.seen = self.position.version.take().or(self.position.seen.take());
                            tracing::debug!(kind = K::NAME, "a new list is read: there is room for objects that are left out");
                            return Ok(());
                        }
                    }
                    // The watch has lasted its time, or the server ended it early, which is allowed.
                    Ok(Ok(None)) if works => return Ok(()),
                    Ok(Ok(None)) => return Err(answer.failed(ApiFailure::EndedAtOnce)),
                    Ok(Err(why)) => return Err(why),
                    // No data, not even a bookmark or the end of the stream.
                    Err(_) => {
                        self.client.connection().is_silent(generation);
                        if Instant::now() < end {
                            // Something on the way may accept a watch and pass nothing on. A list shows that it does not.
                            self.position.seen = self.position.version.take().or(self.position.seen.take());
                            tracing::debug!(kind = K::NAME, "a watch was quiet; a new list is read on a new connection");
                            return Ok(());
                        }
                        return Err(answer.failed(ApiFailure::Slow(begun.elapsed())));
                    }
                },
            }
        }
    }

    /// Handles a piece of a watch. Returns whether it had an event.
    fn take_piece(&mut self, stream: &mut WatchLines<K>, piece: &[u8], answer: &ApiAnswer) -> Result<bool, ApiError> {
        let lines = stream.feed(piece).map_err(|why| answer.failed(ApiFailure::Unreadable(why.to_string())))?;
        let any = !lines.is_empty();
        for line in lines {
            if let WatchEvent::Error(refusal) = line.event {
                return Err(answer.refused(refusal));
            }
            let version = line.version.as_deref().and_then(|version| version.parse().ok());
            self.position.version = line.version.or_else(|| self.position.version.take());
            self.apply_event(line.event, version);
            self.works();
        }
        self.received();
        Ok(any)
    }

    fn apply_event(&mut self, event: WatchEvent<K::Object, K::Uid>, version: Option<u64>) {
        match &event {
            WatchEvent::Applied(applied) => {
                self.unreported.objects = true;
                if let Ok(object) = &**applied {
                    self.absences.settled(K::uid_of(object));
                    self.listener.watched(object);
                }
            }
            WatchEvent::Deleted(_) => self.unreported.objects = true,
            WatchEvent::Bookmark | WatchEvent::Error(_) => {}
        }
        match self.store.apply_event(event, version) {
            EventOutcome::Taken => {}
            EventOutcome::Bad(bad) => {
                // Older versions of the object must not be reported after it.
                self.report();
                self.listener.unreadable(&bad);
            }
            EventOutcome::Doubtful(uid) => self.absences.missing(&uid, Instant::now()),
        }
        if self.store.waiting() >= MAX_DELTAS {
            self.report();
        }
    }

    /// A list shows all held objects except these.
    fn not_shown(&mut self, missing: &[K::Uid]) {
        self.absences.only(missing);
        let now = Instant::now();
        for uid in missing {
            self.absences.missing(uid, now);
        }
    }

    /// Begins the checks that are due.
    fn check(&mut self) {
        for uid in self.absences.begin(Instant::now()) {
            match self.store.get(&uid) {
                Some(held) => {
                    let (client, kind, held) = (self.client.clone(), self.kind.clone(), Arc::clone(held));
                    self.checks.spawn(async move { (uid, presence(&client, &kind, &held).await) });
                }
                None => self.absences.answered(&uid),
            }
        }
    }

    /// Handles the result of a check.
    fn checked(&mut self, done: Result<Checked<K>, JoinError>) {
        let (uid, found) = match done {
            Ok(done) => done,
            Err(why) => {
                tracing::error!(%why, "the check of an object ended without an answer");
                return;
            }
        };
        match found {
            Ok(Presence::Gone(evidence)) => {
                self.absences.answered(&uid);
                self.store.gone(&uid, evidence);
            }
            Ok(Presence::Present(newest)) => {
                self.absences.answered(&uid);
                tracing::info!(kind = K::NAME, uid = ?uid, "the API server did not show an object that exists");
                // An event that came while the answer was under way may be newer.
                if let Some(newest) = newest {
                    self.store.keep(*newest, Answer::MayLag);
                }
            }
            Err(why) => {
                if !std::mem::replace(&mut self.unanswered, true) {
                    let kind = K::NAME;
                    tracing::warn!(error = %why, "a list did not show a {kind}, which counts as present until it can be read");
                }
                self.absences.unanswered(&uid, Instant::now());
                return;
            }
        }
        self.unanswered = false;
        self.unreported.objects = true;
        self.unreported.since.get_or_insert_with(Instant::now);
    }

    fn received(&mut self) {
        self.listener.received();
        self.unreported.since.get_or_insert_with(Instant::now);
    }

    fn works(&mut self) {
        self.listener.works();
        self.position.forgot = false;
        self.unreported.since.get_or_insert_with(Instant::now);
    }

    /// Reports the changes that have not been reported yet.
    fn report(&mut self) {
        let deltas = self.store.take_deltas();
        let objects = std::mem::take(&mut self.unreported.objects);
        let settled = self.store.take_settled();
        self.listener.changed(deltas, objects.then_some(&self.store));
        settled.iter().for_each(|uid| self.listener.settled(uid));
        self.unreported.since = None;
    }
}

/// Reads one object by its name, and compares the UID.
async fn presence<K: Followed>(
    client: &ApiClient,
    kind: &K,
    held: &K::Object,
) -> Result<Presence<K::Object>, ApiError> {
    let bytes = match K::read_now(client, held).await {
        Ok(bytes) => bytes,
        // A proxy in front of the server may also answer 404, but without a `Status`.
        Err(error) if error.refusal().is_some_and(|refusal| refusal.code == 404 && refusal.is_status) => {
            return Ok(Presence::Gone(GoneEvidence::NotFound));
        }
        Err(error) => return Err(error),
    };
    let own = |uid: &K::Uid| uid == K::uid_of(held);
    match object(&bytes, kind) {
        Ok(object) if own(K::uid_of(&object)) => Ok(Presence::Present(Some(Box::new(object)))),
        Ok(_) => Ok(Presence::Gone(GoneEvidence::OtherUid)),
        Err(UnreadableObject { uid: Some(uid), .. }) if own(&uid) => Ok(Presence::Present(None)),
        Err(UnreadableObject { uid: Some(_), .. }) => Ok(Presence::Gone(GoneEvidence::OtherUid)),
        Err(bad) => {
            let resource = kind.selection().resource;
            let call = ApiCall::new(ApiVerb::Get, resource, K::NAME);
            Err(client.error(call, ApiFailure::Unreadable(bad.to_string())))
        }
    }
}

/// A random time between half of `pause` and all of it, so that the agents do not all reconnect at the same moment.
fn spread(pause: Duration) -> Duration {
    pause / 2 + pause.mul_f64(f64::from(chance::below(1024)) / 2048.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_is_random_between_its_half_and_its_whole() {
        let pause = Duration::from_secs(60);
        let spread: Vec<Duration> = (0..100).map(|_| spread(pause)).collect();
        assert!(spread.iter().all(|one| (pause / 2..=pause).contains(one)), "{spread:?}");
        assert!(spread.iter().any(|one| one != &spread[0]), "always {:?}", spread[0]);
    }
}
