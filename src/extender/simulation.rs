//! A deterministic simulation of a whole cluster. The extenders in it run the product's own code. All random choices
//! follow from one seed, and all times are simulated.
//!
//! ```text
//!   extender, extender ──requests──▶ network ──▶ two API servers with caches ──▶ etcd
//!     the product's tasks,            lost, late, refused,       lists, watches,      ▲
//!     each on its own clock           denied                     restores             │
//!   kube-scheduler ──questions──▶ the extenders' verbs       kubelets with agents ────┘
//!   agents ──streams: late, broken, renewed──▶ the extenders' agent streams
//! ```
//!
//! The simulation may pause or drop a process between any two steps of its tasks. It checks the invariants after each
//! step. From time to time it ends all faults, waits until nothing changes any more, and checks what must hold then.
//!
//! What must never happen here: a result that depends on anything but the seed; a message that a real API server would
//! never send.

mod random;
mod weather;
mod object;
mod etcd;
mod network;
mod api_server;
mod process;
mod machine;
mod agent_report;
mod stream_checks;
mod strangers;
mod reporter;
mod kube_scheduler;
mod preemption;
mod invariants;
mod settled;
mod trouble;
mod world;
mod settling;
mod scenarios;

use super::planted::{PlantedMistake, plant};
use parking_lot::Mutex;
use random::Random;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use weather::SECOND;
use world::World;

/// The environment variable with the seed of one run.
const SEED: &str = "GPU_STEWARD_SEED";
/// Number of times that everything settles in one run.
const ROUNDS: u64 = 2;

/// The least number of steps in which new seeds must break nothing. Two free cores take about 30 million in two minutes.
const STEPS: u64 = 10_000_000;
/// The largest number of steps in which a planted mistake must be found. Most are found within a million; the rarest took
/// 44 million in one run, so a run that finds nothing in this many is no accident.
const STEPS_TO_A_MISTAKE: u64 = 300_000_000;

/// A completed run: the number of its steps, and the hash of all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Ran {
    events: u64,
    trace: u64,
}

/// A seed, the invariant that it has broken, and the number of steps of the seeds before it.
#[derive(Clone, Debug)]
struct Broken {
    seed: u64,
    why: String,
    before: u64,
}

/// Runs one seed.
fn run(seed: u64) -> Result<Ran, Broken> {
    play(&mut World::new(seed), seed)
}

fn play(world: &mut World, seed: u64) -> Result<Ran, Broken> {
    let mut spans = Random::new(seed ^ 1);
    for round in 0..ROUNDS {
        let span = spans.between(15, 90) * SECOND;
        world.run_until(world.now + span);
        let settled = match world.failed.take() {
            Some(why) => Err(why),
            None => world.settle(),
        };
        if let Err(why) = settled {
            let at = world.now / (SECOND / 1000);
            return Err(Broken {
                seed,
                why: format!("{why} (round {round}, {at} ms, {} steps)", world.events),
                before: 0,
            });
        }
        world.stir();
    }
    Ok(Ran { events: world.events, trace: world.trace })
}

/// Runs seeds from `first` on, on all processors, until a seed breaks an invariant or `enough` accepts the number of
/// steps. Returns the number of steps.
fn search(first: u64, mistake: Option<PlantedMistake>, enough: &(dyn Fn(u64) -> bool + Sync)) -> Result<u64, Broken> {
    let (next, events, broken) = (AtomicU64::new(first), AtomicU64::new(0), Mutex::new(None::<Broken>));
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                plant(mistake);
                while !enough(events.load(Ordering::Relaxed)) && broken.lock().is_none() {
                    match run(next.fetch_add(1, Ordering::Relaxed)) {
                        Ok(ran) => drop(events.fetch_add(ran.events, Ordering::Relaxed)),
                        Err(found) => {
                            *broken.lock() = Some(Broken { before: events.load(Ordering::Relaxed), ..found });
                        }
                    }
                }
                plant(None);
            });
        }
    });
    match broken.into_inner() {
        None => Ok(events.into_inner()),
        Some(broken) => Err(broken),
    }
}

/// A seed that no earlier run had.
fn new_seed() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    // A run counts up from this number. The factor keeps the seeds of runs that begin in different seconds apart.
    now.as_secs() * 1_000_000
}

fn panic_with(broken: &Broken) -> ! {
    let Broken { seed, why, .. } = broken;
    panic!("seed {seed}: {why}\nagain: {SEED}={seed} tests/run simulate")
}

#[test]
fn two_runs_of_one_seed_are_equal() {
    for seed in 0..2 {
        let [first, second] = [run(seed), run(seed)].map(|ran| ran.unwrap_or_else(|broken| panic_with(&broken)));
        assert_eq!(first, second, "seed {seed}");
    }
}

#[test]
fn the_first_seeds_break_nothing() {
    let events = search(0, None, &|events| events > 300_000).unwrap_or_else(|broken| panic_with(&broken));
    assert!(events > 300_000);
}

#[test]
#[ignore = "takes minutes of simulation: tests/run simulate"]
fn new_seeds_break_nothing() {
    if let Ok(seed) = std::env::var(SEED) {
        let seed = seed.parse().unwrap_or_else(|why| panic!("{SEED} is not a number: {why}"));
        let mut world = World::new(seed);
        world.api.etcd.journal = Some(Vec::new());
        let ran = play(&mut world, seed).unwrap_or_else(|broken| {
            let journal = world.api.etcd.journal.take().unwrap_or_default();
            println!("{}", journal.join("\n"));
            panic_with(&broken)
        });
        println!("seed {seed}: {ran:?}");
        return;
    }
    let (first, begun) = (new_seed(), Instant::now());
    let long = std::env::var_os("GPU_STEWARD_LONG").is_some();
    let time = Duration::from_secs(if long { 600 } else { 120 });
    let enough = |events| events >= STEPS && begun.elapsed() >= time;
    let events = search(first, None, &enough).unwrap_or_else(|broken| panic_with(&broken));
    println!("{events} steps from seed {first} on broke nothing");
}

/// Each planted mistake is found, and the seed that finds it breaks nothing without the mistake.
#[test]
#[ignore = "takes minutes of simulation: tests/run --long simulate"]
fn each_planted_mistake_is_found() {
    let mut missed = Vec::new();
    // The newest mistakes first: they are found least reliably.
    for mistake in PlantedMistake::ALL.into_iter().rev() {
        let first = new_seed();
        match search(first, Some(mistake), &|events| events >= STEPS_TO_A_MISTAKE) {
            Ok(events) => missed.push(format!("{mistake:?}: {events} steps from seed {first} on break nothing")),
            Err(Broken { seed, why, before }) => {
                println!("{mistake:?} is found after {before} steps by seed {seed}: {why}");
                if let Err(broken) = run(seed) {
                    panic_with(&broken);
                }
            }
        }
    }
    assert!(missed.is_empty(), "{missed:#?}");
}
