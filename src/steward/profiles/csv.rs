//! `gpu-steward profile csv`: whether a series of measurements repeats, where it goes and what it will need.
//!
//! ```text
//!   file or stdin ──profile::csv──▶ answers ──people | json──▶ stdout     ──svg | png──▶ a file
//! ```
//!
//! What must never happen here: a file that is read whole, text of a file that reaches a terminal as it is.

use super::progress::WithProgress;
use crate::settings::value;
use clap::{Arg, ArgMatches, Command, value_parser};
use profile::{Choices, CsvError, Look, PlotError, Profile};
use serve::exit::Exit;
use serve::terminal::{plain, plain_json};
use std::fs::File;
use std::io::{self, ErrorKind, IsTerminal, Read, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The name of the subcommand.
pub(super) const NAME: &str = "csv";
/// The file name that stands for standard input.
const STDIN: &str = "-";
/// More horizons than a person compares; each costs an analysis of the series.
const MAX_HORIZONS: usize = 8;

const LONG: &str = "\
Says of a CSV file whether a column of it repeats and with what period, whether it rises, falls or jumps, and what values come next. The \
file may be compressed with gzip, and may have been written by nvidia-smi --format=csv, a spreadsheet or a monitoring system. The columns \
are guessed, and the guess is shown.";

const EXAMPLES: &str = "\
Examples:
  gpu-steward profile csv load.csv                                  the first column that looks like a measurement
  gpu-steward profile csv load.csv.gz --value power.draw            another column, named without its unit
  gpu-steward profile csv pods.csv --group pod                      one series for each pod
  gpu-steward profile csv load.csv --horizon 5m,1h --plot load.svg  forecasts for 5 minutes and 1 hour, and a picture
  nvidia-smi --query-gpu=timestamp,utilization.gpu --format=csv -lms 200 | head -3000 | gpu-steward profile csv -
  gpu-steward profile csv load.csv -o json | jq .period_seconds

A verdict is one of
  periodic      the values repeat
  aperiodic     they do not
  unknown       too few values, too many gaps, or cycles that are not alike enough
  unobservable  the counter behind the values is too slow to show a period as short as this one

Exit codes:
   0  the file was analysed, whatever the verdict is
  64  a flag is wrong, or there is no such file
  65  the file has no series that can be analysed; the last line says why
  77  no permission";

/// The output format (`-o`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Output {
    /// For people.
    Text,
    /// One document for programs.
    Json,
}

/// A parsed command.
#[derive(Clone, Debug)]
pub(crate) struct CsvCommand {
    file: PathBuf,
    choices: Choices,
    plot: Option<PathBuf>,
    output: Output,
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error("cannot open {}: {source}", file.display())]
    Open { file: PathBuf, source: io::Error },
    #[error("{}: {source}", file.display())]
    Csv { file: PathBuf, source: CsvError },
    #[error(transparent)]
    Plot(#[from] PlotError),
    #[error("cannot write {}: {source}", file.display())]
    Write { file: PathBuf, source: io::Error },
}

/// The definition of the subcommand.
pub(super) fn command() -> Command {
    let column = |name: &'static str, help: &'static str| Arg::new(name).long(name).value_name("COLUMN").help(help);
    let file = Arg::new("file")
        .value_name("FILE")
        .required(true)
        .value_parser(value_parser!(PathBuf))
        .help("The CSV file, or - for standard input");
    let step = Arg::new("step").long("step").value_name("TIME").value_parser(time).help(
        "Put the rows within this time together, such as 30s or 5m; without times the time between two rows [default: the \
         usual distance of two rows]",
    );
    let horizon = Arg::new("horizon").long("horizon").value_name("TIME[,TIME]").value_parser(horizons).help(
        "How far ahead to forecast [default: those of 1s,30s,5m,1h,24h,168h that are not shorter than a step and not longer than a \
         third of the series]",
    );
    let plot = Arg::new("plot")
        .long("plot")
        .value_name("FILE.svg|FILE.png")
        .value_parser(picture)
        .help("Write a picture: the series with its cycles, the typical cycle with quartiles, the forecasts");
    let output = Arg::new("output")
        .short('o')
        .long("output")
        .value_name("FORMAT")
        .value_parser(value_parser!(Output))
        .default_value("text")
        .help("text, or json (one document)");
    Command::new(NAME)
        .about("Analyse a column of a CSV file")
        .long_about(LONG)
        .after_help(EXAMPLES)
        .arg(file)
        .arg(column("value", "Column of the values: its name, with or without unit, or its number from 1"))
        .arg(column("time", "Column of the times: dates, or numbers in seconds to nanoseconds; none numbers the rows"))
        .arg(column("group", "Make a series for each value of this column; none makes one series"))
        .args([step, horizon, plot, output])
}

fn time(text: &str) -> Result<Duration, String> {
    let time = value::time(text)?;
    if time.is_zero() { Err("expected more than no time".to_owned()) } else { Ok(time) }
}

fn horizons(text: &str) -> Result<Vec<Duration>, String> {
    let horizons: Vec<Duration> = text.split(',').map(time).collect::<Result<_, _>>()?;
    if horizons.len() > MAX_HORIZONS { Err(format!("at most {MAX_HORIZONS} times")) } else { Ok(horizons) }
}

fn picture(text: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(text);
    match extension(&path) {
        Some("svg" | "png") => Ok(path),
        _ => Err("the name of a picture ends with .svg or .png".to_owned()),
    }
}

fn extension(path: &Path) -> Option<&str> {
    path.extension().and_then(|extension| extension.to_str())
}

impl CsvCommand {
    /// Reads matches of [`command`].
    pub(super) fn read(matches: &ArgMatches) -> CsvCommand {
        let column = |name: &str| matches.get_one::<String>(name).cloned();
        let plot = matches.get_one::<PathBuf>("plot").cloned();
        let choices = Choices {
            value: column("value"),
            time: column("time"),
            group: column("group"),
            step: matches.get_one("step").copied(),
            horizons: matches.get_one("horizon").cloned().unwrap_or_default(),
            picture: plot.is_some(),
        };
        // clap requires the file.
        let file = matches.get_one::<PathBuf>("file").cloned().unwrap_or_else(|| STDIN.into());
        CsvCommand { file, choices, plot, output: matches.get_one("output").copied().unwrap_or(Output::Text) }
    }
}

/// Runs the command.
pub(super) fn run(command: &CsvCommand) -> Exit {
    analyse(command).map_or_else(|failure| end(&failure), |()| Exit::Ok)
}

fn analyse(command: &CsvCommand) -> Result<(), Failure> {
    let CsvCommand { file, choices, plot, output } = command;
    let input = open(file)?;
    let profile = profile::csv(input, choices).map_err(|source| Failure::Csv { file: file.clone(), source })?;
    if let Some(path) = plot {
        draw(&profile, path)?;
    }
    let text = match output {
        Output::Text => profile::people(&profile, Look { colour: has_colours(), plain }),
        Output::Json => {
            for note in &profile.notes {
                let _ = writeln!(io::stderr(), "{}", plain(note));
            }
            plain_json(&format!("{:#}\n", profile::json(&profile)))
        }
    };
    match io::stdout().write_all(text.as_bytes()) {
        // A closed pipe, as with `| head`, is not a failure.
        Err(source) if source.kind() != ErrorKind::BrokenPipe => {
            Err(Failure::Write { file: "the answer".into(), source })
        }
        _ => Ok(()),
    }
}

fn open(file: &Path) -> Result<Box<dyn Read>, Failure> {
    if file == Path::new(STDIN) {
        return Ok(Box::new(WithProgress::new(io::stdin().lock(), None)));
    }
    let failed = |source| Failure::Open { file: file.to_owned(), source };
    let opened = File::open(file).map_err(failed)?;
    let facts = opened.metadata().map_err(failed)?;
    let size = facts.is_file().then_some(facts.len());
    Ok(Box::new(WithProgress::new(opened, size)))
}

fn draw(profile: &Profile, path: &Path) -> Result<(), Failure> {
    let svg = profile::svg(profile)?;
    let bytes = if extension(path) == Some("png") { profile::png(&svg)? } else { svg.into_bytes() };
    std::fs::write(path, bytes).map_err(|source| Failure::Write { file: path.to_owned(), source })
}

/// Whether standard output is a terminal whose user wants colours.
fn has_colours() -> bool {
    let variable = |name: &str| std::env::var(name).unwrap_or_default();
    io::stdout().is_terminal() && variable("NO_COLOR").is_empty() && variable("TERM") != "dumb"
}

fn end(failure: &Failure) -> Exit {
    let _ = writeln!(io::stderr(), "error: {}", plain(&failure.to_string()));
    match failure {
        Failure::Open { source, .. } | Failure::Csv { source: CsvError::Read(source), .. } => match source.kind() {
            ErrorKind::NotFound | ErrorKind::IsADirectory => Exit::Usage,
            _ => Exit::from_io(source),
        },
        Failure::Csv { source, .. } if source.is_argument() => Exit::Usage,
        Failure::Csv { .. } => Exit::BadData,
        Failure::Write { source, .. } => Exit::from_io(source),
        Failure::Plot(_) => Exit::Failure,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::error::ErrorKind;

    fn parsed(line: &str) -> Result<CsvCommand, ErrorKind> {
        let matches = command().try_get_matches_from(line.split(' ')).map_err(|error| error.kind())?;
        Ok(CsvCommand::read(&matches))
    }

    #[test]
    fn flags_are_read() {
        command().debug_assert();
        let line = "csv - --value power --time none --group gpu --step 30s --horizon 5m,1h --plot a/b.png -o json";
        let CsvCommand { file, choices, plot, output } = parsed(line).unwrap();
        assert_eq!((file, plot, output), (STDIN.into(), Some("a/b.png".into()), Output::Json));
        let names = [choices.value, choices.time, choices.group].map(Option::unwrap_or_default);
        assert_eq!(names, ["power", "none", "gpu"].map(str::to_owned));
        assert_eq!((choices.step, choices.picture), (Some(Duration::from_secs(30)), true));
        assert_eq!(choices.horizons, [Duration::from_secs(300), Duration::from_secs(3600)]);
        for (line, kind) in [
            ("csv", ErrorKind::MissingRequiredArgument),
            ("csv f --step 0s", ErrorKind::ValueValidation),
            ("csv f --step 5", ErrorKind::ValueValidation),
            ("csv f --horizon 1h,,2h", ErrorKind::ValueValidation),
            ("csv f --plot f.jpg", ErrorKind::ValueValidation),
            ("csv f -o yaml", ErrorKind::InvalidValue),
        ] {
            assert_eq!(parsed(line).err(), Some(kind), "{line}");
        }
    }
}
