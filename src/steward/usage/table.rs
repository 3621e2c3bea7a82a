//! A state as a table for people, 80 columns wide. An absent value is a dash, and its reason is below the table.

use model::unit::Bytes as Amount;
use proto::usage::{Absence, Bytes, Count, Gpu, Health, MigInstance, NodeUsage, Percent, PodShare, gpu_source};
use serve::terminal::plain;
use std::fmt::Write;
use std::time::Duration;

/// Width of the name column in characters: 80 minus the width of the other columns.
const NAME: usize = 32;
/// Maximum number of reasons for absent values that are shown. A node on which all GPUs fail has a handful.
const MAX_NOTES: usize = 12;

/// The whole table, with a newline at the end.
pub(super) fn of(state: &NodeUsage) -> String {
    let mut table = Table::default();
    for gpu in &state.gpus {
        table.gpu(gpu);
    }
    let rows = std::mem::take(&mut table.text);
    table.head(state);
    table.text.push_str(&rows);
    table.end()
}

#[derive(Default)]
struct Table {
    text: String,
    notes: Vec<String>,
    /// Age of the oldest value that is shown, in microseconds. The size of a GPU's memory does not count, because it
    /// is not measured.
    oldest: Option<u64>,
}

/// The cells of one line as text.
struct Line {
    index: String,
    name: String,
    health: &'static str,
    busy: String,
    memory: String,
    processes: String,
}

impl Table {
    fn head(&mut self, state: &NodeUsage) {
        let made = i64::try_from(state.made_at_us).ok().and_then(|at| jiff::Timestamp::from_microsecond(at).ok());
        let made = made.map_or_else(|| "?".to_owned(), |at| format!("{at:.0}"));
        let simulated = if state.simulated { "  (simulated GPUs)" } else { "" };
        self.line(&format!("{}  {made}{}{simulated}", plain(&state.node), self.age()));
        self.line(&source(state));
        if !state.gpus.is_empty() {
            self.line("");
            self.line("GPU NAME                             HEALTH      BUSY MEMORY OF TOTAL/CLAIM PROC");
        }
    }

    fn gpu(&mut self, gpu: &Gpu) {
        let place = format!("GPU {}", gpu.index);
        let busy = self.percent(&place, "busy", gpu.utilization.as_ref());
        let memory = self.memory(&place, gpu.memory_used.as_ref(), gpu.memory_total.as_ref());
        let processes = self.count(&place, gpu.processes.as_ref());
        self.row(&Line {
            index: gpu.index.to_string(),
            name: plain(&gpu.model),
            health: health(gpu.health()),
            busy,
            memory,
            processes,
        });
        if let Some(why) = &gpu.mig_absent {
            self.absent(&place, "MIG instances", Some(why));
        }
        for instance in &gpu.mig {
            self.mig(&place, instance);
        }
        for share in &gpu.pods {
            self.pod(&place, share);
        }
        if gpu.strangers > 0 {
            let busy = self.percent(&format!("{place}, no pod"), "busy", gpu.unattributed_sm.as_ref());
            let memory = self.memory(&format!("{place}, no pod"), gpu.unattributed_memory.as_ref(), None);
            let processes = gpu.strangers.to_string();
            self.row(&part("  (no pod)".into(), busy, memory, processes));
        }
    }

    fn mig(&mut self, place: &str, instance: &MigInstance) {
        let place = format!("{place}, MIG {}", instance.index);
        let memory = self.memory(&place, instance.memory_used.as_ref(), instance.memory_total.as_ref());
        self.row(&part(
            format!("  MIG {} {}", instance.index, plain(&instance.profile)),
            String::new(),
            memory,
            String::new(),
        ));
    }

    fn pod(&mut self, place: &str, share: &PodShare) {
        let name = match (&share.namespace, &share.name) {
            (Some(namespace), Some(name)) => format!("{}/{}", plain(namespace), plain(name)),
            _ => format!("pod {}", plain(&share.pod_uid)),
        };
        let place = format!("{place}, {name}");
        let busy = self.percent(&place, "busy", share.sm.as_ref());
        let claimed = share.memory_claimed.map(|value| Bytes { value: Some(value), ..Bytes::default() });
        let memory = self.memory(&place, share.memory_used.as_ref(), claimed.as_ref());
        self.row(&part(format!("  {name}"), busy, memory, share.processes.to_string()));
    }

    fn row(&mut self, line: &Line) {
        let Line { index, name, health, busy, memory, processes } = line;
        let name = shortened(name, NAME);
        self.line(&format!("{index:>3} {name:<NAME$} {health:<9} {busy:>6} {memory:>21} {processes:>4}"));
    }

    fn line(&mut self, text: &str) {
        self.text.push_str(text.trim_end());
        self.text.push('\n');
    }

    fn end(mut self) -> String {
        let notes = std::mem::take(&mut self.notes);
        if !notes.is_empty() {
            self.line("");
        }
        for note in notes.iter().take(MAX_NOTES) {
            self.line(&format!("- {note}"));
        }
        if let Some(more) = notes.len().checked_sub(MAX_NOTES).filter(|more| *more > 0) {
            self.line(&format!("- and {more} more reasons: -o json has them all"));
        }
        self.text
    }

    fn percent(&mut self, place: &str, what: &str, reading: Option<&Percent>) -> String {
        self.shows(reading.and_then(|reading| reading.age_us));
        match reading.and_then(|reading| reading.value) {
            Some(value) => format!("{value:.0} %"),
            None => self.absent(place, what, reading.and_then(|reading| reading.absent.as_ref())),
        }
    }

    fn count(&mut self, place: &str, reading: Option<&Count>) -> String {
        self.shows(reading.and_then(|reading| reading.age_us));
        match reading.and_then(|reading| reading.value) {
            Some(value) => value.to_string(),
            None => self.absent(place, "processes", reading.and_then(|reading| reading.absent.as_ref())),
        }
    }

    fn memory(&mut self, place: &str, used: Option<&Bytes>, total: Option<&Bytes>) -> String {
        self.shows(used.and_then(|reading| reading.age_us));
        let used = match used.and_then(|reading| reading.value) {
            Some(value) => Amount(value).to_string(),
            None => self.absent(place, "memory", used.and_then(|reading| reading.absent.as_ref())),
        };
        match total.and_then(|reading| reading.value) {
            Some(total) => format!("{used} of {:>8}", Amount(total).to_string()),
            None => used,
        }
    }

    /// The age of the oldest value that is shown.
    fn age(&self) -> String {
        self.oldest.map_or_else(String::new, |age| {
            format!("  values at most {:.1} s old", Duration::from_micros(age).as_secs_f64())
        })
    }

    fn shows(&mut self, age: Option<u64>) {
        self.oldest = self.oldest.max(age);
    }

    /// Returns a dash and adds the reason to the notes below the table.
    fn absent(&mut self, place: &str, what: &str, why: Option<&Absence>) -> String {
        let why = why.map_or("the agent did not say why", |why| why.reason.as_str());
        let note = format!("{what} of {place}: {}", plain(why));
        if !self.notes.contains(&note) {
            self.notes.push(note);
        }
        "-".to_owned()
    }
}

/// A line below the line of a GPU.
fn part(name: String, busy: String, memory: String, processes: String) -> Line {
    Line { index: String::new(), name, health: "", busy, memory, processes }
}

fn health(health: Health) -> &'static str {
    match health {
        Health::Unspecified | Health::Unknown => "unknown",
        Health::Healthy => "healthy",
        Health::Degraded => "degraded",
        Health::Unhealthy => "unhealthy",
    }
}

fn source(state: &NodeUsage) -> String {
    use gpu_source::State;
    let Some(source) = &state.source else { return "no GPUs: the agent did not say why".to_owned() };
    match source.state() {
        State::Working => {
            let mut text = String::new();
            for (what, version) in
                [("driver", &source.driver_version), ("NVML", &source.nvml_version), ("CUDA", &source.cuda_version)]
            {
                if let Some(version) = version {
                    let gap = if text.is_empty() { "" } else { ", " };
                    let _ = write!(text, "{gap}{what} {}", plain(version));
                }
            }
            text
        }
        State::Missing => {
            let why = source.why.as_ref().map_or("", |why| why.reason.as_str());
            format!("no GPUs: {}\n  {}", plain(why), plain(source.advice.as_deref().unwrap_or_default()))
        }
        State::Hanging => "no GPUs: the driver does not return from its calls".to_owned(),
        State::Released => "no readings: the GPU driver is released at an operator's request".to_owned(),
        State::SwitchedOff => "no GPUs: switched off by --gpus none".to_owned(),
        State::Starting | State::Unspecified => "no GPUs: the driver has not been asked yet".to_owned(),
    }
}

/// At most `width` characters. The end is cut, because similar names differ least at their end.
fn shortened(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return text.to_owned();
    }
    text.chars().take(width - 1).chain(['…']).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proto::usage::GpuSource;

    fn bytes(value: u64) -> Option<Bytes> {
        Some(Bytes {
            value: Some(value),
            absent: None,
            sampled_at_us: Some(1_699_999_999_500_000),
            age_us: Some(500_000),
        })
    }

    fn percent(value: f64) -> Option<Percent> {
        Some(Percent { value: Some(value), absent: None, sampled_at_us: Some(1), age_us: Some(400_000) })
    }

    fn refused() -> Absence {
        Absence { code: "not_supported".into(), reason: "not supported by this device".into() }
    }

    fn state() -> NodeUsage {
        let named = PodShare {
            pod_uid: "0f5b9a3e-0d2c-4b7f-9a51-2f1f6a1f8d11".into(),
            namespace: Some("ml".into()),
            name: Some("train-0".into()),
            mig_uuid: None,
            processes: 2,
            memory_used: bytes(60 << 30),
            sm: percent(80.4),
            memory_claimed: Some(64 << 30),
        };
        let nameless = PodShare {
            namespace: None,
            name: None,
            processes: 1,
            memory_used: bytes(1 << 20),
            sm: Some(Percent { absent: Some(refused()), ..Percent::default() }),
            memory_claimed: None,
            ..named.clone()
        };
        let gpu = Gpu {
            uuid: "GPU-1".into(),
            index: 0,
            model: "NVIDIA H100 80GB HBM3".into(),
            health: Health::Healthy.into(),
            memory_total: bytes(80 << 30),
            memory_used: bytes((60 << 30) + (1 << 20)),
            utilization: percent(87.0),
            processes: Some(Count { value: Some(3), ..Count::default() }),
            strangers: 1,
            unattributed_memory: bytes(3 << 20),
            unattributed_sm: percent(0.0),
            pods: vec![named, nameless],
            ..Gpu::default()
        };
        let sick = Gpu {
            index: 1,
            model: "NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation\u{1b}[2J Edition".into(),
            health: Health::Unhealthy.into(),
            utilization: Some(Percent { absent: Some(refused()), ..Percent::default() }),
            ..Gpu::default()
        };
        NodeUsage {
            node: "node-a".into(),
            sequence: 7,
            made_at_us: 1_700_000_000_000_000,
            simulated: true,
            source: Some(GpuSource {
                state: gpu_source::State::Working.into(),
                driver_version: Some("550.54.15".into()),
                cuda_version: Some("12.4".into()),
                ..GpuSource::default()
            }),
            gpus: vec![gpu, sick],
        }
    }

    #[test]
    fn the_table_shows_gpus_pods_and_reasons() {
        let expect = "\
node-a  2023-11-14T22:13:20Z  values at most 0.5 s old  (simulated GPUs)
driver 550.54.15, CUDA 12.4

GPU NAME                             HEALTH      BUSY MEMORY OF TOTAL/CLAIM PROC
  0 NVIDIA H100 80GB HBM3            healthy     87 %  60.0 GiB of 80.0 GiB    3
      ml/train-0                                 80 %  60.0 GiB of 64.0 GiB    2
      pod 0f5b9a3e-0d2c-4b7f-9a51-2…                -               1.0 MiB    1
      (no pod)                                    0 %               3.0 MiB    1
  1 NVIDIA RTX PRO 6000 Blackwell M… unhealthy      -                     -    -

- busy of GPU 0, pod 0f5b9a3e-0d2c-4b7f-9a51-2f1f6a1f8d11: not supported by this device
- busy of GPU 1: not supported by this device
- memory of GPU 1: the agent did not say why
- processes of GPU 1: the agent did not say why
";
        assert_eq!(of(&state()), expect);
    }

    /// Process lists are read every 5 s and utilisation every second. The oldest value counts, in any column.
    #[test]
    fn the_age_is_that_of_the_oldest_value_that_is_shown() {
        let old = |state: &mut NodeUsage, which: usize| {
            let gpu = &mut state.gpus[0];
            match which {
                0 => gpu.processes = Some(Count { value: Some(3), age_us: Some(5_000_000), ..Count::default() }),
                1 => gpu.pods[0].memory_used.as_mut().unwrap().age_us = Some(5_000_000),
                2 => gpu.pods[1].sm = Some(Percent { value: Some(1.0), age_us: Some(5_000_000), ..Percent::default() }),
                3 => gpu.unattributed_memory.as_mut().unwrap().age_us = Some(5_000_000),
                _ => {
                    let memory_used = Some(Bytes { age_us: Some(5_000_000), ..bytes(1).unwrap() });
                    gpu.mig.push(MigInstance { memory_used, ..MigInstance::default() });
                }
            }
        };
        for which in 0..5 {
            let mut state = state();
            old(&mut state, which);
            let table = of(&state);
            assert!(table.starts_with("node-a  2023-11-14T22:13:20Z  values at most 5.0 s old"), "{which}: {table}");
        }
        let mut unseen = state();
        unseen.gpus[0].strangers = 0;
        old(&mut unseen, 3);
        assert!(of(&unseen).contains("at most 0.5 s old"), "a value that is not shown does not count");
    }

    #[test]
    fn rows_fit_into_eighty_columns_and_have_no_control_characters() {
        let mut wide = state();
        wide.gpus[0].memory_used = bytes(u64::MAX);
        wide.gpus[0].memory_total = bytes(1023 << 40);
        wide.gpus[1].model = "\u{1b}]0;evil\u{7}".into();
        let table = of(&wide);
        for row in table.lines().skip(3).take(6) {
            assert!(row.chars().count() <= 80, "{row}");
        }
        assert!(!table.contains('\u{1b}') && !table.contains('\u{7}'));
    }

    #[test]
    fn a_node_without_gpus_says_why_and_what_to_do() {
        let source = GpuSource {
            state: gpu_source::State::Missing.into(),
            why: Some(Absence { code: "driver_not_loaded".into(), reason: "NVIDIA driver is not loaded".into() }),
            advice: Some("modprobe nvidia".into()),
            ..GpuSource::default()
        };
        let text = of(&NodeUsage { gpus: Vec::new(), source: Some(source), ..state() });
        assert!(text.contains("no GPUs: NVIDIA driver is not loaded\n  modprobe nvidia\n"), "{text}");
    }
}
