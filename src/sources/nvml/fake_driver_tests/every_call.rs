//! Tests that make every call about a GPU fail with every kind of error: no reading that depends on the call may look
//! measured.

use super::{CallFault, Code, FakeGpu, Harness, Scenario, Seen, error, fake_gpus, of};
use crate::nvml::read::driven;
use lab::scenario::{FakeLink, LinkPath, MigSlot, process};
use model::gpu::{GPU_READINGS, GpmSample, Gpu, GpuLink, GpuSample, MigSample};
use model::hardware::LinkError;
use model::process::GpuProcesses;
use model::{Absence, Reading};
use std::collections::BTreeSet;

/// `INVALID_ARGUMENT`, `NOT_SUPPORTED`, `NO_PERMISSION`, `NOT_FOUND`, `TIMEOUT`, `FUNCTION_NOT_FOUND`, `UNKNOWN`.
const CODES: [u32; 7] = [2, 3, 4, 6, 10, 13, 999];
/// The codes that mean "there is no such thing".
const NONE_OF_IT: &[u32] = &[3, 13];
/// Direct NVLinks from each GPU to the next; the others go to the switch.
const DIRECT: u32 = 4;

/// All reports about one GPU.
struct GpuReports<'a> {
    gpus: &'a [Gpu],
    gpu: &'a Gpu,
    sample: &'a GpuSample,
    processes: &'a GpuProcesses,
}

/// A reading's name, and why it is absent; `None` if it looks measured. A reading of [`GPU_READINGS`] has the name of
/// its metric and its label.
type Named = ((&'static str, &'static str), Option<Absence>);

/// The readings that depend on calls.
enum Reasons {
    /// Those of [`GPU_READINGS`] that depend on the calls of the case, by [`driven`].
    Shown,
    /// Others.
    Of(fn(&GpuReports<'_>) -> Vec<Named>),
}

/// Calls that fail together, the codes that are a valid answer of them, and the readings that depend on them.
struct Case {
    calls: &'static [&'static str],
    answers: &'static [u32],
    reasons: Reasons,
}

macro_rules! absences {
    ($from:expr; $($field:ident).+ $(, $more:ident $(. $rest:ident)*)*) => {
        vec![
            ((concat!(stringify!($from), $(" ", stringify!($field)),+), ""), $from.$($field).+.absence()),
            $(((concat!(stringify!($from), " ", stringify!($more) $(, " ", stringify!($rest))*), ""), $from.$more $(.$rest)*.absence())),*
        ]
    };
}

fn counters(gpm: &GpmSample) -> Vec<Named> {
    absences!(gpm; graphics_active, sm_active, sm_occupancy, tensor_active, dram_active, fp64_active, fp32_active,
        fp16_active, pcie_tx, pcie_rx, nvlink_tx, nvlink_rx)
}

fn of_instances(reports: &GpuReports<'_>, one: fn(&MigSample) -> Vec<Named>) -> Vec<Named> {
    reports.sample.mig.iter().flat_map(one).collect()
}

fn of_links(reports: &GpuReports<'_>, one: fn(&GpuLink) -> Option<Absence>) -> Vec<Named> {
    reports.gpu.links.iter().map(|link| (("links", ""), one(link))).collect()
}

fn model(reports: &GpuReports<'_>) -> Vec<Named> {
    vec![(("model", ""), (&*reports.gpu.model == "unknown").then_some(Absence::Unreadable))]
}

/// The readings of [`GPU_READINGS`] that depend on calls which `depends` accepts.
fn shown(reports: &GpuReports<'_>, depends: impl Fn(&[&str]) -> bool) -> Vec<Named> {
    let rows = driven::rows().into_iter().zip(GPU_READINGS).filter(|(row, _)| depends(row.calls));
    rows.map(|(row, (_, read))| (row.name, read(reports.gpu, reports.sample).absence())).collect()
}

/// A case for each set of calls that readings of [`GPU_READINGS`] depend on.
fn shown_cases() -> Vec<Case> {
    let calls: BTreeSet<_> = driven::rows().into_iter().map(|row| row.calls).collect();
    calls.into_iter().map(|calls| Case { calls, answers: &[], reasons: Reasons::Shown }).collect()
}

/// Of the whole GPU; the call is the same for its instances.
fn memory(t: &GpuReports<'_>) -> Vec<Named> {
    shown(t, |calls| calls == ["nvmlDeviceGetMemoryInfo*"])
}

fn memory_of_instances(mig: &MigSample) -> Vec<Named> {
    absences!(mig; memory_used, memory_free, memory_reserved)
}

/// Errors of the first link, of the kinds that the GPU counts.
fn absences_of_links(t: &GpuReports<'_>, which: fn(LinkError) -> bool) -> Vec<Named> {
    let links = t.sample.hardware.nvlinks.value();
    let first = links.and_then(|links| links.first());
    let why = |kind| match first {
        Some(link) => link.errors(kind).absence(),
        None => t.sample.hardware.nvlinks.absence(),
    };
    LinkError::ALL.into_iter().filter(|kind| which(*kind)).map(|kind| ((kind.code(), ""), why(kind))).collect()
}

/// Every reading of a GPU but its links, which depend on other GPUs as well.
fn everything(t: &GpuReports<'_>) -> Vec<Named> {
    let mut all = shown(t, |_| true);
    all.extend(absences!(t.gpu; minor, pci_bus_id, numa_node, architecture, compute, mig_mode, mig));
    all.extend(model(t));
    all.extend(absences!(t.sample; persistence));
    all.extend(absences!(t.gpu.board; serial, vbios, power_default, power_least, power_most, pcie_generation_most,
        pcie_width_most));
    all.extend(absences!(t.sample.hardware; pcie_generation, pcie_width, nvlinks, fabric));
    all.extend(absences_of_links(t, |_| true));
    all.extend(absences!(t.processes; list));
    all.extend(t.processes.list.value().into_iter().flatten().flat_map(|p| absences!(p; sm, encoder, decoder)));
    all.extend(of_instances(t, memory_of_instances));
    all.extend(of_instances(t, |mig| counters(&mig.gpm)));
    all
}

const fn case(
    calls: &'static [&'static str],
    answers: &'static [u32],
    reasons: fn(&GpuReports<'_>) -> Vec<Named>,
) -> Case {
    Case { calls, answers, reasons: Reasons::Of(reasons) }
}

impl Case {
    /// The readings that depend on the case's calls.
    fn reasons(&self, reports: &GpuReports<'_>) -> Vec<Named> {
        match self.reasons {
            Reasons::Shown => shown(reports, |calls| calls == self.calls),
            Reasons::Of(read) => read(reports),
        }
    }
}

/// Calls about a whole GPU, for readings that are not in [`GPU_READINGS`].
const WHOLE: [Case; 28] = [
    case(&["nvmlDeviceGetPciInfo*"], &[], |t| {
        let links = t.gpus.iter().flat_map(|gpu| &gpu.links).filter(|link| link.peer == t.gpu.uuid);
        links.map(|link| (("links", ""), link.nvlinks.absence())).chain(absences!(t.gpu; pci_bus_id)).collect()
    }),
    case(&["nvmlDeviceGetNumaNodeId"], &[], |t| absences!(t.gpu; numa_node)),
    case(&["nvmlDeviceGetMinorNumber"], &[], |t| absences!(t.gpu; minor)),
    case(&["nvmlDeviceGetName"], &[], model),
    case(&["nvmlDeviceGetArchitecture"], &[], |t| absences!(t.gpu; architecture)),
    case(&["nvmlDeviceGetCudaComputeCapability"], &[], |t| absences!(t.gpu; compute)),
    case(&["nvmlDeviceGetMigMode"], &[], |t| absences!(t.gpu; mig_mode)),
    case(&["nvmlDeviceGetMigMode"], NONE_OF_IT, |t| absences!(t.gpu; mig_mode, mig)),
    case(&["nvmlDeviceGetTopologyCommonAncestor"], &[], |t| of_links(t, |link| link.path.absence())),
    case(&["nvmlDeviceGetNvLinkState"], &[], |t| {
        let mut all = absences!(t.sample.hardware; nvlinks);
        all.extend(absences_of_links(t, |_| true));
        all
    }),
    case(&["nvmlDeviceGetNvLinkState"], NONE_OF_IT, |t| of_links(t, |link| link.nvlinks.absence())),
    case(&["nvmlDeviceGetNvLinkRemoteDeviceType"], NONE_OF_IT, |t| of_links(t, |link| link.nvlinks.absence())),
    case(&["nvmlDeviceGetNvLinkRemoteDeviceType"], &[], |t| {
        // The slot shows which links are direct; the ends of the others are unknown.
        let elsewhere = t.gpu.links.iter().filter(|link| link.nvlinks.get() != Some(DIRECT));
        elsewhere.map(|link| (("links", ""), link.nvlinks.absence())).collect()
    }),
    case(&["nvmlDeviceGetNvLinkRemotePciInfo*"], &[], |t| of_links(t, |link| link.nvlinks.absence())),
    case(&["nvmlDeviceGetFieldValues"], &[], |t| absences_of_links(t, |_| true)),
    case(&["nvmlDeviceGetPersistenceMode"], &[], |t| absences!(t.sample; persistence)),
    case(&["nvmlDeviceGetComputeRunningProcesses*"], &[], |t| absences!(t.processes; list)),
    case(&["nvmlDeviceGetSerial"], &[], |t| absences!(t.gpu.board; serial)),
    case(&["nvmlDeviceGetVbiosVersion"], &[], |t| absences!(t.gpu.board; vbios)),
    case(&["nvmlDeviceGetPowerManagementDefaultLimit"], &[], |t| absences!(t.gpu.board; power_default)),
    case(&["nvmlDeviceGetPowerManagementLimitC*"], &[], |t| absences!(t.gpu.board; power_least, power_most)),
    case(&["nvmlDeviceGetMaxPcieLinkGeneration"], &[], |t| absences!(t.gpu.board; pcie_generation_most)),
    case(&["nvmlDeviceGetMaxPcieLinkWidth"], &[], |t| absences!(t.gpu.board; pcie_width_most)),
    case(&["nvmlDeviceGetCurrPcieLinkGeneration"], &[], |t| absences!(t.sample.hardware; pcie_generation)),
    case(&["nvmlDeviceGetCurrPcieLinkWidth"], &[], |t| absences!(t.sample.hardware; pcie_width)),
    case(&["nvmlDeviceGetGpuFabricInfoV"], &[], |t| absences!(t.sample.hardware; fabric)),
    case(&["nvmlDeviceGetGraphicsRunningProcesses*"], NONE_OF_IT, |t| absences!(t.processes; list)),
    case(&["nvmlDeviceGetMPSComputeRunningProcesses*"], NONE_OF_IT, |t| absences!(t.processes; list)),
];

/// More calls about a whole GPU.
const MORE: [Case; 2] = [
    case(&["nvmlGpmQueryDeviceSupport"], &[], |t| shown(t, |calls| calls == driven::GPM)),
    // `NOT_FOUND`: the driver has no sample of processes that did nothing.
    case(&["nvmlDeviceGetProcessUtilization"], &[6], |t| {
        t.processes.list.value().unwrap().iter().flat_map(|p| absences!(p; sm, encoder, decoder)).collect()
    }),
];

/// Calls about a GPU with MIG instances.
const DIVIDED: [Case; 8] = [
    case(&["nvmlDeviceGetMigMode"], NONE_OF_IT, |t| absences!(t.gpu; mig_mode, mig)),
    case(&["nvmlDeviceGetMaxMigDeviceCount"], &[], |t| absences!(t.gpu; mig)),
    // The valid answers of empty slots.
    case(&["nvmlDeviceGetMigDeviceHandleByIndex*"], &[2, 6], |t| absences!(t.gpu; mig)),
    case(&["nvmlDeviceGetGpuInstanceId"], &[], |t| absences!(t.gpu; mig)),
    case(&["nvmlDeviceGetComputeInstanceId"], &[], |t| absences!(t.gpu; mig)),
    case(&["nvmlDeviceGetAttributes*", "nvmlDeviceGetName"], &[], |t| {
        let unknown = |profile: &str| (profile == "unknown").then_some(Absence::Unreadable);
        t.gpu.instances().iter().map(|mig| (("profile", ""), unknown(&mig.profile))).chain(model(t)).collect()
    }),
    case(&["nvmlDeviceGetAttributes*", "nvmlDeviceGetMemoryInfo*"], &[], |t| {
        let totals = t.gpu.instances().iter().map(|mig| (("memory of an instance", ""), mig.memory_total.absence()));
        totals.chain(of_instances(t, memory_of_instances)).chain(memory(t)).collect()
    }),
    case(&["nvmlGpmMigSampleGet"], &[], |t| of_instances(t, |mig| counters(&mig.gpm))),
];

fn whole(place: u32) -> FakeGpu {
    let tie = FakeLink { peer: (place + 1) % 16, path: LinkPath::Pix, nvlinks: DIRECT };
    FakeGpu { processes: vec![process(4711, 1 << 30, 40.0)], links: vec![tie], ..fake_gpus("H100", 1) }
}

fn divided(_: u32) -> FakeGpu {
    let slot = |profile: &str| MigSlot::Profile(profile.into());
    FakeGpu { mig: vec![slot("3g.40gb"), slot("1g.10gb")], ..fake_gpus("H100", 1) }
}

/// The reports about the GPU at a place, once every call about it has been made.
fn reports(seen: &Seen, place: usize) -> Option<GpuReports<'_>> {
    let gpus = seen.gpus.as_deref()?;
    let gpu = gpus.get(place)?;
    let (sample, processes) = (seen.samples.get(&gpu.uuid)?, seen.processes.get(&gpu.uuid)?);
    let readings = [sample.pcie_rx.absence(), sample.gpm.sm_active.absence(), gpu.nvlinks_active.absence()];
    let listed = match &processes.list {
        Reading::Measured(list, _) => list.iter().all(|process| process.sm.absence() != Some(Absence::NotYet)),
        Reading::Absent(_) => true,
    };
    let instances = sample.mig.iter().all(|mig| mig.gpm.sm_active.absence() != Some(Absence::NotYet));
    let ready = listed && instances && !readings.contains(&Some(Absence::NotYet));
    ready.then_some(GpuReports { gpus, gpu, sample, processes })
}

/// The names of the readings that are measured.
fn measured(reports: &GpuReports<'_>) -> BTreeSet<(&'static str, &'static str)> {
    everything(reports).into_iter().filter(|(_, why)| why.is_none()).map(|(name, _)| name).collect()
}

/// Runs every case with every code that counts as its failure, on as many GPUs at a time as fit beside a healthy one.
/// Readings that depend on the call must be absent; all others of that GPU, and all of the healthy one, must be as on a
/// GPU without failing calls.
fn check_cases(cases: &[Case], make_gpu: fn(u32) -> FakeGpu) {
    let all: Vec<(&Case, u32)> = cases
        .iter()
        .flat_map(|case| CODES.into_iter().filter(|code| !case.answers.contains(code)).map(move |code| (case, code)))
        .collect();
    let mut healthy = Harness::start(of((0..2).map(make_gpu).collect()));
    let healthy = healthy.until("a healthy GPU", |seen| Some(measured(&reports(seen, 0)?)));
    for some in all.chunks(15) {
        let faults =
            (0..).zip(some).flat_map(|(gpu, (case, code))| case.calls.iter().map(move |call| error(call, gpu, *code)));
        let mut harness = Harness::start(Scenario { faults: faults.collect(), ..of((0..16).map(make_gpu).collect()) });
        for (place, (case, code)) in some.iter().enumerate() {
            let (reasons, others) = harness.until(case.calls[0], |seen| {
                let reports = reports(seen, place)?;
                Some((case.reasons(&reports), measured(&reports)))
            });
            let known = |(_, why): &Named| why.is_some_and(|why| why != Absence::NotYet);
            assert!(!reasons.is_empty() && reasons.iter().all(known), "{:?} error {code}: {reasons:?}", case.calls);
            // A call may be in several cases: all readings of these cases may depend on it.
            let same_call = |other: &&Case| other.calls.iter().any(|call| case.calls.contains(call));
            let named = harness.until("the same again", |seen| {
                let reports = reports(seen, place)?;
                let of_call = cases.iter().filter(same_call).flat_map(|case| case.reasons(&reports));
                Some(of_call.map(|(name, _)| name).collect::<BTreeSet<_>>())
            });
            // Without a list there are no entries in it.
            let inside = |(name, _): (&str, &str)| {
                (named.contains(&("t.processes list", "")) && name.starts_with("p "))
                    || (named.contains(&("t.gpu mig", "")) && (name.starts_with("mig ") || name.starts_with("gpm ")))
            };
            let must_stay = |name: &&(&str, &str)| !named.contains(*name) && !inside(**name);
            let gone: Vec<_> = healthy.iter().filter(must_stay).filter(|name| !others.contains(*name)).collect();
            assert!(gone.is_empty(), "{:?} error {code} takes {gone:?} with it", case.calls);
        }
        let neighbour = harness.until("the neighbour", |seen| Some(measured(&reports(seen, 15)?)));
        assert_eq!(neighbour, healthy);
    }
}

/// Promise 10 in docs/specification.md.
#[test]
fn every_reading_whose_call_fails_is_absent_with_the_reason() {
    check_cases(&WHOLE.into_iter().chain(shown_cases()).collect::<Vec<_>>(), whole);
    check_cases(&MORE, whole);
}

/// Promise 10 in docs/specification.md.
#[test]
fn every_mig_reading_whose_call_fails_is_absent_with_the_reason() {
    check_cases(&DIVIDED, divided);
}

#[test]
fn a_failed_call_in_the_middle_of_a_list_makes_the_list_absent() {
    let mut faults = Vec::new();
    // The sixth link of one GPU; on another, the second of its MIG slots; on a third, the UUID of an instance.
    for (gpu, call, after) in [
        (0, "nvmlDeviceGetNvLinkState", 5),
        (1, "nvmlDeviceGetMigDeviceHandleByIndex*", 1),
        (2, "nvmlDeviceGetUUID", 2),
    ] {
        faults.push(CallFault { after, ..error(call, gpu, 999) });
    }
    let mut harness = Harness::start(Scenario { faults, ..of(vec![whole(0), divided(1), divided(2)]) });
    let gpus = harness.until("all three", |seen| seen.gpus.clone().filter(|gpus| gpus.len() == 3));
    assert_eq!(gpus[0].nvlinks_active.absence(), Some(Absence::Nvml(999)));
    assert_eq!(gpus[1].mig.absence(), Some(Absence::Nvml(999)));
    assert_eq!(gpus[2].mig.absence(), Some(Absence::Nvml(999)));
    assert!(harness.sample(1, "the GPU itself", |_| true).power.get().is_some());
}

#[test]
fn a_state_that_cannot_be_read_becomes_absent_and_an_identity_stays() {
    let mut harness = Harness::start(of(vec![whole(0), divided(1)]));
    harness.wait("both", |seen| seen.gpus.as_ref().is_some_and(|gpus| gpus.len() == 2));
    let faults = ["NvLinkState", "EnforcedPowerLimit", "TopologyCommonAncestor", "MaxMigDeviceCount", "MinorNumber"];
    let faults = faults.map(|call| CallFault {
        call: format!("nvmlDeviceGet{call}"),
        error: Some(Code(999)),
        ..CallFault::default()
    });
    harness.change(|scenario| scenario.faults = faults.into());
    let gpus = harness.until("states that are gone", |seen| {
        let gone = |gpu: &Gpu| gpu.nvlinks_active.absence().and(gpu.power_limit.absence()) == Some(Absence::Nvml(999));
        seen.gpus.clone().filter(|gpus| gpus.iter().all(gone))
    });
    assert!(gpus[0].links[0].nvlinks.absence().is_some());
    assert!(gpus[0].links[0].path.get().is_some() && gpus[0].minor.get().is_some());
    assert_eq!(gpus[1].instances().len(), 2);
}

#[test]
fn failed_calls_about_no_particular_gpu_give_no_values() {
    for call in ["nvmlGpmMetricsGet", "nvmlGpmSampleAlloc"] {
        let faults = vec![CallFault { call: call.into(), error: Some(Code(999)), ..CallFault::default() }];
        let mut harness = Harness::start(Scenario { faults, ..of(vec![whole(0), divided(1)]) });
        for place in 0..2 {
            harness.sample(place, call, |sample| {
                let instances = sample.mig.iter().flat_map(|mig| counters(&mig.gpm));
                counters(&sample.gpm).into_iter().chain(instances).all(|(_, why)| why == Some(Absence::Nvml(999)))
            });
        }
    }
}
