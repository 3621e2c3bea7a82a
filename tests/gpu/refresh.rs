//! How often the driver refreshes the counters in which periods are looked for. A period below four refreshes cannot be seen.

use crate::Outcome;
use crate::machine::{Load, Machine};
use crate::record::Record;
use nvml_wrapper::Device;
use nvml_wrapper::enum_wrappers::device::{Clock, Sampling};
use nvml_wrapper::enums::device::SampleValue;
use nvml_wrapper::structs::device::FieldId;
use std::collections::BTreeMap;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

const BUFFERS: [(&str, Sampling); 5] = [
    ("utilization", Sampling::GpuUtilization),
    ("memory copy", Sampling::MemoryUtilization),
    ("power", Sampling::Power),
    ("processor clock", Sampling::ProcessorClock),
    ("memory clock", Sampling::MemoryClock),
];
/// `NVML_FI_DEV_POWER_INSTANT` of `nvml.h`.
const POWER_INSTANT: u32 = 186;
/// Between two looks at a buffer. NVML keeps 100 or more samples in each.
const LOOK: Duration = Duration::from_millis(100);
/// Between two questions about a process: no multiple of the load's period.
const USE_EVERY: Duration = Duration::from_millis(530);

type Counter = fn(&Device<'_>) -> Option<u64>;
const COUNTERS: [(&str, Counter); 6] = [
    ("utilization", |gpu| gpu.utilization_rates().ok().map(|rates| rates.gpu.into())),
    ("memory copy", |gpu| gpu.utilization_rates().ok().map(|rates| rates.memory.into())),
    ("power", |gpu| gpu.power_usage().ok().map(u64::from)),
    ("power now", |gpu| field(gpu, POWER_INSTANT)),
    ("energy", |gpu| gpu.total_energy_consumption().ok()),
    ("clock sm", |gpu| gpu.clock_info(Clock::SM).ok().map(u64::from)),
];

fn field(gpu: &Device<'_>, id: u32) -> Option<u64> {
    let sample = gpu.field_values_for(&[FieldId(id)]).ok()?.into_iter().next()?.ok()?;
    match sample.value.ok()? {
        SampleValue::U32(value) => Some(value.into()),
        SampleValue::U64(value) => Some(value),
        SampleValue::F64(_) | SampleValue::I64(_) => None,
    }
}

/// Measures with a load that goes on and off, so that the counters change.
pub(crate) fn measure(record: &mut Record, machine: &Machine, load: &Load<'_>) -> Outcome<()> {
    let nvml = machine.nvml()?;
    let gpu = nvml.device_by_index(0)?;
    record.part("refresh of the counters, beside a load that goes on and off (milliseconds)");
    record.line("counter                         changes   p10      p50      p90");
    let mut answered = 0;
    for (name, stamps) in buffers(&gpu, machine.length / 2) {
        answered += usize::from(stamps.len() > 1);
        let steps = stamps.windows(2).map(|pair| Duration::from_micros(pair[1] - pair[0])).collect();
        record.line(&line(&format!("samples of {name}"), steps));
    }
    let (counters, looks) = counters(&gpu, machine.length / 2);
    for (name, changes) in counters {
        answered += usize::from(changes.len() > 1);
        let steps = changes.windows(2).map(|pair| pair[1] - pair[0]).collect();
        record.line(&line(name, steps));
    }
    record.line(&line("(one look at all of them)", looks));
    for seconds in [1, 5] {
        let shares = process_use(&gpu, load.pid(), Duration::from_secs(seconds), machine.length / 3);
        record.line(&format!("SM use of the load's process (about 50 %), asked for the last {seconds} s: {shares:?}"));
    }
    record.check(answered > 0, &format!("{answered} counters change"));
    Ok(())
}

/// The distinct time stamps of each buffer.
fn buffers(gpu: &Device<'_>, length: Duration) -> Vec<(&'static str, Vec<u64>)> {
    let began = Instant::now();
    let mut stamps: BTreeMap<usize, Vec<u64>> = BTreeMap::new();
    while began.elapsed() < length {
        for (place, (_, buffer)) in BUFFERS.iter().enumerate() {
            let seen = stamps.entry(place).or_default();
            let last = seen.last().copied().unwrap_or(0);
            let Ok(samples) = gpu.samples(*buffer, last) else { continue };
            let mut newer: Vec<u64> = samples.iter().map(|one| one.timestamp).filter(|at| *at > last).collect();
            newer.sort_unstable();
            newer.dedup();
            seen.extend(newer);
        }
        std::thread::sleep(LOOK);
    }
    let named = |(place, stamps): (usize, Vec<u64>)| (BUFFERS[place].0, stamps);
    stamps.into_iter().map(named).collect()
}

/// The moments at which each counter had changed, and the time that each look took.
fn counters(gpu: &Device<'_>, length: Duration) -> (Vec<(&'static str, Vec<Instant>)>, Vec<Duration>) {
    let began = Instant::now();
    let mut last: [Option<u64>; COUNTERS.len()] = [None; COUNTERS.len()];
    let mut changes: Vec<(&'static str, Vec<Instant>)> = COUNTERS.iter().map(|(name, _)| (*name, Vec::new())).collect();
    let mut looks = Vec::new();
    while began.elapsed() < length {
        let start = Instant::now();
        for (place, (_, read)) in COUNTERS.iter().enumerate() {
            let now = read(gpu);
            if now.is_some() && std::mem::replace(&mut last[place], now).is_some_and(|before| Some(before) != now) {
                changes[place].1.push(Instant::now());
            }
        }
        looks.push(start.elapsed());
        std::thread::sleep(Duration::from_millis(1));
    }
    (changes, looks)
}

/// What the driver says of a process when it is asked for its use since some time ago. `nvml.h` allows the mean and the newest
/// sample.
fn process_use(gpu: &Device<'_>, pid: u32, since: Duration, length: Duration) -> Vec<Option<u32>> {
    let began = Instant::now();
    let mut shares = Vec::new();
    while began.elapsed() < length {
        std::thread::sleep(USE_EVERY);
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let from = u64::try_from(now.saturating_sub(since).as_micros()).unwrap_or(0);
        let samples = gpu.process_utilization_stats(from).unwrap_or_default();
        let mut own = samples.iter().filter(|sample| sample.pid == pid).map(|sample| sample.sm_util);
        shares.push(own.next());
        // More than one sample of a process would be a third way.
        shares.extend(own.map(Some));
    }
    shares
}

fn line(name: &str, mut steps: Vec<Duration>) -> String {
    steps.sort();
    let at = |share: usize| match steps.len() {
        0 => "-".to_owned(),
        count => format!("{:.1}", steps[(count - 1) * share / 100].as_secs_f64() * 1e3),
    };
    format!("{name:<30} {:>8} {:>6} {:>8} {:>8}", steps.len(), at(10), at(50), at(90))
}
