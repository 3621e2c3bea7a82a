//! What makes a GPU unfit for new containers: each incident with its word, its sentence, and what to do about it.

use crate::gpu::RecoveryAction;
use crate::id::GpuUuid;
use crate::reading::Absence;
use crate::time::Monotonic;
use crate::xid::{self, XidAction};
use std::fmt;

/// One reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Incident {
    /// It does not answer: lost, hanging, or its driver wants a reset or is gone.
    Silent(Absence),
    /// None of its core readings has succeeded for several rounds, for this reason.
    Unread(Absence),
    /// Calls to it stalled several times in a short while.
    Stalls,
    /// A driver error that condemns it, by its number in NVIDIA's catalogue.
    Xid(u32),
    /// ECC errors that were not corrected.
    EccUncorrected,
    /// A memory row waits for a reset to be remapped.
    RemapPending,
    /// A memory row could not be remapped.
    RemapFailed,
    /// NVML advises to do something with it.
    Advised(RecoveryAction),
}

/// Whether a GPU is fit for new containers, and if not, why and until when.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GpuCondition {
    /// The reasons, ordered, each with when it was seen first. None: it is fit.
    pub incidents: Vec<(Incident, Monotonic)>,
    /// When it is fit again if nothing more happens; absent while something stands, and while a reset is waited for.
    pub fit_at: Option<Monotonic>,
    /// Whether only a reset that has been seen, or an operator's word, makes it fit again: the driver does not say.
    pub awaits_reset: bool,
}

/// What to do where the driver does not say when a GPU is well again, as a sentence.
pub const HOW_TO_CLEAR: &str = "The driver does not tell when it is well: it gets new containers again once a reset of it was \
     seen, or by `gpu-steward agent --clear-incident UUID`.";

/// What has happened to one GPU, as it is kept over a restart of the agent. What stands in the readings is not in it: that
/// is read anew.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeptIncidents {
    /// Which GPU.
    pub gpu: GpuUuid,
    /// [`Incident::Xid`] and [`Incident::EccUncorrected`], ordered, each with when it was seen first.
    pub incidents: Vec<(Incident, Monotonic)>,
    /// When something last happened.
    pub last: Monotonic,
    /// Counters as they stood then, while a reset is waited for.
    pub awaits: Option<CounterMarks>,
    /// Which loading of the driver it happened to, where that is known.
    pub driver_load: Option<u64>,
}

/// Counters that begin again at 0 when a GPU is reset or its driver loaded again, as they stood at an incident. Absent where
/// they could not be read, or begin again for less: where the driver lets go of a GPU when its last user ends (persistence
/// mode is off).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CounterMarks {
    /// Energy, in millijoules.
    pub energy: Option<u64>,
    /// Uncorrected ECC errors since the driver was loaded.
    pub uncorrected: Option<u64>,
}

impl GpuCondition {
    /// What to do about one of its incidents, as one or two sentences.
    #[must_use]
    pub fn advice(&self, incident: Incident) -> String {
        match incident {
            Incident::Xid(code) if self.awaits_reset && xid::needs_reset(code) => {
                format!("{} {HOW_TO_CLEAR}", incident.advice())
            }
            _ => incident.advice().to_owned(),
        }
    }

    /// Whether it gets new containers.
    #[must_use]
    pub fn fit(&self) -> bool {
        self.incidents.is_empty()
    }
}

impl Incident {
    /// Whether it happened, rather than stands in the readings.
    #[must_use]
    pub fn happened(self) -> bool {
        matches!(self, Incident::Xid(_) | Incident::EccUncorrected)
    }

    /// A stable short word, for label values and JSON.
    #[must_use]
    pub fn code(self) -> String {
        match self {
            Incident::Silent(why) => why.code().into(),
            Incident::Unread(_) => "silent".into(),
            Incident::Stalls => "calls_stall".into(),
            Incident::Xid(code) => format!("xid_{code}"),
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
                "See the kernel's log (dmesg); if the driver does not come back, drain and restart the node."
            }
            Incident::Silent(Absence::DriverNotLoaded | Absence::LibraryNotFound) => "Load NVIDIA's driver.",
            Incident::Silent(_) => "See the kernel's log (dmesg); reset the GPU or restart the node.",
            Incident::Unread(Absence::NoPermission) => {
                "Let the agent's user and its device cgroup open /dev/nvidia*: a container may have lost that when systemd \
                 read its units again."
            }
            Incident::Unread(_) => {
                "See the kernel's log (dmesg): firmware that has ended (GSP, XID 119 or 120) needs a reset of the GPU or a \
                 restart of the node."
            }
            Incident::Stalls => {
                "See the kernel's log (dmesg) and what else asks the driver (many nvidia-smi at a time); if it goes on, \
                 drain and restart the node."
            }
            Incident::Xid(code) => match xid::find(code).map(|entry| entry.bucket) {
                Some(XidAction::RestartNode) => "Drain and restart the node.",
                Some(XidAction::RestartGuest) => "Restart the virtual machine.",
                Some(XidAction::CheckMechanics) => "Look at power, seating and cables of the card.",
                Some(XidAction::NvlinkWorkflow) => "Reset the GPU; if it comes again, look at the NVLink.",
                _ => "End what runs on the GPU and reset it; if it comes again, have the card looked at.",
            },
            Incident::EccUncorrected => {
                "End what runs on the GPU and reset it; if it comes again, have the card looked at."
            }
            Incident::RemapPending => "End what runs on the GPU and reset it: then the row is remapped.",
            Incident::RemapFailed => "Have the card replaced: it has no spare rows left.",
            Incident::Advised(action) => match action {
                RecoveryAction::None => "Nothing is to be done.",
                RecoveryAction::ResetGpu => "End what runs on the GPU and reset it.",
                RecoveryAction::RebootNode => "Drain and restart the node.",
                RecoveryAction::DrainPeers => "End what uses the GPU's peers over NVLink.",
                RecoveryAction::DrainAndReset => "Let what runs on the GPU end, then reset it.",
                RecoveryAction::RecoverImexDomain => {
                    "Drain the node, then recover the IMEX domain (nvidia-imex) that it belongs to."
                }
                RecoveryAction::ResetBus => {
                    "Drain the node, then reset the GPU's PCIe bus: a reset of the GPU alone is less than NVML asks for."
                }
                RecoveryAction::RebootSystem => "Drain the node, then restart the machine as a whole.",
                RecoveryAction::Unknown(_) => {
                    "Drain the node, then look up this recovery action in the documentation of the installed driver."
                }
            },
        }
    }
}

/// Half a sentence.
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
    fn each_incident_has_its_own_word_and_something_to_do() {
        let mut all = vec![Incident::EccUncorrected, Incident::RemapPending, Incident::RemapFailed, Incident::Stalls];
        all.push(Incident::Unread(Absence::NoPermission));
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
    }

    #[test]
    fn only_where_nvml_asks_for_a_reset_of_the_gpu_is_it_advised() {
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
