//! Tries everything that the unit must not do: once as root on this machine, where it works, and once in the unit's
//! sandbox.

use super::{Machine, shipped};
use std::collections::BTreeMap;

/// Names and commands of the actions that must fail in the unit. Each command works for root outside the unit.
const FORBIDDEN: [(&str, &str); 27] = [
    ("write /usr", "touch /usr/probe"),
    ("write /etc", "touch /etc/probe"),
    ("write /home", "cd /home && touch probe"),
    ("write /root", "touch ~root/probe"),
    ("write /var/lib", "touch /var/lib/probe"),
    ("write /boot", "touch /boot/probe"),
    ("write kubelet's own files", "touch /var/lib/kubelet/probe"),
    ("write kubelet's directory", "touch /var/lib/kubelet/device-plugins/probe"),
    // The kubelet connects to every socket in this folder.
    (
        "write kubelet's registry",
        "touch /var/lib/kubelet/plugins_registry/probe && rm /var/lib/kubelet/plugins_registry/probe",
    ),
    ("write a CDI spec", "touch /run/cdi/probe"),
    ("read /root", "grep -q secret ~root/secret"),
    ("read another user's file", "grep -q secret /srv/secret"),
    ("write a sysctl", "echo 176 >/proc/sys/kernel/sysrq"),
    ("write a cgroup", "echo 0 >/sys/fs/cgroup/system.slice/cgroup.freeze"),
    ("write /sys", "echo 1 >/sys/kernel/rcu_normal"),
    ("read the disk", "dd if=/dev/vda of=/dev/null bs=512 count=1"),
    ("read the kernel's log", "dd if=/dev/kmsg of=/dev/null bs=8192 count=1 iflag=nonblock"),
    ("mount", "mount -t tmpfs none /mnt && umount /mnt"),
    ("make a namespace", "unshare -n true"),
    ("change the host's name", "hostname vm"),
    ("set the clock", "date -s @$(date +%s)"),
    ("load a module", "modprobe dummy"),
    ("change an owner", "f=$(mktemp) && chown 1 $f"),
    ("set a setuid bit", "f=$(mktemp) && chmod u+s $f"),
    ("take real time", "chrt -f 1 true"),
    ("make a device", "mknod /tmp/probe-$$ c 1 3"),
    ("open a packet socket", "perl -e 'socket(S, 17, 3, 0) or die \"$!\"'"),
];

/// The commands that `options/sharing.conf` allows: in the folders where the kubelet and the runtime meet a plugin.
const SHARING: [&str; 3] = ["write kubelet's directory", "write kubelet's registry", "write a CDI spec"];

/// The actions that the unit needs.
const NEEDED: [(&str, &str); 8] = [
    ("write its state", "touch /var/lib/gpu-steward/probe && rm /var/lib/gpu-steward/probe"),
    ("write its socket's directory", "touch /run/gpu-steward/probe && rm /run/gpu-steward/probe"),
    ("read cgroups", "cat /sys/fs/cgroup/kubepods.slice/cpu.stat"),
    ("read processes", "cat /proc/1/stat /proc/1/net/dev"),
    ("reach the runtime's socket", "test -w /run/containerd/containerd.sock"),
    ("read kubelet's directory", "ls /var/lib/kubelet/pod-resources/kubelet.sock"),
    ("open a TCP socket", "perl -e 'socket(S, 2, 1, 0) or die \"$!\"'"),
    ("open a Unix socket", "perl -e 'socket(S, 1, 1, 0) or die \"$!\"'"),
];

/// A shell script that tries each command and prints the result.
fn script() -> String {
    let tries = FORBIDDEN.iter().chain(&NEEDED).map(|(name, command)| {
        format!("if output=$( ({command}) 2>&1 >/dev/null); then echo \"{name}: done\"; else echo \"{name}: refused: $output\" | head -n 1; fi\n")
    });
    tries.collect()
}

/// The result of each command, by name.
fn outcome(text: &str) -> BTreeMap<&str, &str> {
    text.lines().filter_map(|line| line.split_once(": ")).collect()
}

#[test]
#[ignore = "needs vm: tests/run"]
fn the_unit_cannot_do_what_its_sandbox_forbids() {
    let machine = Machine::up();
    machine.ready();
    machine.vm.sh("mkdir -p /run/cdi /var/lib/kubelet/plugins_registry; echo secret >~root/secret; echo secret >/srv/secret; chown 65534 /srv/secret; chmod 600 /srv/secret");
    machine.vm.put(script().as_bytes(), "644", "/srv/probe");
    // The shipped unit with another program.
    let unit = String::from_utf8(shipped("gpu-steward.service")).expect("UTF-8");
    let lines = unit.lines().filter(|line| !line.starts_with("WatchdogSec=") && !line.starts_with("Restart"));
    let probe: Vec<&str> = lines
        .map(|line| match line.split('=').next() {
            Some("ExecStart") => "ExecStart=/bin/sh /srv/probe\nStandardOutput=truncate:/run/probe.out",
            Some("Type") => "Type=oneshot",
            _ => line,
        })
        .collect();
    machine.vm.put(probe.join("\n").as_bytes(), "644", "/etc/systemd/system/probe.service");
    let run = || machine.vm.sh("systemctl daemon-reload && systemctl start probe && cat /run/probe.out");
    let inside = run();
    // The shipped drop-in with another program.
    let sharing = String::from_utf8(shipped("options/sharing.conf")).expect("UTF-8");
    let sharing = sharing.replace("/usr/bin/gpu-steward agent", "/bin/sh /srv/probe");
    machine.vm.put(sharing.as_bytes(), "644", "/etc/systemd/system/probe.service.d/sharing.conf");
    let shares = run();
    machine.vm.sh("mkdir -p /var/lib/gpu-steward /run/gpu-steward");
    let outside = machine.vm.sh("sh /srv/probe; rm -f /usr/probe /etc/probe /boot/probe ~root/probe ~root/secret \
        /var/lib/probe /var/lib/kubelet/probe /var/lib/kubelet/device-plugins/probe /run/cdi/probe; \
        rm -rf /etc/systemd/system/probe.service /etc/systemd/system/probe.service.d; modprobe -r dummy; cd /home && rm -f probe");
    let (inside, shares, outside) = (outcome(&inside), outcome(&shares), outcome(&outside));
    for (name, _) in FORBIDDEN {
        assert_eq!(outside[name], "done", "the command must work outside the unit: {name}");
        assert!(inside[name].starts_with("refused"), "the unit can {name}: {inside:#?}");
        let given = SHARING.contains(&name);
        assert_eq!(shares[name] == "done", given, "a unit that shares: {name}: {shares:#?}");
        assert!(given || shares[name].starts_with("refused"), "a unit that shares can {name}: {shares:#?}");
    }
    for (name, _) in NEEDED {
        assert_eq!((inside[name], shares[name]), ("done", "done"), "the unit cannot {name}");
    }
}

/// Promise 15 in docs/specification.md for a running unit, and the kernel's status of its process.
#[test]
#[ignore = "takes minutes on the vm: tests/run --long vm"]
fn the_running_unit_is_as_little_exposed_as_its_file() {
    let machine = Machine::up();
    machine.settings(&[super::GPUS]);
    for option in [None, Some("sharing.conf")] {
        if let Some(option) = option {
            machine.vm.sh("systemctl stop gpu-steward");
            machine.drop_in(option, &shipped(&format!("options/{option}")));
            machine.drop_in(
                "zz-alone.conf",
                b"[Service]\nExecStart=\nExecStart=/usr/bin/gpu-steward agent --standalone\n",
            );
        }
        machine.start();
        let security = machine.vm.run("systemd-analyze security --threshold=25 --no-pager gpu-steward.service");
        assert_eq!(security.code, 0, "{option:?}: {}", security.out);
        assert!(security.out.contains(": 2.0 "), "{option:?}: {}", security.out);
        let pid = machine.show("MainPID");
        let status = machine.vm.sh(&format!("cat /proc/{pid}/status"));
        let value = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            line.unwrap_or_else(|| panic!("{name} in {status}")).trim().to_owned()
        };
        for name in ["CapEff:", "CapPrm:", "CapBnd:", "CapAmb:"] {
            assert_eq!(value(name), "0000000000000000", "{name}");
        }
        assert_eq!((value("NoNewPrivs:"), value("Seccomp:")), ("1".into(), "2".into()));
    }
}
