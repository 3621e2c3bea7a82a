//! Tests `/api/v1` of the whole program: each reading has either a value and its age, or the reason why it is absent.

use crate::program::BINARY;
use lab::agent::Agent;
use lab::eventually::eventually;
use serde_json::Value;
use std::time::Duration;

const SOON: Duration = Duration::from_secs(20);

fn agent(gpus: &str) -> Agent {
    Agent::standalone(BINARY).with("--gpus", gpus).start()
}

/// Checks that each object with a value has an age, and that each absent reading has its code and a reason.
/// Counts the readings.
fn check(value: &Value, path: &str, readings: &mut u32) {
    match value {
        Value::Object(fields) => {
            let measured = fields.contains_key("value") && fields["age_seconds"].as_f64().is_some_and(|age| age >= 0.0);
            let absent = fields.get("absent").is_some_and(Value::is_string);
            if fields.contains_key("value") || fields.contains_key("absent") {
                let reasoned = fields.get("reason").is_some_and(|reason| !reason.as_str().unwrap_or("").is_empty());
                assert!(measured || (absent && reasoned), "{path}: {value}");
                *readings += 1;
            }
            for (name, field) in fields {
                check(field, &format!("{path}.{name}"), readings);
            }
        }
        Value::Array(items) => items.iter().for_each(|item| check(item, &format!("{path}[]"), readings)),
        _ => {}
    }
}

#[test]
fn every_reading_has_an_age_or_a_reason_and_simulated_gpus_are_marked() {
    let agent = agent("simulated=H100:8");
    let gpus = eventually("eight GPUs that were read", SOON, || {
        let document = agent.get("/api/v1/gpus").json();
        let read = document["gpus"].as_array()?.iter().filter(|gpu| gpu["memory_used_bytes"]["value"].is_u64()).count();
        (read == 8).then_some(document)
    });
    assert_eq!(gpus["view"]["simulated"], true);
    for path in ["/api/v1/node", "/api/v1/gpus", "/api/v1/pods", "/api/v1/processes"] {
        let answer = agent.get(path);
        assert_eq!((answer.status, answer.header("content-type")), (200, Some("application/json")), "{path}");
        let mut readings = 0;
        let document = answer.json();
        check(&document, path, &mut readings);
        assert_eq!(document["view"]["simulated"], true, "{path}");
        println!("{path}: {readings} readings");
    }
    assert_eq!(agent.get("/api/v1/gpus?gpu=3").json()["gpus"].as_array().unwrap().len(), 1);
    for (path, status, words) in [
        ("/api/v1/gpus?card=3", 400, "use namespace, pod or gpu"),
        ("/api/v1/gpus?gpu=3&gpu=4", 400, "appears twice"),
        ("/api/v1/node?gpu=3", 400, "this path has none"),
        ("/api/v1/pods?gpu=8", 404, "this node has no GPU \"8\""),
    ] {
        let answer = agent.get(path);
        assert_eq!(answer.status, status, "{path}");
        assert!(answer.text().contains(words), "{path}: {}", answer.text());
    }
}

#[test]
fn without_gpus_the_readings_of_the_machine_are_served() {
    let agent = agent("none");
    let node = eventually("a reading of the machine", SOON, || {
        let document = agent.get("/api/v1/node").json();
        document["memory_total_bytes"]["value"].is_u64().then_some(document)
    });
    assert_eq!(node["gpu_source"]["state"], "switched_off");
    assert_eq!(node["view"]["simulated"], false);
    assert_eq!(node["gpus"], 0);
}
