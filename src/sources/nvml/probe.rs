//! One look at the driver, for `doctor`: its versions, and whether each GPU answers. A call that does not return costs a thread of a
//! process that ends soon.

use crate::nvml::absence::reason;
use crate::nvml::library;
use model::Absence;
use model::gpu::MAX_GPUS;
use nvml_wrapper::Nvml;
use nvml_wrapper::error::NvmlError;
use std::path::PathBuf;
use std::sync::mpsc;
use std::time::Duration;

/// What the driver answered.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NvmlProbe {
    /// The version of the driver.
    pub driver: String,
    /// The version of the library.
    pub nvml: String,
    /// The GPUs, by index.
    pub gpus: Vec<Result<ProbedGpu, NvmlFailure>>,
    /// The requested UUIDs that the driver does not know, each with its error.
    pub unknown: Vec<(String, NvmlFailure)>,
}

/// A GPU that answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProbedGpu {
    /// UUID.
    pub uuid: String,
    /// Product name.
    pub name: String,
}

/// Why a call failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub struct NvmlFailure {
    /// The reason.
    pub why: Absence,
    /// The text of the library.
    pub text: String,
}

/// Asks the driver. `uuids` are GPUs that it should know.
///
/// # Errors
/// Why the library cannot be used; [`Absence::CallHangs`] if the driver has not answered within this time.
pub fn probe(library: Option<PathBuf>, uuids: Vec<String>, within: Duration) -> Result<NvmlProbe, NvmlFailure> {
    let (sender, answer) = mpsc::sync_channel(1);
    let ask = move || drop(sender.send(ask(library, &uuids)));
    let thread = std::thread::Builder::new().name("nvml-probe".into()).spawn(ask);
    if let Err(error) = thread {
        return Err(NvmlFailure { why: Absence::NotYet, text: format!("cannot start a thread: {error}") });
    }
    answer.recv_timeout(within).unwrap_or_else(|_| {
        let text = format!("the driver has not answered within {} s", within.as_secs());
        Err(NvmlFailure { why: Absence::CallHangs, text })
    })
}

fn failure(error: NvmlError) -> NvmlFailure {
    let text = error.to_string();
    NvmlFailure { why: reason(error), text }
}

fn ask(library: Option<PathBuf>, uuids: &[String]) -> Result<NvmlProbe, NvmlFailure> {
    let nvml = library::load(library.as_deref()).map_err(failure)?;
    let count = nvml.device_count().map_err(failure)?;
    let most = u32::try_from(MAX_GPUS).unwrap_or(u32::MAX);
    let gpus = (0..count.min(most)).map(|index| gpu(&nvml, index).map_err(failure)).collect();
    let unknown = uuids.iter().filter_map(|uuid| {
        let why = nvml.device_by_uuid(uuid.as_str()).err()?;
        Some((uuid.clone(), failure(why)))
    });
    Ok(NvmlProbe {
        driver: nvml.sys_driver_version().map_err(failure)?,
        nvml: nvml.sys_nvml_version().map_err(failure)?,
        gpus,
        unknown: unknown.collect(),
    })
}

fn gpu(nvml: &Nvml, index: u32) -> Result<ProbedGpu, NvmlError> {
    let device = nvml.device_by_index(index)?;
    Ok(ProbedGpu { uuid: device.uuid()?, name: device.name()? })
}
