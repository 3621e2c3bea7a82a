//! The checks that every container runtime makes on a CDI spec. The agent makes them before it writes or trusts a spec:
//! names, variables, paths, hooks, and the number of entries.

use super::edits::{CdiDeviceNode, CdiEdits, CdiHook, CdiMount, name_of};
use super::spec::CdiSpec;
use crate::decode_error::shown;
use std::collections::BTreeSet;

/// Maximum number of devices of one spec: 16 GPUs of 7 MIG instances, each by index and by UUID, and `all`, with room
/// to spare.
const MAX_DEVICES: usize = 1024;
/// Maximum number of edits of each kind in one set: nvidia-ctk mounts about a hundred files.
const MAX_EDITS: usize = 4096;
/// Maximum size of a vendor's or device's name in bytes: the length of a DNS name.
const MAX_NAME: usize = 253;
/// Maximum size of a class's name in bytes.
const MAX_CLASS: usize = 63;
/// The points in time at which a hook may run.
const HOOKS: [&str; 6] = ["prestart", "createRuntime", "createContainer", "startContainer", "poststart", "poststop"];

/// Checks a whole spec; the error text names the fault and its place.
pub(super) fn check(spec: &CdiSpec) -> Result<(), String> {
    let kind = spec.kind.split_once('/').filter(|(vendor, class)| {
        let letter = |name: &str| name.starts_with(|first: char| first.is_ascii_alphabetic());
        letter(vendor) && letter(class) && name(vendor, MAX_NAME, "_-.") && name(class, MAX_CLASS, "_-.")
    });
    if kind.is_none() {
        return Err(format!("kind is not vendor/class: {}", shown(&spec.kind)));
    }
    if spec.devices.is_empty() || spec.devices.len() > MAX_DEVICES {
        return Err(format!("has {} devices where 1 to {MAX_DEVICES} are expected", spec.devices.len()));
    }
    edits(&spec.container_edits).map_err(|what| format!("containerEdits: {what}"))?;
    let mut names = BTreeSet::new();
    for device in &spec.devices {
        let quoted = shown(&device.name);
        if !name(&device.name, MAX_NAME, "_-.:") {
            return Err(format!("is not the name of a device: {quoted}"));
        }
        if !names.insert(device.name.as_str()) {
            return Err(format!("device {quoted} appears twice"));
        }
        if device.container_edits.is_empty() {
            return Err(format!("device {quoted} has no edits"));
        }
        edits(&device.container_edits).map_err(|what| format!("device {quoted}: {what}"))?;
    }
    Ok(())
}

/// Whether `text` starts and ends with a letter or digit, with only letters, digits and `marks` between them.
fn name(text: &str, longest: usize, marks: &str) -> bool {
    let plain = |byte: Option<u8>| byte.is_some_and(|byte| byte.is_ascii_alphanumeric());
    let inside = |c: char| c.is_ascii_alphanumeric() || marks.contains(c);
    plain(text.bytes().next()) && plain(text.bytes().last()) && text.len() <= longest && text.chars().all(inside)
}

fn edits(edits: &CdiEdits) -> Result<(), String> {
    let CdiEdits { env, device_nodes, mounts, hooks, .. } = edits;
    let longest = env.len().max(device_nodes.len()).max(mounts.len()).max(hooks.len());
    if longest > MAX_EDITS {
        return Err(format!("has more than {MAX_EDITS} edits of one kind"));
    }
    env.iter().try_for_each(|variable| check_variable(variable))?;
    device_nodes.iter().try_for_each(check_node)?;
    mounts.iter().try_for_each(check_mount)?;
    hooks.iter().try_for_each(check_hook)
}

fn check_variable(text: &str) -> Result<(), String> {
    if text.contains('=') && !name_of(text).is_empty() && !text.contains('\0') {
        Ok(())
    } else {
        Err(format!("env is not NAME=value: {}", shown(text)))
    }
}

fn check_path(what: &str, path: &str) -> Result<(), String> {
    if path.starts_with('/') && !path.contains('\0') {
        Ok(())
    } else {
        Err(format!("{what} is not an absolute path: {}", shown(path)))
    }
}

fn check_node(node: &CdiDeviceNode) -> Result<(), String> {
    check_path("path of a device node", &node.path)?;
    if let Some(path) = &node.host_path {
        check_path("hostPath of a device node", path)?;
    }
    if let Some(kind) = node.kind.as_deref().filter(|kind| !["", "b", "c", "u", "p"].contains(kind)) {
        return Err(format!("type of {} is not b, c, u or p: {}", shown(&node.path), shown(kind)));
    }
    match node.permissions.as_deref().filter(|allowed| allowed.chars().any(|c| !"rwm".contains(c))) {
        Some(allowed) => Err(format!("permissions of {} are not of r, w, m: {}", shown(&node.path), shown(allowed))),
        None => Ok(()),
    }
}

fn check_mount(mount: &CdiMount) -> Result<(), String> {
    if mount.host_path.is_empty() {
        return Err(format!("hostPath of the mount at {} is empty", shown(&mount.container_path)));
    }
    check_path("containerPath of a mount", &mount.container_path)
}

fn check_hook(hook: &CdiHook) -> Result<(), String> {
    if !HOOKS.contains(&hook.hook_name.as_str()) {
        return Err(format!("hookName is not the name of a CDI hook: {}", shown(&hook.hook_name)));
    }
    hook.env.iter().try_for_each(|variable| check_variable(variable))?;
    check_path("path of a hook", &hook.path)
}
