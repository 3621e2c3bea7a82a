//! Pods with claims on this machine, and what each of their containers really has, read from its own process.

use super::{Machine, SOON};
use crate::bed::{Claim, EVICT, bare_pod, claimed, lost, promised};
use lab::cluster::TestNamespace;
use lab::eventually::eventually;
use lab::vm::NODE;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};

const MIB: u64 = 1 << 20;

/// Prints, for each container that runs: its id, its file of limits, its variables and the numbers of its device nodes.
pub(super) const LOOK: &str = r#"
for scope in $(find /sys/fs/cgroup/kubepods.slice -name 'cri-containerd-*.scope'); do
  pid=$(head -n 1 $scope/cgroup.procs) && [ -e "/proc/$pid/root/etc/gpu-steward/limits.json" ] || continue
  id=${scope##*cri-containerd-}
  printf '%s\t%s\t%s\t%s\n' "${id%.scope}" "$(tr -d '\n' </proc/$pid/root/etc/gpu-steward/limits.json)" \
    "$(tr '\0\n\t' '   ' </proc/$pid/environ)" "$(ls /proc/$pid/root/dev | sed -n 's/^nvidia\([0-9]*\)$/\1/p' | tr '\n' ' ')"
done"#;

/// What one running container has.
struct Has {
    limits: Value,
    variables: String,
    nodes: String,
}

/// Of a container: name, kind, and the GPU (by index) and MiB that it was promised.
type Share = (&'static str, &'static str, usize, u64);

/// Pods of a namespace on this machine, each with a claim that no other one has.
pub(super) struct Pods<'a> {
    machine: &'a Machine,
    space: TestNamespace,
    gpus: Vec<String>,
    /// By name.
    pods: Vec<(String, [Share; 2])>,
    /// Containers that ran when the pods were all Ready last.
    ran: BTreeSet<String>,
    /// Each says of itself what would loosen its limits, where nothing of a pod's own can.
    pub loose: bool,
    /// The pods that kubelet may fail until all run again, each of them once.
    may_fail: BTreeSet<String>,
}

impl<'a> Pods<'a> {
    pub(super) fn new(machine: &'a Machine, name: &str) -> Pods<'a> {
        let (space, gpus) = (machine.namespace(name), machine.gpus());
        Pods { machine, space, gpus, pods: Vec::new(), ran: BTreeSet::new(), loose: true, may_fail: BTreeSet::new() }
    }

    /// One more: an init container and this app, with shares that no other pod has.
    pub(super) fn add(&mut self, app: &'static str) {
        let n = self.pods.len();
        let (gpu, mib) = (n % self.gpus.len(), 1000 + 10 * n as u64);
        let containers = [("warm", "init", gpu, mib + 1), (app, "app", gpu, mib)];
        self.pods.push((format!("pod-{n}"), containers));
        self.create(n);
    }

    /// How many.
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
        let loose = if self.loose { loose } else { Value::Null };
        let pod = bare_pod((&self.space.name, name), NODE, &claims, &loose);
        let _ = self.machine.admin.create(&claimed(pod, &self.gpus, &claims).to_string()).ok();
    }

    fn list(&self) -> Vec<Value> {
        let list = self.machine.admin.get(&["pods", "-n", &self.space.name]);
        list["items"].as_array().expect("a list").clone()
    }

    /// The machine comes up: kubelet admits every pod that it finds on its node anew, and fails for good, or lets in without devices,
    /// those whose turn comes before it knows the plugin again. It asks nobody for them, so none of them gets anything wrong. Whoever
    /// comes later may not be failed.
    pub(super) fn admitted_anew(&mut self) {
        self.may_fail = self.pods.iter().map(|(name, _)| name.clone()).collect();
    }

    /// Waits until all run, in containers that did not run before `rebooted` was said, and each has its own. A pod that kubelet
    /// failed is made again, where it may fail; a second time it may not, and none is ever marked for eviction.
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
                if let Some(why) = lost(pod).filter(|_| pod["metadata"]["deletionTimestamp"].is_null()) {
                    assert!(self.may_fail.remove(name), "{name} may not fail, or not once more: {why}");
                    let _ = self.machine.admin.run(&["delete", "pod", name, "-n", &self.space.name, "--now"]).ok();
                }
            }
            let ids: BTreeMap<String, (String, String)> = list.iter().filter_map(app).collect();
            (ids.len() == self.pods.len() && ids.keys().all(|id| !self.ran.contains(id))).then_some(ids)
        });
        self.may_fail.clear();
        self.each_has_its_own(&running);
    }

    /// Whatever ran runs no more.
    pub(super) fn rebooted(&mut self) {
        self.ran = self.list().iter().filter_map(app).map(|(id, _)| id).collect();
    }

    /// Of each container, by its id: the pod's name and UID.
    fn each_has_its_own(&self, running: &BTreeMap<String, (String, String)>) {
        let look = self.machine.vm.sh(LOOK);
        let mut seen: BTreeMap<&str, Has> = look.lines().filter_map(has).collect();
        for (name, containers) in &self.pods {
            let (id, (_, uid)) = running.iter().find(|(_, (pod, _))| pod == name).expect("a container of each");
            let has = seen.remove(&**id).unwrap_or_else(|| panic!("{name} has no limits: {look}"));
            let log = ["logs", "-n", &self.space.name, name, "-c", "warm"];
            let said = eventually("what the init container printed", SOON, || {
                let said = self.machine.admin.run(&log).ok();
                (!said.is_empty()).then_some(said)
            });
            let warm: Value = serde_json::from_str(&said).unwrap_or_else(|error| panic!("{name}: {error}: {said}"));
            for ((container, _, gpu, mib), limits) in containers.iter().zip([&warm, &has.limits]) {
                assert_eq!(promised(limits), [(self.gpus[*gpu].clone(), mib * MIB)], "{name}: {limits}");
                assert_eq!((&limits["pod"]["uid"], &limits["container"]), (&json!(uid), &json!(container)), "{name}");
            }
            let (_, _, gpu, mib) = containers[1];
            let told: Vec<&str> =
                has.variables.split(' ').filter(|line| line.starts_with("CUDA_DEVICE_MEMORY_LIMIT_0=")).collect();
            assert_eq!(told, [format!("CUDA_DEVICE_MEMORY_LIMIT_0={mib}m")], "{name}");
            assert_eq!(has.nodes.trim(), gpu.to_string(), "{name}");
        }
        // Nobody else has anything.
        assert!(seen.is_empty(), "{:?} have limits and are no pod's", seen.keys());
    }

    /// Events of these reasons, as one text each.
    pub(super) fn events(&self, reasons: &[&str]) -> Vec<String> {
        let list = self.machine.admin.get(&["events", "-n", &self.space.name]);
        let events = list["items"].as_array().expect("a list").iter();
        let wanted = events.filter(|event| reasons.iter().any(|reason| event["reason"] == *reason));
        wanted.map(|event| format!("{}: {}", event["reason"], event["message"])).collect()
    }
}

/// The running container of a pod's app, with the pod's name and UID.
fn app(pod: &Value) -> Option<(String, (String, String))> {
    let state = &pod["status"]["containerStatuses"][0];
    let id = state["containerID"].as_str()?.trim_start_matches("containerd://").to_owned();
    let text = |field: &str| Some(pod["metadata"][field].as_str()?.to_owned());
    (state["state"]["running"].is_object() && pod["metadata"]["deletionTimestamp"].is_null())
        .then_some((id, (text("name")?, text("uid")?)))
}

fn has(line: &str) -> Option<(&str, Has)> {
    let mut parts = line.split('\t');
    let id = parts.next()?;
    let limits = serde_json::from_str(parts.next()?).unwrap_or_else(|error| panic!("{error}: {line}"));
    Some((id, Has { limits, variables: parts.next()?.to_owned(), nodes: parts.next()?.to_owned() }))
}
