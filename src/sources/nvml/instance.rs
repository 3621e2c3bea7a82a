//! MIG instances: GPUs inside a GPU.

use crate::clock::monotonic;
use crate::nvml::pulse::Pulse;
use crate::nvml::raw;
use model::gpu::{MAX_MIG, MigInstance};
use model::id::GpuUuid;
use model::unit::Bytes;
use model::{Absence, Reading};
use nvml_wrapper::Device;
use nvml_wrapper::struct_wrappers::device::DeviceAttributes;

/// An instance with the handle to ask it by.
#[derive(Debug)]
pub(super) struct Instance {
    pub(super) identity: MigInstance,
    pub(super) device: Device<'static>,
}

impl Clone for Instance {
    fn clone(&self) -> Self {
        Instance { identity: self.identity.clone(), device: raw::again(&self.device) }
    }
}

/// The instances of a GPU, ordered by GPU instance and compute instance. `total` is the whole card's memory.
///
/// # Errors
/// When the GPU does not tell how many it may have.
pub(super) fn list(
    pulse: &Pulse,
    device: &Device<'static>,
    index: u32,
    total: Bytes,
) -> Result<Vec<Instance>, Absence> {
    let slots = pulse.call(Some(index), || device.mig_device_count())?;
    let bound = u32::try_from(MAX_MIG).unwrap_or(u32::MAX);
    let mut instances = Vec::new();
    for slot in 0..slots.min(bound) {
        // Empty slots answer that they are not found; a slot whose instance goes away meanwhile does so as well.
        let Ok(instance) = pulse.call(Some(index), || device.mig_device_by_index(slot)) else { continue };
        if let Some(identity) = identify(pulse, &instance, (index, slot), total) {
            instances.push(Instance { identity, device: instance });
        }
    }
    instances.sort_by_key(|instance| (instance.identity.gpu_instance, instance.identity.compute_instance));
    Ok(instances)
}

fn identify(pulse: &Pulse, device: &Device<'static>, (parent, index): (u32, u32), total: Bytes) -> Option<MigInstance> {
    let parent = Some(parent);
    let uuid = GpuUuid::parse(&pulse.call(parent, || device.uuid()).ok()?).ok()?;
    let (gpu_instance, compute_instance) = pulse.call(parent, || raw::instance_ids(device)).ok()?;
    let attributes = pulse.call(parent, || device.attributes());
    let at = monotonic();
    let memory = pulse
        .call(parent, || device.memory_info())
        .map(|info| Bytes(info.total))
        .or_else(|why| attributes.as_ref().map(|a| Bytes(a.memory_size_mb * Bytes::MIB)).map_err(|_| why));
    let profile = match &attributes {
        Ok(attributes) => profile(attributes, total),
        // The name ends in it: `NVIDIA A100-SXM4-40GB MIG 1g.5gb`.
        Err(_) => {
            let name = pulse.call(parent, || device.name()).unwrap_or_default();
            name.rsplit_once(" MIG ").map_or("unknown", |(_, profile)| profile).to_owned()
        }
    };
    Some(MigInstance {
        uuid,
        index,
        gpu_instance,
        compute_instance,
        profile: profile.into(),
        memory_total: Reading::from_result(memory, at),
    })
}

/// The name of a profile as NVIDIA's tools write it: slices, and memory as that part of the card's memory, in eighths
/// rounded up, which the instance has.
fn profile(attributes: &DeviceAttributes, total: Bytes) -> String {
    let compute = attributes.compute_instance_slice_count;
    let slices = attributes.gpu_instance_slice_count;
    let gigabytes = gigabytes(attributes.memory_size_mb, total);
    if compute == slices { format!("{slices}g.{gigabytes}gb") } else { format!("{compute}c.{slices}g.{gigabytes}gb") }
}

#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "sizes of memory in GiB are small and positive"
)]
fn gigabytes(mebibytes: u64, total: Bytes) -> u64 {
    if total.0 == 0 {
        return mebibytes.div_ceil(1024);
    }
    let part = (mebibytes * Bytes::MIB) as f64 / total.0 as f64;
    let eighths = (part * 8.0).ceil() / 8.0;
    (eighths * total.0.div_ceil(1 << 30) as f64).round() as u64
}

/// An identity does not change because it could not be read this time.
pub(super) fn settle<T: PartialEq>(old: Reading<T>, fresh: Reading<T>) -> Reading<T> {
    let says_nothing_new = match (&old, &fresh) {
        (Reading::Measured(was, _), Reading::Measured(is, _)) => was == is,
        (Reading::Measured(..), Reading::Absent(_)) => true,
        _ => false,
    };
    if says_nothing_new { old } else { fresh }
}

/// Gives instances that were known before the times of then, so that an unchanged layout compares as unchanged.
pub(super) fn keep_times(before: &[MigInstance], now: &mut [MigInstance]) {
    for instance in now {
        if let Some(old) = before.iter().find(|old| old.uuid == instance.uuid) {
            instance.memory_total = settle(old.memory_total, instance.memory_total);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::time::Monotonic;

    #[test]
    fn profiles_are_named_as_nvidia_names_them() {
        for (total_mib, memory_mib, slices, compute, name) in [
            (40_536, 4_864, 1, 1, "1g.5gb"),
            (40_536, 9_856, 2, 2, "2g.10gb"),
            (40_536, 20_096, 3, 3, "3g.20gb"),
            (40_536, 40_192, 7, 7, "7g.40gb"),
            (81_559, 9_856, 1, 1, "1g.10gb"),
            (81_559, 20_096, 1, 1, "1g.20gb"),
            (81_559, 40_448, 3, 3, "3g.40gb"),
            (81_559, 40_448, 3, 1, "1c.3g.40gb"),
        ] {
            let attributes = DeviceAttributes {
                multiprocessor_count: 0,
                shared_copy_engine_count: 0,
                shared_decoder_count: 0,
                shared_encoder_count: 0,
                shared_jpeg_count: 0,
                shared_ofa_count: 0,
                gpu_instance_slice_count: slices,
                compute_instance_slice_count: compute,
                memory_size_mb: memory_mib,
            };
            assert_eq!(profile(&attributes, Bytes(total_mib * Bytes::MIB)), name);
        }
    }

    #[test]
    fn an_identity_outlives_a_look_that_failed() {
        let old = Reading::Measured(1, Monotonic(5));
        assert_eq!(settle(old, Reading::Absent(Absence::GpuLost)), old);
        assert_eq!(settle(old, Reading::Measured(1, Monotonic(9))), old, "and keeps its time while it says the same");
        assert_eq!(settle(old, Reading::Measured(2, Monotonic(9))), Reading::Measured(2, Monotonic(9)));
    }
}
