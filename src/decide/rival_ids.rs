//! The device ids that only one plugin of a node may list. Two plugins that list the same ids would give the same GPUs
//! to different containers.

use model::gpu_id;
use std::collections::BTreeSet;
use std::sync::Arc;

/// The device ids that make another plugin a rival of this agent.
#[derive(Debug)]
pub struct RivalIds<'a>(BTreeSet<&'a str>);

impl<'a> RivalIds<'a> {
    /// UUIDs of GPUs and MIG instances, and all ids that the kubelet has `registered` for the agent's resource:
    /// NVIDIA's plugin can be configured to name GPUs by their index.
    #[must_use]
    pub fn new(registered: &'a [Arc<str>]) -> RivalIds<'a> {
        RivalIds(registered.iter().map(|id| &**id).collect())
    }

    /// Whether a plugin that lists this id offers the same GPUs.
    #[must_use]
    pub fn has(&self, id: &str) -> bool {
        gpu_id::is_of_gpu(id) || self.0.contains(id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uuids_are_rival_ids_and_indexes_only_if_the_kubelet_has_them_for_the_resource() {
        let registered: Vec<Arc<str>> = vec!["0".into(), "1".into()];
        let rival = RivalIds::new(&registered);
        for (id, has) in [("GPU-1", true), ("MIG-1", true), ("1", true), ("2", false), ("nic-0", false), ("", false)] {
            assert_eq!(rival.has(id), has, "{id}");
            assert_eq!(RivalIds::new(&[]).has(id), id.contains('-') && has, "{id}");
        }
    }
}
