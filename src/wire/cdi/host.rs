//! The edits for one GPU in the host's own CDI spec (kind `nvidia.com/gpu`, written by nvidia-ctk).
//!
//! The spec may be older than the running driver, so an index in it may now belong to another GPU. Edits that would
//! give a container the device node of another GPU are therefore refused.

use super::edits::{CdiDeviceNode, CdiEdits};
use super::spec::CdiSpec;
use crate::decode_error::shown;
use model::nvidia::{CAPABILITY_NODES, DEVICE_NODE};
use std::collections::BTreeSet;

/// The device in that spec that stands for all GPUs.
const ALL: &str = "all";

/// The edits for every container with a GPU, whichever GPU it gets.
///
/// # Errors
/// The text names the GPU's device node that every container would get.
pub fn for_all(spec: &CdiSpec) -> Result<&CdiEdits, String> {
    match spec.container_edits.device_nodes.iter().find(|node| gpu_number(node).is_some()) {
        Some(node) => Err(format!("gives {} to every container", shown(&node.path))),
        None => Ok(&spec.container_edits),
    }
}

/// The edits for a container that gets one device of the GPU `/dev/nvidiaN` with N = `minor`: the edits of the first of
/// `names` that the spec has. If it has none of these names, the device nodes of this GPU are taken from the spec's
/// device `all`. `None` if the spec has nothing for this device.
///
/// # Errors
/// The text names the device node of another GPU that the container would get.
pub fn for_device(spec: &CdiSpec, names: &[String], minor: u32) -> Result<Option<CdiEdits>, String> {
    if let Some(device) = names.iter().find_map(|name| spec.device(name)) {
        let gpus: BTreeSet<u32> = device.container_edits.device_nodes.iter().filter_map(gpu_number).collect();
        return match gpus.iter().find(|number| **number != minor) {
            Some(other) => Err(format!(
                "device {} is {DEVICE_NODE}{other} in that file and {DEVICE_NODE}{minor} on this node",
                shown(&device.name)
            )),
            None => Ok(Some(device.container_edits.clone())),
        };
    }
    let Some(all) = spec.device(ALL) else { return Ok(None) };
    let own = |node: &&CdiDeviceNode| match gpu_number(node) {
        Some(number) => number == minor,
        None => !node.path.starts_with(CAPABILITY_NODES),
    };
    let device_nodes: Vec<CdiDeviceNode> = all.container_edits.device_nodes.iter().filter(own).cloned().collect();
    let there = device_nodes.iter().any(|node| gpu_number(node).is_some());
    Ok(there.then(|| CdiEdits { device_nodes, ..CdiEdits::default() }))
}

/// The minor number of the GPU that this device node belongs to, by its path in the container or on the host.
fn gpu_number(node: &CdiDeviceNode) -> Option<u32> {
    gpu_of_path(&node.path).or_else(|| node.host_path.as_deref().and_then(gpu_of_path))
}

/// The minor number of the GPU whose device node has this path, even if the driver's files are below another folder.
pub(crate) fn gpu_of_path(path: &str) -> Option<u32> {
    path.rsplit_once(DEVICE_NODE).and_then(|(_, number)| number.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::super::{CdiHook, CdiMount, CdiVersion, decode, spec::CdiSpecDevice};
    use super::*;
    use model::nvidia::CDI_KIND;
    use proptest::prelude::*;
    use serde_json::Map;

    fn device(name: &str, nodes: &[&str]) -> CdiSpecDevice {
        let device_nodes = nodes.iter().map(|path| CdiDeviceNode::at(path)).collect();
        CdiSpecDevice {
            name: name.into(),
            annotations: std::collections::BTreeMap::new(),
            container_edits: CdiEdits { device_nodes, ..CdiEdits::default() },
            other: Map::new(),
        }
    }

    fn spec(devices: Vec<CdiSpecDevice>) -> CdiSpec {
        CdiSpec { devices, ..CdiSpec::of_device(CDI_KIND, "x", CdiEdits::default(), CdiVersion::OLDEST) }
    }

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    fn paths(edits: &CdiEdits) -> Vec<&str> {
        edits.device_nodes.iter().map(|node| node.path.as_str()).collect()
    }

    #[test]
    fn a_device_is_found_by_uuid_before_index() {
        let spec = spec(vec![
            device("0", &["/dev/nvidia0", "/dev/dri/card1"]),
            device("GPU-a", &["/dev/nvidia0", "/dev/dri/card7"]),
            device("1:0", &["/dev/nvidia1", "/dev/nvidia-caps/nvidia-cap21"]),
            device("all", &["/dev/nvidia0", "/dev/nvidia1"]),
        ]);
        let of = |requested: &[&str], minor| for_device(&spec, &names(requested), minor);
        assert_eq!(paths(&of(&["GPU-a", "0"], 0).unwrap().unwrap()), ["/dev/nvidia0", "/dev/dri/card7"]);
        assert_eq!(paths(&of(&["GPU-b", "0"], 0).unwrap().unwrap()), ["/dev/nvidia0", "/dev/dri/card1"]);
        let mig = of(&["MIG-a", "1:0"], 1).unwrap().unwrap();
        assert_eq!(paths(&mig), ["/dev/nvidia1", "/dev/nvidia-caps/nvidia-cap21"]);
    }

    #[test]
    fn a_device_node_that_leads_to_another_gpu_is_left_out() {
        let old = spec(vec![device("0", &["/dev/nvidia3"])]);
        let why = for_device(&old, &names(&["GPU-a", "0"]), 0).unwrap_err();
        assert!(why.contains("/dev/nvidia3"), "{why}");
        let mut behind = spec(vec![device("0", &["/dev/nvidia0"])]);
        behind.devices[0].container_edits.device_nodes[0].path = "/dev/gpu".into();
        behind.devices[0].container_edits.device_nodes[0].host_path = Some("/run/nvidia/driver/dev/nvidia2".into());
        assert!(for_device(&behind, &names(&["0"]), 0).is_err());
        let mut loose = spec(vec![device("0", &["/dev/nvidia0"])]);
        assert!(for_all(&loose).is_ok());
        loose.container_edits.device_nodes =
            vec![CdiDeviceNode::at("/dev/nvidiactl"), CdiDeviceNode::at("/dev/nvidia1")];
        assert!(for_all(&loose).unwrap_err().contains("/dev/nvidia1"));
    }

    /// The CDI spec of the GPU Operator names no single device, and only this spec has the paths of the device nodes in
    /// the driver container.
    #[test]
    fn a_gpu_gets_only_its_own_node_of_the_device_all() {
        let spec = decode(include_bytes!("../../../tests/golden/cdi/nvidia-ctk.json")).unwrap();
        let edits = for_device(&spec, &names(&["GPU-a", "1"]), 1).unwrap().unwrap();
        let expect =
            ["/dev/nvidia-modeset", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia1", "/dev/nvidiactl"];
        assert_eq!(paths(&edits), expect);
        assert!(
            edits.device_nodes.iter().all(|node| node.host_path.as_ref().unwrap().starts_with("/run/nvidia/driver"))
        );
        assert_eq!(for_device(&spec, &names(&["GPU-a", "7"]), 7), Ok(None));
        assert!(!for_all(&spec).unwrap().mounts.is_empty());
    }

    proptest! {
        #[test]
        fn no_container_gets_the_device_node_of_another_gpu(
            nodes in prop::collection::vec(("0|1|all|GPU-a", prop::collection::vec("/dev/nvidia[0-3]|/dev/nvidiactl|/x/dev/nvidia[0-3]|/dev/nvidia-caps/nvidia-cap[0-9]", 0..4)), 1..4),
            requested in prop::collection::vec("0|1|2|GPU-a", 0..3), minor in 0_u32..4,
        ) {
            let devices = nodes.iter().map(|(name, nodes)| {
                let nodes: Vec<&str> = nodes.iter().map(String::as_str).collect();
                device(name, &nodes)
            });
            let mut spec = spec(devices.collect());
            spec.devices[0].container_edits.hooks = vec![CdiHook::default()];
            spec.devices[0].container_edits.mounts = vec![CdiMount::read_only("/a", "/b")];
            if let Ok(Some(edits)) = for_device(&spec, &requested, minor) {
                for path in paths(&edits) {
                    let number = path.rsplit_once("/dev/nvidia").and_then(|(_, number)| number.parse::<u32>().ok());
                    prop_assert!(number.is_none_or(|number| number == minor), "{}", path);
                }
            }
        }
    }
}
