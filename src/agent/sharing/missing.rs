//! Finds running pods that hold a GPU that this node does not list: the GPU was removed or replaced, perhaps while no
//! agent ran.

use model::id::{GpuUuid, PodRef, PodUid};
use model::observation::GpuSourceState;
use model::time::Monotonic;
use model::view::NodeView;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// A GPU that is not listed for this long counts as gone. At the start the list appears a moment after the driver, and
/// MIG instances a moment after their GPU; when the driver is reopened, all GPUs are missing for a moment.
const GONE_AFTER: Duration = Duration::from_secs(15);

/// A pod and the device that it holds.
pub(super) type Holding = (PodUid, PodRef, GpuUuid);

/// The held devices that are missing now, and since when.
#[derive(Debug, Default)]
pub(crate) struct Missing(BTreeMap<Holding, Monotonic>);

impl Missing {
    /// Looks at a view, and returns the held devices that have been missing for [`GONE_AFTER`]. `without` takes the
    /// devices that the node lists, and returns the devices that running pods hold and the node does not list. Without
    /// a driver no device counts as missing here, because the driver's absence is reported elsewhere.
    pub(super) fn look(
        &mut self,
        view: &NodeView,
        without: impl FnOnce(&BTreeSet<&GpuUuid>) -> Vec<Holding>,
    ) -> Vec<Holding> {
        if !matches!(view.gpu_source, GpuSourceState::Working { .. }) {
            self.0.clear();
            return Vec::new();
        }
        let of_gpu = view.gpus.iter().map(|gpu| &gpu.gpu);
        let there = of_gpu
            .flat_map(|gpu| std::iter::once(&gpu.uuid).chain(gpu.instances().iter().map(|instance| &instance.uuid)));
        let now = view.now.monotonic;
        let before = std::mem::take(&mut self.0);
        let since = |holding: Holding| {
            let since = before.get(&holding).copied().unwrap_or(now);
            (holding, since)
        };
        self.0 = without(&there.collect()).into_iter().map(since).collect();
        self.0.iter().filter(|(_, since)| now.since(**since) >= GONE_AFTER).map(|(one, _)| one.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::id::NodeName;
    use model::reading::Absence;
    use model::time::{Now, WallTime};

    #[test]
    fn a_gpu_counts_as_missing_after_fifteen_seconds_and_not_without_a_driver() {
        let holding = (
            PodUid::parse(&"1".repeat(32)).unwrap(),
            PodRef { namespace: "ml".into(), name: "train".into() },
            GpuUuid::parse("GPU-1").unwrap(),
        );
        let mut missing = Missing::default();
        let mut look = |second: u64, works: bool, gone: bool| {
            let now = Now { monotonic: Monotonic(second * 1_000_000_000), wall: WallTime(0) };
            let mut view = NodeView::empty(NodeName::parse("n1").unwrap(), now);
            view.gpu_source = if works {
                GpuSourceState::Working { driver: "1".into(), nvml: "1".into(), cuda: None, simulated: false }
            } else {
                GpuSourceState::Missing { why: Absence::DriverNotLoaded, advice: "".into() }
            };
            missing.look(&view, |_| if gone { vec![holding.clone()] } else { vec![] }).len()
        };
        for (second, works, gone, expect) in [
            (0, true, true, 0),
            (14, true, true, 0),
            (15, true, true, 1),
            (20, true, true, 1),
            (21, true, false, 0),
            (22, true, true, 0),
            (30, false, true, 0),
            (40, true, true, 0),
            (55, true, true, 1),
        ] {
            assert_eq!(look(second, works, gone), expect, "{second}");
        }
    }
}
