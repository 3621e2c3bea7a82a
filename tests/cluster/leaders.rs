//! Two extenders of which the leader is paused: the other one takes over, and the paused one gives nothing when it goes on.

use crate::placed::{Placed, SETTLED};
use crate::seats::{HostExtender, HostScheduler};
use lab::eventually::eventually;
use serde_json::json;
use std::time::Duration;

/// Pods that are added before and during each pause.
const MORE: usize = 3;
/// Pods with which the nodes are nearly full.
const FULL: usize = 60;

/// Promise 42 in docs/specification.md: SIGSTOP in the middle of bindings, and SIGCONT while the other extender binds.
/// 20 pauses with `GPU_STEWARD_LONG`.
#[test]
#[ignore = "needs cluster alone: tests/run"]
fn a_paused_leader_gives_nothing_when_it_goes_on() {
    let placed = Placed::agents("extender-pauses");
    let pauses: u64 = if std::env::var_os("GPU_STEWARD_LONG").is_some() { 20 } else { 4 };
    placed.deployment("load", &json!({ "nvidia.com/gpu": 1, "nvidia.com/gpumem": 3000 }));
    let (mut leader, mut other) = (HostExtender::start(&placed, None), HostExtender::start(&placed, None));
    eventually("one of them to lead", SETTLED, || (leader.leads() || other.leads()).then_some(()));
    if other.leads() {
        std::mem::swap(&mut leader, &mut other);
    }
    let (mut made, mut mid_bind) = (0, 0);
    for pause in 0..pauses {
        if made + 2 * MORE > FULL {
            placed.scale("load", 0);
            placed.empty();
            made = 0;
        }
        let scheduler = HostScheduler::start(&placed, leader.address);
        let before = leader.binds_begun();
        made += MORE;
        placed.scale("load", made);
        eventually("a binding", SETTLED, || (leader.binds_begun() > before).then_some(()));
        std::thread::sleep(Duration::from_millis(5 * (pause % 8)));
        mid_bind += usize::from(leader.pause() > 0);
        drop(scheduler);
        other.wait_until_leads();
        let scheduler = HostScheduler::start(&placed, other.address);
        let before = other.binds_begun();
        made += MORE;
        placed.scale("load", made);
        eventually("a binding of the other one", SETTLED, || (other.binds_begun() > before).then_some(()));
        leader.signal("-CONT");
        placed.run("app=load", made);
        eventually("the paused one to follow", SETTLED, || (!leader.leads()).then_some(()));
        assert_eq!(placed.check(other.address), made);
        drop(scheduler);
        std::mem::swap(&mut leader, &mut other);
    }
    println!("{pauses} pauses, {mid_bind} of them while a binding was under way");
    assert!(mid_bind > 0, "no pause came in the middle of a binding");
}
