//! Profiles of a program under stress.

use super::program::Program;

/// Starts in the default run; each takes about a second and a half.
const COLD_STARTS: usize = 10;

/// Promise 21 in docs/specification.md.
#[test]
fn a_first_profile_among_threads_that_allocate_panic_spawn_and_load_never_crashes() {
    cold_starts(COLD_STARTS);
}

/// Promise 21 in docs/specification.md.
#[test]
#[ignore = "takes 2 minutes: tests/run --long"]
fn fifty_cold_starts_never_crash() {
    cold_starts(50);
}

fn cold_starts(count: usize) {
    let mut samples = 0;
    for start in 0..count {
        let mut program = Program::start(&["churn", "burn"]);
        let opened = program.profile("/debug/pprof/profile?seconds=1");
        samples += opened.profile.sample.len();
        assert!(program.is_alive(), "start {start}");
        drop(program.profile("/debug/pprof/goroutine"));
        drop(program.profile("/debug/pprof/heap"));
        assert!(program.is_alive(), "start {start}");
    }
    assert!(samples > count, "{samples} stacks in {count} profiles");
}

#[test]
fn memory_stays_within_its_bounds_and_does_not_grow_over_ten_profiles() {
    profiles(10);
}

/// Promise 3 in docs/specification.md.
#[test]
#[ignore = "takes 4 minutes: tests/run --long"]
fn memory_does_not_grow_over_a_hundred_profiles() {
    profiles(100);
}

/// The largest growth of the memory in MiB: the sampler's slots, one answer, and slack for the allocator.
const GROWTH: f64 = 16.0;

fn profiles(count: usize) {
    let program = Program::start(&["burn"]);
    let before = program.resident();
    let mut during: f64 = 0.0;
    let mut after_first = 0.0;
    for turn in 0..count {
        let opened = std::thread::scope(|scope| {
            let taken = scope.spawn(|| program.profile("/debug/pprof/profile?seconds=1"));
            while !taken.is_finished() {
                during = during.max(program.resident());
                std::thread::sleep(std::time::Duration::from_millis(20));
            }
            taken.join().unwrap()
        });
        assert!(!opened.profile.sample.is_empty());
        if turn == 0 {
            after_first = program.resident();
        }
    }
    // jemalloc returns unused pages a second later (`dirty_decay_ms`), on a busy machine later than that.
    let mut after = program.resident();
    for _ in 0..100 {
        if after < after_first + 4.0 {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(100));
        after = after.min(program.resident());
    }
    println!(
        "{before:.1} MiB before, at most {during:.1} during, {after_first:.1} after one, {after:.1} after {count}"
    );
    assert!(during < before + GROWTH && after < before + GROWTH, "{before} before, {during} during, {after} after");
    assert!(after < after_first + 4.0, "{after_first} after one, {after} after {count}");
}
