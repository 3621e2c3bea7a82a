//! GPUs: one line each for the overview, and the tree of the pods and processes on them.

use crate::top::load::Load;
use crate::top::pods::{number, pod_name, sum};
use crate::top::processes::owner_name;
use crate::top::show::{Cells, bar, bytes, cores, percent, share};
use crate::top::table::{Amounts, Column, Row, fill, left, right};
use model::nvidia::VENDOR;
use std::collections::BTreeMap;
use wire::api::ReadingJson;
use wire::api::Snapshot;
use wire::api::gpus::{GpuJson, GpuProcessJson, MigInstanceJson, UnidentifiedGpuJson};
use wire::api::pods::{GpuUseJson, PodJson};
use wire::api::processes::ProcessJson;

/// Screens with at least this many columns have long bars.
const WIDE: u16 = 132;
/// Screens with at least this many columns show the period of a load. The longest word of HEALTH still fits.
const WITH_PERIOD: u16 = 140;
/// Screens with at least this many columns show the last values of a load. The longest word of HEALTH still fits.
const WITH_LOAD: u16 = 182;

/// Columns of [`lines`] on a screen of `width`.
pub(crate) fn line_columns(width: u16) -> [Column; 10] {
    let wide = width >= WIDE;
    [
        left("GPU", 4, 0),
        if wide { left("MODEL", 28, 0) } else { fill("MODEL") },
        left("UTIL", if wide { 27 } else { 13 }, 0),
        left("MEMORY", if wide { 34 } else { 21 }, 0),
        right("POWER", 9, 0),
        right("TEMP", 4, 0),
        right("SM CLOCK", 8, WIDE),
        if wide { fill("HEALTH") } else { left("HEALTH", 9, 0) },
        right("PERIOD", 8, WITH_PERIOD),
        left("LOAD", 40, WITH_LOAD),
    ]
}

/// One line for each GPU with its MIG instances below it, then the GPUs that could not be identified.
pub(crate) fn lines(snapshot: &Snapshot, width: u16) -> Vec<Row> {
    let wide = width >= WIDE;
    let (util, memory) = if wide { (22, 20) } else { (8, 8) };
    let line = |gpu: &GpuJson| {
        let mut cells = Cells::default();
        if let Some(reason) = gpu.mig.reason() {
            cells.remark(format!("MIG instances of GPU {}: {reason}", gpu.index));
        }
        cells.text(gpu.index.to_string()).text(model(gpu));
        let used = cells.note("use", &gpu.readings.utilization_ratio, percent);
        cells.text(format!("{}{used:>5}", bar(gpu.readings.utilization_ratio.value().copied(), util)));
        memory_cell(&mut cells, &gpu.readings.memory_used_bytes, &gpu.readings.memory_total_bytes, memory);
        let drawn = cells.note("power", &gpu.readings.power_watts, |it| format!("{it:.0}"));
        let limit = cells.fact("power limit", &gpu.readings.power_limit_watts, |it| format!("{it:.0}"));
        cells.text(format!("{drawn}/{limit} W"));
        cells.reading("temperature", &gpu.readings.temperature_celsius, |it| format!("{it}C"));
        cells.reading("clock", &gpu.readings.clock_sm_hertz, |it| format!("{} MHz", it / 1_000_000));
        cells.text(&gpu.health);
        load_cells(&mut cells, snapshot, &gpu.uuid);
        let instance = |mig: &MigInstanceJson| {
            let mut row = instance_line(gpu, mig, util, memory);
            load_cells(row.cells.blank().blank().blank().blank(), snapshot, &row.id);
            row
        };
        let children = gpu.instances().iter().map(instance).collect();
        Row { id: gpu.uuid.clone(), name: gpu_name(gpu), cells, head: true, children, ..Row::default() }
    };
    snapshot.gpus.gpus.iter().map(line).chain(snapshot.gpus.gpus_unidentified.iter().map(nameless)).collect()
}

/// The line of a GPU that could not be identified. The reason is in the column of the model, and in full in the notes.
fn nameless(gpu: &UnidentifiedGpuJson) -> Row {
    let mut cells = Cells::default();
    cells.text(gpu.index.to_string());
    cells.remark(format!("GPU {} could not be identified: {}", gpu.index, gpu.reason));
    cells.text(&gpu.reason);
    let name = format!("GPU {} {}", gpu.index, gpu.pci_bus_id.value().map_or("", String::as_str));
    Row { id: format!("unidentified {}", gpu.index), name, cells, head: true, ..Row::default() }
}

fn instance_line(gpu: &GpuJson, mig: &MigInstanceJson, util: u16, memory: u16) -> Row {
    let mut cells = Cells::default();
    cells.text(format!("{}:{}", gpu.index, mig.index)).text(format!(" MIG {}", mig.profile));
    let used = cells.note("use", &mig.gpm.sm_active, percent);
    cells.text(format!("{}{used:>5}", bar(mig.gpm.sm_active.value().copied(), util)));
    memory_cell(&mut cells, &mig.memory_used_bytes, &mig.memory_total_bytes, memory);
    Row { id: mig.uuid.clone(), name: format!("MIG {}", mig.uuid), cells, head: true, ..Row::default() }
}

/// Period and last values of the device with this UUID.
fn load_cells(cells: &mut Cells, snapshot: &Snapshot, uuid: &str) {
    let load = Load::of(snapshot, uuid);
    cells.text(load.period.as_str()).text(load.line());
}

fn memory_cell(cells: &mut Cells, used: &ReadingJson<u64>, total: &ReadingJson<u64>, width: u16) {
    let drawn = bar(share(used, total), width);
    let used = cells.note("memory", used, |it| bytes(*it));
    let total = cells.fact("memory size", total, |it| bytes(*it));
    cells.text(format!("{drawn} {used}/{total}"));
}

/// The model without the vendor's name: `H100 80GB HBM3`.
fn model(gpu: &GpuJson) -> &str {
    gpu.model.strip_prefix(VENDOR).map_or(&gpu.model, str::trim_start)
}

fn gpu_name(gpu: &GpuJson) -> String {
    format!("GPU {} {} {}", gpu.index, gpu.model, gpu.uuid)
}

/// Columns of [`tree`], in the order in which it fills them.
pub(crate) const TREE_COLUMNS: [Column; 7] = [
    fill("GPU, POD, PROCESS"),
    left("DEVICE", 7, 100),
    right("GPU%", 5, 0),
    right("GPUMEM", 7, 0),
    right("CPU", 6, 0),
    right("MEM", 7, 0),
    left("KIND", 8, 100),
];

/// Each GPU with the pods on it and their processes, then the use that belongs to no pod.
pub(crate) fn tree(snapshot: &Snapshot) -> Vec<Row> {
    let hosts: BTreeMap<u32, &ProcessJson> = snapshot.processes.processes.iter().map(|it| (it.pid, it)).collect();
    let pods: BTreeMap<&str, &PodJson> = snapshot.pods.pods.iter().map(|it| (it.uid.as_str(), it)).collect();
    snapshot.gpus.gpus.iter().map(|gpu| row(gpu, &Seen { snapshot, hosts: &hosts, pods: &pods })).collect()
}

/// The data for the rows of a GPU.
struct Seen<'a> {
    snapshot: &'a Snapshot,
    hosts: &'a BTreeMap<u32, &'a ProcessJson>,
    pods: &'a BTreeMap<&'a str, &'a PodJson>,
}

fn row(gpu: &GpuJson, seen: &Seen<'_>) -> Row {
    let mut cells = Cells::default();
    let load = Load::of(seen.snapshot, &gpu.uuid).beside_name();
    cells.text(format!("{} {}, {}{load}", gpu.index, model(gpu), gpu.health)).text(gpu.index.to_string());
    cells.reading("use", &gpu.readings.utilization_ratio, percent);
    cells.reading("memory", &gpu.readings.memory_used_bytes, |it| bytes(*it));
    cells.blank().blank().blank();

    if let Some(reason) = gpu.processes.reason() {
        cells.remark(format!("processes: {reason}"));
    }
    let mut strangers: Vec<Row> = Vec::new();
    let mut taken = BTreeMap::<&str, Vec<&GpuProcessJson>>::new();
    for process in gpu.processes.value().into_iter().flatten() {
        match process.owner.pod_uid.as_deref() {
            Some(uid) => taken.entry(uid).or_default().push(process),
            None => strangers.push(seen.process(gpu, process)),
        }
    }
    for holder in &gpu.holders {
        taken.entry(&holder.pod_uid).or_default();
    }
    let mut children: Vec<Row> = taken.iter().map(|(uid, processes)| seen.pod(gpu, uid, processes)).collect();
    children.extend(no_pod(gpu, strangers));
    Row { id: gpu.uuid.clone(), name: gpu_name(gpu), cells, head: true, children, ..Row::default() }
}

/// The row for use that belongs to no pod: processes of the host, and memory of no process in the driver's list.
fn no_pod(gpu: &GpuJson, strangers: Vec<Row>) -> Option<Row> {
    let unattributed = &gpu.unattributed_memory_bytes;
    if strangers.is_empty() && unattributed.value().is_none_or(|it| *it == 0) {
        return None;
    }
    let mut cells = Cells::default();
    cells.text(" no pod").blank().reading("GPU use", &gpu.unattributed_sm_ratio, percent);
    cells.reading("GPU memory", unattributed, |it| bytes(*it)).blank().blank().blank();
    let name = format!("GPU {}: used by no pod", gpu.index);
    Some(Row { id: format!("{} rest", gpu.uuid), name, cells, children: strangers, ..Row::default() })
}

// === impl Seen ===

impl Seen<'_> {
    fn pod(&self, gpu: &GpuJson, uid: &str, processes: &[&GpuProcessJson]) -> Row {
        let mut cells = Cells::default();
        let holder = gpu.holders.iter().find(|holder| holder.pod_uid == uid);
        let names = holder.map(|it| (it.namespace.as_deref(), it.pod.as_deref()));
        let (namespace, pod) = names.unwrap_or_default();
        let name = pod_name(namespace, pod, uid);
        let pod = self.pods.get(uid).copied();
        let here = |share: &&GpuUseJson| share.gpu == gpu.uuid;
        let shares: Vec<&GpuUseJson> = pod.into_iter().flat_map(|pod| &pod.gpus).filter(here).collect();
        let devices: Vec<_> = shares.iter().map(|it| self.snapshot.device(&it.gpu, it.mig.as_deref())).collect();
        cells.text(format!(" {name}")).text(devices.join(","));
        let mut amounts = Amounts::default();
        if shares.is_empty() {
            cells.blank().blank();
        } else {
            let sm = sum(shares.iter().map(|it| &it.sm_ratio), 0.0, |a, b| a + b);
            let memory = sum(shares.iter().map(|it| &it.memory_used_bytes), 0, |a, b| a.saturating_add(*b));
            cells.reading("GPU use", &sm, percent).reading("GPU memory", &memory, |it| bytes(*it));
            amounts.gpu = sm.value().copied();
            amounts.gpu_memory = memory.value().map(|it| number(*it));
        }
        match pod {
            Some(pod) => {
                cells.reading("CPU", &pod.usage.cpu_cores, cores);
                cells.reading("memory", &pod.usage.memory_working_set_bytes, |it| bytes(*it));
                amounts.cpu = pod.usage.cpu_cores.value().copied();
                amounts.memory = pod.usage.memory_working_set_bytes.value().map(|it| number(*it));
            }
            None => drop(cells.blank().blank()),
        }
        cells.text("pod");
        let children = processes.iter().map(|process| self.process(gpu, process)).collect();
        Row {
            id: format!("{} pod {uid}", gpu.uuid),
            name,
            words: uid.to_owned(),
            cells,
            amounts,
            children,
            ..Row::default()
        }
    }

    fn process(&self, gpu: &GpuJson, process: &GpuProcessJson) -> Row {
        let mut cells = Cells::default();
        let owner = owner_name(&process.owner);
        let owner_text = match process.owner.pod_uid {
            Some(_) => process.owner.container.clone().unwrap_or_default(),
            None => owner.clone(),
        };
        cells.text(format!("   {} {} {owner_text}", process.pid, process.command));
        cells.text(self.snapshot.device(&gpu.uuid, process.mig.as_deref()));
        cells.reading("GPU use", &process.sm_ratio, percent);
        cells.reading("GPU memory", &process.memory_used_bytes, |it| bytes(*it));
        let host = self.hosts.get(&process.pid).copied();
        match host {
            Some(host) => {
                cells.reading("CPU", &host.cpu_cores, cores).reading("memory", &host.rss_bytes, |it| bytes(*it));
            }
            None => drop(cells.blank().blank()),
        }
        cells.text(&process.kind);
        let amounts = Amounts {
            gpu: process.sm_ratio.value().copied(),
            gpu_memory: process.memory_used_bytes.value().map(|it| number(*it)),
            cpu: host.and_then(|host| host.cpu_cores.value().copied()),
            memory: host.and_then(|host| host.rss_bytes.value().map(|it| number(*it))),
        };
        Row {
            id: format!("{} process {} {}", gpu.uuid, process.pid, process.mig.as_deref().unwrap_or_default()),
            name: format!("{} {} ({owner})", process.pid, process.command),
            cells,
            amounts,
            ..Row::default()
        }
    }
}
