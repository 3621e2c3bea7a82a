//! Whether a container can be kept from GPUs that it was not given. With early binding a pod's own `NVIDIA_VISIBLE_DEVICES`
//! stands against the one in the answer to `Allocate`, and NVIDIA's runtime believes it: `all` opens every GPU of the node.

use super::owner::Sharing;
use decide::share::Binding;
use effects::plugin::Refused;
use model::plugin::Isolation;

/// What is lost, and what to do.
const WHY: &str = "early binding together with NVIDIA's runtime (device strategy envvar) isolates no pod: its own \
                   NVIDIA_VISIBLE_DEVICES=all opens every GPU of this node";
const INSTEAD: &str = "switch CDI on in the container runtime, or set --device-strategy=cdi and let pods run under a runtime other \
                       than NVIDIA's; --allow-unisolated-gpus shares them all the same";

/// Of a node with this binding mode, once it is known.
fn isolation(binding: Option<Binding>, runtime_injects: bool, allowed: bool) -> Isolation {
    match (binding, runtime_injects) {
        (Some(Binding::Early), true) if allowed => Isolation::GivenUp,
        (Some(Binding::Early), true) => Isolation::Refused,
        (Some(Binding::Early | Binding::Late) | None, _) => Isolation::Holds,
    }
}

impl Sharing {
    /// Looks again at how devices get into containers. Where nothing isolates them and nobody asked for that, no container gets
    /// any from now on; those that have theirs keep them. Says whether kubelet's list changes by it.
    pub(super) fn look_at_isolation(&mut self) -> bool {
        let binding = self.way.borrow().as_ref().map(|way| way.binding);
        let injects = self.host.borrow().runtime_injects;
        let now = isolation(binding, injects, self.allow_unisolated);
        if self.counts.isolation_is(now) {
            match now {
                Isolation::Refused => tracing::error!("no more containers get GPUs: {WHY}; {INSTEAD}"),
                Isolation::GivenUp => tracing::warn!("{WHY}; it was asked for (--allow-unisolated-gpus)"),
                Isolation::Holds => tracing::info!("a pod's own variables open no GPU any more"),
            }
        }
        self.share.close(now == Isolation::Refused)
    }

    /// Why nothing is given now, where that is so.
    pub(super) fn closed(&self) -> Option<Refused> {
        self.share.is_closed().then(|| Refused(format!("{WHY}; {INSTEAD}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_early_binding_under_nvidias_runtime_isolates_nothing() {
        use Binding::{Early, Late};
        for (binding, injects, allowed, expected) in [
            (None, true, false, Isolation::Holds),
            (Some(Late), true, false, Isolation::Holds),
            (Some(Early), false, false, Isolation::Holds),
            (Some(Early), true, false, Isolation::Refused),
            (Some(Early), true, true, Isolation::GivenUp),
            (Some(Late), true, true, Isolation::Holds),
        ] {
            assert_eq!(isolation(binding, injects, allowed), expected, "{binding:?} {injects} {allowed}");
        }
    }
}
