//! Tests of the supervisor's checks, with given times instead of a clock.

use super::*;
use crate::nvml::gate::DriverGate;
use crate::nvml::settings::DriverPatience;
use crate::report::Observations;
use crate::roots::HostRoots;
use model::observation::Observation;

/// A thread in a call that returns when the test dismisses its heartbeat.
fn in_a_call(heartbeat: &Arc<Heartbeat>, gpu: Option<&GpuKey>) -> JoinHandle<()> {
    let (heartbeat, gpu) = (Arc::clone(heartbeat), gpu.cloned());
    let (in_call, begun) = mpsc::channel();
    let thread = std::thread::spawn(move || {
        heartbeat.during(gpu.as_ref(), || {
            in_call.send(()).unwrap();
            while !heartbeat.dismissed() {
                std::thread::park();
            }
        });
    });
    begun.recv().unwrap();
    thread
}

fn supervisor() -> (Supervisor, Observations) {
    let settings = Settings {
        library: None,
        roots: HostRoots::default(),
        period: Duration::from_secs(1),
        process_period: Duration::from_secs(5),
        patience: DriverPatience::default(),
        kernel_log: None,
        gate: DriverGate::default(),
    };
    let (reporter, observations) = Reporter::channel();
    (Supervisor::new(settings, reporter, CancellationToken::new()), observations)
}

fn failures(observations: &mut Observations) -> usize {
    let observations = std::iter::from_fn(|| observations.try_recv().ok());
    observations.filter(|one| matches!(one, Observation::Event(SourceEvent::Trouble(ErrorCounter::NvmlFailed)))).count()
}

#[test]
fn an_event_thread_that_panics_is_counted_once_and_started_again() {
    let folder = tempfile::tempdir().unwrap();
    let fake = lab::scenario::FakeNvml::install(folder.path()).unwrap();
    fake.write(&lab::scenario::Scenario::default()).unwrap();
    let (mut supervisor, mut observations) = supervisor();
    let nvml = Nvml::builder().lib_path(fake.library().as_os_str()).init().unwrap();
    supervisor.session = Some(Box::leak(Box::new(nvml)));
    let (sender, _lists) = mpsc::channel();
    supervisor.lists = Some(sender);
    let heartbeat = Arc::clone(&supervisor.events);
    let thread = std::thread::spawn(move || heartbeat.during(None, || panic!("on purpose, in a call")));
    while !thread.is_finished() {
        std::thread::yield_now();
    }
    supervisor.event_thread = Some(thread);
    let now = monotonic();
    // A new list of GPUs comes before the supervisor has checked.
    supervisor.handle(Message::Inventory(Vec::new()));
    supervisor.check_events(now);
    assert!(supervisor.event_thread.is_none() && supervisor.lists.is_none());
    supervisor.check_events(now.after(Duration::from_secs(60)));
    assert!(supervisor.event_thread.as_ref().is_some_and(|thread| !thread.is_finished()), "started again");
    // At the real time: the thread may be in its first call already, which would look a minute old at the time above.
    supervisor.check_events(monotonic());
    assert!(!supervisor.events_hang, "the call that panicked does not hang");
    assert_eq!(failures(&mut observations), 1);
    supervisor.stop.cancel();
    drop(supervisor.lists.take());
    supervisor.event_thread.take().unwrap().join().unwrap();
}

/// A supervisor with one poller, which is in a call about this GPU, and the times just before and after the call began.
fn with_a_call(gpu: Option<&GpuKey>) -> (Supervisor, Observations, [Monotonic; 2]) {
    let (mut supervisor, observations) = supervisor();
    let heartbeat = Arc::new(Heartbeat::default());
    let before = monotonic();
    let thread = in_a_call(&heartbeat, gpu);
    let after = monotonic();
    supervisor.pollers.push(PollerThread { heartbeat, thread, stuck: None, counted: false });
    (supervisor, observations, [before, after])
}

fn end(supervisor: Supervisor) {
    for poller in supervisor.pollers {
        poller.heartbeat.dismiss();
        poller.thread.thread().unpark();
        poller.thread.join().unwrap();
    }
}

/// Promise 11 in docs/specification.md, with given times instead of a clock.
#[test]
fn a_call_stalls_at_the_first_check_after_two_seconds_and_hangs_at_the_first_after_thirty() {
    let patience = DriverPatience::default();
    assert_eq!((patience.absent_after, patience.hang_after), (Duration::from_secs(2), Duration::from_secs(30)));
    assert_eq!(patience.open_hangs_after, Duration::from_secs(60));
    assert_eq!(tick(patience.absent_after), Duration::from_millis(500), "the time to the next check");
    let uuid = GpuUuid::parse("GPU-1").unwrap();
    let gpu = GpuKey::Uuid(uuid.clone());
    let (mut supervisor, mut observations, [before, after]) = with_a_call(Some(&gpu));
    let mut check = |at: Monotonic| {
        supervisor.check(at);
        supervisor.stuck()
    };
    let [stalls, hangs] = [false, true].map(|hangs| Stuck { gpu: Some(gpu.clone()), hangs });
    assert_eq!(check(before.after(patience.absent_after)), [], "not before");
    assert_eq!(
        check(Monotonic(after.after(patience.absent_after).0 + 1)),
        std::slice::from_ref(&stalls),
        "at the first check"
    );
    assert_eq!(check(before.after(patience.hang_after)), [stalls], "a stall is not a hang");
    assert!(stalled(&mut observations).is_empty(), "no other call was answered either");
    assert_eq!(check(Monotonic(after.after(patience.hang_after).0 + 1)), [hangs], "at the first check");
    // No replacement is possible here, so the whole source hangs at that moment, not before.
    let observations: Vec<Observation> = std::iter::from_fn(|| observations.try_recv().ok()).collect();
    let [
        Observation::Event(SourceEvent::GpuStalled(counted)),
        Observation::Fact(Fact::GpuSource(GpuSourceState::Hanging)),
    ] = &observations[..]
    else {
        panic!("{observations:?}")
    };
    assert_eq!(*counted, uuid);
    end(supervisor);
}

/// The GPUs reported as stalled so far. Apart from failures, nothing else may have been reported.
fn stalled(observations: &mut Observations) -> Vec<GpuUuid> {
    let observations = std::iter::from_fn(|| observations.try_recv().ok());
    observations
        .filter_map(|one| match one {
            Observation::Event(SourceEvent::GpuStalled(gpu)) => Some(gpu),
            Observation::Event(SourceEvent::Trouble(ErrorCounter::NvmlFailed)) => None,
            other => panic!("{other:?}"),
        })
        .collect()
}

#[test]
fn a_stall_counts_once_for_its_gpu_if_other_calls_are_answered() {
    let uuid = GpuUuid::parse("GPU-1").unwrap();
    let (mut supervisor, mut observations, [before, after]) = with_a_call(Some(&GpuKey::Uuid(uuid.clone())));
    let (heartbeat, stop) = (Arc::<Heartbeat>::default(), Arc::<Heartbeat>::default());
    let thread = in_a_call(&stop, None);
    supervisor.pollers.push(PollerThread { heartbeat: Arc::clone(&heartbeat), thread, stuck: None, counted: false });
    supervisor.check(before.after(Duration::from_secs(4)));
    assert_eq!(stalled(&mut observations), [], "the others might be late as well");
    // A replacement without a newer answer, as when all callers wait for a busy driver.
    for answered in [None, Some(before.after(Duration::from_secs(1)))] {
        answered.inspect(|began| heartbeat.was_answered(*began));
        supervisor.check(after.after(Duration::from_secs(6)));
        assert_eq!(stalled(&mut observations), [], "{answered:?}: no call began and returned while this one was late");
    }
    heartbeat.was_answered(after.after(Duration::from_secs(3)));
    for seconds in [7, 8, 31] {
        supervisor.check(after.after(Duration::from_secs(seconds)));
    }
    assert_eq!(stalled(&mut observations), [uuid]);
    stop.dismiss();
    end(supervisor);
}

#[test]
fn a_stalled_call_about_no_gpu_counts_for_no_gpu() {
    let (mut supervisor, mut observations, [_, after]) = with_a_call(None);
    supervisor.check(after.after(Duration::from_secs(29)));
    assert_eq!((supervisor.stuck(), supervisor.reach), (vec![Stuck { gpu: None, hangs: false }], Reach::Stalls));
    assert!(
        std::iter::from_fn(|| observations.try_recv().ok())
            .all(|one| matches!(one, Observation::Event(SourceEvent::Trouble(_))))
    );
    end(supervisor);
}
