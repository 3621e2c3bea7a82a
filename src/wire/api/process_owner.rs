//! The owner of a process, by name.

use model::cgroup::CgroupIdentity;
use model::id::{ContainerId, PodUid};
use model::process;
use model::view::{ContainerView, NodeView, PodView};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;

/// Pod and container of a process; unknown fields are `None`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ProcessOwnerJson {
    /// `pod`, `container` (of no pod), `host` or `unknown`.
    pub kind: String,
    /// UID of the pod.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pod_uid: Option<String>,
    /// Namespace of the pod.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// Name of the pod.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pod: Option<String>,
    /// Name of the container.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub container: Option<String>,
    /// Id of the container.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub container_id: Option<String>,
}

impl ProcessOwnerJson {
    /// The owner of a process of the host.
    #[must_use]
    pub fn host() -> ProcessOwnerJson {
        ProcessOwnerJson { kind: "host".to_owned(), ..ProcessOwnerJson::default() }
    }

    /// An unknown owner.
    #[must_use]
    pub fn unknown() -> ProcessOwnerJson {
        ProcessOwnerJson { kind: "unknown".to_owned(), ..ProcessOwnerJson::default() }
    }
}

/// The names of all pods and containers of a view, with lookup in constant time.
#[derive(Debug)]
pub struct OwnerNames<'a> {
    pods: HashMap<&'a PodUid, &'a PodView>,
    containers: HashMap<&'a ContainerId, &'a ContainerView>,
}

impl<'a> OwnerNames<'a> {
    /// The names of all pods and containers of `view`.
    #[must_use]
    pub fn of(view: &'a NodeView) -> OwnerNames<'a> {
        let pods = view.pods.iter().map(|pod| (&pod.uid, pod)).collect();
        let within = view.pods.iter().flat_map(|pod| &pod.containers);
        let containers = within.chain(&view.containers).map(|container| (&container.id, container)).collect();
        OwnerNames { pods, containers }
    }

    /// The pod with this UID.
    #[must_use]
    pub fn pod(&self, uid: &PodUid) -> Option<&'a PodView> {
        self.pods.get(uid).copied()
    }

    /// The owner of a process, by name.
    #[must_use]
    pub fn of_process(&self, owner: &process::ProcessOwner) -> ProcessOwnerJson {
        match owner {
            process::ProcessOwner::Cgroup(cgroup) => self.owner(cgroup),
            process::ProcessOwner::Host => ProcessOwnerJson::host(),
            process::ProcessOwner::Unknown => ProcessOwnerJson::unknown(),
        }
    }

    /// The pod and container of a cgroup, by name.
    #[must_use]
    pub fn owner(&self, cgroup: &CgroupIdentity) -> ProcessOwnerJson {
        let pod = cgroup.pod().and_then(|uid| self.pod(uid));
        let name = pod.and_then(|pod| pod.name.as_ref());
        let container = cgroup.container().and_then(|id| self.containers.get(id));
        ProcessOwnerJson {
            kind: if cgroup.pod().is_some() { "pod" } else { "container" }.to_owned(),
            pod_uid: cgroup.pod().map(ToString::to_string),
            namespace: name.map(|name| name.namespace.to_string()),
            pod: name.map(|name| name.name.to_string()),
            container: container.and_then(|container| container.name.as_ref()).map(ToString::to_string),
            container_id: cgroup.container().map(ToString::to_string),
        }
    }
}
