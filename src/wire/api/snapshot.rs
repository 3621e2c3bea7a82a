//! One snapshot of the agent: documents of `/api/v1`, unchanged. `top` shows it, and `top -o json` prints it.

use super::{ViewHeadJson, gpus, node, pods, processes, profile};
use serde::{Deserialize, Serialize};

/// The documents.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Snapshot {
    /// `/api/v1/node`.
    pub node: node::NodeJson,
    /// `/api/v1/gpus`.
    pub gpus: gpus::GpusJson,
    /// `/api/v1/pods`.
    pub pods: pods::PodsJson,
    /// `/api/v1/processes`.
    pub processes: processes::ProcessesJson,
    /// `/api/v1/profile?subject=gpu`; `None` where workload profiles are off.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub profile: Option<profile::ProfilesJson>,
}

impl Snapshot {
    /// The head of the first document. The documents are fetched one after the other, so a later document may be from a
    /// newer view.
    #[must_use]
    pub fn head(&self) -> &ViewHeadJson {
        &self.node.view
    }

    /// Whether the GPUs are simulated.
    #[must_use]
    pub fn simulated(&self) -> bool {
        self.node.view.simulated || self.gpus.view.simulated
    }

    /// The short name of the device with this UUID: `3` or, for a MIG instance, `3:1`.
    #[must_use]
    pub fn device(&self, uuid: &str, mig: Option<&str>) -> String {
        let Some(gpu) = self.gpus.gpus.iter().find(|gpu| gpu.uuid == uuid) else { return "?".to_owned() };
        match mig.and_then(|mig| gpu.instances().iter().find(|instance| instance.uuid == mig)) {
            Some(instance) => format!("{}:{}", gpu.index, instance.index),
            None => gpu.index.to_string(),
        }
    }

    /// The same for the UUID of a GPU or of a MIG instance.
    #[must_use]
    pub fn any_device(&self, uuid: &str) -> String {
        let has = |gpu: &&gpus::GpuJson<_>| gpu.instances().iter().any(|instance| instance.uuid == uuid);
        match self.gpus.gpus.iter().find(has) {
            Some(gpu) => self.device(&gpu.uuid, Some(uuid)),
            None => self.device(uuid, None),
        }
    }

    /// The profiles of a GPU or MIG instance, ordered by quantity.
    pub fn profiles_of<'a>(&'a self, uuid: &'a str) -> impl Iterator<Item = &'a profile::ProfileJson> {
        let all = self.profile.iter().flat_map(|document| &document.profiles);
        all.filter(move |profile| profile.gpu.as_deref() == Some(uuid))
    }
}
