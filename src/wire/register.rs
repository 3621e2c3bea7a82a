//! The register of a node (`hami.io/node-nvidia-register`): the list of its GPUs for the scheduler.
//!
//! ```text
//!   [{"id":"GPU-…","count":10,"devmem":81559,"devcore":100,"type":"NVIDIA H100 80GB HBM3",
//!     "mode":"hami-core","health":true}]
//!   GPU-…,10,81559,100,NVIDIA-Tesla T4,0,true[,index,mode]:       HAMi up to 2.7.1, and other vendors
//! ```
//!
//! [`decode`] reads both forms; a text that starts with `[` is JSON. In JSON an absent field is zero, false or empty,
//! so a GPU without the field `health` is unhealthy. Unknown fields are skipped. [`encode`] writes JSON, ordered by
//! UUID, with the fields in HAMi's order and without fields that are zero, so that equal registers give equal texts.

use crate::annotation_keys::{MAX_ANNOTATION, REGISTER};
use crate::decode_error::{DecodeError, shown};
use model::gpu::MAX_GPUS;
use model::id::GpuUuid;
use model::nvidia::VENDOR;
use model::registered::{MigPlacement, MigProfile, RegisteredGpu};
use model::unit::{CorePercent, Mib};
use serde::{Deserialize, Serialize};
use std::borrow::Cow;

/// Maximum number of MIG profiles of one GPU, and of placements of one profile: NVIDIA has fewer than 20 profiles, with
/// 8 placements each.
const MAX_PROFILES: usize = 64;
/// Maximum number: HAMi's programs hold counts, MiB and percent in signed 32-bit integers.
const MAX_NUMBER: u64 = i32::MAX as u64;
/// The mode of an entry in the form with seven fields, which has neither index nor mode.
const OLD_MODE: &str = "hami-core";

#[derive(Serialize, Deserialize)]
struct Entry<'a> {
    #[serde(borrow)]
    id: Cow<'a, str>,
    #[serde(default, skip_serializing_if = "is_zero")]
    index: i64,
    #[serde(default, skip_serializing_if = "is_zero")]
    count: i64,
    #[serde(default, skip_serializing_if = "is_zero")]
    devmem: i64,
    #[serde(default, skip_serializing_if = "is_zero")]
    devcore: i64,
    #[serde(borrow, default, rename = "type", skip_serializing_if = "str::is_empty")]
    kind: Cow<'a, str>,
    #[serde(default, skip_serializing_if = "is_zero")]
    numa: i64,
    #[serde(borrow, default, skip_serializing_if = "str::is_empty")]
    mode: Cow<'a, str>,
    #[serde(borrow, rename = "migProfiles", default, skip_serializing_if = "Option::is_none")]
    mig_profiles: Option<Vec<Profile<'a>>>,
    #[serde(default, skip_serializing_if = "is_false")]
    health: bool,
}

#[derive(Serialize, Deserialize)]
struct Profile<'a> {
    #[serde(borrow, default)]
    name: Cow<'a, str>,
    #[serde(rename = "memoryMB", default)]
    memory: i64,
    #[serde(default)]
    core: i64,
    #[serde(rename = "sliceCount", default)]
    slices: i64,
    #[serde(default)]
    placements: Option<Vec<Placement>>,
}

#[derive(Serialize, Deserialize)]
struct Placement {
    #[serde(default)]
    start: i64,
    #[serde(default)]
    size: i64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(number: &i64) -> bool {
    *number == 0
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_false(flag: &bool) -> bool {
    !flag
}

/// The product name by which users select a GPU: the name from NVML, with `NVIDIA-` before it unless it begins with
/// `NVIDIA`.
#[must_use]
pub fn product(nvml_name: &str) -> String {
    if nvml_name.starts_with(VENDOR) { nvml_name.to_owned() } else { format!("{VENDOR}-{nvml_name}") }
}

/// Reads either form, in the order of the text.
///
/// # Errors
/// [`DecodeError`] if an entry cannot be read or appears twice, or there are more than [`MAX_GPUS`] entries.
pub fn decode(text: &str) -> Result<Vec<RegisteredGpu>, DecodeError> {
    if text.len() > MAX_ANNOTATION {
        return Err(DecodeError::too_long(REGISTER, text.len(), MAX_ANNOTATION));
    }
    let gpus = if text.trim_start().starts_with('[') { from_json(text)? } else { from_colons(text)? };
    for (number, gpu) in gpus.iter().enumerate() {
        if gpus.iter().take(number).any(|other| other.uuid == gpu.uuid) {
            return Err(DecodeError::new(REGISTER, 0, format!("entry {number}: {} appears twice", gpu.uuid)));
        }
    }
    Ok(gpus)
}

fn from_json(text: &str) -> Result<Vec<RegisteredGpu>, DecodeError> {
    let entries: Vec<Entry<'_>> =
        serde_json::from_str(text).map_err(|error| DecodeError::json(REGISTER, text.as_bytes(), &error))?;
    if entries.len() > MAX_GPUS {
        return Err(DecodeError::too_many(REGISTER, 0, "GPUs", MAX_GPUS));
    }
    let read = |(number, entry): (usize, &Entry<'_>)| {
        entry.read().map_err(|what| DecodeError::new(REGISTER, 0, format!("entry {number}: {what}")))
    };
    entries.iter().enumerate().map(read).collect()
}

fn from_colons(text: &str) -> Result<Vec<RegisteredGpu>, DecodeError> {
    if !text.contains(':') {
        return Err(DecodeError::new(
            REGISTER,
            0,
            format!("is neither JSON nor entries that end in a colon: {}", shown(text)),
        ));
    }
    let mut gpus = Vec::new();
    let mut at = 0;
    for entry in text.split(':') {
        if !entry.trim().is_empty() {
            if gpus.len() == MAX_GPUS {
                return Err(DecodeError::too_many(REGISTER, at, "GPUs", MAX_GPUS));
            }
            gpus.push(colon_entry(entry.trim()).map_err(|what| DecodeError::new(REGISTER, at, what))?);
        }
        at += entry.len() + 1;
    }
    Ok(gpus)
}

fn colon_entry(entry: &str) -> Result<RegisteredGpu, String> {
    let fields: Vec<&str> = entry.split(',').take(10).collect();
    let (head, index, mode) = match fields.as_slice() {
        [head @ .., index, mode] if head.len() == 7 => (head, *index, *mode),
        head if head.len() == 7 => (head, "0", OLD_MODE),
        other => return Err(format!("has {} fields where 7 or 9 are expected", other.len())),
    };
    let &[id, count, memory, cores, kind, numa, health] = head else {
        return Err("does not have 7 fields".into());
    };
    let integer = |name: &str, text: &str| text.parse().map_err(|_| format!("{name} is not a number: {}", shown(text)));
    let health = match health {
        "true" => true,
        "false" => false,
        other => return Err(format!("health is neither true nor false: {}", shown(other))),
    };
    Entry {
        id: id.into(),
        index: integer("index", index)?,
        count: integer("count", count)?,
        devmem: integer("devmem", memory)?,
        devcore: integer("devcore", cores)?,
        kind: kind.into(),
        numa: integer("numa", numa)?,
        mode: mode.into(),
        mig_profiles: None,
        health,
    }
    .read()
}

impl Entry<'_> {
    fn read(&self) -> Result<RegisteredGpu, String> {
        let profiles = self.mig_profiles.as_deref().unwrap_or_default();
        if profiles.len() > MAX_PROFILES {
            return Err(format!("has more than {MAX_PROFILES} MIG profiles"));
        }
        Ok(RegisteredGpu {
            uuid: GpuUuid::parse(&self.id).map_err(|error| error.to_string())?,
            index: small("index", self.index)?,
            slots: small("count", self.count)?,
            memory: Mib(u64::from(small("devmem", self.devmem)?)),
            cores: CorePercent(small("devcore", self.devcore)?),
            product: self.kind.as_ref().into(),
            // The kernel writes -1 for an unknown NUMA node.
            numa: small("numa", self.numa.max(0))?,
            mode: self.mode.as_ref().into(),
            healthy: self.health,
            mig_profiles: profiles.iter().map(Profile::read).collect::<Result<_, _>>()?,
        })
    }

    fn of(gpu: &RegisteredGpu) -> Entry<'_> {
        let profiles: Vec<Profile<'_>> = gpu.mig_profiles.iter().map(Profile::of).collect();
        Entry {
            id: gpu.uuid.as_str().into(),
            index: gpu.index.into(),
            count: gpu.slots.into(),
            devmem: i64::try_from(gpu.memory.0).unwrap_or(i64::MAX),
            devcore: gpu.cores.0.into(),
            kind: gpu.product.as_ref().into(),
            numa: gpu.numa.into(),
            mode: gpu.mode.as_ref().into(),
            mig_profiles: if profiles.is_empty() { None } else { Some(profiles) },
            health: gpu.healthy,
        }
    }
}

impl Profile<'_> {
    fn read(&self) -> Result<MigProfile, String> {
        let placements = self.placements.as_deref().unwrap_or_default();
        if placements.len() > MAX_PROFILES {
            return Err(format!("profile {} has more than {MAX_PROFILES} places", shown(&self.name)));
        }
        let place =
            |one: &Placement| Ok(MigPlacement { start: small("start", one.start)?, size: small("size", one.size)? });
        Ok(MigProfile {
            name: self.name.as_ref().into(),
            memory: Mib(u64::from(small("memoryMB", self.memory)?)),
            cores: CorePercent(small("core", self.core)?),
            slices: small("sliceCount", self.slices)?,
            placements: placements.iter().map(place).collect::<Result<_, String>>()?,
        })
    }

    fn of(profile: &MigProfile) -> Profile<'_> {
        let place = |one: &MigPlacement| Placement { start: one.start.into(), size: one.size.into() };
        Profile {
            name: profile.name.as_ref().into(),
            memory: i64::try_from(profile.memory.0).unwrap_or(i64::MAX),
            core: profile.cores.0.into(),
            slices: profile.slices.into(),
            placements: Some(profile.placements.iter().map(place).collect()),
        }
    }
}

fn small(name: &str, number: i64) -> Result<u32, String> {
    u32::try_from(number)
        .ok()
        .filter(|number| u64::from(*number) <= MAX_NUMBER)
        .ok_or_else(|| format!("{name} is not between 0 and {MAX_NUMBER}: {number}"))
}

/// Writes the canonical form: JSON, ordered by UUID.
///
/// # Errors
/// [`DecodeError`] for a number beyond 31 bits or a GPU that appears twice: no reader of this annotation accepts these.
pub fn encode(gpus: &[RegisteredGpu]) -> Result<String, DecodeError> {
    let ordered = ordered(gpus)?;
    let entries: Vec<Entry<'_>> = ordered.iter().map(|gpu| Entry::of(gpu)).collect();
    serde_json::to_string(&entries).map_err(|error| DecodeError::new(REGISTER, 0, error.to_string()))
}

/// Writes the colon form with nine fields, for schedulers up to HAMi 2.7.1. It cannot hold MIG profiles.
///
/// # Errors
/// As [`encode`], and for a text that contains a separator of this form.
pub fn encode_colons(gpus: &[RegisteredGpu]) -> Result<String, DecodeError> {
    let mut text = String::new();
    for gpu in ordered(gpus)? {
        for word in [gpu.uuid.as_str(), &gpu.product, &gpu.mode] {
            if word.contains([',', ':']) || gpu.uuid.as_str().starts_with('[') {
                return Err(DecodeError::new(
                    REGISTER,
                    text.len(),
                    format!("{} cannot be written with colons", shown(word)),
                ));
            }
        }
        let RegisteredGpu { uuid, index, slots, memory, cores, product, numa, mode, healthy, .. } = gpu;
        let (memory, cores) = (memory.0, cores.0);
        text.push_str(&format!("{uuid},{slots},{memory},{cores},{product},{numa},{healthy},{index},{mode}:"));
    }
    Ok(text)
}

fn ordered(gpus: &[RegisteredGpu]) -> Result<Vec<&RegisteredGpu>, DecodeError> {
    let mut ordered: Vec<&RegisteredGpu> = gpus.iter().collect();
    ordered.sort_by(|one, other| one.uuid.cmp(&other.uuid));
    for (number, gpu) in ordered.iter().enumerate() {
        let fault = |what: String| Err(DecodeError::new(REGISTER, 0, format!("entry {number}: {what}")));
        let profiles = gpu.mig_profiles.iter();
        let numbers = [gpu.index.into(), gpu.slots.into(), gpu.memory.0, gpu.cores.0.into(), gpu.numa.into()];
        let of_profiles = profiles.flat_map(|one| [one.memory.0, one.cores.0.into(), one.slices.into()]);
        if let Some(large) = numbers.into_iter().chain(of_profiles).find(|number| *number > MAX_NUMBER) {
            return fault(format!("{large} is more than {MAX_NUMBER}"));
        }
        if ordered.get(number + 1).is_some_and(|next| next.uuid == gpu.uuid) {
            return fault(format!("{} appears twice", gpu.uuid));
        }
    }
    Ok(ordered)
}

#[cfg(test)]
mod tests;
