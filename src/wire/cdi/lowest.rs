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
    newest_field(edits, carried).map_or(CdiVersion::OLDEST, |(_, version)| version)
}

/// The field of these edits that needs the highest version, if any needs more than the oldest version. Fields that this
/// crate does not know need the version of the spec that they came from, which is `carried`.
pub(super) fn newest_field(edits: &CdiEdits, carried: CdiVersion) -> Option<(&str, CdiVersion)> {
    let nodes = edits.device_nodes.iter().flat_map(|node| {
        let own = node.host_path.iter().map(|_| ("hostPath of a device node", CdiVersion::new(0, 5)));
        own.chain(unknown(&node.other, carried))
    });
    let mounts = edits.mounts.iter().flat_map(|mount| {
        let own = mount.kind.iter().map(|_| ("type of a mount", CdiVersion::new(0, 4)));
        own.chain(unknown(&mount.other, carried))
    });
    let hooks = edits.hooks.iter().flat_map(|hook| unknown(&hook.other, carried));
    let others = edits.other.keys().map(|key| (key.as_str(), of_field(key, carried)));
    nodes.chain(mounts).chain(hooks).chain(others).max_by_key(|(_, version)| *version)
}

/// The version that has this field of a set of edits.
pub(super) fn of_field(key: &str, carried: CdiVersion) -> CdiVersion {
    match key {
        GIDS => CdiVersion::new(0, 7),
        "netDevices" => CdiVersion::new(1, 1),
        // Its fields need 0.7 or 1.1; the version of the source spec is enough for them.
        RDT => carried.max(CdiVersion::new(0, 7)),
        _ => carried,
    }
}

fn unknown(other: &Map<String, Value>, carried: CdiVersion) -> impl Iterator<Item = (&str, CdiVersion)> {
    other.keys().map(move |key| (key.as_str(), carried))
}

/// Groups that the container's processes join, for device nodes that only these groups may open.
pub(super) const GIDS: &str = "additionalGids";
/// A class of processor caches and memory bandwidth.
pub(super) const RDT: &str = "intelRdt";
