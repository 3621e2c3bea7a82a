//! `gpu-steward`: the front door. Says which eye, mind and hand belong together, and nothing else.
//!
//! ```text
//!   main ─▶ args ─▶ settings ─▶ telemetry ─▶ agent: doors bound, eyes opened, one owner, servers ─▶ drain ─▶ exit
//! ```
//!
//! What must never happen here: a decision (that is `decide`), a format (that is `wire`), a reading of the host outside
//! `sources`.

mod exit;
mod allocator;
mod settings;
mod print_config;
mod top;
mod usage;
mod args;
mod telemetry;
mod stop;
mod notify;
mod agent;
mod grant;

use exit::Exit;
use std::process::ExitCode;

fn main() -> ExitCode {
    let exit = match args::read(std::env::args_os()) {
        Ok(wish) => grant::grant(wish),
        Err(error) => {
            // `--help | head` is no failure.
            let _ = error.print();
            if error.use_stderr() { Exit::Usage } else { Exit::Ok }
        }
    };
    exit.into()
}
