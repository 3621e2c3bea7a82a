//! The names of pods and containers from several sources; the most trusted source comes first.

use model::cgroup::{ContainerName, MAX_CGROUPS, NameSource};
use model::id::{ContainerId, PodRef, PodUid};
use model::observation::ContainerDevices;
use model::pod::Pod;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// All known names. A new list from a source replaces its older list.
#[derive(Debug, Default)]
pub struct NameTable {
    by_source: BTreeMap<NameSource, HashMap<ContainerId, ContainerName>>,
    by_uid: HashMap<PodUid, PodRef>,
    /// Pods of the API server, by the UID that the kubelet uses for their cgroups.
    watched: HashMap<PodUid, PodRef>,
    gone: Gone,
    devices: HashMap<(PodRef, Arc<str>), Vec<Arc<str>>>,
}

/// Names that the API server no longer reports: a pod can be deleted there before its processes have ended.
#[derive(Debug, Default)]
struct Gone {
    containers: HashMap<ContainerId, ContainerName>,
    pods: HashMap<PodUid, PodRef>,
}

impl NameTable {
    /// Replaces the names from `source`.
    pub fn replace(&mut self, source: NameSource, names: Vec<ContainerName>) {
        self.by_source.insert(source, names.into_iter().map(|name| (name.id.clone(), name)).collect());
        self.by_uid.clear();
        for name in self.by_source.values().rev().flat_map(HashMap::values) {
            if let Some(uid) = &name.uid {
                self.by_uid.insert(uid.clone(), name.pod.clone());
            }
        }
    }

    /// Replaces the names from the API server. Names of pods and containers that it no longer reports are kept until
    /// [`NameTable::keep_living`] finds their cgroups gone.
    pub fn replace_pods(&mut self, pods: &[Arc<Pod>]) {
        let watched = pods.iter().map(|pod| (pod.cgroup_uid().clone(), pod.name.clone())).collect();
        let names = pods.iter().flat_map(|pod| container_names(pod)).map(|name| (name.id.clone(), name)).collect();
        let Gone { containers, pods } = &mut self.gone;
        let before = self.by_source.insert(NameSource::PodWatch, names).unwrap_or_default();
        containers.extend(before.into_iter().take(MAX_CGROUPS.saturating_sub(containers.len())));
        let before = std::mem::replace(&mut self.watched, watched);
        pods.extend(before.into_iter().take(MAX_CGROUPS.saturating_sub(pods.len())));
        if let Some(named) = self.by_source.get(&NameSource::PodWatch) {
            containers.retain(|id, _| !named.contains_key(id));
        }
        pods.retain(|uid, _| !self.watched.contains_key(uid));
    }

    /// Whether there are names that are kept only while a cgroup exists.
    #[must_use]
    pub fn has_names_of_gone_pods(&self) -> bool {
        !self.gone.containers.is_empty() || !self.gone.pods.is_empty()
    }

    /// Drops the names that the API server no longer reports, except the names of pods and containers that still exist.
    pub fn keep_living(&mut self, pod: impl Fn(&PodUid) -> bool, container: impl Fn(&ContainerId) -> bool) {
        self.gone.containers.retain(|id, _| container(id));
        self.gone.pods.retain(|uid, _| pod(uid));
    }

    /// Replaces the kubelet's list of devices.
    pub fn replace_devices(&mut self, devices: Vec<ContainerDevices>) {
        self.devices.clear();
        for given in devices {
            let pod = PodRef { namespace: given.namespace, name: given.pod };
            self.devices.entry((pod, given.container)).or_default().extend(given.ids);
        }
    }

    /// The names of a container, from the first source that knows it.
    #[must_use]
    pub fn of(&self, id: &ContainerId) -> Option<&ContainerName> {
        self.by_precedence().find_map(|names| names.get(id))
    }

    /// The image of a container, from the first source that has an image.
    #[must_use]
    pub fn image(&self, id: &ContainerId) -> Option<Arc<str>> {
        self.by_precedence().find_map(|names| names.get(id)?.image.clone())
    }

    /// The names from each source, the most trusted first. Names that the API server no longer reports come right after
    /// the names that it reports.
    fn by_precedence(&self) -> impl Iterator<Item = &HashMap<ContainerId, ContainerName>> {
        let watch = self.by_source.get(&NameSource::PodWatch);
        let others = self.by_source.iter().filter(|(source, _)| **source != NameSource::PodWatch);
        watch.into_iter().chain([&self.gone.containers]).chain(others.map(|(_, names)| names))
    }

    /// Devices that the kubelet gave to a container, by name.
    #[must_use]
    pub fn devices(&self, pod: &PodRef, container: &Arc<str>) -> Vec<Arc<str>> {
        self.devices.get(&(pod.clone(), Arc::clone(container))).cloned().unwrap_or_default()
    }

    /// The name of a pod by its UID, if a source reports a name, even if no container of the pod is known by id.
    #[must_use]
    pub fn pod(&self, uid: &PodUid) -> Option<&PodRef> {
        self.watched.get(uid).or_else(|| self.gone.pods.get(uid)).or_else(|| self.by_uid.get(uid))
    }
}

/// The names of the containers whose ids the kubelet has reported.
fn container_names(pod: &Pod) -> impl Iterator<Item = ContainerName> {
    pod.containers.iter().filter_map(|container| {
        Some(ContainerName {
            id: container.id.clone()?,
            uid: Some(pod.cgroup_uid().clone()),
            pod: pod.name.clone(),
            container: Some(Arc::clone(&container.name)),
            image: container.image.clone(),
        })
    })
}

/// Whether a device id of the kubelet names this GPU: the UUID itself, or one of its slots (`<uuid>-3`, `<uuid>::3`).
#[must_use]
pub fn device_is_of(device: &str, uuid: &str) -> bool {
    let Some(slot) = device.strip_prefix(uuid) else { return false };
    let number = slot.strip_prefix("::").or_else(|| slot.strip_prefix('-'));
    slot.is_empty() || number.is_some_and(|digits| !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(container: Option<&str>, image: Option<&str>) -> ContainerName {
        ContainerName {
            id: ContainerId::parse(&"ab".repeat(32)).unwrap(),
            uid: None,
            pod: PodRef { namespace: "ml".into(), name: "train-0".into() },
            container: container.map(Into::into),
            image: image.map(Into::into),
        }
    }

    #[test]
    fn the_runtime_has_precedence_over_the_log_links_and_each_fills_the_others_gaps() {
        let mut names = NameTable::default();
        names.replace(NameSource::LogLinks, vec![named(Some("link"), None)]);
        names.replace(NameSource::Cri, vec![named(Some("main"), Some("registry/train:1"))]);
        let id = ContainerId::parse(&"ab".repeat(32)).unwrap();
        assert_eq!(names.of(&id).unwrap().container.as_deref(), Some("main"));
        names.replace(NameSource::PodWatch, vec![named(Some("watched"), None)]);
        assert_eq!(names.of(&id).unwrap().container.as_deref(), Some("watched"));
        assert_eq!(names.image(&id).as_deref(), Some("registry/train:1"));
        names.replace(NameSource::PodWatch, vec![]);
        names.replace(NameSource::Cri, vec![]);
        assert_eq!(names.of(&id).unwrap().container.as_deref(), Some("link"), "a source may forget");
    }

    #[test]
    fn a_slot_belongs_to_exactly_one_gpu() {
        for (device, uuid, expect) in [
            ("GPU-aa", "GPU-aa", true),
            ("GPU-aa-3", "GPU-aa", true),
            ("GPU-aa::12", "GPU-aa", true),
            ("GPU-aab", "GPU-aa", false),
            ("GPU-aa-b", "GPU-aa", false),
            ("GPU-aa-", "GPU-aa", false),
            ("MIG-aa", "GPU-aa", false),
        ] {
            assert_eq!(device_is_of(device, uuid), expect, "{device} of {uuid}");
        }
    }
}
