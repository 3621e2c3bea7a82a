//! Incidents: the reasons why a GPU gets no new containers, each with its code, its text, and what to do about it.

use crate::id::GpuUuid;
use crate::reading::Absence;
use crate::recovery::RecoveryAction;
use crate::time::Monotonic;
use crate::xid::{self, XidAction};
use std::fmt;

/// One reason why a GPU gets no new containers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Incident {
    /// The GPU does not answer: it is lost or hangs, or the driver requires a reset or is not loaded.
    Silent(Absence),
    /// No core reading has succeeded for several rounds, for this reason.
    Unread(Absence),
    /// Driver calls to the GPU stalled several times in a short time.
    Stalls,
    /// A fatal driver error, by its number in NVIDIA's catalogue.
    Xid(u32),
    /// The driver says, without an XID, that the GPU has fallen off the bus.
    FallenOff,
    /// Uncorrected ECC errors.
    EccUncorrected,
    /// A memory row waits for a reset to be remapped.
    RemapPending,
    /// A memory row could not be remapped.
    RemapFailed,
    /// NVML reports a recovery action for the GPU.
    Advised(RecoveryAction),
}

/// Whether a GPU is fit for new containers, and if not, why and until when.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GpuCondition {
    /// The incidents, ordered, each with the time when it was first seen. The GPU is fit when there are no incidents.
    pub incidents: Vec<(Incident, Monotonic)>,
    /// When the GPU is fit again if nothing more happens; `None` while an incident is still present in the readings,
    /// and while a reset is required.
    pub fit_at: Option<Monotonic>,
    /// Whether the GPU becomes fit again only after the agent has seen a reset, or when an operator clears the
    /// incidents, because the driver does not report its recovery.
    pub awaits_reset: bool,
}

/// A sentence: what to do, because the driver does not report when a GPU has recovered.
pub const HOW_TO_CLEAR: &str = "The driver does not report when the GPU has recovered: it gets new containers again \
     after the agent has seen a reset of it, or after `gpu-steward clear-incident UUID`.";

/// The incidents of one GPU that survive a restart of the agent. Conditions that show in the readings are left out,
/// because the agent reads them again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeptIncidents {
    /// The GPU.
    pub gpu: GpuUuid,
    /// Events ([`Incident::is_event`]), ordered, each with the time when it was first seen.
    pub incidents: Vec<(Incident, Monotonic)>,
    /// The time of the last incident.
    pub last: Monotonic,
    /// Counters at that time, while a reset is required.
    pub awaits: Option<CounterMarks>,
    /// The load of the driver in which the incident happened, if it is known.
    pub driver_load: Option<u64>,
}

/// Counters at the time of an incident that start again at 0 when a GPU is reset or its driver is reloaded. `None` if a
/// counter could not be read, or also starts again without a reset, because the driver releases a GPU when its last
/// user ends (persistence mode is off).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CounterMarks {
    /// Energy, in millijoules.
    pub energy: Option<u64>,
    /// Uncorrected ECC errors since the driver was loaded.
    pub uncorrected: Option<u64>,
}

impl GpuCondition {
    /// What to do about one of the incidents, as one or two sentences.
    #[must_use]
    pub fn advice(&self, incident: Incident) -> String {
        match incident {
            Incident::Xid(code) if self.awaits_reset && xid::needs_reset(code) => {
                format!("{} {HOW_TO_CLEAR}", incident.advice())
            }
            Incident::FallenOff if self.awaits_reset => format!("{} {HOW_TO_CLEAR}", incident.advice()),
            _ => incident.advice().to_owned(),
        }
    }

    /// Whether the GPU gets new containers.
    #[must_use]
    pub fn fit(&self) -> bool {
        self.incidents.is_empty()
    }
}

impl Incident {
    /// Whether the incident is an event, rather than a condition that shows in the readings.
    #[must_use]
    pub fn is_event(self) -> bool {
        matches!(self, Incident::Xid(_) | Incident::FallenOff | Incident::EccUncorrected)
    }

    /// A stable short code, for label values and JSON.
    #[must_use]
    pub fn code(self) -> String {
        match self {
            Incident::Silent(why) => why.code().into(),
            Incident::Unread(_) => "silent".into(),
            Incident::Stalls => "calls_stall".into(),
            Incident::Xid(code) => format!("xid_{code}"),
            Incident::FallenOff => "fallen_off_bus".into(),
            Incident::EccUncorrected => "ecc_uncorrected".into(),
            Incident::RemapPending => "row_remap_pending".into(),
            Incident::RemapFailed => "row_remap_failed".into(),
            Incident::Advised(action) => format!("advised_{}", action.code()),
        }
    }

    /// What to do, as a sentence.
    #[must_use]
    pub fn advice(self) -> &'static str {
        match self {
            Incident::Silent(Absence::CallHangs) => {
                "Check the kernel log (dmesg); if the driver does not recover, drain and restart the node."
            }
            Incident::Silent(Absence::DriverNotLoaded | Absence::LibraryNotFound) => "Load NVIDIA's driver.",
            Incident::Silent(_) => "Check the kernel log (dmesg); reset the GPU or restart the node.",
            Incident::Unread(Absence::NoPermission) => {
                "Allow the agent's user and its device cgroup to open /dev/nvidia*: a container can lose that access \
                 when systemd reloads its units."
            }
            Incident::Unread(_) => {
                "Check the kernel log (dmesg): if the GSP firmware has stopped (XID 119 or 120), reset the GPU or \
                 restart the node."
            }
            Incident::Stalls => {
                "Check the kernel log (dmesg) and which other programs call the driver (many nvidia-smi at a time); if \
                 the stalls continue, drain and restart the node."
            }
            Incident::Xid(code) if xid::states_severity(code) => {
                "Check the kernel log (dmesg): if the driver calls the error Nonfatal there, the GPU works, and an agent \
                 that reads the log (agent.kernelLog, --kernel-log) leaves it in service. Else reset the GPU; if the \
                 error comes back, check the NVLink."
            }
            Incident::Xid(code) => match xid::find(code).map(|entry| entry.bucket) {
                Some(XidAction::RestartNode) => "Drain and restart the node.",
                Some(XidAction::RestartGuest) => "Restart the virtual machine.",
                Some(XidAction::CheckMechanics) => "Check power, seating and cables of the GPU.",
                Some(XidAction::NvlinkWorkflow) => "Reset the GPU; if the error comes back, check the NVLink.",
                _ => "Stop the processes on the GPU and reset it; if the error comes back, have the GPU inspected.",
            },
            Incident::FallenOff => "Drain and restart the node.",
            Incident::EccUncorrected => {
                "Stop the processes on the GPU and reset it; if the error comes back, have the GPU inspected."
            }
            Incident::RemapPending => "Stop the processes on the GPU and reset it: the reset remaps the row.",
            Incident::RemapFailed => "Replace the GPU: it has no spare memory rows left.",
            Incident::Advised(action) => match action {
                RecoveryAction::None => "No action is needed.",
                RecoveryAction::ResetGpu => "Stop the processes on the GPU and reset it.",
                RecoveryAction::RebootNode => "Drain and restart the node.",
                RecoveryAction::DrainPeers => "Stop the processes that use the GPU's peers over NVLink.",
                RecoveryAction::DrainAndReset => "Wait until the processes on the GPU have ended, then reset it.",
                RecoveryAction::RecoverImexDomain => {
                    "Drain the node, then recover the IMEX domain (nvidia-imex) that it belongs to."
                }
                RecoveryAction::ResetBus => {
                    "Drain the node, then reset the GPU's PCIe bus: a reset of the GPU alone is less than NVML advises."
                }
                RecoveryAction::RebootSystem => "Drain the node, then restart the machine as a whole.",
                RecoveryAction::Unknown(_) => {
                    "Drain the node, then look up this recovery action in the documentation of the installed driver."
                }
            },
        }
    }
}

/// Half a sentence, for a log line or event.
impl fmt::Display for Incident {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Incident::Silent(why) => write!(f, "it cannot be read: {why}"),
            Incident::Unread(why) => write!(f, "none of its core readings succeeds: {why}"),
            Incident::Stalls => f.write_str("calls to it stalled again and again"),
            Incident::Xid(code) => match xid::find(*code) {
                Some(entry) => write!(f, "XID {code}: {}", entry.meaning),
                None => write!(f, "XID {code}"),
            },
            Incident::FallenOff => f.write_str("the driver says that it has fallen off the bus"),
            Incident::EccUncorrected => f.write_str("ECC errors that were not corrected"),
            Incident::RemapPending => f.write_str("a memory row waits for a reset to be remapped"),
            Incident::RemapFailed => f.write_str("a memory row could not be remapped"),
            Incident::Advised(RecoveryAction::Unknown(number)) => {
                write!(f, "NVML advises: recovery action {number}, which this version does not know")
            }
            Incident::Advised(action) => write!(f, "NVML advises: {}", action.code().replace('_', " ")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn each_incident_has_its_own_code_and_advice() {
        let mut all = vec![Incident::EccUncorrected, Incident::RemapPending, Incident::RemapFailed, Incident::Stalls];
        all.extend([Incident::FallenOff, Incident::Unread(Absence::NoPermission)]);
        all.extend([Absence::GpuLost, Absence::CallHangs, Absence::ResetRequired].map(Incident::Silent));
        all.extend((1..9).map(|number| Incident::Advised(RecoveryAction::from_nvml(number))));
        all.extend(xid::catalogue().filter(|entry| entry.fatal).map(|entry| Incident::Xid(entry.code)));
        let words: BTreeSet<String> = all.iter().map(|incident| incident.code()).collect();
        assert_eq!(words.len(), all.len());
        for incident in all {
            assert!(incident.advice().ends_with('.') && !incident.to_string().ends_with('.'), "{incident}");
        }
        assert_eq!(Incident::Xid(79).to_string(), "XID 79: GPU has fallen off the bus");
        assert_eq!(Incident::Advised(RecoveryAction::DrainAndReset).code(), "advised_drain_and_reset");
        let unread = [Absence::NoPermission, Absence::Nvml(999)].map(Incident::Unread);
        assert_eq!(unread.map(Incident::code), ["silent", "silent"]);
        assert!(unread[0].advice().contains("device cgroup") && unread[1].advice().contains("GSP"));
        assert!(Incident::Xid(145).advice().contains("agent.kernelLog"), "only the kernel log tells what to do");
    }

    #[test]
    fn a_gpu_reset_is_advised_only_where_nvml_advises_one() {
        for (number, word, advice) in [
            (1, "advised_reset_gpu", "reset it"),
            (2, "advised_reboot_node", "restart the node"),
            (4, "advised_drain_and_reset", "reset it"),
            (5, "advised_recover_imex_domain", "IMEX"),
            (6, "advised_reset_bus", "PCIe bus"),
            (7, "advised_reboot_system", "restart the machine"),
            (8, "advised_unknown", "Drain the node, then look up"),
            (u32::MAX, "advised_unknown", "Drain the node, then look up"),
        ] {
            let action = RecoveryAction::from_nvml(number);
            assert_eq!(action.number(), number);
            let incident = Incident::Advised(action);
            assert_eq!(incident.code(), word);
            assert!(incident.advice().contains(advice), "{number}: {}", incident.advice());
            assert_eq!(incident.advice().contains("reset it"), matches!(number, 1 | 4), "{number}");
        }
        let unknown = Incident::Advised(RecoveryAction::from_nvml(9)).to_string();
        assert!(unknown.contains("recovery action 9"), "{unknown}");
    }
}
