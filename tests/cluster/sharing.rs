//! Tests sharing through a real kubelet and a real containerd: each container gets the devices of its claim, and
//! nothing else.

use crate::bed::{Bed, Claim, SOON, devices_in};
use lab::agent::Agent;
use lab::eventually::eventually;
use serde_json::{Value, json};
use std::time::Duration;

const MIB: u64 = 1 << 20;
const NOTHING: Value = Value::Null;

/// Promise 28 in docs/specification.md.
#[test]
#[ignore = "needs cluster: tests/run"]
fn each_container_reads_its_own_limits() {
    let bed = Bed::up("sharing-own");
    let agent = bed.agent(&[]);
    let gpus = Bed::gpus(&agent);
    let claims: [Claim<'_>; 5] = [
        ("warm", "init", &[(0, 1000, 10)]),
        ("beside", "sidecar", &[(1, 500, 5)]),
        ("one", "app", &[(1, 3000, 30)]),
        ("both", "app", &[(1, 2000, 20), (0, 4000, 40)]),
        ("none", "app", &[]),
    ];
    bed.create(&bed.pod("many", &gpus, &claims, &NOTHING));
    bed.ready(&["many"]);
    for (container, kind, devices) in claims {
        let expect: Vec<(String, u64)> = devices.iter().map(|(gpu, mib, _)| (gpus[*gpu].clone(), mib * MIB)).collect();
        let limits = if kind == "init" {
            let log = bed.admin.run(&["logs", "-n", &bed.space.name, "many", "-c", container]).ok();
            serde_json::from_str(&log).expect("JSON")
        } else if devices.is_empty() {
            let seen = bed.sh(
                "many",
                container,
                "ls /etc/gpu-steward /dev | grep -e limits -e nvidia; env | grep -i -e cuda -e nvidia; true",
            );
            assert_eq!(seen, "", "a container that requests no GPU sees none");
            continue;
        } else {
            bed.limits("many", container)
        };
        assert_eq!(devices_in(&limits), expect, "{container}: {limits}");
        assert_eq!(limits["container"], container);
        assert_eq!(limits["pod"]["name"], "many");
    }
    assert_eq!(
        bed.sh("many", "one", "ls /dev | grep nvidia | sort | tr '\\n' ' '").trim(),
        "nvidia-modeset nvidia-uvm nvidia-uvm-tools nvidia1 nvidiactl"
    );
}

/// Promise 29 in docs/specification.md: a pod's own variables do not weaken its limits.
#[test]
#[ignore = "needs cluster: tests/run"]
fn a_container_and_its_variables_cannot_loosen_a_limit() {
    let bed = Bed::up("sharing-loosen");
    let agent = bed.agent(&[]);
    let gpus = Bed::gpus(&agent);
    let map = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "loose", "namespace": bed.space.name },
        "data": { "CUDA_DEVICE_SM_LIMIT": "100", "CUDA_DEVICE_SM_LIMIT_0": "100", "GPU_CORE_UTILIZATION_POLICY": "DISABLE" },
    });
    bed.create(&map);
    let loose = json!({
        "env": [
            { "name": "CUDA_DEVICE_MEMORY_LIMIT_0", "value": "999999m" },
            { "name": "CUDA_DEVICE_MEMORY_LIMIT", "value": "999999m" },
            { "name": "NVIDIA_VISIBLE_DEVICES", "value": "all" },
            { "name": "CUDA_DISABLE_CONTROL", "value": "true" },
            { "name": "CUDA_REDIRECT", "value": "/tmp/own.so" },
        ],
        "envFrom": [{ "configMapRef": { "name": "loose" } }],
    });
    bed.create(&bed.pod("loose", &gpus, &[("main", "app", &[(0, 3000, 30)])], &loose));
    bed.create(&bed.bare_pod("outside", &[("main", "app", &[])], &loose));
    bed.ready(&["loose", "outside"]);
    // The variables of the shell and of the container's first process.
    for script in ["env", "tr '\\0' '\\n' </proc/1/environ"] {
        let env = bed.sh("loose", "main", script);
        for line in [
            "CUDA_DEVICE_MEMORY_LIMIT_0=3000m",
            "CUDA_DEVICE_MEMORY_LIMIT=3000m",
            "CUDA_DEVICE_SM_LIMIT_0=30",
            "CUDA_DEVICE_SM_LIMIT=30",
            "NVIDIA_VISIBLE_DEVICES=void",
            "CUDA_DISABLE_CONTROL=false",
            "CUDA_REDIRECT=/usr/local/vgpu/libvgpu.so",
            "GPU_CORE_UTILIZATION_POLICY=default",
        ] {
            let name = line.split('=').next().expect("a name");
            let found: Vec<&str> = env.lines().filter(|found| found.split('=').next() == Some(name)).collect();
            assert_eq!(found, [line], "{script}");
        }
    }
    let output = bed.sh(
        "loose",
        "main",
        "f=/etc/gpu-steward/limits.json; (echo x >$f) 2>&1; rm -f $f 2>&1; mv $f /tmp 2>&1; mount -o remount,rw $f 2>&1; true",
    );
    assert!(output.contains("Read-only file system"), "{output}");
    assert_eq!(devices_in(&bed.limits("loose", "main")), [(gpus[0].clone(), 3000 * MIB)]);
    let seen = bed.sh("outside", "main", "ls /dev | grep nvidia; ls /etc/gpu-steward 2>/dev/null; true");
    assert_eq!(seen, "", "a pod that requests no GPU sees none, whatever its variables say");
}

/// Promise 29 in docs/specification.md: the variables of a pod's image do not weaken its limits.
#[test]
#[ignore = "needs cluster: tests/run"]
fn the_variables_of_an_image_loosen_no_limit() {
    let bed = Bed::up("sharing-image");
    let agent = bed.agent(&[]);
    let gpus = Bed::gpus(&agent);
    let busybox = bed.cluster.program("busybox");
    let own = ["CUDA_DEVICE_MEMORY_LIMIT_0=999999m", "CUDA_DISABLE_CONTROL=true", "NVIDIA_VISIBLE_DEVICES=all"];
    bed.cluster.image("registry.local/loose:1", busybox.to_str().expect("a path in UTF-8"), &own);
    let image = json!({ "image": "registry.local/loose:1", "command": ["/bin/busybox", "sleep", "100000"] });
    bed.create(&bed.pod("loose", &gpus, &[("main", "app", &[(1, 3000, 30)])], &image));
    bed.create(&bed.bare_pod("outside", &[("main", "app", &[])], &image));
    bed.ready(&["loose", "outside"]);
    let busybox_output =
        |pod: &str, words: &[&str]| bed.admin.exec(&bed.space.name, pod, &[&["/bin/busybox"], words].concat());
    // The variables of the image apply to a pod that requests no GPU.
    let outside = busybox_output("outside", &["env"]);
    assert!(own.iter().all(|line| outside.lines().any(|found| found == *line)), "{outside}");
    let env = busybox_output("loose", &["env"]);
    for line in ["CUDA_DEVICE_MEMORY_LIMIT_0=3000m", "CUDA_DISABLE_CONTROL=false", "NVIDIA_VISIBLE_DEVICES=void"] {
        let name = line.split('=').next().expect("a name");
        let found: Vec<&str> = env.lines().filter(|found| found.split('=').next() == Some(name)).collect();
        assert_eq!(found, [line]);
    }
    let devices = |pod: &str| {
        let all = busybox_output(pod, &["ls", "/dev"]);
        all.split_ascii_whitespace().filter(|name| name.starts_with("nvidia")).map(str::to_owned).collect::<Vec<_>>()
    };
    assert!(devices("loose").contains(&"nvidia1".to_owned()) && !devices("loose").contains(&"nvidia0".to_owned()));
    assert_eq!(devices("outside"), Vec::<String>::new());
}

/// Promise 30 in docs/specification.md: a pod with a wrong claim does not start, and its events say why.
#[test]
#[ignore = "needs cluster: tests/run"]
fn a_wrong_claim_does_not_start_and_an_event_on_its_pod_says_why() {
    let bed = Bed::up("sharing-refuse");
    let agent = bed.agent(&["--without-claim=refuse"]);
    check_refused_starts(&bed, &agent);
}

/// Two claims that do not fit together: the pod that started first keeps its devices, and the other pod is refused as
/// long as the first one runs. This also holds if the other pod has running containers without GPUs, and after a restart of
/// the agent, which then finds files of both pods.
#[test]
#[ignore = "needs cluster: tests/run"]
fn of_two_claims_for_the_same_memory_the_first_holds_over_a_restart_of_the_agent() {
    let bed = Bed::up("sharing-rivals");
    let mut agent = bed.agent(&[]);
    let gpus = Bed::gpus(&agent);
    // While the first container sleeps, the agent prefetches the files of the last container of both pods.
    let claims: [Claim<'_>; 3] = [("slow", "slow", &[]), ("plain", "app", &[]), ("main", "app", &[(1, 60_000, 30)])];
    let rivals = ["one", "two"];
    for name in rivals {
        bed.create(&bed.pod(name, &gpus, &claims, &NOTHING));
    }
    let runs = |name: &str, container: &str| {
        let pod = bed.admin.get(&["pod", name, "-n", &bed.space.name]);
        let states = pod["status"]["containerStatuses"].as_array().cloned().unwrap_or_default();
        states.iter().any(|state| state["name"] == *container && state["state"]["running"].is_object())
    };
    let first = eventually("one of the rivals", SOON, || rivals.into_iter().find(|name| runs(name, "main")));
    let second = if first == "one" { "two" } else { "one" };
    eventually("the plain container of the other pod", SOON, || runs(second, "plain").then_some(()));
    let uid =
        bed.admin.get(&["pod", second, "-n", &bed.space.name])["metadata"]["uid"].as_str().expect("a UID").to_owned();
    assert!(bed.state().join("pods").join(uid).exists(), "no files were prefetched for it");
    for round in 0..2 {
        // The kubelet retries the start every few seconds.
        agent.logs("MiB claimed by running pods");
        assert!(runs(first, "main") && !runs(second, "main"), "life {round}");
        agent.signal(9);
        drop(agent);
        agent = bed.agent(&[]);
    }
    assert_eq!(devices_in(&bed.limits(first, "main")), [(gpus[1].clone(), 60_000 << 20)]);
    let _ = bed.admin.run(&["delete", "pod", first, "-n", &bed.space.name, "--now"]).ok();
    bed.ready(&[second]);
    assert_eq!(devices_in(&bed.limits(second, "main")), [(gpus[1].clone(), 60_000 << 20)]);
}

/// Checks refused starts with an agent that refuses pods without a claim. The kubelet must fail none of these pods, because
/// their controller would create another pod at once.
pub(crate) fn check_refused_starts(bed: &Bed, agent: &Agent) {
    let gpus = Bed::gpus(agent);
    let one: [Claim<'_>; 1] = [("main", "app", &[(0, 3000, 30)])];
    let mut torn = bed.pod("torn", &gpus, &one, &NOTHING);
    torn["metadata"]["annotations"]["hami.io/vgpu-devices-allocated"] = "GPU-x,NVIDIA,many,30:;".into();
    let mut elsewhere = bed.pod("elsewhere", &gpus, &one, &NOTHING);
    elsewhere["metadata"]["annotations"]["hami.io/vgpu-node"] = "node-9".into();
    let mut missing = bed.pod("missing", &gpus, &one, &NOTHING);
    missing["metadata"]["annotations"]["hami.io/vgpu-devices-allocated"] = "GPU-none,NVIDIA,3000,30:;".into();
    let first = bed.pod("first", &gpus, &[("main", "app", &[(1, 60_000, 30)])], &NOTHING);
    let second = bed.pod("second", &gpus, &[("main", "app", &[(1, 60_000, 30)])], &NOTHING);
    let unplaced = bed.bare_pod("unplaced", &one, &NOTHING);
    // A claim without a limit on SM time fits beside every claim except one for all SM time.
    let unlimited = bed.pod("unlimited", &gpus, &[("main", "app", &[(0, 3000, 0)])], &NOTHING);
    let alone = bed.pod("alone", &gpus, &[("main", "app", &[(0, 3000, 100)])], &NOTHING);
    bed.create(&first);
    bed.create(&unlimited);
    bed.ready(&["first", "unlimited"]);
    for (name, pod, reason, words) in [
        ("torn", torn, "UnreadableClaim", "hami.io/vgpu-devices-allocated"),
        ("elsewhere", elsewhere, "UnreadableClaim", "node-9"),
        ("missing", missing, "NoSuchDevice", "GPU-none"),
        ("second", second, "DoesNotFit", "MiB claimed by running pods"),
        ("alone", alone, "NotAlone", "nvidia.com/gpucores: 100"),
        ("unplaced", unplaced, "NotPlaced", "--without-claim=share"),
    ] {
        bed.create(&pod);
        eventually(&format!("an event that says why {name} does not start"), SOON, || {
            let selector = format!("involvedObject.name={name}");
            let events = bed.admin.get(&["events", "-n", &bed.space.name, "--field-selector", &selector]);
            let matches = |event: &Value| {
                event["reason"] == reason && event["message"].as_str().unwrap_or_default().contains(words)
            };
            events["items"].as_array()?.iter().any(matches).then_some(())
        });
        let pod = bed.admin.get(&["pod", name, "-n", &bed.space.name]);
        assert_eq!(pod["status"]["phase"], "Pending", "{name}");
        let _ = bed.admin.run(&["delete", "pod", name, "-n", &bed.space.name, "--wait=false"]).ok();
    }
}

/// Promise 28 in docs/specification.md: every loss, one after the other, with the same pods. Only the long run has this test,
/// because `restarts` tests each loss alone.
#[test]
#[ignore = "takes minutes and a cluster: tests/run --long"]
fn containers_get_their_own_devices_over_every_restart_in_turn() {
    let bed = Bed::exclusive("sharing-restart");
    let mut agent = bed.agent(&[]);
    let gpus = Bed::gpus(&agent);
    let shape = |n: usize| ((n % 2), 1000 + 100 * n as u64, 5);
    let mut pods: Vec<(String, Value)> = Vec::new();
    for round in 0..4 {
        for _ in 0..3 {
            let n = pods.len();
            let name = format!("pod-{n}");
            let own = [shape(n)];
            let pod = bed.pod(&name, &gpus, &[("warm", "init", &own), ("main", "app", &own)], &NOTHING);
            bed.create(&pod);
            pods.push((name, pod));
        }
        match round {
            0 => {
                // This kill comes in the middle of the allocations.
                agent.signal(9);
                drop(agent);
                agent = bed.agent(&[]);
            }
            1 => {
                bed.part("kill", "kubelet");
                bed.part("start", "kubelet");
                agent.logs("registering again");
            }
            2 => {
                bed.part("kill", "containerd");
                bed.part("start", "containerd");
            }
            _ => {
                bed.cluster.part("kill", "apiserver");
                agent.signal(15);
                drop(agent);
                bed.cluster.part("start", "apiserver");
                agent = bed.agent(&[]);
            }
        }
    }
    // Each pod may fail once: the first three are created while the agent is killed, they and the next three exist when the
    // kubelet starts, three are created before it knows the plugin, and the last three while the agent ends. Failed pods
    // are recreated only now, after all restarts.
    let names: Vec<&str> = pods.iter().map(|(name, _)| name.as_str()).collect();
    println!("failed for good by kubelet: {:?}", bed.ready_with_retries(&pods, (names.len(), &names)));
    for (n, (name, _)) in pods.iter().enumerate() {
        let (gpu, mib, _) = shape(n);
        let limits = bed.limits(name, "main");
        assert_eq!(devices_in(&limits), [(gpus[gpu].clone(), mib * MIB)], "{name}: {limits}");
        assert_eq!(limits["pod"]["name"], **name);
    }
    // All slots are allocatable after all restarts.
    bed.registered(&agent);
    let node = bed.node_object();
    assert_eq!(node["status"]["allocatable"]["nvidia.com/gpu"], "20");
    // The agent removes the files of pods that are gone.
    let _ = bed.admin.run(&["delete", "pods", "--all", "-n", &bed.space.name, "--now"]).ok();
    let cdi = bed.paths().cdi.clone();
    eventually("the removal of the agent's CDI specs", Duration::from_secs(90), || {
        let ours = std::fs::read_dir(&cdi).ok()?.flatten();
        let ours = ours.filter(|entry| entry.file_name().to_string_lossy().starts_with("gpu-steward.io")).count();
        (ours == 0).then_some(())
    });
}

/// A pod without a claim, on a node where no scheduler has written claims, gets a share as with time-slicing.
#[test]
#[ignore = "needs cluster: tests/run"]
fn a_pod_without_a_claim_starts_on_a_node_that_no_scheduler_serves() {
    let bed = Bed::up("sharing-unplaced");
    let agent = bed.agent(&[]);
    let gpus = Bed::gpus(&agent);
    bed.create(&bed.bare_pod("plain", &[("main", "app", &[(0, 0, 0)])], &NOTHING));
    bed.ready(&["plain"]);
    let limits = bed.limits("plain", "main");
    let devices = devices_in(&limits);
    assert_eq!(devices.len(), 1);
    assert!(gpus.contains(&devices[0].0), "{limits}");
    eventually("the claim on the pod", SOON, || {
        let pod = bed.admin.get(&["pod", "plain", "-n", &bed.space.name]);
        let claim = pod["metadata"]["annotations"]["hami.io/vgpu-devices-allocated"].as_str()?.to_owned();
        claim.contains(&devices[0].0).then_some(())
    });
}

/// Each container of a pod without a claim gets its own devices, and the same devices when it restarts: the whole claim is
/// written on the pod.
#[test]
#[ignore = "needs cluster: tests/run"]
fn containers_of_a_pod_without_a_claim_get_the_same_devices_after_a_restart() {
    let bed = Bed::up("sharing-unplaced-many");
    let agent = bed.agent(&[]);
    let gpus = Bed::gpus(&agent);
    let one: &[(usize, u64, u32)] = &[(0, 0, 0)];
    let two: &[(usize, u64, u32)] = &[(0, 0, 0), (1, 0, 0)];
    let claims: [Claim<'_>; 4] =
        [("beside", "sidecar", one), ("none", "app", &[]), ("main", "app", one), ("both", "app", two)];
    bed.create(&bed.bare_pod("many", &claims, &NOTHING));
    bed.ready(&["many"]);
    let own = |container: &str| devices_in(&bed.limits("many", container));
    let first: Vec<(&str, Vec<(String, u64)>)> = ["beside", "main", "both"].map(|name| (name, own(name))).into();
    let claim = eventually("the whole claim on the pod", SOON, || {
        let pod = bed.admin.get(&["pod", "many", "-n", &bed.space.name]);
        Some(pod["metadata"]["annotations"]["hami.io/vgpu-devices-allocated"].as_str()?.to_owned())
    });
    let counts: Vec<usize> = claim.split(';').map(|own| own.matches(',').count() / 3).collect();
    assert_eq!(counts, [1, 0, 1, 2, 0], "{claim}");
    for (container, devices) in &first {
        assert!(devices.iter().all(|(gpu, bytes)| gpus.contains(gpu) && *bytes > 0), "{container}: {devices:?}");
        // The kill may end the shell too.
        drop(bed.admin.run(&["exec", "-n", &bed.space.name, "many", "-c", container, "--", "kill", "1"]));
    }
    let selector = "involvedObject.name=many";
    eventually("every container running again", SOON, || {
        let events = bed.admin.get(&["events", "-n", &bed.space.name, "--field-selector", selector]);
        let refused = |event: &&Value| event["reason"] == "UnreadableClaim" || event["reason"] == "CountDiffers";
        assert_eq!(events["items"].as_array()?.iter().find(refused), None);
        let status = bed.admin.get(&["pod", "many", "-n", &bed.space.name])["status"].clone();
        let all = ["initContainerStatuses", "containerStatuses"];
        let all = all.iter().filter_map(|list| status[list].as_array()).flatten().filter(|one| one["name"] != "none");
        let again = |one: &Value| one["restartCount"].as_u64() >= Some(1) && one["state"]["running"].is_object();
        (all.clone().count() == first.len() && all.clone().all(again)).then_some(())
    });
    for (container, devices) in first {
        assert_eq!(own(container), devices, "{container}");
    }
}
