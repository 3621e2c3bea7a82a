//! The device ids of any plugin for NVIDIA's GPUs, as the kubelet stores them.
//!
//! ```text
//!   GPU-…            NVIDIA's plugin: the whole GPU          MIG-…, MIG-GPU-…/1/0   NVIDIA's plugin: a MIG instance
//!   GPU-…::3         NVIDIA's plugin: a time slice           GPU-…-3                HAMi's plugin, and ours: a slot
//!   GPU-…__1, GPU-…_3, GPU-…-_-3                             other plugins that share GPUs
//! ```

use crate::id::GpuUuid;
use crate::nvidia;

/// Upper bound on the beginnings of an id that may be UUIDs. A UUID has at most seven parts (`MIG-GPU-…`), so later
/// beginnings are too long for a UUID.
const MAX_BEGINNINGS: usize = 16;

/// Whether a device id is the id of a GPU or MIG instance, by its prefix.
#[must_use]
pub fn is_of_gpu(id: &str) -> bool {
    id.starts_with(nvidia::GPU_UUID) || id.starts_with(nvidia::MIG_UUID)
}

/// The GPUs or MIG instances that a device id may mean, the most likely first: the id itself, and each beginning of it
/// that ends before a character other than a letter or digit. Only a node that has one of these devices knows which device
/// it is: `GPU-1-2` may be a GPU or a slot of `GPU-1`.
#[must_use]
pub fn meanings(id: &str) -> Vec<GpuUuid> {
    let ends = id.char_indices().filter(|(_, char)| !char.is_ascii_alphanumeric());
    let beginnings: Vec<&str> = ends.filter_map(|(end, _)| id.get(..end)).take(MAX_BEGINNINGS).collect();
    // Drivers before R470 name a MIG instance by its GPU.
    let parent = id.strip_prefix(nvidia::MIG_UUID).and_then(|rest| rest.split_once('/')).map(|(gpu, _)| gpu);
    let texts = std::iter::once(id).chain(beginnings.into_iter().rev()).chain(parent);
    texts.filter_map(|text| GpuUuid::parse(text).ok()).collect()
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
            (format!("{gpu}__1"), gpu),
            (format!("{gpu}_3"), gpu),
            (format!("{gpu}-_-3"), gpu),
            (format!("{gpu}é3"), gpu),
            (format!("MIG-{gpu}/13/0"), gpu),
            ("MIG-1f5b9a3e-0d2c-4b7f-9a51-2f1f6a1f8d11::0".to_owned(), "MIG-1f5b9a3e-0d2c-4b7f-9a51-2f1f6a1f8d11"),
        ] {
            let meanings = meanings(&id);
            assert!(meanings.iter().any(|one| one.as_str() == expect), "{id}: {meanings:?}");
            assert!(is_of_gpu(&id), "{id}");
        }
        assert_eq!(meanings(gpu)[0].as_str(), gpu, "the id itself is the most likely meaning");
        assert!(meanings("").is_empty() && !is_of_gpu("nvidia0") && !is_of_gpu("eth0"));
        assert!(!meanings(&format!("{gpu}3")).iter().any(|one| one.as_str() == gpu), "the UUID of another GPU");
        assert!(meanings(&"-".repeat(1000)).len() <= MAX_BEGINNINGS);
    }
}
