//! Compares the agent's measurements of containers with the guest's kernel at the same moment, with the kubelet's
//! systemd driver on cgroup v2.

use super::{Machine, SOON};
use crate::bed::{Claim, bare_pod};
use lab::eventually::eventually;
use lab::vm::NODE;
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// Two readings that differ by no more than this share count as equal: promise 5 in docs/specification.md.
const CLOSE: f64 = 0.02;
/// Seconds of CPU time, enough that the kernel's tick of 10 ms does not matter.
const LOAD: u32 = 8;
const WRITTEN: f64 = (32 << 20) as f64;
const SENT: f64 = (4 << 20) as f64;

/// Readings of one container or pod, by name.
type Readings = BTreeMap<String, f64>;

/// A pod with one container and these limits.
fn pod(namespace: &str, name: &str, limits: &Value) -> Value {
    let one: [Claim<'_>; 1] = [("main", "app", &[])];
    bare_pod((namespace, name), NODE, &one, &json!({ "resources": { "limits": limits } }))
}

/// A container: its pod's name, its cgroup, and one of its processes.
struct Container {
    pod: String,
    cgroup: String,
    pid: String,
}

impl Machine {
    fn container(&self, namespace: &str, pod: &str) -> Container {
        let object = self.admin.get(&["pod", pod, "-n", namespace]);
        let id = object["status"]["containerStatuses"][0]["containerID"].as_str().expect("a container's id");
        let id = id.trim_start_matches("containerd://");
        let uid = object["metadata"]["uid"].as_str().expect("a UID").replace('-', "_");
        let cgroup = self.vm.sh(&format!("find /sys/fs/cgroup/kubepods.slice -name 'cri-containerd-{id}.scope'"));
        assert!(
            cgroup.contains(&format!("-pod{uid}.slice/")),
            "this is not the name that kubelet's systemd driver gives: {cgroup}"
        );
        let pid = self.vm.sh(&format!("head -n 1 {cgroup}/cgroup.procs"));
        Container { pod: pod.to_owned(), cgroup, pid }
    }

    /// The readings of the kernel and of the agent for a container at one moment. The agent's readings include only those
    /// that the kernel also has.
    fn readings(&self, container: &Container) -> (Readings, Readings) {
        let Container { pod, cgroup, pid } = container;
        let text = self.vm.sh(&format!(
            "cd {cgroup} && cat cpu.stat && sed 's/^/cpu_/' cpu.pressure && sed 's/^/io_/' io.pressure && sed 's/^/memory_/' memory.pressure && \
             echo current $(cat memory.current) && cat io.stat && sed 's/^/pod_/' ../memory.events && cat /proc/{pid}/net/dev && \
             curl -sS --max-time 60 http://127.0.0.1:9410/metrics | grep 'pod=\"{pod}\"'"
        ));
        let (mut kernel, mut agent) = (Readings::new(), Readings::new());
        for line in text.lines() {
            match line.strip_prefix("gpu_steward_") {
                Some(line) => drop(series(line).map(|(name, value)| agent.insert(name, value))),
                None => add_kernel_line(line, &mut kernel),
            }
        }
        agent.retain(|name, _| kernel.contains_key(name));
        (kernel, agent)
    }

    /// Waits until the agent shows the kernel's value for each reading that `of` selects. Readings from different moments
    /// agree once the values no longer change. Returns the kernel's readings.
    fn wait_for_agreement(&self, container: &Container, of: impl Fn(&str) -> bool) -> Readings {
        let mut differ = String::new();
        let close = |(name, kernel): (&String, &f64), agent: &Readings| {
            agent.get(name).is_some_and(|agent| (agent - kernel).abs() <= (kernel * CLOSE).max(tolerance(name)))
        };
        let began = std::time::Instant::now();
        eventually("the agent to agree with the kernel", SOON, || {
            let (kernel, agent) = self.readings(container);
            let wrong: Vec<_> = kernel.iter().filter(|reading| of(reading.0) && !close(*reading, &agent)).collect();
            differ = format!("{wrong:?} beside {agent:?}");
            assert!(began.elapsed() < SOON * 9 / 10, "{}: {differ}", container.pod);
            wrong.is_empty().then_some(kernel)
        })
    }
}

/// The allowed difference of a small reading: an idle container's shell still runs now and then.
fn tolerance(name: &str) -> f64 {
    match name {
        name if name.contains("bytes") => 64.0 * 1024.0,
        name if name.contains("periods") => 3.0,
        _ => 0.05,
    }
}

/// A line of `/metrics` without its common prefix: `container_cpu_seconds_total{…} 1.5`.
fn series(line: &str) -> Option<(String, f64)> {
    let (name, rest) = line.split_once('{')?;
    Some((name.to_owned(), rest.rsplit_once(' ')?.1.parse().ok()?))
}

/// Adds a line of one of the kernel's files, under the names that the agent uses.
fn add_kernel_line(line: &str, into: &mut Readings) {
    let words: Vec<&str> = line.split_ascii_whitespace().collect();
    let number = |text: &str| text.parse::<f64>().unwrap_or_default();
    let found = match words[..] {
        ["usage_usec", value] => vec![("container_cpu_seconds_total".to_owned(), number(value) / 1e6)],
        ["user_usec", value] => vec![("container_cpu_user_seconds_total".to_owned(), number(value) / 1e6)],
        ["nr_periods", value] => vec![("container_cpu_cfs_periods_total".to_owned(), number(value))],
        ["nr_throttled", value] => vec![("container_cpu_cfs_throttled_periods_total".to_owned(), number(value))],
        ["throttled_usec", value] => {
            vec![("container_cpu_cfs_throttled_seconds_total".to_owned(), number(value) / 1e6)]
        }
        ["current", value] => vec![("container_memory_usage_bytes".to_owned(), number(value))],
        ["pod_oom_kill", value] => vec![("pod_oom_kills_total".to_owned(), number(value))],
        [kind, _, _, _, total] if total.starts_with("total=") => {
            let (kind, how) = kind.rsplit_once('_').unwrap_or_default();
            let how = if how == "some" { "waiting" } else { "stalled" };
            let total = number(total.trim_start_matches("total="));
            vec![(format!("container_pressure_{kind}_{how}_seconds_total"), total / 1e6)]
        }
        [interface, received, ..] if words.len() == 17 && interface.ends_with(':') && interface != "lo:" => vec![
            ("pod_network_receive_bytes_total".to_owned(), number(received)),
            ("pod_network_transmit_bytes_total".to_owned(), number(words[9])),
        ],
        // One line for each disk.
        _ => {
            let written = words.iter().find_map(|pair| pair.strip_prefix("wbytes="));
            written.map(|bytes| ("container_io_write_bytes_total".to_owned(), number(bytes))).into_iter().collect()
        }
    };
    for (name, value) in found {
        *into.entry(name).or_default() += value;
    }
}

/// Promise 5 in docs/specification.md, on the cgroup layout that nearly every node has.
#[test]
#[ignore = "needs vm: tests/run"]
fn measurements_of_containers_agree_with_the_kernel() {
    let machine = Machine::up();
    machine.share(&[]);
    let space = machine.namespace("vm-measures");
    let name = &space.name;
    let limits = [
        ("busy", json!({ "cpu": "500m", "memory": "96Mi" })),
        ("ear", json!({})),
        ("hog", json!({ "memory": "32Mi" })),
    ];
    for (pod_name, limits) in &limits {
        let _ = machine.admin.create(&pod(name, pod_name, limits).to_string()).ok();
    }
    machine.admin.wait("condition=Ready", SOON, &["-n", name, "pod/busy", "pod/ear", "pod/hog"]);
    let busy = machine.container(name, "busy");
    let before = machine.wait_for_agreement(&busy, |_| true);

    let sh = |pod: &str, script: &str| machine.admin.exec(name, pod, &["sh", "-c", script]);
    // The container runs until it has used its CPU time, however slow the machine is.
    let burn = format!(
        "used() {{ awk='/bin/busybox awk'; $awk '/^usage/ {{ print int($2 / 1000000) }}' /sys/fs/cgroup/cpu.stat; }}; \
         until [ $(used) -ge {LOAD} ]; do n=0; while [ $n -lt 100000 ]; do n=$((n + 1)); done; done"
    );
    let _ = sh("busy", &burn);
    let _ = sh("busy", "dd if=/dev/zero of=/tmp/written bs=1M count=32 conv=fsync 2>&1");
    let receiver =
        machine.admin.get(&["pod", "ear", "-n", name])["status"]["podIP"].as_str().expect("an address").to_owned();
    let _ = sh("ear", "(sleep 100000 | nc -l -p 5000) >/dev/null 2>&1 </dev/null &");
    // The receiver may not listen yet.
    let send =
        format!("until dd if=/dev/zero bs=64k count=64 2>/dev/null | nc -w 60 {receiver} 5000; do sleep 1; done");
    let _ = sh("busy", &send);
    let after = machine.wait_for_agreement(&busy, |_| true);
    let grown = |reading: &str| after[reading] - before.get(reading).unwrap_or(&0.0);
    assert!(grown("container_cpu_seconds_total") >= f64::from(LOAD - 2), "{before:?} {after:?}");
    assert!(grown("container_cpu_cfs_throttled_periods_total") > 10.0, "{before:?} {after:?}");
    assert!(grown("container_cpu_cfs_throttled_seconds_total") > 1.0, "{before:?} {after:?}");
    assert!(grown("container_pressure_cpu_waiting_seconds_total") > 1.0, "{before:?} {after:?}");
    assert!(grown("container_io_write_bytes_total") >= WRITTEN, "{before:?} {after:?}");
    assert!(grown("pod_network_transmit_bytes_total") >= SENT, "{before:?} {after:?}");

    let ooms = |reading: &str| reading == "pod_oom_kills_total";
    let hog = machine.container(name, "hog");
    let before = machine.wait_for_agreement(&hog, ooms)["pod_oom_kills_total"];
    // The kernel kills the whole container, and the kubelet starts another one in the same pod.
    let _ = machine.admin.run(&[
        "exec",
        "-n",
        name,
        "hog",
        "--",
        "dd",
        "if=/dev/zero",
        "of=/dev/null",
        "bs=64M",
        "count=1",
    ]);
    let restarted =
        || machine.admin.get(&["pod", "hog", "-n", name])["status"]["containerStatuses"][0]["restartCount"] == 1;
    eventually("the container to run again", SOON, || restarted().then_some(()));
    machine.admin.wait("condition=Ready", SOON, &["-n", name, "pod/hog"]);
    let hog = machine.container(name, "hog");
    let kills = machine.wait_for_agreement(&hog, ooms)["pod_oom_kills_total"];
    assert!(kills > before, "{before} OOM kills before and {kills} after");
}
