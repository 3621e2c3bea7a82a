//! Tests of how often NVML calls are made: the fake driver counts them. The tests count events instead of time.

use super::{FakeGpu, Harness, ReadingKind, Scenario, Value, error, fake_gpus, of, put, with};
use lab::scenario::{FakeProcess, MigSlot, ProcessList, Program, process};
use model::unit::BytesPerSecond;
use model::{Absence, Reading};

/// A scenario whose calls are counted.
fn counted(gpus: Vec<FakeGpu>) -> Scenario {
    Scenario { log_calls: true, ..of(gpus) }
}

const COMPUTE: &str = "nvmlDeviceGetComputeRunningProcesses_v3";
const GRAPHICS: &str = "nvmlDeviceGetGraphicsRunningProcesses_v3";
/// Called once in each process period.
const REGULAR: &str = "nvmlGpmSampleGet";
/// Called once in each round of the expensive calls.
const SELDOM: &str = "nvmlDeviceGetRemappedRows";
const PCIE: &str = "nvmlDeviceGetPcieThroughput";

/// A GPU whose used memory changes in each round.
fn churning(count: u32) -> FakeGpu {
    let memory = Program::Square { low: 1e9, high: 9e9, period_s: 0.1, duty: 0.5, phase_s: 0.0 };
    FakeGpu { values: [(ReadingKind::MemoryUsedBytes, Value::Program(memory))].into(), ..fake_gpus("H100", count) }
}

/// Waits until the process list of this GPU, which has no processes, was read in this many regular rounds. Returns how
/// often it was read at all, and how often in regular rounds.
fn listed(harness: &mut Harness, place: u32, regular: usize) -> (usize, usize) {
    let fake = harness.fake.clone();
    harness.wait("regular lists", |_| fake.calls(REGULAR, place) >= regular);
    // An empty list is one call, for its length.
    (fake.calls(COMPUTE, place), fake.calls(REGULAR, place))
}

/// The processes of a GPU whose used memory always changes are listed at most twice as often as those of another GPU,
/// and its GPM is read no more often.
#[test]
fn constantly_changing_memory_does_not_cause_unlimited_process_lists() {
    let mut harness = Harness::start(counted(vec![churning(1), fake_gpus("H100", 1)]));
    let (churned, regular) = listed(&mut harness, 0, 12);
    assert!(churned > regular, "{churned} lists, {regular} of them regular: none out of turn");
    // Beside the regular lists: two lists at once, one in each period, and one whose regular list is still to come.
    assert!(churned <= 2 * regular + 3, "{churned} lists, {regular} of them regular");
    let (calm, regular) = listed(&mut harness, 1, 1);
    assert!(calm <= regular + 3, "{calm} lists of a GPU on which nothing changes, {regular} of them regular");
}

/// The node's allowance is less than the sum of the allowances of its GPUs.
#[test]
fn sixteen_gpus_with_changing_memory_share_the_limit_of_the_node() {
    let mut harness = Harness::start(counted(vec![churning(16)]));
    for place in 0..16 {
        listed(&mut harness, place, 12);
    }
    let fake = harness.fake.clone();
    let all: Vec<(usize, usize)> =
        (0..16).map(|place| (fake.calls(COMPUTE, place), fake.calls(REGULAR, place))).collect();
    let out_of_turn: usize = all.iter().map(|(lists, regular)| lists.saturating_sub(*regular)).sum();
    let periods = all.iter().map(|(_, regular)| *regular).max().unwrap();
    // In a regular list that is under way, GPM may or may not have been read already.
    assert!((16..=16 + 5 * (periods + 1) + 16).contains(&out_of_turn), "{out_of_turn} in {periods} periods: {all:?}");
}

#[test]
fn an_empty_list_of_graphics_processes_is_read_rarely_and_no_process_is_missed() {
    let mut harness =
        Harness::start(counted(vec![FakeGpu { processes: vec![process(1, 1 << 30, 5.0)], ..fake_gpus("H100", 1) }]));
    let fake = harness.fake.clone();
    harness.wait("regular lists", |_| fake.calls(REGULAR, 0) >= 14);
    // A list with processes is one call for its length and one for itself; an empty list is only the first.
    let (lists, graphics) = (fake.calls(COMPUTE, 0) / 2, fake.calls(GRAPHICS, 0));
    assert!((1..=lists / 4).contains(&graphics), "{graphics} of {lists} lists");
    // One process that holds memory, and one that holds none and works.
    for (pid, memory, sm) in [(2, 300 << 20, 0.0), (3, 0, 9.0)] {
        let before = fake.calls(COMPUTE, 0);
        let graphics = FakeProcess { kind: ProcessList::Graphics, ..process(pid, memory, sm) };
        harness.change(|scenario| scenario.gpus[0].processes.truncate(1));
        harness.change(|scenario| scenario.gpus[0].processes.push(graphics));
        let uuid = harness.uuid(0);
        harness.wait("the stranger", |seen| {
            let list = seen.processes.get(&uuid).and_then(|processes| processes.list.value());
            list.is_some_and(|list| list.iter().any(|process| process.pid == pid))
        });
        let lists = (fake.calls(COMPUTE, 0) - before) / 2;
        assert!(lists <= 6, "found after {lists} lists, not when its turn came");
    }
}

#[test]
fn a_field_unknown_to_the_driver_is_read_once_until_the_library_is_reopened() {
    let gpu = FakeGpu { unknown_fields: vec![230], not_supported: vec!["field:82".into()], ..fake_gpus("H100", 1) };
    let mut harness = Harness::prepare(counted(vec![gpu]));
    put(&harness.path("proc/driver/nvidia/gpus/0000:10:00.0/information"), "Bus Location: 0000:10:00.0\n");
    harness.open();
    let fake = harness.fake.clone();
    harness.wait("rounds of what is read seldom", |_| fake.calls(SELDOM, 0) >= 4);
    assert_eq!((fake.calls("field:230", 0), fake.calls("field:82", 0)), (1, 1));
    let sample = harness.sample(0, "a sample", |_| true);
    assert_eq!(sample.recovery.absence(), Some(Absence::NotInThisDriver), "not a failure of the call");
    assert_eq!(sample.temperature_memory.absence(), Some(Absence::NotSupported));
    put(&harness.path("proc/driver/nvidia/gpus/0000:7f:00.0/information"), "Bus Location: 0000:7f:00.0\n");
    harness.wait("the library reopened", |_| fake.calls("field:230", 0) >= 2 && fake.calls("field:82", 0) >= 2);
}

/// Regression: each of the fields was read on each of twelve links in every round.
#[test]
fn nvlink_fields_unknown_to_the_driver_are_read_in_one_round() {
    // The sums over all links, and errors of a link: CRC (one that the driver knows), recovery events, symbol errors.
    const SUMS: [u32; 2] = [138, 139];
    let gpu = FakeGpu { unknown_fields: SUMS.into_iter().chain(208..=221).collect(), ..fake_gpus("A100", 1) };
    let mut harness = Harness::start(counted(vec![gpu]));
    let fake = harness.fake.clone();
    harness.wait("rounds of what is read seldom", |_| fake.calls(SELDOM, 0) >= 4);
    for field in SUMS {
        assert_eq!(fake.calls(&format!("field:{field}"), 0), 1);
    }
    for field in 208..=221 {
        let calls = fake.calls(&format!("field:{field}"), 0);
        assert!(calls <= 12, "field {field} was read {calls} times for 12 links");
    }
    assert!((208..=221).any(|field| fake.calls(&format!("field:{field}"), 0) > 0), "these fields are read");
    let sample = harness.sample(0, "a sample", |sample| sample.nvlink_bytes != Reading::NOT_YET);
    assert_eq!(sample.nvlink_bytes.absence(), Some(Absence::NotInThisDriver), "not a failure of the call");
    assert_eq!(harness.seen.failures, 0, "a field that the driver does not know is not a failure");
}

#[test]
fn pcie_traffic_comes_from_gpm_if_the_gpu_has_it() {
    let traffic = [(ReadingKind::PcieTxBytesPerSecond, 3e9), (ReadingKind::PcieRxBytesPerSecond, 1e9)];
    let mut harness =
        Harness::start(counted(vec![with(fake_gpus("H100", 1), &traffic), with(fake_gpus("A100", 1), &traffic)]));
    let fake = harness.fake.clone();
    harness.wait("rounds of what is read seldom", |_| (0..2).all(|place| fake.calls(SELDOM, place) >= 4));
    // GPM needs two samples, so the first round makes the plain calls; each direction is one call.
    assert!(fake.calls(PCIE, 0) <= 2, "{} calls", fake.calls(PCIE, 0));
    // The last of the rounds may still be going on.
    let rounds = fake.calls(SELDOM, 1) - 1;
    let calls = fake.calls(PCIE, 1);
    assert!(calls >= 2 * rounds, "a GPU without the unit is read in each round: {calls} calls in {rounds} rounds");
    let near =
        |reading: Option<BytesPerSecond>, value: f64| reading.is_some_and(|it| (it.0 / value - 1.0).abs() < 0.001);
    for place in 0..2 {
        harness.sample(place, "both directions", |s| near(s.pcie_tx.get(), 3e9) && near(s.pcie_rx.get(), 1e9));
    }
    let before = fake.calls(PCIE, 0);
    harness.change(|scenario| scenario.faults = vec![error("nvmlGpmSampleGet", 0, 999)]);
    harness.wait("the plain call", |_| fake.calls(PCIE, 0) > before);
}

/// GPM is read for the whole GPU: MIG instances do not change that.
#[test]
fn pcie_traffic_of_a_gpu_with_mig_instances_comes_from_gpm() {
    let slot = |profile: &str| MigSlot::Profile(profile.into());
    let gpu = FakeGpu { mig: vec![slot("3g.40gb"), slot("1g.10gb")], ..fake_gpus("H100", 1) };
    let mut harness = Harness::start(counted(vec![gpu]));
    let fake = harness.fake.clone();
    harness.wait("rounds of what is read seldom", |_| fake.calls(SELDOM, 0) >= 3);
    assert!(fake.calls(PCIE, 0) <= 2, "{} calls", fake.calls(PCIE, 0));
}
