//! Reads GPUs through NVML, the driver's own library.
//!
//! ```text
//!   settings gate                    settings of the host; whether the library may be open
//!   absence heartbeat raw            meaning of NVML errors; heartbeat; calls that the wrapper lacks (all unsafe code)
//!   library                          opens the library, with advice when that fails
//!   poll_round                       the identity calls about one GPU, and which of them failed
//!   instance inventory presence topology   MIG instances, GPUs, GPUs that NVML lacks, and the topology between GPUs
//!   polled_gpu                       one GPU while it is polled
//!   memory utilization gpm read process_use process   readings of one GPU and of its processes
//!   board links hardware             its board data, NVLinks, slot, fabric and memory wear
//!   xid message event                driver errors: the thread `nvml-events`
//!   session                          one session with the driver: opened, verified, closed, opened again
//!   allowance poll                   limit on calls before their period; the thread `nvml-poll`
//!   stall                            which GPUs have absent readings while a call does not return
//!   supervise                        the thread `nvml-supervise`, which never calls NVML
//!   probe                            one look at the driver, for `doctor`
//! ```
//!
//! What must never happen here: an NVML call outside of a heartbeat or the probe, a wait for an NVML thread to end, a failure of one
//! GPU that affects another, a value that is invented because the true value could not be read.

mod gate;
mod settings;
mod absence;
mod heartbeat;
mod raw;
mod library;
mod poll_round;
mod instance;
mod board;
mod inventory;
mod presence;
mod topology;
mod polled_gpu;
mod memory;
mod utilization;
mod gpm;
mod links;
mod hardware;
mod read;
mod process_use;
mod process;
mod xid;
mod message;
mod event;
mod session;
mod allowance;
mod poll;
mod stall;
mod supervise;
pub mod probe;
#[cfg(test)]
mod fake_driver_tests;

pub use crate::nvml::gate::DriverGate;
pub use crate::nvml::settings::{DriverPatience, Settings};

use crate::kernel_log;
use crate::nvml::message::Message;
use crate::nvml::supervise::Supervisor;
use crate::report::Reporter;
use model::observation::ErrorCounter;
use std::collections::BTreeSet;
use std::thread::JoinHandle;
use tokio_util::sync::CancellationToken;
use wire::kernel_log::KernelError;

/// Starts the threads `nvml-poll`, `nvml-events` and `nvml-supervise`, and returns the handle of the last thread. The caller must
/// watch it: without the supervisor, the agent does not notice a call that does not return. A missing driver is not an error: the
/// agent reports the reason with advice and retries with backoff. The caller need not wait for the threads. They end soon after
/// `stop`; a thread that hangs in the driver ends with the process.
///
/// # Errors
/// When the operating system cannot start a thread.
pub fn spawn(settings: Settings, reporter: Reporter, stop: CancellationToken) -> std::io::Result<JoinHandle<()>> {
    let log = settings.kernel_log.clone();
    let mut supervisor = Supervisor::new(settings, reporter.clone(), stop.clone());
    if let Some(path) = log {
        let (messages, counter) = (supervisor.sender(), reporter.clone());
        let reads = kernel_log::spawn(path, reporter, stop, move |error| {
            let message = match error {
                KernelError::Gpu(xid) => Message::Log(xid),
                KernelError::Lost(slot) => Message::Lost(slot),
                KernelError::Switch(sxid) => Message::Switch(sxid),
            };
            if messages.try_send(message).is_err() {
                counter.trouble(ErrorCounter::QueueFull);
            }
        })?;
        supervisor.reads_kernel_log(reads);
    }
    supervisor.spawn_poller(BTreeSet::new())?;
    std::thread::Builder::new().name("nvml-supervise".into()).spawn(move || supervisor.run())
}
