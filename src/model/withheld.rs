//! Why a GPU or MIG instance that the driver lists is not offered to pods, and what to do about it.

use crate::gpu::{Gpu, MemoryKind, MigInstance};
use crate::id::GpuUuid;
use crate::reading::{Absence, Reading};
use crate::unit::Bytes;
use std::fmt;

/// The reason why a device is not offered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WithheldReason {
    /// The driver does not report the number of the GPU's device node, without which no container can open the GPU.
    NoDeviceNode(Absence),
    /// The driver does not report how much memory the device has.
    NoMemorySize(Absence),
    /// It is not known whether the GPU is divided into MIG instances.
    MigUnknown(Absence),
    /// MIG mode is on, and there is no instance.
    NoMigInstance,
    /// The GPU was never identified.
    Unidentified(Absence),
}

/// A device that is not offered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WithheldDevice {
    /// NVML's index of the GPU.
    pub index: u32,
    /// The GPU or MIG instance; `None` for a GPU that was never identified.
    pub device: Option<GpuUuid>,
    /// The reason.
    pub why: WithheldReason,
}

impl Gpu {
    /// The memory that is offered of a whole GPU: what the driver reports, otherwise what the device configuration says.
    /// A GPU that shares the host's memory has the configured amount first, because the host's programs need the rest.
    #[must_use]
    pub fn memory_to_offer(&self, configured: Option<Bytes>) -> Option<Bytes> {
        match self.memory_kind {
            MemoryKind::Host => configured.or(self.memory_total.get()),
            MemoryKind::Own | MemoryKind::OwnWithReserved => self.memory_total.get().or(configured),
        }
    }

    /// Whether the GPU or one of its MIG instances is offered. `configured` is the memory that the device configuration
    /// states.
    #[must_use]
    pub fn is_offered(&self, configured: Option<Bytes>) -> bool {
        let divided = self.mig_mode.get() == Some(true);
        let sized = |instance: &MigInstance| instance.memory_total.get().is_some();
        self.withheld(configured).is_none() && (!divided || self.instances().iter().any(sized))
    }

    /// Why neither the GPU nor any of its MIG instances is offered. `None` if the GPU is offered or has MIG instances;
    /// an instance is offered if its memory size is known. `configured` is the memory that the device configuration
    /// states.
    #[must_use]
    pub fn withheld(&self, configured: Option<Bytes>) -> Option<WithheldReason> {
        // A container that gets a GPU must find its device node.
        if let Some(why) = self.minor.absence() {
            return Some(WithheldReason::NoDeviceNode(why));
        }
        // A GPU is offered whole only when it is known whether it has MIG instances.
        let instances = match &self.mig {
            Reading::Measured(instances, _) => instances,
            Reading::Absent(why) => return Some(WithheldReason::MigUnknown(*why)),
        };
        if self.mig_mode.get() == Some(true) {
            return instances.is_empty().then_some(WithheldReason::NoMigInstance);
        }
        let without = self.memory_total.absence().filter(|_| self.memory_to_offer(configured).is_none());
        without.map(WithheldReason::NoMemorySize)
    }
}

impl WithheldReason {
    /// A stable short code, for label values and JSON.
    #[must_use]
    pub fn code(self) -> &'static str {
        match self {
            WithheldReason::NoDeviceNode(_) => "no_device_node",
            WithheldReason::NoMemorySize(_) => "no_memory_size",
            WithheldReason::MigUnknown(_) => "mig_unknown",
            WithheldReason::NoMigInstance => "no_mig_instance",
            WithheldReason::Unidentified(_) => "unidentified",
        }
    }

    /// What to do, as a sentence.
    #[must_use]
    pub fn advice(self) -> &'static str {
        match self {
            WithheldReason::NoDeviceNode(Absence::NotSupported) => {
                "The GPU has no /dev/nvidiaN, as under WSL: it cannot be shared by this agent."
            }
            WithheldReason::NoDeviceNode(_) => {
                "Check the kernel log (dmesg) and update the driver; the agent asks again every 10 seconds."
            }
            WithheldReason::NoMemorySize(_) => {
                "State its memory in MiB as preConfiguredDeviceMemory in the device configuration (--device-config), \
                 or update the driver."
            }
            WithheldReason::MigUnknown(_) => {
                "Check the kernel log (dmesg) and that the agent may use MIG (/dev/nvidia-caps); the agent asks again \
                 every 10 seconds."
            }
            WithheldReason::NoMigInstance => {
                "Create instances (nvidia-smi mig -cgi PROFILE -C), or switch MIG mode off (nvidia-smi -mig 0)."
            }
            WithheldReason::Unidentified(_) => {
                "Check that its device node is passed to the agent's container, and the kernel log (dmesg)."
            }
        }
    }
}

/// Half a sentence.
impl fmt::Display for WithheldReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            WithheldReason::NoDeviceNode(why) => write!(f, "its device node is not known: {why}"),
            WithheldReason::NoMemorySize(why) => write!(f, "its memory size is not known: {why}"),
            WithheldReason::MigUnknown(why) => write!(f, "it is not known whether it has MIG instances: {why}"),
            WithheldReason::NoMigInstance => f.write_str("MIG mode is on, and it has no MIG instance"),
            WithheldReason::Unidentified(why) => write!(f, "it cannot be identified: {why}"),
        }
    }
}

/// `GPU 0 (GPU-5eed…) is not offered: REASON. ADVICE`
impl fmt::Display for WithheldDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "GPU {}", self.index)?;
        if let Some(device) = &self.device {
            write!(f, " ({device})")?;
        }
        write!(f, " is not offered: {}. {}", self.why, self.why.advice())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::tests::gpu;
    use crate::time::Monotonic;

    fn m<T>(value: T) -> Reading<T> {
        Reading::Measured(value, Monotonic(1))
    }

    #[test]
    fn a_gpu_is_offered_only_when_everything_is_known_that_a_container_needs() {
        let whole = Gpu { minor: m(0), mig: m(Vec::new()), mig_mode: m(false), memory_total: m(Bytes(8)), ..gpu() };
        let instance = MigInstance {
            uuid: GpuUuid::parse("MIG-0").unwrap(),
            index: 0,
            gpu_instance: 1,
            compute_instance: 0,
            profile: "1g.10gb".into(),
            memory_total: m(Bytes(1)),
        };
        let unsized_instance = MigInstance { memory_total: Reading::NOT_YET, ..instance.clone() };
        let refused = Absence::NotSupported;
        let without_memory = Gpu { memory_total: Reading::Absent(refused), ..whole.clone() };
        for (name, gpu, configured, why) in [
            ("all is known", whole.clone(), None, None),
            ("WSL", Gpu { minor: Reading::Absent(refused), ..whole.clone() }, None, Some("no_device_node")),
            ("no memory", without_memory.clone(), None, Some("no_memory_size")),
            ("no memory, but configured", without_memory, Some(Bytes(5)), None),
            (
                "unknown MIG",
                Gpu { mig: Reading::Absent(Absence::NoPermission), ..whole.clone() },
                None,
                Some("mig_unknown"),
            ),
            ("MIG without instances", Gpu { mig_mode: m(true), ..whole.clone() }, None, Some("no_mig_instance")),
            ("MIG", Gpu { mig_mode: m(true), mig: m(vec![instance]), ..whole.clone() }, None, None),
        ] {
            let found = gpu.withheld(configured);
            assert_eq!(found.map(WithheldReason::code), why, "{name}");
            assert_eq!(gpu.is_offered(configured), why.is_none(), "{name}");
            if let Some(found) = found {
                let text = WithheldDevice { index: 3, device: None, why: found }.to_string();
                assert!(text.starts_with("GPU 3 is not offered: ") && text.ends_with('.'), "{text}");
            }
        }
        let divided = Gpu { mig_mode: m(true), mig: m(vec![unsized_instance]), ..whole.clone() };
        assert!(divided.withheld(None).is_none() && !divided.is_offered(None), "the reason is the instance's");
        let shared = Gpu { memory_kind: MemoryKind::Host, ..whole.clone() };
        assert_eq!(
            (shared.memory_to_offer(Some(Bytes(5))), shared.memory_to_offer(None)),
            (Some(Bytes(5)), Some(Bytes(8)))
        );
        assert_eq!(whole.memory_to_offer(Some(Bytes(5))), Some(Bytes(8)), "what the driver reports comes first");
    }
}
