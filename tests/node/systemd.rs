//! The service manager: what it is told, and the unit it is given.

use crate::program::BINARY;
use lab::agent::Agent;
use lab::eventually::eventually;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// The socket on which a service manager would listen.
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

    /// Waits for a message that holds this line.
    fn hears(&self, line: &str) -> String {
        eventually(&format!("{line} on the notify socket"), Duration::from_secs(30), || {
            self.next().filter(|message| message.lines().any(|said| said == line))
        })
    }
}

/// Each start of a unit sets the mode of its state directory anew: one unit with the default, 0755, would open it to every user of the
/// host again, whatever the agent had made of it.
#[test]
fn every_unit_keeps_the_state_directory_to_root() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../systemd");
    let mut units = 0;
    for file in std::fs::read_dir(folder).unwrap().flatten().filter(|file| file.path().is_file()) {
        let text = std::fs::read_to_string(file.path()).unwrap();
        if text.lines().any(|line| line.starts_with("StateDirectory=")) {
            units += 1;
            assert!(text.lines().any(|line| line == "StateDirectoryMode=0700"), "{}", file.path().display());
        }
    }
    assert_eq!(units, 2, "the agent's and that of its token");
}

/// That no sign comes too late is for the service manager to say, on a machine that has one (tests/cluster/vm/unit.rs): here a busy
/// machine would be taken for a slow agent.
#[test]
fn signs_of_life_come_again_and_again_and_not_too_often_and_the_end_is_told() {
    let manager = Manager::listen();
    let agent = Agent::standalone(BINARY)
        .with("--gpus", "none")
        .env("NOTIFY_SOCKET", &manager.path)
        .env("WATCHDOG_USEC", "1000000")
        .launch();
    manager.hears("WATCHDOG=1");
    let mut last = Instant::now();
    let mut gaps: Vec<Duration> = (0..9)
        .map(|_| {
            manager.hears("WATCHDOG=1");
            let now = Instant::now();
            now.duration_since(std::mem::replace(&mut last, now))
        })
        .collect();
    gaps.sort_unstable();
    // Ten have come. Half of the watchdog's time lies between two; the one in the middle is held against half of that, because one
    // that comes late on a busy machine is followed by one that comes soon.
    assert!(gaps[4] > Duration::from_millis(250), "between two signs: {gaps:?}");
    agent.signal(libc::SIGTERM);
    manager.hears("STOPPING=1");
    assert_eq!(agent.wait().status.code(), Some(0));
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../systemd")
}

/// The unit with drop-ins behind it, and with the program that was built.
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
fn the_unit_verifies_without_a_word() {
    for options in [&[][..], &["ptrace.conf"], &["kernel-log.conf"], &["limiter.conf"], &["sharing.conf"]] {
        let (_dir, path) = unit(options);
        let (well, text) = analyze(&["verify", "--recursive-errors=no"], &path);
        assert!(well && text.is_empty(), "{options:?}: {text}");
    }
}

/// Promise 15 in docs/specification.md.
/// The numbers are those of docs/capabilities.md.
#[test]
#[ignore = "needs systemd: tests/run"]
fn the_units_exposure_is_what_the_table_says() {
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

/// 75 is how the agent ends when the driver was updated under it: only a new process can load the new library.
#[test]
fn the_unit_starts_the_agent_again_after_every_failure_but_those_that_a_restart_cannot_mend() {
    let unit = std::fs::read_to_string(folder().join("gpu-steward.service")).unwrap();
    let value = |key: &str| unit.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('='));
    assert_eq!(value("Restart"), Some("on-failure"));
    let never: Vec<&str> = value("RestartPreventExitStatus").unwrap().split(' ').collect();
    assert_eq!(never, ["64", "77"], "wrong usage and missing rights");
}

#[test]
fn the_units_settings_are_settings() {
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
