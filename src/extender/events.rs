//! Events on pods: the decisions of the filter and the bind, for `kubectl describe pod`. Events on Nodes: which Nodes take no
//! new claims, and why.
//!
//! A decision puts its event into a bounded queue and goes on; a full queue drops the event and counts it. An event of a pod
//! is written at most once a minute for each reason, whatever its text, because the text of a refusal changes with each pod
//! that starts or ends elsewhere. While the binds of a pod fail, only the failed binds are written.

use super::closing_pace::ClosingPace;
use apiserver::writes::{ApiServer, EventType, ObjectEvent};
use decide::cluster::Closing;
use model::id::{NodeName, ObjectUid, PodRef, PodUid};
use parking_lot::Mutex;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::{Semaphore, mpsc};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// Maximum number of events that wait. kube-scheduler places several hundred pods a second, and each has two events. The API
/// server usually accepts them as fast; the queue bridges the seconds in which it does not.
const QUEUE: usize = 4096;
/// Maximum number of writes at the same time.
const AT_ONCE: usize = 8;
/// Pause between two events of a pod with the same reason.
const AGAIN: Duration = Duration::from_secs(60);
/// Maximum number of events that are remembered. Beyond this number the oldest is forgotten, and its pod may get the next event
/// early. A bound pod is forgotten, so the number covers the pods that wait: more than a cluster of 5,000 nodes has. An event
/// takes about 150 bytes.
const REMEMBERED: usize = 30_000;

/// The reason of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum PodEventReason {
    FilteringFailed,
    FilteringSucceed,
    BindingFailed,
    BindingSucceed,
}

impl PodEventReason {
    /// The reason, as events and log lines have it.
    pub(super) fn word(self) -> &'static str {
        match self {
            PodEventReason::FilteringFailed => "FilteringFailed",
            PodEventReason::FilteringSucceed => "FilteringSucceed",
            PodEventReason::BindingFailed => "BindingFailed",
            PodEventReason::BindingSucceed => "BindingSucceed",
        }
    }

    fn weight(self) -> EventType {
        match self {
            PodEventReason::FilteringFailed | PodEventReason::BindingFailed => EventType::Warning,
            PodEventReason::FilteringSucceed | PodEventReason::BindingSucceed => EventType::Normal,
        }
    }

    fn action(self) -> &'static str {
        match self {
            PodEventReason::FilteringFailed | PodEventReason::FilteringSucceed => "Filtering",
            PodEventReason::BindingFailed | PodEventReason::BindingSucceed => "Binding",
        }
    }
}

/// What an event is about.
#[derive(Debug)]
enum EventSubject {
    Pod(PodUid, PodRef),
    Node(ObjectUid, NodeName),
}

#[derive(Debug)]
struct QueuedEvent {
    about: EventSubject,
    event: ObjectEvent,
}

/// Accepts events.
#[derive(Debug)]
pub(super) struct PodEvents {
    queue: mpsc::Sender<QueuedEvent>,
    recent: Mutex<RecentEvents>,
    /// The events that were reported about Nodes.
    pub(super) closings: Mutex<ClosingPace>,
    dropped: AtomicU64,
}

/// The last event of each kind of each pod.
#[derive(Debug, Default)]
struct RecentEvents {
    last: HashMap<(PodUid, PodEventReason), Instant>,
    /// When each event was written, the oldest first. An event that was written again or forgotten stays here until its turn
    /// comes.
    order: VecDeque<(Instant, PodUid, PodEventReason)>,
}

impl RecentEvents {
    /// Whether this event must be written now; it then counts as written.
    fn is_due(&mut self, uid: &PodUid, reason: PodEventReason, now: Instant) -> bool {
        let within = |at: &Instant, pause: Duration| now.duration_since(*at) < pause;
        if reason == PodEventReason::FilteringSucceed
            && self.last.get(&(uid.clone(), PodEventReason::BindingFailed)).is_some_and(|at| within(at, 2 * AGAIN))
        {
            return false;
        }
        // A refused pod gets one event a minute, even if the reasons alternate.
        let failures = [PodEventReason::FilteringFailed, PodEventReason::BindingFailed];
        let alike = if failures.contains(&reason) { &failures[..] } else { std::slice::from_ref(&reason) };
        if alike.iter().any(|one| self.last.get(&(uid.clone(), *one)).is_some_and(|at| within(at, AGAIN))) {
            return false;
        }
        self.forget_old(now);
        if reason == PodEventReason::BindingSucceed {
            // The pod gets no more events.
            let reasons =
                [PodEventReason::FilteringFailed, PodEventReason::FilteringSucceed, PodEventReason::BindingFailed];
            for reason in reasons {
                self.last.remove(&(uid.clone(), reason));
            }
        }
        self.order.push_back((now, uid.clone(), reason));
        self.last.insert((uid.clone(), reason), now);
        true
    }

    /// Forgets events that no longer delay others and, beyond the bound, the oldest.
    fn forget_old(&mut self, now: Instant) {
        while let Some((at, ..)) = self.order.front()
            && (self.order.len() >= REMEMBERED || now.duration_since(*at) >= 2 * AGAIN)
        {
            let Some((at, uid, reason)) = self.order.pop_front() else { return };
            let key = (uid, reason);
            if self.last.get(&key) == Some(&at) {
                self.last.remove(&key);
            }
        }
    }
}

/// Writes the queued events.
#[derive(Debug)]
pub(super) struct EventWriter {
    queue: mpsc::Receiver<QueuedEvent>,
    api: ApiServer,
}

/// The queue and its writer.
pub(super) fn queue(api: ApiServer) -> (Arc<PodEvents>, EventWriter) {
    let (sender, receiver) = mpsc::channel(QUEUE);
    let events =
        PodEvents { queue: sender, recent: Mutex::default(), closings: Mutex::default(), dropped: AtomicU64::new(0) };
    (Arc::new(events), EventWriter { queue: receiver, api })
}

impl PodEvents {
    /// Puts an event into the queue, unless the pod had it within the last minute. Never waits.
    pub(super) fn send(&self, uid: &PodUid, pod: &PodRef, reason: PodEventReason, note: String) {
        if !self.recent.lock().is_due(uid, reason, Instant::now()) {
            return;
        }
        let words = (reason.weight(), reason.word(), reason.action());
        self.enqueue(EventSubject::Pod(uid.clone(), pod.clone()), words, note);
    }

    /// Puts an event on a Node into the queue: the Node takes no new claims, or takes them again. Never waits. The caller sends
    /// only changes.
    pub(super) fn send_closing(&self, uid: &ObjectUid, node: &NodeName, closed: Option<&Closing>) {
        let about = EventSubject::Node(uid.clone(), node.clone());
        match closed {
            Some(why) => {
                self.enqueue(about, (EventType::Warning, "GPUsClosed", "Closing"), format!("no new GPU pods: {why}"))
            }
            None => self.enqueue(about, (EventType::Normal, "GPUsOpen", "Opening"), "takes GPU pods again".to_owned()),
        }
    }

    fn enqueue(
        &self,
        about: EventSubject,
        (weight, reason, action): (EventType, &'static str, &'static str),
        note: String,
    ) {
        let at = wire::timestamp::to_rfc3339_micros(clock::now().wall);
        let event = QueuedEvent { about, event: ObjectEvent { weight, reason, action, note, at } };
        if self.queue.try_send(event).is_err() && self.dropped.fetch_add(1, Ordering::Relaxed) == 0 {
            tracing::warn!("events on pods are dropped: the API server takes them more slowly than they come");
        }
    }

    /// Events that were dropped because the queue was full.
    pub(super) fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }
}

impl EventWriter {
    /// Writes events until `stop` is cancelled; events still in the queue are lost.
    pub(super) async fn run(mut self, stop: CancellationToken) {
        let permits = Arc::new(Semaphore::new(AT_ONCE));
        loop {
            let event = tokio::select! {
                biased;
                () = stop.cancelled() => return,
                event = self.queue.recv() => match event {
                    Some(event) => event,
                    // Every sender is gone.
                    None => return stop.cancelled().await,
                },
            };
            // The semaphore is never closed.
            let Ok(permit) = Arc::clone(&permits).acquire_owned().await else { return };
            let api = self.api.clone();
            tokio::spawn(async move {
                event.write(&api).await;
                drop(permit);
            });
        }
    }
}

impl QueuedEvent {
    async fn write(self, api: &ApiServer) {
        let QueuedEvent { about, event } = self;
        let (written, on) = match &about {
            EventSubject::Pod(uid, pod) => (api.pod_event(uid, pod, &event).await, pod.to_string()),
            EventSubject::Node(uid, node) => (api.event_of_node(uid.as_str(), node, &event).await, node.to_string()),
        };
        if let Err(error) = written {
            tracing::debug!(on, %error, "an event is not written");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn uid(n: u32) -> PodUid {
        PodUid::parse(&format!("{n:032x}")).unwrap()
    }

    #[test]
    fn a_refused_pod_has_an_event_once_a_minute() {
        use PodEventReason::{BindingFailed, BindingSucceed, FilteringFailed, FilteringSucceed};
        let (mut recent, start) = (RecentEvents::default(), Instant::now());
        for (pod, reason, second, due) in [
            (1, FilteringFailed, 0, true),
            (1, FilteringFailed, 59, false),
            (1, BindingFailed, 59, false),
            (2, FilteringFailed, 59, true),
            (1, FilteringFailed, 60, true),
            (1, FilteringSucceed, 61, true),
            (1, BindingSucceed, 61, true),
        ] {
            let now = start + Duration::from_secs(second);
            assert_eq!(recent.is_due(&uid(pod), reason, now), due, "{pod} {reason:?} at {second} s");
        }
        // A pod that fits and whose binds fail, tried every 5 s for 10 minutes.
        let mut written = Vec::new();
        for second in (0..600).step_by(5) {
            let now = start + Duration::from_secs(second);
            let due =
                [FilteringSucceed, BindingFailed].into_iter().filter(|reason| recent.is_due(&uid(3), *reason, now));
            written.extend(due.map(|reason| (reason, second / 60)));
        }
        let refusals = (0..10).map(|minute| (BindingFailed, minute));
        assert_eq!(written, [(FilteringSucceed, 0)].into_iter().chain(refusals).collect::<Vec<_>>());
    }

    #[test]
    fn the_memory_of_events_is_bounded() {
        let (mut recent, now) = (RecentEvents::default(), Instant::now());
        for n in 0..u32::try_from(REMEMBERED).unwrap() + 10 {
            assert!(recent.is_due(&uid(n), PodEventReason::FilteringFailed, now));
        }
        assert_eq!((recent.last.len(), recent.order.len()), (REMEMBERED, REMEMBERED));
        assert!(recent.is_due(&uid(0), PodEventReason::FilteringFailed, now), "the oldest is forgotten");
    }

    #[test]
    fn a_refused_pod_has_an_event_once_a_minute_beside_a_hundred_bound_pods_a_second() {
        let (mut recent, start) = (RecentEvents::default(), Instant::now());
        let mut written = Vec::new();
        for second in 0..600_u32 {
            let now = start + Duration::from_secs(second.into());
            for pod in 0..100 {
                let bound = uid(1000 + second * 100 + pod);
                assert!(recent.is_due(&bound, PodEventReason::FilteringSucceed, now));
                assert!(recent.is_due(&bound, PodEventReason::BindingSucceed, now));
            }
            if second % 5 == 0 && recent.is_due(&uid(1), PodEventReason::FilteringFailed, now) {
                written.push(second);
            }
        }
        assert_eq!(written, (0..600).step_by(60).collect::<Vec<_>>());
        assert!(recent.order.len() < REMEMBERED, "{}", recent.order.len());
    }
}
