//! Tests what a container gets from a real kubelet and a real containerd: every kind of request, the edits of the host's CDI
//! spec, the limiter, and what happens if the agent cannot deliver the devices.

use crate::bed::{Bed, Claim, SOON, devices_in};
use lab::cluster::ClusterNode;
use lab::eventually::eventually;
use lab::scenario::{FakeGpu, FakeNvml, MigDetail, MigSlot, Scenario};
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

const MIB: u64 = 1 << 20;
const NOTHING: Value = Value::Null;

fn run(command: &mut Command) {
    let output = command.output().expect("the command can be run");
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
}

/// A folder like `/dev` of a machine with NVIDIA's driver. Every device node is a copy of `/dev/null`.
pub(crate) fn device_nodes(folder: &Path, names: &[&str]) -> PathBuf {
    let dev = folder.join("dev");
    for name in names {
        let path = dev.join(name);
        fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
        mknod(&path, 1, 3);
    }
    dev
}

/// Makes a character device node.
pub(crate) fn mknod(path: &Path, major: u32, minor: u32) {
    run(Command::new("mknod").arg(path).args(["c", &major.to_string(), &minor.to_string()]));
}

/// The messages of a pod's events with this reason.
pub(crate) fn events(bed: &Bed, pod: &str, reason: &str) -> Vec<String> {
    let selector = format!("involvedObject.name={pod},reason={reason}");
    let list = bed.admin.get(&["events", "-n", &bed.space.name, "--field-selector", &selector]);
    let items = list["items"].as_array().cloned().unwrap_or_default();
    items.iter().map(|event| event["message"].as_str().unwrap_or_default().to_owned()).collect()
}

/// A whole GPU, a share in percent, a priority. A pod without a claim gets what it requests.
#[test]
#[ignore = "needs cluster: tests/run"]
fn requests_of_every_shape_are_served() {
    let bed = Bed::up("container-shapes");
    let agent = bed.agent(&["--without-claim=share"]);
    let gpus = Bed::gpus(&agent);
    let whole = 81_559;
    let request = |more: &Value| {
        let mut limits = json!({ "nvidia.com/gpu": "1" });
        for (name, amount) in more.as_object().into_iter().flatten() {
            limits[name] = amount.clone();
        }
        json!({ "resources": { "limits": limits } })
    };
    let exclusive =
        json!({ "nvidia.com/gpumem-percentage": "100", "nvidia.com/gpucores": "100", "nvidia.com/priority": "0" });
    let one: [Claim<'_>; 1] = [("main", "app", &[(0, whole, 100)])];
    bed.create(&bed.pod("exclusive", &gpus, &one, &request(&exclusive)));
    bed.ready(&["exclusive"]);
    let limits = bed.limits("exclusive", "main");
    assert_eq!(devices_in(&limits), [(gpus[0].clone(), whole * MIB)]);
    assert_eq!((&limits["devices"][0]["core_percent"], &limits["priority"]), (&json!(100), &json!(0)), "{limits}");
    assert_eq!(bed.sh("exclusive", "main", "echo $CUDA_TASK_PRIORITY").trim(), "0");

    // The pod requests half of a GPU. The kubelet's choice of slots decides which GPU.
    let half = bed.bare_pod(
        "half",
        &[("main", "app", &[(0, 0, 0)])],
        &request(&json!({ "nvidia.com/gpumem-percentage": "50" })),
    );
    bed.create(&half);
    bed.ready(&["half"]);
    let limits = bed.limits("half", "main");
    let memory = devices_in(&limits)[0].1;
    let total = agent.get("/api/v1/gpus").text();
    let total: Value = serde_json::from_str(&total).expect("JSON");
    assert!((39_000 * MIB..=41_000 * MIB).contains(&memory), "half of a GPU: {limits} of {total:#}");
    assert!(limits.get("priority").is_none(), "{limits}");
    assert_eq!(bed.sh("half", "main", "echo $CUDA_TASK_PRIORITY").trim(), "1");
}

/// GPUs may be counted under a resource name of another domain, from the setting or from HAMi's file.
#[test]
#[ignore = "needs cluster: tests/run"]
fn a_resource_of_another_domain_is_shared_too() {
    let bed = Bed::up("container-name");
    let agent = bed.launch(&["--resource-name=example.com/vgpu"]);
    agent.logs("registered with kubelet");
    let gpus = Bed::gpus(&agent);
    let mut pod = bed.pod("other", &gpus, &[("main", "app", &[(1, 3000, 30)])], &NOTHING);
    pod["spec"]["containers"][0]["resources"]["limits"] = json!({ "example.com/vgpu": "1" });
    eventually("allocatable GPUs of that name", SOON, || {
        let node = bed.node_object();
        (node["status"]["allocatable"]["example.com/vgpu"] == "20").then_some(())
    });
    bed.create(&pod);
    bed.ready(&["other"]);
    assert_eq!(devices_in(&bed.limits("other", "main")), [(gpus[1].clone(), 3000 * MIB)]);
}

/// Existing MIG instances are shared by their own UUIDs, each with its own slots. A container sees the device node of
/// its instance only.
#[test]
#[ignore = "needs cluster: tests/run"]
fn each_mig_instance_is_shared_as_its_own_device() {
    let bed = Bed::up("container-mig");
    let folder = tempfile::tempdir().expect("a directory");
    let fake = FakeNvml::install(folder.path()).expect("the fake library");
    let uuids = ["MIG-5eed0000-0000-4000-8000-0000000000a0", "MIG-5eed0000-0000-4000-8000-0000000000a1"];
    let slot = |profile: &str, uuid: &str| {
        MigSlot::Detailed(MigDetail { profile: profile.into(), uuid: Some(uuid.into()), ..MigDetail::default() })
    };
    let gpu = FakeGpu {
        model: "A100".into(),
        mig: vec![slot("3g.40gb", uuids[0]), slot("2g.20gb", uuids[1])],
        ..FakeGpu::default()
    };
    fake.write(&Scenario { gpus: vec![gpu], ..Scenario::default() }).expect("a scenario");
    let caps = [
        "nvidia-caps/nvidia-cap21",
        "nvidia-caps/nvidia-cap22",
        "nvidia-caps/nvidia-cap30",
        "nvidia-caps/nvidia-cap31",
    ];
    let dev = device_nodes(folder.path(), &[&["nvidia0", "nvidiactl", "nvidia-uvm"][..], &caps].concat());
    let node = |name: &str| json!({ "path": format!("/dev/{name}"), "hostPath": dev.join(name) });
    let device = |name: &str, caps: &[&str]| {
        let nodes: Vec<Value> = std::iter::once("nvidia0").chain(caps.iter().copied()).map(node).collect();
        json!({ "name": name, "containerEdits": { "deviceNodes": nodes } })
    };
    let spec = json!({
        "cdiVersion": "0.5.0", "kind": "nvidia.com/gpu",
        "devices": [device("0:0", &caps[..2]), device("0:1", &caps[2..])],
        "containerEdits": { "env": ["NVIDIA_VISIBLE_DEVICES=void"] },
    });
    let cdi = folder.path().join("cdi");
    fs::create_dir(&cdi).expect("a folder");
    fs::write(cdi.join("nvidia.json"), spec.to_string()).expect("a spec");
    let library = format!("--nvml-library={}", fake.library().display());
    let flags = [
        "--gpus=nvml",
        &library,
        &format!("--dev-root={}", dev.display()),
        &format!("--host-cdi-dirs={}", cdi.display()),
        "--split-count=3",
    ];
    let _agent = bed.agent(&flags);
    assert_eq!(bed.node_object()["status"]["allocatable"]["nvidia.com/gpu"], "6");
    let instances: Vec<String> = uuids.map(str::to_owned).into();
    for (name, instance, own) in [("large", 0, &caps[..2]), ("small", 1, &caps[2..])] {
        bed.create(&bed.pod(name, &instances, &[("main", "app", &[(instance, 4000, 0)])], &NOTHING));
        bed.ready(&[name]);
        assert_eq!(devices_in(&bed.limits(name, "main")), [(instances[instance].clone(), 4000 * MIB)]);
        let seen = bed.sh(
            name,
            "main",
            "cd /dev; ls -d nvidia* nvidia-caps/* | sort | tr '\\n' ' '; echo $NVIDIA_VISIBLE_DEVICES",
        );
        assert_eq!(seen.trim(), format!("nvidia-caps {} nvidia-uvm nvidia0 nvidiactl void", own.join(" ")), "{name}");
    }
}

/// Promise 34 in docs/specification.md: each container gets the edits that nvidia-ctk wrote for this host, and containers
/// that start after a driver update get the new edits.
#[test]
#[ignore = "needs cluster: tests/run"]
fn every_container_gets_the_edits_of_the_hosts_cdi_spec() {
    let bed = Bed::up("container-host");
    let folder = tempfile::tempdir().expect("a directory");
    let fake = FakeNvml::install(folder.path()).expect("the fake library");
    fake.write(&Scenario { gpus: vec![FakeGpu { count: 2, ..FakeGpu::default() }], ..Scenario::default() })
        .expect("a scenario");
    let dev = device_nodes(folder.path(), &["nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm"]);
    let cdi = folder.path().join("cdi");
    fs::create_dir(&cdi).expect("a folder");
    let write = |version: &str| {
        let library = folder.path().join(format!("libcuda.so.{version}"));
        fs::write(&library, format!("driver {version}\n")).expect("a library");
        let text = format!(
            "cdiVersion: 0.5.0\nkind: nvidia.com/gpu\ncontainerEdits:\n  env: [NVIDIA_VISIBLE_DEVICES=void, DRIVER={version}]\n  \
             mounts: [{{hostPath: {}, containerPath: /usr/lib/libcuda.so.1, options: [ro, nosuid, nodev, bind]}}]\ndevices:\n- \
             name: all\n  containerEdits:\n    deviceNodes: [{{path: /dev/nvidia0, hostPath: {dev}/nvidia0}}, {{path: /dev/nvidia1, hostPath: \
             {dev}/nvidia1}}, {{path: /dev/nvidiactl, hostPath: {dev}/nvidiactl}}]\n",
            library.display(),
            dev = dev.display(),
        );
        let next = cdi.join(".nvidia.yaml.new");
        fs::write(&next, text).expect("a spec");
        fs::rename(next, cdi.join("nvidia.yaml")).expect("a spec");
    };
    write("550.54.15");
    let flags = [
        "--gpus=nvml",
        &format!("--nvml-library={}", fake.library().display()),
        &format!("--dev-root={}", dev.display()),
        &format!("--host-cdi-dirs={}", cdi.display()),
        "--cri-socket",
        "/run/containerd/containerd.sock",
    ];
    let agent = bed.agent(&flags);
    agent.logs("containers with a GPU get the edits of the host's CDI spec");
    // The cluster's containerd reports its configuration.
    agent.logs("because=\"the runtime's default handler\"");
    let gpus = Bed::gpus(&agent);
    let script = "cat /usr/lib/libcuda.so.1; echo $DRIVER; ls /dev | grep nvidia | sort | tr '\\n' ' '";
    let start = |name: &str| {
        bed.create(&bed.pod(name, &gpus, &[("main", "app", &[(1, 3000, 30)])], &NOTHING));
        bed.ready(&[name]);
        bed.sh(name, "main", script)
    };
    assert_eq!(start("before").trim(), "driver 550.54.15\n550.54.15\nnvidia-uvm nvidia1 nvidiactl");
    write("570.00.00");
    eventually("the new file in use", SOON, || {
        (agent.log().matches("containers with a GPU get the edits of the host's CDI spec").count() == 2).then_some(())
    });
    assert_eq!(start("after").trim(), "driver 570.00.00\n570.00.00\nnvidia-uvm nvidia1 nvidiactl");
    assert_eq!(bed.sh("before", "main", script).trim(), "driver 550.54.15\n550.54.15\nnvidia-uvm nvidia1 nvidiactl");
    fs::write(cdi.join("nvidia.yaml"), "kind: [").expect("a broken spec");
    agent.logs("this CDI spec cannot be used");
    assert_eq!(
        start("without").lines().last().map(str::trim),
        Some("nvidia-uvm nvidia1 nvidiactl"),
        "device nodes are added without the file too"
    );
}

/// Builds a library in place of HAMi-core that only reports that it was loaded.
pub(crate) fn build_fake_limiter(library: &Path, word: &str) {
    let (source, next) = (library.with_extension("c"), library.with_extension("next"));
    let text = format!(
        "#include <unistd.h>\n__attribute__((constructor)) static void loaded(void) {{ write(2, \"limiter {word}\\n\", {}); }}\n",
        word.len() + 9
    );
    fs::write(&source, text).expect("a source");
    run(Command::new("cc").args(["-shared", "-fPIC", "-o"]).arg(&next).arg(&source));
    fs::rename(next, library).expect("a library");
}

/// Promise 34 in docs/specification.md: every program of the container loads the limiter's library. Another version on
/// the host changes nothing for a running pod, and a version that no pod uses any more is removed.
#[test]
#[ignore = "needs cluster: tests/run"]
fn the_limiter_is_loaded_and_its_update_affects_no_running_pod() {
    let bed = Bed::up("container-limiter");
    let folder = tempfile::tempdir().expect("a directory");
    let library = folder.path().join("libvgpu.so");
    let compile = |word: &str| build_fake_limiter(&library, word);
    compile("one");
    // This program is linked to libc. The shell of the other pods is static and loads no library.
    let sleep = ["/usr/bin/sleep", "/bin/sleep"].into_iter().find(|path| Path::new(path).exists()).expect("sleep");
    bed.cluster.image("registry.local/linked:1", sleep, &[]);
    let flag = format!("--limiter-library={}", library.display());
    let agent = bed.agent(&[&flag]);
    let gpus = Bed::gpus(&agent);
    let start = |name: &str, linked: bool| {
        let mut pod = bed.pod(name, &gpus, &[("main", "app", &[(0, 3000, 5)])], &NOTHING);
        if linked {
            pod["spec"]["containers"][0]["image"] = "registry.local/linked:1".into();
            pod["spec"]["containers"][0]["command"] = json!(["/bin/sleep", "100000"]);
        }
        bed.create(&pod);
        bed.ready(&[name]);
    };
    let logs = |name: &str| bed.admin.run(&["logs", "-n", &bed.space.name, name]).ok();
    start("first", false);
    start("loads-one", true);
    assert_eq!(logs("loads-one"), "limiter one\n", "the dynamic linker has loaded it");
    let seen =
        bed.sh("first", "main", "cat /etc/ld.so.preload; cat /overrideEnv; echo $CUDA_DEVICE_MEMORY_SHARED_CACHE");
    for line in ["/usr/local/vgpu/libvgpu.so", "CUDA_DEVICE_MEMORY_LIMIT_0=3000m", "CUDA_DEVICE_SM_LIMIT_0=5"] {
        assert!(seen.lines().any(|found| found == line), "{line}: {seen}");
    }
    let output = bed.sh(
        "first",
        "main",
        "for f in /etc/ld.so.preload /overrideEnv /usr/local/vgpu/libvgpu.so; do (echo x >$f) 2>&1; rm -f $f 2>&1; done; \
         echo own >$CUDA_DEVICE_MEMORY_SHARED_CACHE && echo held >/tmp/vgpulock/lock && cat $CUDA_DEVICE_MEMORY_SHARED_CACHE; true",
    );
    assert_eq!(output.matches("Read-only file system").count(), 3, "{output}");
    assert!(output.ends_with("own\n"), "the library's folders are writable: {output}");

    let before = bed.sh("first", "main", "cat /usr/local/vgpu/libvgpu.so | grep -c 'limiter one'");
    compile("two");
    agent.logs("another version of the limiter's library");
    start("second", false);
    start("loads-two", true);
    assert_eq!(logs("loads-two"), "limiter two\n");
    assert_eq!(bed.sh("first", "main", "cat /usr/local/vgpu/libvgpu.so | grep -c 'limiter one'"), before);
    assert_eq!(bed.sh("second", "main", "grep -c 'limiter two' /usr/local/vgpu/libvgpu.so").trim(), "1");
    let versions = || {
        let entries = fs::read_dir(bed.state().join("limiter")).expect("a folder").flatten();
        entries.filter(|entry| entry.file_name().to_string_lossy().starts_with("libvgpu.so.")).count()
    };
    assert_eq!(versions(), 2);
    let _ = bed.admin.run(&["delete", "pods", "first", "loads-one", "-n", &bed.space.name, "--now"]).ok();
    eventually("the end of a version that no pod uses", SOON, || (versions() == 1).then_some(()));
    assert_eq!(bed.sh("second", "main", "grep -c 'limiter two' /usr/local/vgpu/libvgpu.so").trim(), "1");
}

/// The ticket of a pod's only container, from the kubelet's checkpoint.
fn ticket(bed: &Bed, pod: &str) -> String {
    let state = bed.admin.get(&["pod", pod, "-n", &bed.space.name]);
    let checkpoint = fs::read(&bed.paths().checkpoint).expect("the checkpoint");
    let checkpoint: Value = serde_json::from_slice(&checkpoint).expect("JSON");
    let entries = checkpoint["Data"]["PodDeviceEntries"].as_array().expect("entries");
    let own = entries.iter().find(|entry| entry["PodUID"] == state["metadata"]["uid"]).expect("an entry of the pod");
    let answer = format!("printf %s '{}' | base64 -d", own["AllocResp"].as_str().expect("a text"));
    let answer = Command::new("sh").args(["-c", &answer]).output().expect("base64");
    let answer = String::from_utf8_lossy(&answer.stdout).into_owned();
    answer.split("gpu=").nth(1).expect("a ticket").chars().take(33).collect()
}

/// A mount over a node's folder of CDI specs. It is removed when this is dropped, even if the test fails.
struct CoveredFolder<'a>(&'a ClusterNode);

impl Drop for CoveredFolder<'_> {
    fn drop(&mut self) {
        let _ = self.0.command("umount").arg("/run/cdi").output();
    }
}

/// Promise 30 in docs/specification.md: if the folder of CDI specs cannot be written, or another spec already has the
/// ticket, the container does not start. Log and event name the pod, the container and the reason. When the cause is
/// removed, the pod starts with the devices of its claim.
#[test]
#[ignore = "needs cluster: tests/run"]
fn devices_that_cannot_be_delivered_are_reported_and_come_when_the_cause_is_gone() {
    let bed = Bed::up("container-undelivered");
    let agent = bed.agent(&["--without-claim=refuse"]);
    let gpus = Bed::gpus(&agent);
    let node = bed.paths();
    let cdi = node.path("/run/cdi");
    let one: [Claim<'_>; 1] = [("main", "app", &[(0, 3000, 30)])];
    let in_node = |words: &[&str]| run(node.command(words[0]).args(&words[1..]));
    // An operator reads this line as "the container has its devices", so it is logged after the delivery and never before.
    let deliveries = |pod: &str| {
        let of_pod = format!("pod=container-undelivered/{pod} container=main");
        let log = agent.log();
        log.lines().filter(|line| line.contains("container devices delivered") && line.contains(&of_pod)).count()
    };
    let refused = |pod: &str, words: &str| {
        eventually(&format!("an event that says why {pod} does not start"), SOON, || {
            let messages = events(&bed, pod, "NotDelivered");
            messages.iter().any(|text| text.contains("container main") && text.contains(words)).then_some(())
        });
        let fields = format!("pod=container-undelivered/{pod} container=main");
        assert!(
            agent.log().lines().any(|line| line.contains(&fields) && line.contains(words)),
            "{fields} {words}: {}",
            agent.log()
        );
        let state = bed.admin.get(&["pod", pod, "-n", &bed.space.name]);
        assert_ne!(state["status"]["phase"], "Running", "{state}");
        assert_eq!(deliveries(pod), 0, "{}", agent.log());
    };
    let starts = |pod: &str| {
        bed.ready(&[pod]);
        assert_eq!(devices_in(&bed.limits(pod, "main")), [(gpus[0].clone(), 3000 * MIB)]);
        assert_eq!(deliveries(pod), 1, "{}", agent.log());
    };

    let covered = CoveredFolder(node);
    in_node(&["mount", "-o", "bind", "/run/cdi", "/run/cdi"]);
    in_node(&["mount", "-o", "remount,bind,ro", "/run/cdi"]);
    bed.create(&bed.pod("locked", &gpus, &one, &NOTHING));
    refused("locked", "Read-only file system");
    drop(covered);
    starts("locked");

    let covered = CoveredFolder(node);
    in_node(&["mount", "-t", "tmpfs", "-o", "size=4k", "full", "/run/cdi"]);
    fs::write(cdi.join("other"), [0; 4096]).expect("the folder is filled");
    bed.create(&bed.pod("full", &gpus, &one, &NOTHING));
    refused("full", "No space left on device");
    drop(covered);
    starts("full");

    // The ticket is known once it is in the kubelet's checkpoint. The start is refused until the pod has its claim.
    bed.create(&bed.bare_pod("doubled", &one, &NOTHING));
    eventually("the refusal", SOON, || (!events(&bed, "doubled", "NotPlaced").is_empty()).then_some(()));
    let ticket = ticket(&bed, "doubled");
    let other = cdi.join("other.json");
    let spec = json!({
        "cdiVersion": "0.5.0", "kind": "gpu-steward.io/gpu",
        "devices": [{ "name": ticket, "containerEdits": { "env": ["CUDA_DEVICE_MEMORY_LIMIT=0"] } }],
    });
    fs::write(&other, spec.to_string()).expect("another spec");
    let claim = format!("hami.io/vgpu-devices-allocated={},NVIDIA,3000,30:;", gpus[0]);
    let _ = bed.admin.run(&["annotate", "pod", "doubled", "-n", &bed.space.name, &claim]).ok();
    refused("doubled", "other.json");
    fs::remove_file(&other).expect("the other spec is removed");
    starts("doubled");
}
