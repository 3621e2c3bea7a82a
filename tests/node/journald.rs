//! Tests the journal with a real systemd-journald in its own mount namespace. The machine's `/run` is not touched.

use crate::program::BINARY;
use lab::agent::START;
use lab::eventually::eventually;
use lab::http;
use lab::pods::Pods;
use lab::scenario::{FakeGpu, FakeNvml, Scenario, Which, XidEvent, fake_gpus, process};
use serde_json::Value;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

/// Pod numbers that no other test uses.
const NUMBERS: [u32; 2] = [0x10a7, 0x10a8];

/// Mounts an empty /run, starts journald there, runs the program until the expected text is in the journal, reads the
/// journal and ends both. Arguments: the program, a folder of this test, the expected text, flags of the program.
const SCRIPT: &str = r#"
set -u
binary=$1 folder=$2 expected=$3; shift 3
mount -t tmpfs tmpfs /run && mkdir -p /run/systemd/journal /run/log || exit 90
/lib/systemd/systemd-journald & journald=$!
for _ in $(seq 100); do [ -S /run/systemd/journal/socket ] && break; sleep 0.05; done
# As systemd sets it for a program whose stderr it connects to the journal. The expected text comes through the
# journal's own socket.
: >"$folder/stderr"; export JOURNAL_STREAM=$(stat -c %d:%i "$folder/stderr")
read_journal() { journalctl --sync; journalctl -D /run/log/journal -t gpu-steward -o json --all; }
"$binary" agent --standalone --listen 127.0.0.1:0 --admin-listen 127.0.0.1:0 --usage-socket "$folder/a.sock" \
  --state-dir "$folder/state" --config "$folder/config.yaml" --cri-socket "$folder/none" "$@" 2>>"$folder/stderr" & agent=$!
for _ in $(seq 200); do read_journal >"$folder/journal"; grep -qF "$expected" "$folder/journal" && break; sleep 0.05; done
kill -TERM "$agent"; wait "$agent"; code=$?
read_journal >"$folder/journal"
kill -TERM "$journald"; wait "$journald"
exit "$code"
"#;

/// The entries of the journal, and what the program wrote to stderr. `meanwhile` runs at the same time as the program.
fn journal(folder: &Path, flags: &[&str], expected: &str, meanwhile: impl FnOnce()) -> (Vec<Value>, String) {
    std::fs::write(folder.join("config.yaml"), "").unwrap();
    let script = Command::new("unshare")
        .args(["-m", "--propagation", "private", "bash", "-c", SCRIPT, "journald", BINARY])
        .arg(folder)
        .arg(expected)
        .args(flags)
        .stderr(Stdio::piped())
        .spawn()
        .expect("unshare is installed");
    meanwhile();
    let output = script.wait_with_output().unwrap();
    let stderr = std::fs::read_to_string(folder.join("stderr")).unwrap_or_default();
    let complaints = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{:?}: {complaints}{stderr}", output.status);
    let journal = std::fs::read_to_string(folder.join("journal")).unwrap();
    (journal.lines().map(|line| serde_json::from_str(line).unwrap()).collect(), stderr)
}

fn entry<'a>(entries: &'a [Value], message: &str) -> &'a Value {
    let found = entries.iter().find(|entry| entry["MESSAGE"].as_str().is_some_and(|text| text.contains(message)));
    found.unwrap_or_else(|| panic!("{message:?} in {entries:#?}"))
}

#[test]
#[ignore = "needs root: tests/run"]
fn journal_entries_have_their_fields_and_syslog_priorities() {
    let flags = ["--log-format", "journald", "--gpus", "simulated=T4:1", "--kernel-log", "none"];
    let folder = tempfile::tempdir().unwrap();
    let (entries, stderr) = journal(folder.path(), &flags, "GPU found", || {});
    assert_eq!(stderr, "", "nothing is logged twice");
    let start = entry(&entries, "gpu-steward agent started");
    assert_eq!(start["PRIORITY"], "6");
    assert_eq!(start["SYSLOG_IDENTIFIER"], "gpu-steward");
    assert!(start["METRICS"].as_str().unwrap().starts_with("127.0.0.1:"), "{start}");
    assert_eq!(start["VERSION"], env!("CARGO_PKG_VERSION"));
    assert_eq!(entry(&entries, "GPUs are simulated")["PRIORITY"], "4");
    assert!(entry(&entries, "GPU found")["GPU_UUID"].as_str().unwrap().starts_with("GPU-"));
}

/// Without options, `journalctl` prints the MESSAGE field only.
#[test]
#[ignore = "needs root: tests/run"]
fn the_message_field_alone_says_what_failed_why_and_what_to_do() {
    let folder = tempfile::tempdir().unwrap();
    let flags = ["--log-format", "journald", "--kernel-log", "none", "--nvml-library", "/nowhere/libnvidia-ml.so.1"];
    let (entries, _) = journal(folder.path(), &flags, "container runtime socket", || {});
    let message = |of: &str| entry(&entries, of)["MESSAGE"].as_str().unwrap().to_owned();
    let runtime = folder.path().join("none").display().to_string();
    for (line, parts) in [
        ("gpu-steward agent started", &["metrics=127.0.0.1:", "version=", "node="][..]),
        ("no GPUs can be read", &["could not open the NVML library /nowhere/libnvidia-ml.so.1", "--nvml-library"]),
        ("container runtime socket", &[": tried ", &runtime, "--cri-socket"]),
    ] {
        let message = message(line);
        for part in parts {
            assert_eq!(message.matches(part).count(), 1, "{part:?} once in {message:?}");
        }
        assert!(!message.contains('\n'), "{message:?}");
    }
    let missing = entry(&entries, "no GPUs can be read");
    assert_eq!(missing["REASON"], "library_not_found");
    assert!(
        missing["ADVICE"].as_str().is_some_and(|advice| advice.contains("/nowhere/libnvidia-ml.so.1")),
        "{missing}"
    );
    let runtime = entry(&entries, "container runtime socket");
    assert_eq!(runtime["SOURCE"], "container runtime socket");
}

#[test]
#[ignore = "needs root: tests/run"]
fn the_format_auto_is_the_journal_if_stderr_is_connected_to_it() {
    let folder = tempfile::tempdir().unwrap();
    let (entries, stderr) =
        journal(folder.path(), &["--gpus", "none", "--kernel-log", "none"], "GPU detection is off", || {});
    assert_eq!(stderr, "", "nothing is logged twice");
    assert_eq!(entry(&entries, "gpu-steward agent started")["PRIORITY"], "6");
}

/// The kernel log names the process, which belongs to the pod.
#[test]
#[ignore = "needs root: tests/run"]
fn a_driver_error_from_the_kernel_log_is_found_by_gpu_and_pod() {
    a_driver_error_is_found(NUMBERS[0], true);
}

/// NVML names no process: the error belongs to the pod that has the GPU to itself.
#[test]
#[ignore = "needs root: tests/run"]
fn a_driver_error_from_nvml_is_found_by_its_pod_too() {
    a_driver_error_is_found(NUMBERS[1], false);
}

fn a_driver_error_is_found(number: u32, by_log: bool) {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let mut pods = Pods::prepare(Path::new("/sys/fs/cgroup")).unwrap();
    let container = &pods.add(number, 1, &["sleep", "1000"]).unwrap().containers[0];
    container.named(Path::new(&at("links")), ("train-0", "ml", "main")).unwrap();
    let pid = container.pid;
    let fake = FakeNvml::install(folder.path()).unwrap();
    let gpu = FakeGpu { processes: vec![process(pid, 1 << 30, 50.0)], ..fake_gpus("H100", 1) };
    let mut scenario = Scenario { gpus: vec![gpu], ..Scenario::default() };
    fake.write(&scenario).unwrap();
    let mut log = std::fs::File::create(at("kmsg")).unwrap();
    let (library, kmsg, links) = (at("libnvidia-ml.so.1"), at("kmsg"), at("links"));
    let settings = ["--nvml-library", &library, "--kernel-log", &kmsg, "--log-links", &links, "--process-period", "1s"];
    let flags: Vec<&str> = ["--log-format", "journald"].into_iter().chain(settings).collect();
    let mut uuid = String::new();
    let (entries, stderr) = journal(folder.path(), &flags, "GPU driver error", || {
        let gpu = eventually("the pod on its GPU", START, || {
            let addresses: Value = serde_json::from_slice(&std::fs::read(at("state/addresses.json")).ok()?).ok()?;
            let address = addresses["metrics"].as_str()?.parse().ok()?;
            let gpu = http::get(address, "/api/v1/gpus").ok()?.json()["gpus"][0].clone();
            let known = gpu["processes"]["value"][0]["pid"] == pid && gpu["holders"][0]["pod"] == "train-0";
            known.then_some(gpu)
        });
        gpu["uuid"].as_str().unwrap().clone_into(&mut uuid);
        if !by_log {
            scenario.xids = vec![XidEvent { id: 1, gpu: Which::Place(0), code: 79, event: 8, at_s: 0.0, mig: None }];
            return fake.write(&scenario).unwrap();
        }
        let slot = gpu["pci_bus_id"]["value"].as_str().unwrap();
        let bus_id = slot[4..].trim_end_matches(".0");
        writeln!(log, "4,1,1,-;NVRM: Xid (PCI:{bus_id}): 79, pid={pid}, name=sleep, GPU has fallen off the bus.")
            .unwrap();
    });
    assert_eq!(stderr, "", "nothing is logged twice");
    let error = entry(&entries, "GPU driver error");
    for (field, value) in [("GPU_UUID", uuid.as_str()), ("POD", "ml/train-0"), ("XID", "79"), ("PRIORITY", "3")] {
        assert_eq!(error[field], value, "{field} in {error}");
    }
}

#[test]
#[ignore = "needs root: tests/run"]
fn if_journald_does_not_answer_the_log_goes_to_stderr_as_json() {
    let agent = lab::agent::Agent::standalone(BINARY)
        .within("mount -t tmpfs tmpfs /run")
        .with("--gpus", "none")
        .with("--log-format", "journald")
        .launch();
    let log = agent.terminate().log;
    let first: serde_json::Value = serde_json::from_str(log.lines().next().unwrap()).unwrap();
    assert_eq!(first["level"], "WARN");
    assert!(first["message"].as_str().unwrap().contains("journald was requested and does not answer"));
}
