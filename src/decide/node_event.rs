//! Node events: changes that are worth a log line. The node state returns them, and `agent::event_log` logs them.

use model::gpu::{MissingGpu, Xid};
use model::id::GpuUuid;
use model::incident::Incident;
use model::observation::GpuSourceState;
use model::reading::Absence;
use model::switch::Sxid;
use std::sync::Arc;

/// Something that happened on the node.
#[derive(Clone, Debug, PartialEq)]
pub enum NodeEvent {
    /// The state of the GPU source has changed.
    GpuSource(GpuSourceState),
    /// A GPU has appeared.
    GpuAppeared {
        /// The GPU.
        gpu: GpuUuid,
        /// The GPU's model.
        model: Arc<str>,
        /// The GPU's index.
        index: u32,
    },
    /// A GPU is no longer in the list.
    GpuDisappeared(GpuUuid),
    /// The machine has a GPU that NVML does not list.
    GpuMissing(MissingGpu),
    /// The GPU at this PCI address is listed now, or the machine does not have it any more.
    GpuNotMissing(Arc<str>),
    /// A GPU does not answer, for this reason.
    GpuSick(GpuUuid, Absence),
    /// The GPU answers again.
    GpuAnswers(GpuUuid),
    /// A GPU is unfit for new containers, for this reason (too).
    GpuUnfit(GpuUuid, Incident),
    /// The driver does not report the recovery of this GPU: only a reset that the agent sees, or an operator, makes it
    /// fit again.
    GpuAwaitsReset(GpuUuid),
    /// The GPU is fit for new containers again.
    GpuFit(GpuUuid),
    /// A driver error (XID).
    Xid(Xid),
    /// The driver says, without an XID, that a GPU has fallen off the bus.
    GpuFellOff {
        /// The GPU, if it is listed.
        gpu: Option<GpuUuid>,
        /// The GPU's PCI address.
        pci_bus_id: Arc<str>,
    },
    /// The process behind a driver error, or its severity, or both: the error was already reported without them.
    XidDetails(Xid),
    /// An error of an NVSwitch.
    Sxid(Sxid),
    /// There are more pods, containers or processes than the agent keeps.
    LeftOut {
        /// The kind of things.
        what: &'static str,
        /// How many are left out.
        count: u32,
    },
}
