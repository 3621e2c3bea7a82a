//! Profiles read by the real client, `go tool pprof`. `GO` names the program if it is not `go`.

use super::program::Program;
use std::process::Command;

fn pprof(words: &[&str], url: &str) -> String {
    let folder = tempfile::tempdir().unwrap();
    let go = std::env::var_os("GO").unwrap_or_else(|| "go".into());
    let output = Command::new(go)
        .args(["tool", "pprof"])
        .args(words)
        .arg(url)
        .env("PPROF_TMPDIR", folder.path())
        .env("GOTOOLCHAIN", "local")
        .output()
        .expect("go is installed");
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "pprof {words:?} {url}:\n{out}\n{err}");
    println!("$ go tool pprof {} {url}\n{err}{out}", words.join(" "));
    out.into_owned()
}

/// `flat` and `cum` of a function in the output of `-top`, in the requested unit. The name of the function ends with
/// `name_end`.
fn row(top: &str, name_end: &str) -> (f64, f64) {
    let line = top
        .lines()
        .find(|line| line.trim_end_matches(" (inline)").ends_with(name_end))
        .unwrap_or_else(|| panic!("no {name_end} in\n{top}"));
    let number = |word: &str| word.trim_end_matches(|end: char| end.is_alphabetic()).parse::<f64>().unwrap();
    let words: Vec<&str> = line.split_whitespace().collect();
    (number(words[0]), number(words[3]))
}

/// Promise 21 in docs/specification.md.
#[test]
#[ignore = "needs go: tests/run"]
fn go_reads_two_to_one_with_leaf_and_caller() {
    let program = Program::start(&["burn"]);
    let url = format!("http://{}/debug/pprof/profile?seconds=20", program.address);
    let top = pprof(&["-top", "-unit=ms", "-nodecount=1000"], &url);
    let [hot, warm, mid] = ["work::hot", "work::warm", "work::mid"].map(|name| row(&top, name).1);
    let ratio = hot / warm;
    assert!((1.8..2.2).contains(&ratio), "hot {hot} ms, warm {warm} ms: {ratio}");
    assert!(mid >= hot + warm - 1.0, "{mid} {hot} {warm}");
    let inlined = top.lines().find(|line| line.contains("always_inlined")).unwrap();
    assert!(inlined.ends_with("(inline)") && row(&top, "always_inlined").0 > 0.0, "{inlined}");
    assert!(top.contains("File: profiled") && top.contains("Type: cpu"), "{top}");
}

/// Promise 21 in docs/specification.md.
#[test]
#[ignore = "needs go: tests/run"]
fn go_lists_source_lines_with_their_time() {
    let program = Program::start(&["burn"]);
    let url = format!("http://{}/debug/pprof/profile", program.address);
    let list = pprof(&["-seconds=3", "-list=work::hot", "-unit=ms"], &url);
    assert!(list.contains("tests/profiled/work.rs"), "{list}");
    let call = list.lines().find(|line| line.contains("sum = always_inlined(sum, black_box(turn))")).expect("the line");
    assert!(call.split_whitespace().nth(1).is_some_and(|cum| cum.ends_with("ms") || cum.ends_with('s')), "{call}");
}

/// Promise 21 in docs/specification.md.
#[test]
#[ignore = "needs go: tests/run"]
fn go_reads_heap_and_allocs_and_their_differences() {
    let program = Program::start(&["hold", "grow"]);
    let base = format!("http://{}/debug/pprof", program.address);
    let top = pprof(&["-top", "-unit=MB", "-nodecount=1000"], &format!("{base}/heap"));
    assert!(top.contains("Type: inuse_space"), "{top}");
    let (_, held) = row(&top, "work::keep_blocks");
    assert!((48.0..80.0).contains(&held), "{held} MB\n{top}");
    let top = pprof(&["-top", "-nodecount=1000", "-sample_index=inuse_objects"], &format!("{base}/heap"));
    let (_, blocks) = row(&top, "work::keep_blocks");
    assert!((768.0..1280.0).contains(&blocks), "{blocks} blocks\n{top}");
    let top = pprof(&["-top", "-unit=MB", "-nodecount=1000", "-seconds=4"], &format!("{base}/heap"));
    assert!(top.contains("Type: inuse_space") && !top.contains("work::keep_blocks"), "{top}");
    let (_, stayed) = row(&top, "work::keep_more");
    assert!((8.0..48.0).contains(&stayed), "{stayed} MB in 4 s\n{top}");
    let top = pprof(&["-top", "-unit=MB", "-nodecount=1000", "-seconds=4"], &format!("{base}/allocs"));
    assert!(top.contains("Type: alloc_space") && !top.contains("work::keep_blocks"), "{top}");
    let (_, grown) = row(&top, "work::keep_more");
    assert!((8.0..48.0).contains(&grown), "{grown} MB in 4 s\n{top}");
    let list = pprof(&["-list=work::keep_blocks", "-unit=MB"], &format!("{base}/heap"));
    assert!(list.lines().any(|line| line.contains("Vec::with_capacity(size)") && line.contains("MB")), "{list}");
}

#[test]
#[ignore = "needs go: tests/run"]
fn go_reads_threads_and_the_empty_profiles() {
    let program = Program::start(&["hold"]);
    let base = format!("http://{}/debug/pprof", program.address);
    assert!(pprof(&["-top"], &format!("{base}/goroutine")).contains("work::hold"));
    let traces = pprof(&["-traces"], &format!("{base}/goroutine"));
    assert!(traces.lines().any(|line| line.contains("thread:") && line.contains("hold")), "{traces}");
    assert!(pprof(&["-top"], &format!("{base}/threadcreate")).contains("hold"));
    for empty in ["block", "mutex"] {
        let _ = pprof(&["-top"], &format!("{base}/{empty}"));
    }
}
