//! The lowest version of CDI that a spec needs.

use super::edits::CdiEdits;
use super::spec::CdiSpec;
use super::version::CdiVersion;
use serde_json::{Map, Value};

/// The lowest version that has all fields and names of `spec`.
pub(super) fn version(spec: &CdiSpec) -> CdiVersion {
    let class = spec.kind.split_once('/').map_or("", |(_, class)| class);
    let mut needed = CdiVersion::OLDEST;
    let mut need = |used: bool, version: CdiVersion| {
        if used {
            needed = needed.max(version);
        }
    };
    need(class.contains('.') || !spec.annotations.is_empty(), CdiVersion::new(0, 6));
    need(!spec.other.is_empty(), spec.cdi_version);
    for device in &spec.devices {
        need(device.name.starts_with(|first: char| first.is_ascii_digit()), CdiVersion::new(0, 5));
        need(!device.annotations.is_empty(), CdiVersion::new(0, 6));
        need(!device.other.is_empty(), spec.cdi_version);
        need(true, of_edits(&device.container_edits, spec.cdi_version));
    }
    need(true, of_edits(&spec.container_edits, spec.cdi_version));
    needed
}

fn of_edits(edits: &CdiEdits, carried: CdiVersion) -> CdiVersion {
    let nodes = edits.device_nodes.iter().map(|node| {
        let own = if node.host_path.is_some() { CdiVersion::new(0, 5) } else { CdiVersion::OLDEST };
        own.max(of_unknown(&node.other, carried))
    });
    let mounts = edits.mounts.iter().map(|mount| {
        let own = if mount.kind.is_some() { CdiVersion::new(0, 4) } else { CdiVersion::OLDEST };
        own.max(of_unknown(&mount.other, carried))
    });
    let hooks = edits.hooks.iter().map(|hook| of_unknown(&hook.other, carried));
    let others = edits.other.keys().map(|key| match key.as_str() {
        "additionalGids" => CdiVersion::new(0, 7),
        "netDevices" => CdiVersion::new(1, 1),
        // Among these is `intelRdt`, whose fields need 0.7 or 1.1; the version of the source spec is enough for it.
        _ => carried,
    });
    nodes.chain(mounts).chain(hooks).chain(others).max().unwrap_or(CdiVersion::OLDEST)
}

fn of_unknown(other: &Map<String, Value>, carried: CdiVersion) -> CdiVersion {
    if other.is_empty() { CdiVersion::OLDEST } else { carried }
}
