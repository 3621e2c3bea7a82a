//! One simulated GPU: its identity, its readings, and the processes that are shown on it.

use super::curve::{load, mix, share};
use super::holders::{ON_EACH, SimulatedProcess};
use super::product::Product;
use model::gpu::{EccErrors, GpmSample, Gpu, GpuLink, GpuPath, GpuSample, RemappedRows};
use model::hardware::Board;
use model::id::GpuUuid;
use model::process::{GpuProcess, GpuProcessKind, GpuProcesses};
use model::reading::{Absence, Reading};
use model::recovery::RecoveryAction;
use model::time::{Monotonic, Now};
use model::unit::{Bytes, BytesPerSecond, Celsius, Count, Megahertz, Millijoules, Percent, Ratio, Watts};
use std::time::Duration;

/// NVML's bit for clocks that are low because the GPU is idle.
const GPU_IDLE: u64 = 1;

/// A simulated GPU.
#[derive(Debug)]
pub(super) struct SimulatedGpu {
    product: &'static Product,
    seed: u64,
    gpu: Gpu,
    tenants: Vec<SimulatedProcess>,
    /// When the GPU was last read, and its sums at that moment.
    read_at: Option<Monotonic>,
    energy_joules: f64,
    nvlink_bytes: f64,
}

/// Memory in use that belongs to no process, while there are processes.
const BESIDE_PROCESSES: Bytes = Bytes(8 * Bytes::MIB);

/// The GPUs as NVML would list them, with the topology between them: each half shares a NUMA node.
pub(super) fn tied(cards: &[SimulatedGpu]) -> Vec<Gpu> {
    let half = cards.len().div_ceil(2);
    let node = |place: usize| u32::from(place >= half);
    let at = clock::monotonic();
    let link = |one: usize, other: usize| GpuLink {
        peer: cards[other].gpu.uuid.clone(),
        path: Reading::Measured(if node(one) == node(other) { GpuPath::NumaNode } else { GpuPath::System }, at),
        nvlinks: Reading::from_result(through(cards[one].product), at),
    };
    let with_ties = |(place, card): (usize, &SimulatedGpu)| Gpu {
        numa_node: card.gpu.minor.map(|_| node(place)),
        links: (0..cards.len()).filter(|other| *other != place).map(|other| link(place, other)).collect(),
        ..card.gpu.clone()
    };
    cards.iter().enumerate().map(with_ties).collect()
}

/// Direct NVLinks: all models with NVLinks are simulated on boards with a switch.
fn through(product: &Product) -> Result<u32, Absence> {
    if product.nvlinks > 0 { Err(Absence::ThroughSwitch) } else { Ok(0) }
}

/// A share of this many bytes.
#[expect(clippy::cast_precision_loss, reason = "made up, and exact below 8 PiB")]
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "`as` saturates, as intended")]
fn part(of: Bytes, share: f64) -> Bytes {
    Bytes((of.0 as f64 * share) as u64)
}

/// Seconds since 1970.
fn seconds(now: Now) -> f64 {
    Duration::from_micros(now.wall.0).as_secs_f64()
}

#[expect(clippy::cast_possible_truncation, reason = "a temperature")]
fn celsius(number: f64) -> Celsius {
    Celsius(number.round() as i32)
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "`as` saturates, as intended")]
fn whole(number: f64) -> u64 {
    number as u64
}

impl SimulatedGpu {
    /// The GPU with this index.
    pub(super) fn new(product: &'static Product, seed: u64, index: u32) -> Self {
        let seed = mix(seed ^ u64::from(index));
        let at = clock::monotonic();
        let known = |told: bool| if told { Ok(()) } else { Err(Absence::NotSupported) };
        let (high, low) = (seed >> 32, seed & 0xffff_ffff);
        let text = format!("GPU-51d00000-{:04x}-4{:03x}-8{:03x}-{low:08x}{index:04x}", high >> 16, high & 0xfff, index);
        let limit = product.power.map(|(_, most)| Watts(most)).ok_or(Absence::NotSupported);
        SimulatedGpu {
            product,
            seed,
            gpu: Gpu {
                uuid: GpuUuid::parse(&text).expect("hexadecimal digits and dashes are plain text"),
                index,
                minor: Reading::Measured(index, at),
                model: format!("{} (simulated)", product.name).into(),
                pci_bus_id: Reading::Measured(format!("00000000:{:02X}:00.0", 0x10 + index * 8).into(), at),
                numa_node: Reading::NOT_YET,
                architecture: Reading::Measured(product.architecture.into(), at),
                compute: Reading::Measured(product.compute(), at),
                memory_total: Reading::from_result(product.memory.ok_or(Absence::NotSupported), at),
                memory_kind: model::gpu::MemoryKind::Own,
                power_limit: Reading::from_result(limit, at),
                mig_mode: Reading::from_result(known(product.mig).map(|()| false), at),
                mig: Reading::Measured(Vec::new(), at),
                links: Vec::new(),
                nvlinks_active: Reading::from_result(known(product.nvlinks > 0).map(|()| product.nvlinks), at),
                board: Board::absent(Absence::NotSupported),
            },
            tenants: Vec::new(),
            read_at: None,
            energy_joules: 0.0,
            nvlink_bytes: 0.0,
        }
    }

    /// The GPU's identity.
    pub(super) fn gpu(&self) -> &Gpu {
        &self.gpu
    }

    /// Sets the processes that use it from now on.
    pub(super) fn let_to(&mut self, tenants: Vec<SimulatedProcess>) {
        self.tenants = tenants;
    }

    /// How busy the GPU is, 0 to 1. A GPU without processes is idle.
    fn load(&self, now: Now) -> f64 {
        if self.tenants.is_empty() { 0.0 } else { load(self.seed, seconds(now)) }
    }

    /// The memory of a process, constant while it lives: at most 35 % of what it may use, and so little that all fit.
    fn held_by(&self, tenant: &SimulatedProcess) -> Option<Bytes> {
        let key = tenant.process.key;
        let own = share(self.seed ^ mix(u64::from(key.pid) ^ key.start_ticks));
        let others = u64::try_from(self.tenants.len().div_ceil(ON_EACH).max(1)).unwrap_or(u64::MAX);
        let most = Bytes(self.product.memory?.0 / others);
        Some(part(tenant.memory.map_or(most, |limit| Bytes(limit.0.min(most.0))), 0.05 + 0.3 * own))
    }

    /// Divides the load by weights that change slowly, so that different processes lead at different times.
    fn shares(&self, now: Now) -> Vec<f64> {
        let weight =
            |tenant: &SimulatedProcess| 0.1 + load(self.seed ^ u64::from(tenant.process.key.pid), seconds(now));
        let weights: Vec<f64> = self.tenants.iter().map(weight).collect();
        let sum: f64 = weights.iter().sum();
        weights.into_iter().map(|weight| weight / sum.max(f64::MIN_POSITIVE)).collect()
    }

    /// The processes on this GPU.
    pub(super) fn processes(&self, now: Now) -> GpuProcesses {
        let at = now.monotonic;
        let busy = self.load(now) * 100.0;
        let list = self.tenants.iter().zip(self.shares(now)).map(|(tenant, share)| GpuProcess {
            pid: tenant.process.key.pid,
            key: Some(tenant.process.key),
            command: tenant.process.command.clone(),
            owner: tenant.process.owner.clone(),
            kind: GpuProcessKind::Compute,
            mig: None,
            memory_used: Reading::from_result(self.held_by(tenant).ok_or(Absence::NotSupported), at),
            sm: Reading::Measured(Percent((busy * share).round()), at),
            encoder: Reading::Measured(Percent(0.0), at),
            decoder: Reading::Measured(Percent(0.0), at),
        });
        GpuProcesses {
            gpu: self.gpu.uuid.clone(),
            list: Reading::Measured(list.collect(), at),
            memory_used: Reading::NOT_YET,
            stamp: Some(now.wall),
            left_out: 0,
        }
    }

    /// Reads it once.
    pub(super) fn sample(&mut self, now: Now) -> GpuSample {
        let at = now.monotonic;
        let busy = self.load(now);
        self.add_up(busy, at);
        let measured = |number: f64| Reading::Measured(Percent(number.round()), at);
        let zero = || Reading::Measured(Count(0), at);
        let ecc = EccErrors { corrected: zero(), uncorrected: zero() };
        let mut sample = GpuSample {
            utilization: measured(busy * 100.0),
            memory_copy: measured(busy * 40.0),
            encoder: measured(0.0),
            decoder: measured(0.0),
            clock_sm: Reading::Measured(Megahertz(self.product.clocks.0), at),
            clock_memory: Reading::Measured(Megahertz(self.product.clocks.1), at),
            throttle_reasons: Reading::Measured(if busy < 0.01 { GPU_IDLE } else { 0 }, at),
            pcie_tx: Reading::Measured(BytesPerSecond(busy * 2e8), at),
            pcie_rx: Reading::Measured(BytesPerSecond(busy * 5e8), at),
            pcie_replays: zero(),
            ecc_volatile: ecc,
            ecc_aggregate: ecc,
            remapped: RemappedRows {
                correctable: zero(),
                uncorrectable: zero(),
                pending: Reading::Measured(false, at),
                failed: Reading::Measured(false, at),
            },
            recovery: Reading::Measured(RecoveryAction::None, at),
            persistence: Reading::Measured(true, at),
            gpm: self.counters(busy, at),
            ..GpuSample::absent(Absence::NotSupported)
        };
        self.put_memory(&mut sample, at);
        self.put_heat(&mut sample, busy, at);
        sample
    }

    /// Adds energy and NVLink bytes for the time since the last reading.
    fn add_up(&mut self, busy: f64, at: Monotonic) {
        let elapsed = self.read_at.map_or(0.0, |last| at.since(last).as_secs_f64());
        self.read_at = Some(at);
        self.energy_joules += self.watts(busy).unwrap_or(0.0) * elapsed;
        self.nvlink_bytes += f64::from(self.product.nvlinks) * 1e9 * busy * elapsed;
    }

    fn watts(&self, busy: f64) -> Option<f64> {
        self.product.power.map(|(idle, most)| idle + (most - idle) * 0.9 * busy)
    }

    /// Sets memory: what the processes hold; if there are any, a little that belongs to no process; and the driver's reserve. As on a
    /// real H200 (tests/gpu/runs), an idle GPU uses nothing: it has room for a pod that requests all of it.
    fn put_memory(&self, sample: &mut GpuSample, at: Monotonic) {
        let Some(all) = self.product.memory else { return };
        let held = self.tenants.iter().filter_map(|tenant| self.held_by(tenant)).fold(Bytes(0), Bytes::plus);
        let used = if held == Bytes(0) { held } else { held.plus(BESIDE_PROCESSES) };
        let reserved = part(all, 0.007);
        sample.memory_used = Reading::Measured(used, at);
        sample.memory_reserved = Reading::Measured(reserved, at);
        sample.memory_free = Reading::Measured(all.less(used).less(reserved), at);
    }

    /// Sets power, energy, temperatures and NVLink bytes, unless the product has no power reading.
    fn put_heat(&self, sample: &mut GpuSample, busy: f64, at: Monotonic) {
        let Some(watts) = self.watts(busy) else { return };
        sample.power = Reading::Measured(Watts(watts), at);
        sample.energy = Reading::Measured(Millijoules(whole(self.energy_joules * 1000.0)), at);
        sample.temperature = Reading::Measured(celsius(32.0 + 40.0 * busy), at);
        if self.product.mig {
            sample.temperature_memory = Reading::Measured(celsius(40.0 + 45.0 * busy), at);
        }
        if self.product.nvlinks > 0 {
            sample.nvlink_bytes = Reading::Measured(Bytes(whole(self.nvlink_bytes)), at);
        }
    }

    /// Profiling counters, if the architecture has them.
    fn counters(&self, busy: f64, at: Monotonic) -> GpmSample {
        if !self.product.gpm {
            return GpmSample::absent(Absence::NotThisArchitecture);
        }
        let ratio = |share: f64| Reading::Measured(Ratio(busy * share), at);
        let rate = |most: f64| Reading::Measured(BytesPerSecond(busy * most), at);
        GpmSample {
            graphics_active: ratio(1.0),
            sm_active: ratio(0.8),
            sm_occupancy: ratio(0.4),
            tensor_active: ratio(0.35),
            dram_active: ratio(0.3),
            fp64_active: ratio(0.0),
            fp32_active: ratio(0.1),
            fp16_active: ratio(0.05),
            pcie_tx: rate(2e8),
            pcie_rx: rate(5e8),
            nvlink_tx: rate(f64::from(self.product.nvlinks) * 5e8),
            nvlink_rx: rate(f64::from(self.product.nvlinks) * 5e8),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process_owner::IdentifiedProcess;
    use crate::simulated::product::PRODUCTS;
    use model::id::ProcessKey;
    use model::process::ProcessOwner;
    use model::time::WallTime;

    fn at(second: u64) -> Now {
        Now { monotonic: Monotonic(second * 1_000_000_000), wall: WallTime(1_700_000_000_000_000 + second * 1_000_000) }
    }

    fn tenant(pid: u32) -> SimulatedProcess {
        let key = ProcessKey { pid, start_ticks: 77 };
        SimulatedProcess::of(IdentifiedProcess { key, command: "python".into(), owner: ProcessOwner::Host })
    }

    fn card(model: &str, index: u32) -> SimulatedGpu {
        SimulatedGpu::new(Product::named(model).unwrap(), 1, index)
    }

    #[test]
    fn every_simulated_model_is_named_simulated() {
        for product in &PRODUCTS {
            assert!(SimulatedGpu::new(product, 1, 0).gpu().model.ends_with("(simulated)"), "{}", product.model);
        }
    }

    #[test]
    fn uuids_stay_the_same_and_differ_between_gpus_and_machines() {
        let uuid = |seed, index| SimulatedGpu::new(&PRODUCTS[0], seed, index).gpu().uuid.clone();
        assert_eq!(uuid(1, 3), uuid(1, 3));
        assert!(uuid(1, 3) != uuid(1, 4) && uuid(1, 3) != uuid(2, 3));
        assert_eq!(uuid(1, 3).as_str().len(), "GPU-0a1b2c3d-0000-4000-8000-000000000007".len());
    }

    #[test]
    fn used_reserved_and_free_memory_add_up_to_the_total() {
        for product in PRODUCTS.iter().filter(|product| product.memory.is_some()) {
            let mut card = SimulatedGpu::new(product, 1, 0);
            card.let_to(vec![tenant(10), tenant(11)]);
            let sample = card.sample(at(0));
            let bytes = |reading: &Reading<Bytes>| reading.get().unwrap().0;
            let list = card.processes(at(0)).list;
            let held: u64 = list.value().unwrap().iter().map(|process| bytes(&process.memory_used)).sum();
            let (used, total) = (bytes(&sample.memory_used), product.memory.unwrap().0);
            assert!(held > 0 && held <= used, "{}", product.model);
            assert_eq!(used + bytes(&sample.memory_reserved) + bytes(&sample.memory_free), total, "{}", product.model);
        }
    }

    #[test]
    fn many_processes_fit_and_none_exceeds_its_limit() {
        let mut card = card("H100", 0);
        let limit = Bytes(3000 * Bytes::MIB);
        let mut tenants: Vec<SimulatedProcess> = (10..40).map(tenant).collect();
        tenants[7].memory = Some(limit);
        tenants[8].memory = Some(Bytes(u64::MAX));
        card.let_to(tenants);
        let sample = card.sample(at(0));
        assert!(sample.memory_used.get() < card.product.memory && sample.memory_free.get() > Some(Bytes(0)));
        let list = card.processes(at(0)).list;
        assert!(list.value().unwrap()[7].memory_used.get().unwrap() < limit);
        card.let_to(vec![]);
        let idle = card.sample(at(0));
        assert_eq!(idle.utilization.get(), Some(Percent(0.0)), "nobody uses it");
        assert_eq!(idle.memory_used.get(), Some(Bytes(0)));
    }

    #[test]
    fn processes_share_the_use_of_the_gpu() {
        let mut card = card("H100", 0);
        card.let_to(vec![tenant(10), tenant(11)]);
        for second in 0..1000 {
            let busy = card.sample(at(second)).utilization.get().unwrap().0;
            let list = card.processes(at(second)).list;
            let sum: f64 = list.value().unwrap().iter().filter_map(|process| process.sm.get()).map(|sm| sm.0).sum();
            assert!((sum - busy).abs() <= 1.5, "{sum} of {busy} at {second}");
        }
    }

    #[test]
    fn energy_is_the_sum_of_power() {
        let mut card = card("A100", 0);
        let mut joules = 0.0;
        for second in 0..600 {
            let sample = card.sample(at(second));
            joules += if second > 0 { sample.power.get().unwrap().0 } else { 0.0 };
            let told = sample.energy.get().unwrap().0 / 1000;
            assert!(told.abs_diff(whole(joules)) <= 1, "{told} J, expected {joules}");
        }
    }

    #[test]
    fn readings_that_a_model_lacks_are_absent() {
        assert_eq!(card("GB10", 0).sample(at(0)).memory_used.absence(), Some(Absence::NotSupported));
        assert_eq!(card("vGPU", 0).sample(at(0)).power.absence(), Some(Absence::NotSupported));
        assert_eq!(card("A100", 0).sample(at(0)).gpm.sm_active.absence(), Some(Absence::NotThisArchitecture));
        assert!(card("H100", 0).sample(at(0)).gpm.sm_active.value().is_some());
        assert_eq!(card("L4", 0).gpu().mig_mode.absence(), Some(Absence::NotSupported));
    }

    #[test]
    fn each_simulated_gpu_is_linked_to_every_other() {
        let gpus = tied(&[card("H100", 0), card("H100", 1), card("H100", 2), card("H100", 3)]);
        let paths: Vec<GpuPath> = gpus[0].links.iter().filter_map(|link| link.path.get()).collect();
        assert_eq!(paths, [GpuPath::NumaNode, GpuPath::System, GpuPath::System]);
        assert_eq!(gpus[3].numa_node.get(), Some(1));
        assert!(gpus[0].links.iter().all(|link| link.nvlinks.absence() == Some(Absence::ThroughSwitch)));
    }
}
