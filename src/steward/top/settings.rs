//! Settings and command line of `gpu-steward top`.

use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};
use std::path::PathBuf;
use std::time::Duration;

/// Default address of an agent.
const URL: &str = "http://127.0.0.1:9410";
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
    /// The address of the agent.
    pub(crate) url: String,
    /// File with a bearer token, for an agent that requires a token.
    pub(crate) token_file: Option<PathBuf>,
    /// File with the certificates that are trusted, for an agent that serves HTTPS.
    pub(crate) ca_file: Option<PathBuf>,
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
        .arg(Arg::new("url").long("url").value_name("URL").default_value(URL).help("Where the agent listens"))
        .arg(
            Arg::new("token-file")
                .long("token-file")
                .value_name("PATH")
                .value_parser(value_parser!(PathBuf))
                .help("File with a bearer token, for an agent that needs one (--api-token-file)"),
        )
        .arg(Arg::new("ca-file").long("ca-file").value_name("PATH").value_parser(value_parser!(PathBuf)).help(
            "File (PEM) with the authority of the agent's certificate, for an agent that serves HTTPS (--tls-cert)",
        ))
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
            url: matches.get_one::<String>("url").cloned().unwrap_or_else(|| URL.to_owned()),
            token_file: matches.get_one::<PathBuf>("token-file").cloned(),
            ca_file: matches.get_one::<PathBuf>("ca-file").cloned(),
            interval: matches.get_one::<Duration>("interval").copied().unwrap_or(Duration::from_secs(1)),
            once: matches.get_flag("once"),
            json: matches.get_one::<String>("output").is_some_and(|format| format == "json"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(line: &str) -> Result<Settings, String> {
        let matches = command().try_get_matches_from(line.split(' ')).map_err(|error| error.to_string())?;
        Ok(Settings::read(&matches))
    }

    #[test]
    fn settings_that_are_not_given_have_defaults() {
        let settings = read("top").unwrap();
        assert_eq!((settings.url.as_str(), settings.interval, settings.once), (URL, Duration::from_secs(1), false));
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
