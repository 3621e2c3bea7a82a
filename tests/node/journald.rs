//! The journal, read back through a real systemd-journald in a mount namespace of its own: the machine's /run is not
//! touched.

use crate::program::BINARY;
use std::process::Command;

/// Mounts an empty /run, starts journald there, runs the program until it has said what is waited for, reads the
/// journal and ends everything. Arguments: the program, a folder of the test's own, the text to wait for, flags.
const SCRIPT: &str = r#"
set -u
binary=$1 folder=$2 wanted=$3; shift 3
mount -t tmpfs tmpfs /run && mkdir -p /run/systemd/journal /run/log || exit 90
/lib/systemd/systemd-journald & journald=$!
for _ in $(seq 100); do [ -S /run/systemd/journal/socket ] && break; sleep 0.05; done
read_journal() { journalctl --sync; journalctl -D /run/log/journal -t gpu-steward -o json --all; }
"$binary" agent --standalone --listen 127.0.0.1:0 --admin-listen 127.0.0.1:0 --usage-socket "$folder/a.sock" \
  --state-dir "$folder/state" --config "$folder/config.yaml" --cri-socket "$folder/none" "$@" 2>"$folder/stderr" & agent=$!
for _ in $(seq 200); do read_journal >"$folder/journal"; grep -qF "$wanted" "$folder/journal" && break; sleep 0.05; done
kill -TERM "$agent"; wait "$agent"; code=$?
read_journal >"$folder/journal"
kill -TERM "$journald"; wait "$journald"
exit "$code"
"#;

/// The journal's entries and what went to stderr.
fn journal(flags: &[&str], wanted: &str) -> (Vec<serde_json::Value>, String) {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("config.yaml"), "").unwrap();
    let output = Command::new("unshare")
        .args(["-m", "--propagation", "private", "bash", "-c", SCRIPT, "journald", BINARY])
        .arg(dir.path())
        .arg(wanted)
        .args(flags)
        .output()
        .expect("unshare is installed");
    let stderr = std::fs::read_to_string(dir.path().join("stderr")).unwrap_or_default();
    let words = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{:?}: {words}{stderr}", output.status);
    let journal = std::fs::read_to_string(dir.path().join("journal")).unwrap();
    (journal.lines().map(|line| serde_json::from_str(line).unwrap()).collect(), stderr)
}

fn entry<'a>(entries: &'a [serde_json::Value], message: &str) -> &'a serde_json::Value {
    let found = entries.iter().find(|entry| entry["MESSAGE"].as_str().is_some_and(|text| text.contains(message)));
    found.unwrap_or_else(|| panic!("{message:?} in {entries:#?}"))
}

#[test]
#[ignore = "needs root: tests/run"]
fn events_arrive_with_their_fields_and_syslogs_priorities() {
    let flags = ["--log-format", "journald", "--gpus", "simulated=T4:1", "--kernel-log", "none"];
    let (entries, stderr) = journal(&flags, "GPU found");
    assert_eq!(stderr, "", "nothing is said twice");
    let start = entry(&entries, "gpu-steward agent started");
    assert_eq!(start["PRIORITY"], "6");
    assert_eq!(start["SYSLOG_IDENTIFIER"], "gpu-steward");
    assert!(start["METRICS"].as_str().unwrap().starts_with("127.0.0.1:"), "{start}");
    assert_eq!(start["VERSION"], env!("CARGO_PKG_VERSION"));
    assert_eq!(entry(&entries, "GPUs are simulated")["PRIORITY"], "4");
    assert!(entry(&entries, "GPU found")["GPU_UUID"].as_str().unwrap().starts_with("GPU-"));
}

#[test]
#[ignore = "needs root: tests/run"]
fn where_journald_does_not_answer_the_log_goes_to_stderr_as_json() {
    let agent = lab::agent::Agent::standalone(BINARY)
        .within("mount -t tmpfs tmpfs /run")
        .with("--gpus", "none")
        .with("--log-format", "journald")
        .launch();
    let log = agent.terminate().log;
    let first: serde_json::Value = serde_json::from_str(log.lines().next().unwrap()).unwrap();
    assert_eq!(first["level"], "WARN");
    assert!(first["message"].as_str().unwrap().contains("journald was asked for and does not answer"));
}
