//! Remembers what the pods of the node hold, until their containers are gone. The API server may delete a pod earlier: after
//! `kubectl delete --force` the containers run on for the whole grace period of the pod.
//!
//! ```text
//!   pod list ──listed──▶ known: got no GPU, or these devices ──▶ without_gpus, gone ──▶ report to the extender
//!   starts   ──starts──▶ starting, until the container appears ──▶ starting
//!   files    ──recall──▶ what an earlier process gave to pods that the first list does not show
//!   cgroups  ──seen────▶ forgets pods that are neither listed nor have a container
//!   cgroups and list ──are_left_out──▶ pods that the list has no place for: got no GPU
//! ```
//!
//! Any user who may create pods can make a pod look like a static pod, with any UID as its hash. So a static pod in a list never
//! changes what is known of another pod, and is never a proof that a pod holds nothing.
//!
//! A pod that requests GPUs also holds nothing until a container of it gets a GPU: once the pod is gone, the agent gives it no GPU.
//! GPUs that its other containers open through `NVIDIA_VISIBLE_DEVICES` count like GPUs of a pod without a request.
//!
//! What must never happen here: a pod of which a container got a GPU counts as a pod without GPUs.

use model::id::{GpuUuid, PodUid};
use model::pod::PodList;
use model::time::Monotonic;
use model::view::{NodeView, PodView};
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// A container whose start was answered exists after this time, or its start has failed. The image is there already, so a
/// runtime needs a second or two.
const APPEARS_WITHIN: Duration = Duration::from_secs(10);
/// How long the agent remembers a pod that is gone and has no visible container: the kubelet may still be starting a container.
const REMEMBERED: Duration = Duration::from_secs(60);
/// Maximum number of pods, of about 200 bytes each. The pod list has at most 1,024 pods, and the agent sees at most 9,216 cgroups.
const MOST: usize = 8192;

/// What a pod holds, by the last list that showed it alive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PodHolds {
    /// No container of the pod got a GPU.
    Nothing,
    /// A container of the pod got GPUs: the devices of its claim, or an empty set if another device plugin gave them.
    Devices(BTreeSet<GpuUuid>),
}

/// A pod in a list.
#[derive(Clone, Debug)]
pub struct ListedPod {
    /// The UID that the pod's cgroup has.
    pub uid: PodUid,
    /// Whether this UID is the hash of a static pod.
    pub is_static: bool,
    /// What the pod holds.
    pub holds: PodHolds,
}

/// The pods of the node.
#[derive(Clone, Debug, Default)]
pub struct GonePods {
    pods: BTreeMap<PodUid, KnownPod>,
    /// Pods of which a container is starting, with the time of the answer to its last start.
    starts: BTreeMap<PodUid, Monotonic>,
    /// The devices that an earlier process gave to pods, until a list shows which of these pods are gone.
    recalled: BTreeMap<PodUid, BTreeSet<GpuUuid>>,
}

#[derive(Clone, Debug)]
struct KnownPod {
    is_static: bool,
    holds: PodHolds,
    /// Since when no list shows the pod alive.
    gone: Option<Monotonic>,
    /// Whether the pod may have a container, by the last view.
    has_containers: bool,
}

impl KnownPod {
    fn new(is_static: bool, holds: PodHolds, gone: Option<Monotonic>) -> KnownPod {
        KnownPod { is_static, holds, gone, has_containers: false }
    }
}

impl GonePods {
    /// An earlier process of the agent gave containers of these pods these devices. The next list shows which of the pods are gone.
    pub fn recall(&mut self, given: BTreeMap<PodUid, BTreeSet<GpuUuid>>) {
        self.recalled = given;
    }

    /// The newest list of the pods that have not ended. All others are gone.
    pub fn listed(&mut self, alive: impl IntoIterator<Item = ListedPod>, now: Monotonic) {
        let mut own: BTreeMap<PodUid, PodHolds> = BTreeMap::new();
        let mut statics: BTreeMap<PodUid, PodHolds> = BTreeMap::new();
        for pod in alive {
            match (pod.is_static, &pod.holds) {
                (false, _) => drop(own.insert(pod.uid, pod.holds)),
                (true, PodHolds::Devices(_)) => drop(statics.insert(pod.uid, pod.holds)),
                (true, PodHolds::Nothing) => {}
            }
        }
        for (uid, pod) in &mut self.pods {
            let shown = own.remove(uid).map(|holds| (false, holds));
            let shown = shown.or_else(|| statics.remove(uid).filter(|_| pod.is_static).map(|holds| (true, holds)));
            match shown {
                // The list shows no GPU of this pod, but an earlier record may have shown one, so what the pod holds stays.
                Some((false, PodHolds::Nothing)) if !pod.is_static => pod.gone = None,
                Some((is_static, holds)) => (pod.is_static, pod.holds, pod.gone) = (is_static, holds, None),
                None => pod.gone = pod.gone.or(Some(now)),
            }
        }
        let known = |is_static| move |(uid, holds)| (uid, KnownPod::new(is_static, holds, None));
        statics.retain(|uid, _| !self.pods.contains_key(uid) && !own.contains_key(uid));
        self.pods.extend(statics.into_iter().map(known(true)));
        self.pods.extend(own.into_iter().map(known(false)));
        for (uid, devices) in std::mem::take(&mut self.recalled).into_iter().take(MOST) {
            if let Entry::Vacant(place) = self.pods.entry(uid.clone()) {
                place.insert(KnownPod::new(false, PodHolds::Devices(devices), Some(now)));
                // The agent has just started: the first pass over the cgroups may not have ended yet.
                self.starts.insert(uid, now);
            }
        }
        while self.pods.len() > MOST {
            // A pod without a container most likely holds nothing any more, so it goes first.
            let oldest = self.pods.iter().filter_map(|(uid, pod)| Some((pod.has_containers, pod.gone?, uid))).min();
            let Some(oldest) = oldest.map(|(_, _, uid)| uid.clone()) else { break };
            self.pods.remove(&oldest);
        }
    }

    /// Takes in the pods of the view that did not fit into the list. Pods that request no GPU hold none. Pods that request GPUs and
    /// have no claim hold none either, if the agent `refuses` such pods. Pods that are known already stay as they are.
    pub fn are_left_out(&mut self, view: &NodeView, list: &PodList, refuses: bool) {
        let unproven: &[PodUid] = if refuses { &list.left_out_unproven } else { &[] };
        let is_left_out =
            |uid: &PodUid| [&*list.left_out_plain, unproven].iter().any(|uids| uids.binary_search(uid).is_ok());
        for pod in view.pods.iter().filter(|pod| is_left_out(&pod.uid)) {
            if self.pods.len() < MOST && !self.pods.contains_key(&pod.uid) {
                // It is remembered as long as it has a container, like a pod that no list shows.
                let gone = Some(view.now.monotonic);
                self.pods.insert(pod.uid.clone(), KnownPod::new(false, PodHolds::Nothing, gone));
            }
        }
    }

    /// Another device plugin gave the pod devices.
    pub fn holds_others(&mut self, uid: &PodUid) {
        if let Some(pod) = self.pods.get_mut(uid).filter(|pod| pod.holds == PodHolds::Nothing) {
            pod.holds = PodHolds::Devices(BTreeSet::new());
        }
    }

    /// A container of the pod gets these devices, so it starts now.
    pub fn starts(&mut self, uid: &PodUid, devices: impl IntoIterator<Item = GpuUuid>, now: Monotonic) {
        if self.starts.len() < MOST {
            self.starts.insert(uid.clone(), now);
        }
        let nothing = KnownPod::new(false, PodHolds::Nothing, None);
        let pod = self.pods.entry(uid.clone()).or_insert(nothing);
        match &mut pod.holds {
            PodHolds::Devices(held) => held.extend(devices),
            PodHolds::Nothing => pod.holds = PodHolds::Devices(devices.into_iter().collect()),
        }
    }

    /// Takes in a new view of the node. Forgets pods that are gone and have no container. Returns whether a pod that is gone has
    /// lost its last container since the previous view.
    pub fn seen(&mut self, view: &NodeView) -> bool {
        let now = view.now.monotonic;
        let shown: BTreeSet<&PodUid> =
            view.pods.iter().filter(|pod| shows_container(pod)).map(|pod| &pod.uid).collect();
        let with_containers: BTreeSet<&PodUid> =
            view.pods.iter().filter(|pod| has_containers(pod, view)).map(|pod| &pod.uid).collect();
        self.starts.retain(|uid, at| {
            let appeared = now > *at && shown.contains(uid);
            now.since(*at) < APPEARS_WITHIN && !appeared
        });
        let mut any_ended = false;
        self.pods.retain(|uid, pod| {
            let had_containers = std::mem::replace(&mut pod.has_containers, with_containers.contains(uid));
            any_ended |= pod.gone.is_some() && had_containers && !pod.has_containers;
            pod.has_containers || pod.gone.is_none_or(|gone| now.since(gone) < REMEMBERED)
        });
        any_ended
    }

    /// The pods of which no container got a GPU, whether they are gone or not.
    #[must_use]
    pub fn without_gpus(&self) -> BTreeSet<PodUid> {
        let pods = self.pods.iter().filter(|(_, pod)| pod.holds == PodHolds::Nothing);
        pods.map(|(uid, _)| uid.clone()).collect()
    }

    /// The pods that are gone and may hold GPUs, with the devices of their claims.
    #[must_use]
    pub fn gone(&self) -> BTreeMap<PodUid, BTreeSet<GpuUuid>> {
        let holds = |pod: &KnownPod| match &pod.holds {
            PodHolds::Devices(devices) if pod.gone.is_some() => Some(devices.clone()),
            PodHolds::Devices(_) | PodHolds::Nothing => None,
        };
        self.pods.iter().filter_map(|(uid, pod)| Some((uid.clone(), holds(pod)?))).collect()
    }

    /// The pods that are gone and of which a container may still have GPUs. The next process of the agent must know of them too.
    #[must_use]
    pub fn that_run_on(&self) -> BTreeSet<PodUid> {
        let pods = self.pods.iter().filter(|(uid, pod)| {
            let has_containers = pod.has_containers || self.starts.contains_key(*uid);
            has_containers && pod.gone.is_some() && pod.holds != PodHolds::Nothing
        });
        pods.map(|(uid, _)| uid.clone()).collect()
    }

    /// The pods of which a container is starting.
    #[must_use]
    pub fn starting(&self) -> BTreeSet<PodUid> {
        self.starts.keys().cloned().collect()
    }
}

/// Whether a container of the pod may exist. While the node has more cgroups than are sampled, containers of the pod may be left
/// out, so its own cgroup counts.
#[must_use]
pub fn has_containers(pod: &PodView, view: &NodeView) -> bool {
    shows_container(pod) || (view.cgroups_left_out > 0 && pod.cgroup.is_some())
}

/// Whether the view shows a container of the pod. The pod's sandbox runs no program of the pod; it counts only while it is not known
/// which container is the sandbox.
fn shows_container(pod: &PodView) -> bool {
    pod.containers.iter().any(|container| !container.sandbox)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::container_of;
    use model::cgroup::{CgroupIdentity, CgroupKind, Qos};
    use model::id::NodeName;
    use model::time::Now;
    use std::sync::Arc;

    fn uid(n: usize) -> PodUid {
        PodUid::parse(&format!("{n:032x}")).unwrap()
    }

    fn second(second: u64) -> Monotonic {
        Monotonic(1).after(Duration::from_secs(second))
    }

    /// A view at this second, in which these pods have a container.
    fn view(at: u64, pods: &[usize]) -> NodeView {
        let mut view = NodeView::empty(NodeName::parse("n1").unwrap(), Now::default());
        view.now.monotonic = second(at);
        view.pods = pods.iter().map(|n| container_of(&uid(*n), false)).collect();
        view
    }

    fn listed(n: usize, holds: PodHolds) -> ListedPod {
        ListedPod { uid: uid(n), is_static: false, holds }
    }

    fn devices(uuids: &[&str]) -> PodHolds {
        PodHolds::Devices(uuids.iter().map(|uuid| GpuUuid::parse(uuid).unwrap()).collect())
    }

    #[test]
    fn a_pod_that_is_gone_is_remembered_as_long_as_it_has_a_container() {
        let mut pods = GonePods::default();
        pods.listed([listed(1, PodHolds::Nothing), listed(2, devices(&["GPU-1"]))], second(0));
        pods.seen(&view(1, &[]));
        assert_eq!((pods.without_gpus(), pods.gone()), (BTreeSet::from([uid(1)]), BTreeMap::new()));
        pods.listed([], second(10));
        let held = BTreeMap::from([(uid(2), BTreeSet::from([GpuUuid::parse("GPU-1").unwrap()]))]);
        // The kubelet may still be starting a container.
        pods.seen(&view(69, &[]));
        assert_eq!((pods.without_gpus(), pods.gone()), (BTreeSet::from([uid(1)]), held.clone()));
        pods.listed([], second(70));
        pods.seen(&view(1_000_000, &[1, 2]));
        assert_eq!((pods.without_gpus(), pods.gone()), (BTreeSet::from([uid(1)]), held));
        pods.seen(&view(1_000_001, &[]));
        assert_eq!((pods.without_gpus(), pods.gone()), (BTreeSet::new(), BTreeMap::new()));
    }

    #[test]
    fn a_pod_with_devices_of_another_plugin_holds_gpus_even_after_it_is_gone() {
        let mut pods = GonePods::default();
        pods.listed([listed(1, PodHolds::Nothing)], second(0));
        pods.listed([], second(1));
        pods.holds_others(&uid(1));
        assert_eq!((pods.without_gpus(), pods.gone().len()), (BTreeSet::new(), 1));
        pods.listed([listed(1, PodHolds::Nothing)], second(2));
        pods.listed([], second(3));
        assert_eq!(
            (pods.without_gpus(), pods.gone().len()),
            (BTreeSet::new(), 1),
            "the kubelet has dropped its record"
        );
    }

    /// A pod with the annotations of a static pod and the UID of another pod as its hash.
    #[test]
    fn a_static_pod_changes_nothing_of_the_pod_whose_uid_it_has() {
        let posing = |n, holds| ListedPod { is_static: true, ..listed(n, holds) };
        let mut pods = GonePods::default();
        let own = [listed(1, PodHolds::Nothing), listed(2, devices(&["GPU-1"]))];
        let fakes = [posing(1, devices(&["GPU-2"])), posing(2, PodHolds::Nothing), posing(3, PodHolds::Nothing)];
        pods.listed(own.iter().chain(&fakes).cloned(), second(0));
        assert_eq!((pods.without_gpus(), pods.gone()), (BTreeSet::from([uid(1)]), BTreeMap::new()));
        pods.listed(fakes.iter().cloned(), second(1));
        assert_eq!(pods.without_gpus(), BTreeSet::from([uid(1)]));
        assert_eq!(pods.gone().into_keys().collect::<Vec<_>>(), [uid(2)]);
        // A real static pod, and its mirror that is deleted.
        pods.listed([posing(4, devices(&["GPU-1"]))], second(2));
        pods.listed([posing(4, devices(&["GPU-2"]))], second(3));
        pods.listed([posing(4, PodHolds::Nothing)], second(4));
        let expected = BTreeSet::from([GpuUuid::parse("GPU-2").unwrap()]);
        assert_eq!(pods.gone().get(&uid(4)), Some(&expected));
    }

    #[test]
    fn a_start_counts_until_its_container_is_seen_or_ten_seconds_are_over() {
        let mut pods = GonePods::default();
        pods.listed([listed(1, PodHolds::Nothing)], second(4));
        let device = GpuUuid::parse("GPU-1").unwrap();
        pods.starts(&uid(1), [device.clone()], second(5));
        pods.starts(&uid(2), [], second(5));
        assert_eq!(pods.without_gpus(), BTreeSet::new());
        pods.seen(&view(5, &[1]));
        assert_eq!(pods.starting(), BTreeSet::from([uid(1), uid(2)]), "a container from before the start");
        pods.seen(&view(6, &[1]));
        assert_eq!(pods.starting(), BTreeSet::from([uid(2)]));
        pods.seen(&view(15, &[]));
        assert_eq!(pods.starting(), BTreeSet::new());
        pods.listed([], second(16));
        assert_eq!(pods.gone().get(&uid(1)), Some(&BTreeSet::from([device])));
    }

    /// An earlier process of the agent gave all of them devices, and two are gone since.
    #[test]
    fn a_pod_that_is_gone_when_the_agent_starts_holds_its_devices_as_long_as_it_has_a_container() {
        let held = |uuid: &str| BTreeSet::from([GpuUuid::parse(uuid).unwrap()]);
        let mut pods = GonePods::default();
        pods.recall(BTreeMap::from([1, 2, 3].map(|n| (uid(n), held("GPU-1")))));
        pods.seen(&view(0, &[]));
        pods.listed([listed(1, devices(&["GPU-2"]))], second(1));
        assert_eq!(pods.gone(), BTreeMap::from([2, 3].map(|n| (uid(n), held("GPU-1")))));
        // A pass over the cgroups that began early shows only one of the pods.
        pods.seen(&view(2, &[2]));
        assert_eq!(pods.that_run_on(), BTreeSet::from([uid(2), uid(3)]));
        assert!(!pods.seen(&view(11, &[1, 2])));
        assert_eq!(pods.that_run_on(), BTreeSet::from([uid(2)]), "the first one is not gone");
        pods.seen(&view(1000, &[1, 2]));
        assert_eq!(pods.gone(), BTreeMap::from([(uid(2), held("GPU-1"))]));
        assert!(pods.seen(&view(1001, &[1])), "the last container is gone");
        assert_eq!((pods.gone(), pods.that_run_on()), (BTreeMap::new(), BTreeSet::new()));
        pods.listed([], second(1002));
        assert_eq!(pods.gone(), BTreeMap::from([(uid(1), held("GPU-2"))]));
    }

    #[test]
    fn the_pods_are_bounded_and_those_without_containers_that_are_gone_longest_are_forgotten_first() {
        let mut pods = GonePods::default();
        pods.listed([listed(0, devices(&["GPU-1"])), listed(1, PodHolds::Nothing)], second(0));
        pods.listed([listed(1, PodHolds::Nothing), listed(2, PodHolds::Nothing)], second(1));
        pods.listed([], second(2));
        pods.seen(&view(3, &[0]));
        pods.listed((3..=MOST).map(|n| listed(n, PodHolds::Nothing)), second(4));
        let known = |pods: &GonePods| [0, 1, 2].map(|n| pods.pods.contains_key(&uid(n)));
        assert_eq!((pods.pods.len(), known(&pods)), (MOST, [true, false, true]));
        pods.listed((3..=MOST + 2).map(|n| listed(n, PodHolds::Nothing)), second(5));
        assert_eq!((pods.pods.len(), known(&pods)), (MOST, [false, false, false]), "those that exist stay");
    }

    #[test]
    fn a_sandbox_is_no_container() {
        let view = view(0, &[]);
        let has = |sandbox| has_containers(&container_of(&uid(1), sandbox), &view);
        assert!(has(false) && !has(true));
    }

    /// An owner of a pod whose status the kubelet cannot write makes it one of too many pods of its node.
    #[test]
    fn a_pod_that_the_list_has_no_place_for_holds_nothing_if_it_gets_no_gpu() {
        let left_out = |plain: &[usize], unproven: &[usize]| PodList {
            left_out_plain: plain.iter().map(|n| uid(*n)).collect(),
            left_out_unproven: unproven.iter().map(|n| uid(*n)).collect(),
            ..PodList::default()
        };
        for (refuses, expected) in [(true, BTreeSet::from([uid(1), uid(2)])), (false, BTreeSet::from([uid(1)]))] {
            let mut pods = GonePods::default();
            pods.starts(&uid(3), [], second(0));
            pods.listed([listed(4, devices(&["GPU-1"]))], second(0));
            pods.listed([], second(1));
            pods.are_left_out(&view(2, &[1, 2, 3, 4, 6]), &left_out(&[1, 3, 5], &[2, 4]), refuses);
            assert_eq!(pods.without_gpus(), expected, "{refuses}");
            // It is deleted by force, and its containers run on.
            pods.listed([], second(3));
            pods.seen(&view(1000, &[1, 2, 3, 4, 6]));
            assert_eq!(pods.without_gpus(), expected, "{refuses}");
            assert_eq!(pods.gone().into_keys().collect::<Vec<_>>(), [uid(3), uid(4)]);
            // Another plugin gave it a device.
            pods.holds_others(&uid(1));
            assert!(!pods.without_gpus().contains(&uid(1)));
        }
    }

    /// A user of the node starts so many containers that the pod's containers are not sampled.
    #[test]
    fn a_pod_whose_containers_may_be_left_out_is_remembered_as_long_as_it_has_a_cgroup() {
        let mut pods = GonePods::default();
        pods.listed([listed(1, devices(&["GPU-1"])), listed(2, devices(&["GPU-1"]))], second(0));
        pods.starts(&uid(1), [], second(1));
        pods.listed([], second(2));
        let crowded = |at, left_out| {
            let mut view = view(at, &[]);
            let kind = CgroupKind::Pod { uid: uid(1), qos: Qos::Burstable };
            let cgroup = Some(Arc::new(CgroupIdentity { path: "/kubepods/pod1".into(), kind }));
            (view.cgroups_left_out, view.pods) = (left_out, vec![PodView { cgroup, ..crate::pods::bare(&uid(1)) }]);
            view
        };
        pods.seen(&crowded(3, 1));
        assert_eq!(pods.starting(), BTreeSet::from([uid(1)]), "its container may not exist yet");
        pods.seen(&crowded(1000, 1));
        assert_eq!(pods.gone().into_keys().collect::<Vec<_>>(), [uid(1)]);
        pods.seen(&crowded(1001, 0));
        assert_eq!(pods.gone(), BTreeMap::new(), "all cgroups are sampled, and none is of its containers");
    }
}
