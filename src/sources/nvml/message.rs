//! What the threads that may hang tell the supervisor, who never calls NVML.

use crate::nvml::inventory::Known;
use model::gpu::Xid;
use model::observation::GpuSourceState;
use nvml_wrapper::Nvml;
use std::sync::mpsc::SyncSender;
use wire::kernel_log::{KernelSxid, KernelXid};

/// How many messages may wait: the supervisor empties the queue several times a second; a card that dies tells some tens
/// of XIDs at once.
pub(super) const QUEUE: usize = 256;

/// One message.
#[derive(Debug)]
pub(super) enum Message {
    /// The library is open.
    Session(&'static Nvml),
    /// NVML works, or why it does not.
    Source(GpuSourceState),
    /// The GPUs there are.
    Known(Vec<Known>),
    /// NVML told of an error.
    Event(Xid),
    /// The kernel told of an error.
    Log(KernelXid),
    /// The kernel told of an error of an NVSwitch.
    Switch(KernelSxid),
    /// The library is to be closed and opened again: nobody may be inside. Answered once the event thread has left.
    Close(SyncSender<()>),
    /// The library is about to be closed: nobody may go in until it is told to be open again.
    Closed,
    /// The event thread has left the library.
    EventsLeft,
    /// Something happened after which the list of GPUs may be another one.
    LookAgain,
}
