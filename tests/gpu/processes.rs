//! Compares the processes on the GPU, and checks that a process of no pod is a stranger.

use crate::Outcome;
use crate::machine::{LOAD_MIB, Load, Machine};
use crate::record::Record;
use lab::agent::{Agent, START};
use lab::eventually::eventually;
use serde_json::Value;

const MIB: f64 = 1_048_576.0;
/// What two readings at different moments may differ by.
const APART: f64 = 16.0;

/// Compares the memory of each process, and checks the load's process.
pub(crate) fn compare(record: &mut Record, machine: &Machine, agent: &Agent, load: &Load<'_>) -> Outcome<()> {
    record.part("processes, under load");
    let mine = |gpu: &Value| {
        let list = gpu["processes"]["value"].as_array()?;
        list.iter().find(|process| process["pid"] == load.pid()).cloned()
    };
    let (gpu, process) = eventually("the load's process and its use", START, || {
        let gpus = agent.get("/api/v1/gpus").json()["gpus"].as_array()?.clone();
        let found = gpus.iter().find_map(|gpu| Some((gpu.clone(), mine(gpu)?)))?;
        (found.1["sm_ratio"]["absent"] != "not_yet").then_some(found)
    });
    for line in machine.nvidia_smi("--query-compute-apps=gpu_uuid,pid,used_memory")? {
        let [uuid, pid, memory] = line.as_slice() else { return Err(format!("{line:?}").into()) };
        let agents = gpu["processes"]["value"].as_array().into_iter().flatten();
        let agents =
            agents.filter(|_| gpu["uuid"] == **uuid).find(|process| process["pid"].as_u64() == pid.parse().ok());
        let held = agents.and_then(|process| process["memory_used_bytes"]["value"].as_f64()).map(|bytes| bytes / MIB);
        let same = match (memory.parse::<f64>().ok(), held) {
            (Some(memory), Some(held)) => (memory - held).abs() <= APART,
            (None, None) => true,
            _ => false,
        };
        record.check(same, &format!("memory of process {pid}: nvidia-smi {memory} MiB, agent {held:?}"));
    }
    let held = process["memory_used_bytes"]["value"].as_f64().map(|bytes| bytes / MIB);
    #[expect(clippy::cast_precision_loss, reason = "MiB of a GPU")]
    let least = LOAD_MIB as f64;
    record.check(held.is_some_and(|held| held >= least), &format!("the load holds {least} MiB or more: {held:?}"));
    record.line(&format!("         the load's process: {process}"));
    let owner = process["owner"]["kind"].as_str().unwrap_or_default();
    record.check(owner != "pod", &format!("the load's process belongs to no pod: {owner:?}"));
    let strangers = gpu["strangers"]["value"].as_u64();
    record.check(strangers.is_some_and(|count| count > 0), &format!("strangers: {strangers:?}"));
    let unexplained = gpu["unattributed_memory_bytes"]["value"].as_f64().map(|bytes| bytes / MIB);
    let used = gpu["memory_used_bytes"]["value"].as_f64().map(|bytes| bytes / MIB);
    let holds = matches!((unexplained, held), (Some(unexplained), Some(held)) if unexplained >= held - APART);
    record.check(holds, &format!("memory of no pod: {unexplained:?} of {used:?} MiB in use"));
    Ok(())
}
