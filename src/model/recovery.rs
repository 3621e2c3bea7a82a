//! What NVML advises to do with a GPU that does not work.

/// NVML's recovery action (field 230).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum RecoveryAction {
    /// Nothing to do.
    #[default]
    None,
    /// Reset the GPU.
    ResetGpu,
    /// Reboot the node.
    RebootNode,
    /// Drain peers.
    DrainPeers,
    /// Drain, then reset.
    DrainAndReset,
    /// Recover the IMEX domain that the GPU's node belongs to (R595 and later).
    RecoverImexDomain,
    /// Reset the GPU's PCIe bus (R615 and later).
    ResetBus,
    /// Reboot the whole system (R615 and later).
    RebootSystem,
    /// A number that this version does not know.
    Unknown(u32),
}

impl RecoveryAction {
    /// The action with NVML's number.
    #[must_use]
    pub fn from_nvml(number: u32) -> Self {
        match number {
            0 => RecoveryAction::None,
            1 => RecoveryAction::ResetGpu,
            2 => RecoveryAction::RebootNode,
            3 => RecoveryAction::DrainPeers,
            4 => RecoveryAction::DrainAndReset,
            5 => RecoveryAction::RecoverImexDomain,
            6 => RecoveryAction::ResetBus,
            7 => RecoveryAction::RebootSystem,
            other => RecoveryAction::Unknown(other),
        }
    }

    /// A stable short code.
    #[must_use]
    pub fn code(self) -> &'static str {
        match self {
            RecoveryAction::None => "none",
            RecoveryAction::ResetGpu => "reset_gpu",
            RecoveryAction::RebootNode => "reboot_node",
            RecoveryAction::DrainPeers => "drain_peers",
            RecoveryAction::DrainAndReset => "drain_and_reset",
            RecoveryAction::RecoverImexDomain => "recover_imex_domain",
            RecoveryAction::ResetBus => "reset_bus",
            RecoveryAction::RebootSystem => "reboot_system",
            RecoveryAction::Unknown(_) => "unknown",
        }
    }

    /// NVML's number.
    #[must_use]
    pub fn number(self) -> u32 {
        match self {
            RecoveryAction::None => 0,
            RecoveryAction::ResetGpu => 1,
            RecoveryAction::RebootNode => 2,
            RecoveryAction::DrainPeers => 3,
            RecoveryAction::DrainAndReset => 4,
            RecoveryAction::RecoverImexDomain => 5,
            RecoveryAction::ResetBus => 6,
            RecoveryAction::RebootSystem => 7,
            RecoveryAction::Unknown(other) => other,
        }
    }
}
