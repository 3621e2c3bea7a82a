//! The real-time check from the driver to the answer: a fake driver shows a stranger's memory to a real agent, and a real
//! extender refuses the pod, warns, or ignores it.

use super::agent_process::{NODE, bare_node, reporting_from};
use super::stream_extender::{SOON, StreamExtender, pod};
use crate::driver::fake;
use crate::kubelet::Kubelet;
use lab::api_server::FakeApiServer;
use lab::eventually::eventually;
use lab::scenario::{FakeGpu, FakeNvml, Scenario, fake_gpus, process};
use serde_json::Value;
use std::time::{Duration, Instant};

/// Memory of the stranger, and of the pod that does not fit beside it, in MiB. The GPU has 80 GB.
const STRANGER: u64 = 61_440;
const ASKED: u32 = 50_000;
/// How often the stranger takes memory and leaves in the test that measures.
const TIMES: u32 = 20;
/// The mark for a change of memory that pods must not be placed into.
const REFUSED_WITHIN: Duration = Duration::from_secs(2);
const WAKE: &str = "gpu-steward.io/wake";

/// One GPU on which a process that is in no pod uses this much memory, in MiB.
fn used(mib: u64) -> Scenario {
    let processes = if mib == 0 { Vec::new() } else { vec![process(std::process::id(), mib << 20, 0.0)] };
    Scenario { gpus: vec![FakeGpu { processes, ..fake_gpus("H100", 1) }], ..Scenario::default() }
}

/// A node whose agent has these variables.
fn on_a_node(variables: &[(&str, &str)], test: impl FnOnce(&FakeApiServer, &StreamExtender, &FakeNvml)) {
    let server = FakeApiServer::start();
    bare_node(&server);
    let extender = StreamExtender::led(&server);
    let (_directory, driver) = fake(&used(0));
    let (recipe, root) = reporting_from(&server, &extender.streams.to_string());
    let recipe = recipe.with("--nvml-library", driver.library());
    let agent = variables.iter().fold(recipe, |recipe, (name, text)| recipe.env(name, text)).start();
    let _kubelet = Kubelet::registers(&root);
    agent.logs("reports to the extender at");
    test(&server, &extender, &driver);
}

/// A pod that does not fit beside the stranger, once it fits the node alone.
fn waits(server: &FakeApiServer, extender: &StreamExtender, number: u32) -> Value {
    let mut asks = pod(server, number, ASKED);
    asks["spec"]["schedulerName"] = "gpu-steward".into();
    server.put("pods", asks);
    let asks = server.object("pods", "ml", &format!("train-{number}")).unwrap();
    eventually("an open node with a free GPU", SOON, || extender.fits(&asks, NODE).ok());
    asks
}

/// Waits until the extender knows that the stranger uses its memory; its log is JSON.
fn is_known(extender: &StreamExtender) {
    let words = format!("realTimeUsedMemMB={STRANGER} ");
    eventually("a report with the memory", SOON, || extender.log().contains(&words).then_some(()));
}

fn counted(extender: &StreamExtender, result: &str) -> u64 {
    extender.metric(&format!("gpu_steward_extender_realtime_checks_total{{result=\"{result}\"}}"))
}

#[test]
fn a_stranger_keeps_a_pod_away_until_it_leaves_and_then_the_pod_is_woken() {
    on_a_node(&[], |server, extender, driver| {
        let asks = waits(server, extender, 80);
        driver.write(&used(STRANGER)).unwrap();
        let why = eventually("a refusal", SOON, || extender.fits(&asks, NODE).err());
        assert_eq!(why["FailedNodes"][NODE], "CardInsufficientMemory", "{why}");
        assert!(counted(extender, "refused") > 0);
        let is_woken =
            || server.object("pods", "ml", "train-80")?["metadata"]["annotations"][WAKE].is_string().then_some(());
        assert_eq!(is_woken(), None, "there is no room");
        // Nothing else changes in the cluster, and nobody asks.
        driver.write(&used(0)).unwrap();
        eventually("the pod to be woken", SOON, is_woken);
        assert_eq!(extender.fits(&asks, NODE), Ok(()));
    });
}

#[test]
fn the_variables_of_an_agent_decide_what_a_stranger_means_on_its_node() {
    for (number, variable, warns) in [
        (81, ("HAMI_REALTIME_CHECK_MODE", "warning"), true),
        (82, ("HAMI_REALTIME_CHECK_MODE", "disabled"), false),
        (83, ("HAMI_ENABLE_REALTIME_CHECK", "false"), false),
    ] {
        on_a_node(&[variable], |server, extender, driver| {
            let asks = waits(server, extender, number);
            driver.write(&used(STRANGER)).unwrap();
            is_known(extender);
            assert_eq!(extender.fits(&asks, NODE), Ok(()), "{variable:?}");
            assert_eq!(counted(extender, "refused"), 0, "{variable:?}");
            assert_eq!(counted(extender, "warned") > 0, warns, "{variable:?}");
        });
    }
}

#[test]
#[ignore = "takes two minutes: tests/run --long"]
fn a_pod_is_refused_2_seconds_after_a_stranger_has_taken_its_memory() {
    on_a_node(&[], |server, extender, driver| {
        let asks = waits(server, extender, 84);
        let mut took = Vec::new();
        for time in 0..TIMES {
            // Each change comes at a different moment of the agent's second.
            std::thread::sleep(Duration::from_millis(1000 + u64::from(time) * 37 % 1000));
            driver.write(&used(STRANGER)).unwrap();
            let begun = Instant::now();
            eventually("a refusal", SOON, || extender.fits(&asks, NODE).err());
            took.push(begun.elapsed());
            driver.write(&used(0)).unwrap();
            eventually("room", SOON, || extender.fits(&asks, NODE).ok());
        }
        took.sort_unstable();
        println!(
            "{TIMES} times refused after {:.2?} (median), {:.2?} at most",
            took[took.len() / 2],
            took[took.len() - 1]
        );
        assert!(took.iter().all(|time| *time <= REFUSED_WITHIN), "{took:.2?}");
    });
}
