//! What the reason codes do not say to the owner of a pod that no node fits: what the pod asked for and what is free, which pods
//! hold the GPUs, and why nodes are closed.
//!
//! The verdicts about nodes have only codes and numbers, because a call is about thousands of nodes. These sentences are made
//! afterwards, from the first nodes with a reason.
//!
//! What must never happen here: a sentence names a pod of another namespace than the pod that it is for.

use super::filter::RefusedNode;
use super::node::NodeClaims;
use super::state::ClusterState;
use crate::ledger::DeviceDemand;
use crate::placement::{PlacementDevice, RefusalReason, accepts_kind};
use model::id::GpuUuid;
use model::nvidia::{AVOID_TYPES, AVOID_UUIDS, CORES, SHARING_MODES, USE_TYPES, USE_UUIDS};
use model::placement::{GpuSelection, PlacementRequest};
use std::collections::BTreeSet;

/// Maximum number of refused nodes that are looked at, for some microseconds each: they show most clusters' kinds of GPUs.
const LOOKED_AT: usize = 256;
/// Maximum number of items that a sentence names; it counts the rest. The note of an event has 1,024 characters for all
/// sentences.
const SHOWN: usize = 3;
/// Maximum number of characters of one item. The longest product names of NVIDIA have about 40.
const MAX_ITEM: usize = 48;

impl ClusterState {
    /// Sentences for the owner of a pod that was refused on these nodes of a call.
    #[must_use]
    pub fn refusal_details(&self, request: &PlacementRequest, refused: &[RefusedNode], names: &[&str]) -> Vec<String> {
        let looked_at = || refused.iter().take(LOOKED_AT);
        let with = |reason: RefusalReason| {
            let has = move |node: &&RefusedNode| node.why.reasons().any(|(one, _)| one == reason);
            looked_at().filter(has).filter_map(|node| self.nodes.get(*names.get(node.place)?))
        };
        let selection = &request.selection;
        let types = with(RefusalReason::CardTypeMismatch);
        let all = || looked_at().filter_map(|node| self.nodes.get(*names.get(node.place)?));
        let uuids = with(RefusalReason::CardUuidMismatch).next().map(|_| uuid_mismatch(selection, all()));
        let alone = with(RefusalReason::ExclusiveDeviceAllocateConflict).next();
        let exhausted = with(RefusalReason::CardComputeUnitsExhausted).next();
        let closed = with(RefusalReason::NodeClosed).next();
        [
            type_mismatch(selection, types),
            uuids,
            alone.and_then(|node| self.not_alone(request, node)),
            exhausted.and_then(|node| self.exhausted(request, node)),
            all().find_map(|node| self.kept_for_nominated(request, node)),
            closed.and_then(|node| {
                let why = self.closing(node.name().as_str())?.told_in(&request.pod.namespace);
                Some(format!("{} takes no new GPU pods: {why}", node.name()))
            }),
        ]
        .into_iter()
        .flatten()
        .collect()
    }

    /// The pod needs an idle GPU: names the users of the GPU with the fewest containers.
    fn not_alone(&self, request: &PlacementRequest, node: &NodeClaims) -> Option<String> {
        let shared = node.devices().devices.iter().filter(|device| device.claimed.containers > 0);
        let device = shared.min_by_key(|device| device.claimed.containers)?;
        let needs = match self.rules.placement.gpu_policy(&request.preference).idle_only {
            true => "the GPU policy mutex".to_owned(),
            false => format!("{CORES}: 100"),
        };
        let holders = self.holders_of(request, node, device);
        Some(format!(
            "{needs} needs a GPU that no other pod uses; {} GPU {} is held by {holders}",
            node.name(),
            device.index
        ))
    }

    /// All SM time of a GPU is claimed: by whom.
    fn exhausted(&self, request: &PlacementRequest, node: &NodeClaims) -> Option<String> {
        let device = node.devices().devices.iter().find(|device| device.claimed.cores >= device.capacity.cores)?;
        let holders = self.holders_of(request, node, device);
        Some(format!("all SM time of {} GPU {} is held by {holders}", node.name(), device.index))
    }

    /// The pods with a share of a device, and how much each has. Pods of other namespaces are only counted.
    fn holders_of(&self, request: &PlacementRequest, node: &NodeClaims, device: &PlacementDevice) -> String {
        let (mut own, mut others) = (Vec::new(), 0_usize);
        for uid in node.ledger().pods_on(&device.uuid) {
            let Some(location) = self.locations.get(uid) else { continue };
            if location.pod.namespace != request.pod.namespace {
                others += 1;
                continue;
            }
            let demand = node.ledger().get(uid).map(|claim| claim.demand(&device.uuid)).unwrap_or_default();
            own.push(format!("{} ({})", location.pod, amounts(demand)));
        }
        let own = Some(listed(own.iter().map(String::as_str))).filter(|_| !own.is_empty());
        let others = match others {
            0 => None,
            1 => Some("a pod of another namespace".to_owned()),
            others => Some(format!("{others} pods of other namespaces")),
        };
        own.into_iter().chain(others).collect::<Vec<_>>().join(" and ")
    }
}

fn amounts(demand: DeviceDemand) -> String {
    let memory = demand.memory >> 20;
    match demand.cores {
        0 => format!("{memory} MiB"),
        cores => format!("{memory} MiB, {cores} % of its SM time"),
    }
}

/// The products that the pod accepts, and the products that these nodes have.
fn type_mismatch<'a>(selection: &GpuSelection, nodes: impl Iterator<Item = &'a NodeClaims>) -> Option<String> {
    let devices = nodes.flat_map(|node| &node.devices().devices);
    let other = devices.filter(|device| !accepts_kind(selection, &device.kind));
    let kinds: BTreeSet<String> = other.map(|device| kind(selection, device)).collect();
    if kinds.is_empty() {
        return None;
    }
    let texts = |list: &[std::sync::Arc<str>]| listed(list.iter().map(|one| &**one));
    let GpuSelection { use_types, avoid_types, modes, .. } = selection;
    let asked = [
        (!use_types.is_empty()).then(|| format!("only {} ({USE_TYPES})", texts(use_types))),
        (!avoid_types.is_empty()).then(|| format!("no {} ({AVOID_TYPES})", texts(avoid_types))),
        modes.as_ref().map(|modes| format!("only the sharing mode {} ({SHARING_MODES})", shortened(modes))),
    ];
    let asked: Vec<String> = asked.into_iter().flatten().collect();
    let there = listed(kinds.iter().map(String::as_str));
    Some(format!("the pod accepts {}; these nodes have {there}", asked.join(" and ")))
}

/// The product of a device, and its sharing mode if the pod accepts only some.
fn kind(selection: &GpuSelection, device: &PlacementDevice) -> String {
    match selection.modes {
        Some(_) => format!("{} in mode {}", shortened(&device.kind.product), shortened(&device.kind.mode)),
        None => shortened(&device.kind.product),
    }
}

/// The UUIDs that the pod accepts or avoids, and whether these nodes have any accepted UUID.
fn uuid_mismatch<'a>(selection: &GpuSelection, nodes: impl Iterator<Item = &'a NodeClaims>) -> String {
    let mut devices = nodes.flat_map(|node| &node.devices().devices);
    let GpuSelection { use_uuids, avoid_uuids, .. } = selection;
    let texts = |list: &[GpuUuid]| listed(list.iter().map(GpuUuid::as_str));
    let asked = [
        (!use_uuids.is_empty()).then(|| format!("only {} ({USE_UUIDS})", texts(use_uuids))),
        (!avoid_uuids.is_empty()).then(|| format!("none of {} ({AVOID_UUIDS})", texts(avoid_uuids))),
    ];
    let asked: Vec<String> = asked.into_iter().flatten().collect();
    let absent = !use_uuids.is_empty() && !devices.any(|device| use_uuids.binary_search(&device.uuid).is_ok());
    let there = if absent { "; these nodes have none of them" } else { "" };
    format!("the pod accepts {}{there}", asked.join(" and "))
}

/// The first items of a list, and the number of the others.
fn listed<'a>(items: impl Iterator<Item = &'a str> + Clone) -> String {
    let shown: Vec<String> = items.clone().take(SHOWN).map(shortened).collect();
    match items.count().saturating_sub(SHOWN) {
        0 => shown.join(", "),
        more => format!("{} and {more} more", shown.join(", ")),
    }
}

fn shortened(text: &str) -> String {
    match text.char_indices().nth(MAX_ITEM) {
        Some((end, _)) => format!("{}…", text.get(..end).unwrap_or_default()),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::tests::{NOW, bound, cluster, facts, name, names, slice};
    use crate::placement::tests::{container, pod, uuid};
    use model::claim::{Claim, DeviceShare, PodClaim};
    use model::id::PodRef;
    use model::placement::{GpuPolicy, PlacementRequest};
    use model::request::ContainerRole;
    use model::unit::{CorePercent, Mib};

    /// The sentences for this pod.
    fn details(cluster: &mut ClusterState, request: &PlacementRequest) -> Vec<String> {
        let verdict = cluster.filter(request.clone(), names(2), NOW);
        assert_eq!(verdict.fit, [0_usize; 0]);
        cluster.refusal_details(request, &verdict.refused, names(2))
    }

    /// A pod of this namespace with 1,000 MiB and this much SM time of the first GPU of node 0.
    fn holder(cluster: &mut ClusterState, n: u32, namespace: &str, cores: u32) {
        let mut request = pod(n, vec![container(ContainerRole::App, 1, 1000, cores)]);
        request.pod = PodRef { namespace: namespace.into(), ..request.pod };
        let cores = Some(CorePercent(cores)).filter(|cores| cores.0 > 0);
        let share = DeviceShare { device: uuid(0), memory: Some(Mib(1000).bytes()), cores };
        cluster.pod_is(&request.uid, Some(&bound(&request, &name(0), PodClaim::Given(Claim(vec![vec![share]])))));
    }

    #[test]
    fn a_type_that_is_not_there_is_named_with_those_that_are() {
        let mut cluster = cluster(1, 1);
        let mut other = facts(1, 1);
        other.register.as_mut().unwrap()[0].product = "NVIDIA Tesla T4".into();
        cluster.node_is(&other);
        let mut request = slice(1, 1000);
        request.selection.use_types = ["a100", "a30", "l4", "v100"].map(Into::into).into();
        assert_eq!(
            details(&mut cluster, &request),
            [
                "the pod accepts only a100, a30, l4 and 1 more (nvidia.com/use-gputype); these nodes have nvidia h100, nvidia \
              tesla t4"
            ]
        );
        let mut request = slice(1, 1000);
        request.selection.avoid_types = vec!["nvidia".into()];
        request.selection.modes = Some("mig".into());
        assert_eq!(
            details(&mut cluster, &request),
            [
                "the pod accepts no nvidia (nvidia.com/nouse-gputype) and only the sharing mode mig (nvidia.com/vgpu-mode); these \
              nodes have nvidia h100 in mode hami-core, nvidia tesla t4 in mode hami-core"
            ]
        );
        request.selection = GpuSelection { use_types: vec!["x".repeat(9000).into()], ..GpuSelection::default() };
        assert!(details(&mut cluster, &request)[0].len() < 250);
    }

    #[test]
    fn a_uuid_that_is_not_there_is_named() {
        let mut cluster = cluster(2, 1);
        let mut request = slice(1, 1000);
        request.selection.use_uuids = vec![uuid(7)];
        let text = "the pod accepts only GPU-7 (nvidia.com/use-gpuuuid); these nodes have none of them";
        assert_eq!(details(&mut cluster, &request), [text]);
        let mut request = slice(1, 90_000);
        request.selection.use_uuids = vec![uuid(0)];
        assert_eq!(details(&mut cluster, &request), ["the pod accepts only GPU-0 (nvidia.com/use-gpuuuid)"]);
        let mut request = slice(1, 1000);
        request.selection.avoid_uuids = vec![uuid(0), uuid(100)];
        assert_eq!(
            details(&mut cluster, &request),
            ["the pod accepts none of GPU-0, GPU-100 (nvidia.com/nouse-gpuuuid)"]
        );
    }

    #[test]
    fn who_holds_a_gpu_is_named_within_the_namespace_and_counted_beyond_it() {
        let mut cluster = cluster(1, 1);
        holder(&mut cluster, 1, "ml", 30);
        holder(&mut cluster, 2, "web", 0);
        let whole = pod(3, vec![container(ContainerRole::App, 1, 1000, 100)]);
        // Too much SM time is claimed for all of it, so there is another reason.
        assert_eq!(details(&mut cluster, &whole), [""; 0]);
        let mut mutex = slice(4, 1000);
        mutex.preference.gpu_policy = Some(GpuPolicy { idle_only: true, ..GpuPolicy::default() });
        assert_eq!(
            details(&mut cluster, &mutex),
            [
                "the GPU policy mutex needs a GPU that no other pod uses; node-0 GPU 0 is held by ml/pod-1 (1000 MiB, 30 % of its \
              SM time) and a pod of another namespace"
            ]
        );
        cluster.pod_gone(&pod(1, Vec::new()).uid);
        assert_eq!(
            details(&mut cluster, &whole),
            [
                "nvidia.com/gpucores: 100 needs a GPU that no other pod uses; node-0 GPU 0 is held by a pod of another namespace"
            ]
        );
        holder(&mut cluster, 5, "ml", 100);
        let held = "all SM time of node-0 GPU 0 is held by ml/pod-5 (1000 MiB, 100 % of its SM time) and a pod of another namespace";
        assert_eq!(details(&mut cluster, &slice(6, 1000)), [held]);
    }

    #[test]
    fn a_closed_node_says_which_pod_closes_it_within_its_namespace() {
        let mut cluster = cluster(1, 1);
        let by_hand = slice(1, 1000);
        cluster.pod_is(&by_hand.uid, Some(&bound(&by_hand, &name(0), PodClaim::None)));
        let mut asks = slice(2, 1000);
        let text = |pod: &str| {
            format!(
                "node-0 takes no new GPU pods: {pod} holds GPUs of this node, but it is not known which; see that the node's \
                 agent runs, which names them, or delete that pod"
            )
        };
        assert_eq!(details(&mut cluster, &asks), [text("the pod ml/pod-1")]);
        asks.pod.namespace = "web".into();
        assert_eq!(details(&mut cluster, &asks), [text("a pod of another namespace")]);
        let change = cluster.take_closings().into_iter().find_map(|change| change.closed).unwrap();
        assert!(change.to_string().contains("the pod ml/pod-1"), "the event on the Node names it");
        let refusal = cluster.bind(&asks.uid, &name(0)).unwrap_err().to_string();
        assert!(!refusal.contains("pod-1"), "{refusal}");
    }
}
