//! A burst of pods as kube-scheduler places them. The test counts the binds that are refused because other pods have
//! taken the GPUs since the filter answered.
//!
//! kube-scheduler places one pod after the other: it calls the filter, gets the scores, and picks one of the best nodes
//! at random. The bind runs in parallel with the next pods, so it reaches the extender after some of their filter
//! calls, and binds overtake each other. kube-scheduler tries a refused pod again later. The resource that
//! kube-scheduler itself counts (`nvidia.com/gpu`) never runs out here: each GPU has ten slots.

use super::tests::{NOW, facts, name, slice};
use super::*;
use crate::cluster::filter::gpu_pod;
use model::claim::PodClaim;
use model::gpu_pod::{BoundPod, GpuPod};
use model::id::NodeName;
use model::placement::{NodePolicy, PlacementRequest};
use model::time::Monotonic;
use std::collections::VecDeque;

const PODS: u32 = 1000;
const GPUS: u32 = 4;
/// MiB of a GiB. A GPU of these nodes has 80 GiB.
const GIB: u64 = 1024;

/// The bursts: for each the sizes of its pods in GiB, the number of nodes, and the highest percentage of memory that
/// may be left over. The pods request about 95 % of the nodes' memory. Pods of different sizes leave fragments that are
/// too small for the largest pods.
const BURSTS: [(&[u64], u32, u64); 2] = [(&[20], 65, 5), (&[5, 10, 20], 38, 8)];
/// A bind reaches the extender within this many filter calls, unless the machine is busy with other work ([`LATE`]).
/// kube-scheduler sends the bind as soon as its cycle for the pod is over, and a cycle takes milliseconds.
const SOON: u64 = 5;
/// The number of filter calls instead of [`SOON`] on a machine that is busy with other work.
const LATE: u64 = 20;
/// Number of filter calls after which the watch has shown a binding.
const SHOWN: u64 = 20;
/// Number of filter calls until a refused pod is tried again: kube-scheduler waits at least a second.
const AGAIN: usize = 100;

/// Pseudo-random numbers from a seed (SplitMix64).
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % end
    }

    fn one_of<T: Copy>(&mut self, items: &[T]) -> T {
        items[usize::try_from(self.below(items.len() as u64)).unwrap()]
    }
}

/// The result of a burst.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Burst {
    binds: u64,
    conflicts: u64,
    bound: u32,
    /// Filter calls that found no node.
    nowhere: u64,
    /// Memory that was free before, and after.
    free: [u64; 2],
}

fn free_mib(cluster: &ClusterState) -> u64 {
    let devices = cluster.nodes().flat_map(|node| &node.devices().devices);
    devices.map(|device| (device.capacity.memory - device.claimed.memory) >> 20).sum()
}

/// Pods of these sizes, in a random order. If there are several sizes, the pods together request 95 % of the free
/// memory.
fn pods(sizes: &[u64], free: u64, numbers: &mut Numbers) -> Vec<PlacementRequest> {
    let mut all: Vec<u64> = (0..PODS).map(|_| numbers.one_of(sizes)).collect();
    let (least, most) = (sizes.iter().min().unwrap(), sizes.iter().max().unwrap());
    let goal = free * 95 / 100 / GIB;
    for at in 0..all.len() {
        let sum: u64 = all.iter().sum();
        let size = if sum > goal { all[at].saturating_sub(sum - goal) } else { all[at] + goal - sum };
        all[at] = size.clamp(*least, *most);
    }
    (0..PODS).zip(all).map(|(n, gib)| slice(n, gib * GIB)).collect()
}

fn burst(policy: NodePolicy, latest: u64, (sizes, nodes): (&[u64], u32), seed: u64) -> Burst {
    let mut numbers = Numbers(seed);
    let mut cluster = ClusterState::new(ClusterRules::default());
    cluster.rules.placement.node_policy = policy;
    (0..nodes).for_each(|n| cluster.node_is(&facts(n, GPUS)));
    cluster.lead(1);
    let names: Vec<NodeName> = (0..nodes).map(name).collect();
    let names: Vec<&str> = names.iter().map(NodeName::as_str).collect();
    let free = free_mib(&cluster);
    let mut queue: VecDeque<(usize, PlacementRequest)> =
        pods(sizes, free, &mut numbers).into_iter().map(|pod| (0, pod)).collect();
    // Binds that have not arrived yet, and bound pods that the watch has not shown yet. The number is the call before
    // which the bind arrives.
    let mut binds: Vec<(u64, PlacementRequest, NodeName)> = Vec::new();
    let mut shown: Vec<(u64, BoundPod)> = Vec::new();
    let (mut result, mut call) = (Burst { free: [free, 0], ..Burst::default() }, 0_u64);
    while !(queue.is_empty() && binds.is_empty()) {
        call += 1;
        // In any order: binds overtake each other.
        while let Some(at) = binds.iter().position(|(due, ..)| *due <= call) {
            let (_, pod, node) = binds.swap_remove(at);
            result.binds += 1;
            match cluster.bind(&pod.uid, &node) {
                Ok(order) => {
                    result.bound += 1;
                    cluster.bind_ended(&pod.uid, BindOutcome::Written);
                    let gpu_pod = GpuPod { claim: PodClaim::Given(order.claim), ..gpu_pod(&pod) };
                    let bound = BoundPod { node, gpu_pod: Some(gpu_pod), ended: false, hash: None };
                    shown.push((call + numbers.below(SHOWN), bound));
                }
                Err(BindRefusal::NoFit { .. }) => {
                    result.conflicts += 1;
                    queue.push_back((usize::try_from(call).unwrap() + AGAIN, pod));
                }
                Err(why) => panic!("{why}"),
            }
        }
        while let Some(at) = shown.iter().position(|(due, _)| *due <= call) {
            let (_, pod) = shown.swap_remove(at);
            cluster.pod_is(&pod.gpu_pod.as_ref().unwrap().uid.clone(), Some(&pod));
        }
        let Some(at) = queue.iter().position(|(due, _)| *due <= usize::try_from(call).unwrap()) else { continue };
        let Some((_, pod)) = queue.remove(at) else { continue };
        let verdict = cluster.filter(pod.clone(), &names, Monotonic(NOW.0 + call));
        if verdict.fit.is_empty() {
            // Pods that no longer fit anywhere wait for other pods to end, which does not happen in a burst.
            result.nowhere += 1;
            continue;
        }
        let fit: Vec<&str> = verdict.fit.iter().map(|place| names[*place]).collect();
        let scores = if fit.len() > 1 { cluster.score(&pod.uid, &fit) } else { vec![0] };
        let most = scores.iter().max().unwrap();
        let best: Vec<&str> =
            fit.iter().zip(&scores).filter(|(_, score)| *score == most).map(|(name, _)| *name).collect();
        let node = NodeName::parse(numbers.one_of(&best)).unwrap();
        binds.push((call + 1 + numbers.below(latest), pod, node));
    }
    result.free[1] = free_mib(&cluster);
    result
}

/// Docs, *How a pod is placed*: at most 1 % of the binds of a burst are refused.
#[test]
fn a_burst_that_fills_the_cluster_has_hardly_a_bind_that_conflicts() {
    for (policy, latest) in [
        (NodePolicy::Binpack, SOON),
        (NodePolicy::Binpack, LATE),
        (NodePolicy::Spread, SOON),
        (NodePolicy::Spread, LATE),
    ] {
        for (sizes, nodes, left) in BURSTS {
            let runs: Vec<Burst> = (0..10).map(|seed| burst(policy, latest, (sizes, nodes), seed)).collect();
            let sum = |of: fn(&Burst) -> u64| runs.iter().map(of).sum::<u64>();
            let (binds, conflicts) = (sum(|run| run.binds), sum(|run| run.conflicts));
            println!("{policy:?}, {sizes:?} GiB, up to {latest} calls late: {conflicts} of {binds} binds are refused");
            assert!(conflicts * 100 <= binds, "{policy:?} {sizes:?} {latest}: {runs:?}");
            for run in &runs {
                assert_eq!(u64::from(run.bound) + run.nowhere, u64::from(PODS), "{run:?}");
                assert!(run.free[1] * 100 <= run.free[0] * left, "{policy:?} {sizes:?} {latest}: {run:?}");
            }
        }
    }
}
