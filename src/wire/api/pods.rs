//! `/api/v1/pods`: pods with their containers, and containers without a pod.

use super::head::ViewHeadJson;
use super::reading::{ReadingAges, ReadingJson};
use model::cgroup::{CgroupSample, NetworkSample, Qos};
use model::limits::PodMemoryClaim;
use model::view::{ContainerRates, ContainerView, GpuUse, PodView};
use serde::{Deserialize, Serialize, Serializer};

/// The document.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PodsJson {
    /// The head of the document.
    pub view: ViewHeadJson,
    /// Number of pods and containers beyond the limit of the agent.
    pub left_out: u32,
    /// Pods, ordered by namespace, name, UID.
    pub pods: Vec<PodJson>,
    /// Containers without a pod, ordered by id.
    pub containers: Vec<ContainerJson>,
}

/// Writes the same JSON as [`PodsJson`], and converts one pod at a time.
#[derive(Debug)]
pub struct PodsListing<'a> {
    /// The head of the document.
    pub view: ViewHeadJson,
    /// Number of pods and containers beyond the limit of the agent.
    pub left_out: u32,
    /// The requested pods.
    pub pods: Vec<&'a PodView>,
    /// The requested containers.
    pub containers: Vec<&'a ContainerView>,
    /// GPU memory that pods claim.
    pub memory_claims: &'a [PodMemoryClaim],
    /// The time of the answer, for the ages.
    pub ages: ReadingAges,
}

/// One pod.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PodJson {
    /// UID.
    pub uid: String,
    /// Namespace, once it is known.
    pub namespace: Option<String>,
    /// Name, once it is known.
    pub name: Option<String>,
    /// `Guaranteed`, `Burstable` or `BestEffort`.
    pub qos: Option<String>,
    /// Use of resources, from the pod's own cgroup.
    pub usage: CgroupUseJson,
    /// Network traffic of the pod.
    pub network: ReadingJson<NetworkJson>,
    /// GPUs with processes of this pod.
    pub gpus: Vec<GpuUseJson>,
    /// GPU memory that the pod's containers claim together, if they claim an amount and the claim is known.
    #[serde(default)]
    pub gpu_claims: Vec<GpuClaimJson>,
    /// The pod's containers.
    pub containers: Vec<ContainerJson>,
}

/// One container.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ContainerJson {
    /// Id.
    pub id: String,
    /// Name in the pod, once it is known.
    pub name: Option<String>,
    /// Whether the container is the pod's sandbox.
    pub sandbox: bool,
    /// Image, once it is known.
    pub image: Option<String>,
    /// Use of resources, from the container's cgroup.
    pub usage: CgroupUseJson,
    /// Network traffic; only for containers without a pod.
    pub network: ReadingJson<NetworkJson>,
    /// GPUs with processes of this container.
    pub gpus: Vec<GpuUseJson>,
    /// Devices that the container holds, as kubelet reports them.
    pub devices: Vec<String>,
}

/// The counters of a cgroup, and the rates computed from them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[expect(
    missing_docs,
    reason = "the names are those of `model::cgroup::CgroupSample` and `ContainerRates` with their unit"
)]
pub struct CgroupUseJson {
    pub cpu_cores: ReadingJson<f64>,
    pub cpu_seconds: ReadingJson<f64>,
    pub cpu_user_seconds: ReadingJson<f64>,
    pub cpu_system_seconds: ReadingJson<f64>,
    pub cpu_limit_cores: ReadingJson<Option<f64>>,
    pub cfs_periods: ReadingJson<u64>,
    pub cfs_throttled_periods: ReadingJson<u64>,
    pub cfs_throttled_seconds: ReadingJson<f64>,
    pub memory_usage_bytes: ReadingJson<u64>,
    pub memory_working_set_bytes: ReadingJson<u64>,
    pub memory_rss_bytes: ReadingJson<u64>,
    pub memory_cache_bytes: ReadingJson<u64>,
    pub memory_swap_bytes: ReadingJson<u64>,
    pub memory_limit_bytes: ReadingJson<Option<u64>>,
    pub oom_kills: ReadingJson<u64>,
    pub io_read_bytes: ReadingJson<u64>,
    pub io_write_bytes: ReadingJson<u64>,
    pub io_reads: ReadingJson<u64>,
    pub io_writes: ReadingJson<u64>,
    pub io_read_bytes_per_second: ReadingJson<f64>,
    pub io_write_bytes_per_second: ReadingJson<f64>,
    pub process_io: ReadingJson<ProcessIoJson>,
    pub net_rx_bytes_per_second: ReadingJson<f64>,
    pub net_tx_bytes_per_second: ReadingJson<f64>,
    pub tasks: ReadingJson<u64>,
    pub processes: ReadingJson<u64>,
    pub pressure: ReadingJson<PressureJson>,
}

/// Bytes that the running processes have read and written; the bytes of ended processes are not included.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "two plain fields")]
pub struct ProcessIoJson {
    pub read_bytes: u64,
    pub write_bytes: u64,
}

/// Time that tasks waited, since the creation of the cgroup.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the names are those of `model::cgroup::Pressure` with their unit")]
pub struct PressureJson {
    pub cpu_waiting_seconds: f64,
    pub cpu_stalled_seconds: f64,
    pub memory_waiting_seconds: f64,
    pub memory_stalled_seconds: f64,
    pub io_waiting_seconds: f64,
    pub io_stalled_seconds: f64,
}

/// Totals of network traffic.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the names are those of `model::cgroup::NetworkSample`")]
pub struct NetworkJson {
    pub rx_bytes: u64,
    pub tx_bytes: u64,
    pub rx_packets: u64,
    pub tx_packets: u64,
    pub rx_errors: u64,
    pub tx_errors: u64,
    pub rx_dropped: u64,
    pub tx_dropped: u64,
}

/// Use of one GPU by the processes of a pod or container.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the names are those of `model::view::GpuUse` with their unit")]
pub struct GpuUseJson {
    pub gpu: String,
    pub mig: Option<String>,
    pub processes: u32,
    pub memory_used_bytes: ReadingJson<u64>,
    pub sm_ratio: ReadingJson<f64>,
}

/// The memory of one GPU or MIG instance that a pod claims.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuClaimJson {
    /// UUID of the GPU or MIG instance.
    pub device: String,
    /// Memory.
    pub memory_bytes: u64,
}

// === conversions ===

impl Serialize for PodsListing<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        use serde::ser::SerializeStruct;
        let mut document = serializer.serialize_struct("Document", 4)?;
        document.serialize_field("view", &self.view)?;
        document.serialize_field("left_out", &self.left_out)?;
        document.serialize_field(
            "pods",
            &Each(&self.pods, |pod: &PodView| PodJson::of(pod, self.memory_claims, self.ages)),
        )?;
        document.serialize_field(
            "containers",
            &Each(&self.containers, |it: &ContainerView| ContainerJson::of(it, self.ages)),
        )?;
        document.end()
    }
}

/// A list that converts each item while it is written.
pub(super) struct Each<'a, T, F>(pub(super) &'a [&'a T], pub(super) F);

impl<T, U: Serialize, F: Fn(&T) -> U> Serialize for Each<'_, T, F> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.0.iter().map(|item| (self.1)(item)))
    }
}

impl PodJson {
    /// One pod of a view.
    #[must_use]
    pub fn of(pod: &PodView, memory_claims: &[PodMemoryClaim], ages: ReadingAges) -> PodJson {
        let claims = memory_claims.iter().filter(|claim| claim.pod == pod.uid);
        let claim =
            |claim: &PodMemoryClaim| GpuClaimJson { device: claim.device.to_string(), memory_bytes: claim.memory.0 };
        PodJson {
            uid: pod.uid.to_string(),
            namespace: pod.name.as_ref().map(|name| name.namespace.to_string()),
            name: pod.name.as_ref().map(|name| name.name.to_string()),
            qos: pod.qos.map(|qos| qos_word(qos).to_owned()),
            usage: CgroupUseJson::of(&pod.sample, &pod.rates, ages),
            network: ages.with(&pod.network, NetworkJson::of),
            gpus: pod.gpus.iter().map(|share| GpuUseJson::of(share, ages)).collect(),
            gpu_claims: claims.map(claim).collect(),
            containers: pod.containers.iter().map(|container| ContainerJson::of(container, ages)).collect(),
        }
    }
}

impl ContainerJson {
    /// One container of a view.
    #[must_use]
    pub fn of(container: &ContainerView, ages: ReadingAges) -> ContainerJson {
        ContainerJson {
            id: container.id.to_string(),
            name: container.name.as_ref().map(ToString::to_string),
            sandbox: container.sandbox,
            image: container.image.as_ref().map(ToString::to_string),
            usage: CgroupUseJson::of(&container.sample, &container.rates, ages),
            network: ages.with(&container.network, NetworkJson::of),
            gpus: container.gpus.iter().map(|share| GpuUseJson::of(share, ages)).collect(),
            devices: container.devices.iter().map(ToString::to_string).collect(),
        }
    }
}

/// The QoS class, as Kubernetes writes it.
#[must_use]
pub fn qos_word(qos: Qos) -> &'static str {
    match qos {
        Qos::Guaranteed => "Guaranteed",
        Qos::Burstable => "Burstable",
        Qos::BestEffort => "BestEffort",
    }
}

impl CgroupUseJson {
    fn of(sample: &CgroupSample, rates: &ContainerRates, ages: ReadingAges) -> CgroupUseJson {
        CgroupUseJson {
            cpu_cores: ages.of(&rates.cpu),
            cpu_seconds: ages.of(&sample.cpu_total),
            cpu_user_seconds: ages.of(&sample.cpu_user),
            cpu_system_seconds: ages.of(&sample.cpu_system),
            cpu_limit_cores: ages.of(&sample.cpu_limit),
            cfs_periods: ages.of(&sample.cfs_periods),
            cfs_throttled_periods: ages.of(&sample.cfs_throttled_periods),
            cfs_throttled_seconds: ages.of(&sample.cfs_throttled),
            memory_usage_bytes: ages.of(&sample.memory_usage),
            memory_working_set_bytes: ages.of(&sample.memory_working_set),
            memory_rss_bytes: ages.of(&sample.memory_rss),
            memory_cache_bytes: ages.of(&sample.memory_cache),
            memory_swap_bytes: ages.of(&sample.memory_swap),
            memory_limit_bytes: ages.of(&sample.memory_limit),
            oom_kills: ages.of(&sample.oom_kills),
            io_read_bytes: ages.of(&sample.io_read),
            io_write_bytes: ages.of(&sample.io_write),
            io_reads: ages.of(&sample.io_reads),
            io_writes: ages.of(&sample.io_writes),
            io_read_bytes_per_second: ages.of(&rates.io_read),
            io_write_bytes_per_second: ages.of(&rates.io_write),
            process_io: ages
                .with(&sample.process_io, |io| ProcessIoJson { read_bytes: io.read.0, write_bytes: io.write.0 }),
            net_rx_bytes_per_second: ages.of(&rates.net_rx),
            net_tx_bytes_per_second: ages.of(&rates.net_tx),
            tasks: ages.of(&sample.tasks),
            processes: ages.of(&sample.processes),
            pressure: ages.with(&sample.pressure, PressureJson::of),
        }
    }
}

impl PressureJson {
    fn of(pressure: &model::cgroup::Pressure) -> PressureJson {
        PressureJson {
            cpu_waiting_seconds: pressure.cpu_waiting.as_seconds(),
            cpu_stalled_seconds: pressure.cpu_stalled.as_seconds(),
            memory_waiting_seconds: pressure.memory_waiting.as_seconds(),
            memory_stalled_seconds: pressure.memory_stalled.as_seconds(),
            io_waiting_seconds: pressure.io_waiting.as_seconds(),
            io_stalled_seconds: pressure.io_stalled.as_seconds(),
        }
    }
}

impl NetworkJson {
    fn of(network: &NetworkSample) -> NetworkJson {
        NetworkJson {
            rx_bytes: network.rx_bytes.0,
            tx_bytes: network.tx_bytes.0,
            rx_packets: network.rx_packets.0,
            tx_packets: network.tx_packets.0,
            rx_errors: network.rx_errors.0,
            tx_errors: network.tx_errors.0,
            rx_dropped: network.rx_dropped.0,
            tx_dropped: network.tx_dropped.0,
        }
    }
}

impl GpuUseJson {
    fn of(share: &GpuUse, ages: ReadingAges) -> GpuUseJson {
        GpuUseJson {
            gpu: share.gpu.to_string(),
            mig: share.mig.as_ref().map(ToString::to_string),
            processes: share.processes,
            memory_used_bytes: ages.of(&share.memory_used),
            sm_ratio: ages.of(&share.sm),
        }
    }
}
