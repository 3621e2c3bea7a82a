//! CPU profiles, read by the test itself.

use super::program::Program;
use std::io::Write;
use std::net::TcpStream;
use std::time::{Duration, Instant};

/// Promise 21 in docs/specification.md.
#[test]
fn a_load_of_two_to_one_is_shown_as_two_to_one_with_leaf_and_caller() {
    let program = Program::start(&["burn"]);
    let before = program.processor_time();
    let (mut hot, mut warm, mut mid) = (0, 0, 0);
    // On a busy machine the load gets less than a core: take profiles until they have 8 s of CPU time.
    for _ in 0..10 {
        let opened = program.profile("/debug/pprof/profile?seconds=6");
        hot += opened.sum("cpu", "work::hot");
        warm += opened.sum("cpu", "work::warm");
        mid += opened.sum("cpu", "work::mid");
        assert!(opened.profile.duration_nanos >= 6_000_000_000);
        assert_eq!(opened.profile.period, 10_000_000);
        if mid > 8_000_000_000 {
            break;
        }
    }
    let spent = program.processor_time().saturating_sub(before);
    #[expect(clippy::cast_precision_loss, reason = "a few seconds in nanoseconds")]
    let ratio = hot as f64 / warm as f64;
    assert!((1.8..2.2).contains(&ratio), "hot {hot} ns, warm {warm} ns, ratio {ratio}");
    assert!(mid >= hot + warm, "mid {mid} calls hot {hot} and warm {warm}");
    // The kernel's count of the CPU time continues while the child answers, so it is an upper limit.
    let seen = Duration::from_nanos(mid.unsigned_abs());
    assert!(seen < spent.mul_f64(1.1), "seen {seen:?}, spent {spent:?}");
}

#[test]
fn an_inlined_call_is_a_frame_with_its_own_line_in_the_right_file() {
    let program = Program::start(&["burn"]);
    let opened = program.profile("/debug/pprof/profile?seconds=2");
    let stacks: Vec<_> = opened.profile.sample.iter().map(|sample| opened.frames(sample)).collect();
    let inlined = stacks.iter().find(|frames| frames[0].0.ends_with("always_inlined"));
    let frames = inlined.expect("a sample in the inlined function");
    assert!(frames[1].0.ends_with("hot") || frames[1].0.ends_with("warm"), "{frames:?}");
    assert!(frames.iter().any(|(name, _, _)| name.ends_with("work::mid")), "{frames:?}");
    assert!(frames.iter().any(|(name, _, _)| name.ends_with("work::burn")), "{frames:?}");
    for (name, file, line) in &frames[..2] {
        assert!(file.ends_with("tests/profiled/work.rs") && *line > 0, "{name} {file}:{line}");
    }
    let distinct: std::collections::BTreeSet<i64> =
        stacks.iter().filter(|frames| frames[0].0.ends_with("always_inlined")).map(|frames| frames[0].2).collect();
    assert!(!distinct.is_empty());
    let sample = &opened.profile.sample[0];
    assert_eq!(opened.labels(sample, "thread"), ["burn"]);
    assert!(opened.string(opened.profile.mapping[0].filename).ends_with("profiled"));
}

#[test]
fn a_second_profile_is_refused_and_a_client_that_disconnects_ends_the_first() {
    let program = Program::start(&["burn"]);
    let mut first = TcpStream::connect(program.address).unwrap();
    write!(first, "GET /debug/pprof/profile?seconds=100 HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    let deadline = Instant::now() + Duration::from_secs(20);
    let busy = loop {
        let answer = program.get("/debug/pprof/profile?seconds=1");
        if answer.status == 409 || Instant::now() > deadline {
            break answer;
        }
    };
    assert_eq!(busy.status, 409);
    assert!(busy.text().contains("only one"), "{}", busy.text());
    drop(first);
    while program.get("/debug/pprof/profile?seconds=1").status != 200 {
        assert!(Instant::now() < deadline, "the profiler is not free");
    }
}

#[test]
fn an_invalid_number_of_seconds_is_refused() {
    let program = Program::start(&[]);
    for text in ["-1", "x", "301", "1.5", "99999999999999999999"] {
        let answer = program.get(&format!("/debug/pprof/profile?seconds={text}"));
        assert_eq!(answer.status, 400, "{text}");
        assert!(answer.text().contains("1 to 300"), "{}", answer.text());
    }
}
