//! Which version of CDI a file needs.

use super::edits::Edits;
use super::spec::Spec;
use super::version::Version;
use serde_json::{Map, Value};

/// The lowest version that has all that is in `spec`.
pub(super) fn version(spec: &Spec) -> Version {
    let class = spec.kind.split_once('/').map_or("", |(_, class)| class);
    let mut needed = Version::OLDEST;
    let mut need = |wanted: bool, version: Version| {
        if wanted {
            needed = needed.max(version);
        }
    };
    need(class.contains('.') || !spec.annotations.is_empty(), Version::new(0, 6));
    need(!spec.other.is_empty(), spec.cdi_version);
    for device in &spec.devices {
        need(device.name.starts_with(|first: char| first.is_ascii_digit()), Version::new(0, 5));
        need(!device.annotations.is_empty(), Version::new(0, 6));
        need(!device.other.is_empty(), spec.cdi_version);
        need(true, of_edits(&device.container_edits, spec.cdi_version));
    }
    need(true, of_edits(&spec.container_edits, spec.cdi_version));
    needed
}

fn of_edits(edits: &Edits, carried: Version) -> Version {
    let nodes = edits.device_nodes.iter().map(|node| {
        let own = if node.host_path.is_some() { Version::new(0, 5) } else { Version::OLDEST };
        own.max(of_unknown(&node.other, carried))
    });
    let mounts = edits.mounts.iter().map(|mount| {
        let own = if mount.kind.is_some() { Version::new(0, 4) } else { Version::OLDEST };
        own.max(of_unknown(&mount.other, carried))
    });
    let hooks = edits.hooks.iter().map(|hook| of_unknown(&hook.other, carried));
    let others = edits.other.keys().map(|key| match key.as_str() {
        "additionalGids" => Version::new(0, 7),
        "netDevices" => Version::new(1, 1),
        // What is inside `intelRdt` decides between 0.7 and 1.1; the file it came from knew.
        _ => carried,
    });
    nodes.chain(mounts).chain(hooks).chain(others).max().unwrap_or(Version::OLDEST)
}

fn of_unknown(other: &Map<String, Value>, carried: Version) -> Version {
    if other.is_empty() { Version::OLDEST } else { carried }
}
