//! Tests the messages to the service manager, and the systemd units.

use crate::program::BINARY;
use lab::agent::Agent;
use lab::eventually::eventually;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// The socket on which a service manager receives notifications.
struct Manager {
    socket: UnixDatagram,
    path: PathBuf,
    _dir: tempfile::TempDir,
}

impl Manager {
    fn listen() -> Manager {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("notify");
        let socket = UnixDatagram::bind(&path).unwrap();
        socket.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
        Manager { socket, path, _dir: dir }
    }

    fn next(&self) -> Option<String> {
        let mut buffer = [0; 4096];
        let length = self.socket.recv(&mut buffer).ok()?;
        Some(String::from_utf8_lossy(&buffer[..length]).into_owned())
    }

    /// Waits for a message that contains this line.
    fn waits_for(&self, line: &str) -> String {
        eventually(&format!("{line} on the notify socket"), Duration::from_secs(30), || {
            self.next().filter(|message| message.lines().any(|found| found == line))
        })
    }
}

/// systemd sets the mode of a unit's state directory at each start. A single unit with the default mode, 0755, would open
/// the directory to every user of the host again, whatever mode the agent has set.
#[test]
fn every_unit_opens_the_state_directory_to_root_only() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../systemd");
    let mut units = 0;
    for file in std::fs::read_dir(folder).unwrap().flatten().filter(|file| file.path().is_file()) {
        let text = std::fs::read_to_string(file.path()).unwrap();
        if text.lines().any(|line| line.starts_with("StateDirectory=")) {
            units += 1;
            assert!(text.lines().any(|line| line == "StateDirectoryMode=0700"), "{}", file.path().display());
        }
    }
    assert_eq!(units, 2, "the unit of the agent and the unit of its token");
}

/// A test on a machine with systemd (tests/cluster/vm/unit.rs) checks that no heartbeat comes too late. This test does not,
/// because a busy machine would look like a slow agent.
#[test]
fn watchdog_messages_come_at_half_of_the_watchdogs_time_and_the_end_is_reported() {
    let manager = Manager::listen();
    let agent = Agent::standalone(BINARY)
        .with("--gpus", "none")
        .env("NOTIFY_SOCKET", &manager.path)
        .env("WATCHDOG_USEC", "1000000")
        .launch();
    manager.waits_for("WATCHDOG=1");
    let mut last = Instant::now();
    let mut gaps: Vec<Duration> = (0..9)
        .map(|_| {
            manager.waits_for("WATCHDOG=1");
            let now = Instant::now();
            now.duration_since(std::mem::replace(&mut last, now))
        })
        .collect();
    gaps.sort_unstable();
    // Heartbeats come at intervals of half of the watchdog's time. The test compares the median of the pauses with half of
    // that interval, because on a busy machine a late heartbeat is soon followed by the next one.
    assert!(gaps[4] > Duration::from_millis(250), "between two heartbeats: {gaps:?}");
    agent.signal(libc::SIGTERM);
    manager.waits_for("STOPPING=1");
    assert_eq!(agent.wait().status.code(), Some(0));
}

/// A fake curl for the script of the token's timer: it notes each request and the token of its sender, and answers like an
/// API server. The tokens in its answers contain the audience of the request.
const CURL: &str = r#"#!/bin/sh
sent=$(sed -n 's/.*Bearer \([^"]*\)".*/\1/p')
for word in "$@"; do case $word in *'"kind":"TokenRequest"'*) body=$word ;; https:*) url=$word ;; esac; done
audience=$(printf '%s' "${body:-}" | sed -n 's/.*"audiences":\["\([^"]*\)"\].*/\1/p')
echo "$sent $url ${audience:-none}" >>"$REQUESTS"
case $url in
  *"$REFUSED"*) printf '%s\n' '{"kind":"Status","message":"the lab refuses"}' ;;
  */configmaps/*) printf '%s\n' '{"metadata":{"managedFields":[{"f:data":{"f:ca.crt":{}}}]},"data":{"ca.crt":"-----BEGIN ONE\nline\n-----END\n"}}' ;;
  *) printf '{\n  "status": {\n    "token": "%s"\n  }\n}\n' "new-for-${audience:-api}" ;;
esac
"#;

/// Runs the script in this folder, with a `curl` that refuses URLs with this text. Returns whether the script succeeded, its
/// output, and the requests.
fn renewed(dir: &Path, refused: &str, more: &[(&str, &str)]) -> (bool, String, Vec<String>) {
    let curl = dir.join("curl");
    std::fs::write(&curl, CURL).unwrap();
    std::fs::set_permissions(&curl, std::fs::Permissions::from_mode(0o755)).unwrap();
    let requests = dir.join("requests");
    std::fs::write(&requests, "").unwrap();
    let output = Command::new(folder().join("renew-token"))
        .env_clear()
        .env("PATH", format!("{}:/usr/bin:/bin", dir.display()))
        .envs([("STEWARD_API", "https://api:6443"), ("STEWARD_NODE", "n1"), ("REFUSED", refused)])
        .env("REQUESTS", &requests)
        .env("STEWARD_TOKEN", dir.join("token"))
        .env("STEWARD_STREAM_TOKEN", dir.join("stream-token"))
        .env("STEWARD_STREAM_CA", dir.join("extender-ca.crt"))
        .envs(more.iter().copied())
        .output()
        .unwrap();
    let requests = std::fs::read_to_string(&requests).unwrap().lines().map(str::to_owned).collect();
    (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned(), requests)
}

/// tests/cluster/tokens.rs runs the script with a real API server.
#[test]
fn the_timers_script_keeps_a_token_and_the_certificates_for_the_extender_where_there_is_one() {
    const ACCOUNT: &str = "https://api:6443/api/v1/namespaces/gpu-steward/serviceaccounts/gpu-steward-service/token";
    const MAP: &str = "https://api:6443/api/v1/namespaces/gpu/configmaps/steward-extender-ca";
    const EXTENDER: (&str, &str) = ("STEWARD_EXTENDER", "gpu/steward-extender");
    let dir = tempfile::tempdir().unwrap();
    let text = |name: &str| std::fs::read_to_string(dir.path().join(name)).unwrap_or_default();
    std::fs::write(dir.path().join("token"), "old").unwrap();
    assert_eq!(renewed(dir.path(), "nothing", &[]), (true, String::new(), vec![format!("old {ACCOUNT} none")]));
    assert_eq!([text("token"), text("stream-token"), text("extender-ca.crt")], ["new-for-api", "", ""]);
    let asked = vec![
        format!("new-for-api {ACCOUNT} none"),
        format!("new-for-api {ACCOUNT} gpu-steward"),
        format!("new-for-api {MAP} none"),
    ];
    assert_eq!(renewed(dir.path(), "nothing", &[EXTENDER]), (true, String::new(), asked));
    let certificates = "-----BEGIN ONE\nline\n-----END";
    assert_eq!([&*text("token"), &text("stream-token")], ["new-for-api", "new-for-gpu-steward"]);
    assert_eq!(text("extender-ca.crt"), certificates);
    for name in ["token", "stream-token", "extender-ca.crt"] {
        let mode = dir.path().join(name).metadata().unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{name}");
    }
    // After a refusal the script says which file is not renewed, and why.
    std::fs::write(dir.path().join("stream-token"), "kept").unwrap();
    for (refused, file) in [("serviceaccounts", "token"), ("configmaps", "extender-ca.crt")] {
        let (success, said, _) = renewed(dir.path(), refused, &[EXTENDER]);
        assert!(!success && said.contains("the lab refuses"), "{said}");
        assert!(said.contains(&format!("{} stays as it is", dir.path().join(file).display())), "{said}");
        assert_eq!(text("extender-ca.crt"), certificates);
        assert_eq!(text("stream-token") == "kept", file == "token", "the token is renewed before the certificates");
    }
    assert!(!dir.path().join("extender-ca.crt.new").exists());
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../systemd")
}

/// The unit with these drop-ins appended, and with the program under test.
fn unit(options: &[&str]) -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("gpu-steward.service");
    let mut text = std::fs::read_to_string(folder().join("gpu-steward.service")).unwrap();
    for option in options {
        text += "\n";
        text += &std::fs::read_to_string(folder().join("options").join(option)).unwrap();
    }
    std::fs::write(&path, text.replace("/usr/bin/gpu-steward", BINARY)).unwrap();
    (dir, path)
}

fn analyze(args: &[&str], path: &Path) -> (bool, String) {
    let output = Command::new("systemd-analyze").args(args).arg(path).output().expect("systemd-analyze is installed");
    let mut text = String::from_utf8_lossy(&output.stdout).into_owned();
    text += &String::from_utf8_lossy(&output.stderr);
    (output.status.success(), text)
}

#[test]
#[ignore = "needs systemd: tests/run"]
fn systemd_verifies_the_unit_without_a_warning() {
    for options in [&[][..], &["ptrace.conf"], &["kernel-log.conf"], &["limiter.conf"], &["sharing.conf"]] {
        let (_dir, path) = unit(options);
        let (well, text) = analyze(&["verify", "--recursive-errors=no"], &path);
        assert!(well && text.is_empty(), "{options:?}: {text}");
    }
}

/// Promise 15 in docs/specification.md, with the numbers of docs/capabilities.md.
#[test]
#[ignore = "needs systemd: tests/run"]
fn the_units_exposure_is_as_docs_capabilities_says() {
    let table = std::fs::read_to_string(folder().join("../docs/capabilities.md")).unwrap();
    for (options, exposure) in [
        (&[][..], "2.0"),
        (&["ptrace.conf"], "2.4"),
        (&["kernel-log.conf"], "2.2"),
        (&["sharing.conf"], "2.0"),
        (&["ptrace.conf", "kernel-log.conf"], "2.7"),
        (&["limiter.conf"], "2.1"),
    ] {
        let (_dir, path) = unit(options);
        let (_, text) = analyze(&["security", "--offline=true", "--no-pager"], &path);
        let line = text.lines().find(|line| line.contains("Overall exposure level")).unwrap_or(&text);
        assert!(line.contains(&format!(": {exposure} ")), "{options:?}: {line}");
        let row = if options.is_empty() { "as shipped".to_owned() } else { options.join(" and ") };
        assert!(table.contains(&format!("| {row} | {exposure} |")), "{row} in docs/capabilities.md");
    }
}

/// The agent ends with code 75 when the driver was updated while it ran: only a new process can load the new library.
#[test]
fn the_unit_restarts_the_agent_except_after_wrong_usage_or_missing_rights() {
    let unit = std::fs::read_to_string(folder().join("gpu-steward.service")).unwrap();
    let value = |key: &str| unit.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('='));
    assert_eq!(value("Restart"), Some("on-failure"));
    let excluded: Vec<&str> = value("RestartPreventExitStatus").unwrap().split(' ').collect();
    assert_eq!(excluded, ["64", "77"], "wrong usage and missing rights");
}

#[test]
fn the_units_variables_are_settings_of_the_agent() {
    let unit = std::fs::read_to_string(folder().join("gpu-steward.service")).unwrap();
    let line = unit.lines().find_map(|line| line.strip_prefix("ExecStart=/usr/bin/gpu-steward agent ")).unwrap();
    let mut command = Command::new(BINARY);
    command.arg("print-config").args(line.split(' ')).args(["-o", "json"]);
    let environment = std::fs::read_to_string(folder().join("gpu-steward.env")).unwrap();
    let variables = unit.lines().filter_map(|line| line.strip_prefix("Environment="));
    let examples =
        environment.lines().filter_map(|line| line.strip_prefix('#')).filter(|line| line.starts_with("GPU_"));
    let mut names = Vec::new();
    for (name, value) in variables.chain(examples).filter_map(|line| line.split_once('=')) {
        command.env(name, value);
        names.push(name);
    }
    assert_eq!(names.len(), 4, "{names:?}");
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    for name in names {
        assert!(text.contains(&format!("\"origin\": \"{name}\"")), "{name} in {text}");
    }
}

#[test]
fn the_drop_in_for_sharing_names_the_files_that_the_timers_script_keeps() {
    let text = |path: &str| std::fs::read_to_string(folder().join(path)).unwrap();
    let (drop_in, script) = (text("options/sharing.conf"), text("renew-token"));
    let variables = drop_in.lines().filter_map(|line| line.strip_prefix("Environment=")?.split_once('='));
    let variables: Vec<(&str, &str)> = variables.collect();
    assert_eq!(variables.len(), 2, "{variables:?}");
    let mut command = Command::new(BINARY);
    command.args(["print-config", "-o", "json"]).env("GPU_STEWARD_EXTENDER_ADDRESS", "10.96.0.20:9443");
    let output = command.envs(variables.iter().copied()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let settings = String::from_utf8_lossy(&output.stdout);
    for (name, path) in variables {
        assert!(settings.contains(&format!("\"origin\": \"{name}\"")), "{name} in {settings}");
        assert!(script.contains(&format!(":-{path}}}")), "{path} in {script}");
    }
}
