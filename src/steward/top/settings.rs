//! Settings and command line of `gpu-steward top`.

use crate::agent_api::arguments::{AgentAddress, arguments};
use clap::{Arg, ArgAction, ArgMatches, Command};
use std::time::Duration;

/// Shortest interval in seconds. An agent makes a view each second by default, and more often if its settings say so.
const MIN_INTERVAL: f64 = 0.2;
/// Longest interval in seconds: one hour.
const MAX_INTERVAL: f64 = 3600.0;

const NOTES: &str = "\
Without a terminal (a pipe, TERM=dumb) one frame is printed, as with --once. NO_COLOR turns colours off.
A value that could not be read is shown as – and the line at the bottom says why.";

/// Settings of `top`.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Settings {
    /// Where the agent listens.
    pub(crate) agent: AgentAddress,
    /// Time between two fetches.
    pub(crate) interval: Duration,
    /// Prints one frame as plain text and ends.
    pub(crate) once: bool,
    /// Prints the answers as one JSON document and ends.
    pub(crate) json: bool,
}

/// The command line.
pub(crate) fn command() -> Command {
    Command::new("top")
        .about("Watch this node's GPUs, pods and processes in the terminal")
        .after_help(NOTES)
        .args(arguments())
        .arg(
            Arg::new("interval")
                .long("interval")
                .value_name("SECONDS")
                .default_value("1")
                .value_parser(interval)
                .help("Time between two updates"),
        )
        .arg(Arg::new("once").long("once").action(ArgAction::SetTrue).help("Print one frame as plain text and end"))
        .arg(
            Arg::new("output")
                .short('o')
                .long("output")
                .value_name("FORMAT")
                .value_parser(["text", "json"])
                .default_value("text")
                .help("json prints the agent's answers as one document and ends"),
        )
}

fn interval(text: &str) -> Result<Duration, String> {
    let seconds: f64 =
        text.trim_end_matches('s').parse().map_err(|_| format!("{text:?} is not a number of seconds"))?;
    if (MIN_INTERVAL..=MAX_INTERVAL).contains(&seconds) {
        Ok(Duration::from_secs_f64(seconds))
    } else {
        Err(format!("{text} is not between {MIN_INTERVAL} and {MAX_INTERVAL} seconds"))
    }
}

// === impl Settings ===

impl Settings {
    /// Reads the settings from matches of [`command`].
    pub(crate) fn read(matches: &ArgMatches) -> Settings {
        Settings {
            agent: AgentAddress::read(matches),
            interval: matches.get_one::<Duration>("interval").copied().unwrap_or(Duration::from_secs(1)),
            once: matches.get_flag("once"),
            json: matches.get_one::<String>("output").is_some_and(|format| format == "json"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent_api::arguments::URL;

    fn read(line: &str) -> Result<Settings, String> {
        let matches = command().try_get_matches_from(line.split(' ')).map_err(|error| error.to_string())?;
        Ok(Settings::read(&matches))
    }

    #[test]
    fn settings_that_are_not_given_have_defaults() {
        let settings = read("top").unwrap();
        let url = settings.agent.url.as_str();
        assert_eq!((url, settings.interval, settings.once), (URL, Duration::from_secs(1), false));
        assert!(read("top -o json").unwrap().json);
        assert_eq!(read("top --interval 2.5s").unwrap().interval, Duration::from_millis(2500));
    }

    #[test]
    fn an_interval_that_cannot_be_kept_is_refused_with_the_bounds() {
        for bad in ["0", "-1", "x", "NaN", "inf", "1e9"] {
            let error = read(&format!("top --interval={bad}")).unwrap_err();
            assert!(error.contains("seconds"), "{bad}: {error}");
        }
    }
}
