//! Tests the command line, the environment and the configuration file.

use crate::program::BINARY;
use lab::agent::Agent;
use std::process::{Command, Output};

fn run(args: &[&str], environment: &[(&str, &str)]) -> Output {
    let mut command = Command::new(BINARY);
    command.args(args).env_clear().envs(environment.iter().copied());
    command.output().unwrap()
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn each_value_is_shown_with_its_origin() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("c.yaml");
    std::fs::write(&path, "# ours\nperiod: 2s\nv: 2\nslow-period: 10s\n").unwrap();
    let path = path.to_str().unwrap();
    let environment = [("GPU_STEWARD_V", "4"), ("GPU_STEWARD_PERIOD", "3s")];
    let output = run(&["print-config", "--config", path, "-v", "5", "-o", "json"], &environment);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let config: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let file = format!("{path}:4");
    for (key, value, origin) in [
        ("v", "5", "flag"),
        ("period", "3s", "GPU_STEWARD_PERIOD"),
        ("slow-period", "10s", file.as_str()),
        ("listen", "0.0.0.0:9410", "default"),
    ] {
        assert_eq!((&config[key]["value"], &config[key]["origin"]), (&value.into(), &origin.into()), "{key}");
    }
}

#[test]
fn the_printed_yaml_gives_the_same_settings_again() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("c.yaml");
    let first = run(&["print-config", "-o", "yaml", "--gpus=simulated=T4:2", "--metrics-hami"], &[]);
    std::fs::write(&path, stdout(&first)).unwrap();
    let again = run(&["print-config", "-o", "json", "--config", path.to_str().unwrap()], &[]);
    let config: serde_json::Value = serde_json::from_slice(&again.stdout).unwrap();
    assert_eq!(config["gpus"]["value"], "simulated=T4:2");
    assert_eq!(config["metrics-hami"]["value"], "true");
}

/// Arguments, environment, and the text that the error message must contain.
type Case<'a> = (&'a [&'a str], &'a [(&'a str, &'a str)], &'a str);

#[test]
fn a_wrong_setting_is_reported_with_its_origin_and_exit_code_64() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("c.yaml");
    let file = path.to_str().unwrap();
    let no_such = dir.path().join("none.yaml");
    let no_such = no_such.to_str().unwrap();
    let unknown = format!("{file}:2: unknown key \"usage_sockt\"; did you mean usage-socket?");
    let unreadable = format!("cannot read configuration file {no_such}");
    std::fs::write(&path, "v: 0\nusage_sockt: /x\n").unwrap();
    let cases: [Case<'_>; 10] = [
        (&["agent", "--config", file], &[], &unknown),
        (&["print-config", "--config", no_such], &[], &unreadable),
        (&["agent", "--period", "5"], &[], "invalid value \"5\" for period (from flag): a time needs a unit"),
        (&["agent"], &[("GPU_STEWARD_LISTEN", "here")], "for listen (from GPU_STEWARD_LISTEN): expected ADDRESS:PORT"),
        (&["print-config", "--gpus", "simulated=H100:17"], &[], "17 GPUs to simulate; from 1 to 16 are possible"),
        (&["agent", "--perod", "1s"], &[], "unexpected argument '--perod'"),
        (&["agent", "--tls-key", "/k"], &[], "tls-cert and tls-key belong together"),
        (&["agent", "--admin-tls-cert", "/c"], &[], "admin-tls-cert and admin-tls-key belong together"),
        (&["agnt"], &[], "unrecognized subcommand 'agnt'"),
        (&[], &[], "Usage: gpu-steward"),
    ];
    for (args, environment, text) in cases {
        let output = run(args, environment);
        assert_eq!(output.status.code(), Some(64), "{args:?}: {}", stderr(&output));
        assert!(stderr(&output).contains(text), "{args:?}: {text:?} in {}", stderr(&output));
    }
}

/// As a flag, as a variable and as a key of the file.
#[test]
fn a_setting_that_has_gone_is_ignored_with_a_warning_that_says_what_to_do() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("c.yaml");
    std::fs::write(&path, "v: 0\nregistration: watcher\n").unwrap();
    let file = path.to_str().unwrap();
    let cases: [Case<'_>; 3] = [
        (&["--registration", "watcher"], &[], "flag"),
        (&[], &[("GPU_STEWARD_REGISTRATION", "classic")], "GPU_STEWARD_REGISTRATION"),
        (&["--config", file], &[], &format!("{file}:2")),
    ];
    for (args, environment, origin) in cases {
        let warning = format!(
            "the setting registration (from {origin}) is ignored: the agent always registers with kubelet by the call \
             Register; remove this setting. The next release will refuse it"
        );
        let recipe = args.iter().fold(Agent::standalone(BINARY), |recipe, word| recipe.switch(word));
        let recipe = environment.iter().fold(recipe, |recipe, (name, value)| recipe.env(name, value));
        let agent = recipe.start();
        agent.logs(&warning);
        assert!(!agent.log().contains("looks like a setting"), "{}", agent.log());
        assert!(agent.terminate().status.success());

        let shown = |format: &str| run(&[&["print-config", "-o", format], args].concat(), environment);
        let text = shown("text");
        assert_eq!(text.status.code(), Some(0), "{}", stderr(&text));
        assert!(stdout(&text).ends_with(&format!("warning: {warning}\n")), "{}", stdout(&text));
        let yaml = stdout(&shown("yaml"));
        assert!(yaml.contains(&format!("# warning: {warning}\n")), "{yaml}");
        std::fs::write(dir.path().join("again.yaml"), &yaml).unwrap();
        let again = run(&["print-config", "--config", dir.path().join("again.yaml").to_str().unwrap()], &[]);
        assert!(again.status.success() && !stdout(&again).contains("warning:"), "{}", stdout(&again));
        let json: serde_json::Value = serde_json::from_slice(&shown("json").stdout).unwrap();
        assert_eq!(json["registration"]["ignored"]["origin"], origin, "{json}");
    }
}

#[test]
fn mistakes_in_the_file_and_in_values_are_reported_together() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("config.yaml");
    std::fs::write(&path, "gpus: none\nusage_sockt: /run/x.sock\n").unwrap();
    let file = path.to_str().unwrap();
    for command in ["agent", "print-config"] {
        let output = run(&[command, "--config", file], &[("GPU_STEWARD_PERIOD", "5")]);
        assert_eq!(output.status.code(), Some(64), "{command}");
        // The same messages as in docs/configuration.md.
        let page = format!(
            "error: {file}:2: unknown key \"usage_sockt\"; did you mean usage-socket?\n\
             error: invalid value \"5\" for period (from GPU_STEWARD_PERIOD): a time needs a unit: ms, s, m, h or d\n"
        );
        assert_eq!(stderr(&output), page, "{command}");
    }
}

#[test]
fn a_file_that_is_not_yaml_is_reported_with_line_and_column_and_what_was_not_checked() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("c.yaml");
    let file = path.to_str().unwrap();
    for (text, place, reason) in [
        ("v: 0\nperiod 2s\nlisen: x\n", "2:1", "simple key expected ':'"),
        ("v: 0\nperiod: 2s: x\n", "2:11", "mapping values are not allowed in this context"),
        ("v: 0\nv: 2\n", "2:1", "duplicate mapping key: v"),
    ] {
        std::fs::write(&path, text).unwrap();
        let message = stderr(&run(&["agent", "--config", file], &[]));
        let whole = format!(
            "{file}:{place}: is not a YAML mapping of settings: {reason}; expected a line such as `period: 2s` for each \
             setting; what follows was not checked"
        );
        assert!(message.contains(&whole), "{message}");
        assert!(!message.contains("lisen"), "{message}");
    }
}

#[test]
fn help_shows_examples_exit_codes_and_defaults() {
    let output = run(&["--help"], &[]);
    for part in ["Examples:", "Exit codes:", "agent", "print-config"] {
        assert!(stdout(&output).contains(part), "{part}");
    }
    let output = run(&["agent", "--help"], &[]);
    for part in ["GPUs:", "Serving:", "--usage-socket <PATH>", "GPU_STEWARD_USAGE_SOCKET", "SIGHUP", "[default: 1s]"] {
        assert!(stdout(&output).contains(part), "{part} in {}", stdout(&output));
    }
    let output = run(&["--version"], &[]);
    assert!(stdout(&output).starts_with("gpu-steward 0."));
}
