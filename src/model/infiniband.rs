//! InfiniBand (and RoCE) ports of the machine, and which GPUs are near them.

use crate::reading::Reading;
use crate::unit::{Bytes, Count};
use std::sync::Arc;

/// Upper bound on ports: a machine has about one port for each GPU, and some for storage.
pub const MAX_PORTS: usize = 64;

/// One port. Its counters count since the port's driver was loaded.
#[derive(Clone, Debug, PartialEq)]
pub struct InfinibandPort {
    /// The device, such as `mlx5_0`.
    pub device: Arc<str>,
    /// The port's number on the device.
    pub number: u32,
    /// PCI bridges from the root of the bus to the device: `pci0000:15/0000:15:01.0/0000:16:00.0`.
    pub pci_path: Reading<Arc<str>>,
    /// NUMA node of the device's slot.
    pub numa_node: Reading<u32>,
    /// Whether the port is active.
    pub active: Reading<bool>,
    /// Bytes received.
    pub received: Reading<Bytes>,
    /// Bytes sent.
    pub sent: Reading<Bytes>,
    /// Packets received.
    pub packets_received: Reading<Count>,
    /// Packets sent.
    pub packets_sent: Reading<Count>,
    /// Packets received with errors.
    pub receive_errors: Reading<Count>,
    /// Packets that could not be sent.
    pub send_discards: Reading<Count>,
    /// Symbol errors.
    pub symbol_errors: Reading<Count>,
    /// Number of times that the link was retrained without going down.
    pub recoveries: Reading<Count>,
    /// Number of times that the link went down.
    pub downs: Reading<Count>,
}

/// The nearest thing that a GPU and a device have in common; the variants are ordered nearest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum DeviceAffinity {
    /// A PCIe bridge or switch.
    Bridge,
    /// The root of the bus (host bridge).
    Root,
    /// The NUMA node.
    NumaNode,
}

impl DeviceAffinity {
    /// A stable short code.
    #[must_use]
    pub fn code(self) -> &'static str {
        match self {
            DeviceAffinity::Bridge => "pcie_switch",
            DeviceAffinity::Root => "host_bridge",
            DeviceAffinity::NumaNode => "numa",
        }
    }

    /// The affinity of two devices, from their PCI paths and NUMA nodes; `None` when they share nothing or when nothing
    /// is known.
    #[must_use]
    pub fn of(
        (one, other): (&Reading<Arc<str>>, &Reading<Arc<str>>),
        (node, other_node): (Reading<u32>, Reading<u32>),
    ) -> Option<DeviceAffinity> {
        let common = match (one.value(), other.value()) {
            (Some(one), Some(other)) => one.split('/').zip(other.split('/')).take_while(|(a, b)| a == b).count(),
            _ => 0,
        };
        let same_node = node.get().is_some() && node.get() == other_node.get();
        match common {
            0 => same_node.then_some(DeviceAffinity::NumaNode),
            1 => Some(DeviceAffinity::Root),
            _ => Some(DeviceAffinity::Bridge),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::Monotonic;

    #[test]
    fn the_nearest_common_pci_ancestor_is_reported() {
        let path = |text: &str| Reading::Measured(Arc::<str>::from(text), Monotonic(1));
        let node = |number| Reading::Measured(number, Monotonic(1));
        let gpu = path("pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:00.0/0000:18:00.0");
        for (other, nodes, expected) in [
            ("pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:01.0/0000:19:00.0", (0, 0), Some(DeviceAffinity::Bridge)),
            ("pci0000:15/0000:15:02.0/0000:20:00.0", (0, 0), Some(DeviceAffinity::Root)),
            ("pci0000:37/0000:37:01.0/0000:38:00.0", (0, 0), Some(DeviceAffinity::NumaNode)),
            ("pci0000:97/0000:97:01.0/0000:98:00.0", (0, 1), None),
        ] {
            assert_eq!(DeviceAffinity::of((&gpu, &path(other)), (node(nodes.0), node(nodes.1))), expected, "{other}");
        }
        assert_eq!(
            DeviceAffinity::of((&gpu, &Reading::NOT_YET), (node(0), Reading::NOT_YET)),
            None,
            "an unknown path shares nothing"
        );
    }
}
