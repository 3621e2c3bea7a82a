//! Rows for processes.

use crate::top::pods::{container_name, number, pod_name, sum};
use crate::top::show::{Cells, bytes, cores, percent};
use crate::top::table::{Amounts, Column, Row, fill, left, right};
use wire::api::Snapshot;
use wire::api::process_owner::ProcessOwnerJson;
use wire::api::processes::ProcessJson;

/// The columns, in the order in which [`rows`] fills them.
pub(crate) const COLUMNS: [Column; 11] = [
    right("PID", 8, 0),
    left("COMMAND", 15, 0),
    fill("OWNER"),
    left("GPU", 7, 0),
    right("GPU%", 5, 0),
    right("GPUMEM", 7, 0),
    right("CPU", 6, 0),
    right("MEM", 7, 0),
    right("THREADS", 7, 100),
    right("READ", 7, 116),
    right("WRITTEN", 7, 116),
];

/// Rows for all processes that the agent knows.
pub(crate) fn rows(snapshot: &Snapshot) -> Vec<Row> {
    snapshot.processes.processes.iter().map(|process| row(process, snapshot)).collect()
}

/// The owner of a process as a short text.
pub(crate) fn owner_name(owner: &ProcessOwnerJson) -> String {
    let container = owner.container_id.as_deref().map(|id| container_name(owner.container.as_deref(), id));
    match owner.kind.as_str() {
        "pod" => {
            let uid = owner.pod_uid.as_deref().unwrap_or("?");
            let pod = pod_name(owner.namespace.as_deref(), owner.pod.as_deref(), uid);
            match owner.container.as_deref() {
                Some(container) => format!("{pod} {container}"),
                None => pod,
            }
        }
        "container" => container.unwrap_or_else(|| "container".to_owned()),
        other => other.to_owned(),
    }
}

fn row(process: &ProcessJson, snapshot: &Snapshot) -> Row {
    let mut cells = Cells::default();
    let owner = owner_name(&process.owner);
    cells.text(process.pid.to_string()).text(&process.command).text(&owner);
    let mut amounts = Amounts {
        cpu: process.cpu_cores.value().copied(),
        memory: process.rss_bytes.value().map(|it| number(*it)),
        ..Amounts::default()
    };
    if process.gpus.is_empty() {
        cells.blank().blank().blank();
    } else {
        let devices: Vec<_> = process.gpus.iter().map(|on| snapshot.device(&on.gpu, on.mig.as_deref())).collect();
        let sm = sum(process.gpus.iter().map(|on| &on.sm_ratio), 0.0, |a, b| a + b);
        let memory = sum(process.gpus.iter().map(|on| &on.memory_used_bytes), 0, |a, b| a.saturating_add(*b));
        cells.text(devices.join(",")).reading("GPU use", &sm, percent);
        cells.reading("GPU memory", &memory, |it| bytes(*it));
        amounts.gpu = sm.value().copied();
        amounts.gpu_memory = memory.value().map(|it| number(*it));
    }
    cells
        .reading("CPU", &process.cpu_cores, cores)
        .reading("memory", &process.rss_bytes, |it| bytes(*it))
        .reading("threads", &process.threads, u64::to_string)
        .reading("read", &process.read_bytes, |it| bytes(*it))
        .reading("written", &process.write_bytes, |it| bytes(*it));
    Row {
        id: format!("process {} {}", process.pid, process.start_ticks.unwrap_or_default()),
        name: format!("{} {} ({owner})", process.pid, process.command),
        words: process.owner.pod_uid.clone().unwrap_or_default(),
        cells,
        amounts,
        ..Row::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::id::NodeName;
    use model::process::ProcessOwner as Noun;
    use model::time::Now;
    use model::view::NodeView;
    use wire::api::process_owner::OwnerNames;

    #[test]
    fn a_process_with_an_unknown_owner_is_shown_as_unknown_and_not_as_the_hosts() {
        let view = NodeView::empty(NodeName::parse("n1").unwrap(), Now::default());
        let shown = |owner: &Noun| owner_name(&OwnerNames::of(&view).of_process(owner));
        assert_eq!((shown(&Noun::Unknown), shown(&Noun::Host)), ("unknown".into(), "host".into()));
    }
}
