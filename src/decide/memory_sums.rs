//! Keeps the memory values of one GPU consistent: a GPU never uses less memory than its processes hold together.
//!
//! The driver reports the memory of the GPU and the memory of its processes in different calls, at slightly different moments.
//! Some drivers of GPUs without memory of their own answer that no memory is used.
//!
//! What must never happen here: a used amount below the sum of the processes; parts that are more than the whole.

use model::gpu::{Gpu, GpuSample};
use model::id::GpuUuid;
use model::process::GpuProcess;
use model::reading::{Absence, Reading};
use model::unit::Bytes;
use std::sync::Arc;

/// The sample with used memory that is at least the sum of the processes, for the GPU and for each MIG instance.
#[must_use]
pub(crate) fn consistent(gpu: &Gpu, sample: &Arc<GpuSample>, processes: &[GpuProcess]) -> Arc<GpuSample> {
    let whole = held(processes, |_| true);
    let parts = |mig: &GpuUuid| held(processes, |device| device.is_some_and(|device| together(gpu, device, mig)));
    let low = |used: &Reading<Bytes>, held: Bytes| used.get().is_some_and(|used| used.0 < held.0);
    let any = low(&sample.memory_used, whole) || sample.mig.iter().any(|mig| low(&mig.memory_used, parts(&mig.uuid)));
    if !any {
        return Arc::clone(sample);
    }
    let mut sample = GpuSample::clone(sample);
    let total = gpu.memory_total.get();
    raise((&mut sample.memory_used, &mut sample.memory_free), sample.memory_reserved.get(), (whole, total));
    for mig in &mut sample.mig {
        let total =
            gpu.instances().iter().find(|known| known.uuid == mig.uuid).and_then(|known| known.memory_total.get());
        raise((&mut mig.memory_used, &mut mig.memory_free), mig.memory_reserved.get(), (parts(&mig.uuid), total));
    }
    Arc::new(sample)
}

/// The memory in use by the newest reading. The process list may be older, and processes may have freed memory since: `raised`
/// still has that memory. Memory that the driver left out when the list was made is left out now too. `listed` is the memory
/// in use at that time.
#[must_use]
pub(crate) fn newest(
    read: &GpuSample,
    raised: &GpuSample,
    listed: Reading<Bytes>,
    processes: &[GpuProcess],
) -> Reading<Bytes> {
    match (read.memory_used, raised.memory_used, listed.get()) {
        (Reading::Measured(used, at), Reading::Measured(raised, _), Some(listed)) => {
            let left_out = held(processes, |_| true).less(listed);
            Reading::Measured(Bytes(used.plus(left_out).0.min(raised.0)), at)
        }
        _ => raised.memory_used,
    }
}

/// The sum of the memory of these processes, as far as it is known: at least this much is used.
fn held(processes: &[GpuProcess], here: impl Fn(Option<&GpuUuid>) -> bool) -> Bytes {
    let known = processes.iter().filter(|process| here(process.mig.as_ref())).filter_map(|one| one.memory_used.get());
    known.fold(Bytes(0), Bytes::plus)
}

/// Whether both instances share their memory: compute instances of one GPU instance do.
fn together(gpu: &Gpu, one: &GpuUuid, other: &GpuUuid) -> bool {
    let id = |uuid: &GpuUuid| gpu.instances().iter().find(|mig| mig.uuid == *uuid).map(|mig| mig.gpu_instance);
    one == other || id(one).is_some_and(|first| id(other) == Some(first))
}

/// Raises the used part to `held`, and lowers the free part to the rest. If processes hold more than there is, neither the sum
/// nor the used part is trusted.
fn raise(
    (used, free): (&mut Reading<Bytes>, &mut Reading<Bytes>),
    reserved: Option<Bytes>,
    (held, total): (Bytes, Option<Bytes>),
) {
    let Reading::Measured(before, at) = *used else { return };
    if before.0 >= held.0 {
        return;
    }
    let Some(left) = total.map_or(Some(Bytes(u64::MAX)), |total| total.0.checked_sub(held.0).map(Bytes)) else {
        (*used, *free) = (Reading::Absent(Absence::Implausible), Reading::Absent(Absence::Implausible));
        return;
    };
    *used = Reading::Measured(held, at);
    let left = left.less(reserved.unwrap_or_default());
    *free = free.map(|free| Bytes(free.0.min(left.0)));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures;
    use model::gpu::{GpmSample, MigInstance, MigSample};
    use model::process::{GpuProcessKind, ProcessOwner};
    use model::time::Monotonic;
    use proptest::prelude::*;

    const MIB: u64 = Bytes::MIB;

    fn m(mib: u64) -> Reading<Bytes> {
        Reading::Measured(Bytes(mib * MIB), Monotonic(1))
    }

    fn process(mig: Option<&str>, memory_used: Reading<Bytes>) -> GpuProcess {
        GpuProcess {
            pid: 1,
            key: None,
            command: "python".into(),
            owner: ProcessOwner::Host,
            kind: GpuProcessKind::Compute,
            mig: mig.map(|mig| GpuUuid::parse(mig).unwrap()),
            memory_used,
            sm: Reading::NOT_YET,
            encoder: Reading::NOT_YET,
            decoder: Reading::NOT_YET,
        }
    }

    fn sample(used: u64, reserved: u64, free: u64) -> Arc<GpuSample> {
        let (memory_used, memory_reserved, memory_free) = (m(used), m(reserved), m(free));
        Arc::new(GpuSample { memory_used, memory_reserved, memory_free, ..GpuSample::default() })
    }

    fn gpu(total: u64) -> Gpu {
        Gpu { memory_total: m(total), ..fixtures::gpu(1) }
    }

    #[test]
    fn memory_that_was_freed_since_the_list_is_not_in_use_now() {
        let newest = |used, listed, held| {
            let (gpu, read, list) = (gpu(80_000), sample(used, 100, 79_900 - used), [process(None, m(held))]);
            newest(&read, &consistent(&gpu, &read, &list), listed, &list)
        };
        assert_eq!(newest(2000, m(2500), 2500), m(2000), "500 MiB were freed");
        assert_eq!(newest(3000, m(2500), 2500), m(3000), "more is in use");
        assert_eq!(newest(0, m(0), 2500), m(2500), "a driver that says that nothing is used");
        assert_eq!(newest(2000, Reading::NOT_YET, 2500), m(2500), "it is not known what was in use then");
        assert_eq!(newest(0, m(0), 90_000), Reading::Absent(Absence::Implausible));
    }

    #[test]
    fn a_gpu_uses_at_least_what_its_processes_hold() {
        let absent = Reading::Absent(Absence::NotSupported);
        let shown = |used, list: &[GpuProcess]| {
            let sample = consistent(&gpu(124_611), &sample(used, 100, 124_511 - used), list);
            (sample.memory_used, sample.memory_free)
        };
        let big = process(None, m(91_419));
        assert_eq!(
            shown(0, std::slice::from_ref(&big)),
            (m(91_419), m(33_092)),
            "a driver that says that nothing is used"
        );
        assert_eq!(shown(95_000, std::slice::from_ref(&big)), (m(95_000), m(29_511)), "the rest belongs to no process");
        assert_eq!(shown(10, &[big.clone(), process(None, absent)]), (m(91_419), m(33_092)), "what is known counts");
        assert_eq!(shown(10, &[]), (m(10), m(124_501)));
        let why = Reading::Absent(Absence::Implausible);
        assert_eq!(shown(10, &[big.clone(), big]), (why, why), "processes cannot hold more than there is");
    }

    #[test]
    fn compute_instances_of_one_gpu_instance_are_raised_together() {
        let uuid = |name: &str| GpuUuid::parse(name).unwrap();
        let instance = |name: &str, gpu_instance| MigInstance {
            uuid: uuid(name),
            index: 0,
            gpu_instance,
            compute_instance: 0,
            profile: "1c.2g.20gb".into(),
            memory_total: m(20_000),
        };
        let mut divided = gpu(80_000);
        divided.mig =
            Reading::Measured(vec![instance("MIG-a", 1), instance("MIG-b", 1), instance("MIG-c", 2)], Monotonic(1));
        let mig = |name: &str| MigSample {
            uuid: uuid(name),
            memory_used: m(100),
            memory_free: m(19_900),
            memory_reserved: m(0),
            gpm: GpmSample::default(),
        };
        let mut before = GpuSample::clone(&sample(10_000, 0, 70_000));
        before.mig = ["MIG-a", "MIG-b", "MIG-c"].map(mig).to_vec();
        let list = [process(Some("MIG-a"), m(3_000)), process(Some("MIG-b"), m(2_000))];
        let after = consistent(&divided, &Arc::new(before), &list);
        let used: Vec<Reading<Bytes>> = after.mig.iter().map(|mig| mig.memory_used).collect();
        assert_eq!(used, [m(5_000), m(5_000), m(100)]);
        assert_eq!(after.memory_used, m(10_000));
    }

    proptest! {
        #[test]
        fn no_sum_contradicts_another(
            total in 1..200_u64, used in 0..200_u64, reserved in 0..50_u64, list in prop::collection::vec(0..100_u64, 0..6),
        ) {
            let processes: Vec<GpuProcess> = list.iter().map(|memory| process(None, m(*memory))).collect();
            let free = total.saturating_sub(used).saturating_sub(reserved);
            let sample = consistent(&gpu(total), &sample(used.min(total), reserved.min(total), free), &processes);
            if let Some(used) = sample.memory_used.get() {
                let free = sample.memory_free.get().unwrap();
                prop_assert!(used.0 >= list.iter().sum::<u64>() * MIB);
                prop_assert!(used.0 <= total * MIB && used.0 + free.0 <= total * MIB);
            }
        }
    }
}
