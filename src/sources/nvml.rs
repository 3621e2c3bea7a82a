//! GPUs through the driver's own library.
//!
//! ```text
//!   settings gate            what the host is like; whether the library may be open
//!   absence pulse raw        what an error means; the heartbeat; calls the wrapper lacks (all unsafe code)
//!   library                  opening it, and advice when that fails
//!   look instance inventory tie   who: MIG instances, GPUs, and what ties them
//!   card                     one GPU while it is polled
//!   utilization gpm read process_use process   what is read of it
//!   xid message event        driver errors: the thread `nvml-events`
//!   session                  with the driver: opened, proven, closed, opened again
//!   allowance poll           what may be done out of turn; the thread `nvml-poll`
//!   stall                    what is told of GPUs while a call does not return
//!   supervise                the thread `nvml-supervise`, which never calls NVML
//! ```
//!
//! What must never happen here: a call to NVML outside of a heartbeat, a thread that somebody waits for, one GPU's failure that touches another, a value made up for one that could not be read.

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
mod tie;
mod polled_gpu;
mod utilization;
mod gpm;
mod links;
mod upkeep;
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
#[cfg(test)]
mod drill;

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

/// Starts the threads `nvml-poll` and `nvml-events`, and `nvml-supervise`, which is handed back to be watched: without it
/// nothing is seen of a call that does not return. Never fails for want of a driver: it reports
/// why, with advice, and tries again with back-off. Nobody has to wait for the threads: they end soon after `stop`, but for
/// one that hangs in the driver, which ends with the process.
///
/// # Errors
/// When the operating system has no thread to give.
pub fn spawn(settings: Settings, reporter: Reporter, stop: CancellationToken) -> std::io::Result<JoinHandle<()>> {
    let log = settings.kernel_log.clone();
    let mut supervisor = Supervisor::new(settings, reporter.clone(), stop.clone());
    if let Some(path) = log {
        let (door, counter) = (supervisor.door(), reporter.clone());
        kernel_log::spawn(path, reporter, stop, move |error| {
            let message = match error {
                KernelError::Gpu(xid) => Message::Log(xid),
                KernelError::Switch(sxid) => Message::Switch(sxid),
            };
            if door.try_send(message).is_err() {
                counter.trouble(ErrorCounter::QueueFull);
            }
        })?;
    }
    supervisor.seat(BTreeSet::new())?;
    std::thread::Builder::new().name("nvml-supervise".into()).spawn(move || supervisor.run())
}
