//! Parses the command line. It checks the arguments only: `--help`, `--version` and `print-config` read nothing of the
//! host except the configuration file.

use crate::exit;
use crate::print_config::Output;
use crate::settings::layer::RawSettings;
use crate::settings::table::{KEYS, Key, Reader};
use crate::top;
use crate::usage;
use clap::{Arg, ArgAction, ArgMatches, builder::NonEmptyStringValueParser, value_parser};
use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::LazyLock;

/// The parsed command line.
#[derive(Debug)]
pub(crate) enum Command {
    /// Run the node agent.
    Agent(RawSettings),
    /// Remove what agents wrote on this node's Node, or on all Nodes if `true`.
    Clean(RawSettings, bool),
    /// Clear the incidents of this GPU, or of `all`, in the agent that runs here.
    Clear(RawSettings, String),
    /// Watch a node in the terminal.
    Top(top::Settings),
    /// Run as the child process that finds symbols for the agent's profiles.
    Symbolize,
    /// Run the extender.
    Extender(RawSettings),
    /// Show the settings.
    PrintConfig(RawSettings, Output),
    /// Show a configuration with which kube-scheduler asks the extender.
    PrintScheduler(RawSettings),
    /// Show what the agent reports.
    Usage(RawSettings, usage::UsageOptions),
}

/// The flag that clears incidents.
const CLEAR: &str = "clear-incident";
/// The flag that cleans Nodes, and its values.
const CLEAN: &str = "clean-node";
/// What `print-config` prints.
const WHAT: &str = "what";
const SETTINGS_OF: &str = "settings";
const KUBE_SCHEDULER: &str = "kube-scheduler";
const OWN: &str = "own";
const ALL: &str = "all";

const ABOUT: &str = "Shares a node's GPUs between pods, measures how they are used, and lets the scheduler act on it";

const EXAMPLES: &str = "\
Examples:
  gpu-steward agent --standalone                          read this machine, serve http://localhost:9410/metrics
  gpu-steward agent --standalone --gpus simulated=A100:4  the same with simulated GPUs, marked as simulated
  gpu-steward extender --kubeconfig ~/.kube/config        place GPU pods for the kube-scheduler on this machine
  gpu-steward usage --watch                               what the agent on this machine reports of its GPUs
  gpu-steward print-config -o yaml                        the effective settings, as a configuration file";

const EXTENDER_EXAMPLES: &str = "\
Examples:
  gpu-steward extender                                    in a pod, beside a kube-scheduler
  gpu-steward print-config kube-scheduler                 the configuration for that kube-scheduler
  gpu-steward extender --node-scheduler-policy spread     prefer the emptiest node
  curl localhost:9444/api/v1/decisions?pod=ml/train-0     why a pod was placed or refused";

const SETTINGS: &str = "\
Every option under a heading is a setting. It can also be given as an environment variable (--usage-socket is
GPU_STEWARD_USAGE_SOCKET) or as a key of the configuration file (usage-socket: PATH). A flag overrides the environment,
which overrides the file, which overrides the default; `gpu-steward print-config` shows where each value comes from.";

/// The version, with the commit if the build got one (`GPU_STEWARD_COMMIT=… cargo build`).
pub(crate) fn version() -> &'static str {
    static TEXT: LazyLock<String> = LazyLock::new(|| match option_env!("GPU_STEWARD_COMMIT") {
        Some(commit) => format!("{} ({commit})", env!("CARGO_PKG_VERSION")),
        None => env!("CARGO_PKG_VERSION").to_owned(),
    });
    &TEXT
}

/// Parses the command line.
///
/// # Errors
/// The errors of clap, which include the texts of `--help` and `--version`.
pub(crate) fn read(args: impl IntoIterator<Item = OsString>) -> Result<Command, clap::Error> {
    let matches = command().try_get_matches_from(args)?;
    match matches.subcommand() {
        Some(("print-config", sub)) if sub.get_one::<String>(WHAT).is_some_and(|what| what == KUBE_SCHEDULER) => {
            Ok(Command::PrintScheduler(raw(sub)))
        }
        Some(("print-config", sub)) => {
            let output = sub.get_one::<Output>("output").copied().unwrap_or(Output::Text);
            Ok(Command::PrintConfig(raw(sub), output))
        }
        Some(("extender", sub)) => Ok(Command::Extender(raw(sub))),
        Some(("top", sub)) => Ok(Command::Top(top::Settings::read(sub))),
        Some((pprof::SUBCOMMAND, _)) => Ok(Command::Symbolize),
        Some(("usage", sub)) => {
            let output = sub.get_one("output").copied().unwrap_or(usage::Output::Table);
            Ok(Command::Usage(raw(sub), usage::UsageOptions { watch: sub.get_flag("watch"), output }))
        }
        Some((_, sub)) => Ok(match (sub.get_one::<String>(CLEAN), sub.get_one::<String>(CLEAR)) {
            (Some(scope), _) => Command::Clean(raw(sub), scope == ALL),
            (None, Some(which)) => Command::Clear(raw(sub), which.clone()),
            (None, None) => Command::Agent(raw(sub)),
        }),
        None => Err(clap::Error::new(clap::error::ErrorKind::MissingSubcommand)),
    }
}

/// The definition of all subcommands and flags.
pub(crate) fn command() -> clap::Command {
    clap::Command::new("gpu-steward")
        .version(version())
        .about(ABOUT)
        .after_help(format!("{EXAMPLES}\n\n{}", exit::HELP))
        .subcommand_required(true)
        .arg_required_else_help(true)
        .disable_help_subcommand(true)
        .max_term_width(120)
        .subcommand(clap::Command::new(pprof::SUBCOMMAND).hide(true))
        .subcommand(with_settings(
            clap::Command::new("agent")
                .about("Run the node agent")
                .long_about(
                    "Runs the node agent: shares the GPUs of this machine, reads its GPUs, cgroups and processes, and serves the readings.\n\
                     On SIGHUP it reads the configuration file again, on SIGUSR1 and SIGUSR2 it makes the log more and less detailed, on \
                     SIGRTMIN it releases the GPU driver for a minute.",
                )
                .after_help(format!("{SETTINGS}\n\n{}", exit::HELP)),
            &[Reader::Agent],
        ).arg(clean()).arg(clear()))
        .subcommand(extender())
        .subcommand(top::command())
        .subcommand(with_settings(
            clap::Command::new("print-config")
                .about("Show the effective settings, and where each value comes from, or a configuration of kube-scheduler")
                .after_help(SETTINGS)
                .arg(
                    Arg::new(WHAT)
                        .value_name("WHAT")
                        .value_parser([SETTINGS_OF, KUBE_SCHEDULER])
                        .default_value(SETTINGS_OF)
                        .hide_possible_values(true)
                        .help(
                            "settings, or kube-scheduler: a KubeSchedulerConfiguration whose profile gpu-steward asks the \
                             extender with these settings",
                        ),
                )
                .arg(
                    Arg::new("output")
                        .short('o')
                        .long("output")
                        .value_name("FORMAT")
                        .value_parser(value_parser!(Output))
                        .default_value("text")
                        .help("text, json, or yaml (the format of the configuration file)"),
                ),
            &[Reader::Agent, Reader::Extender],
        ))
        .subcommand(with_usage(clap::Command::new("usage").about("Show the GPUs of this machine and who uses them, as the agent reports it")))
}

/// The flag `--clean-node`. It is not a setting: with it the program runs no agent.
fn clean() -> Arg {
    Arg::new(CLEAN)
        .long(CLEAN)
        .value_name("all")
        .num_args(0..=1)
        .require_equals(true)
        .default_missing_value(OWN)
        .value_parser([OWN, ALL])
        .hide_possible_values(true)
        .help(
            "Run no agent: remove the labels and annotations that agents wrote on this node's Node (=all: on every Node), \
             then exit. Stop the agent there first, or it writes them again",
        )
}

/// The flag `--clear-incident`. It is not a setting either.
fn clear() -> Arg {
    Arg::new(CLEAR)
        .long(CLEAR)
        .value_name("UUID|all")
        .value_parser(NonEmptyStringValueParser::new())
        .conflicts_with(CLEAN)
        .help(
            "Run no agent: tell the agent that runs here (with the same --state-dir) that the incidents of this GPU, or of \
             all GPUs, are over, so that it offers them to new containers again; then exit",
        )
}

fn with_usage(command: clap::Command) -> clap::Command {
    let output = Arg::new("output")
        .short('o')
        .long("output")
        .value_name("FORMAT")
        .value_parser(value_parser!(usage::Output))
        .default_value("table")
        .help("table, or json (with --watch one line for each change)");
    let watch =
        Arg::new("watch").short('w').long("watch").action(ArgAction::SetTrue).help("Print again at each change");
    command.arg(config()).args(Key::of(Reader::Usage).map(flag)).args([watch, output]).after_help(exit::HELP)
}

/// The extender's command.
fn extender() -> clap::Command {
    let command = clap::Command::new("extender")
        .about("Run the scheduler extender: it decides which GPUs each pod gets")
        .long_about(
            "Runs the scheduler extender: kube-scheduler asks it which nodes fit a pod that requests GPUs, and lets it bind the pod. It \
             chooses the GPUs, reserves them, and writes node and claim in one call. Of several extenders one leads, by a Lease.\n\
             On SIGUSR1 and SIGUSR2 it makes the log more and less detailed.",
        )
        .after_help(format!("{EXTENDER_EXAMPLES}\n\n{SETTINGS}\n\n{}", exit::HELP));
    with_settings(command, &[Reader::Extender])
}

/// A command with the flags of all settings that one of these commands reads.
fn with_settings(command: clap::Command, readers: &'static [Reader]) -> clap::Command {
    let read = |key: &&'static Key| key.readers.iter().any(|reader| readers.contains(reader));
    command.arg(config()).args(KEYS.iter().filter(read).map(flag))
}

fn config() -> Arg {
    Arg::new("config")
        .long("config")
        .value_name("PATH")
        .value_parser(value_parser!(PathBuf))
        .help("Configuration file [default: /etc/gpu-steward/config.yaml, if it exists]")
}

fn flag(key: &'static Key) -> Arg {
    let help = format!("{} [default: {}]", key.help, key.default);
    let arg = Arg::new(key.name)
        .long(key.name)
        .value_name(key.value)
        .help(help)
        .help_heading(key.group.title())
        .action(ArgAction::Set)
        .value_parser(NonEmptyStringValueParser::new());
    match key.name {
        "v" => arg.short('v'),
        _ if key.is_switch() => arg.num_args(0..=1).require_equals(true).default_missing_value("true"),
        _ => arg,
    }
}

fn raw(matches: &ArgMatches) -> RawSettings {
    let flag = |key: &'static Key| Some((key.name, matches.try_get_one::<String>(key.name).ok()??.clone()));
    RawSettings {
        flags: KEYS.iter().filter_map(flag).collect(),
        file: matches.get_one::<PathBuf>("config").cloned(),
        environment: std::env::vars_os().filter_map(|(k, v)| Some((k.into_string().ok()?, text(v)))).collect(),
    }
}

/// Keeps a value that is not UTF-8, with replacement characters: the setting that uses it refuses it later.
fn text(value: OsString) -> String {
    value.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flags(line: &str) -> Result<RawSettings, clap::error::ErrorKind> {
        match read(line.split(' ').map(OsString::from)) {
            Ok(Command::Top(_) | Command::Symbolize) => unreachable!("no test passes these commands"),
            Ok(
                Command::Agent(raw)
                | Command::Clean(raw, _)
                | Command::Clear(raw, _)
                | Command::PrintConfig(raw, _)
                | Command::PrintScheduler(raw)
                | Command::Extender(raw)
                | Command::Usage(raw, _),
            ) => Ok(raw),
            Err(error) => Err(error.kind()),
        }
    }

    #[test]
    fn the_definition_of_the_command_line_is_valid() {
        command().debug_assert();
    }

    /// Each command takes the flags of the settings that name it as a reader, and refuses all others.
    #[test]
    fn a_command_takes_the_settings_that_it_reads_and_no_other() {
        for (start, readers) in [
            ("agent", &[Reader::Agent][..]),
            ("extender", &[Reader::Extender]),
            ("print-config", &[Reader::Agent, Reader::Extender]),
            ("print-config kube-scheduler", &[Reader::Agent, Reader::Extender]),
            ("usage", &[Reader::Usage]),
        ] {
            for key in KEYS {
                let taken = flags(&format!("gpu-steward {start} --{}=true", key.name));
                let read = key.readers.iter().any(|reader| readers.contains(reader));
                assert_eq!(taken.is_ok(), read, "{start} --{}", key.name);
            }
        }
        assert!(KEYS.iter().all(|key| !key.readers.is_empty()), "a setting that no command reads");
        let [all, of_usage] = [KEYS.len(), Key::of(Reader::Usage).count()];
        assert!(of_usage > 0 && of_usage < all, "{of_usage} of {all}");
    }

    #[test]
    fn flags_are_taken_as_written_and_switches_need_no_value() {
        let raw = flags("gpu-steward agent --standalone -v 4 --metrics-dcgm=false --gpus=simulated=T4:2").unwrap();
        let expect = [("standalone", "true"), ("v", "4"), ("metrics-dcgm", "false"), ("gpus", "simulated=T4:2")];
        assert_eq!(raw.flags, expect.map(|(name, text)| (name, text.to_owned())).into());
    }

    #[test]
    fn clean_node_cleans_one_node_unless_its_value_is_all() {
        for (line, expected) in [
            ("gpu-steward agent --clean-node --node-name n1", Some(false)),
            ("gpu-steward agent --clean-node=all", Some(true)),
            ("gpu-steward agent --node-name n1", None),
        ] {
            let command = read(line.split(' ').map(OsString::from)).unwrap();
            let all = if let Command::Clean(_, all) = command { Some(all) } else { None };
            assert_eq!(all, expected, "{line}");
        }
        assert!(flags("gpu-steward agent --clean-node=n1").is_err());
    }

    #[test]
    fn clear_incident_needs_a_gpu_or_all() {
        for which in ["GPU-1", "all"] {
            let command = read(["gpu-steward", "agent", "--clear-incident", which].map(OsString::from)).unwrap();
            assert!(matches!(command, Command::Clear(_, named) if named == which));
        }
        assert!(flags("gpu-steward agent --clear-incident").is_err());
        assert!(flags("gpu-steward agent --clear-incident all --clean-node").is_err());
    }

    #[test]
    fn unknown_commands_flags_and_values_are_refused() {
        use clap::error::ErrorKind;
        for (line, kind) in [
            ("gpu-steward", ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand),
            ("gpu-steward scheduler", ErrorKind::InvalidSubcommand),
            ("gpu-steward extender --gpus none", ErrorKind::UnknownArgument),
            ("gpu-steward print-config scheduler", ErrorKind::InvalidValue),
            ("gpu-steward agent --colour", ErrorKind::UnknownArgument),
            ("gpu-steward agent --period", ErrorKind::InvalidValue),
            ("gpu-steward agent --period=1s --period=2s", ErrorKind::ArgumentConflict),
            ("gpu-steward print-config -o xml", ErrorKind::InvalidValue),
            ("gpu-steward usage --listen 127.0.0.1:0", ErrorKind::UnknownArgument),
        ] {
            assert_eq!(flags(line).err(), Some(kind), "{line}");
        }
    }
}
