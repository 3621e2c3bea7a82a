//! What is done to a container: variables, device nodes, mounts, hooks, and what is carried along.

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value};

/// A set of edits.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CdiEdits {
    /// `NAME=value`; they win over what the pod says.
    #[serde(default, deserialize_with = "null_is_empty", skip_serializing_if = "Vec::is_empty")]
    pub env: Vec<String>,
    /// Device nodes that are made and allowed.
    #[serde(default, deserialize_with = "null_is_empty", skip_serializing_if = "Vec::is_empty")]
    pub device_nodes: Vec<CdiDeviceNode>,
    /// Files and folders of the host.
    #[serde(default, deserialize_with = "null_is_empty", skip_serializing_if = "Vec::is_empty")]
    pub mounts: Vec<CdiMount>,
    /// Programs of the host that the runtime starts.
    #[serde(default, deserialize_with = "null_is_empty", skip_serializing_if = "Vec::is_empty")]
    pub hooks: Vec<CdiHook>,
    /// What is not known here, word for word.
    #[serde(flatten)]
    pub other: Map<String, Value>,
}

/// A device node.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CdiDeviceNode {
    /// In the container.
    pub path: String,
    /// On the host, where it is another.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_path: Option<String>,
    /// `b`, `c`, `u` or `p`; the runtime looks where it is not told.
    #[serde(default, rename = "type", skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// Major number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub major: Option<i64>,
    /// Minor number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub minor: Option<i64>,
    /// Mode.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file_mode: Option<u32>,
    /// Any of `r`, `w`, `m`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub permissions: Option<String>,
    /// Owner.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<u32>,
    /// Group.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gid: Option<u32>,
    /// What is not known here, word for word.
    #[serde(flatten)]
    pub other: Map<String, Value>,
}

/// A mount.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CdiMount {
    /// On the host.
    pub host_path: String,
    /// In the container.
    pub container_path: String,
    /// Kind of file system; bind where it is not told.
    #[serde(default, rename = "type", skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// `ro`, `nosuid`, `bind`, …
    #[serde(default, deserialize_with = "null_is_empty", skip_serializing_if = "Vec::is_empty")]
    pub options: Vec<String>,
    /// What is not known here, word for word.
    #[serde(flatten)]
    pub other: Map<String, Value>,
}

/// A hook.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CdiHook {
    /// When: `createContainer` and others.
    pub hook_name: String,
    /// The program, on the host.
    pub path: String,
    /// Its arguments, its own name first.
    #[serde(default, deserialize_with = "null_is_empty", skip_serializing_if = "Vec::is_empty")]
    pub args: Vec<String>,
    /// Its environment.
    #[serde(default, deserialize_with = "null_is_empty", skip_serializing_if = "Vec::is_empty")]
    pub env: Vec<String>,
    /// Seconds that it may take.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout: Option<i64>,
    /// What is not known here, word for word.
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
    /// Whether nothing is done.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == CdiEdits::default()
    }

    /// Puts the edits of `more` behind these. Where both speak of one thing (a variable, a path in the container, an edit that
    /// is not known here), `more` wins; a hook that is there already is not run twice.
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

/// Appends `more`; what is about the same thing as one of them goes.
fn put<T: Clone>(to: &mut Vec<T>, more: &[T], same: impl Fn(&T, &T) -> bool) {
    for (place, item) in more.iter().enumerate() {
        if more.iter().skip(place + 1).all(|later| !same(later, item)) {
            to.retain(|there| !same(there, item));
            to.push(item.clone());
        }
    }
}

/// Go writes `null` for a list or mapping that was never made.
pub(super) fn null_is_empty<'de, D: Deserializer<'de>, T: Deserialize<'de> + Default>(from: D) -> Result<T, D::Error> {
    Option::deserialize(from).map(Option::unwrap_or_default)
}
