//! Maps NVML's errors to reasons for an absent reading; the only place that does so.

use model::Absence;
use nvml_wrapper::error::NvmlError;

/// `NVML_ERROR_INVALID_ARGUMENT`: for lists that are read by index, an index past the end.
pub(super) const INVALID_ARGUMENT: Absence = Absence::Nvml(2);
/// `NVML_ERROR_NOT_FOUND`: for lists that are read by index, an empty entry; for sample buffers, no sample newer than
/// the given time.
pub(super) const NOT_FOUND: Absence = Absence::Nvml(6);
/// `NVML_ERROR_INSUFFICIENT_SIZE`: the list grew between the call for its length and the call for the list.
pub(super) const INSUFFICIENT_SIZE: Absence = Absence::Nvml(7);
/// `NVML_ERROR_NO_DATA`.
pub(super) const NO_DATA: Absence = Absence::Nvml(21);
/// `NVML_ERROR_LIB_RM_VERSION_MISMATCH`.
pub(super) const VERSION_MISMATCH: Absence = Absence::Nvml(18);
/// `NVML_ERROR_UNINITIALIZED`: the session is over; the library must be initialised again.
pub(super) const UNINITIALIZED: Absence = Absence::Nvml(1);

/// The reason for an error of the wrapper.
pub(super) fn reason(error: NvmlError) -> Absence {
    match error {
        NvmlError::NotSupported | NvmlError::VgpuEccNotSupported => Absence::NotSupported,
        NvmlError::NoPermission | NvmlError::OperatingSystem => Absence::NoPermission,
        NvmlError::GpuLost => Absence::GpuLost,
        NvmlError::ResetRequired => Absence::ResetRequired,
        NvmlError::DriverNotLoaded => Absence::DriverNotLoaded,
        NvmlError::LibraryNotFound | NvmlError::LibloadingError(_) => Absence::LibraryNotFound,
        // This library lacks the call, or has it only with another version of its structure.
        NvmlError::FunctionNotFound | NvmlError::FailedToLoadSymbol(_) | NvmlError::UnexpectedVariant(25 | 26) => {
            Absence::NotInThisDriver
        }
        other => Absence::Nvml(other.into()),
    }
}

/// Whether the answer will stay the same for long, so that asking again every second is useless.
pub(super) fn lasting(why: Absence) -> bool {
    matches!(
        why,
        Absence::NotSupported | Absence::NotInThisDriver | Absence::NoPermission | Absence::NotThisArchitecture
    )
}

/// Whether the answer means that the GPU does not have these things at all, so that their count is zero.
pub(super) fn none_of_it(why: Absence) -> bool {
    matches!(why, Absence::NotSupported | Absence::NotInThisDriver)
}

/// Whether a healthy GPU may give this answer.
pub(super) fn ordinary(why: Absence) -> bool {
    lasting(why) || matches!(why, NOT_FOUND | NO_DATA | INSUFFICIENT_SIZE | Absence::CallHangs | Absence::MigEnabled)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_nvml_error_code_maps_to_a_reason() {
        for (code, why) in [
            (1, Absence::Nvml(1)),
            (2, Absence::Nvml(2)),
            (3, Absence::NotSupported),
            (4, Absence::NoPermission),
            (5, Absence::Nvml(5)),
            (6, Absence::Nvml(6)),
            (7, Absence::Nvml(7)),
            (8, Absence::Nvml(8)),
            (9, Absence::DriverNotLoaded),
            (10, Absence::Nvml(10)),
            (11, Absence::Nvml(11)),
            (12, Absence::LibraryNotFound),
            (13, Absence::NotInThisDriver),
            (14, Absence::Nvml(14)),
            (15, Absence::GpuLost),
            (16, Absence::ResetRequired),
            (17, Absence::NoPermission),
            (18, Absence::Nvml(18)),
            (19, Absence::Nvml(19)),
            (20, Absence::Nvml(20)),
            (21, Absence::Nvml(21)),
            (22, Absence::NotSupported),
            (23, Absence::Nvml(23)),
            (24, Absence::Nvml(24)),
            (25, Absence::NotInThisDriver),
            (26, Absence::NotInThisDriver),
            (27, Absence::Nvml(27)),
            (28, Absence::Nvml(28)),
            (29, Absence::Nvml(29)),
            (30, Absence::Nvml(30)),
            (999, Absence::Nvml(999)),
            (4242, Absence::Nvml(4242)),
        ] {
            assert_eq!(reason(NvmlError::from(code)), why, "{code}");
        }
        assert_eq!(reason(NvmlError::FailedToLoadSymbol(String::new())), Absence::NotInThisDriver);
        assert_eq!(reason(NvmlError::SetReleaseFailed), Absence::Nvml(999));
    }
}
