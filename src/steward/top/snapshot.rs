//! One snapshot of the agent: the four documents of `/api/v1`, unchanged.

use serde::{Deserialize, Serialize};
use wire::api::{ViewHeadJson, gpus, node, pods, processes};

/// The documents.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Snapshot {
    /// `/api/v1/node`.
    pub(crate) node: node::NodeJson,
    /// `/api/v1/gpus`.
    pub(crate) gpus: gpus::GpusJson,
    /// `/api/v1/pods`.
    pub(crate) pods: pods::PodsJson,
    /// `/api/v1/processes`.
    pub(crate) processes: processes::ProcessesJson,
}

// === impl Snapshot ===

impl Snapshot {
    /// The head of the first document. The documents are fetched one after the other, so later documents may be from
    /// a newer view.
    pub(crate) fn head(&self) -> &ViewHeadJson {
        &self.node.view
    }

    /// Whether the GPUs are simulated.
    pub(crate) fn simulated(&self) -> bool {
        self.node.view.simulated || self.gpus.view.simulated
    }

    /// The short name of the device with this UUID: `3` or, for a MIG instance, `3:1`.
    pub(crate) fn device(&self, uuid: &str, mig: Option<&str>) -> String {
        let Some(gpu) = self.gpus.gpus.iter().find(|gpu| gpu.uuid == uuid) else { return "?".to_owned() };
        match mig.and_then(|mig| gpu.instances().iter().find(|instance| instance.uuid == mig)) {
            Some(instance) => format!("{}:{}", gpu.index, instance.index),
            None => gpu.index.to_string(),
        }
    }
}
