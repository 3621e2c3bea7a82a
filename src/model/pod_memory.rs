//! How much memory a followed pod takes, and how much all followed pods may take. Anyone who may create pods decides how long the
//! texts of a pod are.

use crate::id::{NodeName, PodUid};
use crate::placement::{GpuSelection, PlacementRequest};
use crate::pod::{Pod, PodContainer};
use crate::request::ContainerRequest;
use std::sync::Arc;

/// Upper bound on the memory of the pods of one node: a quarter of the memory limit of an agent in the chart, because there are two
/// copies while a list is read. Each pod may take 64 KiB; an ordinary pod takes some KiB.
pub const MAX_NODE_PODS_BYTES: usize = 64 << 20;
/// Upper bound on the memory of the pods of a cluster. While a list is read there are two copies, so this leaves 224 MiB of an
/// extender's memory limit in the chart (512 MiB). With 5,000 streams and 50,000 claims a whole extender, these pods included, takes
/// 215 MiB (tests/bench/runs). By the count of [`Pod::memory`] there is room for about 200,000 pods without GPUs, or 90,000 with
/// claims.
pub const MAX_CLUSTER_PODS_BYTES: usize = 144 << 20;
/// Maximum size of a waiting pod's request that is kept, in bytes of memory: an ordinary request takes some hundred bytes, a request
/// of 40 containers this much. So waiting pods take little more memory than other pods. kube-scheduler sends the request in its
/// calls in any case. Requests of open orders have the same bound. Larger requests of nominated pods are the
/// first to be forgotten.
pub const MAX_WAITING_REQUEST_BYTES: usize = 4096;

/// Bytes of a text in addition to its characters: the two counts of an `Arc`, and the allocator's rounding.
const TEXT: usize = 24;

impl Pod {
    /// About as many bytes of memory as the pod takes if it shares no text with other pods.
    #[must_use]
    pub fn memory(&self) -> usize {
        let ids = [
            Some(self.uid.as_str()),
            self.mirror_of.as_ref().map(PodUid::as_str),
            self.node.as_ref().map(NodeName::as_str),
            self.nominated.as_ref().map(NodeName::as_str),
        ];
        let names = [
            Some(&self.name.namespace),
            Some(&self.name.name),
            self.scheduler.as_ref(),
            self.gang.as_ref(),
            self.runtime_class.as_ref(),
        ];
        let controller =
            self.controller.iter().flat_map(|owner| [&owner.api_version, &owner.kind, &owner.name, &owner.uid]);
        let left_out = self.containers_left_out.as_ref().map_or(0, |left_out| {
            size_of_val(&**left_out)
                + left_out.resources.iter().map(|name| size_of_val(name) + text(name)).sum::<usize>()
        });
        size_of::<Pod>()
            + ids.into_iter().flatten().map(text).sum::<usize>()
            + names.into_iter().flatten().chain(controller).map(|name| text(name)).sum::<usize>()
            + pairs(&self.annotations)
            + pairs(&self.labels)
            + self.containers.iter().map(container).sum::<usize>()
            + self.request.as_ref().map_or(0, |request| request.memory())
            + left_out
    }
}

impl PlacementRequest {
    /// Estimate of the bytes of memory that the request takes, without the names of its pod, which the pod shares with it.
    #[must_use]
    pub fn memory(&self) -> usize {
        let GpuSelection { use_types, avoid_types, use_uuids, avoid_uuids, modes, numa_bind: _ } = &self.selection;
        let types = use_types.iter().chain(avoid_types).map(|kind| size_of_val(kind) + text(kind));
        let uuids = use_uuids.iter().chain(avoid_uuids).map(|uuid| size_of_val(uuid) + text(uuid.as_str()));
        let containers = self.requests.iter().map(|one| size_of::<ContainerRequest>() + text(&one.container));
        let texts = [modes, &self.gang].into_iter().flatten().map(|one| text(one));
        size_of::<PlacementRequest>()
            + types.chain(uuids).sum::<usize>()
            + containers.sum::<usize>()
            + texts.sum::<usize>()
    }
}

fn container(container: &PodContainer) -> usize {
    let id = container.id.as_ref().map_or(0, |id| text(id.as_str()));
    let image = container.image.as_deref().map_or(0, text);
    size_of::<PodContainer>() + text(&container.name) + image + id + pairs(&container.limits)
}

fn pairs(pairs: &[(Arc<str>, Arc<str>)]) -> usize {
    size_of_val(pairs) + pairs.iter().map(|(key, value)| text(key) + text(value)).sum::<usize>()
}

fn text(text: &str) -> usize {
    TEXT + text.len()
}
