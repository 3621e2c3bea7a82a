//! Messages from the threads that may hang to the supervisor, which never calls NVML.

use crate::nvml::inventory::KnownGpu;
use model::gpu::Xid;
use model::observation::GpuSourceState;
use nvml_wrapper::Nvml;
use std::sync::mpsc::SyncSender;
use wire::kernel_log::{KernelSxid, KernelXid, PciSlot};

/// Maximum number of messages that wait. The supervisor empties the queue several times a second; a GPU that fails
/// sends some tens of XIDs at once.
pub(super) const QUEUE: usize = 256;

/// A message to the supervisor.
#[derive(Debug)]
pub(super) enum Message {
    /// The library is open.
    Session(&'static Nvml),
    /// NVML works, or the reason why it does not.
    Source(GpuSourceState),
    /// The inventory of GPUs.
    Inventory(Vec<KnownGpu>),
    /// An error from NVML.
    Event(Xid),
    /// A GPU error from the kernel log.
    Log(KernelXid),
    /// The kernel log says, without an XID, that a GPU is gone.
    Lost(PciSlot),
    /// An NVSwitch error from the kernel log.
    Switch(KernelSxid),
    /// The library must be closed and opened again, so no thread may be inside. The supervisor answers once the event
    /// thread has left.
    Close(SyncSender<()>),
    /// The library is about to be closed: no thread may enter it until [`Message::Session`] reports that it is open
    /// again.
    Closed,
    /// The event thread has left the library.
    EventsLeft,
    /// A sign that the list of GPUs may have changed.
    GpusChanged,
}
