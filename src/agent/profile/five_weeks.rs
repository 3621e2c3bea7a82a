//! Five weeks of a GPU in virtual time, through the recorder into the real file, with a kill in the middle of a write.

use super::keeper::HistoryKeeper;
use effects::profile_store::{KeptClock, ProfileStore};
use model::Reading;
use model::gpu::GpuSample;
use model::id::GpuUuid;
use model::stored_history::{HistoryKey, HistoryStep, StoredTier};
use model::time::{Monotonic, Now, WallTime};
use model::unit::{Bytes, Percent, Watts};
use model::workload_profile::{HistoryQuery, ProfiledQuantity, ProfiledSubject, WorkloadProfile};
use profiles::anchor::Anchor;
use profiles::recorder::{Analysis, Periods, StoredRange};
use profiles::schedule::AnalysisKind;
use profiles::{Recorder, RecorderEvent};
use rustix::process::{Signal, getpid, kill_process};
use std::ops::Range;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

const MINUTES: u64 = 35 * 1440;
const QUARTERS: u64 = MINUTES / 15;
/// The agent writes every five minutes, here in the last one of five.
const WRITTEN: u64 = 704 + 17 * 1440;
/// The write in this minute is killed. A quarter of an hour has ended since the write before.
const KILLED: u64 = WRITTEN + 5;
/// Names the folder for the child process.
const CHILD: &str = "PROFILE_FIVE_WEEKS_CHILD";
/// A Monday at 00:00.
const MONDAY: u64 = 1_800_000_000_000_000 / 604_800_000_000 * 604_800_000_000 + 4 * 86_400_000_000;

/// The reading of a minute, 40 s after its begin.
fn now(minute: u64) -> Now {
    let second = minute * 60 + 40;
    let monotonic = Monotonic(1_000_000_000_000 + second * 1_000_000_000);
    Now { monotonic, wall: WallTime(MONDAY + second * 1_000_000) }
}

fn recorder() -> Recorder {
    let minute = Duration::from_secs(60);
    Recorder::new(Periods { period: minute, slow: minute, lists: minute }, None)
}

fn keeper(folder: &Path, recorder: &mut Recorder, now: Now) -> HistoryKeeper {
    let mut keeper = HistoryKeeper::new(folder.to_owned(), Path::new("/proc"));
    keeper.open(recorder, now);
    assert_eq!(keeper.state().1, None, "the file is open");
    keeper
}

/// Two loads: one that is high from 8:00 to 18:00 each day, and one that is low on Saturday and Sunday.
fn loads(minute: u64) -> (f64, f64) {
    let (day, hour) = (minute / 1440 % 7, minute / 60 % 24);
    // splitmix64: multiples of one number would have a period of their own.
    let mixed = minute.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    #[expect(clippy::cast_precision_loss, reason = "a small number")]
    let noise = (mixed >> 54) as f64 / 1024.0 * 6.0;
    let daily = if (8..18).contains(&hour) { 80.0 } else { 10.0 };
    let weekly = if day < 5 { 70.0 } else { 10.0 };
    (daily + noise, weekly + noise)
}

fn read_gpu(recorder: &mut Recorder, minute: u64) {
    let at = now(minute).monotonic;
    let (daily, weekly) = loads(minute);
    let sample = GpuSample {
        utilization: Reading::Measured(Percent(daily), at),
        memory_copy: Reading::Measured(Percent(weekly), at),
        memory_used: Reading::Measured(Bytes(1 << 30), at),
        power: Reading::Measured(Watts(100.0 + daily), at),
        ..GpuSample::default()
    };
    recorder.apply(RecorderEvent::Gpu(&GpuUuid::parse("GPU-1").unwrap(), &sample), at);
    recorder.close_steps(at);
}

/// Reads the GPU once a minute, and writes every five minutes.
fn play(recorder: &mut Recorder, keeper: &mut HistoryKeeper, minutes: Range<u64>) {
    for minute in minutes {
        read_gpu(recorder, minute);
        if minute % 5 == WRITTEN % 5 {
            keeper.write(recorder, now(minute).monotonic);
            assert_eq!(recorder.unwritten().count(), 0, "{:?}", keeper.state());
        }
    }
}

/// In the child process of the test below: two weeks and a half, and a kill in the middle of a write. Elsewhere it does nothing.
#[test]
fn child_that_is_killed_in_the_middle_of_a_write() {
    let Some(folder) = std::env::var_os(CHILD) else { return };
    let mut recorder = recorder();
    let mut keeper = keeper(Path::new(&folder), &mut recorder, now(0));
    play(&mut recorder, &mut keeper, 0..KILLED);
    drop(keeper);
    read_gpu(&mut recorder, KILLED);
    let boot = sources::boot::boot_id(Path::new("/proc")).unwrap();
    let clock = KeptClock { boot, pair: recorder.anchor().unwrap().pair() };
    let middle = recorder.unwritten().count() / 2;
    let dies = || {
        recorder.unwritten().enumerate().map(|(number, steps)| {
            if number == middle {
                kill_process(getpid(), Signal::KILL).unwrap();
            }
            steps
        })
    };
    let mut store = ProfileStore::open(Path::new(&folder)).unwrap().store;
    store.write(dies, &clock, now(KILLED).wall).unwrap();
}

fn key(quantity: ProfiledQuantity) -> HistoryKey {
    HistoryKey { subject: ProfiledSubject::Gpu(GpuUuid::parse("GPU-1").unwrap()), quantity }
}

/// The steps in the file that begin in these minutes, with their numbers since the first minute.
fn steps(
    keeper: &mut HistoryKeeper,
    quantity: ProfiledQuantity,
    tier: StoredTier,
    minutes: &Range<u64>,
) -> Vec<HistoryStep> {
    let first = tier.index_of(WallTime(MONDAY));
    let length = tier.step().as_secs() / 60;
    let steps = first + minutes.start / length..first + minutes.end / length;
    let kept = keeper.read(&StoredRange { key: key(quantity), tier, steps }).unwrap();
    kept.into_iter().map(|step| HistoryStep { index: step.index - first, ..step }).collect()
}

/// The numbers that these steps leave out.
fn missing(steps: &[HistoryStep], all: Range<u64>) -> Vec<u64> {
    assert!(steps.windows(2).all(|pair| pair[0].index < pair[1].index), "each step once");
    all.filter(|number| steps.iter().all(|step| step.index != *number)).collect()
}

/// The profile at the end of the five weeks.
fn analyzed(
    recorder: &mut Recorder,
    keeper: &mut HistoryKeeper,
    quantity: ProfiledQuantity,
    end: Now,
) -> WorkloadProfile {
    for kind in [AnalysisKind::Near, AnalysisKind::Minutes, AnalysisKind::Quarters] {
        let analysis = Analysis { key: key(quantity), kind };
        let stored = recorder.stored_range(&analysis, end.monotonic).map(|range| keeper.read(&range).unwrap());
        recorder.analyze(&analysis, &stored.unwrap_or_default(), end);
    }
    let profiles = recorder.profiles(end).profiles;
    profiles.into_iter().find(|one| one.quantity == quantity).unwrap()
}

#[test]
fn five_weeks_show_the_day_and_the_week_and_nothing_counts_twice_after_a_kill_in_the_middle_of_a_write() {
    use ProfiledQuantity::{MemoryCopy, Utilization};
    let folder = tempfile::tempdir().unwrap();
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "profile::five_weeks::child_that_is_killed_in_the_middle_of_a_write"])
        .env(CHILD, folder.path())
        .stdout(Stdio::null())
        .status();
    assert_eq!(child.unwrap().signal(), Some(Signal::KILL.as_raw()));

    let mut recorder = recorder();
    let mut keeper = keeper(folder.path(), &mut recorder, now(KILLED));
    assert_eq!(recorder.anchor(), Anchor::new(now(0)), "the pair of this boot");
    let last_day = KILLED - 1000..KILLED + 101;
    play(&mut recorder, &mut keeper, KILLED + 1..last_day.end + 5);
    for quantity in [Utilization, MemoryCopy] {
        let minutes = steps(&mut keeper, quantity, StoredTier::Minute, &last_day);
        let lost: Vec<u64> = (WRITTEN..=KILLED).collect();
        assert_eq!(missing(&minutes, last_day.clone()), lost, "what was not written before the kill");
        for step in minutes {
            let (daily, weekly) = loads(step.index);
            let read = if quantity == Utilization { daily } else { weekly };
            assert!((step.value.mean - read).abs() < 0.05, "{step:?} instead of {read}");
        }
    }

    play(&mut recorder, &mut keeper, last_day.end + 5..MINUTES + 5);
    let end = now(MINUTES + 5);
    recorder.close_steps(end.monotonic);
    for (quantity, days) in [(Utilization, 1.0), (MemoryCopy, 7.0)] {
        let quarters = steps(&mut keeper, quantity, StoredTier::Quarter, &(0..MINUTES));
        assert_eq!(missing(&quarters, 0..QUARTERS), [KILLED / 15 - 1], "the quarter whose write was killed");
        assert!(quarters.iter().all(|step| step.value.mean < 87.0), "two values of one step were not added up");
        let profile = analyzed(&mut recorder, &mut keeper, quantity, end);
        let verdict = profile.cycles.unwrap();
        let period = verdict.period.as_ref().unwrap_or_else(|| panic!("{verdict:?}"));
        let found = period.length.as_secs_f64() / 86_400.0;
        assert!((found / days - 1.0).abs() < 0.03, "{quantity:?}: a period of {found} days");
        let hour = Duration::from_secs(3600);
        assert!(profile.next_hour_maximum.is_some(), "{quantity:?}: no maximum");
        assert!(profile.forecasts.iter().any(|one| one.horizon == hour), "{quantity:?}: {:?}", profile.forecasts);
    }
    let from = Some(WallTime(now(MINUTES).wall.0 - 34 * 86_400_000_000));
    let query = HistoryQuery {
        subject: key(Utilization).subject,
        quantity: Utilization,
        from,
        step: Some(StoredTier::Quarter.step()),
    };
    let plan = recorder.plan(&query, end);
    let stored = keeper.read(plan.stored.as_ref().unwrap()).unwrap();
    let points = recorder.answer(&plan, &stored, end).unwrap().points;
    assert_eq!(points.len(), 34 * 96 - 2, "all but the lost one, and the one that began before");
}
