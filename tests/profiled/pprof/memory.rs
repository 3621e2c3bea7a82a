//! Heap profiles, read by the test itself.

use super::program::{Opened, Program};

const MIB: i64 = 1 << 20;

#[test]
fn blocks_of_64_mib_are_shown_where_they_were_allocated() {
    let program = Program::start(&["hold"]);
    let opened = program.profile("/debug/pprof/heap");
    let held = opened.sum("inuse_space", "work::keep_blocks");
    assert!((48 * MIB..80 * MIB).contains(&held), "{} MiB", held / MIB);
    assert!(opened.sum("alloc_space", "work::keep_blocks") >= held);
    let objects = opened.sum("inuse_objects", "work::keep_blocks");
    assert!((768..1280).contains(&objects), "{objects} blocks");
    assert_eq!(opened.string(opened.profile.default_sample_type), "inuse_space");
    let frames = opened.profile.sample.iter().map(|sample| opened.frames(sample));
    let frame = frames.flatten().find(|(name, _, _)| name.ends_with("work::keep_blocks")).unwrap();
    assert!(frame.1.ends_with("tests/profiled/work.rs") && frame.2 > 0, "{frame:?}");
}

/// The program keeps 8 MiB more a second, and less on a machine that is busy with other things.
fn check_growth(grown: i64, opened: &Opened) {
    let most = (opened.profile.duration_nanos / 1_000_000_000 + 1) * 12 * MIB;
    assert!((MIB..most).contains(&grown), "8 MiB a second, seen: {} MiB", grown / MIB);
}

#[test]
fn seconds_on_allocs_show_only_what_was_allocated_in_that_time() {
    let program = Program::start(&["hold", "grow"]);
    let opened = program.profile("/debug/pprof/allocs?seconds=4");
    let grown = opened.sum("alloc_space", "work::keep_more");
    check_growth(grown, &opened);
    assert_eq!(opened.sum("alloc_space", "work::keep_blocks"), 0, "earlier allocations are not in the difference");
    assert!(opened.profile.duration_nanos >= 4_000_000_000);
    assert_eq!(opened.string(opened.profile.default_sample_type), "alloc_space");
}

/// Promise 21 in docs/specification.md.
#[test]
fn seconds_on_heap_show_only_what_was_allocated_in_that_time_and_is_still_used() {
    let program = Program::start(&["hold", "grow"]);
    let opened = program.profile("/debug/pprof/heap?seconds=4");
    let grown = opened.sum("inuse_space", "work::keep_more");
    check_growth(grown, &opened);
    assert_eq!(opened.sum("inuse_space", "work::keep_blocks"), 0, "earlier allocations are not in the difference");
    assert!(opened.profile.duration_nanos >= 4_000_000_000);
    assert_eq!(opened.string(opened.profile.default_sample_type), "inuse_space");
}

#[test]
fn an_allocator_that_does_not_sample_says_so() {
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_profiled"));
    command.env("MALLOC_CONF", "prof:false");
    let program = Program::start_command(command);
    let answer = program.get("/debug/pprof/heap");
    assert_eq!(answer.status, 500);
    assert!(answer.text().contains("prof:true"), "{}", answer.text());
}
