//! The leader stops, or is killed, while a kube-scheduler calls the other extender and 5,000 agents report: how long no
//! extender decides, and how the streams move.

use crate::crowd::{Crowd, NODES, all_up};
use crate::gap::Asker;
use crate::outcome::{Figures, Outcome, many};
use crate::served::{SOON, Served};
use lab::eventually::eventually;
use std::time::Duration;

/// The default times of the election.
const LEASE: Duration = Duration::from_secs(15);
const RETRY: Duration = Duration::from_secs(2);
/// How long the Service still points to a pod that has ended: until the kubelet has reported its end and every node knows it.
const SERVICE_KNOWS: Duration = Duration::from_secs(2);
/// The marks.
const LONGEST_STOP: f64 = 3.0;
/// kube-scheduler gives up on a call after five seconds.
const SLOWEST: f64 = 5.0;
/// The average number of tries of one agent: one, plus some that come before the next extender leads. While a killed
/// leader's Lease is still valid, tries come after 0.5, 1, 2, 4 and 8 s.
const TRIES_STOP: f64 = 3.0;
const TRIES_KILL: f64 = 12.0;
/// Tries in the worst second at one extender, divided by the number of agents.
const WORST_SECOND: f64 = 2.0;

/// Measures both ways in which a leader can end.
pub(crate) fn measure(crowd: Crowd, figures: &mut Figures) -> Outcome<()> {
    let Crowd { server, mut leader, mut agents, .. } = crowd;
    for (what, tries_mark) in [("SIGTERM", TRIES_STOP), ("SIGKILL", TRIES_KILL)] {
        let next = Served::with_streams(&server, &[])?;
        next.wait_until_ready();
        eventually("the TLS port of the other extender", SOON, || {
            next.log().contains("agents and other extenders can connect").then_some(())
        });
        let [from, to] = [&leader, &next].map(|extender| extender.started_with("reports").to_string());
        agents.tell(&format!("service {from},{to}"))?;
        let asker = Asker::start(next.address, NODES);
        std::thread::sleep(Duration::from_secs(5));
        agents.tell("mark")?;
        let before = next.cpu()?;
        if what == "SIGTERM" {
            leader.terminate()?;
        } else {
            leader.kill();
        }
        std::thread::sleep(SERVICE_KNOWS);
        agents.tell(&format!("service {to}"))?;
        let counts = all_up(&mut agents)?;
        let cpu = (next.cpu()? - before).as_secs_f64();
        let asked = asker.end();
        if what == "SIGTERM" {
            leader.ended()?;
        }
        let rebuild =
            next.logged("leads and decides from now on", "after_ms").and_then(|text| text.parse::<f64>().ok());
        let rebuild = rebuild.ok_or("the other extender does not lead")? / 1000.0;
        let back = counts["last_up_ms"].as_f64().ok_or("no time")? / 1000.0;
        let tries = counts["tries"].as_f64().ok_or("no tries")? / many(NODES);
        let worst = counts["by_second"].as_object().into_iter().flatten().flat_map(|(_, seconds)| seconds.as_object());
        let worst = worst.flatten().filter_map(|(_, tries)| tries.as_f64()).fold(0.0, f64::max) / many(NODES);
        let (gap, slowest) = (asked.gap.as_secs_f64(), asked.slowest.as_secs_f64());
        println!(
            "{what}: {gap:.2} s without a decision, of which {rebuild:.2} s to read all pods and Nodes; the slowest of {} questions \
             took {slowest:.2} s, {} were not answered",
            asked.answered + asked.refused,
            asked.refused
        );
        println!(
            "      all {NODES} streams back after {back:.1} s, {tries:.2} tries of each agent, at most {}; {cpu:.1} s of CPU at \
             the new leader",
            counts["most_tries"]
        );
        println!("      tries by second: {}; failures: {}", counts["by_second"], counts["failures"]);
        match what {
            "SIGTERM" => figures.at_most("SIGTERM of the leader: s without a decision", gap, LONGEST_STOP),
            _ => {
                let most = (LEASE + 2 * RETRY).as_secs_f64() + rebuild;
                figures.at_most("SIGKILL of the leader: s without a decision (lease + 2 x retry + rebuild)", gap, most);
            }
        }
        figures.at_most(&format!("{what}: slowest question, s"), slowest, SLOWEST);
        figures.at_most(&format!("{what}: tries of an agent"), tries, tries_mark);
        figures.at_most(&format!("{what}: tries in the worst second, by the number of agents"), worst, WORST_SECOND);
        leader = next;
    }
    Ok(())
}
