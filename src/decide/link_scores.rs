//! How well the GPUs of a node are connected, by HAMi's scores: 10 to 60 for the PCIe path, and 100 for each NVLink. Only the order
//! of scores matters.

use model::gpu::GpuPath;
use model::id::GpuUuid;
use model::reading::{Absence, Reading};
use model::view::GpuView;
use std::collections::BTreeMap;

/// The score of one NVLink.
const NVLINK: u32 = 100;

/// The score of each pair, in both orders. A pair whose path is not known has no score.
#[must_use]
pub fn link_scores(gpus: &[GpuView]) -> BTreeMap<(GpuUuid, GpuUuid), u32> {
    let mut scores = BTreeMap::new();
    for (number, one) in gpus.iter().enumerate() {
        for other in gpus.iter().skip(number + 1) {
            let Some(score) = score(one, other) else { continue };
            let (one, other) = (&one.gpu.uuid, &other.gpu.uuid);
            for pair in [(one, other), (other, one)] {
                scores.insert((pair.0.clone(), pair.1.clone()), score);
            }
        }
    }
    scores
}

fn score(one: &GpuView, other: &GpuView) -> Option<u32> {
    let paths = [path(one, other), path(other, one)];
    let path = paths.into_iter().flatten().min()?;
    // An NVLink that only one side sees up carries nothing.
    let nvlinks = nvlinks(one, other).min(nvlinks(other, one));
    Some(nvlinks.saturating_mul(NVLINK).saturating_add(path))
}

fn path(from: &GpuView, to: &GpuView) -> Option<u32> {
    let link = from.gpu.links.iter().find(|link| link.peer == to.gpu.uuid)?;
    Some(match link.path.get()? {
        GpuPath::System => 10,
        GpuPath::NumaNode => 20,
        GpuPath::HostBridge => 30,
        GpuPath::MultipleSwitches => 40,
        GpuPath::SingleSwitch => 50,
        GpuPath::Internal => 60,
    })
}

/// The NVLinks by which one GPU reaches another: direct links, or all its links if they end at a switch.
fn nvlinks(from: &GpuView, to: &GpuView) -> u32 {
    let link = from.gpu.links.iter().find(|link| link.peer == to.gpu.uuid);
    match link.map(|link| link.nvlinks) {
        Some(Reading::Measured(direct, _)) => direct,
        Some(Reading::Absent(Absence::ThroughSwitch)) => from.gpu.nvlinks_active.get().unwrap_or(0),
        Some(Reading::Absent(_)) | None => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures;
    use model::gpu::GpuLink;
    use model::time::Monotonic;

    fn measured<T>(value: T) -> Reading<T> {
        Reading::Measured(value, Monotonic(1))
    }

    /// GPU `n` with these links, and 4 NVLinks that are up.
    fn gpu(n: u32, links: &[(u32, Reading<GpuPath>, Reading<u32>)]) -> GpuView {
        let mut gpu = fixtures::gpu(n);
        let link = |(peer, path, nvlinks): &(u32, Reading<GpuPath>, Reading<u32>)| GpuLink {
            peer: fixtures::gpu(*peer).uuid,
            path: *path,
            nvlinks: *nvlinks,
        };
        gpu.links = links.iter().map(link).collect();
        gpu.nvlinks_active = measured(4);
        fixtures::view(gpu)
    }

    #[test]
    fn a_pair_has_the_score_of_its_path_and_of_the_nvlinks_that_both_sides_see() {
        let switch = Reading::Absent(Absence::ThroughSwitch);
        for (path, one, other, expected) in [
            (GpuPath::System, measured(0), measured(0), Some(10)),
            (GpuPath::NumaNode, measured(0), measured(0), Some(20)),
            (GpuPath::Internal, measured(2), measured(2), Some(260)),
            (GpuPath::HostBridge, measured(3), measured(2), Some(230)),
            (GpuPath::SingleSwitch, switch, switch, Some(450)),
            (GpuPath::MultipleSwitches, Reading::Absent(Absence::CallHangs), measured(2), Some(40)),
        ] {
            let gpus = [gpu(1, &[(2, measured(path), one)]), gpu(2, &[(1, measured(path), other)])];
            let scores = link_scores(&gpus);
            let pair = |one: usize, other: usize| (gpus[one].gpu.uuid.clone(), gpus[other].gpu.uuid.clone());
            assert_eq!(scores.get(&pair(0, 1)).copied(), expected, "{path:?}");
            assert_eq!(scores.get(&pair(1, 0)).copied(), expected, "{path:?}");
        }
        let unknown = [gpu(1, &[(2, Reading::NOT_YET, measured(2))]), gpu(2, &[])];
        assert!(link_scores(&unknown).is_empty(), "a path that is not known is no path of 0");
    }
}
