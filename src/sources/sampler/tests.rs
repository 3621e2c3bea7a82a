//! Tests of the whole sampler on this machine.

use super::*;
use crate::report::Observations;
use model::observation::{Observation, SourceEvent};
use std::time::Instant;
use tokio::sync::mpsc::error::TryRecvError;

fn settings() -> Settings {
    let (period, slow_period) = (Duration::from_millis(20), Duration::from_millis(40));
    Settings { roots: HostRoots::default(), period, slow_period }
}

/// Waits for the next observation outside of a runtime.
fn next(queue: &mut Observations) -> Observation {
    loop {
        match queue.try_recv() {
            Ok(observation) => return observation,
            Err(TryRecvError::Empty) => std::thread::sleep(Duration::from_millis(5)),
            Err(TryRecvError::Disconnected) => panic!("the thread has ended"),
        }
    }
}

#[test]
fn the_sampler_thread_reports_the_host_and_ends_at_once() {
    let (reporter, mut queue) = Reporter::channel();
    let stop = CancellationToken::new();
    let thread = spawn(settings(), reporter, stop.clone()).unwrap();
    assert_eq!(thread.thread().name(), Some("sampler"));
    let (mut facts, mut hosts, mut passes, mut processes) = (0, 0, 0, 0);
    while hosts < 3 || passes < 3 || processes < 1 {
        match next(&mut queue) {
            Observation::Fact(Fact::HostFacts(found)) => {
                assert!(!found.kernel.is_empty());
                facts += 1;
            }
            Observation::Sample(Sample::Host(sample)) => {
                assert!(sample.cpu_idle.get().is_some());
                hosts += 1;
            }
            Observation::Sample(Sample::Cgroups(_)) => passes += 1,
            Observation::Sample(Sample::Processes(pass)) => {
                let own = pass.processes.iter().find(|process| process.key.pid == std::process::id());
                assert!(own.is_some_and(|own| own.rss.0 > 0), "{} processes", pass.total);
                processes += 1;
            }
            _ => {}
        }
    }
    assert_eq!(facts, 1);
    let began = Instant::now();
    stop.cancel();
    thread.join().unwrap();
    assert!(began.elapsed() < Duration::from_secs(30));
}

#[test]
fn unreadable_roots_are_reported_as_absent() {
    let none = tempfile::tempdir().unwrap();
    let at = |name| none.path().join(name);
    let roots = HostRoots { procfs: at("proc"), cgroup: at("cgroup"), sysfs: at("sys") };
    let (reporter, mut queue) = Reporter::channel();
    let mut sampler = Sampler::new(Settings { roots, ..settings() }, 10);
    assert_eq!(sampler.facts().cgroups.absence(), Some(Absence::NoSuchFile));
    sampler.pass(3, &reporter);
    let mut samples = std::iter::from_fn(|| queue.try_recv().ok()).filter(|one| matches!(one, Observation::Sample(_)));
    let Some(Observation::Sample(Sample::Cgroups(pass))) = samples.next() else { panic!() };
    assert_eq!((pass.reports.len(), pass.missed), (0, 3));
    let Some(Observation::Sample(Sample::Host(host))) = samples.next() else { panic!() };
    assert_eq!(host.cpu_user.absence(), Some(Absence::NoSuchFile));
}

#[test]
fn a_full_queue_is_counted_and_does_not_block() {
    let (reporter, mut queue) = Reporter::channel();
    for _ in 0..crate::report::QUEUE {
        reporter.sample(Sample::Host(model::host::HostSample::default()));
    }
    let mut sampler = Sampler::new(settings(), 10);
    sampler.pass(0, &reporter);
    let observations: Vec<Observation> = std::iter::from_fn(|| queue.try_recv().ok()).collect();
    let Observation::Event(SourceEvent::Dropped(dropped)) = observations[0] else { panic!("{:?}", observations[0]) };
    assert!((2..=3).contains(&dropped), "{dropped}: cgroups, the host, and processes if they were due");
    let samples = observations.iter().filter(|one| matches!(one, Observation::Sample(_))).count();
    assert_eq!(samples, crate::report::QUEUE);
}

/// The test passes the number of each pass as its number of missed deadlines, so that the reports can be told apart.
#[test]
fn a_subscriber_sees_every_pass_in_order_while_an_owner_that_never_reads_loses_them() {
    let none = tempfile::tempdir().unwrap();
    let at = |name| none.path().join(name);
    let roots = HostRoots { procfs: at("proc"), cgroup: at("cgroup"), sysfs: at("sys") };
    let (reporter, mut queue) = Reporter::channel();
    let series = reporter.cgroup_series().unwrap();
    let mut sampler = Sampler::new(Settings { roots, ..settings() }, 10);
    // Each pass reports at least two samples, cgroups and host, so half of these passes fill the queue.
    let passes = u32::try_from(crate::report::QUEUE).unwrap();
    (0..passes).for_each(|number| sampler.pass(number, &reporter));
    let part = series.take();
    let seen: Vec<u32> = part.samples.iter().map(|pass| pass.missed).collect();
    assert_eq!((seen, part.missed), ((0..passes).collect(), 0));
    let told: Vec<Observation> = std::iter::from_fn(|| queue.try_recv().ok()).collect();
    let passes_of_owner = told.iter().filter(|told| matches!(told, Observation::Sample(Sample::Cgroups(_)))).count();
    assert!(passes_of_owner <= crate::report::QUEUE / 2, "{passes_of_owner} passes had room in the queue");
}
