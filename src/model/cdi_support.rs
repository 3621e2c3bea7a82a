//! What is known of the CDI of a node's container runtime.

/// What the agent found about the CDI of a runtime. It saves this for its next start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CdiSupport {
    /// The runtime has CDI, by its version or by its own report.
    Works,
    /// The runtime or the kubelet does not pass CDI devices on, or this is not known.
    Missing,
    /// The runtime has CDI by its version, but did not make the edits of a CDI device.
    Disproved,
}
