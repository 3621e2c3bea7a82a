//! The agent ends in both ways and starts again with the same state.

use crate::Outcome;
use crate::machine::Machine;
use crate::readings::Identity;
use crate::record::Record;
use lab::agent::{Agent, START};
use lab::eventually::eventually;
use std::path::Path;
use std::time::{Duration, Instant};

/// The longest end after SIGTERM: promise 5 of docs/specification.md.
const END: Duration = Duration::from_secs(5);

/// Kills the agent, starts it again with the state that it left, and ends it.
pub(crate) fn check(record: &mut Record, machine: &Machine, gpus: &[Identity]) -> Outcome<()> {
    record.part("SIGKILL, start, SIGTERM");
    let folder = tempfile::tempdir()?;
    let first = start(record, machine, gpus, folder.path(), "first start");
    first.signal(libc::SIGKILL);
    let _ = first.wait();
    let second = start(record, machine, gpus, folder.path(), "start after SIGKILL");
    let ended = second.terminate();
    let holds = ended.status.success() && ended.took <= END;
    record.check(holds, &format!("SIGTERM: {} after {:.2} s", ended.status, ended.took.as_secs_f64()));
    let listed = machine.nvidia_smi("--query-gpu=index")?.len();
    record.check(listed == gpus.len(), &format!("nvidia-smi lists {listed} GPUs afterwards"));
    Ok(())
}

/// Starts the agent, and checks that it shows each GPU.
fn start(record: &mut Record, machine: &Machine, gpus: &[Identity], folder: &Path, what: &str) -> Agent {
    let began = Instant::now();
    let agent = machine
        .recipe()
        .with("--state-dir", folder.join("state"))
        .with("--usage-socket", folder.join("agent.sock"))
        .start();
    let healthy = eventually("each GPU with its memory", START, || {
        let shown = agent.get("/api/v1/gpus").json()["gpus"].as_array()?.clone();
        let known = |gpu: &&Identity| {
            shown.iter().any(|one| one["uuid"] == *gpu.uuid && one["memory_used_bytes"]["value"].is_number())
        };
        let healthy = shown.iter().filter(|one| one["health"] == "healthy").count();
        gpus.iter().all(|gpu| known(&gpu)).then_some(healthy)
    });
    let took = began.elapsed().as_secs_f64();
    record.check(healthy == gpus.len(), &format!("{what}: each GPU is shown after {took:.2} s, {healthy} healthy"));
    agent
}
