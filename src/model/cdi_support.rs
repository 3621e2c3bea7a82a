//! What is known about the CDI support of a node's container runtime.

/// What the agent found about the CDI support of a runtime. The agent saves this for its next start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CdiSupport {
    /// The runtime supports CDI, according to its version or its own report.
    Works,
    /// The runtime or the kubelet does not pass CDI devices on, or this is not known.
    Missing,
    /// The runtime supports CDI according to its version, but did not make the edits of a CDI device.
    Disproved,
}
