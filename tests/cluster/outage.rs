//! Tests what works during an outage of the API server, and what the agent catches up on afterwards.

use crate::bed::{Bed, SOON};
use crate::built::binary;
use crate::chart;
use crate::fleet::Fleet;
use crate::life::sleeper;
use crate::restarts::{TOTAL, number, wait_for_registration};
use lab::agent::{Agent, Recipe};
use lab::cluster::TestNamespace;
use lab::eventually::eventually;
use serde_json::{Value, json};
use std::path::PathBuf;
use std::time::{Duration, Instant};

const FLAGS: [&str; 1] = ["--without-claim=share"];
const CLAIM: &str = "hami.io/vgpu-devices-allocated";

/// A pod whose container starts when the gate opens: the kubelet has admitted the pod, but its first container waits.
pub(crate) struct GatedPod<'a> {
    bed: &'a Bed,
    name: &'static str,
    folder: PathBuf,
}

impl GatedPod<'_> {
    /// A gated pod that requests a GPU and has no claim.
    fn without_claim<'a>(bed: &'a Bed, name: &'static str) -> GatedPod<'a> {
        GatedPod::of(bed, name, bed.bare_pod(name, &[("main", "app", &[(0, 0, 0)])], &Value::Null))
    }

    /// A gated copy of this pod, which must have no init container. Returns when the copy waits at the gate.
    pub(crate) fn of<'a>(bed: &'a Bed, name: &'static str, mut pod: Value) -> GatedPod<'a> {
        let gated = GatedPod { bed, name, folder: bed.dir().join(name) };
        std::fs::create_dir(&gated.folder).expect("a folder");
        pod["spec"]["volumes"] = json!([{ "name": "gate", "hostPath": { "path": gated.folder } }]);
        pod["spec"]["initContainers"] = json!([{
            "name": "gate", "image": "registry.local/busybox:1",
            "command": ["sh", "-c", "while ! test -e /gate/open; do sleep 0.2; done"],
            "volumeMounts": [{ "name": "gate", "mountPath": "/gate" }],
        }]);
        // A claim has an entry for each container, init containers first, so the gate gets an empty entry.
        if let Some(claim) = pod["metadata"]["annotations"][CLAIM].as_str() {
            pod["metadata"]["annotations"][CLAIM] = format!(";{claim}").into();
        }
        bed.create(&pod);
        eventually("the gate", SOON, || {
            let now = gated.now();
            now["status"]["initContainerStatuses"][0]["state"]["running"].is_object().then_some(())
        });
        gated
    }

    fn now(&self) -> Value {
        self.bed.admin.get(&["pod", self.name, "-n", &self.bed.space.name])
    }

    pub(crate) fn open(&self) {
        std::fs::write(self.folder.join("open"), b"").expect("the gate opens");
    }

    /// The pod's claim, once it is written on the pod.
    fn claim(&self) -> String {
        let claim = eventually("the share on the pod", SOON, || {
            self.now()["metadata"]["annotations"][CLAIM].as_str().map(str::to_owned)
        });
        assert_eq!(self.now()["metadata"]["annotations"]["gpu-steward.io/placed-by"], "agent");
        claim
    }
}

/// Two outages with the same pods, because each outage takes a minute.
///
/// Promise 28 in docs/specification.md: running pods keep running through restarts of the agent and one of the kubelet, and
/// pods that are created afterwards start. A container that starts during an outage has a claim that the agent cannot write on
/// its pod. The agent writes the claim when the API server is back, without another start, even if the agent that delivered
/// the devices was killed before. Pods keep their names.
#[test]
#[ignore = "needs cluster alone: tests/run"]
fn an_outage_of_the_api_server_changes_nothing_for_pods() {
    let bed = Bed::exclusive("outage");
    let agent = bed.agent(&FLAGS);
    let named = NamedPods::of(&bed);
    let mut fleet = Fleet::new(&bed, &agent);
    for _ in 0..6 {
        fleet.add_pod();
    }
    fleet.settle();
    let (late, later) = (GatedPod::without_claim(&bed, "late"), GatedPod::without_claim(&bed, "later"));
    check_short_outage(&bed, &agent, &late, &named);
    let (agent, away) = check_long_outage(&bed, agent, &later, &mut fleet);
    for _ in 0..4 {
        fleet.add_pod();
    }
    fleet.settle();
    fleet.check_all_slots(TOTAL);
    fleet.print_record(&format!("API server away for {} s", away.as_secs()));
    drop(agent);
    named.end(&bed);
}

/// How many containers this agent has given their devices.
fn deliveries(agent: &Agent) -> usize {
    agent.log().matches("container devices delivered").count()
}

fn wait_for_delivery(agent: &Agent, before: usize) {
    eventually("the start during the outage", SOON, || (deliveries(agent) == before + 1).then_some(()));
}

/// One agent runs through the whole outage.
fn check_short_outage(bed: &Bed, agent: &Agent, late: &GatedPod<'_>, named: &NamedPods) {
    let before = deliveries(agent);
    bed.cluster.part("kill", "apiserver");
    late.open();
    wait_for_delivery(agent, before);
    agent.logs("cannot write to the API server: which devices this pod has");
    named.wait_for_watch("broken");
    assert!(named.shown("sleeper").is_some(), "a name is lost");
    bed.cluster.part("start", "apiserver");
    bed.ready(&["late"]);
    assert_eq!(late.claim().matches("NVIDIA").count(), 1);
    assert_eq!(deliveries(agent), before + 1, "one start");
    agent.logs("it is written now: which devices this pod has");
    named.wait_for_watch("following");
}

/// The agent is killed, the next one is ended by SIGTERM, and the kubelet is killed. Returns the agent that runs at the end.
fn check_long_outage(bed: &Bed, agent: Agent, later: &GatedPod<'_>, fleet: &mut Fleet<'_>) -> (Agent, Duration) {
    let (began, away) = (Instant::now(), number(Duration::from_secs(30), Duration::from_secs(300)));
    let before = deliveries(&agent);
    bed.cluster.part("kill", "apiserver");
    later.open();
    wait_for_delivery(&agent, before);
    agent.signal(9);
    drop(agent);
    let agent = bed.launch(&FLAGS);
    agent.signal(15);
    drop(agent);
    let agent = bed.launch(&FLAGS);
    std::thread::sleep(away.saturating_sub(began.elapsed()));
    // The kubelet does not start without the API server. So it is killed during the outage and started afterwards.
    let before = Bed::registrations(&agent);
    bed.part("kill", "kubelet");
    bed.cluster.part("start", "apiserver");
    agent.logs("this pod's claim is not in its annotation yet");
    assert_eq!(later.claim().matches("NVIDIA").count(), 1);
    assert_eq!(deliveries(&agent), 0, "no other start");
    // The kubelet admits every pod of its node again, and knows no plugin for a second or two. A pod that is created later
    // may not fail.
    fleet.may_fail(fleet.len(), &fleet.names());
    bed.part("start", "kubelet");
    wait_for_registration(&agent, before);
    bed.registered(&agent);
    (agent, away)
}

/// A pod, and a static pod whose cgroup has another UID than its mirror pod, on their own node. The agent's only source of
/// names is the API server, with the rights of the chart's agent.
struct NamedPods {
    agent: Agent,
    space: TestNamespace,
    manifest: PathBuf,
    mirror: String,
}

impl NamedPods {
    fn of(bed: &Bed) -> NamedPods {
        let node = bed.cluster.status().nodes.iter().find(|node| node.name != *bed.node()).expect("another node");
        let space = bed.cluster.namespace("names");
        let manifest = node.manifests.join("fixed.yaml");
        let mirror = format!("fixed-{}", node.name);
        let named = NamedPods { agent: NamedPods::agent(bed, &node.name), space, manifest, mirror };
        let _ = bed.admin.apply(&sleeper(&named.space.name, "sleeper", &node.name)).ok();
        let pod = eventually("the pod by its name", SOON, || {
            let main = |pod: &Value| pod["containers"].as_array().is_some_and(|list| list.iter().any(is_main));
            named.shown("sleeper").filter(main)
        });
        let object = bed.admin.get(&["pod", "sleeper", "-n", &named.space.name]);
        assert_eq!(pod["uid"], object["metadata"]["uid"]);
        let main = pod["containers"].as_array().unwrap().iter().find(|one| is_main(one)).unwrap();
        assert_eq!(main["image"], "registry.local/busybox:1");
        let id = object["status"]["containerStatuses"][0]["containerID"].as_str().unwrap();
        assert_eq!(format!("containerd://{}", main["id"].as_str().unwrap()), id);

        // The kubelet would read text that begins with a brace as JSON.
        std::fs::write(&named.manifest, format!("---\n{}", sleeper(&named.space.name, "fixed", ""))).unwrap();
        let fixed = eventually("the static pod by its mirror's name", SOON, || named.shown(&named.mirror));
        let mirror = bed.admin.get(&["pod", &named.mirror, "-n", &named.space.name]);
        assert_ne!(fixed["uid"], mirror["metadata"]["uid"], "kubelet names the cgroup after the manifest");
        named
    }

    /// An agent with a token that is bound to the node.
    fn agent(bed: &Bed, node: &str) -> Agent {
        let status = bed.cluster.status();
        let token = chart::bound(&bed.cluster, chart::AGENT, node);
        let config = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "lab",
            "clusters": [{"name": "lab", "cluster": {"server": status.server, "certificate-authority": status.ca}}],
            "users": [{"name": "lab", "user": {"token": token}}],
            "contexts": [{"name": "lab", "context": {"cluster": "lab", "user": "lab"}}],
        });
        let recipe = Recipe::of(&binary());
        let path = recipe.dir().join("kubeconfig");
        std::fs::write(&path, config.to_string()).unwrap();
        recipe.with("--gpus", "none").with("--node-name", node).with("--kubeconfig", path).start()
    }

    fn shown(&self, name: &str) -> Option<Value> {
        let pods = self.agent.get(&format!("/api/v1/pods?namespace={}&pod={name}", self.space.name)).json();
        pods["pods"].as_array().unwrap().first().cloned()
    }

    fn wait_for_watch(&self, state: &str) {
        eventually(&format!("a watch that is {state}"), SOON, || {
            (self.agent.get("/api/v1/node").json()["pod_watch"]["state"] == *state).then_some(())
        });
    }

    /// Pods that are gone lose their names.
    fn end(self, bed: &Bed) {
        std::fs::remove_file(&self.manifest).unwrap();
        let _ = bed.admin.run(&["delete", "pod", "sleeper", "-n", &self.space.name]).ok();
        for name in ["sleeper", &self.mirror] {
            eventually("the end of the pod", SOON, || self.shown(name).is_none().then_some(()));
        }
        let log = self.agent.terminate().log;
        assert!(!log.contains("a pod cannot be read") && !log.contains("panicked"), "{log}");
    }
}

fn is_main(container: &Value) -> bool {
    container["name"] == "main"
}
