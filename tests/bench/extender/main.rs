//! Measures the extender at the size of the largest clusters. Each part is compared with a baseline in the same run.
//!
//! ```text
//!   verbs    this program ──filter──▶ gpu-steward extender ──▶ fake API server in this program
//!                         ──filter──▶ pass-through (this program again), which only decodes and encodes
//!   ready    start ──▶ first answer, beside a plain list of the same objects
//!   readers  clients that never read /metrics/hami: memory, filter calls, Lease
//!   idle     the cost of a leader that gets no calls, with 1,000 nodes and with 5,000
//!   check    two leaders with 5,000 streams each, one without the real-time check and one with it, take turns
//!   crowd    agents (this program again) ──5,000 streams──▶ leader: memory, CPU, age of the data for decisions
//!   change   two extenders; the leader stops, or is killed: the gap, and how the streams move
//! ```
//!
//! `tests/run --long extender` runs it; `EXTENDER=crowd,change` chooses parts. CPU time is measured for the whole process, in
//! the scheduler's nanoseconds. Times on a shared machine say little, so each check is a ratio in one interleaved run, is
//! about memory, or has a limit of seconds.

#![allow(clippy::print_stdout, reason = "a bench prints what it measured")]

mod outcome;
mod served;
mod cluster;
mod verbs;
mod ready;
mod idle;
mod readers;
mod agents;
mod crowd;
mod check;
mod gap;
mod change;

use lab::pass_through;
use outcome::{Figures, Outcome};
use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().collect();
    let argument = |place: usize| arguments.get(place).map_or("", String::as_str);
    let done = match argument(1) {
        "pass-through" => pass_through::serve(argument(2).parse().unwrap_or(1)).map(|()| true).map_err(Into::into),
        "agents" => agents::run(argument(2).as_ref()).map(|()| true),
        _ => match std::env::var("EXTENDER") {
            Err(_) => {
                println!("extender: takes minutes; run it with tests/run --long extender");
                return ExitCode::SUCCESS;
            }
            Ok(parts) => bench(&parts),
        },
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            println!("extender: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Runs these parts, or all.
fn bench(parts: &str) -> Outcome<bool> {
    let wanted = |part: &str| parts == "1" || parts.split(',').any(|wanted| wanted == part);
    let mut figures = Figures::default();
    if wanted("verbs") {
        verbs::measure_all(&mut figures)?;
    }
    if wanted("ready") {
        ready::measure(&mut figures)?;
    }
    if wanted("idle") {
        idle::measure(&mut figures)?;
    }
    if wanted("readers") {
        readers::measure(&mut figures)?;
    }
    if wanted("check") {
        check::measure(&mut figures)?;
    }
    if wanted("crowd") || wanted("change") {
        let mut crowd = crowd::Crowd::gather(&[])?;
        if wanted("crowd") {
            crowd.measure(&mut figures)?;
        }
        if wanted("change") {
            change::measure(crowd, &mut figures)?;
        }
    }
    Ok(figures.hold())
}
