//! Messages and services of gpu-steward and of the programs that it talks to, generated from the `.proto` files beside
//! this file.
//!
//! ```text
//!   usage.proto          gpu-steward's own usage stream, on the agent's socket
//!   stream.proto         the streams between agents and the leading extender
//!   podresources.proto   the part of kubelet's PodResources API v1 that the agent reads
//!   deviceplugin.proto   kubelet's device plugin API v1beta1
//!   cri.proto            the part of the container runtime's CRI runtime.v1 that the agent reads
//!        │  tests/fresh.rs (pure Rust; UPDATE_GOLDEN=1 writes, otherwise it fails on any difference)
//!        ▼
//!   gen/*.rs             checked in, never edited
//! ```
//!
//! What must never happen here: hand-written code, a build script, a field number that differs from that of its owner.

/// The usage stream: package `gpu_steward.usage.v1`.
#[allow(clippy::all, clippy::pedantic, missing_docs, unreachable_pub, reason = "generated")]
pub mod usage {
    include!("gen/gpu_steward.usage.v1.rs");
}

/// The streams between agents and the leading extender: package `gpu_steward.stream.v1`.
#[allow(clippy::all, clippy::pedantic, missing_docs, unreachable_pub, reason = "generated")]
pub mod stream {
    include!("gen/gpu_steward.stream.v1.rs");
}

/// kubelet's PodResources API: package `v1`.
#[allow(clippy::all, clippy::pedantic, missing_docs, unreachable_pub, reason = "generated")]
pub mod pod_resources {
    include!("gen/v1.rs");
}

/// kubelet's device plugin API: package `v1beta1`.
#[allow(clippy::all, clippy::pedantic, missing_docs, unreachable_pub, reason = "generated")]
pub mod device_plugin {
    include!("gen/v1beta1.rs");
}

/// The Container Runtime Interface: package `runtime.v1`.
#[allow(clippy::all, clippy::pedantic, missing_docs, unreachable_pub, reason = "generated")]
pub mod cri {
    include!("gen/runtime.v1.rs");
}
