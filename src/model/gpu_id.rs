//! The device ids of any plugin for NVIDIA's GPUs, as the kubelet stores them.
//!
//! ```text
//!   GPU-…            NVIDIA's plugin: the whole GPU          MIG-…, MIG-GPU-…/1/0   NVIDIA's plugin: a MIG instance
//!   GPU-…::3         NVIDIA's plugin: a time slice           GPU-…-3                HAMi's plugin, and ours: a slot
//! ```

use crate::id::GpuUuid;
use crate::nvidia;
use crate::slot::Slot;

/// Whether a device id is that of a GPU or MIG instance, by its prefix.
#[must_use]
pub fn is_of_gpu(id: &str) -> bool {
    id.starts_with(nvidia::GPU_UUID) || id.starts_with(nvidia::MIG_UUID)
}

/// The GPUs or MIG instances that a device id may mean, the most likely one first. Only a node that has one of them knows
/// which one it is: `GPU-1` may be a GPU or a slot of another one.
#[must_use]
pub fn meanings(id: &str) -> Vec<GpuUuid> {
    let replica = id.split_once("::").map(|(device, _)| device);
    let slot = Slot::parse(id).map(|slot| slot.device);
    // Drivers before R470 name a MIG instance by its GPU.
    let parent = id.strip_prefix(nvidia::MIG_UUID).and_then(|rest| rest.split_once('/')).map(|(gpu, _)| gpu);
    let parsed = |text: &str| GpuUuid::parse(text).ok();
    [parsed(id), replica.and_then(parsed), slot, parent.and_then(parsed)].into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_of_any_plugin_has_the_gpu_among_its_meanings() {
        let gpu = "GPU-0f5b9a3e-0d2c-4b7f-9a51-2f1f6a1f8d11";
        for (id, expect) in [
            (gpu.to_owned(), gpu),
            (format!("{gpu}::3"), gpu),
            (format!("{gpu}-3"), gpu),
            (format!("MIG-{gpu}/13/0"), gpu),
            ("MIG-1f5b9a3e-0d2c-4b7f-9a51-2f1f6a1f8d11::0".to_owned(), "MIG-1f5b9a3e-0d2c-4b7f-9a51-2f1f6a1f8d11"),
        ] {
            let meanings = meanings(&id);
            assert!(meanings.iter().any(|one| one.as_str() == expect), "{id}: {meanings:?}");
            assert!(is_of_gpu(&id), "{id}");
        }
        assert_eq!(meanings(gpu).len(), 1, "the last part of a UUID is no slot");
        assert!(meanings("").is_empty() && !is_of_gpu("nvidia0") && !is_of_gpu("eth0"));
    }
}
