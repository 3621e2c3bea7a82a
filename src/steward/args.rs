//! Parses the command line. It checks only the arguments, and of the host it reads only the environment.

use crate::print_config::Output;
use crate::profiles;
use crate::settings::layer::RawSettings;
use crate::settings::removed::{self, Removed};
use crate::settings::table::{KEYS, Key, Reader};
use crate::top;
use crate::usage;
use clap::{Arg, ArgAction, ArgMatches, builder::NonEmptyStringValueParser, value_parser};
use serve::version::version;
use std::ffi::OsString;
use std::path::PathBuf;

/// The parsed command line.
#[derive(Debug)]
pub(crate) enum Command {
    /// Run the node agent.
    Agent(RawSettings),
    /// Removes what agents wrote on this node's Node, or on all Nodes if `true`.
    CleanNode(RawSettings, bool),
    /// Clear the incidents of this GPU, or of `all`, in the agent that runs here.
    ClearIncident(RawSettings, String),
    /// Run the command after this warning, because it was given in an old form.
    Renamed(Box<Command>, String),
    /// Watch a node in the terminal.
    Top(top::Settings),
    /// Show what is known of a load.
    Profile(profiles::ProfileCommand),
    /// Finds out what is wrong.
    Doctor(Box<doctor::DoctorCommand>),
    /// Run as the child process that finds symbols for the agent's profiles.
    Symbolize,
    /// Run the extender.
    Extender(RawSettings),
    /// Show the settings.
    PrintConfig(RawSettings, Output),
    /// Show a configuration with which kube-scheduler calls the extender.
    PrintScheduler(RawSettings),
    /// Shows what the agent reports.
    Usage(RawSettings, usage::UsageOptions),
}

/// The command that clears incidents. For one more release it is also a flag of `agent`.
const CLEAR_INCIDENT: &str = "clear-incident";
/// The command that cleans Nodes. For one more release it is also a flag of `agent`.
const CLEAN_NODE: &str = "clean-node";
const NODE: &str = "node";
const GPU: &str = "gpu";
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
  gpu-steward usage --watch                               what the agent on this machine reports about its GPUs
  gpu-steward profile csv load.csv --plot load.svg        whether a recording repeats, and what comes next
  gpu-steward doctor nodes                                which Nodes are not well, and what to do
  gpu-steward print-config -o yaml                        the effective settings, as a configuration file";

const CLEAN_NODE_EXAMPLES: &str = "\
Examples:
  gpu-steward clean-node            the Node of this machine, with the rights of its agent
  gpu-steward clean-node node-7     another Node
  gpu-steward clean-node --all      every Node, with rights to list and patch all Nodes";

const CLEAR_INCIDENT_EXAMPLES: &str = "\
Examples:
  gpu-steward clear-incident GPU-5c1a0d6e-2f4b-4c59-9a51-1d0a7f6f8e10
  gpu-steward clear-incident --all
  kubectl exec AGENT-POD -- gpu-steward clear-incident --all";

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

/// The numbers of [`serve::exit::Exit`].
const EXIT_CODES: &str = "\
Exit codes:
    0  success (also after SIGTERM or SIGINT)
    1  a task that must not end has ended; the last error line names it (doctor: something is wrong)
    2  doctor could not look at everything that its answer needs
   64  a flag, an environment variable or the configuration file is wrong
   65  profile: the file has no series that can be analysed
   69  unavailable: an address is in use, another plugin serves GPUs here, or no agent listens
   75  the NVIDIA driver was updated under the agent, which must be restarted
   77  no permission
  130, 143  ended at once by a second SIGINT or SIGTERM";

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
        Some((profiles::NAME, sub)) => profiles::read(sub).map(Command::Profile),
        Some((doctor::NAME, sub)) => doctor::read(sub).map(|command| Command::Doctor(Box::new(command))),
        Some((pprof::SUBCOMMAND, _)) => Ok(Command::Symbolize),
        Some(("usage", sub)) => {
            let output = sub.get_one("output").copied().unwrap_or(usage::Output::Table);
            Ok(Command::Usage(raw(sub), usage::UsageOptions { watch: sub.get_flag("watch"), output }))
        }
        Some((CLEAN_NODE, sub)) => {
            let mut raw = raw(sub);
            raw.flags.extend(sub.get_one::<String>(NODE).map(|node| ("node-name", node.clone())));
            Ok(Command::CleanNode(raw, sub.get_flag(ALL)))
        }
        Some((CLEAR_INCIDENT, sub)) => {
            let which = sub.get_one::<String>(GPU).map_or(ALL, String::as_str);
            Ok(Command::ClearIncident(raw(sub), which.to_owned()))
        }
        Some((_, sub)) => Ok(agent(sub)),
        None => Err(clap::Error::new(clap::error::ErrorKind::MissingSubcommand)),
    }
}

/// The command `agent`, or the command that its old flags stand for.
fn agent(sub: &ArgMatches) -> Command {
    let renamed = |command: Command, old: &str, new: String| {
        let warning = format!("`agent --{old}` will be removed in the next release; use `gpu-steward {new}`");
        Command::Renamed(Box::new(command), warning)
    };
    match (sub.get_one::<String>(CLEAN_NODE), sub.get_one::<String>(CLEAR_INCIDENT)) {
        (Some(scope), _) if scope == ALL => {
            renamed(Command::CleanNode(raw(sub), true), CLEAN_NODE, format!("{CLEAN_NODE} --{ALL}"))
        }
        (Some(_), _) => renamed(Command::CleanNode(raw(sub), false), CLEAN_NODE, format!("{CLEAN_NODE} [NODE]")),
        (None, Some(which)) => {
            let new =
                if which == ALL { format!("{CLEAR_INCIDENT} --{ALL}") } else { format!("{CLEAR_INCIDENT} {which}") };
            renamed(Command::ClearIncident(raw(sub), which.clone()), CLEAR_INCIDENT, new)
        }
        (None, None) => Command::Agent(raw(sub)),
    }
}

/// The definition of all subcommands and flags.
pub(crate) fn command() -> clap::Command {
    clap::Command::new("gpu-steward")
        .version(version())
        .about(ABOUT)
        .after_help(format!("{EXAMPLES}\n\n{EXIT_CODES}"))
        .subcommand_required(true)
        .arg_required_else_help(true)
        .disable_help_subcommand(true)
        // Operators append a flag to the arguments of a Deployment that has it already. No argument takes a list by repetition.
        .args_override_self(true)
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
                .after_help(format!("{SETTINGS}\n\n{EXIT_CODES}")),
            &[Reader::Agent],
        ).args(renamed_flags()))
        .subcommand(extender())
        .subcommand(clean_node())
        .subcommand(clear_incident())
        .subcommand(top::command())
        .subcommand(profiles::command())
        .subcommand(doctor::command())
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
                            "settings, or kube-scheduler: a KubeSchedulerConfiguration with the profile \
                             gpu-steward, which calls an extender with these settings",
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

/// The flags of `agent` that became commands. They are accepted for one release.
fn renamed_flags() -> [Arg; 2] {
    let clean = Arg::new(CLEAN_NODE)
        .long(CLEAN_NODE)
        .num_args(0..=1)
        .require_equals(true)
        .default_missing_value(OWN)
        .value_parser([OWN, ALL])
        .hide(true);
    let clear = Arg::new(CLEAR_INCIDENT)
        .long(CLEAR_INCIDENT)
        .value_parser(NonEmptyStringValueParser::new())
        .conflicts_with(CLEAN_NODE)
        .hide(true);
    [clean, clear]
}

/// The command that cleans Nodes.
fn clean_node() -> clap::Command {
    let command = clap::Command::new(CLEAN_NODE)
        .about("Remove from a Node the labels and annotations that its agent wrote")
        .long_about(
            "Removes from a Node the labels and annotations that its agent wrote, and nothing else. Use it when \
             gpu-steward is removed from a node and its agent could not do this itself.\n\
             Stop the agent of the node first. If the agent still runs and writes them again, the command reports \
             this and exits with 69.",
        )
        .after_help(format!("{CLEAN_NODE_EXAMPLES}\n\n{EXIT_CODES}"))
        .arg(
            Arg::new(NODE)
                .value_name("NODE")
                .value_parser(NonEmptyStringValueParser::new())
                .help("Name of the Node [default: the Node of this machine]"),
        )
        .arg(Arg::new(ALL).long(ALL).action(ArgAction::SetTrue).conflicts_with(NODE).help("Clean every Node"));
    with_settings(command, &[Reader::CleanNode])
}

/// The command that clears incidents.
fn clear_incident() -> clap::Command {
    let command = clap::Command::new(CLEAR_INCIDENT)
        .about("Tell the agent on this machine that a GPU has been repaired")
        .long_about(
            "Tells the agent on this machine that the past incidents of a GPU are over, so that it offers the GPU to new containers again. \
             Use it after a repair or a reset that the agent could not see; `gpu-steward top` shows which GPUs wait for a reset.\n\
             An incident that the driver still reports stays.",
        )
        .after_help(format!("{CLEAR_INCIDENT_EXAMPLES}\n\n{EXIT_CODES}"))
        .arg(
            Arg::new(GPU)
                .value_name("GPU-UUID")
                .value_parser(NonEmptyStringValueParser::new())
                .required_unless_present(ALL)
                .help("UUID of the GPU, as in `nvidia-smi -L`"),
        )
        .arg(Arg::new(ALL).long(ALL).action(ArgAction::SetTrue).conflicts_with(GPU).help("Clear the incidents of all GPUs"));
    with_settings(command, &[Reader::ClearIncident])
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
    command.arg(config()).args(Key::of(Reader::Usage).map(flag)).args([watch, output]).after_help(EXIT_CODES)
}

/// The extender's command.
fn extender() -> clap::Command {
    let command = clap::Command::new("extender")
        .about("Run the scheduler extender: it decides which GPUs each pod gets")
        .long_about(
            "Runs the scheduler extender: kube-scheduler asks it which nodes fit a pod that requests GPUs, and lets \
             it bind the pod. It chooses the GPUs, reserves them, and writes node and claim in one call. If several \
             extenders run, the holder of a Lease leads.\n\
             On SIGUSR1 and SIGUSR2 it makes the log more and less detailed.",
        )
        .after_help(format!("{EXTENDER_EXAMPLES}\n\n{SETTINGS}\n\n{EXIT_CODES}"));
    with_settings(command, &[Reader::Extender])
}

/// Adds to the command the flags of all settings that one of these readers reads.
fn with_settings(command: clap::Command, readers: &'static [Reader]) -> clap::Command {
    let read = |key: &&'static Key| key.readers.iter().any(|reader| readers.contains(reader));
    let gone = removed::settings().filter(|_| readers.contains(&Reader::Agent));
    command.arg(config()).args(KEYS.iter().filter(read).map(flag)).args(gone.map(removed_flag))
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

/// The flag of a removed setting. It is accepted with or without a value, like the setting before its removal.
fn removed_flag(row: &'static Removed) -> Arg {
    Arg::new(row.name).long(row.name).num_args(0..=1).default_missing_value("true").action(ArgAction::Set).hide(true)
}

fn raw(matches: &ArgMatches) -> RawSettings {
    let names = KEYS.iter().map(|key| key.name).chain(removed::settings().map(|row| row.name));
    let flag = |name: &'static str| Some((name, matches.try_get_one::<String>(name).ok()??.clone()));
    RawSettings {
        flags: names.filter_map(flag).collect(),
        file: matches.get_one::<PathBuf>("config").cloned(),
        environment: std::env::vars_os().filter_map(|(k, v)| Some((k.into_string().ok()?, text(v)))).collect(),
    }
}

/// Puts replacement characters into a value that is not UTF-8. The value is refused when the setting is parsed.
fn text(value: OsString) -> String {
    value.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flags(line: &str) -> Result<RawSettings, clap::error::ErrorKind> {
        match read(line.split(' ').map(OsString::from)) {
            Ok(
                Command::Top(_) | Command::Profile(_) | Command::Doctor(_) | Command::Symbolize | Command::Renamed(..),
            ) => unreachable!("no test passes these commands"),
            Ok(
                Command::Agent(raw)
                | Command::CleanNode(raw, _)
                | Command::ClearIncident(raw, _)
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
            ("clean-node", &[Reader::CleanNode]),
            ("clear-incident --all", &[Reader::ClearIncident]),
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
    fn of_a_flag_that_is_given_twice_the_last_one_counts() {
        for (line, name, expected) in [
            ("agent -v 2 --v=5", "v", "5"),
            ("agent --v=5 -v 2", "v", "2"),
            ("extender -v=4 --lease-name a --v=5", "v", "5"),
            ("agent --standalone --standalone=false", "standalone", "false"),
            ("agent --handshake=false --handshake", "handshake", "true"),
            ("agent --registration=a --registration=b", "registration", "b"),
            ("clean-node --all --all -v 0 -v 2", "v", "2"),
        ] {
            let raw = flags(&format!("gpu-steward {line}")).unwrap();
            assert_eq!(raw.flags.get(name).map(String::as_str), Some(expected), "{line}");
        }
        for key in KEYS {
            let start = if key.readers.contains(&Reader::Agent) { "agent" } else { "extender" };
            let twice = format!("gpu-steward {start} --{0}=one --{0}=two", key.name);
            if key.readers.contains(&Reader::Agent) || key.readers.contains(&Reader::Extender) {
                assert_eq!(flags(&twice).unwrap().flags[key.name], "two", "{twice}");
            }
        }
        let files = flags("gpu-steward extender --config /a --config /b").unwrap().file;
        assert_eq!(files, Some(PathBuf::from("/b")));
        assert!(flags("gpu-steward clean-node n1 n2").is_err(), "an argument without a name is no flag");
    }

    /// The command that the line stands for, and the warning if it has an old form.
    fn operation(line: &str) -> Result<(String, Option<String>), clap::error::ErrorKind> {
        let (command, warning) = match read(line.split(' ').map(OsString::from)).map_err(|error| error.kind())? {
            Command::Renamed(command, warning) => (*command, Some(warning)),
            command => (command, None),
        };
        let operation = match command {
            Command::CleanNode(raw, all) => format!("clean {:?} {all}", raw.flags.get("node-name")),
            Command::ClearIncident(_, which) => format!("clear {which}"),
            other => format!("{other:?}"),
        };
        Ok((operation, warning))
    }

    #[test]
    fn flags_of_settings_that_have_gone_are_taken_by_the_agent_and_print_config_only() {
        for given in ["--registration=watcher", "--registration watcher", "--registration"] {
            for command in ["agent", "print-config"] {
                let raw = flags(&format!("gpu-steward {command} {given} -v 4")).unwrap();
                assert!(raw.flags.contains_key("registration"), "{command} {given}");
                assert_eq!(raw.flags["v"], "4");
            }
            assert!(flags(&format!("gpu-steward extender {given}")).is_err(), "{given}");
        }
        let help = command().find_subcommand_mut("agent").unwrap().render_long_help().to_string();
        assert!(!help.contains("--registration"));
    }

    #[test]
    fn a_node_is_cleaned_by_name_or_as_one_of_all() {
        for (line, expected) in [
            ("gpu-steward clean-node", "clean None false"),
            ("gpu-steward clean-node n1", "clean Some(\"n1\") false"),
            ("gpu-steward clean-node --all", "clean None true"),
        ] {
            assert_eq!(operation(line), Ok((expected.to_owned(), None)), "{line}");
        }
        assert!(operation("gpu-steward clean-node n1 --all").is_err());
    }

    #[test]
    fn clear_incident_needs_a_gpu_or_all() {
        for (line, expected) in
            [("gpu-steward clear-incident GPU-1", "clear GPU-1"), ("gpu-steward clear-incident --all", "clear all")]
        {
            assert_eq!(operation(line), Ok((expected.to_owned(), None)), "{line}");
        }
        assert!(operation("gpu-steward clear-incident").is_err());
        assert!(operation("gpu-steward clear-incident GPU-1 --all").is_err());
    }

    #[test]
    fn the_old_flags_do_the_same_and_warn_with_the_new_form() {
        for (line, expected, new) in [
            (
                "gpu-steward agent --clean-node --node-name n1",
                "clean Some(\"n1\") false",
                "gpu-steward clean-node [NODE]",
            ),
            ("gpu-steward agent --clean-node=all", "clean None true", "gpu-steward clean-node --all"),
            ("gpu-steward agent --clear-incident GPU-1", "clear GPU-1", "gpu-steward clear-incident GPU-1"),
            ("gpu-steward agent --clear-incident all", "clear all", "gpu-steward clear-incident --all"),
        ] {
            let (operation, warning) = operation(line).unwrap();
            assert!(operation == expected && warning.is_some_and(|text| text.contains(new)), "{line}: {operation}");
        }
        assert!(operation("gpu-steward agent --clear-incident all --clean-node").is_err());
        assert!(operation("gpu-steward agent --clean-node=n1").is_err());
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
            ("gpu-steward print-config -o xml", ErrorKind::InvalidValue),
            ("gpu-steward usage --listen 127.0.0.1:0", ErrorKind::UnknownArgument),
        ] {
            assert_eq!(flags(line).err(), Some(kind), "{line}");
        }
    }
}
