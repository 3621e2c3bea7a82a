//! How soon the leader knows about changes in the driver.

use super::agent_process::{bare_node, reporting_from};
use super::stream_extender::StreamExtender;
use crate::driver::fake;
use lab::api_server::FakeApiServer;
use lab::scenario::{FakeGpu, Scenario, fake_gpus, process};
use std::time::{Duration, Instant};

const MIB: u64 = 1 << 20;
const CHANGES: u64 = 40;
/// The mark.
const MOST: Duration = Duration::from_millis(1200);

#[test]
#[ignore = "takes two minutes: tests/run --long"]
fn the_leader_knows_a_change_of_a_gpus_memory_1_2_seconds_after_the_driver_shows_it() {
    let server = FakeApiServer::start();
    bare_node(&server);
    let extender = StreamExtender::led(&server);
    let used = |mib: u64| {
        let gpu = FakeGpu { processes: vec![process(std::process::id(), mib * MIB, 50.0)], ..fake_gpus("H100", 1) };
        Scenario { gpus: vec![gpu], ..Scenario::default() }
    };
    let (_directory, driver) = fake(&used(1000));
    let (recipe, _) = reporting_from(&server, &extender.streams.to_string());
    let agent = recipe.with("--nvml-library", driver.library()).start();
    agent.logs("reports to the extender at");
    let messages = || extender.metric("gpu_steward_extender_stream_messages_total");
    let mut waits = Vec::new();
    // The first changes are not counted, because the agent reads the GPU for the first time during them.
    for change in 0..CHANGES + 3 {
        // Each change comes at a different moment of the agent's second, and less than ten seconds after the last message, so
        // that the next message is not a heartbeat.
        std::thread::sleep(Duration::from_millis(2000 + change * 37 % 1000));
        let before = messages();
        driver.write(&used(2000 + change % 2 * 500)).unwrap();
        let begun = Instant::now();
        while messages() == before {
            assert!(begun.elapsed() < Duration::from_secs(10), "no message: {}", agent.log());
            std::thread::sleep(Duration::from_millis(2));
        }
        waits.push(begun.elapsed());
    }
    let mut waits = waits.split_off(3);
    waits.sort_unstable();
    let (median, most) = (waits[waits.len() / 2], waits[waits.len() - 1]);
    println!("{CHANGES} changes of 500 MiB: known to the leader after {median:.2?} (median), {most:.2?} at most");
    assert!(most <= MOST, "{waits:.2?}");
    let opened = extender.metric("gpu_steward_extender_streams_opened_total");
    assert_eq!(opened, 1, "a new stream begins with a full report, which is not a change");
}
