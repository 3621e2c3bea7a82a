//! All histories of a node: takes in what the sources report, says which analysis is due, and makes the profiles.
//!
//! ```text
//!   GPU samples, NVML's own samples, passes over cgroups, views ──apply──▶ Recorder ──profiles──▶ WorkloadProfiles
//!                                     due, analyze ◀── stored steps ──────┘   └──unwritten──▶ file
//! ```
//!
//! What must never happen here: a series beyond [`MAX_SERIES`]; a profile of a pod that is gone, or of values that ended long ago; a
//! reading that was absent counted as 0.

use crate::analysis::{from_first, kept_range};
use crate::anchor::Anchor;
use crate::schedule::{AnalysisKind, DueTimes};
use crate::subject::{Cadence, Subject, SubjectSeries};
use model::gpu::GpuSample;
use model::id::GpuUuid;
use model::observation::CgroupPass;
use model::reading::Reading;
use model::stored_history::{HistoryKey, HistoryStep, StoredTier, UnwrittenSteps};
use model::time::{Monotonic, Now};
use model::usage::Rated;
use model::utilization::UtilizationSamples;
use model::view::NodeView;
use model::workload_profile::{ProfiledQuantity, ProfiledSubject, RecorderState, WorkloadProfiles};
use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Duration;

/// Upper bound on the series: four of each of 16 GPUs, of 112 MIG instances and of 500 pods, the largest supported node. Each takes
/// at most some 14 KiB.
pub const MAX_SERIES: usize = 4 * (16 + 112 + 500);
/// A GPU or instance that is not listed any more is forgotten after this time: while a driver is loaded again, the list is empty.
const GPU_GONE_AFTER: Duration = Duration::from_secs(60);
/// No step is shorter: the sampling period is a second by default.
const SHORTEST_STEP: Duration = Duration::from_secs(1);

/// How often the sources read.
#[derive(Clone, Copy, Debug)]
pub struct Periods {
    /// The sampling period.
    pub period: Duration,
    /// The period of readings that rarely change; the memory of pods is one of them.
    pub slow: Duration,
    /// The period of process lists.
    pub lists: Duration,
}

/// What the sources report.
#[derive(Clone, Copy, Debug)]
pub enum RecorderEvent<'a> {
    /// Readings of one GPU and its MIG instances.
    Gpu(&'a GpuUuid, &'a GpuSample),
    /// NVML's own samples of utilisation.
    Utilization(&'a UtilizationSamples),
    /// A whole pass over pods and containers.
    Cgroups(&'a CgroupPass),
    /// A view: names of pods, and what each uses of the GPUs.
    View(&'a NodeView),
    /// So many samples were missed, because they were taken too late.
    Missed(u64),
}

/// An analysis that is due.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Analysis {
    /// The series.
    pub key: HistoryKey,
    /// The kind.
    pub kind: AnalysisKind,
}

/// The steps on disk that an analysis or an answer needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredRange {
    /// The series.
    pub key: HistoryKey,
    /// The tier.
    pub tier: StoredTier,
    /// The numbers of the steps.
    pub steps: Range<u64>,
}

/// All histories of a node.
#[derive(Debug)]
pub struct Recorder {
    periods: Periods,
    /// `None` while the wall clock is not set. Nothing is written until it is.
    pub(crate) anchor: Option<Anchor>,
    pub(crate) subjects: BTreeMap<ProfiledSubject, Subject>,
    series: usize,
    /// Number of series so far, which spreads their analyses.
    begun: u64,
    /// Series beyond the bound that had a value since the last pass over the cgroups.
    left_out: u32,
    missed: u64,
    analyses: u64,
    analysis_time: Duration,
}

impl Recorder {
    /// A recorder without histories.
    #[must_use]
    pub fn new(periods: Periods, anchor: Option<Anchor>) -> Recorder {
        Recorder {
            periods,
            anchor,
            subjects: BTreeMap::new(),
            series: 0,
            begun: 0,
            left_out: 0,
            missed: 0,
            analyses: 0,
            analysis_time: Duration::ZERO,
        }
    }

    /// Ties the clocks together, unless they are tied already.
    pub fn tie_clocks(&mut self, anchor: Option<Anchor>) {
        self.anchor = self.anchor.or(anchor);
    }

    /// Ties the clocks as the file of histories has it for this boot, also if they are tied already. If the wall clock was set
    /// since, the steps that wait have other times than those in the file: they are computed again from what is in memory. Older
    /// ones are forgotten; an agent that had the file until now has written them.
    pub fn tie_clocks_as_kept(&mut self, kept: Anchor, now: Monotonic) {
        let before = self.anchor.replace(kept);
        if before.is_some_and(|before| !before.agrees(&kept, now)) {
            self.all_series().for_each(SubjectSeries::forget_steps);
        }
    }

    /// How the clocks are tied; `None` while the wall clock is not set.
    #[must_use]
    pub fn anchor(&self) -> Option<Anchor> {
        self.anchor
    }

    /// Takes in one report.
    pub fn apply(&mut self, event: RecorderEvent<'_>, now: Monotonic) {
        match event {
            RecorderEvent::Gpu(gpu, sample) => self.gpu(gpu, sample, now),
            RecorderEvent::Utilization(batch) => self.utilization(batch, now),
            RecorderEvent::Cgroups(pass) => self.cgroups(pass, now),
            RecorderEvent::View(view) => self.view(view, now),
            RecorderEvent::Missed(number) => self.missed = self.missed.saturating_add(number),
        }
    }

    /// Computes the steps of the longer tiers that are over. Call it about once a second, and before [`Recorder::unwritten`].
    pub fn close_steps(&mut self, now: Monotonic) {
        let Some(anchor) = self.anchor else { return };
        self.all_series().for_each(|series| series.history.close_steps(now, &anchor));
    }

    /// The analysis that has been due for the longest time.
    pub fn due(&mut self, now: Monotonic) -> Option<Analysis> {
        let mut latest: Option<(Duration, Analysis)> = None;
        let stored = self.anchor.is_some();
        for (subject, state) in &mut self.subjects {
            for series in &mut state.series {
                for kind in AnalysisKind::ALL {
                    let Some(late) = series.due.late(kind, now) else { continue };
                    if !is_due(subject, series, kind, (stored, now)) {
                        series.due.done(kind, now);
                    } else if latest.as_ref().is_none_or(|(longest, _)| late > *longest) {
                        let key = HistoryKey { subject: subject.clone(), quantity: series.quantity };
                        latest = Some((late, Analysis { key, kind }));
                    }
                }
            }
        }
        Some(latest?.1)
    }

    /// The steps on disk that an analysis needs; `None` if it needs none.
    #[must_use]
    pub fn stored_range(&self, analysis: &Analysis, now: Monotonic) -> Option<StoredRange> {
        let tier = match analysis.kind {
            AnalysisKind::Near | AnalysisKind::Job => return None,
            AnalysisKind::Minutes => StoredTier::Minute,
            AnalysisKind::Quarters => StoredTier::Quarter,
        };
        let steps = kept_range(tier, self.anchor.as_ref()?, now);
        Some(StoredRange { key: analysis.key.clone(), tier, steps })
    }

    /// Makes an analysis with the steps of [`Recorder::stored_range`].
    pub fn analyze(&mut self, analysis: &Analysis, stored: &[HistoryStep], now: Now) {
        let range = self.stored_range(analysis, now.monotonic);
        let Analysis { key: HistoryKey { subject, quantity }, kind } = analysis;
        let Some(state) = self.subjects.get_mut(subject) else { return };
        if *kind == AnalysisKind::Job
            && let ProfiledSubject::Gpu(gpu) = subject
        {
            let mut job = std::mem::take(&mut state.job);
            let fine = |quantity| state.of(quantity).map(|series| series.history.fine());
            let tiers = (fine(ProfiledQuantity::MemoryCopy), fine(ProfiledQuantity::Utilization));
            job.look(gpu, tiers, now.monotonic);
            state.job = job;
        }
        let Some(series) = state.of_mut(*quantity) else { return };
        series.due.done(*kind, now.monotonic);
        if *kind == AnalysisKind::Near {
            series.changed = false;
            series.analyzed().near(now);
        } else if let Some(StoredRange { tier, steps, .. }) = range {
            let all = series.history.steps(tier, stored, steps.clone());
            match (from_first(&all, steps.start), tier) {
                (Some((measured, first)), StoredTier::Minute) => series.analyzed().minutes(measured, first, now),
                (Some((measured, first)), StoredTier::Quarter) => series.analyzed().quarters(measured, first, now.wall),
                (None, _) => series.analyzed().without(tier),
            }
        }
    }

    /// Counts an analysis and the time of the processor that it took.
    pub fn count(&mut self, time: Duration) {
        self.analyses += 1;
        self.analysis_time += time;
    }

    /// The steps that wait to be written, series by series.
    pub fn unwritten(&self) -> impl Iterator<Item = UnwrittenSteps> + '_ {
        self.subjects.iter().flat_map(|(subject, state)| {
            state.series.iter().flat_map(move |series| {
                StoredTier::ALL.into_iter().filter_map(move |tier| {
                    let steps: Vec<HistoryStep> = series.history.pending(tier).collect();
                    let key = HistoryKey { subject: subject.clone(), quantity: series.quantity };
                    (!steps.is_empty()).then_some(UnwrittenSteps { key, tier, steps })
                })
            })
        })
    }

    /// All steps of [`Recorder::unwritten`] are on disk.
    pub fn written(&mut self) {
        self.all_series().for_each(|series| series.history.forget_pending());
    }

    /// The profiles of now. The state of the file is not known here.
    #[must_use]
    pub fn profiles(&self, now: Now) -> WorkloadProfiles {
        let recorder = RecorderState {
            series: u32::try_from(self.series).unwrap_or(u32::MAX),
            left_out: self.left_out,
            memory: self.bytes() as u64,
            missed: self.missed,
            analyses: self.analyses,
            analysis_time: self.analysis_time,
            ..RecorderState::default()
        };
        WorkloadProfiles {
            profiles: self.subjects.iter().flat_map(|(subject, state)| state.profiles(subject, now)).collect(),
            jobs: self.subjects.values().filter_map(|state| state.job.job().cloned()).collect(),
            recorder,
        }
    }

    /// Bytes of the histories.
    #[must_use]
    pub fn bytes(&self) -> usize {
        // A map of the standard library has nodes that are at least half full.
        let entry = 2 * (size_of::<ProfiledSubject>() + size_of::<Subject>());
        self.subjects.values().map(|state| entry + state.bytes()).sum()
    }

    fn all_series(&mut self) -> impl Iterator<Item = &mut SubjectSeries> {
        self.subjects.values_mut().flat_map(|state| state.series.iter_mut())
    }

    fn gpu(&mut self, gpu: &GpuUuid, sample: &GpuSample, now: Monotonic) {
        use ProfiledQuantity::{GpuMemory, MemoryCopy, Power, Utilization};
        let subject = ProfiledSubject::Gpu(gpu.clone());
        for (quantity, reading) in [
            (Utilization, sample.utilization.map(|percent| percent.0)),
            (MemoryCopy, sample.memory_copy.map(|percent| percent.0)),
            (GpuMemory, sample.memory_used.map(|bytes| real(bytes.0))),
            (Power, sample.power.map(|watts| watts.0)),
        ] {
            self.record(&subject, (quantity, Cadence::Period), reading, now);
        }
        for instance in &sample.mig {
            let subject = ProfiledSubject::Gpu(instance.uuid.clone());
            let memory = instance.memory_used.map(|bytes| real(bytes.0));
            self.record(&subject, (GpuMemory, Cadence::Period), memory, now);
            // The driver reports no utilisation of an instance. These counters are read with the process list.
            let (active, copies) = (instance.gpm.graphics_active, instance.gpm.dram_active);
            self.record(&subject, (Utilization, Cadence::Lists), active.map(|ratio| ratio.0 * 100.0), now);
            self.record(&subject, (MemoryCopy, Cadence::Lists), copies.map(|ratio| ratio.0 * 100.0), now);
        }
    }

    fn utilization(&mut self, batch: &UtilizationSamples, now: Monotonic) {
        let subject = ProfiledSubject::Gpu(batch.gpu.clone());
        if let Some(series) = self.series(&subject, (ProfiledQuantity::Utilization, Cadence::Period), now) {
            series.history.add_samples(batch);
        }
    }

    fn cgroups(&mut self, pass: &CgroupPass, now: Monotonic) {
        self.left_out = 0;
        self.subjects.values_mut().for_each(|state| state.in_pass = false);
        for report in &pass.reports {
            let (Some(uid), None) = (report.identity.pod(), report.identity.container()) else { continue };
            let subject = ProfiledSubject::Pod(uid.clone());
            let memory = report.sample.memory_working_set.map(|bytes| real(bytes.0));
            self.record(&subject, (ProfiledQuantity::Memory, Cadence::Slow), memory, now);
            if self.series >= MAX_SERIES && !self.subjects.contains_key(&subject) {
                continue;
            }
            let state = self.subjects.entry(subject.clone()).or_default();
            state.in_pass = true;
            state.cpu.update(report.sample.cpu_total, |time| time.0);
            let cores = rate_of(&state.cpu);
            self.record(&subject, (ProfiledQuantity::Cpu, Cadence::Period), cores, now);
        }
        self.forget_pods();
    }

    fn view(&mut self, view: &NodeView, now: Monotonic) {
        self.subjects.values_mut().for_each(|state| state.in_view = false);
        for pod in &view.pods {
            let subject = ProfiledSubject::Pod(pod.uid.clone());
            let memory = sum(pod.gpus.iter().map(|used| used.memory_used.map(|bytes| real(bytes.0))));
            let sm = sum(pod.gpus.iter().map(|used| used.sm.map(|percent| percent.0)));
            self.record(&subject, (ProfiledQuantity::GpuMemory, Cadence::Lists), memory, now);
            self.record(&subject, (ProfiledQuantity::SmUse, Cadence::Lists), sm, now);
            if let Some(state) = self.subjects.get_mut(&subject) {
                state.in_view = true;
                state.pod.clone_from(&pod.name);
            }
        }
        for gpu in &view.gpus {
            for uuid in std::iter::once(&gpu.gpu.uuid).chain(gpu.gpu.instances().iter().map(|instance| &instance.uuid))
            {
                if let Some(state) = self.subjects.get_mut(&ProfiledSubject::Gpu(uuid.clone())) {
                    state.in_view = true;
                }
            }
        }
        self.forget_pods();
        let gone = |subject: &ProfiledSubject, state: &Subject| {
            matches!(subject, ProfiledSubject::Gpu(_)) && !state.in_view && now.since(state.newest) >= GPU_GONE_AFTER
        };
        self.forget(gone);
    }

    /// Forgets the pods that neither the newest pass nor the newest view has.
    fn forget_pods(&mut self) {
        self.forget(|subject, state| matches!(subject, ProfiledSubject::Pod(_)) && !state.in_pass && !state.in_view);
    }

    fn forget(&mut self, gone: impl Fn(&ProfiledSubject, &Subject) -> bool) {
        self.subjects.retain(|subject, state| !gone(subject, state));
        self.series = self.subjects.values().map(|state| state.series.len()).sum();
    }

    /// Adds a reading to its series.
    fn record(
        &mut self,
        subject: &ProfiledSubject,
        of: (ProfiledQuantity, Cadence),
        reading: Reading<f64>,
        now: Monotonic,
    ) {
        let Reading::Measured(value, at) = reading else { return };
        if let Some(series) = self.series(subject, of, now) {
            series.add(at, value);
        }
        if let Some(state) = self.subjects.get_mut(subject) {
            state.newest = state.newest.max(at);
        }
    }

    /// A series, which begins here if it is new; `None` beyond the bound.
    fn series(
        &mut self,
        subject: &ProfiledSubject,
        (quantity, cadence): (ProfiledQuantity, Cadence),
        now: Monotonic,
    ) -> Option<&mut SubjectSeries> {
        let exists = self.subjects.get(subject).is_some_and(|state| state.of(quantity).is_some());
        if !exists {
            if self.series >= MAX_SERIES {
                self.left_out = self.left_out.saturating_add(1);
                return None;
            }
            let step = match cadence {
                Cadence::Period => self.periods.period,
                Cadence::Slow => self.periods.slow.max(self.periods.period),
                Cadence::Lists => self.periods.lists.max(self.periods.period),
            };
            let due = DueTimes::new(self.begun, matches!(subject, ProfiledSubject::Gpu(_)), now);
            let state = self.subjects.entry(subject.clone()).or_default();
            // The pass or the view that reports it has it.
            (state.in_pass, state.in_view) = (true, true);
            state.begin(quantity, (cadence, step.max(SHORTEST_STEP)), due);
            self.series += 1;
            self.begun += 1;
        }
        self.subjects.get_mut(subject)?.of_mut(quantity)
    }
}

/// Whether there is a reason for an analysis whose time has come.
fn is_due(
    subject: &ProfiledSubject,
    series: &SubjectSeries,
    kind: AnalysisKind,
    (stored, now): (bool, Monotonic),
) -> bool {
    match (kind, subject) {
        (AnalysisKind::Near, ProfiledSubject::Gpu(_)) => true,
        (AnalysisKind::Near, ProfiledSubject::Pod(_)) => series.changed || series.outlives_its_values(now),
        (AnalysisKind::Minutes | AnalysisKind::Quarters, _) => stored,
        // Once for each whole GPU. Alnair knows no instances.
        (AnalysisKind::Job, ProfiledSubject::Gpu(gpu)) => {
            series.quantity == ProfiledQuantity::OF_GPU[0] && !gpu.is_mig_instance()
        }
        (AnalysisKind::Job, ProfiledSubject::Pod(_)) => false,
    }
}

/// The sum of readings, with the time of the newest; absent if one of them is absent or there is none.
fn sum(readings: impl Iterator<Item = Reading<f64>>) -> Reading<f64> {
    let add = |one: Reading<f64>, other: Reading<f64>| match (one, other) {
        (Reading::Measured(one, first), Reading::Measured(other, second)) => {
            Reading::Measured(one + other, first.max(second))
        }
        (Reading::Absent(why), _) | (_, Reading::Absent(why)) => Reading::Absent(why),
    };
    readings.reduce(add).unwrap_or(Reading::NOT_YET)
}

/// Busy cores, from CPU time in nanoseconds.
fn rate_of(cpu: &Rated<model::unit::Nanos>) -> Reading<f64> {
    cpu.rate().map(|nanos_a_second| nanos_a_second / 1e9)
}

#[expect(clippy::cast_precision_loss, reason = "an amount of memory is far below 2^53")]
fn real(bytes: u64) -> f64 {
    bytes as f64
}
