//! Rows for pods with their containers, and for containers of no pod.

use crate::top::show::{ABSENT, Cells, bytes, cores, percent, rate};
use crate::top::table::{Amounts, Column, Row, fill, left, right};
use wire::api::ReadingJson;
use wire::api::Snapshot;
use wire::api::pods::{CgroupUseJson, ContainerJson, GpuClaimJson, GpuUseJson, NetworkJson, PodJson};

/// The columns, in the order in which [`rows`] fills them.
pub(crate) const COLUMNS: [Column; 15] = [
    fill("POD"),
    left("GPU", 7, 0),
    right("GPU%", 5, 0),
    right("GPUMEM", 7, 0),
    right("GPUCLAIM", 8, 0),
    right("CPU", 6, 0),
    right("MEM", 7, 0),
    right("MEMLIMIT", 8, 110),
    right("RX/s", 7, 100),
    right("TX/s", 7, 100),
    right("READ/s", 7, 116),
    right("WRITE/s", 7, 116),
    right("TASKS", 6, 132),
    right("OOM", 4, 132),
    left("QOS", 10, 144),
];

/// Rows for all pods. With `containers`, the row of each pod has a row for each of its containers below it.
pub(crate) fn rows(snapshot: &Snapshot, containers: bool) -> Vec<Row> {
    let pods = snapshot.pods.pods.iter().map(|pod| pod_row(pod, snapshot, containers));
    let alone = snapshot.pods.containers.iter().map(|container| container_row(container, snapshot, true));
    pods.chain(alone).collect()
}

/// `namespace/name`, or `pod UID` if the name is not known.
pub(crate) fn pod_name(namespace: Option<&str>, name: Option<&str>, uid: &str) -> String {
    match (namespace, name) {
        (Some(namespace), Some(name)) => format!("{namespace}/{name}"),
        _ => format!("pod {uid}"),
    }
}

/// The container's name in its pod, or its short id.
pub(crate) fn container_name(name: Option<&str>, id: &str) -> String {
    name.map_or_else(|| format!("container {}", id.get(..12).unwrap_or(id)), str::to_owned)
}

fn pod_row(pod: &PodJson, snapshot: &Snapshot, containers: bool) -> Row {
    let name = pod_name(pod.namespace.as_deref(), pod.name.as_deref(), &pod.uid);
    let mut row = used(&name, &pod.usage, (&pod.gpus, &pod.gpu_claims), Some(&pod.network), snapshot);
    row.cells.text(pod.qos.clone().unwrap_or_default());
    if containers {
        let shown = pod.containers.iter().filter(|container| !container.sandbox);
        row.children = shown.map(|container| container_row(container, snapshot, false)).collect();
    }
    let images = pod.containers.iter().filter_map(|container| container.image.as_deref());
    let names = pod.containers.iter().filter_map(|container| container.name.as_deref());
    row.words = [pod.uid.as_str()].into_iter().chain(names).chain(images).collect::<Vec<_>>().join(" ");
    Row { id: format!("pod {}", pod.uid), ..row }
}

fn container_row(container: &ContainerJson, snapshot: &Snapshot, alone: bool) -> Row {
    let name = container_name(container.name.as_deref(), &container.id);
    let network = alone.then_some(&container.network);
    let mut row = used(&name, &container.usage, (&container.gpus, &[]), network, snapshot);
    row.cells.blank();
    let image = container.image.as_deref().unwrap_or_default();
    row.words = format!("{} {image}", container.id);
    Row { id: format!("container {}", container.id), ..row }
}

/// A row with all cells of a pod or container except the last cell.
fn used(
    name: &str,
    usage: &CgroupUseJson,
    on_gpus: (&[GpuUseJson], &[GpuClaimJson]),
    network: Option<&ReadingJson<NetworkJson>>,
    snapshot: &Snapshot,
) -> Row {
    let mut cells = Cells::default();
    cells.text(name);
    let (gpu, gpu_memory) = gpu_cells(&mut cells, on_gpus, snapshot);
    cells.reading("CPU", &usage.cpu_cores, cores).reading("memory", &usage.memory_working_set_bytes, |it| bytes(*it));
    let limit = cells.fact("memory limit", &usage.memory_limit_bytes, |it| it.map_or_else(|| "none".to_owned(), bytes));
    cells.text(limit);
    match network {
        Some(ReadingJson::Absent { reason, .. }) => {
            cells.remark(format!("network: {reason}"));
            cells.text(ABSENT).text(ABSENT);
        }
        Some(ReadingJson::Measured { .. }) => {
            cells.reading("received", &usage.net_rx_bytes_per_second, rate);
            cells.reading("sent", &usage.net_tx_bytes_per_second, rate);
        }
        None => drop(cells.blank().blank()),
    }
    cells
        .reading("block reads", &usage.io_read_bytes_per_second, rate)
        .reading("block writes", &usage.io_write_bytes_per_second, rate)
        .reading("tasks", &usage.tasks, u64::to_string)
        .reading("OOM kills", &usage.oom_kills, u64::to_string);
    let amounts = Amounts {
        gpu,
        gpu_memory,
        cpu: usage.cpu_cores.value().copied(),
        memory: usage.memory_working_set_bytes.value().map(|it| number(*it)),
    };
    Row { name: name.to_owned(), cells, amounts, ..Row::default() }
}

/// The four cells about GPUs: devices, use, memory and claimed memory. All but the first are sums over all devices; blank
/// without a device.
fn gpu_cells(
    cells: &mut Cells,
    (shares, claims): (&[GpuUseJson], &[GpuClaimJson]),
    snapshot: &Snapshot,
) -> (Option<f64>, Option<f64>) {
    let used = shares.iter().map(|share| snapshot.device(&share.gpu, share.mig.as_deref()));
    let mut devices: Vec<String> = used.collect();
    for device in claims.iter().map(|claim| snapshot.any_device(&claim.device)) {
        if !devices.contains(&device) {
            devices.push(device);
        }
    }
    cells.text(devices.join(","));
    let claimed =
        claims.iter().map(|claim| claim.memory_bytes).reduce(u64::saturating_add).map_or_else(String::new, bytes);
    if shares.is_empty() {
        cells.blank().blank().text(claimed);
        return (None, None);
    }
    let sm = sum(shares.iter().map(|share| &share.sm_ratio), 0.0, |a, b| a + b);
    let memory = sum(shares.iter().map(|share| &share.memory_used_bytes), 0, |a, b| a.saturating_add(*b));
    cells.reading("GPU use", &sm, percent).reading("GPU memory", &memory, |it| bytes(*it)).text(claimed);
    (sm.value().copied(), memory.value().map(|it| number(*it)))
}

/// The sum of readings. If a reading is absent, the sum is absent; otherwise the sum is as old as the oldest reading.
pub(crate) fn sum<'a, T: Clone + 'a>(
    readings: impl Iterator<Item = &'a ReadingJson<T>>,
    zero: T,
    add: impl Fn(T, &T) -> T,
) -> ReadingJson<T> {
    let mut total = ReadingJson::Measured { value: zero, age_seconds: 0.0 };
    for reading in readings {
        total = match (total, reading) {
            (ReadingJson::Measured { value, age_seconds }, ReadingJson::Measured { value: next, age_seconds: age }) => {
                ReadingJson::Measured { value: add(value, next), age_seconds: age_seconds.max(*age) }
            }
            (ReadingJson::Absent { absent, reason }, _) => ReadingJson::Absent { absent, reason },
            (_, absent) => absent.clone(),
        };
    }
    total
}

/// The bytes as a number to sort by.
#[expect(clippy::cast_precision_loss, reason = "two rows that differ by less are equal to people")]
pub(crate) fn number(bytes: u64) -> f64 {
    bytes as f64
}
