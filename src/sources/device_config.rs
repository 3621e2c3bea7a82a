//! HAMi's device configuration: the files that a setting names. HAMi has the settings of single nodes in a separate file;
//! here they may be in the same file, in another file, or alone.
//!
//! What must never happen here: an unreadable file is taken for an empty file; a part that is not understood gives no
//! warning.

use crate::bounded_file;
use model::id::NodeName;
use std::path::{Path, PathBuf};
use wire::device_config::{self, ConfigWarning, DeviceConfig};

/// Longest file that is read, in bytes; the device configuration of HAMi's chart has 10 KiB.
const MAX_BYTES: usize = 1024 * 1024;
/// The key of the list with settings of single nodes.
const NODES: &str = "nodeconfig";

/// The configuration of this node, and warnings about the parts that are not understood.
///
/// # Errors
/// A text that names the file and says what is wrong with it.
pub fn read(paths: &[PathBuf], node: &NodeName) -> Result<(DeviceConfig, Vec<ConfigWarning>), String> {
    let (mut config, mut warnings, nodes) = read_parts(paths)?;
    for (path, nodes) in nodes {
        let more = device_config::for_node(&nodes.into(), node.as_str(), &mut config);
        warnings.extend(more.map_err(|fault| in_file(path, &fault))?);
    }
    Ok((config, warnings))
}

/// The configuration of all nodes, without the settings of single nodes.
///
/// # Errors
/// A text that names the file and says what is wrong with it.
pub fn read_common(paths: &[PathBuf]) -> Result<(DeviceConfig, Vec<ConfigWarning>), String> {
    read_parts(paths).map(|(config, warnings, _)| (config, warnings))
}

type Nodes = serde_json::Map<String, serde_json::Value>;
/// The common settings, and the settings of single nodes in each file.
type Parts<'a> = (DeviceConfig, Vec<ConfigWarning>, Vec<(&'a Path, Nodes)>);

fn read_parts(paths: &[PathBuf]) -> Result<Parts<'_>, String> {
    let mut common: Option<(&Path, DeviceConfig, Vec<ConfigWarning>)> = None;
    let mut all_nodes = Vec::new();
    for path in paths {
        let text = bounded_file::read_text(path, MAX_BYTES).map_err(|error| in_file(path, &error))?;
        let mut value: serde_json::Value = serde_saphyr::from_str(&text).map_err(|error| in_file(path, &error))?;
        let mut nodes = Nodes::new();
        if let Some(sections) = value.as_object_mut() {
            let key = sections.keys().find(|key| key.eq_ignore_ascii_case(NODES)).cloned();
            nodes.extend(key.and_then(|key| sections.remove_entry(&key)));
        }
        let only_nodes = !nodes.is_empty() && value.as_object().is_some_and(Nodes::is_empty);
        all_nodes.push((path.as_path(), nodes));
        if only_nodes {
            continue;
        }
        if let Some((first, ..)) = &common {
            let why = format!("{} has settings of vendors too; name one such file", first.display());
            return Err(in_file(path, &why));
        }
        let (config, warnings) = device_config::read(&value).map_err(|fault| in_file(path, &fault))?;
        common = Some((path, config, warnings));
    }
    let (config, warnings) = common.map(|(_, config, warnings)| (config, warnings)).unwrap_or_default();
    Ok((config, warnings, all_nodes))
}

fn in_file(path: &Path, why: &dyn std::fmt::Display) -> String {
    format!("{}: {why}", path.display())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn node_settings_override_common_settings_and_a_broken_file_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let (path, node) = (folder.path().join("device-config.yaml"), NodeName::parse("node-1").unwrap());
        let read = |path: &Path, node: &NodeName| super::read(&[path.to_owned()], node);
        assert!(read(&path, &node).is_err(), "no file");
        let text = "nvidia: {deviceSplitCount: 4}\nNodeConfig: [{name: node-1, devicesplitcount: 7}, {name: node-2, devicesplitcount: 9}]\n";
        std::fs::write(&path, text).unwrap();
        assert_eq!(read(&path, &node).unwrap().0.slots, 7);
        assert_eq!(read(&path, &NodeName::parse("node-3").unwrap()).unwrap().0.slots, 4);
        assert_eq!(read_common(std::slice::from_ref(&path)).unwrap().0.slots, 4);
        for (text, word) in [("{".to_owned(), ""), ("#".repeat(MAX_BYTES + 1), "longer than")] {
            std::fs::write(&path, text).unwrap();
            let why = read(&path, &node).unwrap_err();
            assert!(why.contains(word) && why.starts_with(&format!("{}: ", path.display())), "{why}");
        }
    }

    /// HAMi's chart has the settings of nodes in a ConfigMap of its own, `config.json`.
    #[test]
    fn the_file_with_the_settings_of_nodes_is_read_alone_and_beside_the_common_one() {
        let folder = tempfile::tempdir().unwrap();
        let (common, nodes) = (folder.path().join("device-config.yaml"), folder.path().join("config.json"));
        let text = r#"{"nodeconfig":[{"name":"node-1","operatingmode":"hami-core","devicesplitcount":7,"filterdevices":{"uuid":["GPU-1"]}}]}"#;
        std::fs::write(&nodes, text).unwrap();
        std::fs::write(&common, "nvidia: {deviceSplitCount: 4, deviceMemoryScaling: 2}\n").unwrap();
        let node = |name: &str| NodeName::parse(name).unwrap();
        let alone = std::slice::from_ref(&nodes);
        let (config, warnings) = read(alone, &node("node-1")).unwrap();
        assert_eq!((config.slots, config.hidden_uuids.len(), warnings.len()), (7, 1, 0), "{warnings:?}");
        assert_eq!(read(alone, &node("node-2")).unwrap().0, DeviceConfig::default());
        assert_eq!(read_common(alone).unwrap().0, DeviceConfig::default());
        for both in [[common.clone(), nodes.clone()], [nodes.clone(), common.clone()]] {
            let config = read(&both, &node("node-1")).unwrap().0;
            assert_eq!((config.slots, config.memory_scaling.factor()), (7, 2.0), "{both:?}");
            assert_eq!(read(&both, &node("node-2")).unwrap().0.slots, 4);
        }
        let why = read(&[common.clone(), common.clone()], &node("node-1")).unwrap_err();
        assert!(why.contains("has settings of vendors too; name one such file"), "{why}");
        std::fs::write(&nodes, "{}").unwrap();
        assert!(read(alone, &node("node-1")).unwrap_err().contains("is empty, or not a mapping of vendors"));
    }
}
