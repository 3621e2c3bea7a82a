//! Whole files: usual ones, bad ones, and mutations of real ones.

use crate::{Choices, CsvError, Look, Profile, csv, json, people, png, svg};
use proptest::prelude::*;
use std::fmt::Write;
use std::time::Duration;

/// Recordings, and one file in the form of a recording; `tests/golden/traces/README.md` gives their origin.
const RECORDINGS: [&[u8]; 4] = [
    include_bytes!("../../tests/golden/traces/nvidia-smi-a100.csv"),
    include_bytes!("../../tests/golden/traces/nvidia-smi-units.csv"),
    include_bytes!("../../tests/golden/traces/helios-two-tenants.csv"),
    include_bytes!("../../tests/golden/traces/two-pods.csv"),
];
const LOOK: Look = Look { colour: false, plain: str::to_owned };

fn read(text: &str) -> Result<Profile, CsvError> {
    csv(text.as_bytes(), &Choices::default())
}

/// Rows of a square wave of 20 samples, 5 minutes apart, with a little noise.
fn square(rows: u64) -> String {
    let mut text = "timestamp,value\n".to_owned();
    for at in 0..rows {
        let time = jiff::Timestamp::from_second(1_700_000_000).unwrap() + Duration::from_secs(300 * at);
        let value = if at % 20 < 8 { 90 } else { 10 } + at * at * 7 % 5;
        writeln!(text, "{time},{value}").unwrap();
    }
    text
}

#[test]
fn a_cycle_is_found_and_shown_in_every_form() {
    let choices = Choices { picture: true, ..Choices::default() };
    let profile = csv(square(600).as_bytes(), &choices).unwrap();
    let document = json(&profile);
    assert_eq!(document["verdict"], "periodic", "{document:#}");
    let period = document["period_seconds"].as_f64().unwrap();
    assert!((period - 6000.0).abs() < 60.0, "{period}");
    let ends = document["period_interval_seconds"].as_array().unwrap();
    assert!(ends[0].as_f64().unwrap() <= period && period <= ends[1].as_f64().unwrap(), "{ends:?}");
    assert!((document["period_samples"].as_f64().unwrap() - 20.0).abs() < 0.2);
    let text = people(&profile, LOOK);
    for part in [
        "value is periodic: it repeats every 1 h 40 min",
        "600 values, 5 min apart",
        "█",
        "median",
        "Forecast  in 1 h",
        "Maximum",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let picture = svg(&profile).unwrap();
    for part in
        ["every 1 h 40 min", "median and quartiles", "Forecast with 90 % interval", "hours since 2023-11-14T22:13:20Z"]
    {
        assert!(picture.contains(part), "{part}");
    }
    let bytes = png(&picture).unwrap();
    assert!(bytes.starts_with(b"\x89PNG") && bytes.len() > 10_000);
}

#[test]
fn the_example_in_the_documents_is_what_the_command_prints() {
    let file = include_str!("../../tests/golden/traces/nab-three-series.csv");
    let mut text = "timestamp,value\n".to_owned();
    for row in file.lines().skip(1) {
        let cells: Vec<&str> = row.split(',').collect();
        let minute: u32 = cells[0].parse().unwrap();
        let (day, hour, minute) = (minute / 1440 + 1, minute / 60 % 24, minute % 60);
        writeln!(text, "2014-04-{day:02} {hour:02}:{minute:02}:00,{}", cells[1]).unwrap();
    }
    let shown = people(&read(&text).unwrap(), LOOK);
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/workload-profiles.md");
    let kept = std::fs::read_to_string(path).unwrap();
    let (before, rest) = kept.split_once("```text\n").unwrap();
    let (example, after) = rest.split_once("```\n").unwrap();
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(path, format!("{before}```text\n{shown}```\n{after}")).unwrap();
    } else {
        assert_eq!(example, shown, "UPDATE_GOLDEN=1 cargo test -p profile updates docs/workload-profiles.md");
    }
}

#[test]
fn json_has_the_fields_that_programs_read() {
    let fields = [
        "verdict",
        "reason",
        "period_seconds",
        "period_interval_seconds",
        "period_samples",
        "score",
        "cycles",
        "alternatives",
        "trend",
        "steps",
        "forecasts",
        "next_hour_maximum",
    ];
    let names = |value: &serde_json::Value| {
        value.as_object().unwrap().keys().cloned().collect::<std::collections::BTreeSet<_>>()
    };
    assert_eq!(names(&json(&read(&square(100)).unwrap())), fields.map(str::to_owned).into());
    let grouped = json(&read("time,gpu,value\n1,a,1\n1,b,2\n2,a,3\n2,b,4\n3,a,5\n3,b,6\n").unwrap());
    let series = grouped["series"].as_array().unwrap();
    assert_eq!((series.len(), &series[1]["group"]), (2, &"b".into()));
    let one = names(&series[0]);
    assert!(fields.iter().all(|field| one.contains(*field)));
}

#[test]
fn recordings_of_gpus_and_clusters_are_read_as_they_are() {
    for (recording, value, step, answers) in [
        (RECORDINGS[0], "utilization.gpu [%]", 13, 1),
        (RECORDINGS[1], "power.draw [W]", 54, 1),
        (RECORDINGS[2], "vcLJZ", 60_000, 1),
        (RECORDINGS[3], "value", 60_000, 2),
    ] {
        let profile = csv(recording, &Choices::default()).unwrap();
        assert_eq!((profile.columns.value_name(), profile.answers.len()), (value, answers));
        let found = profile.answers[0].series.step().as_millis();
        assert!(found.abs_diff(step) <= step / 20 + 1, "{value}: {found} ms");
        assert!(people(&profile, LOOK).contains(value) || answers > 1);
    }
}

#[test]
fn two_restarted_recorders_in_one_file_are_one_series() {
    let part = |hour: u32| -> String {
        let rows = (0..30).map(|at| format!("2026/11/28 {hour:02}:00:{at:02}.123, {} %, 27512 MiB\n", at * 3));
        format!("timestamp, utilization.gpu [%], memory.used [MiB]\n{}", rows.collect::<String>())
    };
    let both = part(7) + &part(8);
    let utf16: Vec<u8> = format!("\u{feff}{both}").encode_utf16().flat_map(u16::to_le_bytes).collect();
    for bytes in [both.into_bytes(), utf16] {
        let profile = csv(bytes.as_slice(), &Choices::default()).unwrap();
        let series = &profile.answers[0].series;
        assert_eq!((series.measured(), series.step(), series.len()), (60, Duration::from_secs(1), 3630));
        assert!(profile.notes.iter().all(|note| !note.contains("left out")), "{:?}", profile.notes);
    }
}

#[test]
fn a_file_that_has_no_answer_gets_one_sentence() {
    for (text, said) in [
        ("", "the file is empty"),
        ("time,value\n", "0 rows of data"),
        ("time,value\n1,2\n", "1 row of data"),
        ("time,value\n1,a\n2,b\n", "no column has numbers"),
        ("time,value\n1,NaN\n2,inf\n", "no column has numbers"),
        ("time,value\n5,1\n4,2\n3,3\n", "sort the file by column `time`"),
        ("time,value\n5,1\n5,2\n5,3\n5,4\n6,1\n", "--group"),
        ("time,value\n0,0\n0,1\n1,2\n1,3\n", "2 of 4 rows have the same time"),
        ("date,value\n11/01/2026 00:00,1\n11/01/2026 01:00,2\n", "dates such as `11/01/2026 00:00`"),
        ("timestamp\n1689325967982958\n1689325967982958\n", "no column has numbers beside the times"),
        ("PK\u{3}\u{4}", "zip archive"),
    ] {
        let error = read(text).unwrap_err();
        assert!(error.to_string().contains(said) && !error.is_argument(), "{text:?}: {error}");
    }
}

#[test]
fn short_constant_and_broken_series_have_a_verdict_that_says_so() {
    for (text, verdict) in [
        ("time,value\n1,2\n2,3\n", "unknown"),
        (&("time,value\n".to_owned() + &(0..200).map(|at| format!("{at},45\n")).collect::<String>()), "aperiodic"),
        (
            &("time,value\n".to_owned()
                + &(0..200).map(|at| format!("{},{at}\n", at + at / 100 * 500)).collect::<String>()),
            "unknown",
        ),
    ] {
        let profile = read(text).unwrap();
        let document = json(&profile);
        assert_eq!(document["verdict"], verdict, "{document:#}");
        assert!(document["reason"].as_str().unwrap().len() > 10);
        assert!(people(&profile, LOOK).lines().count() > 4);
        assert!(png(&svg(&profile).unwrap()).is_ok());
    }
}

#[test]
fn gpus_that_are_read_one_after_the_other_are_a_series_each() {
    let mut text = "timestamp, index, name, temperature.gpu, utilization.gpu [%]\n".to_owned();
    for (at, gpu) in (0..240).flat_map(|at| (0..4).map(move |gpu| (at, gpu))) {
        let busy = if at % 20 < 8 + gpu { 90 } else { 10 + at * at * 7 % 5 };
        let (minute, second, millisecond) = (at / 60, at % 60, 123 + gpu * 6);
        let time = format!("2026/11/28 00:{minute:02}:{second:02}.{millisecond}");
        writeln!(text, "{time}, {gpu}, NVIDIA A100, {}, {busy} %", 40 + at % 2).unwrap();
    }
    let profile = read(&text).unwrap();
    assert_eq!(profile.answers.len(), 4, "{:?}", profile.notes);
    for answer in &profile.answers {
        assert_eq!((answer.series.measured(), answer.verdict.name()), (240, "periodic"));
    }
    assert!(profile.notes.iter().any(|note| note.contains("each value of column `index` is a series")));
}

#[test]
fn few_rows_with_distant_times_take_few_points() {
    let rows = (0..200).flat_map(|group| [0, 1, 2, 3, 1_000_000].map(|at| format!("{at},{group},{}\n", at % 5)));
    let grouped = csv(
        format!("time,g,value\n{}", rows.collect::<String>()).as_bytes(),
        &Choices { group: Some("g".into()), ..Choices::default() },
    );
    let grouped = grouped.unwrap();
    assert!(grouped.answers.len() == 200 && grouped.answers.iter().all(|answer| answer.series.len() == 4));
    assert!(grouped.notes.iter().any(|note| note.starts_with("200 values are beyond a hole")), "{:?}", grouped.notes);
}

#[test]
fn a_clock_that_was_set_hides_no_rows() {
    let row = |at: u64| {
        format!("{},{}\n", at + at / 300 * 1_000_000_000, if at % 20 < 8 { 90 } else { 10 + at * at * 7 % 5 })
    };
    let profile = read(&format!("time,value\n{}", (0..600).map(row).collect::<String>())).unwrap();
    let answer = &profile.answers[0];
    assert_eq!(
        (answer.verdict.name(), answer.series.len(), answer.series.step()),
        ("periodic", 300, Duration::from_secs(1))
    );
    assert!(people(&profile, LOOK).contains("from 1000000300 s to"), "{}", people(&profile, LOOK));
    assert!(profile.notes.iter().any(|note| note.starts_with("300 values are beyond a hole in the times")));
}

#[test]
fn what_is_expected_stays_within_what_the_values_can_be() {
    let value = |at: u32| if at < 280 { f64::from(at * at * 7919 % 101) } else { 0.0 };
    let rows = (0..300).map(|at| format!("{at},{} %\n", value(at)));
    let choices = Choices { picture: true, ..Choices::default() };
    let profile = csv(format!("time,load\n{}", rows.collect::<String>()).as_bytes(), &choices).unwrap();
    let answer = &profile.answers[0];
    let made: Vec<_> = answer.forecasts.iter().filter_map(|(_, made)| *made).chain(answer.path.clone()).collect();
    assert!(made.len() > 10);
    for made in made {
        let (low, high) = made.interval;
        assert!(0.0 <= low && low <= made.value && made.value <= high && high <= 100.0, "{made:?}");
    }
    let level = |at: u32| if at < 150 { 73.3 } else { 0.0 };
    let rows: String = (0..300).map(|at| format!("{at},{}\n", level(at))).collect();
    let profile = read(&format!("time,value\n{rows}")).unwrap();
    assert_eq!(profile.answers[0].steps[0].after, 0.0);
}

#[test]
fn dates_that_are_not_read_need_the_distance_of_the_rows() {
    let text = "date,value\n01.11.2026 00:00,1\n01.11.2026 01:00,2\n01.11.2026 02:00,4\n";
    let error = read(text).unwrap_err().to_string();
    assert!(error.contains("whose order is not certain") && error.contains("--step"), "{error}");
    let hourly = Choices { step: Some(Duration::from_secs(3600)), ..Choices::default() };
    let profile = csv(text.as_bytes(), &hourly).unwrap();
    assert_eq!(profile.answers[0].series.step(), Duration::from_secs(3600));
    assert!(
        profile.notes[0].starts_with("no times are read, so rows are numbered and 1 h apart"),
        "{:?}",
        profile.notes
    );
}

#[test]
fn a_file_that_may_be_in_another_code_page_says_what_to_do() {
    let profile = csv(&b"t,Gr\xf6\xdfe\n1,2\n2,3\n"[..], &Choices::default()).unwrap();
    assert!(profile.notes[0].ends_with("windows-1252; if names look wrong, save it as UTF-8"), "{:?}", profile.notes);
}

#[test]
fn what_was_left_out_is_said() {
    let profile = read("time,value\n1,2\n2,[N/A]\n3,4\n3,5\n2,5\n,6\n4,NaN\n5,1\n6,1e200\n").unwrap();
    let notes = profile.notes.join("\n");
    for part in [
        "1 row has no number in column `value` (for example `[N/A]`): a gap",
        "1 row has the same time as the row before: left out",
        "1 row has a time before that of an earlier row: left out",
        "1 row has no time in column `time`",
        "NaN or an infinite number",
        "1 row has a number beyond 1e150 in column `value`: a gap",
    ] {
        assert!(notes.contains(part), "{part}: {notes}");
    }
}

#[test]
fn names_that_are_hostile_stay_text() {
    let text = "time,\u{1b}[2J<&\"\n1,2\n2,3\n3,4\n";
    let profile = read(text).unwrap();
    let picture = svg(&profile).unwrap();
    assert!(!picture.contains('\u{1b}') && png(&picture).is_ok());
    let shown = people(&profile, Look { colour: false, plain: |text| text.replace('\u{fffd}', "?") });
    assert!(shown.starts_with("?[2J<&"), "{shown}");
}

/// The options `--time`, `--group`, `--step`, `--horizon` and `--plot`, from four bytes, as in the fuzz target `csv_table`.
fn choices([time, group, step, horizon]: [u8; 4]) -> Choices {
    let column = |byte: u8| match byte {
        0..128 => None,
        128..192 => Some("none".to_owned()),
        192.. => Some((byte % 4 + 1).to_string()),
    };
    // From a millisecond to the longest time that the command takes.
    let span = |byte: u8| Duration::from_millis(1 << (byte % 64));
    Choices {
        value: None,
        time: column(time),
        group: column(group),
        step: (step >= 128).then(|| span(step)),
        horizons: if horizon >= 128 { vec![span(horizon), span(horizon / 2)] } else { Vec::new() },
        picture: horizon % 4 == 1,
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// A recording with some bytes changed, removed or doubled, with any options.
    #[test]
    fn no_mutation_of_a_recording_causes_a_panic(
        which in 0..RECORDINGS.len(),
        head in any::<[u8; 4]>(),
        edits in proptest::collection::vec((any::<prop::sample::Index>(), 0..4_u8, any::<u8>()), 1..40),
        packed in any::<bool>(),
    ) {
        let mut bytes: Vec<u8> = RECORDINGS[which].to_vec();
        for (at, edit, byte) in edits {
            let at = at.index(bytes.len());
            match edit {
                0 => bytes[at] = byte,
                1 => { bytes.remove(at); }
                2 => bytes.insert(at, b",;\"\n\r0- e."[usize::from(byte) % 10]),
                _ => bytes.truncate(at.max(bytes.len() / 2)),
            }
        }
        if packed {
            use std::io::Read;
            let mut zipped = Vec::new();
            flate2::read::GzEncoder::new(bytes.as_slice(), flate2::Compression::fast()).read_to_end(&mut zipped).unwrap();
            zipped.truncate(zipped.len() - usize::from(zipped[9] % 2) * 8);
            bytes = zipped;
        }
        let choices = choices(head);
        if let Ok(profile) = csv(bytes.as_slice(), &choices) {
            let _ = (json(&profile), people(&profile, LOOK));
            if let (true, Ok(picture)) = (choices.picture, svg(&profile)) {
                prop_assert!(png(&picture).is_ok());
            }
        }
    }
}
