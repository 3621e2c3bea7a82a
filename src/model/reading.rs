//! A value that was measured at a time, or the reason why there is no value. An absent value is never shown as zero.

use crate::time::Monotonic;
use std::fmt;

/// One measured value with its time, or the reason why it is absent.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Reading<T> {
    /// The value, and when it was measured.
    Measured(T, Monotonic),
    /// The value is not known, for this reason.
    Absent(Absence),
}

/// The reason why a reading is absent. The list is closed: each reason has a text that an operator can act on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Absence {
    /// There is no measurement yet, or a rate lacks its second sample.
    NotYet,
    /// The device or driver reports that it has no such value (`NVML_ERROR_NOT_SUPPORTED`).
    NotSupported,
    /// The driver, kernel or file system denied access (`NVML_ERROR_NO_PERMISSION`, `EACCES`, `EPERM`).
    NoPermission,
    /// A driver call takes longer than a reading can wait for; the GPU is left alone until the call returns.
    CallStalls,
    /// A driver call has not returned for so long that it counts as hung; the GPU is left alone until the call returns.
    CallHangs,
    /// The GPU has fallen off the bus or was removed.
    GpuLost,
    /// The GPU must be reset before it can be read.
    ResetRequired,
    /// The NVML library is installed, but the kernel driver is not loaded.
    DriverNotLoaded,
    /// No NVML library is installed.
    LibraryNotFound,
    /// The installed NVML library does not have this call.
    NotInThisDriver,
    /// The architecture has no such counters (GPM begins with Hopper).
    NotThisArchitecture,
    /// Not readable while the GPU is divided into MIG instances.
    MigEnabled,
    /// The pod uses the host's network namespace, whose counters are the node's.
    HostNetwork,
    /// This kernel keeps the file but does not count in it (cgroup v1 block I/O).
    KernelDoesNotCount,
    /// The file does not exist under this cgroup version or configuration.
    NoSuchFile,
    /// The file exists, but its text could not be parsed.
    Unreadable,
    /// The driver reported a number outside the physical range of this reading ([`crate::physical_range`]).
    Implausible,
    /// The process, cgroup or device disappeared while it was being read.
    Vanished,
    /// The value is read through a process of the pod, and no process was alive.
    NoLivingProcess,
    /// The agent runs in its own PID namespace (no `hostPID`), from which the host's processes cannot be seen.
    ProcessesHidden,
    /// This value of another user's process needs `CAP_SYS_PTRACE`.
    NeedsPtrace,
    /// The counter went backwards, so no rate follows from this pair of samples.
    CounterReset,
    /// The value cannot be attributed: its process could not be tied to a container.
    NotAttributable,
    /// The NVLinks end at a switch and not at the other GPU.
    ThroughSwitch,
    /// Switched off by a setting.
    SwitchedOff,
    /// The agent has released the GPU driver for a while, at the request of an operator.
    Released,
    /// Another NVML error; the number is NVML's.
    Nvml(u32),
}

impl Absence {
    /// All reasons that carry no number.
    const PLAIN: [Absence; 26] = [
        Absence::NotYet,
        Absence::NotSupported,
        Absence::NoPermission,
        Absence::CallStalls,
        Absence::CallHangs,
        Absence::GpuLost,
        Absence::ResetRequired,
        Absence::DriverNotLoaded,
        Absence::LibraryNotFound,
        Absence::NotInThisDriver,
        Absence::NotThisArchitecture,
        Absence::MigEnabled,
        Absence::HostNetwork,
        Absence::KernelDoesNotCount,
        Absence::NoSuchFile,
        Absence::Unreadable,
        Absence::Implausible,
        Absence::Vanished,
        Absence::NoLivingProcess,
        Absence::ProcessesHidden,
        Absence::NeedsPtrace,
        Absence::CounterReset,
        Absence::NotAttributable,
        Absence::ThroughSwitch,
        Absence::SwitchedOff,
        Absence::Released,
    ];

    /// The reason with this code; `nvml_error` is the number of an NVML error. `None` if this release has no such reason.
    #[must_use]
    pub fn parse(code: &str, nvml_error: Option<u32>) -> Option<Absence> {
        let plain = Absence::PLAIN.into_iter().find(|why| why.code() == code);
        plain.or_else(|| nvml_error.map(Absence::Nvml).filter(|why| why.code() == code))
    }

    /// A stable short code, for label values and JSON.
    #[must_use]
    pub fn code(self) -> &'static str {
        match self {
            Absence::NotYet => "not_yet",
            Absence::NotSupported => "not_supported",
            Absence::NoPermission => "no_permission",
            Absence::CallStalls => "call_stalls",
            Absence::CallHangs => "call_hangs",
            Absence::GpuLost => "gpu_lost",
            Absence::ResetRequired => "reset_required",
            Absence::DriverNotLoaded => "driver_not_loaded",
            Absence::LibraryNotFound => "library_not_found",
            Absence::NotInThisDriver => "not_in_this_driver",
            Absence::NotThisArchitecture => "not_this_architecture",
            Absence::MigEnabled => "mig_enabled",
            Absence::HostNetwork => "host_network",
            Absence::KernelDoesNotCount => "kernel_does_not_count",
            Absence::NoSuchFile => "no_such_file",
            Absence::Unreadable => "unreadable",
            Absence::Implausible => "implausible",
            Absence::Vanished => "vanished",
            Absence::NoLivingProcess => "no_living_process",
            Absence::ProcessesHidden => "processes_hidden",
            Absence::NeedsPtrace => "needs_ptrace",
            Absence::CounterReset => "counter_reset",
            Absence::NotAttributable => "not_attributable",
            Absence::ThroughSwitch => "through_switch",
            Absence::SwitchedOff => "switched_off",
            Absence::Released => "released",
            Absence::Nvml(_) => "nvml_error",
        }
    }
}

/// The sentence, lower case, without a full stop.
impl fmt::Display for Absence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Absence::NotYet => "not measured yet",
            Absence::NotSupported => "not supported by this device",
            Absence::NoPermission => "no permission",
            Absence::CallStalls => "call has not returned yet",
            Absence::CallHangs => "call hangs",
            Absence::GpuLost => "GPU is lost",
            Absence::ResetRequired => "GPU requires a reset",
            Absence::DriverNotLoaded => "NVIDIA driver is not loaded",
            Absence::LibraryNotFound => "NVML library not found",
            Absence::NotInThisDriver => "not known to the installed driver",
            Absence::NotThisArchitecture => "not counted by this architecture",
            Absence::MigEnabled => "not readable while MIG is enabled",
            Absence::HostNetwork => "host network",
            Absence::KernelDoesNotCount => "kernel does not count it",
            Absence::NoSuchFile => "no such file",
            Absence::Unreadable => "file could not be understood",
            Absence::Implausible => "driver reports an impossible value",
            Absence::Vanished => "vanished while being read",
            Absence::NoLivingProcess => "no living process to read through",
            Absence::ProcessesHidden => "processes are hidden (no hostPID)",
            Absence::NeedsPtrace => "needs CAP_SYS_PTRACE",
            Absence::CounterReset => "counter went backwards",
            Absence::NotAttributable => "cannot be attributed",
            Absence::ThroughSwitch => "through an NVLink switch",
            Absence::SwitchedOff => "switched off",
            Absence::Released => "driver released at an operator's request",
            Absence::Nvml(code) => return write!(f, "NVML error {code}"),
        })
    }
}

/// Makes readings of any unit: an [`Absence`] makes each reading absent for this reason.
pub trait MakeReading {
    /// One reading.
    fn reading<T: Default>(&self) -> Reading<T>;
}

/// A reading, or a struct whose fields are readings (`readings!`).
pub trait Readings {
    /// All of its readings, made by `make`.
    fn made_by(make: &impl MakeReading) -> Self;
}

/// Declares structs. Each field is a reading, or a struct of readings. Each struct gets [`Readings::made_by`], and
/// `absent(why)`, which makes all of its readings absent for one reason.
macro_rules! readings {
    ($($(#[$about:meta])* pub struct $name:ident { $($(#[$doc:meta])* pub $field:ident: $type:ty,)* })*) => {$(
        $(#[$about])*
        pub struct $name { $($(#[$doc])* pub $field: $type,)* }

        impl $crate::reading::Readings for $name {
            fn made_by(make: &impl $crate::reading::MakeReading) -> Self {
                $name { $($field: $crate::reading::Readings::made_by(make),)* }
            }
        }

        impl $name {
            /// All absent for one reason.
            #[must_use]
            pub fn absent(why: $crate::reading::Absence) -> Self {
                $crate::reading::Readings::made_by(&why)
            }
        }
    )*};
}
pub(crate) use readings;

impl MakeReading for Absence {
    fn reading<T: Default>(&self) -> Reading<T> {
        Reading::Absent(*self)
    }
}

impl<T: Default> Readings for Reading<T> {
    fn made_by(make: &impl MakeReading) -> Self {
        make.reading()
    }
}

/// A number in a struct of readings, such as the count of the samples in a mean, becomes 0.
impl Readings for u32 {
    fn made_by(_: &impl MakeReading) -> Self {
        0
    }
}

/// A list in a struct of readings becomes empty.
impl<T> Readings for Vec<T> {
    fn made_by(_: &impl MakeReading) -> Self {
        Vec::new()
    }
}

impl<T> Reading<T> {
    /// Not measured yet: the initial state of every reading.
    pub const NOT_YET: Reading<T> = Reading::Absent(Absence::NotYet);

    /// The value, if there is one.
    pub fn value(&self) -> Option<&T> {
        match self {
            Reading::Measured(value, _) => Some(value),
            Reading::Absent(_) => None,
        }
    }

    /// The time of the measurement, if there is one.
    pub fn at(&self) -> Option<Monotonic> {
        match self {
            Reading::Measured(_, at) => Some(*at),
            Reading::Absent(_) => None,
        }
    }

    /// The reason why the reading is absent, if it is.
    pub fn absence(&self) -> Option<Absence> {
        match self {
            Reading::Measured(..) => None,
            Reading::Absent(why) => Some(*why),
        }
    }

    /// The reading with its value changed; the time and the reason stay.
    pub fn map<U>(self, change: impl FnOnce(T) -> U) -> Reading<U> {
        match self {
            Reading::Measured(value, at) => Reading::Measured(change(value), at),
            Reading::Absent(why) => Reading::Absent(why),
        }
    }

    /// A reading from the result of a measurement at `at`.
    pub fn from_result(result: Result<T, Absence>, at: Monotonic) -> Self {
        match result {
            Ok(value) => Reading::Measured(value, at),
            Err(why) => Reading::Absent(why),
        }
    }
}

impl<T: Copy> Reading<T> {
    /// The value by copy, if there is one.
    pub fn get(&self) -> Option<T> {
        self.value().copied()
    }
}

impl<T> Default for Reading<T> {
    fn default() -> Self {
        Self::NOT_YET
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mapping_keeps_time_and_reason() {
        assert_eq!(Reading::Measured(2, Monotonic(7)).map(|v| v * 2), Reading::Measured(4, Monotonic(7)));
        assert_eq!(Reading::<u8>::Absent(Absence::GpuLost).map(|v| v * 2), Reading::Absent(Absence::GpuLost));
    }

    #[test]
    fn a_reason_is_found_by_its_word() {
        for why in Absence::PLAIN {
            assert_eq!(Absence::parse(why.code(), None), Some(why));
        }
        assert_eq!(Absence::parse("nvml_error", Some(15)), Some(Absence::Nvml(15)));
        for (code, number) in [("nvml_error", None), ("", None), ("", Some(15)), ("of_a_later_release", Some(1))] {
            assert_eq!(Absence::parse(code, number), None, "{code}");
        }
    }

    #[test]
    fn a_fresh_reading_is_absent_not_zero() {
        assert_eq!(Reading::<u64>::default().get(), None);
        assert_eq!(Reading::<u64>::default().absence(), Some(Absence::NotYet));
    }
}
