//! The behaviour of the agents, set by the bench.

/// The behaviour of the agents besides their heartbeats.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Mode {
    /// A fifth of them reports a change each second.
    pub(super) changing: bool,
    /// The first one is not registered with its kubelet, which closes its node.
    pub(super) closed: bool,
}
