//! Compares the agent's values of each GPU with those of `nvidia-smi`.

use crate::cuda;
use lab::agent::{Agent, START};
use lab::eventually::eventually;
use serde_json::Value;
use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

const BINARY: &str = env!("CARGO_BIN_EXE_gpu-steward");
const MIB: f64 = 1_048_576.0;
const HELD: usize = 1 << 30;

/// The field of `nvidia-smi`, its path in the agent's JSON, the factor between the two, and the largest difference (as
/// a share of the number, and in its unit). Constant values must be equal; the others are read at another moment.
const NUMBERS: [(&str, &str, f64, f64, f64); 8] = [
    ("memory.total", "memory_total_bytes", MIB, 0.0, 1.0),
    ("memory.used", "memory_used_bytes", MIB, 0.02, 64.0),
    ("power.limit", "power_limit_watts", 1.0, 0.0, 0.01),
    ("power.draw", "power_watts", 1.0, 0.25, 30.0),
    ("temperature.gpu", "temperature_celsius", 1.0, 0.0, 5.0),
    ("clocks.current.memory", "clock_memory_hertz", 1e6, 0.0, 1.0),
    ("ecc.errors.corrected.volatile.total", "ecc/volatile_corrected", 1.0, 0.0, 0.0),
    ("ecc.errors.uncorrected.aggregate.total", "ecc/aggregate_uncorrected", 1.0, 0.0, 0.0),
];

/// The fields of each GPU from `nvidia-smi`, one line for each GPU.
fn nvidia_smi(fields: &str) -> Vec<Vec<String>> {
    let output = Command::new("nvidia-smi")
        .args([&format!("--query-gpu={fields}"), "--format=csv,noheader,nounits"])
        .output()
        .expect("nvidia-smi comes with the driver");
    assert!(output.status.success(), "nvidia-smi: {}", String::from_utf8_lossy(&output.stdout));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.lines().map(|line| line.split(',').map(|cell| cell.trim().to_owned()).collect()).collect()
}

/// The GPUs in the agent's answer, once each has been read.
fn gpus(agent: &Agent, count: usize) -> Vec<Value> {
    eventually("every GPU with power or a reason", START, || {
        let gpus = agent.get("/api/v1/gpus").json()["gpus"].as_array()?.clone();
        let read =
            gpus.iter().all(|gpu| gpu["power_watts"]["absent"] != "not_yet" && gpu["pci_bus_id"]["value"].is_string());
        (gpus.len() == count && read).then_some(gpus)
    })
}

/// Compares one number, and returns a line for the record.
fn compare(gpu: &Value, cell: &str, number: (&str, &str, f64, f64, f64)) -> String {
    let (name, place, factor, share, unit) = number;
    let reading = &gpu.pointer(&format!("/{place}")).unwrap_or(&Value::Null);
    let Ok(expected) = cell.parse::<f64>() else {
        assert!(reading["value"].is_null(), "{name}: nvidia-smi says {cell}, the agent says {reading}");
        return format!("  {name}: {cell}, absent: {}", reading["absent"]);
    };
    let value = reading["value"].as_f64().map(|value| value / factor);
    let value = value.unwrap_or_else(|| panic!("{name}: nvidia-smi says {cell}, the agent says {reading}"));
    assert!(
        (value - expected).abs() <= unit + expected * share,
        "{name}: nvidia-smi says {cell}, the agent says {value}"
    );
    format!("  {name}: {cell}, agent {value:.2}")
}

#[test]
#[ignore = "needs a GPU: tests/run"]
fn the_agent_agrees_with_nvidia_smi() {
    cuda::hold(HELD);
    let agent = Agent::standalone(BINARY).start();
    let fields: Vec<&str> = NUMBERS.iter().map(|number| number.0).collect();
    let identities = nvidia_smi("uuid,name,pci.bus_id,driver_version,index");
    let gpus = gpus(&agent, identities.len());
    let cells = nvidia_smi(&fields.join(","));
    let mut record = String::new();
    for ((identity, cells), gpu) in identities.iter().zip(&cells).zip(&gpus) {
        let shown = [&gpu["uuid"], &gpu["model"], &gpu["pci_bus_id"]["value"]];
        assert!(shown.iter().zip(identity).all(|(shown, word)| **shown == **word), "{shown:?} {identity:?}");
        writeln!(record, "{}", identity.join(", ")).expect("text can be written");
        for (number, cell) in NUMBERS.iter().zip(cells) {
            writeln!(record, "{}", compare(gpu, cell, *number)).expect("text can be written");
        }
        let counters = &gpu["gpm"]["sm_active"];
        let hopper = ["H100", "H200", "GH200", "B200"].iter().any(|model| identity[1].contains(model));
        writeln!(record, "  profiling counters: {counters}").expect("text can be written");
        assert!(hopper != (counters["absent"] == "not_this_architecture"), "{identity:?}: {counters}");
    }
    let mine = eventually("this process on the first GPU", START, || {
        let document = agent.get("/api/v1/gpus").json();
        let list = document["gpus"].as_array()?.iter().find_map(|gpu| gpu["processes"]["value"].as_array().cloned())?;
        list.into_iter().find(|process| process["pid"] == std::process::id())
    });
    let held = mine["memory_used_bytes"]["value"].as_f64().expect("the driver reports a process's memory");
    assert!(held >= 1_073_741_824.0, "{held} of {HELD} bytes reported");
    writeln!(record, "  this process holds {HELD} bytes, agent {held}").expect("text can be written");
    keep(&identities[0], &record);
}

/// Writes the record, with GPU and driver in its name.
fn keep(identity: &[String], record: &str) {
    let name = format!("{}-{}", identity[1].replace([' ', '/'], "-"), identity[3]);
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/gpu/runs").join(name + ".txt");
    std::fs::write(path, record).expect("the record is written");
}
