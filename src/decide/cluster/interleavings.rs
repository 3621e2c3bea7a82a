//! The steps of concurrent calls under the lock, in many of the orders in which threads may take them.
//!
//! A filter call takes the lock several times, and other calls come between. The simulated cluster of the extender runs each call
//! in one piece, so it cannot show what these orders do.

use super::tests::{NOW, cluster, name, names, slice};
use super::{ClusterState, StateAccess, filter};
use model::id::PodUid;
use model::placement::PlacementRequest;
use shuttle::scheduler::RandomScheduler;
use shuttle::sync::{Arc, Mutex};
use shuttle::{Config, Runner, thread};

/// What each pod requests: more than half of the only GPU.
const MIB: u64 = 50 * 1024;
/// Number of orders that are tried, always the same orders.
const ORDERS: usize = 3_000;

/// The state behind a lock that lets the test choose which thread gets it.
struct Shared(Mutex<ClusterState>);

impl StateAccess for Shared {
    fn with<R>(&self, step: impl FnOnce(&mut ClusterState) -> R) -> R {
        step(&mut self.0.lock().unwrap())
    }
}

/// One thread.
#[derive(Clone, Copy, Debug)]
enum Call {
    Filter(u32),
    FilterAndBind(u32),
    /// kube-scheduler has nominated the pod.
    Nominated(u32),
    Gone(u32),
}

/// A pod; pod 1 has the higher priority.
fn request(n: u32) -> PlacementRequest {
    PlacementRequest { priority: if n == 1 { 100 } else { 0 }, ..slice(n, MIB) }
}

impl Call {
    fn run(self, state: &Shared) {
        match self {
            Call::Filter(n) => drop(filter(state, request(n), names(1), NOW)),
            Call::FilterAndBind(n) => {
                filter(state, request(n), names(1), NOW);
                state.with(|state| {
                    let uid = request(n).uid;
                    let kept = state.keeps_room_for_another(&uid, &name(0));
                    // It is refused if the other pod has the GPU, or the pod is gone.
                    let bound = state.bind(&uid, &name(0)).is_ok();
                    assert!(!(kept && bound), "the room is kept for the nominated pod");
                });
            }
            Call::Nominated(n) => state.with(|state| state.is_nominated(&request(n), &name(0), NOW)),
            Call::Gone(n) => state.with(|state| state.pod_gone(&request(n).uid)),
        }
    }
}

/// Runs these calls for a node with one GPU in many orders, and checks what each order leaves.
fn in_many_orders<const N: usize>(calls: [Call; N], check: fn(&mut ClusterState)) {
    let run = move || {
        let state = Arc::new(Shared(Mutex::new(cluster(1, 1))));
        let threads = calls.map(|call| {
            let state = Arc::clone(&state);
            thread::spawn(move || call.run(&state))
        });
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        state.with(check);
    };
    Runner::new(RandomScheduler::new_from_seed(7, ORDERS), Config::new()).run(run);
}

/// Checks that no pod is bound and proposed, and that the GPU is given once and has the proposals of the pending pods.
fn check_gpu(state: &ClusterState) {
    let pods = [1, 2].map(|n| request(n).uid);
    let is_bound = |uid: &&PodUid| state.claim_of(uid).is_some();
    assert!(pods.iter().filter(is_bound).all(|uid| state.asked(uid).is_none()), "it is bound");
    let is_proposed = |uid: &&PodUid| state.pending.get(*uid).is_some_and(|pending| pending.proposed.is_some());
    let [bound, proposed] = [pods.iter().filter(is_bound).count(), pods.iter().filter(is_proposed).count()];
    assert!(bound <= 1, "the GPU has room for one of them");
    let device = &state.node(&name(0)).unwrap().devices().devices[0];
    let mib = [device.claimed.memory, device.proposed.memory].map(|bytes| bytes >> 20);
    assert_eq!(mib, [bound, proposed].map(|pods| pods as u64 * MIB));
}

#[test]
fn no_order_of_steps_leaves_a_proposal_of_a_pod_that_is_bound_or_gone_or_gives_a_gpu_twice() {
    // kube-scheduler has given up the first call for a pod, and asks again, while the other pod is deleted.
    let calls = [Call::Filter(1), Call::FilterAndBind(1), Call::FilterAndBind(2), Call::Gone(2)];
    in_many_orders(calls, |state| {
        let second = request(2).uid;
        assert!(state.claim_of(&second).is_none() && state.asked(&second).is_none(), "it is gone");
        check_gpu(state);
    });
}

#[test]
fn no_order_of_steps_gives_the_room_of_a_nominated_pod_to_a_pod_of_lower_priority_or_leaves_any_of_it_kept() {
    // Others were evicted for the first pod, and it is tried again, while the second pod, of lower priority, is tried.
    let calls = [Call::Nominated(1), Call::FilterAndBind(2), Call::Filter(1), Call::FilterAndBind(1)];
    in_many_orders(calls, |state| {
        check_gpu(state);
        [1, 2].into_iter().for_each(|n| state.pod_gone(&request(n).uid));
        check_gpu(state);
        assert_eq!((state.pending(), state.nominated.kept()), (0, (0, 0)));
    });
}
