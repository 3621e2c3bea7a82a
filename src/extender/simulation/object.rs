//! The pods and Nodes of the simulated cluster, and how the API server shows them.

use super::weather::SECOND;
use model::claim::Claim;
use model::id::{GpuUuid, PodUid};
use model::request::ContainerRole;
use model::time::WallTime;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use wire::annotation_keys::ALLOCATED;

/// The namespace of all pods.
pub(super) const NAMESPACE: &str = "ml";

/// The annotation that keeps a claim which a person overwrites by hand.
const KEPT_CLAIM: &str = "example.com/claim-before";
/// The priority of pods that nothing preempts (`system-node-critical`).
pub(super) const SYSTEM: i32 = 2_000_001_000;

/// What a container asks for.
#[derive(Clone, Debug)]
pub(super) struct ContainerShape {
    pub(super) name: String,
    pub(super) role: ContainerRole,
    pub(super) gpus: u32,
    /// Memory of each GPU in MiB; 0 if the container names none.
    pub(super) mib: u64,
    /// Percent of SM time; 0 if the container names none.
    pub(super) cores: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ContainerIs {
    Waiting,
    Running,
    Terminated,
}

/// A pod as it is stored.
#[derive(Clone, Debug)]
pub(super) struct SimPod {
    pub(super) uid: PodUid,
    pub(super) name: String,
    /// Seconds.
    pub(super) created: u64,
    pub(super) node: Option<String>,
    /// The node on which kube-scheduler has made room for the pod.
    pub(super) nominated: Option<String>,
    pub(super) priority: i32,
    pub(super) annotations: BTreeMap<String, String>,
    /// Init containers first.
    pub(super) shape: Arc<[ContainerShape]>,
    pub(super) deleted: bool,
    pub(super) phase: &'static str,
    pub(super) containers: Vec<ContainerIs>,
    /// The pod has scheduling gates.
    pub(super) gated: bool,
    /// The hash of the manifest, if the pod is the mirror of a static pod.
    pub(super) hash: Option<PodUid>,
    /// When the pod's claim was made unreadable, or readable again, by hand; nanoseconds.
    pub(super) tampered: u64,
}

/// How much of a GPU is taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Taken {
    pub(super) mib: u64,
    pub(super) cores: u64,
    pub(super) containers: u64,
    /// Containers that claim all SM time.
    pub(super) whole: u64,
}

impl Taken {
    pub(super) fn plus(self, other: Taken) -> Taken {
        Taken {
            mib: self.mib + other.mib,
            cores: self.cores + other.cores,
            containers: self.containers + other.containers,
            whole: self.whole + other.whole,
        }
    }

    fn most(self, other: Taken) -> Taken {
        Taken {
            mib: self.mib.max(other.mib),
            cores: self.cores.max(other.cores),
            containers: self.containers.max(other.containers),
            whole: self.whole.max(other.whole),
        }
    }
}

impl SimPod {
    /// A pod that was just created.
    pub(super) fn new(uid: PodUid, name: String, shape: Vec<ContainerShape>, at: u64) -> SimPod {
        SimPod {
            uid,
            name,
            created: at / SECOND,
            node: None,
            nominated: None,
            priority: 0,
            annotations: BTreeMap::new(),
            containers: vec![ContainerIs::Waiting; shape.len()],
            shape: shape.into(),
            deleted: false,
            phase: "Pending",
            gated: false,
            hash: None,
            tampered: 0,
        }
    }

    /// The pod in which an extender runs.
    pub(super) fn of_extender(uid: PodUid, place: usize, at: u64) -> SimPod {
        let pod = SimPod::new(uid, format!("extender-at-{place}"), Vec::new(), at);
        SimPod { node: Some("control-plane".to_owned()), priority: SYSTEM, phase: "Running", ..pod }
    }

    /// The mirror of a static pod of this machine.
    pub(super) fn mirror(uid: PodUid, hash: PodUid, shape: Vec<ContainerShape>, (node, at): (&str, u64)) -> SimPod {
        let pod = SimPod::new(uid, format!("static-{node}"), shape, at);
        let keys = ["kubernetes.io/config.hash", "kubernetes.io/config.mirror"];
        let annotations = keys.map(|key| (key.to_owned(), hash.to_string())).into();
        SimPod { node: Some(node.to_owned()), priority: SYSTEM, annotations, hash: Some(hash), ..pod }
    }

    /// The UID by which the kubelet and the agent know it.
    pub(super) fn local_uid(&self) -> &PodUid {
        self.hash.as_ref().unwrap_or(&self.uid)
    }

    /// Whether kube-scheduler asks the extender about the pod.
    pub(super) fn is_managed(&self) -> bool {
        self.shape.iter().any(|container| container.gpus > 0 || container.mib > 0)
    }

    /// Whether an extender runs in the pod.
    pub(super) fn is_extender(&self) -> bool {
        self.shape.is_empty()
    }

    pub(super) fn ended(&self) -> bool {
        matches!(self.phase, "Succeeded" | "Failed")
    }

    pub(super) fn started(&self) -> bool {
        self.shape.iter().zip(&self.containers).any(|(shape, is)| shape.gpus > 0 && *is != ContainerIs::Waiting)
    }

    /// The number of GPUs that kube-scheduler counts: the sum of the app containers, or the largest init container.
    pub(super) fn slots(&self) -> u64 {
        let taken = |shape: &ContainerShape| Taken { containers: shape.gpus.into(), ..Taken::default() };
        moments(&self.shape, |at| taken(&self.shape[at])).containers
    }

    /// The pod after a person has overwritten its claim by hand, or has put it back.
    pub(super) fn tampered(&self, at: u64, garbage: &str) -> SimPod {
        let mut pod = SimPod { tampered: at, ..self.clone() };
        if let Some(claim) = pod.annotations.remove(KEPT_CLAIM) {
            pod.annotations.insert(ALLOCATED.to_owned(), claim);
        } else if let Some(claim) = pod.annotations.insert(ALLOCATED.to_owned(), garbage.to_owned()) {
            pod.annotations.insert(KEPT_CLAIM.to_owned(), claim);
        }
        pod
    }

    /// Whether the pod's claim was overwritten by hand.
    pub(super) fn is_unreadable(&self) -> bool {
        self.annotations.contains_key(KEPT_CLAIM)
    }

    /// The claim that stands on the pod.
    pub(super) fn claim(&self) -> Option<Claim> {
        let counts: Vec<u32> = self.shape.iter().map(|shape| shape.gpus).collect();
        wire::claim::decode(ALLOCATED, self.annotations.get(ALLOCATED)?).ok()?.by_container(&counts).ok()
    }

    /// What a claim of this pod takes of each GPU. It is computed here anew, because the product's own sums are under test.
    pub(super) fn takes(&self, claim: &Claim) -> BTreeMap<GpuUuid, Taken> {
        let devices: BTreeSet<&GpuUuid> = claim.shares().map(|share| &share.device).collect();
        let of = |device: &GpuUuid, at: usize| {
            let shares = claim.get(at).into_iter().flatten().filter(|share| share.device == *device);
            shares.fold(Taken::default(), |sum, share| {
                let cores = share.cores.map_or(0, |cores| u64::from(cores.0));
                let mib = share.memory.map_or(0, |memory| memory.0 >> 20);
                sum.plus(Taken { mib, cores, containers: 1, whole: u64::from(cores >= 100) })
            })
        };
        devices.into_iter().map(|device| (device.clone(), moments(&self.shape, |at| of(device, at)))).collect()
    }

    /// The JSON of the API server.
    pub(super) fn text(&self, version: u64) -> String {
        let mut metadata = json!({
            "name": self.name, "namespace": NAMESPACE, "uid": self.uid.as_str(), "resourceVersion": version.to_string(),
            "creationTimestamp": wire::timestamp::to_rfc3339(WallTime(self.created * 1_000_000)),
            "annotations": self.annotations,
        });
        if self.hash.is_some() {
            let owner =
                json!({ "apiVersion": "v1", "kind": "Node", "name": self.node, "uid": "node", "controller": true });
            metadata["ownerReferences"] = json!([owner]);
        }
        if self.deleted {
            metadata["deletionTimestamp"] = metadata["creationTimestamp"].clone();
        }
        let [mut spec, mut status] = [json!({ "priority": self.priority }), json!({ "phase": self.phase })];
        spec["schedulerName"] = "gpu-steward".into();
        if let Some(node) = &self.node {
            spec["nodeName"] = node.as_str().into();
        }
        if self.gated {
            spec["schedulingGates"] = json!([{ "name": "example.com/queue" }]);
        }
        if let Some(node) = &self.nominated {
            status["nominatedNodeName"] = node.as_str().into();
        }
        let [mut init, mut app, mut init_is, mut app_is] = [const { Vec::new() }; 4];
        for (shape, is) in self.shape.iter().zip(&self.containers) {
            let (list, list_is) =
                if shape.role == ContainerRole::App { (&mut app, &mut app_is) } else { (&mut init, &mut init_is) };
            list.push(shape.json());
            list_is.push(is.json(&shape.name));
        }
        (spec["initContainers"], spec["containers"]) = (init.into(), app.into());
        (status["initContainerStatuses"], status["containerStatuses"]) = (init_is.into(), app_is.into());
        json!({ "metadata": metadata, "spec": spec, "status": status }).to_string()
    }
}

impl ContainerShape {
    fn json(&self) -> Value {
        let mut limits = json!({});
        if self.gpus > 0 {
            limits["nvidia.com/gpu"] = self.gpus.to_string().into();
        }
        if self.mib > 0 {
            limits["nvidia.com/gpumem"] = self.mib.to_string().into();
        }
        if self.gpus > 0 && self.cores > 0 {
            limits["nvidia.com/gpucores"] = self.cores.to_string().into();
        }
        let mut container = json!({ "name": self.name, "resources": { "limits": limits } });
        if self.role == ContainerRole::Sidecar {
            container["restartPolicy"] = "Always".into();
        }
        container
    }
}

impl ContainerIs {
    fn json(self, name: &str) -> Value {
        let state = match self {
            ContainerIs::Waiting => return json!({ "name": name, "state": { "waiting": {} } }),
            ContainerIs::Running => json!({ "running": {} }),
            ContainerIs::Terminated => json!({ "terminated": {} }),
        };
        json!({ "name": name, "containerID": format!("containerd://{:064x}", 7), "state": state })
    }
}

/// The most that is taken at any moment: init containers run one after the other, together with the sidecars before them,
/// then all other containers run together.
fn moments(shape: &[ContainerShape], of: impl Fn(usize) -> Taken) -> Taken {
    let (mut beside, mut most) = (Taken::default(), Taken::default());
    for (at, container) in shape.iter().enumerate() {
        match container.role {
            ContainerRole::Init => most = most.most(beside.plus(of(at))),
            ContainerRole::Sidecar | ContainerRole::App => beside = beside.plus(of(at)),
        }
    }
    most.most(beside)
}

/// A Node as it is stored.
#[derive(Clone, Debug)]
pub(super) struct SimNode {
    pub(super) uid: String,
    pub(super) name: String,
    pub(super) annotations: BTreeMap<String, String>,
}

impl SimNode {
    pub(super) fn text(&self, version: u64) -> String {
        json!({ "kind": "PartialObjectMetadata", "metadata": {
            "name": self.name, "uid": self.uid, "resourceVersion": version.to_string(), "annotations": self.annotations,
        } })
        .to_string()
    }
}
