//! A typical node of users: a machine with systemd, cgroup v2 and the kubelet's systemd driver (`tests/vm`). The
//! program is installed as `docs/operations.md` says and runs as the shipped unit.

mod devices;
mod fresh;
mod measures;
mod power;
mod sandbox;
mod shares;
mod unit;

use crate::built::binary;
use crate::chart;
use lab::cluster::TestNamespace;
use lab::eventually::eventually;
use lab::kubectl::Kubectl;
use lab::vm::{NODE, Vm};
use serde_json::{Value, json};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

/// QEMU emulates every instruction of the guest, on cores that other tests use too.
const SOON: Duration = Duration::from_secs(300);
const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../systemd");
const UNIT: &str = "/etc/systemd/system/gpu-steward.service";
const SERVICE: &str = "gpu-steward.service";
/// Two GPUs of ten slots.
const GPUS: &str = "GPU_STEWARD_GPUS=simulated=H100:2";
const SLOTS: &str = "20";

/// The machine with the program installed but not running, and without traces of an earlier test.
struct Machine {
    vm: Vm,
    admin: Kubectl,
}

impl Machine {
    fn up() -> Machine {
        let vm = Vm::up();
        let admin = vm.cluster().admin();
        let machine = Machine { vm, admin };
        eventually("the end of an earlier test's pods", SOON, || {
            let pods = machine.admin.get(&["pods", "-A"]);
            (pods["items"].as_array()?.is_empty()).then_some(())
        });
        machine.install();
        machine
    }

    /// Installs the program as `docs/operations.md` says.
    fn install(&self) {
        let file = std::fs::metadata(binary()).expect("the built program");
        let build_id = format!("{} {}", file.len(), file.mtime_nsec());
        let installed = self.vm.run("cat /usr/bin/gpu-steward.which");
        let _ = self.vm.run(&format!(
            "systemctl disable --now {SERVICE}; systemctl reset-failed {SERVICE}; rm -rf {UNIT}.d /etc/gpu-steward /var/lib/gpu-steward"
        ));
        if installed.out != build_id {
            self.vm.put(&std::fs::read(binary()).expect("the built program"), "755", "/usr/bin/gpu-steward");
            self.vm.put(build_id.as_bytes(), "644", "/usr/bin/gpu-steward.which");
        }
        self.vm.put(&shipped("gpu-steward.service"), "644", UNIT);
        self.settings(&[]);
    }

    /// Writes `/etc/default/gpu-steward`: the shipped lines, then these lines.
    fn settings(&self, lines: &[&str]) {
        let mut text = shipped("gpu-steward.env");
        text.extend_from_slice(lines.join("\n").as_bytes());
        text.push(b'\n');
        self.vm.put(&text, "644", "/etc/default/gpu-steward");
    }

    fn drop_in(&self, name: &str, text: &[u8]) {
        self.vm.put(text, "644", &format!("{UNIT}.d/{name}"));
    }

    /// Starts the unit, and returns when systemd reports that it is ready.
    fn start(&self) {
        let output = self.vm.run(&format!("systemctl daemon-reload && systemctl enable --now {SERVICE}"));
        assert_eq!(output.code, 0, "{}\n{}", output.out, self.log());
    }

    /// A property of the unit.
    fn show(&self, property: &str) -> String {
        self.vm.sh(&format!("systemctl show -P {property} {SERVICE}"))
    }

    /// The journal of the unit since the boot, including systemd's own lines about it.
    fn journal(&self) -> Vec<Value> {
        let text = self.vm.sh(&format!("journalctl --sync; journalctl -b -u {SERVICE} -o json --all"));
        text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
    }

    fn log(&self) -> String {
        self.vm.run(&format!("journalctl -b -u {SERVICE} --no-pager -o cat | tail -n 60")).out
    }

    /// The agent's answer on this path.
    fn get(&self, path: &str) -> String {
        let output = self.vm.run(&format!("curl -sS --max-time 20 http://127.0.0.1:9410{path}"));
        assert_eq!(output.code, 0, "{path}: {}\n{}", output.out, self.log());
        output.out
    }

    fn api(&self, path: &str) -> Value {
        serde_json::from_str(&self.get(path)).expect("JSON")
    }

    /// The UUIDs in the order of their index.
    fn gpus(&self) -> Vec<String> {
        let answer = self.api("/api/v1/gpus");
        let uuid = |gpu: &Value| gpu["uuid"].as_str().expect("a UUID").to_owned();
        answer["gpus"].as_array().expect("a list").iter().map(uuid).collect()
    }

    /// Writes the credentials of an agent outside a pod, as `docs/security.md` says: a kubeconfig and a token file.
    fn credentials(&self, bound: &[&str]) {
        let status = self.vm.cluster().status();
        self.vm.put(&std::fs::read(&status.ca).expect("the CA"), "644", "/etc/gpu-steward/ca.crt");
        let config = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "c",
            "clusters": [{ "name": "c", "cluster": {
                "server": status.server, "certificate-authority": "/etc/gpu-steward/ca.crt",
            } }],
            "users": [{ "name": "u", "user": { "tokenFile": "/var/lib/gpu-steward/token" } }],
            "contexts": [{ "name": "c", "context": { "cluster": "c", "user": "u" } }],
        });
        self.vm.put(config.to_string().as_bytes(), "600", "/etc/gpu-steward/kubeconfig");
        let token = chart::token(&self.admin, chart::AGENT, bound);
        self.vm.put(token.as_bytes(), "600", "/var/lib/gpu-steward/token");
    }

    /// Starts the agent as the device plugin of this node, with these settings, and waits until its GPUs are
    /// allocatable.
    fn share(&self, settings: &[&str]) {
        self.ready();
        chart::install(self.vm.cluster(), &[]);
        self.credentials(&["--bound-object-kind", "Node", "--bound-object-name", NODE]);
        self.drop_in("sharing.conf", &shipped("options/sharing.conf"));
        self.settings(&[&[GPUS, "GPU_STEWARD_KUBECONFIG=/etc/gpu-steward/kubeconfig"], settings].concat());
        self.start();
        self.registered();
    }

    /// Waits until the node is Ready.
    fn ready(&self) {
        eventually("the node to be Ready", SOON, || {
            let node = self.admin.run(&["get", "node", NODE, "-o", "json"]);
            let node: Value = serde_json::from_str(&node.out).ok()?;
            let ready = |one: &&Value| one["type"] == "Ready" && one["status"] == "True";
            node["status"]["conditions"].as_array()?.iter().find(ready)?;
            node["spec"]["taints"].is_null().then_some(())
        });
    }

    /// Waits until the kubelet knows the running agent and offers its GPUs.
    fn registered(&self) {
        eventually("allocatable GPUs", SOON, || {
            let answer = self.vm.run("curl -s --max-time 20 http://127.0.0.1:9410/api/v1/node");
            let answer: Value = serde_json::from_str(&answer.out).ok()?;
            let node = self.admin.get(&["node", NODE]);
            (answer["plugin"]["registered"] == true && node["status"]["allocatable"]["nvidia.com/gpu"] == SLOTS)
                .then_some(())
        });
    }

    fn namespace(&self, name: &str) -> TestNamespace {
        self.vm.cluster().namespace(name)
    }
}

/// A file below `systemd/`.
fn shipped(name: &str) -> Vec<u8> {
    std::fs::read(Path::new(FOLDER).join(name)).expect("a shipped file")
}
