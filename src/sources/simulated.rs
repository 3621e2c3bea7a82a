//! Simulated GPUs for machines without GPUs, always labelled as simulated. No library and no device is used; all other
//! parts of the agent work as with real GPUs.
//!
//! ```text
//!   product     GPU models and their data
//!   curve       numbers that follow from a seed and the time
//!   holders     living processes of this machine that are shown as users of the GPUs
//!   gpu         one simulated GPU: identity, readings, processes
//! ```
//!
//! What must never happen here: a value that could be taken for a real value (the source state and the names say
//! `simulated`), a process that does not exist.

mod product;
mod curve;
mod holders;
mod gpu;

pub use crate::simulated::holders::{SimulatedHolder, SimulatedHolders};

use crate::process_owner::ProcessOwnerReader;
use crate::report::Reporter;
use crate::roots::HostRoots;
use gpu::SimulatedGpu;
use holders::SimulatedProcesses;
use model::gpu::Gpu;
use model::id::{GpuUuid, NodeName};
use model::observation::{Fact, GpuSourceState, Sample};
use product::{PRODUCTS, Product};
use std::io;
use std::ops::RangeInclusive;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tokio_util::sync::CancellationToken;

/// Possible numbers of GPUs; the largest hosts have 16.
pub const COUNT: RangeInclusive<u32> = 1..=16;

/// Longest sleep of the thread, which is the delay until a stop is noticed: far below the 5 s in which the agent must
/// end. Ten wake-ups a second have no measurable cost.
const LONGEST_SLEEP: Duration = Duration::from_millis(100);

/// Settings of the simulation.
#[derive(Debug)]
pub struct Settings {
    /// The node that has these GPUs: they stay the same after a restart, and differ from other nodes' GPUs.
    pub node: NodeName,
    /// With sharing: the containers that hold GPUs, which are then the only users. `None`: any process of the machine
    /// may be shown as a user.
    pub holders: Option<SimulatedHolders>,
    /// GPU model, such as `H100`.
    pub model: String,
    /// Number of GPUs.
    pub count: u32,
    /// Roots of the file trees in which the processes are found (they are real processes of this machine).
    pub roots: HostRoots,
    /// Time between two readings.
    pub period: Duration,
    /// Time between two process lists.
    pub process_period: Duration,
}

/// Short names of the models that can be simulated.
pub fn models() -> impl Iterator<Item = &'static str> {
    PRODUCTS.iter().map(|product| product.model)
}

/// Checks whether this number of GPUs of this model can be simulated. Settings are checked with it before anything
/// starts.
///
/// # Errors
/// A sentence for the user who asked for the GPUs.
pub fn check(model: &str, count: u32) -> Result<(), String> {
    product(model, count).map(|_| ())
}

fn product(model: &str, count: u32) -> Result<&'static Product, String> {
    let product = Product::named(model).ok_or_else(|| {
        let known: Vec<&str> = models().collect();
        format!("no GPU model {model:?} to simulate; known are {}", known.join(", "))
    })?;
    if COUNT.contains(&count) {
        Ok(product)
    } else {
        Err(format!("{count} GPUs to simulate; from {} to {} are possible", COUNT.start(), COUNT.end()))
    }
}

/// Starts the thread `gpu-simulated`, and returns its handle, so that the caller can watch it.
///
/// # Errors
/// When such GPUs cannot be simulated ([`check`]), or the operating system cannot start a thread.
pub fn spawn(settings: Settings, reporter: Reporter, stop: CancellationToken) -> io::Result<JoinHandle<()>> {
    let product =
        product(&settings.model, settings.count).map_err(|text| io::Error::new(io::ErrorKind::InvalidInput, text))?;
    let thread = std::thread::Builder::new().name("gpu-simulated".into());
    thread.spawn(move || run(&settings, product, &reporter, &stop))
}

/// Reports by deadline until stopped.
fn run(settings: &Settings, product: &'static Product, reporter: &Reporter, stop: &CancellationToken) {
    let seed = seed_of(&settings.node);
    let mut cards: Vec<SimulatedGpu> =
        (0..settings.count).map(|index| SimulatedGpu::new(product, seed, index)).collect();
    let mut tenants = SimulatedProcesses::new(
        settings.roots.clone(),
        ProcessOwnerReader::new(settings.roots.clone()),
        settings.count,
    );
    let uuids: Vec<GpuUuid> = cards.iter().map(|card| card.gpu().uuid.clone()).collect();
    introduce(&cards, reporter);
    let mut next_sample = Instant::now();
    let mut next_processes = next_sample;
    while !stop.is_cancelled() {
        let now = Instant::now();
        if now >= next_processes {
            match &settings.holders {
                Some(holders) => tenants.of_holders(&holders.0(), &uuids),
                None => tenants.renew(),
            }
            for (card, index) in cards.iter_mut().zip(0u32..) {
                card.let_to(tenants.of(index));
                reporter.sample(Sample::GpuProcesses(card.processes(clock::now())));
            }
            next_processes = after(next_processes, settings.process_period, now);
        }
        if now >= next_sample {
            for card in &mut cards {
                let sample = card.sample(clock::now());
                reporter.sample(Sample::Gpu(card.gpu().uuid.clone(), Box::new(sample)));
            }
            next_sample = after(next_sample, settings.period, now);
        }
        let until = next_sample.min(next_processes);
        std::thread::sleep(until.saturating_duration_since(Instant::now()).min(LONGEST_SLEEP));
    }
}

/// Reports that GPUs exist, that they are simulated, and their identities.
fn introduce(cards: &[SimulatedGpu], reporter: &Reporter) {
    reporter.fact(Fact::GpuSource(GpuSourceState::Working {
        driver: "simulated".into(),
        nvml: "simulated".into(),
        cuda: None,
        simulated: true,
    }));
    let gpus: Vec<Gpu> = gpu::tied(cards);
    reporter.fact(Fact::Gpus(gpus));
}

/// The next deadline: one period after `from`, so that deadlines do not drift. If that time has passed, one period
/// after `now`, so that missed deadlines are not made up for.
fn after(from: Instant, period: Duration, now: Instant) -> Instant {
    let period = period.max(Duration::from_millis(1));
    let next = from + period;
    if next > now { next } else { now + period }
}

/// A seed from the node's name. It is the same after a restart, even for an agent in a pod, whose host name is the
/// pod's; it differs between nodes, so that UUIDs do not collide.
fn seed_of(node: &NodeName) -> u64 {
    // With the line end in the seed, the UUIDs stay the same as in earlier versions if the node has the name of its
    // host.
    node.as_str().bytes().chain([b'\n']).fold(0x51d0, |seed, byte| curve::mix(seed ^ u64::from(byte)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Observations;
    use model::gpu::GpuSample;
    use model::observation::{Observation, SourceEvent};
    use model::process::GpuProcesses;
    use tokio::sync::mpsc::error::TryRecvError;

    fn settings(model: &str, count: u32) -> Settings {
        Settings {
            node: NodeName::parse("n1").unwrap(),
            holders: None,
            model: model.into(),
            count,
            roots: HostRoots::default(),
            period: Duration::from_millis(5),
            process_period: Duration::from_millis(5),
        }
    }

    #[test]
    fn an_unknown_model_is_refused_with_the_list_of_known_models() {
        let (reporter, _receiver) = Reporter::channel();
        let error = spawn(settings("RTX", 1), reporter, CancellationToken::new()).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
        assert!(error.to_string().contains("\"RTX\"") && error.to_string().contains("H100, H200"), "{error}");
    }

    #[test]
    fn no_gpu_and_too_many_gpus_are_refused() {
        for count in [0, 17] {
            let (reporter, _receiver) = Reporter::channel();
            let error = spawn(settings("H100", count), reporter, CancellationToken::new()).unwrap_err();
            assert!(error.to_string().contains("from 1 to 16"), "{error}");
        }
    }

    /// Observations until `enough` samples and process lists have arrived.
    fn watch(receiver: &mut Observations, enough: usize) -> (Vec<Gpu>, Vec<GpuSample>, Vec<GpuProcesses>) {
        let (mut gpus, mut samples, mut lists) = (Vec::new(), Vec::new(), Vec::new());
        let deadline = Instant::now() + Duration::from_secs(60);
        while samples.len() < enough || lists.len() < enough {
            assert!(Instant::now() < deadline, "{} samples, {} lists", samples.len(), lists.len());
            match receiver.try_recv() {
                Ok(Observation::Fact(Fact::Gpus(list))) => gpus = list,
                Ok(Observation::Sample(Sample::Gpu(_, sample))) => samples.push(*sample),
                Ok(Observation::Sample(Sample::GpuProcesses(list))) => lists.push(list),
                Ok(Observation::Fact(Fact::GpuSource(state))) => assert!(state.simulated(), "{state:?}"),
                // On a busy machine this thread takes the samples too late, and the queue drops some.
                Ok(Observation::Event(SourceEvent::Dropped(_))) => {}
                Ok(other) => panic!("{other:?}"),
                Err(TryRecvError::Empty) => std::thread::sleep(Duration::from_millis(1)),
                Err(TryRecvError::Disconnected) => panic!("the thread ended"),
            }
        }
        (gpus, samples, lists)
    }

    #[test]
    fn eight_simulated_gpus_report_until_they_are_stopped() {
        let (reporter, mut receiver) = Reporter::channel();
        let stop = CancellationToken::new();
        let thread = spawn(settings("h100", 8), reporter, stop.clone()).unwrap();
        let (gpus, samples, _) = watch(&mut receiver, 24);
        assert_eq!(gpus.len(), 8);
        assert!(gpus.iter().all(|gpu| gpu.links.len() == 7 && gpu.model.contains("H100")));
        assert!(samples.iter().all(|sample| sample.memory_used.value().is_some() && sample.power.value().is_some()));
        stop.cancel();
        thread.join().unwrap();
    }

    #[test]
    fn simulated_uuids_differ_between_nodes_and_stay_after_a_restart() {
        let uuids = |node: &str| {
            let (reporter, mut receiver) = Reporter::channel();
            let stop = CancellationToken::new();
            let settings = Settings { node: NodeName::parse(node).unwrap(), ..settings("H100", 4) };
            spawn(settings, reporter, stop.clone()).unwrap();
            let (gpus, ..) = watch(&mut receiver, 4);
            stop.cancel();
            gpus.into_iter().map(|gpu| gpu.uuid).collect::<Vec<_>>()
        };
        let first = uuids("n1");
        assert_eq!(first, uuids("n1"));
        assert!(uuids("n2").iter().all(|uuid| !first.contains(uuid)));
    }

    #[test]
    fn simulated_deadlines_stay_on_the_grid_and_missed_ones_are_skipped() {
        let begin = Instant::now();
        let second = Duration::from_secs(1);
        assert_eq!(after(begin, second, begin + Duration::from_millis(300)), begin + second);
        assert_eq!(after(begin, second, begin + 5 * second), begin + 6 * second);
    }
}
