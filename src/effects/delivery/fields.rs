//! Edits as the fields of an answer to `Allocate`, for runtimes that know no CDI.
//!
//! What such an answer sets is weaker: kubelet puts the pod's own variables after ours, and there are no hooks.

use crate::plugin::Field;
use model::id::Ticket;
use wire::cdi::Edits;
use wire::ticket;

/// The variable that names the ticket, for people who look into a container.
const VARIABLE: &str = "GPU_STEWARD_TICKET";

/// The fields, and names of what cannot be given so.
pub(super) fn of(edits: &Edits, ticket: &Ticket) -> (Vec<Field>, Vec<String>) {
    let mut fields = vec![
        Field::Annotation(ticket::ANNOTATION.into(), ticket.to_string()),
        Field::Env(VARIABLE.into(), ticket.to_string()),
    ];
    fields.extend(edits.env.iter().filter_map(|said| {
        let (name, value) = said.split_once('=')?;
        Some(Field::Env(name.into(), value.into()))
    }));
    fields.extend(edits.device_nodes.iter().map(|node| {
        let host = node.host_path.as_ref().unwrap_or(&node.path);
        Field::Device(node.path.clone(), host.clone())
    }));
    fields.extend(edits.mounts.iter().map(|mount| {
        let read_only = mount.options.iter().any(|option| option == "ro");
        Field::Mount(mount.container_path.clone(), mount.host_path.clone(), read_only)
    }));
    let hooks = edits.hooks.iter().map(|hook| format!("hook {}", hook.path));
    (fields, hooks.chain(edits.other.keys().cloned()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use wire::cdi::{DeviceNode, Hook, Mount};

    #[test]
    fn everything_but_hooks_is_given() {
        let edits = Edits {
            env: vec!["A=b=c".into()],
            device_nodes: vec![
                DeviceNode { host_path: Some("/dev/null".into()), ..DeviceNode::at("/dev/nvidia0") },
                DeviceNode::at("/dev/nvidiactl"),
            ],
            mounts: vec![
                Mount::read_only("/host", "/in"),
                Mount { options: Vec::new(), ..Mount::read_only("/w", "/w") },
            ],
            hooks: vec![Hook { path: "/usr/bin/nvidia-ctk".into(), ..Hook::default() }],
            ..Edits::default()
        };
        let ticket = Ticket::of_random([1; 16]);
        let (fields, lost) = of(&edits, &ticket);
        let text = ticket.to_string();
        assert_eq!(
            fields,
            [
                Field::Annotation("gpu-steward.io/ticket".into(), text.clone()),
                Field::Env("GPU_STEWARD_TICKET".into(), text),
                Field::Env("A".into(), "b=c".into()),
                Field::Device("/dev/nvidia0".into(), "/dev/null".into()),
                Field::Device("/dev/nvidiactl".into(), "/dev/nvidiactl".into()),
                Field::Mount("/in".into(), "/host".into(), true),
                Field::Mount("/w".into(), "/w".into(), false),
            ]
        );
        assert_eq!(lost, ["hook /usr/bin/nvidia-ctk"]);
    }
}
