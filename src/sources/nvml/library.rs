//! Opens the NVML library, and gives advice when that fails.

use crate::nvml::absence::{UNINITIALIZED, VERSION_MISMATCH};
use crate::nvml::heartbeat::Heartbeat;
use crate::nvml::raw;
use model::Absence;
use model::nvidia;
use model::observation::GpuSourceState;
use nvml_wrapper::Nvml;
use nvml_wrapper::error::NvmlError;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;

/// Why the library is not available, and what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Missing {
    pub(super) why: Absence,
    pub(super) advice: Arc<str>,
}

/// Opens and initialises the library. The library is never unloaded: a thread that hangs in it may outlive all others.
pub(super) fn open(
    path: Option<&Path>,
    loaded: Option<&'static Nvml>,
    heartbeat: &Heartbeat,
) -> Result<&'static Nvml, Missing> {
    let mut error_text = String::new();
    let opened = heartbeat.open(|| {
        let result = match loaded {
            Some(nvml) => raw::initialise(nvml).map(|()| nvml),
            None => load(path).map(|nvml| &*Box::leak(Box::new(nvml))),
        };
        result.inspect_err(|error| error_text = error.to_string())
    });
    opened.map_err(|why| Missing { why, advice: advice(path, why, &error_text).into() })
}

pub(super) fn load(path: Option<&Path>) -> Result<Nvml, NvmlError> {
    let mut builder = Nvml::builder();
    if let Some(path) = path {
        builder.lib_path(path.as_os_str());
    }
    builder.init()
}

/// Versions of driver, NVML and CUDA.
pub(super) fn versions(nvml: &'static Nvml, heartbeat: &Heartbeat) -> GpuSourceState {
    let unknown = |_| "unknown".to_owned();
    let driver = heartbeat.call(None, || nvml.sys_driver_version()).unwrap_or_else(unknown);
    let version = heartbeat.call(None, || nvml.sys_nvml_version()).unwrap_or_else(unknown);
    let cuda = heartbeat.call(None, || nvml.sys_cuda_driver_version()).ok();
    GpuSourceState::Working {
        driver: driver.into(),
        nvml: version.into(),
        cuda: cuda.map(|number| format!("{}.{}", number / 1000, number % 1000 / 10).into()),
        simulated: false,
    }
}

/// Identifies one loading of the driver's kernel module: the inode of its directory in sysfs. The kernel makes a new
/// directory whenever the module is loaded, and within one boot no two of them have the same inode. `None` if the driver
/// is not a module, or sysfs is missing.
pub(super) fn driver_load(sysfs: &Path) -> Option<u64> {
    std::fs::metadata(sysfs.join("module").join(nvidia::KERNEL_MODULE)).ok().map(|folder| folder.ino())
}

/// A text that says what was tried, what NVML answered, and what to do.
fn advice(path: Option<&Path>, why: Absence, error_text: &str) -> String {
    let library = path.map_or_else(|| nvidia::NVML.to_owned(), |path| path.display().to_string());
    let tried = match why {
        Absence::LibraryNotFound => format!("could not open the NVML library {library}: {error_text}"),
        Absence::NotInThisDriver => format!("{library} is not a usable NVML library: {error_text}"),
        _ => format!("could not initialise NVML from {library}: {error_text}"),
    };
    let remedy = match why {
        Absence::LibraryNotFound if path.is_some() => {
            "check the path given by --nvml-library, or leave it out to let the dynamic linker search"
        }
        Absence::LibraryNotFound => {
            "install the NVIDIA driver, or name the file with --nvml-library; in a container, let the NVIDIA container \
             runtime mount it (NVIDIA_DRIVER_CAPABILITIES=utility)"
        }
        Absence::NotInThisDriver => {
            "give --nvml-library the path of libnvidia-ml.so.1 as the NVIDIA driver installs it"
        }
        Absence::DriverNotLoaded => {
            "make sure that the NVIDIA driver is installed and its kernel module loaded (modprobe nvidia; nvidia-smi \
             must list the GPUs; dmesg shows why a module does not load)"
        }
        Absence::NoPermission => {
            "run as a user who may read and write /dev/nvidiactl and /dev/nvidia*, and in a container let its device \
             cgroup pass them"
        }
        VERSION_MISMATCH => {
            "the library and the loaded kernel module are of different driver versions: reload the module or reboot \
             after a driver update, and restart gpu-steward if it does not recover then"
        }
        Absence::CallHangs => "the driver does not answer: look for NVRM lines in dmesg",
        _ => "look for NVRM lines in dmesg, and try nvidia-smi on this machine",
    };
    format!("{tried}; {remedy}; the agent retries with backoff, and goes on without GPUs meanwhile")
}

/// The text for a driver that was replaced while its library was in use.
pub(super) fn replaced(path: Option<&Path>) -> Arc<str> {
    let library = path.map_or_else(|| nvidia::NVML.to_owned(), |path| path.display().to_string());
    format!(
        "the NVIDIA driver was updated while {library} was in use, and the library in memory will never match it: \
         gpu-steward ends so that it starts again with the new one, and running containers are not affected"
    )
    .into()
}

/// Whether an answer to a call about no particular GPU means that the session with the driver is over.
pub(super) fn session_over(why: Absence) -> bool {
    matches!(why, Absence::DriverNotLoaded | Absence::LibraryNotFound | VERSION_MISMATCH | UNINITIALIZED)
}

/// The reason and advice when a session ends.
pub(super) fn over(path: Option<&Path>, why: Absence) -> Missing {
    Missing { why, advice: advice(path, why, &why.to_string()).into() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nvml::absence::reason;

    #[test]
    fn the_advice_names_the_library_the_error_and_a_remedy() {
        for (error, needed) in [
            (NvmlError::DriverNotLoaded, ["NVIDIA driver is not loaded", "modprobe nvidia"]),
            (NvmlError::NoPermission, ["does not have permission", "/dev/nvidiactl"]),
            (NvmlError::LibRmVersionMismatch, ["version mismatch", "restart gpu-steward"]),
            (NvmlError::FailedToLoadSymbol("no nvmlInit_v2".into()), ["no nvmlInit_v2", "libnvidia-ml.so.1"]),
            (NvmlError::LibraryNotFound, ["couldn't be found", "--nvml-library"]),
            (NvmlError::Unknown, ["internal driver error", "dmesg"]),
        ] {
            let error_text = error.to_string();
            let why = reason(error);
            for path in [None, Some(Path::new("/opt/lib.so"))] {
                let text = advice(path, why, &error_text);
                let library = path.map_or(nvidia::NVML, |_| "/opt/lib.so");
                assert!(text.contains(library), "{text}");
                assert!(text.contains(needed[0]) && text.contains("retries with backoff"), "{text}");
            }
            assert!(advice(None, why, &error_text).contains(needed[1]), "{why:?}");
        }
    }

    #[test]
    fn a_missing_library_file_is_reported_as_library_not_found() {
        let missing = open(Some(Path::new("/nonexistent/libnvidia-ml.so.1")), None, &Heartbeat::default()).unwrap_err();
        assert_eq!(missing.why, Absence::LibraryNotFound);
        assert!(missing.advice.contains("/nonexistent/libnvidia-ml.so.1"), "{}", missing.advice);
        assert!(missing.advice.contains("--nvml-library"), "{}", missing.advice);
    }
}
