//! The cost of a leader that gets no calls: it writes its Lease, and does no work for nodes on a timer.

use crate::cluster::{PODS_A_NODE, cluster};
use crate::outcome::{Figures, Outcome};
use crate::served::Served;
use std::collections::BTreeMap;
use std::time::Duration;

/// The length of the measurement.
const WATCHED: Duration = Duration::from_secs(60);
/// Time after the start until the leader is idle: jemalloc returns memory, and the first events are written.
const SETTLES: Duration = Duration::from_secs(15);
/// The most that four thousand more nodes may cost, in percent of a core: less than one annotation per second.
const MOST_MORE: f64 = 0.1;

/// Measures with 1,000 and with 5,000 nodes.
pub(crate) fn measure(figures: &mut Figures) -> Outcome<()> {
    let mut shares = Vec::new();
    for nodes in [1000, 5000] {
        let server = cluster(nodes, 1);
        let extender = Served::extender(&server)?;
        std::thread::sleep(SETTLES);
        // A real API server sends one each minute. After 75 s without one, the leader reads a new list.
        server.bookmark();
        let before = server.requests().len();
        let share = extender.cpu_share(WATCHED)?;
        let mut calls = BTreeMap::<String, usize>::new();
        for request in server.requests().into_iter().skip(before) {
            *calls.entry(format!("{} {}", request.method, request.path)).or_default() += 1;
        }
        println!(
            "{nodes} nodes, {} claims, idle: {share:.3} % of a core, calls in {WATCHED:?}: {calls:?}",
            nodes * PODS_A_NODE
        );
        let other: usize = calls.iter().filter(|(call, _)| !call.contains("/leases/")).map(|(_, count)| *count).sum();
        figures
            .check(format!("{nodes} nodes: calls of an idle leader beside its Lease: {other}, at most 0"), other == 0);
        shares.push(share);
    }
    let more = shares.iter().copied().reduce(|small, large| large - small).unwrap_or(f64::NAN);
    figures.at_most("an idle leader with 5,000 nodes beside one with 1,000, % of a core more", more, MOST_MORE);
    Ok(())
}
