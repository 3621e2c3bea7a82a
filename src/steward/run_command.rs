//! Runs the parsed [`Command`]. Results go to stdout, errors to stderr.

use crate::args::Command;
use crate::settings::layer::{Problem, RawSettings};
use crate::settings::removed::IgnoredSetting;
use crate::settings::{self, reload};
use crate::{print_config, profiles, top, usage};
use serve::exit::Exit;
use serve::log::level::Verbosity;
use serve::log::{self, LogFormat, Telemetry};
use std::io::Write;

/// Runs the command to its end or its error.
pub(crate) fn run(command: Command) -> Exit {
    let result = match command {
        Command::Agent(raw) => settings::load(&raw).map(|(settings, values)| {
            let telemetry = started(settings.log_format, settings.live.verbosity, &raw);
            warn_of_unknown_variables(&raw);
            warn_of_overruled_variables(&raw);
            agent::run(settings, reload::of_agent(raw, values), telemetry)
        }),
        Command::CleanNode(raw, all) => settings::load(&raw).map(|(settings, _)| {
            started(settings.log_format, settings.live.verbosity, &raw);
            agent::clean::run(&settings, all)
        }),
        Command::ClearIncident(raw, which) => settings::load(&raw).map(|(settings, _)| {
            started(settings.log_format, settings.live.verbosity, &raw);
            agent::clear::run(&settings, &which)
        }),
        Command::Renamed(command, warning) => {
            let _ = writeln!(std::io::stderr(), "warning: {warning}");
            return run(*command);
        }
        Command::Extender(raw) => settings::extender::load(&raw).map(|read| {
            let telemetry = started(read.settings.log_format, read.settings.verbosity, &raw);
            warn_of_overruled_variables(&raw);
            match read.request_rules() {
                Ok(rules) => extender::run(read.settings, rules, &telemetry),
                Err(why) => {
                    tracing::error!("{why}");
                    Exit::Usage
                }
            }
        }),
        Command::PrintConfig(raw, output) => settings::load(&raw).and_then(|(_, values)| {
            // The settings of the extender are shown too, so they must be valid.
            settings::extender::read(&values)?;
            print(&print_config::print(&values, &raw.layer().ignored, output));
            Ok(Exit::Ok)
        }),
        Command::PrintScheduler(raw) => settings::extender::load(&raw).map(|read| {
            match read.request_rules() {
                Ok(rules) => {
                    let settings = &read.settings;
                    print(&wire::scheduler_config::encode(&settings.scheduler_name, settings.listen, &rules.names));
                }
                Err(why) => {
                    let _ = writeln!(std::io::stderr(), "error: {why}");
                    return Exit::Usage;
                }
            }
            Exit::Ok
        }),
        Command::Usage(raw, options) => usage::run(&raw, options),
        Command::Top(settings) => Ok(watch(&settings)),
        Command::Profile(command) => Ok(profiles::run(&command)),
        Command::Doctor(command) => Ok(doctor::run(&command)),
        // The parent process sees from the exit code that there is no answer, and reports this.
        Command::Symbolize => Ok(pprof::run_child().map_or(Exit::Failure, |()| Exit::Ok)),
    };
    result.unwrap_or_else(|problems| report(&problems))
}

/// Starts the log, and logs a warning for each removed setting that is still set.
fn started(format: LogFormat, verbosity: Verbosity, raw: &RawSettings) -> Telemetry {
    let telemetry = log::start(format, verbosity);
    raw.layer().ignored.iter().for_each(IgnoredSetting::warn);
    telemetry
}

fn warn_of_unknown_variables(raw: &RawSettings) {
    for (variable, nearest) in raw.unknown_variables() {
        let meant = nearest.unwrap_or_default();
        tracing::warn!(variable, meant, "an environment variable looks like a setting, but there is no such setting");
    }
}

fn warn_of_overruled_variables(raw: &RawSettings) {
    raw.overruled_variables().iter().for_each(|sentence| tracing::warn!("{sentence}"));
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
