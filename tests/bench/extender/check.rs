//! What the real-time check costs. Two leaders, each with 5,000 nodes, 50,000 claims and 5,000 streams of agents, take turns in one
//! run: one checks nothing, the other one has the default mode. Compared are filter calls, also while 1,000 nodes report a change
//! each second, the first call for a kind of request, which judges every node, the CPU time of reports, and memory.

use crate::cluster::calls;
use crate::crowd::{Crowd, NODES, SETTLES, memory};
use crate::outcome::{Figures, Outcome, many, median};
use crate::served::Served;
use crate::verbs::{cpu_of, kind_of, rate_of};
use std::time::Duration;

/// Turns of each leader, without changes and with them. The median of the ratios counts.
const ROUNDS: usize = 7;
/// Filter calls of a turn.
const CALLS: usize = 240;
/// How often they are repeated in a turn for the calls a second: once takes only a tenth of a second.
const REPEATS: usize = 9;
/// Filter calls of a turn that have a request of a new kind each.
const NEW_KINDS: usize = 8;
/// An agent changes each five seconds, so after this time the changes come at their full rate.
const ALL_CHANGE: Duration = Duration::from_secs(6);
/// The time in which a turn measures the CPU time of reports alone.
const REPORTS: Duration = Duration::from_secs(10);

/// The marks: filter calls a second and the cost of judging a node, of those without the check; MiB.
const LEAST_RATE: f64 = 0.95;
const MOST_JUDGING: f64 = 1.15;
const MOST_MEMORY_MIB: f64 = 20.0;

/// One of the two leaders, with what was measured in its turns.
struct Side {
    crowd: Crowd,
    /// CPU time of a call, in microseconds, and calls a second, without changes.
    cpu: Vec<f64>,
    rate: Vec<f64>,
    /// CPU time for judging a node, in microseconds.
    judging: Vec<f64>,
    /// Calls a second and the CPU time of reports, in percent of a core, while 1,000 nodes change each second.
    rate_changing: Vec<f64>,
    reports: Vec<f64>,
}

impl Side {
    fn gather(mode: &str) -> Outcome<Side> {
        println!("--realtime-check-mode={mode}:");
        let crowd = Crowd::gather(&["--realtime-check-mode", mode])?;
        let (cpu, rate, judging) = (Vec::new(), Vec::new(), Vec::new());
        Ok(Side { crowd, cpu, rate, judging, rate_changing: Vec::new(), reports: Vec::new() })
    }

    fn turn(&mut self, bodies: &[Vec<u8>], fresh: &[Vec<u8>]) -> Outcome<()> {
        let leader = &self.crowd.leader;
        let cpu = cpu_of(leader, bodies)?;
        self.judging.push((cpu_of(leader, fresh)? - cpu) / many(NODES));
        self.rate.push(rate(leader, bodies)?);
        self.cpu.push(cpu);
        Ok(())
    }

    fn changing_turn(&mut self, bodies: &[Vec<u8>]) -> Outcome<()> {
        self.crowd.agents.tell("changing on")?;
        std::thread::sleep(ALL_CHANGE);
        self.reports.push(self.crowd.leader.cpu_share(REPORTS)?);
        self.rate_changing.push(rate(&self.crowd.leader, bodies)?);
        self.crowd.agents.tell("changing off")?;
        Ok(())
    }

    /// RssAnon, in MiB.
    fn anon_mib(&self) -> Outcome<f64> {
        let [_, anon] = memory(&self.crowd.leader)?;
        Ok(anon)
    }

    /// How many nodes were checked in filter calls.
    fn checked(&self) -> Outcome<u64> {
        self.crowd.leader.metric("gpu_steward_extender_realtime_checks_total{result=\"passed\"}")
    }
}

/// Filter calls a second: the median of the repetitions.
fn rate(leader: &Served, bodies: &[Vec<u8>]) -> Outcome<f64> {
    let rates: Outcome<Vec<f64>> = (0..REPEATS).map(|_| rate_of(leader, bodies)).collect();
    Ok(median(rates?))
}

/// Measures both, and compares them.
pub(crate) fn measure(figures: &mut Figures) -> Outcome<()> {
    let (mut without, mut with) = (Side::gather("disabled")?, Side::gather("strict")?);
    std::thread::sleep(SETTLES);
    let before = with.anon_mib()? - without.anon_mib()?;
    let bodies = calls(NODES, CALLS, |number| 16_000 + kind_of(number));
    for round in 0..ROUNDS {
        let kind = |number: usize| 20_000 + u64::try_from(round * NEW_KINDS + number).unwrap_or(0);
        let fresh = calls(NODES, NEW_KINDS, kind);
        // Each leader is the first one in every second round.
        let sides = if round.is_multiple_of(2) { [&mut without, &mut with] } else { [&mut with, &mut without] };
        for side in sides {
            side.turn(&bodies, &fresh)?;
            side.changing_turn(&bodies)?;
        }
    }
    std::thread::sleep(SETTLES);
    let after = with.anon_mib()? - without.anon_mib()?;
    let checked = with.checked()?;
    figures.check(format!("nodes that were checked in filter calls: {checked}"), checked > 0);
    compare(&without, &with, figures);
    println!("RssAnon with the check: {before:.1} MiB more before the calls, {after:.1} MiB more after them");
    figures.at_most("memory of the real-time check (RssAnon), MiB", before.max(after), MOST_MEMORY_MIB);
    Ok(())
}

fn compare(without: &Side, with: &Side, figures: &mut Figures) {
    compared("CPU of a filter call, us", &without.cpu, &with.cpu);
    compared("CPU of reports while 1,000 nodes change each second, % of a core", &without.reports, &with.reports);
    let rate = compared("filter calls a second", &without.rate, &with.rate);
    let changing =
        compared("the same while 1,000 nodes change each second", &without.rate_changing, &with.rate_changing);
    let judging = compared("CPU of judging a node of 8 GPUs, us", &without.judging, &with.judging);
    for (what, ratio) in [("", rate), (" while 1,000 nodes change each second", changing)] {
        let what = format!("filter calls a second with the real-time check{what}: {ratio:.3} of those without");
        figures.check(format!("{what}, at least {LEAST_RATE}"), ratio >= LEAST_RATE);
    }
    figures.at_most("judging a node with the real-time check, of that without", judging, MOST_JUDGING);
}

/// Prints both medians and their difference. Returns the median of the ratios of the rounds, with the check to without it.
fn compared(what: &str, without: &[f64], with: &[f64]) -> f64 {
    let ratio = median(with.iter().zip(without).map(|(with, without)| with / without).collect());
    let (without, with) = (median(without.to_vec()), median(with.to_vec()));
    println!(
        "{what}: {without:.2} without the check, {with:.2} with it; ratio {ratio:.3}, difference {:.2}",
        with - without
    );
    ratio
}
