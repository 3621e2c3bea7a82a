//! Tests that an operator can make the agent release the GPU driver, through the admin port and by a signal.

use crate::driver::{fake, gpus};
use crate::incidents::operate;
use crate::program::BINARY;
use lab::agent::{Agent, START};
use lab::eventually::eventually;
use lab::scenario::{Scenario, fake_gpus};
use std::process::Command;

#[test]
fn the_driver_is_released_for_a_while_and_every_gpu_stays_listed() {
    let (_directory, driver) = fake(&Scenario { gpus: vec![fake_gpus("H100", 2)], ..Scenario::default() });
    let agent = Agent::standalone(BINARY).with("--nvml-library", driver.library()).launch();
    gpus(&agent, 2);
    let state = agent.dir().join("state");
    let is_open = || driver.is_open_in(agent.pid());
    let operate = |method: &str, path: &str| operate(&agent, &state, method, path);
    assert!(is_open());
    assert_eq!(agent.admin("PUT", "/nvml/release", "").status, 401, "not for every user of the host");
    for bad in ["seconds=0", "seconds=601", "x=1"] {
        assert_eq!(operate("PUT", &format!("/nvml/release?{bad}")).status, 400, "{bad}");
    }
    assert!(is_open() && operate("GET", "/nvml/release").text().contains("holds"));

    let answer = operate("PUT", "/nvml/release?seconds=600");
    assert!(answer.status == 200 && answer.text().contains("has released"), "{} {}", answer.status, answer.text());
    assert!(!is_open(), "the driver is released");
    eventually("the API to show the release", START, || {
        let node = agent.get("/api/v1/node").json();
        (node["gpu_source"]["state"] == "released").then_some(())
    });
    let document = agent.get("/api/v1/gpus").json();
    for gpu in document["gpus"].as_array().expect("GPUs") {
        assert_eq!((&gpu["health"], &gpu["power_watts"]["absent"]), (&"healthy".into(), &"released".into()), "{gpu}");
    }
    let ready = agent.get("/readyz");
    assert!(ready.status == 200 && ready.text().contains("GPU driver: released for"), "{}", ready.text());
    assert!(agent.get("/metrics").text().contains("state=\"released\""));
    assert!(!is_open(), "the driver stays released");

    assert_eq!(operate("DELETE", "/nvml/release").status, 200);
    gpus(&agent, 2);
    assert!(is_open());
    let (signal, pid) = (format!("-{}", libc::SIGRTMIN()), agent.pid().to_string());
    assert!(Command::new("kill").args([signal, pid]).status().is_ok_and(|status| status.success()));
    eventually("the signal takes effect", START, || (!is_open()).then_some(()));
    assert_eq!(operate("DELETE", "/nvml/release").status, 200);
    gpus(&agent, 2);

    let simulated = Agent::standalone(BINARY).with("--gpus", "simulated=H100:1").launch();
    let state = simulated.dir().join("state");
    assert_eq!(self::operate(&simulated, &state, "PUT", "/nvml/release").status, 404, "there is no driver");
}
