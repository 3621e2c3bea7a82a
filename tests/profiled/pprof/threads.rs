//! The list of threads, as text and as a profile.

use super::program::Program;

#[test]
fn a_parked_thread_shows_the_function_it_is_parked_in() {
    let program = Program::start(&["hold", "burn"]);
    let opened = program.profile("/debug/pprof/goroutine");
    let mut threads = Vec::new();
    for sample in &opened.profile.sample {
        threads.extend(opened.labels(sample, "thread"));
    }
    for expected in ["hold", "burn", "profiled"] {
        assert!(threads.iter().any(|name| name == expected), "{expected} in {threads:?}");
    }
    assert_eq!(opened.sum("goroutine", "work::hold"), 1);
    let text = program.get("/debug/pprof/goroutine?debug=2").text();
    assert!(text.starts_with("goroutine profile: total "), "{text}");
    assert!(text.contains("work::hold"), "{text}");
}

#[test]
fn threads_are_counted_by_name() {
    let program = Program::start(&["hold"]);
    let opened = program.profile("/debug/pprof/threadcreate");
    assert_eq!(opened.sum("threadcreate", "hold"), 1);
}
