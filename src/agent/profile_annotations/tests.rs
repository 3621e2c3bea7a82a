use super::*;
use model::gpu::{Gpu, GpuSample, MemoryKind};
use model::hardware::Board;
use model::id::{GpuUuid, NodeName};
use model::incident::GpuCondition;
use model::observation::GpuSourceState;
use model::reading::Reading;
use model::time::WallTime;
use model::unit::Bytes;
use model::view::{GpuHealth, GpuView, SoleHolders};
use model::workload_profile::{
    CyclePeriod, CycleVerdict, GpuJob, JobKind, ProfiledQuantity, ProfiledSubject, VerdictKind, WorkloadProfile,
};
use serde_json::{Map, Value, json};
use std::time::Duration;

const OTHER: &str = "ai.centaurus.io/physical-gpu-count";

fn uuid() -> GpuUuid {
    GpuUuid::parse("GPU-5eed").unwrap()
}

/// A node with one GPU.
fn node() -> NodeView {
    let gpu = Gpu {
        uuid: uuid(),
        index: 0,
        minor: Reading::NOT_YET,
        model: "NVIDIA H100".into(),
        pci_bus_id: Reading::NOT_YET,
        numa_node: Reading::NOT_YET,
        architecture: Reading::NOT_YET,
        compute: Reading::NOT_YET,
        memory_total: Reading::Measured(Bytes(80 << 30), Monotonic(1)),
        memory_kind: MemoryKind::Own,
        power_limit: Reading::NOT_YET,
        mig_mode: Reading::NOT_YET,
        mig: Reading::NOT_YET,
        links: Vec::new(),
        nvlinks_active: Reading::NOT_YET,
        board: Board::default(),
    };
    let mut sample = GpuSample::default();
    let at = Monotonic(1);
    sample.hardware.pcie_generation = Reading::Measured(5, at);
    sample.hardware.pcie_width = Reading::Measured(16, at);
    let seen = GpuView {
        gpu: Arc::new(gpu),
        sample: Arc::new(sample),
        health: GpuHealth::Healthy,
        condition: GpuCondition::default(),
        processes: Reading::NOT_YET,
        processes_left_out: 0,
        holders: Vec::new(),
        sole_holders: SoleHolders::default(),
        nvlink_rate: Reading::NOT_YET,
        strangers: 0,
        memory_used_now: Reading::Measured(Bytes(1), Monotonic(1)),
        listed_memory: Reading::NOT_YET,
        unattributed_memory: Reading::NOT_YET,
        unattributed_sm: Reading::NOT_YET,
        last_xid: None,
        xids: Vec::new(),
        xid_count: 0,
        implausible: Vec::new(),
    };
    let gpu_source = GpuSourceState::Working { driver: "550".into(), nvml: "12".into(), cuda: None, simulated: false };
    NodeView { gpus: vec![seen], gpu_source, ..NodeView::empty(NodeName::parse("n").unwrap(), Now::default()) }
}

/// A load with this period, whose verdict may not be known yet.
fn profiles(seconds: Option<u64>, verdict_known: bool) -> WorkloadProfiles {
    let length = seconds.map(Duration::from_secs);
    let period = length.map(|length| CyclePeriod { length, shortest: length, longest: length, score: 0.9, cycles: 20 });
    let verdict = CycleVerdict {
        kind: if seconds.is_some() { VerdictKind::Periodic } else { VerdictKind::Aperiodic },
        reason: "tested".into(),
        period,
        since: WallTime(1),
    };
    let load = WorkloadProfile {
        subject: ProfiledSubject::Gpu(uuid()),
        pod: None,
        quantity: ProfiledQuantity::Utilization,
        cycles: verdict_known.then_some(verdict),
        analyzed_at: Monotonic(1),
        hour_analyzed_at: None,
        trend: None,
        leak_per_hour: None,
        forecasts: Vec::new(),
        next_hour_maximum: Some(50.0),
        recent: Vec::new(),
        recent_step: Duration::from_secs(1),
    };
    let job = GpuJob {
        gpu: uuid(),
        period: length,
        memory_copy_maximum: Some(66.0),
        utilization_maximum: Some(97.0),
        kind: if seconds.is_some() { JobKind::Dlt } else { JobKind::Others },
    };
    WorkloadProfiles { profiles: vec![load], jobs: vec![job], ..WorkloadProfiles::default() }
}

fn annotations(form: Option<LiteralForm>, profiles: WorkloadProfiles) -> ProfileAnnotations {
    ProfileAnnotations::new(form, Some(watch::channel(Arc::new(profiles)).1), Monotonic(0))
}

/// A Node with annotations that the agent wrote, and one of Alnair.
fn shows(ours: &[(String, Option<String>)]) -> NodeObject {
    let mut texts: Map<String, Value> = Map::new();
    let mut owned = Map::new();
    for (key, value) in ours {
        texts.insert(key.clone(), value.clone().unwrap().into());
        owned.insert(format!("f:{key}"), json!({}));
    }
    texts.insert(OTHER.into(), "1".into());
    let managed = json!([{ "manager": ANNOTATOR, "fieldsV1": { "f:metadata": { "f:annotations": owned } } }]);
    let text = json!({ "metadata": { "name": "n", "annotations": texts, "managedFields": managed } });
    wire::node::decode(text.to_string().as_bytes()).unwrap()
}

fn after(seconds: u64) -> Now {
    Now { monotonic: Monotonic(seconds * 1_000_000_000), wall: WallTime(seconds * 1_000_000) }
}

fn keys(changes: &ProfileChanges) -> Vec<&str> {
    changes.changes.iter().map(|(key, _)| key.as_str()).collect()
}

const PYTHON: Option<LiteralForm> = Some(LiteralForm::Python);
const CYCLIC: [&str; 5] = [
    "ai.centaurus.io/gpu-static",
    "ai.centaurus.io/gpu-0",
    "ai.centaurus.io/GPU-0-job-type",
    "ai.centaurus.io/GPU-0-mem-util-max",
    "gpu-steward.io/gpu-0-profile",
];

#[test]
fn a_node_shows_each_gpu_and_only_what_differs_is_written_again() {
    let first = annotations(PYTHON, profiles(Some(6), true)).changes(&node(), &shows(&[]), after(0));
    assert_eq!((first.difference, keys(&first)), (ProfileDifference::Changed, CYCLIC.to_vec()));
    let value = |changes: &ProfileChanges, place: usize| changes.changes[place].1.clone().unwrap();
    assert_eq!(
        value(&first, 1),
        "{'mem_used': '1GB', 'mem_free': '79GB', 'cyclic_pattern': True, 'period': '6.0', 'max_mem_util': 66, 'max_gpu_util': 97}"
    );
    assert_eq!((value(&first, 2), value(&first, 3)), ("DLT".to_owned(), "66".to_owned()));
    let shown = shows(&first.changes);
    // A new process of the agent knows the same.
    let again = annotations(PYTHON, profiles(Some(6), true)).changes(&node(), &shown, after(200));
    assert_eq!(again, ProfileChanges::default());
    // Another analysis had the same result: only the time from which its forecasts count is another one.
    let mut later = profiles(Some(6), true);
    later.profiles[0].analyzed_at = after(190).monotonic;
    let later = annotations(PYTHON, later).changes(&node(), &shown, after(200));
    assert_eq!((later.difference, keys(&later)), (ProfileDifference::Detail, vec![CYCLIC[4]]));
    // The load is not cyclic any longer.
    let ended = annotations(PYTHON, profiles(None, true)).changes(&node(), &shown, after(200));
    assert_eq!(ended.difference, ProfileDifference::Changed);
    assert!(ended.changes.contains(&(CYCLIC[3].to_owned(), None)), "its maximum is removed");
    assert!(ended.changes.contains(&(CYCLIC[2].to_owned(), Some("Others".to_owned()))));
    assert!(!keys(&ended).contains(&OTHER));
    let json = annotations(Some(LiteralForm::Json), profiles(Some(6), true)).changes(&node(), &shown, after(200));
    assert_eq!(json.difference, ProfileDifference::Changed);
    assert_eq!(keys(&json), [CYCLIC[0], CYCLIC[1]]);
}

#[test]
fn an_agent_that_has_just_started_leaves_what_the_one_before_it_wrote() {
    let shown = shows(&annotations(PYTHON, profiles(Some(6), true)).changes(&node(), &shows(&[]), after(0)).changes);
    let unknown = annotations(PYTHON, WorkloadProfiles::default());
    assert_eq!(unknown.changes(&node(), &shown, after(149)), ProfileChanges::default());
    // The load is known, and its verdict is not.
    let young = annotations(PYTHON, profiles(Some(6), false));
    assert_eq!(young.changes(&node(), &shown, after(200)), ProfileChanges::default());
    assert_eq!(keys(&young.changes(&node(), &shown, after(3600))), [CYCLIC[4]], "it is not known at all");
    assert_eq!(keys(&unknown.changes(&node(), &shown, after(200))), [CYCLIC[2], CYCLIC[3], CYCLIC[1]]);
    let without = NodeView { gpus: Vec::new(), ..node() };
    assert_eq!(unknown.changes(&without, &shown, after(3600)), ProfileChanges::default(), "the driver does not answer");
}

#[test]
fn what_agents_wrote_is_removed_when_it_is_switched_off() {
    let shown = shows(&annotations(PYTHON, profiles(Some(6), true)).changes(&node(), &shows(&[]), after(0)).changes);
    let off = annotations(None, profiles(Some(6), true));
    let without = ProfileAnnotations::new(PYTHON, None, Monotonic(0));
    for silent in [off, without] {
        let removed = silent.changes(&node(), &shown, after(0));
        let mut expected = CYCLIC.to_vec();
        expected.sort_unstable();
        assert_eq!((removed.difference, keys(&removed)), (ProfileDifference::Changed, expected));
        assert!(removed.changes.iter().all(|(_, value)| value.is_none()));
        assert_eq!(silent.changes(&node(), &shows(&[]), after(0)), ProfileChanges::default());
    }
}

#[test]
fn an_annotation_that_another_program_has_written_is_overwritten_and_a_foreign_index_stays() {
    let foreign = json!({ "metadata": { "name": "n", "annotations": {
        "ai.centaurus.io/GPU-0-job-type": "Empty", "ai.centaurus.io/GPU-7-job-type": "DLT", "ai.centaurus.io/gpu-0": "{",
    } } });
    let foreign = wire::node::decode(foreign.to_string().as_bytes()).unwrap();
    let changes = annotations(PYTHON, profiles(Some(6), true)).changes(&node(), &foreign, after(0));
    assert_eq!((changes.difference, keys(&changes)), (ProfileDifference::Changed, CYCLIC.to_vec()));
}
