//! Decides which GPUs have absent readings while an NVML call does not return, and with which reason: the call stalls,
//! or it hangs.
//!
//! What must never happen here: a GPU that is reported as hanging because of a call that only stalls, or because
//! another GPU hangs.

use crate::nvml::heartbeat::{GpuKey, Stuck};
use model::Absence;
use model::id::GpuUuid;
use std::collections::BTreeMap;

/// Whether any poller can call the driver.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Reach {
    /// A poller is free, or there is no poller.
    #[default]
    Free,
    /// All pollers are in calls that do not return in time, and one of these calls may still return.
    Stalls,
    /// All pollers are in calls that hang.
    Hangs,
}

impl Reach {
    /// From the overdue calls of all pollers.
    pub(super) fn of_all(calls: &[Stuck]) -> Self {
        if calls.iter().all(|stuck| stuck.hangs) { Reach::Hangs } else { Reach::Stalls }
    }
}

/// The last report: one reason for each GPU that cannot be called.
#[derive(Debug, Default)]
pub(super) struct Stalls {
    reported: BTreeMap<GpuUuid, Absence>,
}

impl Stalls {
    /// The GPUs to report, each with the reason why all its readings are absent: the GPUs whose reason has changed or,
    /// with `again`, all GPUs that cannot be called.
    pub(super) fn changes(
        &mut self,
        gpus: impl Iterator<Item = GpuUuid>,
        stuck: &[Stuck],
        reach: Reach,
        again: bool,
    ) -> Vec<(GpuUuid, Absence)> {
        let now: BTreeMap<GpuUuid, Absence> =
            gpus.filter_map(|gpu| why(&gpu, stuck, reach).map(|why| (gpu, why))).collect();
        let before = std::mem::replace(&mut self.reported, now);
        let new = |(gpu, why): &(&GpuUuid, &Absence)| again || before.get(gpu) != Some(why);
        self.reported.iter().filter(new).map(|(gpu, why)| (gpu.clone(), *why)).collect()
    }
}

/// Why a GPU cannot be called; `None` if it can.
fn why(gpu: &GpuUuid, stuck: &[Stuck], reach: Reach) -> Option<Absence> {
    let own = |stuck: &&Stuck| matches!(&stuck.gpu, Some(GpuKey::Uuid(uuid)) if uuid == gpu);
    match (stuck.iter().find(own).map(|stuck| stuck.hangs), reach) {
        (Some(true), _) | (None, Reach::Hangs) => Some(Absence::CallHangs),
        (Some(false), _) | (None, Reach::Stalls) => Some(Absence::CallStalls),
        (None, Reach::Free) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gpu(number: u32) -> GpuUuid {
        GpuUuid::parse(&format!("GPU-{number}")).unwrap()
    }

    fn on(number: u32, hangs: bool) -> Stuck {
        Stuck { gpu: Some(GpuKey::Uuid(gpu(number))), hangs }
    }

    #[test]
    fn a_stalled_call_is_reported_for_its_gpu_or_for_all_gpus_if_it_blocks_all() {
        let mut stalls = Stalls::default();
        let mut check = |stuck: &[Stuck], reach, again| -> Vec<(u32, Absence)> {
            let changes = stalls.changes((0..3).map(gpu), stuck, reach, again);
            changes.into_iter().map(|(gpu, why)| (gpu.as_str()[4..].parse().unwrap(), why)).collect()
        };
        let (stalls, hangs) = (Absence::CallStalls, Absence::CallHangs);
        assert_eq!(check(&[], Reach::Free, true), []);
        assert_eq!(check(&[on(1, false)], Reach::Free, false), [(1, stalls)]);
        assert_eq!(check(&[on(1, false)], Reach::Free, false), [], "reported once");
        assert_eq!(check(&[on(1, false)], Reach::Free, true), [(1, stalls)], "reported again on request");
        assert_eq!(check(&[on(1, true)], Reach::Free, false), [(1, hangs)], "reported for another reason");
        // The replacement stalls as well: no poller can call the third GPU, which does not make that GPU hang.
        let both = [on(1, true), on(0, false)];
        assert_eq!(Reach::of_all(&both), Reach::Stalls);
        assert_eq!(check(&both, Reach::Stalls, false), [(0, stalls), (2, stalls)]);
        let both = [on(1, true), on(0, true)];
        assert_eq!(Reach::of_all(&both), Reach::Hangs);
        assert_eq!(check(&both, Reach::Hangs, false), [(0, hangs), (2, hangs)]);
        assert_eq!(check(&[], Reach::Free, false), []);
        // A call about no GPU.
        let none = [Stuck { gpu: None, hangs: false }];
        assert_eq!(check(&none, Reach::of_all(&none), false), [(0, stalls), (1, stalls), (2, stalls)]);
    }
}
