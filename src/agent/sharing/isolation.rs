//! Determines whether the agent can keep a container from GPUs that it was not given. It cannot with early binding under
//! NVIDIA's runtime: the runtime prefers the `NVIDIA_VISIBLE_DEVICES` of the pod to the value in the agent's answer to
//! `Allocate`, so a pod that sets `all` opens every GPU of the node. Then the agent refuses every `Allocate`, unless
//! `--allow-unisolated-gpus` is set.

use super::sharing_task::Sharing;
use decide::allocator::BindingMode;
use effects::plugin::CallRefused;
use model::plugin::DeviceIsolation;

/// Why pods are not isolated; `REMEDY` says what to do.
const WHY: &str = "early binding together with NVIDIA's runtime (device strategy envvar) isolates no pod: its own \
                   NVIDIA_VISIBLE_DEVICES=all opens every GPU of this node";
const REMEDY: &str = "switch CDI on in the container runtime, or set --device-strategy=cdi and let pods run under a runtime other \
                       than NVIDIA's; --allow-unisolated-gpus shares them all the same";

/// The isolation of a node with this binding mode; `None` while the mode is not known.
fn isolation(binding: Option<BindingMode>, runtime_injects: bool, allowed: bool) -> DeviceIsolation {
    match (binding, runtime_injects) {
        (Some(BindingMode::Early), true) if allowed => DeviceIsolation::GivenUp,
        (Some(BindingMode::Early), true) => DeviceIsolation::Refused,
        (Some(BindingMode::Early | BindingMode::Late) | None, _) => DeviceIsolation::Holds,
    }
}

impl Sharing {
    /// Determines again how devices get into containers. If nothing isolates pods and the operator did not allow that,
    /// no container gets a device from now on; containers that have devices keep them. Returns whether the kubelet's list
    /// changes.
    pub(super) fn update_isolation(&mut self) -> bool {
        let injects = self.offer.runtime_injects();
        let now = isolation(self.binding.mode(), injects, self.binding.allows_unisolated());
        if self.counts.isolation_is(now) {
            match now {
                DeviceIsolation::Refused => tracing::error!("no more containers get GPUs: {WHY}; {REMEDY}"),
                DeviceIsolation::GivenUp => tracing::warn!("{WHY}; --allow-unisolated-gpus allows it"),
                DeviceIsolation::Holds => tracing::info!("a pod's own variables open no GPU any more"),
            }
        }
        self.allocator.close(now == DeviceIsolation::Refused)
    }

    /// The refusal of every `Allocate` while pods are not isolated and that is not allowed.
    pub(super) fn closed(&self) -> Option<CallRefused> {
        self.allocator.is_closed().then(|| CallRefused(format!("{WHY}; {REMEDY}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_early_binding_under_nvidias_runtime_isolates_nothing() {
        use BindingMode::{Early, Late};
        for (binding, injects, allowed, expected) in [
            (None, true, false, DeviceIsolation::Holds),
            (Some(Late), true, false, DeviceIsolation::Holds),
            (Some(Early), false, false, DeviceIsolation::Holds),
            (Some(Early), true, false, DeviceIsolation::Refused),
            (Some(Early), true, true, DeviceIsolation::GivenUp),
            (Some(Late), true, true, DeviceIsolation::Holds),
        ] {
            assert_eq!(isolation(binding, injects, allowed), expected, "{binding:?} {injects} {allowed}");
        }
    }
}
