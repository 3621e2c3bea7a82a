//! `gpu-steward profile history SERIES` asks the agent for the values of one series, and prints them.
//!
//! What must never happen here: a reading of the machine (the agent does this); text of the answer that a terminal obeys.

use crate::agent_api::FetchError;
use crate::agent_api::arguments::{AgentAddress, arguments};
use crate::top::show::{cores, duration, percent, rate};
use clap::{Arg, ArgMatches, Command, value_parser};
use serve::exit::Exit;
use serve::lifecycle;
use serve::terminal::plain;
use std::fmt::Write as _;
use std::io::{self, Write as _};
use wire::api::history::HistoryJson;
use wire::timestamp;

/// The name of the subcommand.
pub(super) const NAME: &str = "history";
/// The path of the agent's API.
const PATH: &str = "/api/v1/history";

const EXAMPLES: &str = "\
Examples:
  gpu-steward profile history gpu/0/utilization                        the finest values that the agent has
  gpu-steward profile history gpu/0/power --from -2h --step 1m         two hours in steps of a minute
  gpu-steward profile history pod/ml/train-0/memory -o csv > memory.csv

Quantities of a GPU: utilization, memory_copy, gpu_memory, power. Of a pod: cpu, memory, gpu_memory, sm_use.
`curl localhost:9410/api/v1/profile` lists the series.";

/// The parsed command line.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct HistoryCommand {
    agent: AgentAddress,
    /// The query of the request.
    query: String,
    output: Output,
}

/// The output format (`-o`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Output {
    /// For people.
    Table,
    /// The agent's answer.
    Json,
    /// For spreadsheets.
    Csv,
}

/// The reason why there is nothing to show.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error(transparent)]
    Fetch(#[from] FetchError),
    #[error("cannot start the HTTP client: {0}")]
    Runtime(io::Error),
    #[error("cannot write the answer as JSON: {0}")]
    Json(#[from] serde_json::Error),
    #[error("cannot write to standard output: {0}")]
    Output(io::Error),
}

/// The command line.
pub(super) fn command() -> Command {
    // A begin such as -2h starts with a hyphen.
    let from =
        Arg::new("from").long("from").value_name("TIME").allow_hyphen_values(true).help(
            "Begin: 2026-11-28T10:00:00Z, or -2h for two hours ago [default: the oldest value that the step allows]",
        );
    let step = Arg::new("step")
        .long("step")
        .value_name("TIME")
        .help("Time between two values, such as 1m or 15m; longer where nothing so fine is kept since --from [default: the finest one that is]");
    Command::new(NAME)
        .about("Show the values that the agent on this machine keeps of one GPU or pod")
        .after_help(EXAMPLES)
        .arg(
            Arg::new("series")
                .value_name("SERIES")
                .required(true)
                .help("gpu/INDEX/QUANTITY, gpu/UUID/QUANTITY, pod/NAMESPACE/NAME/QUANTITY or pod/UID/QUANTITY"),
        )
        .args([from, step])
        .arg(
            Arg::new("output")
                .short('o')
                .long("output")
                .value_name("FORMAT")
                .value_parser(value_parser!(Output))
                .default_value("table")
                .help("table, json or csv"),
        )
        .args(arguments())
}

/// Prints the history, or the reason why there is none.
pub(super) fn run(command: &HistoryCommand) -> Exit {
    match print(command) {
        // `profile history | head` is not a failure.
        Err(Failure::Output(error)) if error.kind() == io::ErrorKind::BrokenPipe => Exit::Ok,
        Err(failure) => {
            let _ = writeln!(io::stderr(), "error: {failure}");
            match failure {
                Failure::Fetch(error) if error.is_usage() => Exit::Usage,
                Failure::Fetch(_) => Exit::Unavailable,
                Failure::Runtime(_) | Failure::Json(_) | Failure::Output(_) => Exit::Failure,
            }
        }
        Ok(()) => Exit::Ok,
    }
}

fn print(command: &HistoryCommand) -> Result<(), Failure> {
    let agent = command.agent.agent()?;
    let asked = agent.document::<HistoryJson>(PATH, &command.query);
    let history = lifecycle::run_once(asked).map_err(Failure::Runtime)??;
    let text = match command.output {
        Output::Table => table(&history),
        Output::Json => serde_json::to_string_pretty(&history)? + "\n",
        Output::Csv => history.csv(),
    };
    if command.output == Output::Csv && history.view.simulated {
        // The lines of a CSV file cannot say it.
        let _ = writeln!(io::stderr(), "note: the GPUs of this node are simulated, and so are these values");
    }
    io::stdout().write_all(text.as_bytes()).map_err(Failure::Output)
}

/// The history as a table for people.
fn table(history: &HistoryJson) -> String {
    let simulated = if history.view.simulated { "  (simulated GPUs)" } else { "" };
    let (series, node) = (plain(&history.series), plain(&history.view.node));
    let count = history.points.len();
    let mut text =
        format!("{series} of {node}: {count} values, one for each {}{simulated}\n", duration(history.step_seconds));
    if history.points.is_empty() {
        return text;
    }
    let value = |value: f64| shown(value, &history.unit);
    // Writing into a String does not fail.
    let _ = writeln!(text, "{:<27} {:>9} {:>9}", "TIME", "MEAN", "MAXIMUM");
    for point in &history.points {
        let time = match point.at() {
            Some(at) if history.step_seconds >= 1.0 => timestamp::to_rfc3339(at),
            _ => plain(&point.time),
        };
        let _ = writeln!(text, "{time:<27} {:>9} {:>9}", value(point.mean), value(point.maximum));
    }
    text
}

/// A value in the unit of the answer.
fn shown(value: f64, unit: &str) -> String {
    match unit {
        "ratio" => percent(&value),
        "bytes" => rate(&value),
        "watts" => format!("{value:.0} W"),
        "cores" => cores(&value),
        _ => format!("{value}"),
    }
}

// === impl HistoryCommand ===

impl HistoryCommand {
    /// Reads matches of [`command`].
    pub(super) fn read(matches: &ArgMatches) -> HistoryCommand {
        let mut query = String::new();
        for key in ["series", "from", "step"] {
            if let Some(value) = matches.get_one::<String>(key) {
                let and = if query.is_empty() { "" } else { "&" };
                let _ = write!(query, "{and}{key}={}", encoded(value));
            }
        }
        HistoryCommand {
            agent: AgentAddress::read(matches),
            query,
            output: matches.get_one::<Output>("output").copied().unwrap_or(Output::Table),
        }
    }
}

/// The text with every byte that has a meaning in a query as `%` and two digits.
fn encoded(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~' | b'/' | b':') {
            encoded.push(char::from(byte));
        } else {
            let _ = write!(encoded, "%{byte:02X}");
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use super::*;
    use wire::api::ViewHeadJson;
    use wire::api::history::HistoryPointJson;

    fn read(line: &str) -> HistoryCommand {
        HistoryCommand::read(&command().try_get_matches_from(line.split(' ')).unwrap())
    }

    fn history(unit: &str, points: &[(&str, f64, f64)]) -> HistoryJson {
        let point = |(time, mean, maximum): &(&str, f64, f64)| HistoryPointJson {
            time: (*time).to_owned(),
            mean: *mean,
            maximum: *maximum,
        };
        HistoryJson {
            view: ViewHeadJson {
                node: "n\u{1b}[2J".into(),
                sequence: 1,
                time_seconds: 1.5,
                age_seconds: 0.2,
                simulated: true,
            },
            series: "gpu/0/power".into(),
            unit: unit.into(),
            step_seconds: 60.0,
            points: points.iter().map(point).collect(),
        }
    }

    #[test]
    fn the_query_has_what_the_person_wrote() {
        assert_eq!(read("history gpu/0/power").query, "series=gpu/0/power");
        let asked = read("history pod/ml/a/cpu --from -2h --step 1m -o csv --url http://n:1");
        assert_eq!(asked.query, "series=pod/ml/a/cpu&from=-2h&step=1m");
        assert_eq!((asked.output, asked.agent.url.as_str()), (Output::Csv, "http://n:1"));
        let asked = read("history gpu/0&x=1/ü --from=2026-11-28T10:00:00+01:00");
        assert_eq!(asked.query, "series=gpu/0%26x%3D1/%C3%BC&from=2026-11-28T10:00:00%2B01:00");
    }

    #[test]
    fn the_table_has_the_unit_of_the_quantity_and_no_control_characters() {
        let text = table(&history("watts", &[("2026-11-28T10:00:00.000000Z", 300.4, 612.0), ("\u{1b}[2J", 1.0, 2.0)]));
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "gpu/0/power of n\u{fffd}[2J: 2 values, one for each 60 s  (simulated GPUs)");
        assert_eq!(lines[1], "TIME                             MEAN   MAXIMUM");
        assert_eq!(lines[2], "2026-11-28T10:00:00Z            300 W     612 W");
        assert!(!text.contains('\u{1b}'), "{text}");
        assert_eq!(table(&history("watts", &[])).lines().count(), 1);
        for (unit, expected) in [("ratio", "50%"), ("bytes", "0"), ("cores", "0.50"), ("x", "0.5")] {
            assert_eq!(shown(0.5, unit), expected);
        }
    }
}
