//! The machine is shut down and comes back, and it loses its power in the middle of a start: each container gets what it was
//! promised all the same, and nothing that was only half written is taken for whole.

use super::shares::Pods;
use super::{Machine, OURS, SOON};
use lab::eventually::eventually;

/// The directory as it is found after a boot, before the agent has touched it.
const FOUND: &str =
    "[Service]\nExecStartPre=+/bin/sh -c 'find /var/lib/gpu-steward -type f -printf \"%%s %%P\\\\n\" >/run/found'\n";
/// What early binding says of a pod whose ticket is lost, or given to another.
const WRONG: [&str; 3] = ["Forgotten", "MistakenForAnother", "LimitsNotApplied"];

/// Promise 28 in docs/specification.md.
#[test]
#[ignore = "needs vm: tests/run"]
fn each_container_has_its_own_after_a_reboot() {
    let machine = Machine::up();
    machine.share(&[]);
    let mut pods = settled(&machine, "vm-reboot", 2);
    pods.rebooted();
    machine.vm.boot_by("systemctl reboot", || {});
    after_a_boot(&machine, &mut pods);
}

/// The same of a machine that had no time to write anything down.
#[test]
#[ignore = "takes minutes on the vm: tests/run --long vm"]
fn each_container_has_its_own_after_a_loss_of_power() {
    let machine = Machine::up();
    machine.drop_in("found.conf", FOUND.as_bytes());
    machine.share(&[]);
    let mut pods = settled(&machine, "vm-power", 4);
    loses_power(&machine, &mut pods);
}

/// So many pods that run.
fn settled<'a>(machine: &'a Machine, name: &str, count: usize) -> Pods<'a> {
    let mut pods = Pods::new(machine, name);
    for _ in 0..count {
        pods.add("main");
    }
    pods.settle();
    pods
}

/// Where there is no CDI the answer to `Allocate` is all that a container gets, so what it rests on must be on the disk before.
#[test]
#[ignore = "takes minutes on the vm: tests/run --long vm"]
fn what_was_given_when_kubelet_allocated_is_known_after_a_loss_of_power() {
    let machine = Machine::up();
    machine.drop_in("found.conf", FOUND.as_bytes());
    machine.share(&["GPU_STEWARD_BINDING=early"]);
    let mut pods = Pods::new(&machine, "vm-early");
    pods.loose = false;
    pods.add("main");
    pods.settle();
    loses_power(&machine, &mut pods);
}

/// Cuts the power right after the start of one more pod was answered. What other programs sync brings the directory's entries to
/// the disk, and of files that nobody synced no more than their names.
fn loses_power(machine: &Machine, pods: &mut Pods<'_>) {
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
        let done = machine.vm.run("cat /run/found");
        (done.code == 0).then_some(done.out)
    });
    // Else the cut came too late to lose anything, and shows nothing.
    assert!(found.lines().any(|line| line.starts_with("0 ")), "the cut lost nothing: {found}");
    after_a_boot(machine, pods);
}

/// The agent came up at once, kubelet knows it, and every pod has its own.
fn after_a_boot(machine: &Machine, pods: &mut Pods<'_>) {
    machine.ready();
    machine.registered();
    assert_eq!(
        (machine.show("NRestarts"), machine.show("Result")),
        ("0".into(), "success".into()),
        "{}",
        machine.log()
    );
    let said = machine.vm.sh(&format!("journalctl -b -u {OURS} -o cat"));
    assert!(!said.contains("panicked"), "{said}");
    pods.admitted_anew();
    pods.settle();
    assert_eq!(pods.events(&WRONG), Vec::<String>::new());
    // What was kept for pods that are gone goes: one folder a pod stays.
    eventually("the end of what belongs to no pod any more", SOON, || {
        let folders =
            machine.vm.sh("ls /var/lib/gpu-steward/pods | wc -l; ls /var/lib/gpu-steward/trash 2>/dev/null | wc -l");
        (folders == format!("{}\n0", pods.count())).then_some(())
    });
}
