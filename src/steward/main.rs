//! `gpu-steward`: the program. It parses the command line, reads the settings, and starts the agent, the extender or a
//! command.
//!
//! ```text
//!   main ─▶ args ─▶ settings ─▶ log ─▶ agent: ports bound, sources, node task, servers  ─▶ drain ─▶ exit
//!                                      extender: watches, election, cluster state, port ─▶ drain ─▶ exit
//!
//!   args           the command line, and the text of --help
//!   settings       flags, environment and file; settings/table.rs has each setting with its default
//!   run_command    starts each command
//!   print_config   the command print-config
//!   top usage profiles   the commands that show what an agent serves (`doctor` is a crate of its own)
//!   agent_api      the client of the agent's JSON API
//!   jemalloc       the memory allocator
//! ```
//!
//! What must never happen here: a decision (this belongs in `decide`), a format (this belongs in `wire`), a reading
//! of the host outside `sources`.

mod jemalloc;
mod settings;
mod print_config;
mod agent_api;
mod top;
mod usage;
mod profiles;
mod args;
mod run_command;

use serve::exit::Exit;
use std::process::ExitCode;

fn main() -> ExitCode {
    let exit = match args::read(std::env::args_os()) {
        Ok(command) => run_command::run(command),
        Err(error) => {
            // A closed stdout, as in `--help | head`, is not a failure.
            let _ = error.print();
            if error.use_stderr() { Exit::Usage } else { Exit::Ok }
        }
    };
    exit.into()
}
