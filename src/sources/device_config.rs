//! HAMi's device configuration: the YAML file that a setting names.
//!
//! What must never happen here: a file that cannot be read is taken for an empty one; a part that is not understood
//! gives no warning.

use crate::bounded_file;
use model::id::NodeName;
use std::path::Path;
use wire::device_config::{self, ConfigWarning, DeviceConfig};

/// Longest file that is read, in bytes; the device configuration of HAMi's chart has 10 KiB.
const MAX_BYTES: usize = 1024 * 1024;
/// The key of the list with settings of single nodes.
const NODES: &str = "nodeconfig";

/// The configuration of this node, and warnings about the parts that are not understood.
///
/// # Errors
/// A text that says what is wrong with the file, without its name.
pub fn read(path: &Path, node: &NodeName) -> Result<(DeviceConfig, Vec<ConfigWarning>), String> {
    let (mut config, mut warnings, nodes) = read_parts(path)?;
    let more = device_config::for_node(&nodes.into(), node.as_str(), &mut config).map_err(|fault| fault.to_string())?;
    warnings.extend(more);
    Ok((config, warnings))
}

/// The configuration of all nodes, without the settings of single ones.
///
/// # Errors
/// A text that says what is wrong with the file, without its name.
pub fn read_common(path: &Path) -> Result<(DeviceConfig, Vec<ConfigWarning>), String> {
    read_parts(path).map(|(config, warnings, _)| (config, warnings))
}

type Parts = (DeviceConfig, Vec<ConfigWarning>, serde_json::Map<String, serde_json::Value>);

fn read_parts(path: &Path) -> Result<Parts, String> {
    let text = bounded_file::read_text(path, MAX_BYTES).map_err(|error| error.to_string())?;
    let mut value: serde_json::Value = serde_saphyr::from_str(&text).map_err(|error| error.to_string())?;
    // HAMi keeps the settings of nodes in a separate file; here they may be in the same file.
    let mut nodes = serde_json::Map::new();
    if let Some(sections) = value.as_object_mut() {
        let key = sections.keys().find(|key| key.eq_ignore_ascii_case(NODES)).cloned();
        nodes.extend(key.and_then(|key| sections.remove_entry(&key)));
    }
    let (config, warnings) = device_config::read(&value).map_err(|fault| fault.to_string())?;
    Ok((config, warnings, nodes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn node_settings_override_common_settings_and_a_broken_file_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let (path, node) = (folder.path().join("device-config.yaml"), NodeName::parse("node-1").unwrap());
        assert!(read(&path, &node).is_err(), "no file");
        let text = "nvidia: {deviceSplitCount: 4}\nNodeConfig: [{name: node-1, devicesplitcount: 7}, {name: node-2, devicesplitcount: 9}]\n";
        std::fs::write(&path, text).unwrap();
        assert_eq!(read(&path, &node).unwrap().0.slots, 7);
        assert_eq!(read(&path, &NodeName::parse("node-3").unwrap()).unwrap().0.slots, 4);
        assert_eq!(read_common(&path).unwrap().0.slots, 4);
        for (text, word) in [("{".to_owned(), ""), ("#".repeat(MAX_BYTES + 1), "longer than")] {
            std::fs::write(&path, text).unwrap();
            let why = read(&path, &node).unwrap_err();
            assert!(why.contains(word), "{why}");
        }
    }
}
