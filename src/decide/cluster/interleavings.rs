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
/// Orders that are tried, always the same ones.
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
    Gone(u32),
}

impl Call {
    fn run(self, state: &Shared) {
        let request = |n: u32| -> PlacementRequest { slice(n, MIB) };
        match self {
            Call::Filter(n) => drop(filter(state, request(n), names(1), NOW)),
            Call::FilterAndBind(n) => {
                filter(state, request(n), names(1), NOW);
                // It is refused where the other pod has the GPU, or the pod is gone.
                let _ = state.with(|state| state.bind(&request(n).uid, &name(0)));
            }
            Call::Gone(n) => state.with(|state| state.pod_gone(&request(n).uid)),
        }
    }
}

#[test]
fn no_order_of_steps_leaves_a_proposal_of_a_pod_that_is_bound_or_gone_or_gives_a_gpu_twice() {
    let run = || {
        let state = Arc::new(Shared(Mutex::new(cluster(1, 1))));
        // kube-scheduler has given up the first call for a pod, and asks again; the other pod is deleted meanwhile.
        let calls = [Call::Filter(1), Call::FilterAndBind(1), Call::FilterAndBind(2), Call::Gone(2)];
        let threads = calls.map(|call| {
            let state = Arc::clone(&state);
            thread::spawn(move || call.run(&state))
        });
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        state.with(|state| {
            let [first, second]: [PodUid; 2] = [1, 2].map(|n| slice(n, MIB).uid);
            assert!(state.claim_of(&second).is_none() && state.asked(&second).is_none(), "it is gone");
            assert!(state.claim_of(&first).is_none() || state.asked(&first).is_none(), "it is bound");
            let device = &state.node(&name(0)).unwrap().devices().devices[0];
            let expected = |is: bool| if is { MIB } else { 0 };
            assert_eq!(device.claimed.memory >> 20, expected(state.claim_of(&first).is_some()));
            let proposed = state.pending.get(&first).is_some_and(|pending| pending.proposed.is_some());
            assert_eq!(device.proposed.memory >> 20, expected(proposed));
        });
    };
    Runner::new(RandomScheduler::new_from_seed(7, ORDERS), Config::new()).run(run);
}
