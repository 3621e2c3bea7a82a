//! The edits as fields of an answer to `Allocate`, for runtimes without CDI.
//!
//! These fields are weaker than CDI edits: the kubelet puts the pod's own variables after them, and they have no hooks.

use crate::plugin::ContainerField;
use model::id::Ticket;
use wire::cdi::CdiEdits;
use wire::ticket;

/// The variable that names the ticket, for people who inspect a container.
const VARIABLE: &str = "GPU_STEWARD_TICKET";

/// The fields, and the names of the edits that have no field.
pub(super) fn of(edits: &CdiEdits, ticket: &Ticket) -> (Vec<ContainerField>, Vec<String>) {
    let mut fields = vec![
        ContainerField::Annotation(ticket::ANNOTATION.into(), ticket.to_string()),
        ContainerField::Env(VARIABLE.into(), ticket.to_string()),
    ];
    fields.extend(edits.env.iter().filter_map(|variable| {
        let (name, value) = variable.split_once('=')?;
        Some(ContainerField::Env(name.into(), value.into()))
    }));
    fields.extend(edits.device_nodes.iter().map(|node| {
        let host = node.host_path.as_ref().unwrap_or(&node.path);
        ContainerField::Device(node.path.clone(), host.clone())
    }));
    fields.extend(edits.mounts.iter().map(|mount| {
        let read_only = mount.options.iter().any(|option| option == "ro");
        ContainerField::Mount(mount.container_path.clone(), mount.host_path.clone(), read_only)
    }));
    let hooks = edits.hooks.iter().map(|hook| format!("hook {}", hook.path));
    (fields, hooks.chain(edits.other.keys().cloned()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use wire::cdi::{CdiDeviceNode, CdiHook, CdiMount};

    #[test]
    fn all_edits_but_hooks_become_fields() {
        let edits = CdiEdits {
            env: vec!["A=b=c".into()],
            device_nodes: vec![
                CdiDeviceNode { host_path: Some("/dev/null".into()), ..CdiDeviceNode::at("/dev/nvidia0") },
                CdiDeviceNode::at("/dev/nvidiactl"),
            ],
            mounts: vec![
                CdiMount::read_only("/host", "/in"),
                CdiMount { options: Vec::new(), ..CdiMount::read_only("/w", "/w") },
            ],
            hooks: vec![CdiHook { path: "/usr/bin/nvidia-ctk".into(), ..CdiHook::default() }],
            ..CdiEdits::default()
        };
        let ticket = Ticket::of_random([1; 16]);
        let (fields, lost) = of(&edits, &ticket);
        let text = ticket.to_string();
        assert_eq!(
            fields,
            [
                ContainerField::Annotation("gpu-steward.io/ticket".into(), text.clone()),
                ContainerField::Env("GPU_STEWARD_TICKET".into(), text),
                ContainerField::Env("A".into(), "b=c".into()),
                ContainerField::Device("/dev/nvidia0".into(), "/dev/null".into()),
                ContainerField::Device("/dev/nvidiactl".into(), "/dev/nvidiactl".into()),
                ContainerField::Mount("/in".into(), "/host".into(), true),
                ContainerField::Mount("/w".into(), "/w".into(), false),
            ]
        );
        assert_eq!(lost, ["hook /usr/bin/nvidia-ctk"]);
    }
}
