//! Ends the agent exactly between two steps of a pod's start: by SIGKILL, and by SIGTERM while a failpoint holds it.
//! The next agent continues, and every container has exactly the devices of its claim. Promise 28 in
//! docs/specification.md.
//!
//! With `GPU_STEWARD_LONG=1` (`tests/run --long`) a run takes every point, otherwise a few of them.

use crate::bed::{Bed, SOON, devices_in};
use crate::fleet::Fleet;
use lab::agent::Agent;
use lab::eventually::eventually;
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::time::Duration;

/// Two GPUs of ten slots.
const TOTAL: usize = 20;
/// Longest time from the creation of a pod to the failpoint.
const REACHED: Duration = Duration::from_secs(60);

/// A failpoint in the program, and the effect if the agent ends there.
struct Point {
    name: &'static str,
    /// Whether the kubelet's `Allocate` call may still wait for its answer there. The kubelet never retries the call, so the
    /// pod fails admission and its controller creates another pod.
    in_allocate: bool,
    /// Whether every run tests this point, or only the long run.
    always: bool,
}

const fn point(name: &'static str, in_allocate: bool, always: bool) -> Point {
    Point { name, in_allocate, always }
}

/// The points of a start, in their order.
const STARTED: [Point; 12] = [
    point("allocate-noted", true, true),
    point("allocate-reported", true, false),
    // The ticket and the answer are written on different threads, so either point may come first.
    point("ticket-written", true, false),
    point("ticket-kept", true, false),
    point("allocate-in-checkpoint", false, false),
    point("limits-written", false, false),
    point("limits-renamed", false, false),
    point("spec-written", false, true),
    point("spec-renamed", false, false),
    point("start-noted", false, true),
    point("start-answered", false, false),
    point("spec-nameless", false, false),
];
/// The points of a pod without a claim: the agent writes on the pod which devices it got.
const WRITTEN: [Point; 2] = [point("annotation-due", false, true), point("annotation-written", false, false)];

fn chosen_points(points: &'static [Point]) -> impl Iterator<Item = (&'static Point, &'static str)> {
    let long = std::env::var_os("GPU_STEWARD_LONG").is_some();
    let chosen_points = points.iter().filter(move |point| long || point.always);
    chosen_points
        .flat_map(move |point| ["kill", "hold"].into_iter().take(if long { 2 } else { 1 }).map(move |how| (point, how)))
}

/// Waits until the agent has reached the point and ended there.
fn wait_for_end(agent: Agent, point: &Point, how: &str) {
    use std::os::unix::process::ExitStatusExt;
    if how == "kill" {
        let ended = agent.wait_within(REACHED);
        assert_eq!(ended.status.signal(), Some(libc::SIGKILL), "{}: {:?}\n{}", point.name, ended.status, ended.log);
    } else {
        let held = format!("held at a failpoint failpoint={}", point.name);
        eventually(&held, REACHED, || agent.log().contains(&held).then_some(()));
        let ended = agent.terminate();
        assert!(ended.status.success(), "{}: {:?}\n{}", point.name, ended.status, ended.log);
    }
}

/// For each chosen point: the agent ends there while pods start, and another agent continues.
fn check_every_point(bed: &Bed, points: &'static [Point], flags: &[&str]) {
    let mut agent = bed.agent(flags);
    let mut fleet = Fleet::new(bed, &agent);
    let mut record = Vec::new();
    for (point, how) in chosen_points(points) {
        drop(agent);
        let armed = bed.agent_with_failpoint((point.name, how), flags);
        let before = fleet.failed.len();
        // The agent writes a spec without a name only if it writes several at once.
        let pods = if point.name == "spec-nameless" { 6 } else { 1 };
        fleet.burst(pods);
        wait_for_end(armed, point, how);
        agent = bed.agent(flags);
        // After SIGTERM the agent completes calls in flight. Pods of a burst that the kubelet admits between the end of this
        // agent and the start of the next one fail too: all but the pod whose start reached the point.
        let of_burst = pods - 1;
        fleet.may_fail(of_burst + usize::from(point.in_allocate && how == "kill"), &fleet.names());
        fleet.settle();
        record.push(format!("{} {how}: {} failed at admission", point.name, fleet.failed.len() - before));
        // A later start must run alone.
        fleet.delete_all_but(0);
        fleet.wait_for_deletions();
    }
    fleet.check_all_slots(TOTAL);
    println!("{}", record.join("\n"));
    drop(agent);
}

/// The program, docs/testing.md and the lists here name the same points.
#[test]
fn every_failpoint_of_the_program_is_listed_and_tested() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut texts = Vec::new();
    let mut folders = vec![root.join("src")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap().map(Result::unwrap) {
            match entry.file_type().unwrap().is_dir() {
                true => folders.push(entry.path()),
                false => texts.extend(fs::read_to_string(entry.path()).ok()),
            }
        }
    }
    let between = |text: &str, before: &str, after: char| -> BTreeSet<String> {
        let found = text.split(before).skip(1).filter_map(|rest| rest.split_once(after));
        found.map(|(name, _)| name.to_owned()).filter(|name| name.contains('-')).collect()
    };
    let file = fs::read_to_string(root.join("src/effects/failpoint.rs")).unwrap();
    let mut program = between(&file, "reached(\"", '"');
    program.extend(between(&file, "=> \"", '"'));
    program.extend(texts.iter().flat_map(|text| between(text, "failpoint!(\"", '"')));
    let docs = fs::read_to_string(root.join("docs/testing.md")).unwrap();
    let section = docs.split("## Failpoints").nth(1).and_then(|rest| rest.split("\n## ").next()).unwrap();
    let named = section.lines().filter(|line| line.starts_with("| `")).filter_map(|line| line.split('|').nth(1));
    let listed: BTreeSet<String> =
        named.flat_map(|names| names.split('`').skip(1).step_by(2)).map(str::to_owned).collect();
    let points = || STARTED.iter().chain(&WRITTEN);
    let taken: BTreeSet<String> = points().map(|point| point.name.to_owned()).collect();
    assert_eq!((&program, &listed), (&taken, &taken));
    let always = points().filter(|point| point.always).count();
    let number = ["no", "one", "two", "three", "four", "five", "six"][always];
    assert!(section.contains(&format!("every run {number} of them")), "{number}");
    let specification = fs::read_to_string(root.join("docs/specification.md")).unwrap();
    assert!(
        specification
            .contains(&format!("of {} points with `--long`, by SIGKILL at {number} in every run", taken.len()))
    );
}

#[test]
#[ignore = "needs cluster: tests/run"]
fn containers_get_their_own_devices_wherever_the_agent_ends() {
    check_every_point(&Bed::up("failpoints"), &STARTED, &[]);
}

/// In the end the claim is written on the pod, once, and has the devices of its container.
#[test]
#[ignore = "needs cluster: tests/run"]
fn the_claim_is_written_on_the_pod_if_the_agent_ends_around_that_write() {
    let flags = ["--without-claim=share"];
    let bed = Bed::up("failpoints-written");
    for (number, (point, how)) in chosen_points(&WRITTEN).enumerate() {
        let armed = bed.agent_with_failpoint((point.name, how), &flags);
        let name = format!("plain-{number}");
        bed.create(&bed.bare_pod(&name, &[("main", "app", &[(0, 0, 0)])], &Value::Null));
        wait_for_end(armed, point, how);
        let agent = bed.agent(&flags);
        bed.ready(&[&name]);
        let devices = devices_in(&bed.limits(&name, "main"));
        eventually("the claim on the pod", SOON, || {
            let pod = bed.admin.get(&["pod", &name, "-n", &bed.space.name]);
            let claim = pod["metadata"]["annotations"]["hami.io/vgpu-devices-allocated"].as_str()?.to_owned();
            (devices.len() == 1 && claim.matches(',').count() == 3 && claim.contains(&devices[0].0)).then_some(())
        });
        let _ = bed.admin.run(&["delete", "pod", &name, "-n", &bed.space.name, "--now"]).ok();
        drop(agent);
    }
}
