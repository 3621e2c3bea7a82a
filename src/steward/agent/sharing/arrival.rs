//! Late binding rests on the runtime: whether the first container that starts really has what its ticket stands for.

use model::cgroup::CgroupIdentity;
use model::id::PodRef;
use model::pod::{ContainerState, Pod, PodContainer, PodList};
use model::share::ContainerKey;
use model::view::NodeView;
use sources::roots::HostRoots;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tokio::task::spawn_blocking;
use tokio::time::sleep;

/// Between two looks at the container.
const LOOK: Duration = Duration::from_secs(1);
/// Looks, before nothing is known: its image may have to be fetched first.
const LOOKS: u32 = 120;
/// Looks at a running container that agree before it is said that nothing arrived: the first process of a container is for
/// some milliseconds still in the runtime's own view.
const SURE: u32 = 3;

/// What the classes of NVIDIA's own runtime are called: `nvidia`, `nvidia-cdi`, `nvidia-legacy`.
const NVIDIAS: &str = "nvidia";

/// What was seen.
#[derive(Debug)]
pub(crate) struct Arrived {
    /// Whose.
    pub key: ContainerKey,
    /// The pod's names.
    pub pod: PodRef,
    /// Whether it has its limits; `None` where that could not be seen.
    pub has: Option<bool>,
}

/// Looks until it is known.
pub(super) async fn watch(
    (key, pod): (ContainerKey, PodRef),
    roots: HostRoots,
    (view, pods): (watch::Receiver<Arc<NodeView>>, watch::Receiver<Option<Arc<PodList>>>),
    say: mpsc::Sender<Arrived>,
) {
    let mut without = 0;
    let mut has = None;
    for _ in 0..LOOKS {
        sleep(LOOK).await;
        let seen = {
            let (view, pods) = (view.borrow(), pods.borrow());
            pods.as_ref().and_then(|pods| running(&key, &view, pods))
        };
        let Some((cgroup, shows)) = seen else { continue };
        let roots = roots.clone();
        let look = spawn_blocking(move || sources::arrival::mounted(&roots, &cgroup.path, wire::limits::PATH));
        match look.await.ok().flatten() {
            Some(true) => {
                has = Some(true);
                break;
            }
            Some(false) if !shows => break,
            Some(false) => without += 1,
            None => {}
        }
        if without >= SURE {
            has = Some(false);
            break;
        }
    }
    let _ = say.send(Arrived { key, pod, has }).await;
}

/// The cgroup of a container that runs, and whether what is not there was never there.
fn running(key: &ContainerKey, view: &NodeView, pods: &PodList) -> Option<(Arc<CgroupIdentity>, bool)> {
    let pod = pods.pods.iter().find(|pod| *pod.cgroup_uid() == key.pod)?;
    let container = pod.containers.iter().find(|container| container.name == key.container)?;
    let id = container.id.as_ref().filter(|_| container.state == ContainerState::Running)?;
    let seen = view.pods.iter().find(|pod| pod.uid == key.pod)?;
    let seen = seen.containers.iter().find(|seen| seen.id == *id)?;
    Some((Arc::clone(&seen.cgroup), shows(pod, container)))
}

/// Whether its mounts show what the runtime of this node does with a CDI device. In a sandbox (Kata, gVisor) they are not seen
/// from here, and a privileged container may have taken them away.
fn shows(pod: &Pod, container: &PodContainer) -> bool {
    !container.privileged && pod.runtime_class.as_ref().is_none_or(|class| class.starts_with(NVIDIAS))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn neither_a_sandbox_nor_a_privileged_container_shows_what_the_runtime_does() {
        for (class, privileged, expect) in [
            (None, None, true),
            (None, Some(false), true),
            (Some("nvidia-cdi"), None, true),
            (Some("kata-qemu"), None, false),
            (None, Some(true), false),
            (Some("nvidia"), Some(true), false),
        ] {
            let pod = json!({
                "metadata": { "name": "p", "namespace": "n", "uid": "0b0d8d3c-6b5e-4f3c-9a5e-1d2f3a4b5c6d" },
                "spec": {
                    "runtimeClassName": class,
                    "containers": [{ "name": "main", "securityContext": privileged.map(|is| json!({ "privileged": is })) }],
                },
            });
            let pod = wire::pod::decode(pod.to_string().as_bytes()).expect("a pod");
            assert_eq!(shows(&pod, &pod.containers[0]), expect, "{class:?} {privileged:?}");
        }
    }
}
