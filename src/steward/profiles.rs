//! `gpu-steward profile`: whether a load repeats, where it goes, what it will need.
//!
//! ```text
//!   csv        what a column of a CSV file shows
//!   history    the values that the agent on this machine keeps of one GPU or pod
//! ```

mod csv;
mod progress;
mod history;

use clap::{ArgMatches, Command};
use csv::CsvCommand;
use history::HistoryCommand;
use serve::exit::Exit;

/// The name of the command.
pub(crate) const NAME: &str = "profile";

/// The parsed subcommand.
#[derive(Debug)]
pub(crate) enum ProfileCommand {
    /// Analyses a file.
    Csv(CsvCommand),
    /// Shows a history.
    History(HistoryCommand),
}

/// The command line.
pub(crate) fn command() -> Command {
    Command::new(NAME)
        .about("Find periods, trends and forecasts of measurements")
        .subcommand_required(true)
        .arg_required_else_help(true)
        .disable_help_subcommand(true)
        .subcommand(csv::command())
        .subcommand(history::command())
}

/// Reads matches of [`command`].
///
/// # Errors
/// No subcommand was given.
pub(crate) fn read(matches: &ArgMatches) -> Result<ProfileCommand, clap::Error> {
    match matches.subcommand() {
        Some((csv::NAME, sub)) => Ok(ProfileCommand::Csv(CsvCommand::read(sub))),
        Some((history::NAME, sub)) => Ok(ProfileCommand::History(HistoryCommand::read(sub))),
        _ => Err(clap::Error::new(clap::error::ErrorKind::MissingSubcommand)),
    }
}

/// Runs the command.
pub(crate) fn run(command: &ProfileCommand) -> Exit {
    match command {
        ProfileCommand::Csv(command) => csv::run(command),
        ProfileCommand::History(command) => history::run(command),
    }
}
