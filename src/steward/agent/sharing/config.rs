//! How GPUs are cut: HAMi's device YAML as it is, overridden by our own settings.

use crate::settings::Sharing;
use model::id::NodeName;
use std::path::Path;
use wire::device_config::{self, DeviceConfig, Warning};

/// A device configuration of HAMi's chart is 10 KiB; this much is read of a file at most.
const MAX_BYTES: u64 = 1024 * 1024;

/// The configuration that holds on this node.
///
/// # Errors
/// A sentence that names the file.
pub(crate) fn read(settings: &Sharing, node: &NodeName) -> Result<DeviceConfig, String> {
    let mut config = DeviceConfig::default();
    if let Some(path) = &settings.device_config {
        let (read, warnings) =
            of_file(path, node).map_err(|why| format!("device configuration {}: {why}", path.display()))?;
        config = read;
        for warning in warnings {
            tracing::warn!(file = %path.display(), "device configuration: {warning}");
        }
    }
    if let Some(count) = settings.split_count {
        config.slots = count;
    }
    if let Some(factor) = settings.memory_scaling {
        config.memory_scaling = factor;
    }
    if let Some(factor) = settings.core_scaling {
        config.core_scaling = factor;
    }
    if let Some(name) = &settings.resource {
        config.rules.names.count.clone_from(name);
    }
    Ok(config)
}

fn of_file(path: &Path, node: &NodeName) -> Result<(DeviceConfig, Vec<Warning>), String> {
    use std::io::Read;
    let mut text = String::new();
    let file = std::fs::File::open(path).map_err(|error| error.to_string())?;
    let read = file.take(MAX_BYTES + 1).read_to_string(&mut text).map_err(|error| error.to_string())?;
    if read as u64 > MAX_BYTES {
        return Err(format!("is longer than {MAX_BYTES} bytes"));
    }
    let value: serde_json::Value = serde_saphyr::from_str(&text).map_err(|error| error.to_string())?;
    let (mut config, mut warnings) = device_config::read(&value).map_err(|fault| fault.to_string())?;
    warnings.extend(device_config::for_node(&value, node.as_str(), &mut config).map_err(|fault| fault.to_string())?);
    Ok((config, warnings))
}
