//! Runs the parsed [`Command`]. Results go to stdout, errors to stderr.

use crate::args::Command;
use crate::exit::Exit;
use crate::settings::Settings;
use crate::settings::extender::ExtenderSettings;
use crate::settings::layer::{Problem, RawSettings};
use crate::settings::value::{LogFormat, Verbosity};
use crate::telemetry::Telemetry;
use crate::{agent, extender, print_config, telemetry, top, usage};
use std::io::Write;

/// Runs the command to its end or its error.
pub(crate) fn run(command: Command) -> Exit {
    let result = match command {
        Command::Agent(raw) => Settings::load(&raw).map(|(settings, _)| {
            let telemetry = started(settings.log_format, settings.live.verbosity, &raw);
            agent::run(settings, raw, telemetry)
        }),
        Command::CleanNode(raw, all) => Settings::load(&raw).map(|(settings, _)| {
            started(settings.log_format, settings.live.verbosity, &raw);
            agent::clean::run(&settings, all)
        }),
        Command::ClearIncident(raw, which) => Settings::load(&raw).map(|(settings, _)| {
            started(settings.log_format, settings.live.verbosity, &raw);
            agent::clear::run(&settings, &which)
        }),
        Command::Renamed(command, warning) => {
            let _ = writeln!(std::io::stderr(), "warning: {warning}");
            return run(*command);
        }
        Command::Extender(raw) => ExtenderSettings::load(&raw).map(|settings| {
            let telemetry = started(settings.log_format, settings.verbosity, &raw);
            extender::run(settings, &telemetry)
        }),
        Command::PrintConfig(raw, output) => Settings::load(&raw).and_then(|(_, settings)| {
            // The settings of the extender are shown too, so they must be valid.
            ExtenderSettings::read(&settings)?;
            print(&print_config::print(&settings, &raw.layer().ignored, output));
            Ok(Exit::Ok)
        }),
        Command::PrintScheduler(raw) => ExtenderSettings::load(&raw).map(|settings| {
            match extender::request_rules(&settings) {
                Ok(rules) => print(&print_config::kube_scheduler(settings.listen, &rules.names)),
                Err(why) => {
                    let _ = writeln!(std::io::stderr(), "error: {why}");
                    return Exit::Usage;
                }
            }
            Exit::Ok
        }),
        Command::Usage(raw, options) => usage::run(&raw, options),
        Command::Top(settings) => Ok(watch(&settings)),
        // The parent process sees from the exit code that there is no answer, and reports it.
        Command::Symbolize => Ok(pprof::run_child().map_or(Exit::Failure, |()| Exit::Ok)),
    };
    result.unwrap_or_else(|problems| report(&problems))
}

/// Starts the log, and names in it what is set and has gone.
fn started(format: LogFormat, verbosity: Verbosity, raw: &RawSettings) -> Telemetry {
    let telemetry = telemetry::start(format, verbosity);
    raw.layer().ignored.iter().for_each(telemetry::setting_has_gone);
    telemetry
}

fn watch(settings: &top::Settings) -> Exit {
    let Err(error) = top::run(settings) else { return Exit::Ok };
    let _ = writeln!(std::io::stderr(), "error: {error}");
    error.exit()
}

/// Writes to stdout. A closed stdout, as with `| head`, is not a failure.
fn print(text: &str) {
    let _ = std::io::stdout().write_all(text.as_bytes());
}

fn report(problems: &[Problem]) -> Exit {
    for problem in problems {
        let _ = writeln!(std::io::stderr(), "error: {problem}");
    }
    Exit::Usage
}
