//! What the agent answered at one look: the four documents of `/api/v1`, as they came.

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
    /// Which view the documents are of; they are fetched one after the other, so a later one may be a view younger.
    pub(crate) fn head(&self) -> &ViewHeadJson {
        &self.node.view
    }

    /// Whether the GPUs are made up.
    pub(crate) fn simulated(&self) -> bool {
        self.node.view.simulated || self.gpus.view.simulated
    }

    /// `3` or, for a MIG instance, `3:1`: what people call the device of that UUID.
    pub(crate) fn device(&self, uuid: &str, mig: Option<&str>) -> String {
        let Some(gpu) = self.gpus.gpus.iter().find(|gpu| gpu.uuid == uuid) else { return "?".to_owned() };
        match mig.and_then(|mig| gpu.instances().iter().find(|instance| instance.uuid == mig)) {
            Some(instance) => format!("{}:{}", gpu.index, instance.index),
            None => gpu.index.to_string(),
        }
    }
}
