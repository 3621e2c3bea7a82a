//! GPU duty and memory of the pods of one day of inference (Alibaba cluster trace programme, GenTD26): real load without a cycle.
//! Only a report reads the recording. Other runs use seeded series that look like it.

use crate::data::{Table, recording};
use crate::options::{Options, Size};
use crate::random::Random;
use std::collections::BTreeMap;
use std::time::Duration;

/// The distance of two values of a pod.
pub(crate) const STEP: Duration = Duration::from_secs(57);

/// Values of a whole day.
const DAY: usize = 1441;

/// Which recording.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// GPU utilisation in percent.
    Duty,
    /// GPU memory in use, in bytes.
    Memory,
}

impl Kind {
    /// The word for it in the table.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Kind::Duty => "duty",
            Kind::Memory => "memory",
        }
    }
}

/// The values of each pod, [`STEP`] apart; `None` where the recording has no row.
pub(crate) fn pods(options: &Options, kind: Kind) -> Result<Vec<Vec<Option<f64>>>, String> {
    match options.size {
        Size::Full => recorded(options, kind),
        Size::Cut => Ok((0..24).map(|pod| look_alike(kind, pod)).collect()),
        Size::Quick => Ok((0..3).map(|pod| look_alike(kind, pod)).collect()),
    }
}

fn recorded(options: &Options, kind: Kind) -> Result<Vec<Vec<Option<f64>>>, String> {
    let file = match kind {
        Kind::Duty => "pod_gpu_duty_cycle_anon",
        Kind::Memory => "pod_gpu_memory_used_bytes_anon",
    };
    let table = Table::read(&recording(&options.data()?.join("gentd26"), file))?;
    let (times, values, pods) =
        (table.seconds("timestamp_anon")?, table.numbers("value")?, table.column("container_ip")?);
    let mut rows: BTreeMap<&str, Vec<(f64, f64)>> = BTreeMap::new();
    for ((time, value), pod) in times.into_iter().zip(values).zip(pods) {
        if let (Some(time), Some(value)) = (time, value) {
            rows.entry(pod).or_default().push((time, value));
        }
    }
    Ok(rows.into_values().map(|rows| on_grid(&rows)).collect())
}

/// Puts rows, whose times are multiples of the step apart, in their places.
fn on_grid(rows: &[(f64, f64)]) -> Vec<Option<f64>> {
    let mut values = Vec::new();
    let first = rows.first().map_or(0.0, |row| row.0);
    for (time, value) in rows {
        let place = ((time - first) / STEP.as_secs_f64()).round() as usize;
        if place >= values.len() {
            values.resize(place, None);
            values.push(Some(*value));
        }
    }
    values
}

/// A pod with the figures of the recording: half of the duty values are 0, the others come in bursts, with busy and quiet hours;
/// memory keeps a level while a pod is idle, and moves between a low and a high level, rarely higher, while it works.
fn look_alike(kind: Kind, pod: u64) -> Vec<Option<f64>> {
    let random = &mut Random::of("gentd26", &[pod]);
    let (rate, height) = (random.log_uniform(0.04, 0.4), random.uniform(12.0, 45.0));
    let (phase, low, high) = (random.unit(), random.uniform(8.0, 15.0), random.uniform(22.0, 40.0));
    let mut level = high;
    let mut busy = 0_usize;
    (0..DAY)
        .map(|index| {
            let hour = (index as f64 / DAY as f64 + phase) % 1.0;
            let active = rate
                * if hour < 0.4 {
                    1.4
                } else if hour > 0.7 {
                    0.15
                } else {
                    0.8
                };
            if busy == 0 && random.unit() < active {
                busy = 1 + random.exponential(2.0) as usize;
            }
            let works = busy > 0;
            busy = busy.saturating_sub(1);
            let duty = if works { random.exponential(height).min(100.0) } else { 0.0 };
            if works {
                level = match random.unit() {
                    chance if chance < 0.3 => high,
                    chance if chance < 0.35 => high + random.exponential(4.0),
                    _ => random.uniform(low, high),
                };
            }
            Some(match kind {
                Kind::Duty => (duty * 10.0).round() / 10.0,
                Kind::Memory => (level * 1024.0).round() * f64::from(1 << 20),
            })
        })
        .collect()
}

#[test]
fn a_row_that_is_missing_is_a_gap() {
    assert_eq!(on_grid(&[(57.0, 1.0), (114.0, 2.0), (228.0, 3.0)]), [Some(1.0), Some(2.0), None, Some(3.0)]);
}
