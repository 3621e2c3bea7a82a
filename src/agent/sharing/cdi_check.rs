//! Checks that the first containers that start really have the devices of their tickets, because a runtime may ignore
//! CDI devices.

use model::cgroup::CgroupIdentity;
use model::id::{ContainerKey, PodRef, PodUid};
use model::nvidia;
use model::pod::{ContainerState, Pod, PodContainer, PodList};
use model::view::NodeView;
use sources::roots::HostRoots;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tokio::task::spawn_blocking;
use tokio::time::sleep;

/// Pause between two looks at the container.
const PAUSE: Duration = Duration::from_secs(1);
/// After this many looks at a container, the check ends without a result. The runtime may have to pull the image first.
const MAX_LOOKS: u32 = 120;
/// A running container counts as without devices after this many looks that found no devices. One look is not enough:
/// for some milliseconds the first process of a container still sees the runtime's own mounts.
const ENOUGH_LOOKS: u32 = 3;

/// The result of a check.
#[derive(Debug)]
pub(crate) struct CdiCheckResult {
    /// The container.
    pub key: ContainerKey,
    /// The pod's namespace and name.
    pub pod: PodRef,
    /// Whether the container has its limits file; `None` if the check could not see its mounts.
    pub has: Option<bool>,
}

/// The containers that were checked or are being checked.
#[derive(Debug, Default)]
pub(crate) struct CdiChecks {
    running: BTreeSet<ContainerKey>,
    known: BTreeSet<ContainerKey>,
    /// Namespaces in which a container was seen without its devices; no more than [`ENOUGH_NAMESPACES`].
    without: BTreeSet<Arc<str>>,
    /// Whether a container was seen with its devices since the first ticket was issued.
    pub seen: bool,
}

/// The agent concludes that the runtime ignores CDI when containers in this many namespaces lack their devices. One
/// namespace is not enough: its owner must not be able to close the node for others.
const ENOUGH_NAMESPACES: usize = 2;
/// Maximum number of the first containers that are checked at the same time. One is not enough: a container may be slow
/// to start, or wait for an init container that never ends.
const AT_ONCE: usize = 8;
/// Maximum number of containers that are checked at once: four in each of 110 pods, the kubelet's default maximum.
/// Further containers are checked later.
const MAX_CHECKS: usize = 512;

impl CdiChecks {
    /// Whether this container must be checked as one of the first. If so, marks it as being checked.
    pub(super) fn is_due_first(&mut self, key: &ContainerKey) -> bool {
        !self.seen && self.running.len() < AT_ONCE && self.is_due(key)
    }

    /// Whether this container must be checked if every container is to be. If so, marks it as being checked.
    pub(super) fn is_due(&mut self, key: &ContainerKey) -> bool {
        self.running.len() < MAX_CHECKS && !self.known.contains(key) && self.running.insert(key.clone())
    }

    /// Records that a check has ended. A container whose mounts could not be seen may be checked again.
    pub(super) fn ended(&mut self, key: &ContainerKey, known: bool) {
        self.running.remove(key);
        if known {
            self.known.insert(key.clone());
        }
    }

    /// Records that a container of this pod was seen without its devices. Returns whether the runtime now counts as
    /// ignoring CDI: containers in [`ENOUGH_NAMESPACES`] namespaces were without devices, and no container had devices.
    pub(super) fn lacks(&mut self, pod: &PodRef) -> bool {
        if self.seen {
            return false;
        }
        if self.without.len() < ENOUGH_NAMESPACES {
            self.without.insert(Arc::clone(&pod.namespace));
        }
        self.without.len() >= ENOUGH_NAMESPACES
    }

    /// Records that a container was seen with its devices. Returns whether it is the first such container.
    pub(super) fn has(&mut self) -> bool {
        self.without.clear();
        !std::mem::replace(&mut self.seen, true)
    }

    /// Forgets all pods except these.
    pub(super) fn forget(&mut self, here: &BTreeSet<&PodUid>) {
        self.known.retain(|key| here.contains(&key.pod));
    }

    /// Starts over when CDI begins to work: earlier results no longer count.
    pub(super) fn begin(&mut self) {
        self.known.clear();
        self.without.clear();
        self.seen = false;
    }
}

/// Checks one container until the result is known, or until `MAX_LOOKS` is reached.
pub(super) async fn watch(
    (key, pod): (ContainerKey, PodRef),
    roots: HostRoots,
    (view, pods): (watch::Receiver<Arc<NodeView>>, watch::Receiver<Option<Arc<PodList>>>),
    results: mpsc::Sender<CdiCheckResult>,
) {
    let mut without = 0;
    let mut has = None;
    for _ in 0..MAX_LOOKS {
        sleep(PAUSE).await;
        let seen = {
            let (view, pods) = (view.borrow(), pods.borrow());
            pods.as_ref().and_then(|pods| running_cgroup(&key, &view, pods))
        };
        let Some((cgroup, conclusive)) = seen else { continue };
        if !conclusive {
            break;
        }
        let roots = roots.clone();
        let look = spawn_blocking(move || sources::arrival::mounted(&roots, &cgroup.path, wire::limits::PATH));
        match look.await.ok().flatten() {
            Some(true) => {
                has = Some(true);
                break;
            }
            Some(false) => without += 1,
            None => {}
        }
        if without >= ENOUGH_LOOKS {
            has = Some(false);
            break;
        }
    }
    let _ = results.send(CdiCheckResult { key, pod, has }).await;
}

/// The cgroup of a running container, and whether a missing mount proves that the container never had the mount.
fn running_cgroup(key: &ContainerKey, view: &NodeView, pods: &PodList) -> Option<(Arc<CgroupIdentity>, bool)> {
    let pod = pods.pods.iter().find(|pod| *pod.cgroup_uid() == key.pod)?;
    let container = pod.containers.iter().find(|container| container.name == key.container)?;
    let id = container.id.as_ref().filter(|_| container.state == ContainerState::Running)?;
    let seen = view.pods.iter().find(|pod| pod.uid == key.pod)?;
    let seen = seen.containers.iter().find(|seen| seen.id == *id)?;
    Some((Arc::clone(&seen.cgroup), is_conclusive(pod, container)))
}

/// Whether the container's mounts show how the runtime of this node handles CDI devices. The mounts in a sandbox
/// (Kata, gVisor) are not visible from the host, and a container that is allowed to mount may have changed its mounts.
fn is_conclusive(pod: &Pod, container: &PodContainer) -> bool {
    !container.may_mount && pod.runtime_class.as_ref().is_none_or(|class| class.starts_with(nvidia::RUNTIME_CLASSES))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_first_containers_are_checked_once_each_until_one_was_seen_with_its_devices() {
        let key =
            |n: usize| ContainerKey { pod: PodUid::parse(&format!("{n:032x}")).unwrap(), container: "main".into() };
        let mut checks = CdiChecks::default();
        assert!(checks.is_due_first(&key(0)));
        checks.ended(&key(0), true);
        assert!(!checks.is_due_first(&key(0)), "its result is known");
        assert_eq!((1..20).filter(|n| checks.is_due_first(&key(*n))).count(), AT_ONCE);
        checks.ended(&key(1), false);
        assert!(!checks.is_due_first(&key(2)), "its check runs");
        assert!(checks.is_due_first(&key(1)) && !checks.is_due_first(&key(19)), "it could not be seen");
        assert!(checks.is_due(&key(19)) && !checks.is_due(&key(19)) && !checks.is_due(&key(0)));
        checks.seen = true;
        (0..20).for_each(|n| checks.ended(&key(n), true));
        assert!(!checks.is_due_first(&key(20)));
        checks.forget(&BTreeSet::from([&key(3).pod]));
        assert!(checks.is_due(&key(4)) && !checks.is_due(&key(3)));
        checks.begin();
        assert!(checks.is_due_first(&key(20)));
    }

    #[test]
    fn the_runtime_counts_as_without_cdi_when_containers_of_two_namespaces_lack_their_devices() {
        let pod = |namespace: &str, name: &str| PodRef { namespace: namespace.into(), name: name.into() };
        let mut checks = CdiChecks::default();
        assert!(!checks.lacks(&pod("a", "one")) && !checks.lacks(&pod("a", "two")) && !checks.lacks(&pod("a", "one")));
        assert!(checks.lacks(&pod("b", "one")));
        assert!(checks.lacks(&pod("a", "three")), "two namespaces are still without");
        assert!(checks.has() && !checks.has());
        assert!(
            !checks.lacks(&pod("a", "one")) && !checks.lacks(&pod("b", "one")),
            "a container was seen with its devices"
        );
        checks.begin();
        assert!(!checks.lacks(&pod("b", "one")));
        assert!(checks.lacks(&pod("a", "one")));
    }

    #[test]
    fn the_mounts_of_a_sandbox_and_of_a_container_that_may_mount_are_not_conclusive() {
        let adds = |name: &str| json!({ "capabilities": { "drop": ["ALL"], "add": ["NET_RAW", name] } });
        for (class, context, expect) in [
            (None, json!(null), true),
            (None, json!({ "privileged": false, "capabilities": { "add": null } }), true),
            (Some("nvidia-cdi"), json!(null), true),
            (Some("kata-qemu"), json!(null), false),
            (None, json!({ "privileged": true }), false),
            (Some("nvidia"), json!({ "privileged": true }), false),
            (None, adds("SYS_PTRACE"), true),
            (None, adds("SYS_ADMIN"), false),
            (None, adds("cap_sys_admin"), false),
            (Some("nvidia"), adds("ALL"), false),
        ] {
            let pod = json!({
                "metadata": { "name": "p", "namespace": "n", "uid": "0b0d8d3c-6b5e-4f3c-9a5e-1d2f3a4b5c6d" },
                "spec": {
                    "runtimeClassName": class,
                    "containers": [{ "name": "main", "securityContext": context }],
                },
            });
            let pod = wire::pod::decode(pod.to_string().as_bytes()).expect("a pod");
            assert_eq!(is_conclusive(&pod, &pod.containers[0]), expect, "{class:?} {context}");
        }
    }
}
