//! Tests the shipped unit under a running systemd: readiness, watchdog, kill, reload, stop and journal.

use super::{GPUS, Machine, SERVICE, SOON};
use lab::eventually::eventually;
use serde_json::Value;
use std::collections::BTreeSet;

/// Shorter than the unit's own 30 s, so that a missed watchdog is noticed soon. The program notifies systemd twice in this
/// time.
const WATCHDOG: &str = "[Service]\nWatchdogSec=8\n";

/// The PID of the process that has replaced this one, once it is ready.
fn successor(machine: &Machine, before: &str) -> String {
    eventually("a new process that is ready", SOON, || {
        let now = machine.show("MainPID");
        (now != "0" && now != before && machine.show("ActiveState") == "active").then_some(now)
    })
}

#[test]
#[ignore = "needs vm: tests/run"]
fn the_unit_becomes_ready_is_restarted_reloads_and_stops() {
    let machine = Machine::up();
    machine.drop_in("watchdog.conf", WATCHDOG.as_bytes());
    machine.settings(&[GPUS]);
    machine.start();
    assert_eq!((machine.show("Type"), machine.show("SubState")), ("notify".into(), "running".into()));
    let status = machine.show("StatusText");
    assert!(status.contains("2 simulated GPUs"), "{status:?}");
    assert!(machine.get("/readyz").contains("ready"));

    // systemd gets watchdog messages again and again from the same process.
    let pid = machine.show("MainPID");
    let mut watchdog_times = BTreeSet::new();
    eventually("three heartbeats", SOON, || {
        watchdog_times.insert(machine.show("WatchdogTimestampMonotonic"));
        (watchdog_times.len() >= 3).then_some(())
    });
    assert_eq!((machine.show("MainPID"), machine.show("NRestarts")), (pid.clone(), "0".into()));

    // systemd ends a stopped process and starts another one.
    machine.vm.sh(&format!("systemctl kill --kill-who=main -s STOP {SERVICE}"));
    let pid = successor(&machine, &pid);
    assert_eq!(machine.show("NRestarts"), "1");
    let journal = machine.vm.sh(&format!("journalctl --sync; journalctl -b -u {SERVICE} -o cat"));
    assert!(journal.contains("Watchdog timeout"), "{journal}");

    machine.vm.sh(&format!("systemctl kill --kill-who=main -s KILL {SERVICE}"));
    let pid = successor(&machine, &pid);
    assert_eq!(machine.show("NRestarts"), "2");

    machine.vm.put(b"v: 4\n", "644", "/etc/gpu-steward/config.yaml");
    machine.vm.sh(&format!("systemctl reload {SERVICE}"));
    let changed = eventually("the setting that changed", SOON, || {
        machine.journal().into_iter().find(|entry| entry["KEY"] == "v")
    });
    assert_eq!((&changed["OLD"], &changed["NEW"], &changed["_PID"]), (&"0".into(), &"4".into(), &Value::from(&*pid)));
    assert_eq!(machine.show("MainPID"), pid);

    machine.vm.sh(&format!("systemctl stop {SERVICE}"));
    let ended = ["ActiveState", "Result", "ExecMainCode", "ExecMainStatus"].map(|property| machine.show(property));
    // 1 is CLD_EXITED: the process ended by itself.
    assert_eq!(ended, ["inactive", "success", "1", "0"]);
}

#[test]
#[ignore = "takes minutes on the vm: tests/run --long vm"]
fn the_units_journal_has_each_line_with_its_fields() {
    let machine = Machine::up();
    machine.settings(&[GPUS]);
    machine.start();
    let pid = machine.show("MainPID");
    let journal = eventually("both GPUs in the journal", SOON, || {
        let mut journal = machine.journal();
        journal.retain(|entry| entry["_PID"] == *pid);
        let found = |entry: &&Value| entry["MESSAGE"].as_str().is_some_and(|text| text.contains("GPU found"));
        (journal.iter().filter(found).count() >= 2).then_some(journal)
    });
    let entry = |text: &str| {
        let found =
            journal.iter().find(|entry| entry["MESSAGE"].as_str().is_some_and(|message| message.contains(text)));
        found.unwrap_or_else(|| panic!("{text:?} in {journal:#?}"))
    };
    let start = entry("gpu-steward agent started");
    for (field, value) in [
        ("PRIORITY", "6"),
        ("SYSLOG_IDENTIFIER", "gpu-steward"),
        ("_SYSTEMD_UNIT", SERVICE),
        ("VERSION", env!("CARGO_PKG_VERSION")),
        ("NODE", lab::vm::NODE),
        ("METRICS", "0.0.0.0:9410"),
        ("PID", &pid),
    ] {
        assert_eq!(start[field], value, "{field} in {start}");
    }
    assert_eq!(entry("GPUs are simulated")["PRIORITY"], "4");
    let uuids: BTreeSet<&str> = journal.iter().filter_map(|entry| entry["GPU_UUID"].as_str()).collect();
    let gpus = machine.gpus();
    assert_eq!(uuids, gpus.iter().map(String::as_str).collect(), "{journal:#?}");
    // The journal can be searched by the field.
    let found = machine.vm.sh(&format!("journalctl -b GPU_UUID={} -o cat", gpus[0]));
    assert!(found.contains("GPU found"), "{found}");
}
