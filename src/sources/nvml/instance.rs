//! MIG instances of a GPU.

use crate::nvml::absence::{INVALID_ARGUMENT, NOT_FOUND};
use crate::nvml::poll_round::{PollRound, settle};
use crate::nvml::raw;
use clock::monotonic;
use model::gpu::{MAX_MIG, MigInstance};
use model::id::GpuUuid;
use model::physical_range::PhysicalRange as Range;
use model::unit::{Bytes, Mib};
use model::{Absence, Reading};
use nvml_wrapper::Device;
use nvml_wrapper::struct_wrappers::device::DeviceAttributes;

/// The profile of an instance while neither its attributes nor its name can be read.
const UNKNOWN: &str = "unknown";
/// Maximum size of a profile's suffix in bytes: NVIDIA's longest is `me.all`, and several may follow each other.
const MAX_SUFFIX: usize = 24;

/// The answers of a slot without an instance.
const EMPTY: [Absence; 2] = [NOT_FOUND, INVALID_ARGUMENT];

/// An instance with its handle.
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

/// The instances of a GPU, ordered by GPU instance and compute instance. `total` is the memory of the whole GPU, `before`
/// are the instances of the last list.
///
/// # Errors
/// When one of its slots cannot be read: a list without that slot would look complete.
pub(super) fn list(
    round: &mut PollRound<'_>,
    device: &Device<'static>,
    (total, before): (Option<Bytes>, &[MigInstance]),
) -> Result<Vec<Instance>, Absence> {
    let slots = round.call("MIG slots", || device.mig_device_count())?;
    let bound = u32::try_from(MAX_MIG).unwrap_or(u32::MAX);
    let mut instances = Vec::new();
    for slot in 0..slots.min(bound) {
        let handle = round.call_optional("MIG handle", &EMPTY, || device.mig_device_by_index(slot))?;
        let Some(instance) = handle else { continue };
        instances.push(Instance { identity: identify(round, &instance, slot, (total, before))?, device: instance });
    }
    instances.sort_by_key(|instance| (instance.identity.gpu_instance, instance.identity.compute_instance));
    Ok(instances)
}

/// Reads the identity of an instance. If the instance is removed during the reads, this is an error, and the next round
/// lists the new layout.
fn identify(
    round: &mut PollRound<'_>,
    device: &Device<'static>,
    index: u32,
    (total, before): (Option<Bytes>, &[MigInstance]),
) -> Result<MigInstance, Absence> {
    let uuid = round.call("MIG UUID", || device.uuid())?;
    let uuid = GpuUuid::parse(&uuid).map_err(|_| Absence::Unreadable)?;
    let (gpu_instance, compute_instance) = round.call("MIG instance ids", || raw::instance_ids(device))?;
    let attributes = round.call("MIG attributes", || device.attributes());
    let at = monotonic();
    let memory = round
        .call("MIG memory", || raw::memory(device))
        .map(|info| Bytes(info.total))
        .or_else(|why| attributes.as_ref().map(|a| Mib(a.memory_size_mb).bytes()).map_err(|_| why));
    let memory = round.within(Range::MEMORY_TOTAL.within(total.unwrap_or(Bytes(u64::MAX))), memory);
    // The name ends with the profile: `NVIDIA A100-SXM4-40GB MIG 1g.5gb+me`.
    let name = round.call("MIG name", || device.name()).ok();
    let named = name.as_deref().and_then(|name| Some(name.rsplit_once(" MIG ")?.1));
    let known = before.iter().find(|one| one.uuid == uuid).map(|one| &*one.profile);
    let profile = match (&attributes, total, known) {
        // The profile of an instance does not change, and without its name its suffix is not known.
        (_, _, Some(known)) if named.is_none() && known != UNKNOWN => known.to_owned(),
        (Ok(attributes), Some(total), _) => profile(attributes, total) + named.map_or("", suffix),
        _ => named.unwrap_or(UNKNOWN).to_owned(),
    };
    Ok(MigInstance {
        uuid,
        index,
        gpu_instance,
        compute_instance,
        profile: profile.into(),
        memory_total: Reading::from_result(memory, at),
    })
}

/// The suffix of a profile, after the numbers of slices and memory: media engines (`+me`, `+me.all`, `-me`), graphics
/// (`+gfx`). Profiles with different suffixes are different, even if slices and memory are the same.
fn suffix(profile: &str) -> &str {
    let suffix = profile.find(['+', '-']).and_then(|at| profile.get(at..)).unwrap_or_default();
    let word = suffix.get(1..).unwrap_or_default();
    let valid = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'+' | b'-');
    let fits = !word.is_empty() && word.len() <= MAX_SUFFIX && word.bytes().all(valid);
    if fits { suffix } else { "" }
}

/// The name of a profile as NVIDIA's tools write it: slices, then memory. The memory is the instance's part of the
/// GPU's memory, rounded up to eighths.
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

/// Gives known instances their old times, so that an unchanged layout compares as unchanged.
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

    #[test]
    fn the_suffix_of_a_profile_is_what_its_name_has_beyond_slices_and_memory() {
        for (name, expected) in [
            ("1g.24gb", ""),
            ("1g.24gb+gfx", "+gfx"),
            ("1g.24gb+me.all", "+me.all"),
            ("1g.24gb-me", "-me"),
            ("1c.1g.10gb+me", "+me"),
            ("2g.48gb+me+gfx", "+me+gfx"),
            ("1g.24gb+", ""),
            ("1g.24gb+me all", ""),
            ("1g.24gb+aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", ""),
            ("", ""),
        ] {
            assert_eq!(suffix(name), expected, "{name}");
        }
    }

    #[test]
    fn mig_profiles_have_the_names_of_nvidias_tools() {
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
}
