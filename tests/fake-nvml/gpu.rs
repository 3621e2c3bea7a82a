//! One GPU of the running scenario. Every reading is a function of scenario time, so nothing is simulated step by step.
//! Only the sums over time (energy, NVLink bytes) are kept, in the state.

use crate::code::Code;
use crate::profile::{GpuModel, matches};
use crate::scenario::{FakeGpu, List, MigDetail, MigSlot, ProcessList, ReadingKind, Scenario, SickLink, Which};

/// The instance ids of a process outside MIG.
pub(crate) const NO_INSTANCE: u32 = u32::MAX;
/// The number of utilisation samples that NVML keeps.
pub(crate) const RING: u64 = 100;
/// Largest process number of Linux.
const MAX_PID: u64 = 4_194_304;

/// A GPU with all defaults filled in.
#[derive(Clone, Debug)]
pub(crate) struct Board {
    /// The model.
    pub(crate) profile: &'static GpuModel,
    /// The GPU's position in the file.
    pub(crate) place: u32,
    /// UUID.
    pub(crate) uuid: String,
    /// PCI bus id.
    pub(crate) pci_bus_id: String,
    /// NUMA node.
    pub(crate) numa_node: u32,
    /// MIG instances.
    pub(crate) instances: Vec<Instance>,
    /// The GPU's entry in the file.
    pub(crate) spec: FakeGpu,
}

/// A MIG instance with all defaults filled in.
#[derive(Clone, Debug)]
pub(crate) struct Instance {
    /// UUID.
    pub(crate) uuid: String,
    /// GPU instance id.
    pub(crate) gpu_instance: u32,
    /// Compute instance id.
    pub(crate) compute_instance: u32,
    /// Sevenths of the GPU: in the GPU instance, and in the compute instance.
    pub(crate) slices: (u32, u32),
    /// Memory in MiB.
    pub(crate) memory_mib: u64,
    /// The profile's name.
    pub(crate) profile: String,
}

/// A process at one moment.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Running {
    /// Process id.
    pub(crate) pid: u32,
    /// The list that it is in.
    pub(crate) kind: ProcessList,
    /// Memory in bytes, if the driver reports it.
    pub(crate) memory: Option<u64>,
    /// Use of SM, memory copy, encoder and decoder in percent.
    pub(crate) shares: [u32; 4],
    /// Position of its MIG instance.
    pub(crate) mig: Option<u32>,
}

/// Rounds a number that is not negative.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "`as` saturates, which is intended")]
pub(crate) fn whole(number: f64) -> u64 {
    number.round() as u64
}

/// Rounds a number that is not negative, to at most the largest `u32`.
pub(crate) fn small(number: f64) -> u32 {
    u32::try_from(whole(number)).unwrap_or(u32::MAX)
}

/// A number as `f64`, exact below 2^53.
#[expect(clippy::cast_precision_loss, reason = "bytes of a GPU are far below 2^53")]
pub(crate) fn float(number: u64) -> f64 {
    number as f64
}

/// Every GPU of a scenario, in the order of the file.
pub(crate) fn boards(scenario: &Scenario) -> Vec<Board> {
    let all: Vec<&FakeGpu> =
        scenario.gpus.iter().flat_map(|gpu| std::iter::repeat_n(gpu, gpu.count as usize)).collect();
    let half = all.len().div_ceil(2);
    all.iter()
        .zip(0u32..)
        .filter_map(|(gpu, place)| {
            let profile = GpuModel::named(&gpu.model)?;
            let alone = gpu.count == 1;
            let given = gpu.uuid.as_ref().filter(|_| alone).cloned();
            Some(Board {
                profile,
                place,
                uuid: given.unwrap_or_else(|| format!("GPU-5eed0000-0000-4000-8000-{place:012x}")),
                pci_bus_id: gpu
                    .pci_bus_id
                    .as_ref()
                    .filter(|_| alone)
                    .cloned()
                    .unwrap_or_else(|| format!("00000000:{:02X}:00.0", 0x10 + place * 0x0b)),
                numa_node: gpu.numa_node.unwrap_or(u32::from(place as usize >= half)),
                instances: gpu.mig.iter().zip(0u32..).map(|(slot, at)| instance(slot, place, at)).collect(),
                spec: (*gpu).clone(),
            })
        })
        .collect()
}

/// The positions of the GPUs that NVML lists.
pub(crate) fn listed(boards: &[Board], frozen: Option<&[String]>, list: List) -> Vec<usize> {
    match (list, frozen) {
        (List::AtInit, Some(uuids)) => {
            uuids.iter().filter_map(|uuid| boards.iter().position(|board| board.uuid == *uuid)).collect()
        }
        _ => (0..boards.len()).filter(|place| boards[*place].spec.present).collect(),
    }
}

/// The instance of a profile. `1c.2g.20gb+me` is a compute instance of one seventh in a GPU instance of two sevenths
/// with 20 GB.
fn instance(slot: &MigSlot, place: u32, at: u32) -> Instance {
    let detail = match slot {
        MigSlot::Profile(profile) => MigDetail { profile: profile.clone(), ..MigDetail::default() },
        MigSlot::Detailed(detail) => detail.clone(),
    };
    let part = |unit: &str| {
        let mut parts = detail.profile.split(['.', '+', '-']);
        parts.find_map(|part| part.strip_suffix(unit)?.parse::<u32>().ok())
    };
    let slices = part("g").unwrap_or(1);
    // An H100's `1g.10gb` has 9,856 MiB; the other profiles are multiples of this within a percent.
    let memory_mib = u64::from(part("gb").unwrap_or(10)) * 9_856 / 10;
    Instance {
        uuid: detail.uuid.unwrap_or_else(|| format!("MIG-5eed0000-0000-4000-8{at:03x}-{place:012x}")),
        gpu_instance: detail.gpu_instance.unwrap_or(if slices == 7 { 0 } else { at + 1 }),
        compute_instance: detail.compute_instance,
        slices: (slices, part("c").unwrap_or(slices)),
        memory_mib,
        profile: detail.profile,
    }
}

impl Board {
    /// The state of an NVLink: the state in the file, else one without errors. `NOT_SUPPORTED` for a link that the GPU does
    /// not have.
    pub(crate) fn link(&self, number: u32) -> Result<SickLink, Code> {
        if number >= self.profile.nvlinks.0 {
            return Err(Code::NOT_SUPPORTED);
        }
        let sick = self.spec.nvlinks.iter().find(|sick| sick.link == number);
        Ok(sick.copied().unwrap_or(SickLink { link: number, ..SickLink::default() }))
    }

    /// Whether `which` names this GPU.
    pub(crate) fn is(&self, which: &Which) -> bool {
        match which {
            Which::Place(place) => self.place == *place,
            Which::Uuid(uuid) => self.uuid == *uuid,
        }
    }

    /// Whether MIG mode is on.
    pub(crate) fn mig_enabled(&self) -> bool {
        self.spec.mig_enabled.unwrap_or(!self.instances.is_empty())
    }

    /// Whether the GPU returns `NOT_SUPPORTED` for this C function (or for `field:N`).
    pub(crate) fn refuses(&self, function: &str) -> bool {
        self.profile.refuses(function) || self.spec.not_supported.iter().any(|pattern| matches(pattern, function))
    }

    /// The processes at a scenario second.
    pub(crate) fn processes(&self, time: f64) -> Vec<Running> {
        let live = |from: f64, until: Option<f64>| time >= from && until.is_none_or(|until| time < until);
        let mut running: Vec<Running> = Vec::new();
        for process in self.spec.processes.iter().filter(|process| live(process.from_s, process.until_s)) {
            let percent = |value: &crate::value::Value| value.at(time).map_or(0, small);
            running.push(Running {
                pid: process.pid,
                kind: process.kind,
                memory: process.memory.as_ref().and_then(|value| value.at(time).ok()).map(whole),
                shares: [&process.sm, &process.mem, &process.enc, &process.dec].map(percent),
                mig: process.mig,
            });
        }
        if let Some(churn) = &self.spec.churn {
            let first = whole((time * churn.per_second).floor());
            for number in first..first + u64::from(churn.live) {
                let from = u64::from(churn.from_pid);
                let pid = from + number % (MAX_PID - from.min(MAX_PID - 1));
                running.push(Running {
                    pid: u32::try_from(pid).unwrap_or(u32::MAX),
                    kind: ProcessList::Compute,
                    memory: Some(churn.memory),
                    shares: [churn.sm, 0, 0, 0],
                    mig: None,
                });
            }
        }
        running
    }

    /// Seconds between two samples.
    pub(crate) fn sample_period(&self) -> f64 {
        self.read(ReadingKind::SampleMillis, 0.0).unwrap_or(167.0).max(1.0) / 1000.0
    }

    /// The time of the newest sample that exists at `time`.
    pub(crate) fn sampled(&self, time: f64) -> f64 {
        let period = self.sample_period();
        (time / period).floor() * period
    }

    /// One number at a scenario second: from the file, else computed from the model and the processes.
    pub(crate) fn read(&self, what: ReadingKind, time: f64) -> Result<f64, Code> {
        match self.spec.values.get(&what) {
            Some(value) => value.at(time),
            None => self.usual(what, time),
        }
    }

    fn usual(&self, what: ReadingKind, time: f64) -> Result<f64, Code> {
        use ReadingKind as Q;
        let share = |of: f64| -> Result<f64, Code> { Ok(self.read(Q::UtilizationPercent, time)? * of) };
        let sum = |at: usize| {
            let shares = self.processes(time).iter().map(|process| process.shares[at]).sum::<u32>();
            f64::from(shares).min(100.0)
        };
        let (idle, limit) = self.profile.power;
        Ok(match what {
            Q::MemoryTotalBytes => float(self.profile.memory_total),
            Q::MemoryReservedBytes => float(self.profile.memory_reserved),
            Q::MemoryUsedBytes => float(self.processes(time).iter().filter_map(|process| process.memory).sum()),
            Q::UtilizationPercent => sum(0),
            Q::MemoryCopyPercent => sum(1),
            Q::EncoderPercent => sum(2),
            Q::DecoderPercent => sum(3),
            Q::PowerWatts => f64::from(idle) + f64::from(limit - idle) / 100.0 * share(1.0)?,
            Q::PowerLimitWatts => f64::from(limit),
            Q::ClockSmMhz => f64::from(self.profile.clocks.0),
            Q::ClockMemoryMhz => f64::from(self.profile.clocks.1),
            Q::ThrottleReasons => f64::from(u8::from(share(1.0)? == 0.0)),
            Q::TemperatureCelsius => 32.0 + share(0.4)?,
            Q::TemperatureMemoryCelsius => 40.0 + share(0.45)?,
            Q::PcieTxBytesPerSecond => share(2e6)?,
            Q::PcieRxBytesPerSecond => share(5e6)?,
            Q::NvlinksActive => f64::from(self.profile.nvlinks.0),
            Q::PcieGeneration => f64::from(self.profile.pcie.0),
            Q::PcieWidth => f64::from(self.profile.pcie.1),
            // Only GPUs of Hopper and later with links to a switch are part of a fabric. Its state is good by default.
            Q::FabricState if self.profile.nvlinks.2 && self.profile.architecture >= 9 => 3.0,
            Q::FabricSummary => 1.0,
            Q::SampleMillis => f64::from(self.profile.sample_ms),
            Q::GpmGraphicsPercent => share(1.0)?,
            Q::GpmSmPercent => share(0.8)?,
            Q::GpmSmOccupancyPercent => share(0.4)?,
            Q::GpmTensorPercent | Q::GpmDramPercent => share(0.3)?,
            Q::GpmFp32Percent => share(0.1)?,
            Q::GpmFp16Percent => share(0.05)?,
            Q::PersistenceMode => 1.0,
            Q::PerformanceState => {
                if share(1.0)? > 0.0 {
                    0.0
                } else {
                    8.0
                }
            }
            Q::FanPercent => return Err(Code::NOT_SUPPORTED),
            _ => 0.0,
        })
    }

    /// Memory of the GPU or of one instance: total, reserved, used, free.
    pub(crate) fn memory(&self, instance: Option<u32>, time: f64) -> Result<[u64; 4], Code> {
        let (total, reserved, used) = match instance {
            Some(at) => {
                let total = self.instances.get(at as usize).map_or(0, |instance| instance.memory_mib << 20);
                let inside = self.processes(time).into_iter().filter(|process| self.share_memory(process.mig, at));
                (total, 0, inside.filter_map(|process| process.memory).sum())
            }
            None => (
                whole(self.read(ReadingKind::MemoryTotalBytes, time)?),
                whole(self.read(ReadingKind::MemoryReservedBytes, time)?),
                whole(self.read(ReadingKind::MemoryUsedBytes, time)?),
            ),
        };
        Ok([total, reserved, used, total.saturating_sub(reserved).saturating_sub(used)])
    }

    /// Whether two MIG instances belong to the same GPU instance, and so share its memory.
    pub(crate) fn share_memory(&self, one: Option<u32>, at: u32) -> bool {
        let id = |place: u32| self.instances.get(place as usize).map(|instance| instance.gpu_instance);
        one.is_some_and(|one| id(one) == id(at))
    }

    /// The mean over a span of time, from at most 500 points.
    pub(crate) fn mean(&self, what: ReadingKind, from: f64, to: f64) -> Result<f64, Code> {
        if to <= from {
            return self.read(what, to);
        }
        let points = small(((to - from) / 0.02).clamp(1.0, 500.0));
        let step = (to - from) / f64::from(points);
        let mut sum = 0.0;
        for point in 0..points {
            sum += self.read(what, from + step * (f64::from(point) + 0.5))?;
        }
        Ok(sum / f64::from(points))
    }
}
