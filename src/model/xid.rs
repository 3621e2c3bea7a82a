//! NVIDIA's catalogue of driver errors (XIDs): the action for each error, and which errors make a GPU unfit.
//!
//! The catalogue is NVIDIA's page "Analyzing Xid Errors with the Xid Catalog": code, mnemonic, and the immediate action
//! in one of a few buckets. [`XidEntry::fatal`] is this project's default for which errors make a GPU unfit for new
//! containers:
//!
//! | bucket | fatal | why |
//! |---|---|---|
//! | ignore, restart the application | no | the GPU is healthy; only the process that hit the error is affected |
//! | reset, restart of machine or guest, mechanics, ECC and NVLink workflows | yes | the next container also fails |
//! | contact support | no | mostly unused codes of old GPUs; a serious fault shows in NVML's recovery action |
//! | the recovery action has changed (154) | no | the agent reads that action separately |
//!
//! The severity that the driver states in the kernel log comes before the catalogue (`decide::health`): an error that
//! it calls nonfatal never makes a GPU unfit.
//!
//! One exception: for 109 (a context switch took too long) the catalogue prescribes a reset, but an endless kernel of
//! an application can cause it. NVIDIA's device plugin and HAMi ignore it, and so does the default. A code that is in
//! no bucket is not fatal.
//!
//! What must never happen here: a decision on a GPU. `decide` decides, from this catalogue, NVML's recovery action and
//! time.

/// NVIDIA's immediate action for an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum XidAction {
    /// Nothing to do, or another error gives more information.
    Ignore,
    /// Restart the application.
    RestartApplication,
    /// Reset the GPU.
    ResetGpu,
    /// Restart the virtual machine.
    RestartGuest,
    /// Restart the machine.
    RestartNode,
    /// Check power, seating and cables.
    CheckMechanics,
    /// Update driver or firmware, which do not match.
    UpdateSoftware,
    /// Double-bit ECC error: reset the GPU, and drain it if a row could not be remapped.
    EccWorkflow,
    /// NVLink error: reset the GPU, then check the link.
    NvlinkWorkflow,
    /// NVML's recovery action (field 230) has changed; read it for what to do.
    RecoveryAction,
    /// Contact NVIDIA's support. Also every code that the driver does not use on current GPUs.
    ContactSupport,
    /// In the catalogue without an action.
    Unspecified,
}

/// One error of the catalogue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct XidEntry {
    /// The number.
    pub code: u32,
    /// The error's meaning in a few words.
    pub meaning: &'static str,
    /// The immediate action.
    pub bucket: XidAction,
    /// Whether a GPU with this error gets no new containers until it has recovered.
    pub fatal: bool,
}

/// The error of a GPU that has fallen off the bus.
pub const FALLEN_OFF: u32 = 79;
/// The last code of the catalogue.
const LAST: u32 = 172;
/// The catalogue prescribes a reset, although an application alone can cause this error.
const CONTEXT_SWITCH_TIMEOUT: u32 = 109;

/// Errors of NVLink 5. Each kind has variants that the hardware corrects.
const NVLINK_5: std::ops::RangeInclusive<u32> = 144..=150;

/// The entry of a code; `None` for a number that is not in the catalogue.
#[must_use]
pub fn find(code: u32) -> Option<XidEntry> {
    let (meaning, bucket) = match meaning(code) {
        Some(known) => known,
        None if (1..=LAST).contains(&code) => ("not used by current drivers", XidAction::ContactSupport),
        None => return None,
    };
    Some(XidEntry { code, meaning, bucket, fatal: makes_unfit(bucket) && code != CONTEXT_SWITCH_TIMEOUT })
}

/// Whether a GPU with this error gets no new containers, by default. False for a code that is not in the catalogue.
#[must_use]
pub fn fatal(code: u32) -> bool {
    find(code).is_some_and(|entry| entry.fatal)
}

/// Whether the damage of this error ends only with a reset of the GPU or a restart of the machine, and not with time.
/// True for every error that is fatal by default. An error that only a setting makes fatal is different: this catalogue
/// does not know its action, or an application alone can cause it (109), and no pod may make a GPU unavailable until an
/// operator intervenes.
#[must_use]
pub fn needs_reset(code: u32) -> bool {
    fatal(code)
}

/// Whether the kernel log states the severity of each such error. The number alone does not tell a corrected link from
/// a link that is down.
#[must_use]
pub fn states_severity(code: u32) -> bool {
    NVLINK_5.contains(&code)
}

/// Whether an application causes the error and the error ends with it, so that the GPU is healthy. A contained memory
/// error (94) also ends with the application, but its cause is the GPU.
#[must_use]
pub fn of_application(code: u32) -> bool {
    application(code).is_some() || matches!(code, 43 | 45)
}

/// The whole catalogue, ordered by code.
pub fn catalogue() -> impl Iterator<Item = XidEntry> {
    (1..=LAST).filter_map(find)
}

fn makes_unfit(bucket: XidAction) -> bool {
    match bucket {
        XidAction::ResetGpu
        | XidAction::RestartGuest
        | XidAction::RestartNode
        | XidAction::CheckMechanics
        | XidAction::EccWorkflow
        | XidAction::NvlinkWorkflow => true,
        XidAction::Ignore
        | XidAction::RestartApplication
        | XidAction::UpdateSoftware
        | XidAction::RecoveryAction
        | XidAction::ContactSupport
        | XidAction::Unspecified => false,
    }
}

/// The codes that have a meaning on current GPUs.
fn meaning(code: u32) -> Option<(&'static str, XidAction)> {
    memory(code).or_else(|| link(code)).or_else(|| device(code)).or_else(|| application(code)).or_else(|| notice(code))
}

fn memory(code: u32) -> Option<(&'static str, XidAction)> {
    Some(match code {
        48 => ("double-bit ECC error", XidAction::EccWorkflow),
        63 => ("memory row remapped", XidAction::Ignore),
        64 => ("memory row could not be remapped", XidAction::ResetGpu),
        92 => ("many single-bit ECC errors", XidAction::Ignore),
        94 => ("memory error, contained in one application", XidAction::RestartApplication),
        95 => ("memory error, not contained", XidAction::ResetGpu),
        140 => ("ECC error that was not recovered", XidAction::ResetGpu),
        156 => ("resource retired", XidAction::ResetGpu),
        157 => ("resource could not be retired", XidAction::Ignore),
        160 => ("memory channel retired", XidAction::Ignore),
        161 => ("memory channel could not be retired", XidAction::Ignore),
        168 => ("less memory than the GPU has", XidAction::Unspecified),
        171 => ("uncorrectable error in DRAM, details of 48", XidAction::Unspecified),
        172 => ("uncorrectable error in SRAM, details of 48", XidAction::Unspecified),
        _ => return None,
    })
}

fn link(code: u32) -> Option<(&'static str, XidAction)> {
    Some(match code {
        74 => ("NVLink error", XidAction::NvlinkWorkflow),
        108 => ("NVLink translation error at the other end", XidAction::Ignore),
        121 => ("chip-to-chip link error, corrected", XidAction::Ignore),
        136 => ("link training failed", XidAction::ResetGpu),
        137 => ("NVLink access refused", XidAction::Ignore),
        code if NVLINK_5.contains(&code) => ("NVLink 5 error", XidAction::NvlinkWorkflow),
        155 => ("NVLink error that software defines", XidAction::ResetGpu),
        166 => ("NVLink traffic before encryption was set up", XidAction::Unspecified),
        167 => ("PCIe timeout", XidAction::Unspecified),
        170 => ("NVLink interrupt in confidential mode", XidAction::Unspecified),
        _ => return None,
    })
}

fn device(code: u32) -> Option<(&'static str, XidAction)> {
    Some(match code {
        46 => ("GPU stopped processing", XidAction::ResetGpu),
        54 => ("auxiliary power is not connected", XidAction::CheckMechanics),
        62 => ("internal micro-controller halted", XidAction::ResetGpu),
        78 => ("vGPU could not be started", XidAction::UpdateSoftware),
        FALLEN_OFF => ("GPU has fallen off the bus", XidAction::RestartNode),
        CONTEXT_SWITCH_TIMEOUT => ("context switch took too long", XidAction::ResetGpu),
        110 => ("security fault", XidAction::ResetGpu),
        119 => ("call to the system processor took too long", XidAction::ResetGpu),
        120 => ("system processor failed", XidAction::ResetGpu),
        143 => ("GPU could not be initialised", XidAction::ResetGpu),
        151 => ("key rotation failed", XidAction::RestartGuest),
        154 => ("recovery action has changed", XidAction::RecoveryAction),
        158 => ("fatal timeout", XidAction::ResetGpu),
        169 => ("security micro-controller halted", XidAction::Unspecified),
        _ => return None,
    })
}

fn application(code: u32) -> Option<(&'static str, XidAction)> {
    let meaning = match code {
        8 => "GPU stopped processing",
        11 | 25 | 32 => "invalid or corrupted push buffer stream",
        13 => "graphics engine exception",
        31 => "GPU memory page fault",
        39..=41 | 70..=72 | 75..=77 | 85 | 126..=135 => "copy engine error",
        60 => "video processor exception",
        68 | 83 | 84 | 88 | 89 | 96..=98 => "video decoder error",
        69 => "graphics engine class error",
        80 => "corrupted data sent to the GPU",
        82 | 99..=105 => "JPEG decoder error",
        86 | 139 => "optical flow error",
        _ => return None,
    };
    Some((meaning, XidAction::RestartApplication))
}

fn notice(code: u32) -> Option<(&'static str, XidAction)> {
    let meaning = match code {
        14 => "made for tests",
        37 | 38 => "driver firmware error",
        43 => "GPU stopped processing for one application",
        44 => "graphics engine fault at a context switch",
        45 => "clean-up after an earlier error",
        66 | 67 => "illegal access by the driver",
        93 => "InfoROM has been written often",
        106 | 107 => "test message",
        141 => "fast path error",
        152 | 153 => "deep learning accelerator error",
        159 => "interconnect error, follows another",
        162..=165 => {
            return Some(("power smoothing", XidAction::Unspecified));
        }
        _ => return None,
    };
    Some((meaning, XidAction::Ignore))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exactly_these_errors_make_a_gpu_unfit() {
        let fatal: Vec<u32> = catalogue().filter(|entry| entry.fatal).map(|entry| entry.code).collect();
        let expected = [
            46, 48, 54, 62, 64, 74, 79, 95, 110, 119, 120, 136, 140, 143, 144, 145, 146, 147, 148, 149, 150, 151, 155,
            156, 158,
        ];
        assert_eq!(fatal, expected);
    }

    #[test]
    fn an_error_that_an_application_can_cause_makes_no_gpu_unfit() {
        for code in [13, 31, 43, 45, 68, 109, 94, 63, 92] {
            assert!(!fatal(code), "{code}");
        }
        for (code, own) in
            [(13, true), (31, true), (43, true), (45, true), (68, true), (94, false), (109, false), (48, false)]
        {
            assert_eq!(of_application(code), own, "{code}");
        }
        assert_eq!(find(109).map(|entry| entry.bucket), Some(XidAction::ResetGpu));
    }

    #[test]
    fn errors_that_are_fatal_by_default_need_a_reset_and_other_errors_do_not() {
        for (code, needs) in
            [(95, true), (62, true), (119, true), (79, true), (74, true), (109, false), (94, false), (999, false)]
        {
            assert_eq!(needs_reset(code), needs, "{code}");
        }
    }

    #[test]
    fn every_number_up_to_the_last_is_in_the_catalogue_and_none_beyond() {
        assert_eq!(catalogue().map(|entry| entry.code).collect::<Vec<_>>(), (1..=LAST).collect::<Vec<_>>());
        for code in [0, LAST + 1, 999, u32::MAX] {
            assert_eq!((find(code), fatal(code)), (None, false), "{code}");
        }
        assert!(catalogue().all(|entry| !entry.meaning.is_empty()));
    }
}
