//! What the agent costs on this GPU.

use crate::machine::Machine;
use crate::record::Record;
use lab::agent::Agent;
use std::time::Instant;

/// Promise 1 of docs/specification.md: of one core, and RssAnon in MiB.
const CPU: f64 = 0.01;
const MEMORY: f64 = 12.0;

/// Measures CPU and memory over some time. The library's own memory is that of a process which only opens it.
pub(crate) fn measure(record: &mut Record, machine: &Machine, agent: &Agent, (when, library): (&str, f64)) {
    record.part(&format!("cost of the agent, {when}"));
    let (before, began) = (agent.processor_time(), Instant::now());
    std::thread::sleep(machine.length);
    let share = (agent.processor_time() - before).as_secs_f64() / began.elapsed().as_secs_f64();
    let (anonymous, resident) = (agent.anonymous_mib(), agent.resident_mib());
    let numbers = format!(
        "{:.2} % of a core, RssAnon {anonymous:.1} MiB ({library:.1} of it the NVML library's), VmRSS {resident:.1} MiB",
        100.0 * share
    );
    // The test build is slower, and makes the fake library's answers itself: only a packed program is judged.
    if std::env::var_os("GPU_CHECK_BINARY").is_some() {
        record.check(share <= CPU && anonymous - library <= MEMORY, &numbers);
    } else {
        record.line(&format!("         {numbers}"));
    }
}
