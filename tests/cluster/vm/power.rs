//! The machine is shut down and boots again, and it loses power in the middle of a start. Each container still gets
//! the devices of its claim, and the agent does not accept files that were only partly written.

use super::shares::Pods;
use super::{Machine, SERVICE, SOON};
use lab::eventually::eventually;

/// Lists the state directory after a boot, before the agent has touched it.
const FOUND: &str =
    "[Service]\nExecStartPre=+/bin/sh -c 'find /var/lib/gpu-steward -type f -printf \"%%s %%P\\\\n\" >/run/found'\n";
/// The reasons of events if a container does not get its devices.
const ERRORS: [&str; 3] = ["Forgotten", "AnswerLost", "LimitsNotApplied"];

/// Promise 28 in docs/specification.md.
#[test]
#[ignore = "needs vm: tests/run"]
fn each_container_has_its_own_devices_after_a_reboot() {
    let machine = Machine::up();
    machine.share(&[]);
    let mut pods = running_pods(&machine, "vm-reboot", 2);
    pods.rebooted();
    machine.vm.boot_by("systemctl reboot", || {});
    check_after_boot(&machine, &mut pods);
}

/// The same, but the machine has no time to write to its disk.
#[test]
#[ignore = "takes minutes on the vm: tests/run --long vm"]
fn each_container_has_its_own_devices_after_a_loss_of_power() {
    let machine = Machine::up();
    machine.drop_in("found.conf", FOUND.as_bytes());
    machine.share(&[]);
    let mut pods = running_pods(&machine, "vm-power", 4);
    cut_power(&machine, &mut pods);
}

/// This many running pods.
fn running_pods<'a>(machine: &'a Machine, name: &str, count: usize) -> Pods<'a> {
    let mut pods = Pods::new(machine, name);
    for _ in 0..count {
        pods.add("main");
    }
    pods.settle();
    pods
}

/// Cuts the power right after the agent has answered the start of one more pod. Syncs of other programs write directory
/// entries to the disk, so a file that was not synced may exist with its name only.
fn cut_power(machine: &Machine, pods: &mut Pods<'_>) {
    const STARTED: &str = "/var/lib/gpu-steward/started";
    pods.rebooted();
    let answered = machine.vm.sh(&format!("cat {STARTED} | wc -l"));
    let cut = format!(
        "until [ $(cat {STARTED} | wc -l) -gt {answered} ]; do sleep 0.05; done; \
         dd if=/dev/zero of=/var/tmp/synced bs=512 count=1 conv=fsync; echo b >/proc/sysrq-trigger"
    );
    let arm = format!("setsid sh -c '{cut}' >/dev/null 2>&1 &");
    machine.vm.boot_by(&arm, || pods.add("cut"));
    let found = eventually("the agent's start", SOON, || {
        let output = machine.vm.run("cat /run/found");
        (output.code == 0).then_some(output.out)
    });
    // Without an empty file, the cut came too late to lose data, and the test would check nothing.
    assert!(found.lines().any(|line| line.starts_with("0 ")), "the cut lost nothing: {found}");
    check_after_boot(machine, pods);
}

/// Checks that the agent started at once, that the kubelet knows it, and that every pod has its own devices.
fn check_after_boot(machine: &Machine, pods: &mut Pods<'_>) {
    machine.ready();
    machine.registered();
    assert_eq!(
        (machine.show("NRestarts"), machine.show("Result")),
        ("0".into(), "success".into()),
        "{}",
        machine.log()
    );
    let journal = machine.vm.sh(&format!("journalctl -b -u {SERVICE} -o cat"));
    assert!(!journal.contains("panicked"), "{journal}");
    pods.kubelet_readmits_all();
    pods.settle();
    assert_eq!(pods.events(&ERRORS), Vec::<String>::new());
    // The agent removes the state of pods that are gone: one folder for each existing pod stays.
    eventually("the removal of the files of pods that are gone", SOON, || {
        let folders =
            machine.vm.sh("ls /var/lib/gpu-steward/pods | wc -l; ls /var/lib/gpu-steward/trash 2>/dev/null | wc -l");
        (folders == format!("{}\n0", pods.count())).then_some(())
    });
}
