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

use args::Wish;
use exit::Exit;
use settings::Settings;
use settings::layer::{Problem, Spoken};
use std::io::Write;
use std::process::ExitCode;

fn main() -> ExitCode {
    let exit = match args::read(std::env::args_os()) {
        Ok(Wish::Agent(spoken)) => run_agent(spoken),
        Ok(Wish::PrintConfig(spoken, output)) => match understand(&spoken) {
            Ok(_) => say(&print_config::print(&spoken.layer().unwrap_or_default(), output)),
            Err(problems) => complain(&problems),
        },
        Ok(Wish::Top(settings)) => watch(&settings),
        Ok(Wish::Symbolize) => symbolize(),
        Ok(Wish::Usage(spoken, wanted)) => usage::run(&spoken, wanted).unwrap_or_else(|problems| complain(&problems)),
        Err(error) => {
            let _ = error.print();
            if error.use_stderr() { Exit::Usage } else { Exit::Ok }
        }
    };
    exit.into()
}

fn run_agent(spoken: Spoken) -> Exit {
    match understand(&spoken) {
        Ok(settings) => {
            let telemetry = telemetry::start(settings.log_format, settings.live.verbosity);
            agent::run(settings, spoken, telemetry)
        }
        Err(problems) => complain(&problems),
    }
}

/// The parent sees from the exit code that there is no answer, and says so.
fn symbolize() -> Exit {
    match effects::pprof::symbolize::run_child() {
        Ok(()) => Exit::Ok,
        Err(_) => Exit::Failure,
    }
}

fn understand(spoken: &Spoken) -> Result<Settings, Vec<Problem>> {
    Settings::read(&spoken.layer()?)
}

fn watch(settings: &top::Settings) -> Exit {
    let Err(error) = top::run(settings) else { return Exit::Ok };
    let _ = writeln!(std::io::stderr(), "error: {error}");
    error.exit()
}

/// A reader that went away (`| head`) is no failure.
fn say(text: &str) -> Exit {
    let _ = std::io::stdout().write_all(text.as_bytes());
    Exit::Ok
}

fn complain(problems: &[Problem]) -> Exit {
    for problem in problems {
        let _ = writeln!(std::io::stderr(), "error: {problem}");
    }
    Exit::Usage
}
