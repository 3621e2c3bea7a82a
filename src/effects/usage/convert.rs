//! Converts the node view to messages of the usage stream. The conversion is pure: the same view gives the same
//! message.

use model::gpu::{MigInstance, MigSample};
use model::limits::PodMemoryClaim;
use model::observation::GpuSourceState;
use model::reading::{Absence, Reading};
use model::time::Now;
use model::unit::{Bytes, Percent};
use model::view::{GpuHealth, GpuUse, GpuView, NodeView, PodView};
use proto::usage as messages;
use proto::usage::gpu_source::State;

/// The whole message.
pub(super) fn state(view: &NodeView) -> messages::NodeUsage {
    messages::NodeUsage {
        sequence: view.sequence,
        made_at_us: view.now.wall.0,
        ..Conversion { stamps: Some(view.now) }.node(view)
    }
}

/// The message without sequence, times and ages. Two equal messages of this form mean that nothing has changed.
pub(super) fn values(view: &NodeView) -> messages::NodeUsage {
    Conversion { stamps: None }.node(view)
}

/// The memory that the pod claims of the device of this share.
fn claimed(claims: &[PodMemoryClaim], pod: &PodView, share: &GpuUse) -> Option<u64> {
    let device = share.mig.as_ref().unwrap_or(&share.gpu);
    claims.iter().find(|claim| claim.pod == pod.uid && claim.device == *device).map(|claim| claim.memory.0)
}

/// How readings are converted: with sample times and ages, or without.
#[derive(Clone, Copy)]
struct Conversion {
    stamps: Option<Now>,
}

/// The parts of a reading.
struct Parts<T> {
    value: Option<T>,
    absent: Option<messages::Absence>,
    sampled_at_us: Option<u64>,
    age_us: Option<u64>,
}

impl Conversion {
    fn node(self, view: &NodeView) -> messages::NodeUsage {
        messages::NodeUsage {
            node: view.name.to_string(),
            sequence: 0,
            made_at_us: 0,
            simulated: view.gpu_source.simulated(),
            source: Some(source(&view.gpu_source)),
            gpus: view.gpus.iter().map(|gpu| self.gpu(gpu, &view.pods, &view.memory_claims)).collect(),
        }
    }

    fn gpu(self, view: &GpuView, pods: &[PodView], claims: &[PodMemoryClaim]) -> messages::Gpu {
        let (gpu, sample) = (&view.gpu, &view.sample);
        let listed = match &view.processes {
            Reading::Measured(list, at) => {
                Reading::Measured((list.len() as u64).saturating_add(view.processes_left_out.into()), *at)
            }
            Reading::Absent(why) => Reading::Absent(*why),
        };
        messages::Gpu {
            uuid: gpu.uuid.to_string(),
            index: gpu.index,
            model: gpu.model.to_string(),
            health: health(view.health).into(),
            memory_total: self.bytes(&gpu.memory_total),
            memory_used: self.bytes(&sample.memory_used),
            memory_reserved: self.bytes(&sample.memory_reserved),
            memory_free: self.bytes(&sample.memory_free),
            utilization: self.percent(&sample.utilization),
            processes: self.count(&listed),
            strangers: view.strangers,
            unattributed_memory: self.bytes(&view.unattributed_memory),
            unattributed_sm: self.percent(&view.unattributed_sm),
            mig_absent: gpu.mig.absence().map(absence),
            mig: gpu
                .instances()
                .iter()
                .map(|instance| self.mig(instance, sample.mig.iter().find(|read| read.uuid == instance.uuid)))
                .collect(),
            pods: pods
                .iter()
                .flat_map(|pod| pod.gpus.iter().map(move |share| (pod, share)))
                .filter(|(_, share)| share.gpu == gpu.uuid)
                .map(|(pod, share)| messages::PodShare {
                    memory_claimed: claimed(claims, pod, share),
                    ..self.share(pod, share)
                })
                .collect(),
        }
    }

    fn mig(self, instance: &MigInstance, sample: Option<&MigSample>) -> messages::MigInstance {
        let read = |which: fn(&MigSample) -> &Reading<Bytes>| self.bytes(sample.map_or(&Reading::NOT_YET, which));
        messages::MigInstance {
            uuid: instance.uuid.to_string(),
            index: instance.index,
            gpu_instance: instance.gpu_instance,
            compute_instance: instance.compute_instance,
            profile: instance.profile.to_string(),
            memory_total: self.bytes(&instance.memory_total),
            memory_used: read(|sample| &sample.memory_used),
            memory_reserved: read(|sample| &sample.memory_reserved),
            memory_free: read(|sample| &sample.memory_free),
        }
    }

    fn share(self, pod: &PodView, share: &GpuUse) -> messages::PodShare {
        messages::PodShare {
            pod_uid: pod.uid.to_string(),
            namespace: pod.name.as_ref().map(|name| name.namespace.to_string()),
            name: pod.name.as_ref().map(|name| name.name.to_string()),
            mig_uuid: share.mig.as_ref().map(ToString::to_string),
            processes: share.processes,
            memory_used: self.bytes(&share.memory_used),
            sm: self.percent(&share.sm),
            memory_claimed: None,
        }
    }

    #[expect(clippy::unnecessary_wraps, reason = "message fields of proto3 are optional by nature")]
    fn bytes(self, reading: &Reading<Bytes>) -> Option<messages::Bytes> {
        let Parts { value, absent, sampled_at_us, age_us } = self.parts(reading, |bytes| bytes.0);
        Some(messages::Bytes { value, absent, sampled_at_us, age_us })
    }

    #[expect(clippy::unnecessary_wraps, reason = "message fields of proto3 are optional by nature")]
    fn percent(self, reading: &Reading<Percent>) -> Option<messages::Percent> {
        let Parts { value, absent, sampled_at_us, age_us } = self.parts(reading, |percent| percent.0);
        Some(messages::Percent { value, absent, sampled_at_us, age_us })
    }

    #[expect(clippy::unnecessary_wraps, reason = "message fields of proto3 are optional by nature")]
    fn count(self, reading: &Reading<u64>) -> Option<messages::Count> {
        let Parts { value, absent, sampled_at_us, age_us } = self.parts(reading, |count| *count);
        Some(messages::Count { value, absent, sampled_at_us, age_us })
    }

    fn parts<T, N>(self, reading: &Reading<T>, number: impl Fn(&T) -> N) -> Parts<N> {
        match reading {
            Reading::Measured(value, at) => Parts {
                value: Some(number(value)),
                absent: None,
                sampled_at_us: self.stamps.map(|now| now.wall_of(*at).0),
                age_us: self.stamps.map(|now| u64::try_from(now.monotonic.since(*at).as_micros()).unwrap_or(u64::MAX)),
            },
            Reading::Absent(why) => {
                Parts { value: None, absent: Some(absence(*why)), sampled_at_us: None, age_us: None }
            }
        }
    }
}

fn absence(why: Absence) -> messages::Absence {
    messages::Absence { code: why.code().to_owned(), reason: why.to_string() }
}

fn health(health: GpuHealth) -> messages::Health {
    match health {
        GpuHealth::Unknown => messages::Health::Unknown,
        GpuHealth::Healthy => messages::Health::Healthy,
        GpuHealth::Degraded => messages::Health::Degraded,
        GpuHealth::Unhealthy => messages::Health::Unhealthy,
    }
}

fn source(source: &GpuSourceState) -> messages::GpuSource {
    let bare = |state: State| messages::GpuSource { state: state.into(), ..messages::GpuSource::default() };
    match source {
        GpuSourceState::SwitchedOff => bare(State::SwitchedOff),
        GpuSourceState::Starting => bare(State::Starting),
        GpuSourceState::Hanging => bare(State::Hanging),
        GpuSourceState::Released { .. } => bare(State::Released),
        GpuSourceState::Working { driver, nvml, cuda, simulated: _ } => messages::GpuSource {
            driver_version: Some(driver.to_string()),
            nvml_version: Some(nvml.to_string()),
            cuda_version: cuda.as_ref().map(ToString::to_string),
            ..bare(State::Working)
        },
        GpuSourceState::Missing { why, advice } => {
            messages::GpuSource { why: Some(absence(*why)), advice: Some(advice.to_string()), ..bare(State::Missing) }
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use model::cgroup::{CgroupSample, NetworkSample};
    use model::gpu::{Gpu, GpuSample};
    use model::id::{GpuUuid, NodeName, PodRef, PodUid};
    use model::time::{Monotonic, WallTime};
    use model::view::{ContainerRates, SoleHolders};
    use proptest::prelude::*;
    use std::sync::Arc;

    const NOW: Now = Now { monotonic: Monotonic(60_000_000_000), wall: WallTime(1_700_000_000_000_000) };

    fn gpu(uuid: &GpuUuid) -> Gpu {
        Gpu {
            uuid: uuid.clone(),
            index: 3,
            minor: Reading::NOT_YET,
            model: "NVIDIA H100 80GB HBM3".into(),
            pci_bus_id: Reading::NOT_YET,
            numa_node: Reading::NOT_YET,
            architecture: Reading::NOT_YET,
            compute: Reading::NOT_YET,
            memory_total: Reading::Measured(Bytes(80 << 30), Monotonic(1)),
            memory_kind: model::gpu::MemoryKind::Own,
            power_limit: Reading::NOT_YET,
            mig_mode: Reading::NOT_YET,
            mig: Reading::NOT_YET,
            links: Vec::new(),
            nvlinks_active: Reading::NOT_YET,
            board: model::hardware::Board::default(),
        }
    }

    fn pod(share: GpuUse) -> PodView {
        PodView {
            uid: PodUid::parse("0f5b9a3e-0d2c-4b7f-9a51-2f1f6a1f8d11").unwrap(),
            name: Some(PodRef { namespace: "ml".into(), name: "train-0".into() }),
            qos: None,
            cgroup: None,
            sample: CgroupSample::default(),
            rates: ContainerRates::default(),
            network: Reading::<NetworkSample>::NOT_YET,
            containers: Vec::new(),
            gpus: vec![share],
        }
    }

    /// A node with one GPU on which `used` bytes are in use, measured half a second before the view was made.
    pub(in crate::usage) fn node(sequence: u64, used: u64) -> NodeView {
        let uuid = GpuUuid::parse("GPU-1b2c3d4e").unwrap();
        let at = Monotonic(59_500_000_000);
        let sample =
            GpuSample { memory_used: Reading::Measured(Bytes(used), at), ..GpuSample::absent(Absence::NotSupported) };
        let share = GpuUse {
            gpu: uuid.clone(),
            mig: None,
            processes: 2,
            memory_used: Reading::Measured(Bytes(used), at),
            sm: Reading::Absent(Absence::NotYet),
        };
        NodeView {
            sequence,
            gpus: vec![GpuView {
                gpu: Arc::new(gpu(&uuid)),
                sample: Arc::new(sample),
                health: GpuHealth::Healthy,
                condition: model::incident::GpuCondition::default(),
                processes: Reading::Measured(Arc::from([]), at),
                processes_left_out: 2,
                holders: Vec::new(),
                sole_holders: SoleHolders::default(),
                nvlink_rate: Reading::NOT_YET,
                strangers: 0,
                memory_used_now: Reading::NOT_YET,
                listed_memory: Reading::NOT_YET,
                unattributed_memory: Reading::Absent(Absence::MigEnabled),
                unattributed_sm: Reading::NOT_YET,
                last_xid: None,
                xids: Vec::new(),
                xid_count: 0,
                implausible: Vec::new(),
            }],
            pods: vec![pod(share)],
            ..NodeView::empty(NodeName::parse("node-a").unwrap(), NOW)
        }
    }

    #[test]
    fn a_measured_value_has_a_time_and_an_absent_value_has_a_reason() {
        let message = state(&node(7, 42));
        assert_eq!((message.node.as_str(), message.sequence, message.made_at_us), ("node-a", 7, NOW.wall.0));
        let gpu = &message.gpus[0];
        let used = gpu.memory_used.as_ref().unwrap();
        assert_eq!(
            (used.value, used.age_us, used.sampled_at_us),
            (Some(42), Some(500_000), Some(NOW.wall.0 - 500_000))
        );
        let busy = gpu.utilization.as_ref().unwrap();
        assert_eq!((busy.value, busy.absent.as_ref().unwrap().code.as_str()), (None, "not_supported"));
        assert_eq!(busy.absent.as_ref().unwrap().reason, "not supported by this device");
        assert_eq!(gpu.processes.as_ref().unwrap().value, Some(2), "those left out of the list count");
        assert_eq!(gpu.health(), messages::Health::Healthy);
    }

    #[test]
    fn the_use_of_a_pod_is_listed_under_its_gpu_with_the_pods_names() {
        let message = state(&node(1, 42));
        let share = &message.gpus[0].pods[0];
        assert_eq!((share.namespace.as_deref(), share.name.as_deref()), (Some("ml"), Some("train-0")));
        assert_eq!((share.processes, share.memory_used.as_ref().unwrap().value), (2, Some(42)));
    }

    #[test]
    fn a_changed_value_is_a_change_and_passing_time_is_not() {
        let first = node(1, 42);
        let later = NodeView {
            now: Now { monotonic: NOW.monotonic.after(std::time::Duration::from_secs(5)), wall: WallTime(9) },
            ..node(2, 42)
        };
        assert_eq!(values(&first), values(&later));
        assert_ne!(values(&first), values(&node(3, 43)));
    }

    #[test]
    fn every_state_of_the_source_is_converted() {
        let advice = "load the driver: modprobe nvidia";
        let missing = GpuSourceState::Missing { why: Absence::DriverNotLoaded, advice: advice.into() };
        for (from, to) in [
            (GpuSourceState::SwitchedOff, State::SwitchedOff),
            (GpuSourceState::Starting, State::Starting),
            (GpuSourceState::Hanging, State::Hanging),
            (GpuSourceState::Released { until: Monotonic(1) }, State::Released),
            (missing.clone(), State::Missing),
        ] {
            assert_eq!(source(&from).state(), to);
        }
        assert_eq!(source(&missing).advice.as_deref(), Some(advice));
        let made_up = GpuSourceState::Working { driver: "570".into(), nvml: "12".into(), cuda: None, simulated: true };
        assert!(state(&NodeView { gpu_source: made_up, ..node(1, 0) }).simulated);
    }

    fn readings() -> impl Strategy<Value = Reading<Bytes>> {
        prop_oneof![
            (any::<u64>(), any::<u64>()).prop_map(|(value, at)| Reading::Measured(Bytes(value), Monotonic(at))),
            any::<u32>().prop_map(|code| Reading::Absent(Absence::Nvml(code))),
            Just(Reading::Absent(Absence::GpuLost)),
        ]
    }

    proptest! {
        #[test]
        fn every_reading_is_a_number_with_its_time_or_a_reason(
            reading in readings(), monotonic in any::<u64>(), wall in any::<u64>(),
        ) {
            let now = Now { monotonic: Monotonic(monotonic), wall: WallTime(wall) };
            let message = Conversion { stamps: Some(now) }.bytes(&reading).unwrap();
            prop_assert_eq!(message.value, reading.get().map(|bytes| bytes.0));
            prop_assert_eq!(message.value.is_some(), message.absent.is_none());
            prop_assert_eq!(message.value.is_some(), message.age_us.is_some() && message.sampled_at_us.is_some());
            prop_assert_eq!(message.absent.map(|why| why.code), reading.absence().map(|why| why.code().to_owned()));
        }
    }
}
