//! Which of the waiting pods kube-scheduler tries again, because a node has room for them now.
//!
//! kube-scheduler tries a refused pod again after events that it sees itself. It often does so before the leader has seen what the
//! event frees, and it never sees some events that the leader sees: processes have ended, a stranger has left, a node has opened.
//!
//! ```text
//!   a node changes ──▶ for each kind of request: may it fit there now? ──▶ pods in order ──judge──▶ Wake
//!                                                                       │      ▲ room of pods that are expected or woken
//!   filter call: refused ──▶ longer pause of a pod that was woken       └── priority, namespaces in turn, age
//! ```
//!
//! A kind of request is compared again with each node that has changed. If the node has no room for pods of the kind, it is left out
//! until it changes again. For a single pod, only the nodes that its last call named are remembered. From time to time every node
//! counts as changed, so a missed change delays a pod by a minute at most.
//!
//! What must never happen here: a pod that fits waits for ever, because a change was missed; many pods are woken for the room of
//! one; a pod is woken while its bind is under way.

use super::filter::gpu_pod;
use super::node::NodeClaims;
use super::node_set::NodeSet;
use super::planted::{PlantedMistake, planted};
use super::state::ClusterState;
use super::verdicts::Signature;
use super::version::VersionNumbers;
use super::waiting::{Asked, MOST, Member, Need, WaitingPods};
use crate::ledger::{DeviceDemand, demand_of};
use crate::placement::{AcceptedDevices, CountedClaims, place};
use crate::wake_pace::{A_SECOND, ASKED_WITHIN, WakeCounts, WakePace};
use model::id::{GpuUuid, NodeName, PodRef, PodUid};
use model::placement::{GpuSelection, PlacementRequest};
use model::time::Monotonic;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

mod lines;

use lines::Lines;

/// Maximum work of a step: once for the comparison of changed nodes with kinds of requests, and once for the search and the judging
/// of pods. A unit is the comparison of a kind with a GPU, or about 3 ns: 0.2 ms in all.
const WORK: usize = 65_536;
/// Work, in the same units as `WORK`, for a node or a kind, and for the comparison of a GPU with a product.
const KIND: usize = 4;
const PRODUCT: usize = 4;
/// Work to look up data of a pod.
const LOOKUP: usize = 32;
/// Work to judge up to eight GPUs of a node for one container.
const JUDGED: usize = 256;
/// Work to judge a node beside pods that are nominated to it or expected there: the node is copied, which takes up to 80 us. So a
/// step copies at most eight nodes.
const COPIED: usize = 32 * JUDGED;
/// How long pods stay in line until all pods are looked at again, because a pod of higher priority may have come.
const IN_LINE: Duration = Duration::from_secs(1);
/// How often a pod is judged again for a node whose room is kept for another pod.
const BLOCKED: Duration = Duration::from_secs(1);
/// How long a change is left to kube-scheduler, which itself tries refused pods at many events, sooner than a wake would.
const SETTLES: Duration = Duration::from_millis(200);
/// How often every node counts as changed. kube-scheduler itself tries each pod after five minutes. The simulation has neither of the
/// two, because they would hide a change that the extender misses.
const SWEEP: Duration = Duration::from_secs(if cfg!(feature = "simulation") { 24 * 3600 } else { 60 });
/// How long a pod that a node fitted in an earlier term of this process may be on its way to its bind. Permit plugins and volumes
/// hold few pods for longer.
const BINDS_WITHIN: Duration = Duration::from_secs(60);
/// After the start of a term kube-scheduler tries by itself the pods that it could not ask about without a leader. Its first pauses
/// are 1 s and 2 s.
const AFTER_WIN: Duration = Duration::from_secs(2);

/// A pod that is to be woken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wake {
    /// The UID.
    pub uid: PodUid,
    /// Namespace and name.
    pub pod: PodRef,
    /// A node that has room for the pod.
    pub node: NodeName,
    /// The epoch of this leader.
    pub epoch: u64,
    /// The number of the wake in this process. With the epoch it differs from all earlier wakes.
    pub number: u64,
}

/// Pods that are to be woken now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WakeStep {
    /// The pods.
    pub wakes: Vec<Wake>,
    /// Whether the next step has something to do at once.
    pub more: bool,
}

/// What is known of the wakes.
#[derive(Debug, Default)]
pub(super) struct Wakes {
    pace: WakePace,
    /// For each namespace, the number of the wake that was the last for one of its pods.
    served: BTreeMap<Arc<str>, u64>,
    /// Number of wakes.
    number: u64,
    /// The count of all changes when changed nodes were looked for last.
    looked: Option<u64>,
    /// Number of looks for changed nodes. A filter call remembers this number: it knows what earlier looks have found.
    looks: u64,
    /// When all nodes were last due to be compared again; `None` if that is due now.
    swept: Option<Monotonic>,
    /// The nodes that are compared again although nothing is known to have changed there.
    sweep: Option<Sweep>,
    /// The nodes by their places, as they were seen last.
    seen: Vec<Option<SeenNode>>,
    /// The places of nodes that have changed and were not compared with the kinds of requests since, in the order in which the
    /// changes were found: otherwise a node that changes all the time could always be compared before all other nodes.
    fresh: VecDeque<(Monotonic, usize)>,
    /// The place of the node with which some kinds were compared in the last step, and the kind that comes next.
    comparing: Option<(usize, Arc<Signature>)>,
    /// The room that is kept for pods until kube-scheduler asks about them.
    kept: BTreeMap<PodUid, KeptRoom>,
    /// The pods that may be woken, while they are searched for and judged.
    lines: Option<Lines>,
    /// When the first node with room only for other pods was found since all such nodes were last judged again.
    blocked: Option<Monotonic>,
    /// Whether a node where some kind may fit was found since the last search began.
    is_due: bool,
    /// When the next search begins although nothing changes.
    due: Option<Monotonic>,
    /// No pod is woken before.
    not_before: Monotonic,
}

#[derive(Clone, Debug)]
struct SeenNode {
    name: NodeName,
    numbers: VersionNumbers,
    /// The number of the look that has found the node's newest change.
    at: u64,
    /// Whether the node has changed and was not compared since.
    is_fresh: bool,
}

/// Nodes that are compared again when no changed node waits for that: whatever a sweep costs, it delays no wake for a change.
#[derive(Clone, Copy, Debug)]
struct Sweep {
    /// When the sweep became due.
    since: Monotonic,
    /// The place of the next node.
    next: usize,
    /// Number of nodes that are left. If a sweep becomes due during another, all nodes are left again, from the next one on.
    left: usize,
}

#[derive(Clone, Debug)]
struct KeptRoom {
    node: NodeName,
    /// How long the room is kept: after this time kube-scheduler is late.
    until: Monotonic,
    demands: Vec<(GpuUuid, DeviceDemand)>,
}

/// Whether a node has room for a pod.
#[derive(Clone, Debug)]
enum NodeRoom {
    /// There is room, of which the pod takes this much.
    Free(Vec<(GpuUuid, DeviceDemand)>),
    /// There is room only without the pods that are expected there.
    Blocked,
    /// There is no room.
    Taken,
}

impl Wakes {
    /// Takes the place of the node that is compared next: a changed node first.
    fn next_to_compare(&mut self, now: Monotonic) -> Option<usize> {
        if let Some((_, place)) = self.fresh.pop_front_if(|(found, _)| now.since(*found) >= SETTLES) {
            if let Some(Some(seen)) = self.seen.get_mut(place) {
                seen.is_fresh = false;
            }
            return Some(place);
        }
        let sweep = self.sweep.as_mut().filter(|sweep| now.since(sweep.since) >= SETTLES)?;
        let place = sweep.next;
        (sweep.next, sweep.left) = ((place + 1) % self.seen.len().max(1), sweep.left.saturating_sub(1));
        if sweep.left == 0 {
            self.sweep = None;
        }
        Some(place)
    }
}

impl ClusterState {
    /// This process begins to decide. It was never asked about the pods that wait.
    pub fn begins_to_lead(&mut self, now: Monotonic) {
        self.waiting.are_inherited();
        let Wakes { pace, served, number, looks, .. } = std::mem::take(&mut self.wakes);
        self.wakes = Wakes { pace, served, number, looks, not_before: now.after(AFTER_WIN), ..Wakes::default() };
        self.wakes.pace.forget_open();
    }

    /// The pod watch shows a pod without a node that kube-scheduler may place. Called before [`ClusterState::pod_is`].
    pub fn pod_waits(&mut self, request: &PlacementRequest, now: Monotonic) {
        if self.locations.contains_key(&request.uid) {
            return;
        }
        // An etcd restore has brought it back. kube-scheduler may have asked about it before this was known, and that is forgotten.
        let returns = self.gone.has(&request.uid);
        self.waiting.is_shown(request, returns, now);
        if returns {
            self.wakes.swept = None;
        }
    }

    /// A pod does not wait: it is bound or gone, is ending, has gates, or is not for this scheduler.
    pub fn does_not_wait(&mut self, uid: &PodUid) {
        self.waiting.remove(uid);
        self.wakes.pace.is_gone(uid);
        self.wakes.kept.remove(uid);
    }

    /// The pod watch shows that no scheduler may place this version of a pod, or that its request cannot be read.
    pub fn cannot_be_placed(&mut self, uid: &PodUid, version: Option<u64>) {
        // kube-scheduler has asked about it, and it still counts as refused; or about a newer version, which the watch shows later.
        if !self.waiting.is_known_unplaceable(uid) && !self.waiting.is_known_newer(uid, version) {
            self.does_not_wait(uid);
        }
    }

    /// This process no longer decides: another leader learns the outcome of its wakes.
    pub(super) fn forget_wakes(&mut self) {
        self.wakes.kept.clear();
        self.wakes.pace.forget_open();
    }

    /// Whether a pod that was to be woken still waits for its wake.
    #[must_use]
    pub fn may_wake(&self, uid: &PodUid, now: Monotonic) -> bool {
        self.wakes.kept.get(uid).is_some_and(|kept| now < kept.until)
    }

    /// A pod could not be written, and was not woken.
    pub fn wake_has_failed(&mut self, uid: &PodUid) {
        self.wakes.pace.has_failed(uid);
        self.wakes.kept.remove(uid);
    }

    /// What wakes have led to.
    #[must_use]
    pub fn wake_counts(&self) -> WakeCounts {
        self.wakes.pace.counts()
    }

    /// kube-scheduler has asked about a pod.
    pub(super) fn wake_is_asked(&mut self, uid: &PodUid, passes: bool) {
        self.wakes.pace.is_asked(uid, passes);
        self.wakes.kept.remove(uid);
    }

    /// The number of the newest look at changed nodes, and the highest number of a node: what a call that begins now knows.
    pub(super) fn known_changes(&self) -> (u64, u64) {
        (self.wakes.looks, self.numbered)
    }

    /// A node fits a pod.
    pub(super) fn passes(&mut self, request: &PlacementRequest, now: Monotonic) {
        self.wake_is_asked(&request.uid, true);
        if !self.gone.has(&request.uid) {
            self.waiting.passes(request, now);
        }
    }

    /// A call does not name the node where the pod may be bound already. Once that is known to be over, any other node may fit.
    pub(super) fn refuse_elsewhere(&mut self, request: &PlacementRequest, nodes: &[&str], now: Monotonic) {
        let versions = nodes.iter().filter_map(|name| self.versions.get(*name));
        let places = versions.map(|version| version.place()).collect();
        let (changes, newest_node) = self.known_changes();
        let asked = Asked { newest_node, nodes: self.waiting.shared(places) };
        self.refuse(request.clone(), asked, changes, now);
    }

    /// No node fits a pod. The call knew the changes up to this number.
    pub(super) fn refuse(&mut self, request: PlacementRequest, asked: Asked, changes: u64, now: Monotonic) {
        self.wake_is_asked(&request.uid, false);
        // No event would remove a pod that was deleted during its call.
        if self.gone.has(&request.uid) {
            return;
        }
        // Nodes may have changed while the call judged others, so the call has not seen that.
        let wakes = &self.wakes;
        let is_newer = |seen: &Option<SeenNode>| seen.as_ref().is_some_and(|seen| seen.at > changes);
        let places = if wakes.looks > changes { &*wakes.seen } else { &[] };
        let newer = places.iter().enumerate().filter(|(_, seen)| is_newer(seen)).map(|(place, _)| place);
        self.wakes.is_due |= self.waiting.is_refused(request, asked, newer, now);
    }

    /// The pods that are to be woken now. Such a pod is not woken again for a while, and its room is kept, so the caller writes to
    /// the pod, or reports that it cannot.
    pub fn wakes(&mut self, now: Monotonic) -> WakeStep {
        for uid in self.wakes.pace.late(now) {
            self.wakes.kept.remove(&uid);
        }
        self.count_ended_nominations(now);
        if now < self.wakes.not_before || !self.waiting.any_may_be_woken() {
            return WakeStep::default();
        }
        self.look_for_changes(now);
        let more = self.compare_changed(now);
        let Wakes { lines, is_due, due, .. } = &self.wakes;
        if lines.is_none() && !is_due && due.is_none_or(|due| now < due) {
            return WakeStep { wakes: Vec::new(), more };
        }
        let waiting = &self.waiting;
        if self.wakes.served.len() > MOST {
            self.wakes.served.retain(|namespace, _| waiting.has_namespace(namespace));
        }
        self.wakes.pace.forget(now, |uid| waiting.has(uid));
        let mut step = self.wake_in_order(now);
        step.more |= more;
        step
    }

    /// A pod that waits is no longer expected on a node: any node may fit it now.
    pub(super) fn is_released(&mut self, uid: &PodUid) {
        if self.waiting.may_be_woken(uid).is_some() {
            self.wakes.swept = None;
        }
    }

    /// Finds the nodes that have changed since the last look. From time to time all nodes are due to be compared again.
    fn look_for_changes(&mut self, now: Monotonic) {
        let changes = self.changes.load(Ordering::Acquire);
        let wakes = &mut self.wakes;
        let sweeps = wakes.swept.is_none_or(|swept| now.since(swept) >= SWEEP && wakes.sweep.is_none());
        if wakes.looked == Some(changes) && !sweeps {
            return;
        }
        wakes.looked = Some(changes);
        wakes.looks += 1;
        let mut unchanged = 0;
        for (name, version) in self.versions.iter() {
            let (place, numbers) = (version.place(), version.numbers());
            if wakes.seen.len() <= place {
                wakes.seen.resize(place + 1, None);
            }
            let Some(seen) = wakes.seen.get_mut(place) else { continue };
            let was_fresh = seen.as_ref().is_some_and(|seen| seen.is_fresh);
            let has_changed = seen.as_ref().is_none_or(|seen| seen.numbers != numbers);
            if has_changed && !was_fresh {
                wakes.fresh.push_back((now, place));
            }
            unchanged += usize::from(!has_changed && !was_fresh);
            if has_changed || sweeps {
                let is_fresh = has_changed || was_fresh;
                *seen = Some(SeenNode { name: name.clone(), numbers, at: wakes.looks, is_fresh });
            }
        }
        if sweeps {
            wakes.swept = Some(now);
            let before = wakes.sweep.map(|sweep| (sweep.since, sweep.next));
            let (since, next) = before.unwrap_or((now, 0));
            wakes.sweep = (unchanged > 0).then_some(Sweep { since, next, left: wakes.seen.len() });
        }
    }

    /// Finds for each changed node the kinds of requests that may fit there. Returns whether more nodes are to be compared now.
    fn compare_changed(&mut self, now: Monotonic) -> bool {
        let mut work = 0;
        if let Some((place, first)) = self.wakes.comparing.take() {
            self.compare(place, Some(&first), &mut work);
        }
        while work < WORK
            && let Some(place) = self.wakes.next_to_compare(now)
        {
            work += KIND;
            self.compare(place, None, &mut work);
        }
        let Wakes { comparing, fresh, sweep, .. } = &self.wakes;
        let has_settled = |since: Monotonic| now.since(since) >= SETTLES;
        comparing.is_some()
            || fresh.front().is_some_and(|(found, _)| has_settled(*found))
            || sweep.is_some_and(|sweep| has_settled(sweep.since))
    }

    /// Finds the kinds of requests, from `first` on, that may fit on a node, until the step has done enough. A kind that comes before
    /// `first` meanwhile is not missed: its call knew the change of the node, or [`ClusterState::refuse`] adds the node.
    fn compare(&mut self, place: usize, first: Option<&Signature>, work: &mut usize) {
        let name = self.wakes.seen.get(place).and_then(Option::as_ref).map(|seen| &seen.name);
        let Some(node) = name.and_then(|name| self.nodes.get(name)).filter(|node| node.closed().is_none()) else {
            return;
        };
        for (signature, kind) in self.waiting.kinds_mut_from(first) {
            if *work >= WORK {
                self.wakes.comparing = Some((place, Arc::clone(signature)));
                return;
            }
            if may_fit(node, &kind.needs, &signature.selection, work) {
                // Even if the node is known already: a pod that was asked about since then may not be any more.
                kind.maybe.insert(place);
                self.wakes.is_due = true;
            }
        }
    }

    fn wake_in_order(&mut self, now: Monotonic) -> WakeStep {
        if let Some(free) = self.wakes.pace.waits(now) {
            // All due pods stay due, and at that moment all pods are looked at, even pods that are due before.
            self.wakes.lines = None;
            self.wakes.due = Some(free);
            return WakeStep::default();
        }
        let lines = self.wakes.lines.take();
        let lines = lines.filter(|lines| lines.searched.is_none_or(|searched| now.since(searched) < IN_LINE));
        let mut lines = lines.unwrap_or_else(|| self.looks_anew(now));
        // The pods are not changed, only the data of their kinds.
        let mut waiting = std::mem::take(&mut self.waiting);
        let (mut step, mut work) = (WakeStep::default(), 0);
        if lines.searched.is_none() {
            self.search(&waiting, &mut lines, &mut work, now);
        }
        while work < WORK && self.wakes.pace.waits(now).is_none() {
            let Some((member, signature)) = lines.first() else { break };
            let found = self.find_room(&mut waiting, (&member, &signature), &mut work, now);
            if found.is_none() && work >= WORK {
                // The next step goes on with this pod.
                break;
            }
            let (namespace, (.., uid)) = &member;
            let woken = found.and_then(|room| self.wake(&waiting, uid, room, now));
            lines.remove_first(namespace, woken.as_ref().map(|wake| wake.number));
            if let Some(at) = self.wakes.pace.pod_waits(uid, now) {
                // If the write fails, or kube-scheduler does not ask, nothing else brings the pod back.
                lines.may_be_woken_at(at);
            }
            step.wakes.extend(woken);
        }
        self.waiting = waiting;
        if lines.are_over() {
            self.wakes.is_due |= lines.more;
            let blocked = self.wakes.blocked.map(|at| at.after(BLOCKED));
            self.wakes.due = [lines.due, blocked].into_iter().flatten().min();
            step.more = self.wakes.is_due;
        } else {
            self.wakes.lines = Some(lines);
            step.more = true;
        }
        step
    }

    /// Begins a search. From time to time it also includes the nodes whose room was kept for other pods.
    fn looks_anew(&mut self, now: Monotonic) -> Lines {
        if self.wakes.blocked.is_some_and(|at| now.since(at) >= BLOCKED) {
            self.wakes.blocked = None;
            for (_, kind) in self.waiting.kinds_mut_from(None) {
                kind.maybe.take_all(&mut kind.blocked);
            }
        }
        self.wakes.is_due = false;
        self.wakes.due = None;
        Lines::default()
    }

    /// Puts pods in line for which some node may have room: of each kind and namespace about as many as may be woken in a second.
    /// Goes on where the last step ended. If a node gets room for a kind meanwhile, or for a pod whose call did not know the change
    /// of the node, `is_due` is set, and another search follows.
    fn search(&self, waiting: &WaitingPods, lines: &mut Lines, work: &mut usize, now: Monotonic) {
        let mut next = lines.next.take();
        let first = next.as_ref().map(|(signature, _)| Arc::clone(signature));
        for (signature, kind) in waiting.kinds_from(first.as_deref()) {
            *work += KIND;
            let next = next.take().filter(|(first, _)| first == signature).map(|(_, member)| member);
            if kind.maybe.is_empty() {
                continue;
            }
            let (mut taken, mut last) = ((None, 0), None);
            for member in kind.members_from(next.as_ref()) {
                if *work >= WORK {
                    lines.next = Some((Arc::clone(signature), member.clone()));
                    return;
                }
                let (namespace, (.., uid)) = member;
                if taken.0 != Some(namespace) {
                    taken = (Some(namespace), 0);
                }
                if taken.1 == A_SECOND {
                    *work += KIND;
                    lines.more = true;
                    continue;
                }
                *work += LOOKUP;
                let Some((_, asked)) = waiting.may_be_woken(uid) else { continue };
                if !self.may_use(&kind.maybe, asked, &mut last, work) {
                    continue;
                }
                *work += 3 * LOOKUP;
                if self.locations.contains_key(uid)
                    || planted(PlantedMistake::WokenOnce) && self.wakes.pace.has_woken(uid)
                {
                    continue;
                }
                if let Some(at) = self.wakes.pace.pod_waits(uid, now).max(self.binds_until(uid, now)) {
                    lines.may_be_woken_at(at);
                    continue;
                }
                taken.1 += 1;
                lines.add(member, signature, self.wakes.served.get(namespace).copied().unwrap_or(0));
            }
        }
        lines.searched = Some(now);
    }

    /// Whether a pod may use one of these nodes. `last`: the answer for the previous pod, because the calls for most pods are alike.
    fn may_use<'a>(
        &self,
        maybe: &NodeSet,
        asked: Option<&'a Asked>,
        last: &mut Option<(&'a Asked, bool)>,
        work: &mut usize,
    ) -> bool {
        if let (Some(asked), Some((known, may_use))) = (asked, *last)
            && asked.is_like(known)
        {
            return may_use;
        }
        *work += self.look(maybe, asked);
        let may_use = self.candidates(maybe, asked).next().is_some();
        *last = asked.map(|asked| (asked, may_use));
        may_use
    }

    /// The work to find the candidates of a pod.
    fn look(&self, maybe: &NodeSet, asked: Option<&Asked>) -> usize {
        let newer = asked.filter(|asked| self.numbered > asked.newest_node).map(|_| maybe.both(None).count());
        LOOKUP + newer.unwrap_or(0)
    }

    /// Until when kube-scheduler may be placing a pod for which a node fitted in an earlier term of this process.
    fn binds_until(&self, uid: &PodUid, now: Monotonic) -> Option<Monotonic> {
        self.pending.get(uid).map(|pending| pending.filtered.after(BINDS_WITHIN)).filter(|until| now < *until)
    }

    /// The places of the nodes in `maybe` that the pod's last filter call named, or that this leader knows only since then:
    /// kube-scheduler often learns of a Node before the leader does, so the call may have named it. All nodes in `maybe` for a pod
    /// that this leader was never asked about.
    fn candidates<'a>(&'a self, maybe: &'a NodeSet, asked: Option<&'a Asked>) -> impl Iterator<Item = usize> + 'a {
        let newest = asked.map_or(u64::MAX, |asked| asked.newest_node);
        let number = move |place: usize| Some(self.wakes.seen.get(place)?.as_ref()?.numbers.0);
        let known = maybe.both(asked.map(|asked| &*asked.nodes));
        let known = known.filter(move |place| number(*place).is_some_and(|number| number <= newest));
        let since = (self.numbered > newest).then(|| maybe.both(None)).into_iter().flatten();
        known.chain(since.filter(move |place| number(*place).is_some_and(|number| number > newest)))
    }

    /// The first node that has room for a pod. Nodes without room are not judged again for pods of the same kind.
    fn find_room(
        &mut self,
        waiting: &mut WaitingPods,
        (member, signature): (&Member, &Arc<Signature>),
        work: &mut usize,
        now: Monotonic,
    ) -> Option<KeptRoom> {
        *work += 2 * LOOKUP;
        // Since the pod was put in line, kube-scheduler may have asked about it, or it may have been changed or bound.
        let kind = waiting.kind(signature).filter(|kind| kind.has(member))?;
        let (request, asked) = waiting.may_be_woken(&member.1.2)?;
        if self.locations.contains_key(&request.uid) {
            return None;
        }
        *work += self.look(&kind.maybe, asked);
        let places: Vec<usize> = self.candidates(&kind.maybe, asked).take(WORK / JUDGED).collect();
        let (mut found, mut judged) = (None, Vec::new());
        for place in places {
            let seen = self.wakes.seen.get(place).and_then(Option::as_ref);
            // The other nodes are judged in the next step.
            let Some(SeenNode { name, .. }) = seen.filter(|_| *work < WORK) else { break };
            match self.room_of(request, name, work, now) {
                NodeRoom::Free(demands) => {
                    found = Some(KeptRoom { node: name.clone(), until: now.after(ASKED_WITHIN), demands });
                    break;
                }
                NodeRoom::Blocked => judged.push((place, true)),
                NodeRoom::Taken => judged.push((place, false)),
            }
        }
        let kind = waiting.kind_mut(signature)?;
        for (place, is_blocked) in judged {
            if is_blocked {
                kind.blocked.insert(place);
                self.wakes.blocked.get_or_insert(now);
            }
            kind.maybe.remove(place);
        }
        found
    }

    /// Whether a node has room for a pod in addition to the pods that are expected there soon or nominated to it.
    fn room_of(&self, request: &PlacementRequest, name: &NodeName, work: &mut usize, now: Monotonic) -> NodeRoom {
        *work += JUDGED;
        let Some(node) = self.nodes.get(name).filter(|node| node.closed().is_none()) else { return NodeRoom::Taken };
        let containers = request.requests.iter().filter(|container| container.slots > 0).count().max(1);
        *work += JUDGED * (containers * node.devices().devices.len().div_ceil(8)).saturating_sub(1);
        let fits = |devices| place(request, devices, &self.rules.placement, CountedClaims::Claims);
        let Ok(alone) = fits(node.devices()) else { return NodeRoom::Taken };
        let nominated = self.beside_nominated(request, node);
        let node = nominated.as_ref().unwrap_or(node);
        let is_soon =
            |uid: &PodUid| self.pending.get(uid).is_some_and(|pending| now.since(pending.filtered) < ASKED_WITHIN);
        let mut expected: BTreeSet<PodUid> = node.expected().filter(|uid| is_soon(uid)).cloned().collect();
        expected.extend(self.gangs.of(request).into_iter().flatten().cloned());
        let counted = |uid: &PodUid| nominated.as_ref().is_some_and(|node| node.ledger().get(uid).is_some());
        let kept = self.wakes.kept.iter().filter(|(uid, kept)| kept.node == *name && !counted(uid));
        let kept: Vec<&KeptRoom> = kept.map(|(_, kept)| kept).collect();
        let with_expected = node.devices_with(&expected);
        if nominated.is_some() || with_expected.is_some() {
            *work += COPIED;
        }
        let beside = match with_expected {
            None if kept.is_empty() && nominated.is_none() => Some(alone),
            devices => {
                let mut devices = devices.unwrap_or_else(|| node.devices().clone());
                for (uuid, demand) in kept.iter().flat_map(|kept| &kept.demands) {
                    devices.devices.iter_mut().filter(|one| one.uuid == *uuid).for_each(|one| one.claimed.add(*demand));
                }
                fits(&devices).ok()
            }
        };
        let Some(placement) = beside else { return NodeRoom::Blocked };
        let (pod, claim) = (gpu_pod(request), placement.claim);
        let devices: BTreeSet<&GpuUuid> = claim.shares().map(|share| &share.device).collect();
        NodeRoom::Free(devices.into_iter().map(|uuid| (uuid.clone(), demand_of(&pod, &claim, uuid))).collect())
    }

    /// Wakes a pod, and keeps this room for it.
    fn wake(&mut self, waiting: &WaitingPods, uid: &PodUid, room: KeptRoom, now: Monotonic) -> Option<Wake> {
        let (request, _) = waiting.may_be_woken(uid)?;
        self.wakes.number += 1;
        let (number, pod) = (self.wakes.number, request.pod.clone());
        self.wakes.pace.wakes(uid, now);
        self.wakes.served.insert(Arc::clone(&pod.namespace), number);
        let node = room.node.clone();
        self.wakes.kept.insert(uid.clone(), room);
        Some(Wake { uid: uid.clone(), pod, node, epoch: self.epoch, number })
    }
}

/// Whether a node has enough GPUs, and for each container of a kind a GPU with enough of everything, by claims alone.
fn may_fit(node: &NodeClaims, needs: &[Need], selection: &GpuSelection, work: &mut usize) -> bool {
    let devices = &node.devices().devices;
    let mut accepted = AcceptedDevices::of(selection);
    let mut seen = 0;
    let has = |need: &Need| {
        devices.len() >= need.gpus
            && devices.iter().any(|device| {
                seen += 1;
                let (has, claimed) = (device.capacity, device.claimed);
                has.memory.saturating_sub(claimed.memory) >= need.memory
                    && has.cores.saturating_sub(claimed.cores) >= need.cores
                    && has.slots > claimed.containers
                    && accepted.has(device)
            })
    };
    let fits = needs.iter().all(has);
    *work += KIND + seen + PRODUCT * accepted.compared();
    fits
}

#[cfg(test)]
mod tests;
