//! For tests: a GPU and its view before the first reading, and a pod with one container. Each test sets only the values that it needs.

use model::cgroup::{CgroupIdentity, CgroupKind, CgroupSample, Qos, RuntimeKind};
use model::gpu::{Gpu, GpuSample};
use model::hardware::Board;
use model::id::{ContainerId, GpuUuid, PodUid};
use model::incident::GpuCondition;
use model::reading::Reading;
use model::view::{ContainerRates, ContainerView, GpuHealth, GpuView, PodView, SoleHolders};
use std::sync::Arc;

/// The GPU with this number.
pub(crate) fn gpu(number: u32) -> Gpu {
    Gpu {
        uuid: GpuUuid::parse(&format!("GPU-{number}")).unwrap(),
        index: number,
        minor: Reading::NOT_YET,
        model: "H100".into(),
        pci_bus_id: Reading::NOT_YET,
        numa_node: Reading::NOT_YET,
        architecture: Reading::NOT_YET,
        compute: Reading::NOT_YET,
        memory_total: Reading::NOT_YET,
        memory_kind: model::gpu::MemoryKind::Own,
        power_limit: Reading::NOT_YET,
        mig_mode: Reading::NOT_YET,
        mig: Reading::NOT_YET,
        links: Vec::new(),
        nvlinks_active: Reading::NOT_YET,
        board: Board::default(),
    }
}

/// Its view.
pub(crate) fn view(gpu: Gpu) -> GpuView {
    GpuView {
        gpu: Arc::new(gpu),
        sample: Arc::new(GpuSample::default()),
        health: GpuHealth::Healthy,
        condition: GpuCondition::default(),
        processes: Reading::NOT_YET,
        processes_left_out: 0,
        holders: Vec::new(),
        sole_holders: SoleHolders::default(),
        nvlink_rate: Reading::NOT_YET,
        strangers: 0,
        memory_used_now: Reading::NOT_YET,
        listed_memory: Reading::NOT_YET,
        unattributed_memory: Reading::NOT_YET,
        unattributed_sm: Reading::NOT_YET,
        last_xid: None,
        xids: Vec::new(),
        xid_count: 0,
        implausible: Vec::new(),
    }
}

/// A pod with one container, which may be its sandbox.
pub(crate) fn container_of(uid: &PodUid, sandbox: bool) -> PodView {
    let id = ContainerId::parse(&"a".repeat(64)).unwrap();
    let kind = CgroupKind::Container {
        pod: Some((uid.clone(), Qos::Burstable)),
        id: id.clone(),
        runtime: RuntimeKind::Containerd,
    };
    let container = ContainerView {
        id,
        cgroup: Arc::new(CgroupIdentity { path: format!("/kubepods/pod{uid}/a").into(), kind }),
        name: None,
        sandbox,
        image: None,
        sample: CgroupSample::default(),
        rates: ContainerRates::default(),
        network: Reading::NOT_YET,
        gpus: Vec::new(),
        devices: Vec::new(),
        holds: Vec::new(),
    };
    PodView { containers: vec![container], ..crate::pods::bare(uid) }
}
