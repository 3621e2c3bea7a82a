//! Tests of the supervisor's checks, with given times instead of a clock.

use super::*;
use crate::nvml::gate::DriverGate;
use crate::nvml::settings::DriverPatience;
use crate::report::Observations;
use crate::roots::HostRoots;
use model::observation::Observation;

/// A thread in a call that returns when the test says so.
fn in_a_call(pulse: &Arc<Heartbeat>, gpu: Option<&GpuKey>) -> JoinHandle<()> {
    let (pulse, gpu) = (Arc::clone(pulse), gpu.cloned());
    let (tell, begun) = mpsc::channel();
    let thread = std::thread::spawn(move || {
        pulse.during(gpu.as_ref(), || {
            tell.send(()).unwrap();
            while !pulse.dismissed() {
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
    let (reporter, told) = Reporter::channel();
    (Supervisor::new(settings, reporter, CancellationToken::new()), told)
}

fn failures(told: &mut Observations) -> usize {
    let told = std::iter::from_fn(|| told.try_recv().ok());
    told.filter(|told| matches!(told, Observation::Event(SourceEvent::Trouble(ErrorCounter::NvmlFailed)))).count()
}

#[test]
fn an_event_thread_that_panics_is_counted_once_and_started_again() {
    let folder = tempfile::tempdir().unwrap();
    let fake = lab::scenario::FakeNvml::install(folder.path()).unwrap();
    fake.write(&lab::scenario::Scenario::default()).unwrap();
    let (mut supervisor, mut told) = supervisor();
    let nvml = Nvml::builder().lib_path(fake.library().as_os_str()).init().unwrap();
    supervisor.session = Some(Box::leak(Box::new(nvml)));
    let (sender, _lists) = mpsc::channel();
    supervisor.lists = Some(sender);
    let pulse = Arc::clone(&supervisor.events);
    let thread = std::thread::spawn(move || pulse.during(None, || panic!("on purpose, in a call")));
    while !thread.is_finished() {
        std::thread::yield_now();
    }
    supervisor.listener = Some(thread);
    let now = monotonic();
    // A new list of GPUs comes before the supervisor has checked.
    supervisor.hear(Message::Known(Vec::new()));
    supervisor.look_at_events(now);
    assert!(supervisor.listener.is_none() && supervisor.lists.is_none());
    supervisor.look_at_events(now.after(Duration::from_secs(60)));
    assert!(supervisor.listener.as_ref().is_some_and(|thread| !thread.is_finished()), "started again");
    // At the real time: the thread may be in its first call already, which would look a minute old at the time above.
    supervisor.look_at_events(monotonic());
    assert!(!supervisor.deaf, "the call that panicked does not hang");
    assert_eq!(failures(&mut told), 1);
    supervisor.stop.cancel();
    drop(supervisor.lists.take());
    supervisor.listener.take().unwrap().join().unwrap();
}

/// A supervisor with one poller, which is in a call about this GPU, and the times just before and after the call began.
fn with_a_call(gpu: Option<&GpuKey>) -> (Supervisor, Observations, [Monotonic; 2]) {
    let (mut supervisor, told) = supervisor();
    let pulse = Arc::new(Heartbeat::default());
    let before = monotonic();
    let thread = in_a_call(&pulse, gpu);
    let after = monotonic();
    supervisor.seats.push(Seat { pulse, thread, stuck: None, counted: false });
    (supervisor, told, [before, after])
}

fn end(supervisor: Supervisor) {
    for seat in supervisor.seats {
        seat.pulse.dismiss();
        seat.thread.thread().unpark();
        seat.thread.join().unwrap();
    }
}

/// Promise 11 in docs/specification.md, with given times instead of a clock.
#[test]
fn a_call_stalls_at_the_first_check_after_two_seconds_and_hangs_at_the_first_after_thirty() {
    let patience = DriverPatience::default();
    assert_eq!((patience.absent_after, patience.hang_after), (Duration::from_secs(2), Duration::from_secs(30)));
    assert_eq!(patience.open_hangs_after, Duration::from_secs(60));
    assert_eq!(tick(patience.absent_after), Duration::from_millis(500), "so soon is the next look");
    let uuid = GpuUuid::parse("GPU-1").unwrap();
    let gpu = GpuKey::Uuid(uuid.clone());
    let (mut supervisor, mut told, [before, after]) = with_a_call(Some(&gpu));
    let mut look = |at: Monotonic| {
        supervisor.look(at);
        supervisor.stuck()
    };
    let [stalls, hangs] = [false, true].map(|hangs| Stuck { gpu: Some(gpu.clone()), hangs });
    assert_eq!(look(before.after(patience.absent_after)), [], "not before");
    assert_eq!(
        look(Monotonic(after.after(patience.absent_after).0 + 1)),
        std::slice::from_ref(&stalls),
        "at the first look"
    );
    assert_eq!(look(before.after(patience.hang_after)), [stalls], "a stall is no hang");
    assert!(stalled(&mut told).is_empty(), "nobody else was answered either");
    assert_eq!(look(Monotonic(after.after(patience.hang_after).0 + 1)), [hangs], "at the first look");
    // No replacement is possible here, so the whole source hangs at that moment, not before.
    let told: Vec<Observation> = std::iter::from_fn(|| told.try_recv().ok()).collect();
    let [
        Observation::Event(SourceEvent::GpuStalled(counted)),
        Observation::Fact(Fact::GpuSource(GpuSourceState::Hanging)),
    ] = &told[..]
    else {
        panic!("{told:?}")
    };
    assert_eq!(*counted, uuid);
    end(supervisor);
}

/// The GPUs against which calls have counted so far; nothing else but failures was reported.
fn stalled(told: &mut Observations) -> Vec<GpuUuid> {
    let told = std::iter::from_fn(|| told.try_recv().ok());
    told.filter_map(|told| match told {
        Observation::Event(SourceEvent::GpuStalled(gpu)) => Some(gpu),
        Observation::Event(SourceEvent::Trouble(ErrorCounter::NvmlFailed)) => None,
        other => panic!("{other:?}"),
    })
    .collect()
}

#[test]
fn a_stall_counts_once_for_its_gpu_if_other_calls_are_answered() {
    let uuid = GpuUuid::parse("GPU-1").unwrap();
    let (mut supervisor, mut told, [before, after]) = with_a_call(Some(&GpuKey::Uuid(uuid.clone())));
    let (pulse, stop) = (Arc::<Heartbeat>::default(), Arc::<Heartbeat>::default());
    let thread = in_a_call(&stop, None);
    supervisor.seats.push(Seat { pulse: Arc::clone(&pulse), thread, stuck: None, counted: false });
    supervisor.look(before.after(Duration::from_secs(4)));
    assert_eq!(stalled(&mut told), [], "the others might be late as well");
    // A replacement without a newer answer, as when all callers wait for a busy driver.
    for answered in [None, Some(before.after(Duration::from_secs(1)))] {
        answered.inspect(|began| pulse.was_answered(*began));
        supervisor.look(after.after(Duration::from_secs(6)));
        assert_eq!(stalled(&mut told), [], "{answered:?}: no call began and returned while this one was late");
    }
    pulse.was_answered(after.after(Duration::from_secs(3)));
    for seconds in [7, 8, 31] {
        supervisor.look(after.after(Duration::from_secs(seconds)));
    }
    assert_eq!(stalled(&mut told), [uuid]);
    stop.dismiss();
    end(supervisor);
}

#[test]
fn a_stalled_call_about_no_gpu_counts_for_no_gpu() {
    let (mut supervisor, mut told, [_, after]) = with_a_call(None);
    supervisor.look(after.after(Duration::from_secs(29)));
    assert_eq!((supervisor.stuck(), supervisor.reach), (vec![Stuck { gpu: None, hangs: false }], Reach::Stalls));
    assert!(
        std::iter::from_fn(|| told.try_recv().ok())
            .all(|told| matches!(told, Observation::Event(SourceEvent::Trouble(_))))
    );
    end(supervisor);
}
