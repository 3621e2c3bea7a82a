//! The edits of a container: variables, device nodes, mounts, hooks, and unknown fields, which are kept.

use super::lowest;
use super::version::CdiVersion;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value};

/// A set of edits.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CdiEdits {
    /// Environment variables, `NAME=value`. They override the variables of the pod.
    #[serde(default, deserialize_with = "null_is_empty", skip_serializing_if = "Vec::is_empty")]
    pub env: Vec<String>,
    /// Device nodes that the runtime creates and allows.
    #[serde(default, deserialize_with = "null_is_empty", skip_serializing_if = "Vec::is_empty")]
    pub device_nodes: Vec<CdiDeviceNode>,
    /// Files and folders of the host that the runtime mounts.
    #[serde(default, deserialize_with = "null_is_empty", skip_serializing_if = "Vec::is_empty")]
    pub mounts: Vec<CdiMount>,
    /// Programs of the host that the runtime starts.
    #[serde(default, deserialize_with = "null_is_empty", skip_serializing_if = "Vec::is_empty")]
    pub hooks: Vec<CdiHook>,
    /// Fields that this crate does not know, word for word.
    #[serde(flatten)]
    pub other: Map<String, Value>,
}

/// A device node.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CdiDeviceNode {
    /// Path in the container.
    pub path: String,
    /// Path on the host, if it differs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_path: Option<String>,
    /// Type of the node: `b`, `c`, `u` or `p`. If absent, the runtime reads it from the host.
    #[serde(default, rename = "type", skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// Major number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub major: Option<i64>,
    /// Minor number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub minor: Option<i64>,
    /// File mode.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file_mode: Option<u32>,
    /// Permissions of the device cgroup: any of `r`, `w`, `m`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub permissions: Option<String>,
    /// User id of the owner.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<u32>,
    /// Group id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gid: Option<u32>,
    /// Fields that this crate does not know, word for word.
    #[serde(flatten)]
    pub other: Map<String, Value>,
}

/// A mount.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CdiMount {
    /// Path on the host.
    pub host_path: String,
    /// Path in the container.
    pub container_path: String,
    /// Type of the file system; a bind mount if absent.
    #[serde(default, rename = "type", skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// Mount options: `ro`, `nosuid`, `bind`, …
    #[serde(default, deserialize_with = "null_is_empty", skip_serializing_if = "Vec::is_empty")]
    pub options: Vec<String>,
    /// Fields that this crate does not know, word for word.
    #[serde(flatten)]
    pub other: Map<String, Value>,
}

/// A hook.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CdiHook {
    /// When the runtime runs the hook: `createContainer` and others.
    pub hook_name: String,
    /// Path of the program on the host.
    pub path: String,
    /// Arguments of the program, with the program's name first.
    #[serde(default, deserialize_with = "null_is_empty", skip_serializing_if = "Vec::is_empty")]
    pub args: Vec<String>,
    /// Environment of the program.
    #[serde(default, deserialize_with = "null_is_empty", skip_serializing_if = "Vec::is_empty")]
    pub env: Vec<String>,
    /// Time limit in seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout: Option<i64>,
    /// Fields that this crate does not know, word for word.
    #[serde(flatten)]
    pub other: Map<String, Value>,
}

impl CdiDeviceNode {
    /// The node at `path`, the same on the host and in the container.
    #[must_use]
    pub fn at(path: &str) -> CdiDeviceNode {
        CdiDeviceNode { path: path.to_owned(), ..CdiDeviceNode::default() }
    }
}

impl CdiMount {
    /// A file or folder of the host that the container may read and not write.
    #[must_use]
    pub fn read_only(host_path: &str, container_path: &str) -> CdiMount {
        CdiMount {
            host_path: host_path.to_owned(),
            container_path: container_path.to_owned(),
            options: ["ro", "nosuid", "nodev", "bind"].map(str::to_owned).into(),
            ..CdiMount::default()
        }
    }
}

impl CdiEdits {
    /// Whether there are no edits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == CdiEdits::default()
    }

    /// Removes fields for a runtime that reads versions up to `newest`: the fields that it does not know and without which a
    /// container still gets its GPU. These are groups for device nodes that are not open to all users, and classes of processor
    /// caches. `carried` is the version of the spec that the edits came from. Returns the names of the fields.
    pub fn leave_out(&mut self, carried: CdiVersion, newest: CdiVersion) -> Vec<&'static str> {
        let beyond = |key: &&str| self.other.contains_key(*key) && lowest::of_field(key, carried) > newest;
        let left_out: Vec<&'static str> = [lowest::GIDS, lowest::RDT].into_iter().filter(beyond).collect();
        left_out.iter().for_each(|key| drop(self.other.remove(*key)));
        left_out
    }

    /// The field of these edits that a runtime which reads versions up to `newest` does not know, and the version that it
    /// needs.
    #[must_use]
    pub fn unreadable(&self, carried: CdiVersion, newest: CdiVersion) -> Option<(&str, CdiVersion)> {
        lowest::newest_field(self, carried).filter(|(_, version)| *version > newest)
    }

    /// Appends the edits of `more`. If both have the same variable, path in the container or unknown field, the entry of `more`
    /// wins. A hook that is in both is kept once.
    pub fn add(&mut self, more: &CdiEdits) {
        put(&mut self.env, &more.env, |one, other| name_of(one) == name_of(other));
        put(&mut self.device_nodes, &more.device_nodes, |one, other| one.path == other.path);
        put(&mut self.mounts, &more.mounts, |one, other| one.container_path == other.container_path);
        put(&mut self.hooks, &more.hooks, |one, other| one == other);
        self.other.extend(more.other.iter().map(|(key, value)| (key.clone(), value.clone())));
    }
}

/// The variable's name in `NAME=value`.
pub(super) fn name_of(variable: &str) -> &str {
    variable.split_once('=').map_or(variable, |(name, _)| name)
}

/// Appends `more` to `to`, and removes earlier entries that are the `same` as a later entry.
fn put<T: Clone>(to: &mut Vec<T>, more: &[T], same: impl Fn(&T, &T) -> bool) {
    for (place, item) in more.iter().enumerate() {
        if more.iter().skip(place + 1).all(|later| !same(later, item)) {
            to.retain(|there| !same(there, item));
            to.push(item.clone());
        }
    }
}

/// Reads `null`, which Go writes for an empty list or map, as an empty value.
pub(super) fn null_is_empty<'de, D: Deserializer<'de>, T: Deserialize<'de> + Default>(from: D) -> Result<T, D::Error> {
    Option::deserialize(from).map(Option::unwrap_or_default)
}
