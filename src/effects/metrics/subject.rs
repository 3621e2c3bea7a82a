//! Label sets of GPUs, pods and containers. They are escaped once and copied into every line.

use model::id::{ContainerId, GpuUuid};
use model::view::{ContainerView, GpuUse, GpuView, NodeView, PodView};
use serve::exposition::MetricLabels;
use std::collections::{HashMap, HashSet};

/// Number of digits of a container id that runtimes print and people type. With a thousand containers on each node,
/// about one node in half a billion has two containers with the same digits.
const SHORT: usize = 12;

/// All GPUs, pods and containers of a view, with their labels.
#[derive(Debug)]
pub struct LabelledSubjects<'a> {
    /// GPUs by index.
    pub gpus: Vec<LabelledSubject<'a, GpuView>>,
    /// Pods.
    pub pods: Vec<LabelledSubject<'a, PodView>>,
    /// Containers of pods (without sandboxes), then containers that belong to no pod.
    pub containers: Vec<LabelledSubject<'a, ContainerView>>,
    indices: HashMap<&'a GpuUuid, u32>,
    gpu_of_instance: HashMap<&'a GpuUuid, &'a GpuUuid>,
}

/// A GPU, pod or container with its labels.
#[derive(Debug)]
pub struct LabelledSubject<'a, T> {
    /// The view of the object.
    pub seen: &'a T,
    /// `gpu,uuid` or `namespace,pod,pod_uid` or `namespace,pod,container,id`.
    pub labels: MetricLabels,
}

impl<'a> LabelledSubjects<'a> {
    /// The subjects of `view`.
    #[must_use]
    pub fn of(view: &'a NodeView) -> LabelledSubjects<'a> {
        let gpus = view.gpus.iter().map(|seen| LabelledSubject { seen, labels: of_gpu(seen) }).collect();
        let pods = view.pods.iter().map(|seen| LabelledSubject { seen, labels: of_pod(seen) }).collect();
        let ambiguous = &ambiguous(view);
        let inside = view.pods.iter().flat_map(|pod| {
            let containers = pod.containers.iter().filter(|container| !container.sandbox);
            containers.map(move |seen| LabelledSubject { seen, labels: of_container(Some(pod), seen, ambiguous) })
        });
        let alone =
            view.containers.iter().map(|seen| LabelledSubject { seen, labels: of_container(None, seen, ambiguous) });
        let indices = view.gpus.iter().map(|gpu| (&gpu.gpu.uuid, gpu.gpu.index)).collect();
        let instances = |gpu: &'a GpuView| gpu.gpu.instances().iter().map(|mig| (&mig.uuid, &gpu.gpu.uuid));
        let gpu_of_instance = view.gpus.iter().flat_map(instances).collect();
        LabelledSubjects { gpus, pods, containers: inside.chain(alone).collect(), indices, gpu_of_instance }
    }

    /// `gpu,uuid` of a GPU in use, and `mig_uuid` for a MIG instance.
    #[must_use]
    pub fn share(&self, share: &GpuUse) -> MetricLabels {
        self.labels_of(&share.gpu, share.mig.as_ref())
    }

    /// The same labels for a GPU or MIG instance.
    #[must_use]
    pub fn device(&self, device: &GpuUuid) -> MetricLabels {
        match self.gpu_of_instance.get(device) {
            Some(gpu) => self.labels_of(gpu, Some(device)),
            None => self.labels_of(device, None),
        }
    }

    /// The same labels, if the view has the GPU or MIG instance.
    #[must_use]
    pub fn shown_device(&self, device: &GpuUuid) -> Option<MetricLabels> {
        let shown = self.indices.contains_key(device) || self.gpu_of_instance.contains_key(device);
        shown.then(|| self.device(device))
    }

    fn labels_of(&self, gpu: &GpuUuid, mig: Option<&GpuUuid>) -> MetricLabels {
        let labels = match self.indices.get(gpu) {
            Some(index) => MetricLabels::new().with("gpu", &index.to_string()),
            None => MetricLabels::new(),
        };
        let labels = labels.with("uuid", gpu.as_str());
        match mig {
            Some(mig) => labels.with("mig_uuid", mig.as_str()),
            None => labels,
        }
    }
}

fn of_gpu(gpu: &GpuView) -> MetricLabels {
    MetricLabels::new().with("gpu", &gpu.gpu.index.to_string()).with("uuid", gpu.gpu.uuid.as_str())
}

/// `namespace` and `pod`; both empty while the names are not known.
#[must_use]
pub fn pod_name(pod: Option<&PodView>) -> (&str, &str) {
    pod.and_then(|pod| pod.name.as_ref()).map_or(("", ""), |name| (&*name.namespace, &*name.name))
}

fn of_pod(pod: &PodView) -> MetricLabels {
    let (namespace, name) = pod_name(Some(pod));
    MetricLabels::new().with("namespace", namespace).with("pod", name).with("pod_uid", pod.uid.as_str())
}

fn short(id: &ContainerId) -> &str {
    id.as_str().get(..SHORT).unwrap_or(id.as_str())
}

/// The short ids that several containers share.
fn ambiguous(view: &NodeView) -> HashSet<&str> {
    let mut seen = HashSet::new();
    let inside = view.pods.iter().flat_map(|pod| pod.containers.iter());
    inside.chain(&view.containers).map(|container| short(&container.id)).filter(|id| !seen.insert(*id)).collect()
}

/// The labels of a container. While names are not known, only `id` makes the series unique, so an id whose short form
/// is not unique is written in full.
fn of_container(pod: Option<&PodView>, container: &ContainerView, ambiguous: &HashSet<&str>) -> MetricLabels {
    let (namespace, name) = pod_name(pod);
    let id = short(&container.id);
    let id = if ambiguous.contains(id) { container.id.as_str() } else { id };
    MetricLabels::new()
        .with("namespace", namespace)
        .with("pod", name)
        .with("container", container.name.as_deref().unwrap_or_default())
        .with("id", id)
}
