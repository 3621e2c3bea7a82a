//! Checks the agent on a real GPU, and writes a record of it.
//!
//! ```text
//!   nvidia-smi ──────────────────────────────┐
//!   agent ──/metrics, /api/v1/gpus───────────┼──▶ readings, processes ──┐
//!   NVML ──how long a call takes─────────────▶ calls ───────────────────┼──▶ record ──▶ a file, and a verdict
//!        ──how often a counter changes───────▶ refresh ─────────────────┤
//!   agent ──CPU, memory, SIGKILL, restart────▶ cost, life ──────────────┘
//!   this program again ──kernels through libcuda──▶ GPU     (machine::Load)
//! ```
//!
//! `tests/gpu/pack FOLDER` packs it with the program for a machine that has only a driver. `tests/run gpu` runs it here: on the
//! GPU if there is one, else on the fake NVML library with a fake `nvidia-smi`, which shows that the check itself works. With
//! `--long` it also runs the packed form.
//!
//! A difference must never be missing from the record: each line is written as soon as it is known, and the check goes on
//! after a difference.

#![allow(clippy::print_stdout, reason = "it prints the record")]

mod calls;
mod cost;
mod cuda;
mod fake;
mod life;
mod machine;
mod processes;
mod readings;
mod record;
mod refresh;

use machine::Machine;
use record::Record;
use std::error::Error;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

pub(crate) type Outcome<T> = Result<T, Box<dyn Error>>;

/// The longest check: someone lends the GPU for a few minutes.
const MOST: Duration = Duration::from_secs(360);

const BINARY: &str = env!("CARGO_BIN_EXE_gpu-steward");

fn main() -> ExitCode {
    let verdict = match std::env::var("GPU_CHECK").as_deref() {
        Ok("real") => Machine::real(binary()).and_then(|machine| check(&machine, records())),
        Ok("fake") => fake::machine(binary()).and_then(|(machine, folder)| check(&machine, folder)),
        Ok("load") => cuda::load_from_environment().map(|()| true),
        Ok(other) => Err(format!("GPU_CHECK is {other:?}; it may be real, fake or load").into()),
        Err(_) => {
            println!("gpu: needs a GPU; run it with tests/run gpu, or tests/gpu/pack for another machine");
            return ExitCode::SUCCESS;
        }
    };
    match verdict {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            println!("gpu: {error}");
            ExitCode::FAILURE
        }
    }
}

/// The agent that is checked: the packed release build, else the test build.
fn binary() -> String {
    std::env::var("GPU_CHECK_BINARY").unwrap_or_else(|_| BINARY.to_owned())
}

/// The folder for the record.
fn records() -> PathBuf {
    let repository = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/gpu/runs");
    std::env::var_os("GPU_CHECK_RECORDS").map_or_else(|| repository.into(), PathBuf::from)
}

fn check(machine: &Machine, folder: PathBuf) -> Outcome<bool> {
    let begun = Instant::now();
    let gpus = readings::identities(machine)?;
    let first = gpus.first().ok_or("nvidia-smi lists no GPU")?;
    let mut record = Record::create(&folder, &first.name, &first.driver)?;
    record.line(&format!("program: {}", machine.version()?));
    record.line(&format!("kernel: {}", std::fs::read_to_string("/proc/sys/kernel/osrelease")?.trim()));
    for gpu in &gpus {
        record.line(&format!("GPU {}: {}, {}, driver {}", gpu.index, gpu.name, gpu.pci_bus_id, gpu.driver));
    }
    let library = machine.library_mib()?;
    {
        let agent = machine.agent();
        readings::compare(&mut record, machine, &agent, &gpus, "idle")?;
        cost::measure(&mut record, machine, &agent, ("idle", library));
    }
    let idle = calls::time(machine)?;
    {
        let load = machine.load(cuda::Pattern::Steady)?;
        let agent = machine.agent();
        readings::compare(&mut record, machine, &agent, &gpus, "under load")?;
        processes::compare(&mut record, machine, &agent, &load)?;
        cost::measure(&mut record, machine, &agent, ("under load", library));
        drop(agent);
        calls::report(&mut record, &idle, &calls::time(machine)?);
    }
    {
        let load = machine.load(cuda::Pattern::Square)?;
        refresh::measure(&mut record, machine, &load)?;
    }
    life::check(&mut record, machine, &gpus)?;
    let took = begun.elapsed();
    record.part("the check itself");
    record.check(took <= MOST, &format!("took {} s (at most {} s)", took.as_secs(), MOST.as_secs()));
    Ok(record.verdict())
}
