//! Pods with claims on this machine, and the devices that each of their containers really has, read from its own process.

use super::{Machine, SOON};
use crate::bed::{Claim, EVICT, bare_pod, devices_in, failure_of, with_claim};
use lab::cluster::TestNamespace;
use lab::eventually::eventually;
use lab::vm::NODE;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};

const MIB: u64 = 1 << 20;

/// Prints for each running container: its id, its limits file, its variables and the numbers of its device nodes.
pub(super) const READ_CONTAINERS: &str = r#"
for scope in $(find /sys/fs/cgroup/kubepods.slice -name 'cri-containerd-*.scope'); do
  pid=$(head -n 1 $scope/cgroup.procs) && [ -e "/proc/$pid/root/etc/gpu-steward/limits.json" ] || continue
  id=${scope##*cri-containerd-}
  printf '%s\t%s\t%s\t%s\n' "${id%.scope}" "$(tr -d '\n' </proc/$pid/root/etc/gpu-steward/limits.json)" \
    "$(tr '\0\n\t' '   ' </proc/$pid/environ)" "$(ls /proc/$pid/root/dev | sed -n 's/^nvidia\([0-9]*\)$/\1/p' | tr '\n' ' ')"
done"#;

/// The devices and variables of one running container.
struct ContainerState {
    limits: Value,
    variables: String,
    nodes: String,
}

/// A container: name, kind, and the GPU (by index) and MiB of its device share.
type TestContainer = (&'static str, &'static str, usize, u64);

/// Pods of a namespace on this machine, each with a claim that no other pod has.
pub(super) struct Pods<'a> {
    machine: &'a Machine,
    space: TestNamespace,
    gpus: Vec<String>,
    /// Name and containers of each pod.
    pods: Vec<(String, [TestContainer; 2])>,
    /// Ids of the containers that ran before `rebooted`.
    ran: BTreeSet<String>,
    /// The pods that the kubelet may fail before all run again, each at most once.
    may_fail: BTreeSet<String>,
}

impl<'a> Pods<'a> {
    pub(super) fn new(machine: &'a Machine, name: &str) -> Pods<'a> {
        let (space, gpus) = (machine.namespace(name), machine.gpus());
        Pods { machine, space, gpus, pods: Vec::new(), ran: BTreeSet::new(), may_fail: BTreeSet::new() }
    }

    /// Adds a pod: an init container and this app container, with device shares that no other pod has.
    pub(super) fn add(&mut self, app: &'static str) {
        let n = self.pods.len();
        let (gpu, mib) = (n % self.gpus.len(), 1000 + 10 * n as u64);
        let containers = [("warm", "init", gpu, mib + 1), (app, "app", gpu, mib)];
        self.pods.push((format!("pod-{n}"), containers));
        self.create(n);
    }

    /// The number of pods.
    pub(super) fn count(&self) -> usize {
        self.pods.len()
    }

    fn create(&self, n: usize) {
        let (name, containers) = &self.pods[n];
        let devices: Vec<[(usize, u64, u32); 1]> =
            containers.iter().map(|(_, _, gpu, mib)| [(*gpu, *mib, 1)]).collect();
        let claims: Vec<Claim<'_>> =
            containers.iter().zip(&devices).map(|((name, kind, ..), devices)| (*name, *kind, &devices[..])).collect();
        let loose = json!({ "env": [{ "name": "CUDA_DEVICE_MEMORY_LIMIT_0", "value": "999999m" }] });
        let pod = bare_pod((&self.space.name, name), NODE, &claims, &loose);
        let _ = self.machine.admin.create(&with_claim(pod, &self.gpus, &claims).to_string()).ok();
    }

    fn list(&self) -> Vec<Value> {
        let list = self.machine.admin.get(&["pods", "-n", &self.space.name]);
        list["items"].as_array().expect("a list").clone()
    }

    /// The machine boots: the kubelet admits every pod of its node again. Pods that it admits before it knows the
    /// plugin fail, or never run, because it never calls `Allocate` for them. So no pod gets wrong devices. Pods that are
    /// created later may not fail.
    pub(super) fn kubelet_readmits_all(&mut self) {
        self.may_fail = self.pods.iter().map(|(name, _)| name.clone()).collect();
    }

    /// Waits until all pods run, in containers that did not run before `rebooted`, and checks the devices of each. A
    /// pod that may fail is recreated once. No pod may be marked for eviction.
    pub(super) fn settle(&mut self) {
        let running = eventually("every pod to run", SOON, || {
            let list = self.list();
            for n in 0..self.pods.len() {
                let name = &self.pods[n].0;
                let Some(pod) = list.iter().find(|pod| pod["metadata"]["name"] == **name) else {
                    self.create(n);
                    continue;
                };
                assert!(pod["metadata"]["annotations"][EVICT].is_null(), "{pod:#}");
                if let Some(why) = failure_of(pod).filter(|_| pod["metadata"]["deletionTimestamp"].is_null()) {
                    assert!(self.may_fail.remove(name), "{name} may not fail, or not twice: {why}");
                    let _ = self.machine.admin.run(&["delete", "pod", name, "-n", &self.space.name, "--now"]).ok();
                }
            }
            let ids: BTreeMap<String, (String, String)> = list.iter().filter_map(running_app).collect();
            (ids.len() == self.pods.len() && ids.keys().all(|id| !self.ran.contains(id))).then_some(ids)
        });
        self.may_fail.clear();
        self.check_containers(&running);
    }

    /// Records that no container that ran before still runs.
    pub(super) fn rebooted(&mut self) {
        self.ran = self.list().iter().filter_map(running_app).map(|(id, _)| id).collect();
    }

    /// Checks the devices of each container. `running` has the pod's name and UID by container id.
    fn check_containers(&self, running: &BTreeMap<String, (String, String)>) {
        let output = self.machine.vm.sh(READ_CONTAINERS);
        let mut seen: BTreeMap<&str, ContainerState> = output.lines().filter_map(parse_state).collect();
        for (name, containers) in &self.pods {
            let (id, (_, uid)) = running.iter().find(|(_, (pod, _))| pod == name).expect("a container of each");
            let state = seen.remove(&**id).unwrap_or_else(|| panic!("{name} has no limits: {output}"));
            let log = ["logs", "-n", &self.space.name, name, "-c", "warm"];
            let printed = eventually("the output of the init container", SOON, || {
                let printed = self.machine.admin.run(&log).ok();
                (!printed.is_empty()).then_some(printed)
            });
            let warm: Value =
                serde_json::from_str(&printed).unwrap_or_else(|error| panic!("{name}: {error}: {printed}"));
            for ((container, _, gpu, mib), limits) in containers.iter().zip([&warm, &state.limits]) {
                assert_eq!(devices_in(limits), [(self.gpus[*gpu].clone(), mib * MIB)], "{name}: {limits}");
                assert_eq!((&limits["pod"]["uid"], &limits["container"]), (&json!(uid), &json!(container)), "{name}");
            }
            let (_, _, gpu, mib) = containers[1];
            let found: Vec<&str> =
                state.variables.split(' ').filter(|line| line.starts_with("CUDA_DEVICE_MEMORY_LIMIT_0=")).collect();
            assert_eq!(found, [format!("CUDA_DEVICE_MEMORY_LIMIT_0={mib}m")], "{name}");
            assert_eq!(state.nodes.trim(), gpu.to_string(), "{name}");
        }
        // No other container has limits.
        assert!(seen.is_empty(), "{:?} have limits but belong to no pod", seen.keys());
    }

    /// The events with these reasons: reason and message.
    pub(super) fn events(&self, reasons: &[&str]) -> Vec<String> {
        let list = self.machine.admin.get(&["events", "-n", &self.space.name]);
        let events = list["items"].as_array().expect("a list").iter();
        let matching = events.filter(|event| reasons.iter().any(|reason| event["reason"] == *reason));
        matching.map(|event| format!("{}: {}", event["reason"], event["message"])).collect()
    }
}

/// The id of the running app container of a pod, with the pod's name and UID.
fn running_app(pod: &Value) -> Option<(String, (String, String))> {
    let state = &pod["status"]["containerStatuses"][0];
    let id = state["containerID"].as_str()?.trim_start_matches("containerd://").to_owned();
    let text = |field: &str| Some(pod["metadata"][field].as_str()?.to_owned());
    (state["state"]["running"].is_object() && pod["metadata"]["deletionTimestamp"].is_null())
        .then_some((id, (text("name")?, text("uid")?)))
}

fn parse_state(line: &str) -> Option<(&str, ContainerState)> {
    let mut parts = line.split('\t');
    let id = parts.next()?;
    let limits = serde_json::from_str(parts.next()?).unwrap_or_else(|error| panic!("{error}: {line}"));
    Some((id, ContainerState { limits, variables: parts.next()?.to_owned(), nodes: parts.next()?.to_owned() }))
}
