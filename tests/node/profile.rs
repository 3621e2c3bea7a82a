//! Tests `gpu-steward profile csv`, from outside.

use crate::program::BINARY;
use std::fmt::Write as _;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread::JoinHandle;
use std::time::Duration;

fn profile(args: &[&str]) -> Output {
    Command::new(BINARY).args(["profile", "csv"]).args(args).output().unwrap()
}

/// The most memory that a process has had, in KiB, in its `/proc/PID/status`.
fn peak_kib(status: &str) -> Option<u64> {
    status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?.trim().trim_end_matches(" kB").parse().ok()
}

/// The answer to a file with this content.
fn profile_of(content: &[u8], args: &[&str]) -> Output {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("load.csv");
    std::fs::write(&file, content).unwrap();
    profile(&[&[file.to_str().unwrap()], args].concat())
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn json(output: &Output) -> serde_json::Value {
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// A recording, or a file in the form of one; `tests/golden/traces/README.md` gives its origin.
fn recording(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/traces").join(name)
}

/// A load of 20 minutes of work in every hour, read each minute, in the form of `nvidia-smi --format=csv`.
fn hourly(hours: u32) -> String {
    let mut rows = "timestamp, utilization.gpu [%], memory.used [MiB]\n".to_owned();
    for minute in 0..hours * 60 {
        let (day, hour, rest) = (minute / 1440 + 1, minute / 60 % 24, minute % 60);
        let busy = if rest < 20 { 80 } else { 5 } + minute * minute % 7;
        writeln!(rows, "2026/11/{day:02} {hour:02}:{rest:02}:00.123, {busy} %, 27512 MiB").unwrap();
    }
    rows
}

#[test]
fn a_periodic_recording_has_a_sentence_a_course_a_cycle_and_forecasts() {
    let answer = profile_of(hourly(48).as_bytes(), &[]);
    let shown = text(&answer.stdout);
    assert_eq!(answer.status.code(), Some(0), "{}", text(&answer.stderr));
    for part in [
        "utilization.gpu [%] is periodic: it repeats every 1 h",
        "2,880 values, 1 min apart, over 2 d",
        "One cycle of 1 h",
        "Forecast  in 1 h",
        "Maximum   of the next hour",
        "values are column `utilization.gpu [%]` (guessed; other numbers: `memory.used [MiB]`",
    ] {
        assert!(shown.contains(part), "{part}: {shown}");
    }
    assert!(shown.contains('█') && !shown.contains('\u{1b}'), "{shown}");
}

#[test]
fn programs_get_the_same_as_json_and_people_the_picture() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["load.svg", "load.png"] {
        let picture = folder.path().join(name);
        let answer = profile_of(
            hourly(48).as_bytes(),
            &["-o", "json", "--horizon", "5m,2h", "--plot", picture.to_str().unwrap()],
        );
        let document = json(&answer);
        assert_eq!(document["verdict"], "periodic");
        assert!((document["period_seconds"].as_f64().unwrap() - 3600.0).abs() < 36.0, "{document:#}");
        let horizons: Vec<f64> = document["forecasts"]
            .as_array()
            .unwrap()
            .iter()
            .map(|at| at["horizon_seconds"].as_f64().unwrap())
            .collect();
        assert_eq!(horizons, [300.0, 7200.0]);
        assert!(text(&answer.stderr).contains("guessed"));
        let bytes = std::fs::read(&picture).unwrap();
        assert!(bytes.starts_with(b"\x89PNG") || (bytes.starts_with(b"<svg") && text(&bytes).contains("every 1 h")));
    }
}

#[test]
fn files_of_other_recorders_are_read_as_they_are() {
    for (name, args, series) in [
        ("nvidia-smi-a100.csv", &["--value", "power.draw"][..], 1),
        ("nvidia-smi-units.csv", &[], 1),
        ("helios-two-tenants.csv", &["--value", "vc6YE"], 1),
        ("two-pods.csv", &["--group", "container_ip"], 2),
    ] {
        let file = recording(name);
        let document = json(&profile(&[&[file.to_str().unwrap(), "-o", "json"], args].concat()));
        let found = document["series"].as_array().map_or(1, Vec::len);
        assert_eq!(found, series, "{name}: {document:#}");
        let verdict = if series > 1 { &document["series"][1]["verdict"] } else { &document["verdict"] };
        let known = ["periodic", "aperiodic", "unknown", "unobservable"];
        assert!(known.contains(&verdict.as_str().unwrap()), "{name}: {document:#}");
    }
}

#[test]
fn utf_16_and_standard_input_give_the_same_answer() {
    let rows = hourly(48);
    let utf16: Vec<u8> = format!("\u{feff}{rows}").encode_utf16().flat_map(u16::to_le_bytes).collect();
    let plain = json(&profile_of(rows.as_bytes(), &["-o", "json"]));
    assert_eq!(json(&profile_of(&utf16, &["-o", "json"])), plain);
    let mut reading = reads_a_pipe(&[]);
    reading.stdin.take().unwrap().write_all(rows.as_bytes()).unwrap();
    assert_eq!(json(&reading.wait_with_output().unwrap()), plain);
}

#[test]
fn data_without_a_series_ends_with_65_and_a_sentence() {
    for (content, said) in [
        (&b""[..], "the file is empty"),
        (b"time,value\n1,2\n", "a series needs at least 2"),
        (b"time,value\n1,a\n2,b\n", "no column has numbers"),
        (b"time,value\n1,NaN\n2,inf\n3,-inf\n", "no column has numbers"),
        (b"time,value\n5,1\n4,2\n3,3\n", "sort the file by column `time`"),
        (b"time,value\n5,1\n5,2\n5,3\n5,4\n6,5\n", "name the column that tells them apart with --group"),
        (b"date,value\n11/01/2026,1\n11/02/2026,2\n", "write them as 2026-11-28"),
        (b"\xff\xfe\0\0t\0\0\0", "UTF-32"),
        (b"\x1f\x8b\x08\0cut", "gzip data is damaged"),
        (b"PK\x03\x04workbook", "workbook of a spreadsheet"),
    ] {
        let answer = profile_of(content, &[]);
        let complaint = text(&answer.stderr);
        assert_eq!(answer.status.code(), Some(65), "{said}: {complaint}");
        assert!(
            answer.stdout.is_empty() && complaint.starts_with("error: ") && complaint.lines().count() == 1,
            "{complaint}"
        );
        assert!(complaint.contains(said), "{said}: {complaint}");
    }
}

#[test]
fn a_verdict_without_a_period_ends_with_0() {
    let constant = (0..200).fold("time,value\n".to_owned(), |rows, at| rows + &format!("{at},45\n"));
    for (content, sentences) in [
        ("time,value\n1,2\n2,3\n", &["value is unknown: "][..]),
        (constant.as_str(), &["value is aperiodic: "]),
        (
            "time,value\n1,2\n2,\n3,NaN\n4,x\n3,1\n4,1\n5,6\n",
            &[
                "value is unknown: ",
                "1 row has a time before that of an earlier row: left out",
                "1 row has the same time as the row before: left out",
                "1 row has no number in column `value` (for example `x`): a gap",
                "1 row has NaN or an infinite number in column `value`: a gap",
                "1 row has an empty cell in column `value`: a gap",
            ],
        ),
    ] {
        let answer = profile_of(content.as_bytes(), &[]);
        assert_eq!(answer.status.code(), Some(0), "{}", text(&answer.stderr));
        let shown = text(&answer.stdout);
        for sentence in sentences {
            assert!(shown.contains(sentence), "{sentence}: {shown}");
        }
    }
}

#[test]
fn wrong_arguments_end_with_64_and_what_would_be_right() {
    let answer = profile_of(hourly(2).as_bytes(), &["--value", "watts"]);
    assert_eq!(answer.status.code(), Some(64));
    assert!(text(&answer.stderr).contains("the columns are `timestamp`, `utilization.gpu [%]`"));
    for args in [&["no-such-file.csv"][..], &["."], &["a.csv", "--plot", "a.jpg"], &["a.csv", "--step", "0s"], &[]] {
        let answer = profile(args);
        assert_eq!(answer.status.code(), Some(64), "{args:?}: {}", text(&answer.stderr));
        assert!(answer.stdout.is_empty());
    }
}

#[test]
fn names_from_a_file_cannot_command_the_terminal() {
    let rows = (0..30).fold("time,\u{1b}[2J\u{202e}x\n".to_owned(), |rows, at| rows + &format!("{at},{}\n", at % 3));
    for args in [&[][..], &["-o", "json"], &["--value", "\u{1b}[31m"]] {
        let answer = profile_of(rows.as_bytes(), args);
        let shown = text(&answer.stdout) + &text(&answer.stderr);
        assert!(!shown.contains(['\u{1b}', '\u{202e}']), "{shown:?}");
    }
}

/// What a terminal shows of this command.
fn on_a_terminal(command: &str) -> String {
    let line = format!("stty rows 24 cols 80; {command}");
    let mut script = Command::new("script");
    script.args(["-qefc", &line, "/dev/null"]).env("TERM", "xterm-256color").env("SHELL", "/bin/sh");
    let mut script = script.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("`script` of bsdutils");
    // Without its end, nothing is typed.
    let keys = script.stdin.take();
    let output = script.wait_with_output().unwrap();
    drop(keys);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stdout));
    text(&output.stdout)
}

#[test]
#[ignore = "needs script: tests/run"]
fn a_large_file_shows_its_progress_and_then_the_answer() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("load.csv");
    let mut rows = "time,value\n".to_owned();
    for at in 0..400_000_u32 {
        writeln!(rows, "{},{:.30}", 1_700_000_000 + at, f64::from(at % 600)).unwrap();
    }
    assert!(rows.len() > 17 << 20);
    std::fs::write(&file, rows).unwrap();
    let file = file.display();
    for (command, progress) in [
        (format!("{BINARY} profile csv {file}"), " of 17."),
        (format!("cat {file} | {BINARY} profile csv -"), "reading 16"),
    ] {
        let shown = on_a_terminal(&command);
        let (reading, answer) = (shown.find("reading "), shown.find("400,000 values"));
        assert!(reading.is_some() && reading < answer && shown.contains(progress), "{command}: {shown}");
    }
}

/// The most memory that a process has until its end, in KiB.
fn peak_of(process: &Child) -> JoinHandle<u64> {
    let status = format!("/proc/{}/status", process.id());
    std::thread::spawn(move || {
        let mut peak = 0;
        // A process that has ended has no memory.
        while let Some(now) = std::fs::read_to_string(&status).ok().as_deref().and_then(peak_kib) {
            peak = now.max(peak);
            std::thread::sleep(Duration::from_millis(20));
        }
        peak
    })
}

/// The command as it reads a pipe.
fn reads_a_pipe(more: &[&str]) -> Child {
    Command::new(BINARY)
        .args(["profile", "csv", "-", "-o", "json"])
        .args(more)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

#[test]
fn a_small_file_with_distant_times_takes_little_memory() {
    let mut rows = "time,group,value\n".to_owned();
    for group in 0..200 {
        for at in [0, 1, 2, 3, 1_000_000] {
            writeln!(rows, "{at},{group},{}", at % 5).unwrap();
        }
    }
    let mut reading = reads_a_pipe(&["--group", "group"]);
    let peak = peak_of(&reading);
    reading.stdin.take().unwrap().write_all(rows.as_bytes()).unwrap();
    let answer = reading.wait_with_output().unwrap();
    assert_eq!(json(&answer)["series"].as_array().map(Vec::len), Some(200));
    assert!(text(&answer.stderr).contains("200 values are beyond a hole in the times"), "{}", text(&answer.stderr));
    let peak = peak.join().unwrap();
    assert!((1..=64 << 10).contains(&peak), "{peak} KiB");
}

/// The limit counts all memory that the program may write to, so more than what it really holds.
#[test]
fn ten_million_rows_take_at_most_256_mib() {
    const ROWS: u64 = 10_000_000;
    let mut reading = reads_a_pipe(&[]);
    let peak = peak_of(&reading);
    let mut rows = BufWriter::with_capacity(1 << 20, reading.stdin.take().unwrap());
    rows.write_all(b"time,value\n").unwrap();
    for at in 0..ROWS {
        let value = if at % 600 < 240 { 90 } else { 10 };
        writeln!(rows, "{},{value}", 1_700_000_000 + at).unwrap();
    }
    drop(rows);
    let answer = reading.wait_with_output().unwrap();
    let document = json(&answer);
    let period = document["period_seconds"].as_f64().unwrap_or_default();
    assert!((period - 600.0).abs() < 6.0, "{document:#}");
    let peak = peak.join().unwrap();
    assert!((1..=256 << 10).contains(&peak), "{peak} KiB");
    assert!(text(&answer.stderr).contains("10,000,000 rows are more than are analysed one by one"));
}
