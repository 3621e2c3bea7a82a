//! What is worth a log line: returned by the state, written by the front door.

use model::gpu::Xid;
use model::id::GpuUuid;
use model::incident::Incident;
use model::observation::GpuSourceState;
use model::reading::Absence;
use model::switch::Sxid;
use std::sync::Arc;

/// How much an operator must care.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// Somebody must act.
    Error,
    /// Something is not as it should be.
    Warning,
    /// Worth knowing.
    Info,
}

/// One thing that happened.
#[derive(Clone, Debug, PartialEq)]
pub enum NodeEvent {
    /// GPUs can be seen, or cannot any more.
    GpuSource(GpuSourceState),
    /// A GPU came.
    GpuAppeared {
        /// Which.
        gpu: GpuUuid,
        /// Its model.
        model: Arc<str>,
        /// Its index.
        index: u32,
    },
    /// A GPU is not in the list any more.
    GpuDisappeared(GpuUuid),
    /// A GPU stopped answering.
    GpuSick(GpuUuid, Absence),
    /// It answers again.
    GpuWell(GpuUuid),
    /// A GPU gets no new containers, for this reason as well.
    GpuCondemned(GpuUuid, Incident),
    /// The driver does not tell when it is well: only a reset that is seen, or an operator, makes it fit again.
    GpuAwaitsReset(GpuUuid),
    /// It gets new containers again.
    GpuFit(GpuUuid),
    /// A driver error.
    Xid(Xid),
    /// The process behind a driver error that was said already, without it.
    XidProcess(Xid),
    /// An error of an NVSwitch.
    Sxid(Sxid),
    /// More pods, containers or processes than are kept.
    LeftOut {
        /// Of what.
        what: &'static str,
        /// How many.
        count: u32,
    },
}

impl NodeEvent {
    /// How much an operator must care.
    #[must_use]
    pub fn weight(&self) -> Severity {
        match self {
            NodeEvent::GpuSource(GpuSourceState::Hanging)
            | NodeEvent::GpuSick(..)
            | NodeEvent::GpuCondemned(..)
            | NodeEvent::Xid(_) => Severity::Error,
            NodeEvent::Sxid(sxid) if sxid.fatal => Severity::Error,
            NodeEvent::Sxid(_) => Severity::Warning,
            NodeEvent::GpuSource(GpuSourceState::Missing { .. } | GpuSourceState::Released { .. })
            | NodeEvent::GpuDisappeared(_)
            | NodeEvent::GpuAwaitsReset(_)
            | NodeEvent::LeftOut { .. } => Severity::Warning,
            _ => Severity::Info,
        }
    }
}
