//! Late binding rests on the runtime: whether the first container that starts really has what its ticket stands for.

use model::cgroup::CgroupIdentity;
use model::id::PodRef;
use model::pod::{ContainerState, PodList};
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
            pods.as_ref().and_then(|pods| cgroup(&key, &view, pods))
        };
        let Some(cgroup) = seen else { continue };
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
        if without >= SURE {
            has = Some(false);
            break;
        }
    }
    let _ = say.send(Arrived { key, pod, has }).await;
}

/// The cgroup of a container that runs.
fn cgroup(key: &ContainerKey, view: &NodeView, pods: &PodList) -> Option<Arc<CgroupIdentity>> {
    let pod = pods.pods.iter().find(|pod| *pod.cgroup_uid() == key.pod)?;
    let container = pod.containers.iter().find(|container| container.name == key.container)?;
    let id = container.id.as_ref().filter(|_| container.state == ContainerState::Running)?;
    let pod = view.pods.iter().find(|pod| pod.uid == key.pod)?;
    pod.containers.iter().find(|seen| seen.id == *id).map(|seen| Arc::clone(&seen.cgroup))
}
