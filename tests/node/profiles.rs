//! Tests workload profiles from outside: a load with a period is shown at the API, in the metrics and in `top`, and its history
//! can be read.

use crate::driver::fake;
use crate::program::BINARY;
use lab::agent::Agent;
use lab::eventually::eventually;
use lab::pods::Pods;
use lab::prometheus::Prometheus;
use lab::scenario::{self, FakeGpu, Program, ReadingKind, Scenario, Value, fake_gpus};
use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Output};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use wire::timestamp;

/// The period of the fake load.
const PERIOD: f64 = 6.0;
/// Longest time until the period is published. A GPU is analysed every 30 s, and a second analysis must agree on values that
/// the first one did not see.
const PUBLISHED: Duration = Duration::from_secs(180);
/// Longest time until a pod is analysed for the first time: pods are analysed every five minutes, spread over that time.
const POD_ANALYSED: Duration = Duration::from_secs(330);
/// Longest wait for the first values: tests run while other code compiles.
const SOON: Duration = Duration::from_secs(30);

/// A number that is high for 60 % of each period.
fn cycle(low: f64, high: f64) -> Value {
    Program::Square { low, high, period_s: PERIOD, duty: 0.6, phase_s: 0.0 }.into()
}

/// The program with these arguments. Without `COLUMNS`, `top` takes its default width.
fn run(arguments: &[&str], columns: Option<&str>) -> Output {
    let mut command = Command::new(BINARY);
    command.args(arguments).env_remove("COLUMNS");
    command.envs(columns.map(|columns| ("COLUMNS", columns))).output().unwrap()
}

fn text(output: &Output) -> (String, String) {
    let [out, error] = [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes).into_owned());
    (out, error)
}

/// The times of the points in the answer to this question, in seconds since 1970, and their means. None before the first value.
pub(crate) fn history(agent: &Agent, question: &str) -> Vec<(f64, f64)> {
    let answer = agent.get(&format!("/api/v1/history?{question}"));
    if answer.status != 200 {
        return Vec::new();
    }
    let point = |point: &serde_json::Value| {
        let time = point["time"].as_str().and_then(timestamp::rfc3339_micros).expect("a time");
        (time.as_seconds(), point["mean"].as_f64().expect("a number"))
    };
    answer.json()["points"].as_array().expect("a list").iter().map(point).collect()
}

/// The machine's clock, in seconds since 1970.
pub(crate) fn seconds() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_secs_f64()
}

/// Whether the number is the period, within 5 %.
fn is_period(seconds: f64) -> bool {
    (seconds - PERIOD).abs() <= 0.05 * PERIOD
}

/// The value of the only line of the metrics that has all of these parts.
fn series(metrics: &str, parts: &[&str]) -> f64 {
    let lines: Vec<&str> = metrics.lines().filter(|line| parts.iter().all(|part| line.contains(part))).collect();
    assert_eq!(lines.len(), 1, "{parts:?}: {lines:?}");
    lines[0].rsplit(' ').next().unwrap().parse().unwrap()
}

/// Query and number of series in the answer. The maximum of the next hour needs hours of history, which no test has time
/// for; the tests of the metric texts query it.
const QUERIES: [(&str, usize); 10] = [
    (r#"abs(gpu_steward_gpu_load_period_seconds{gpu="0", quantity="utilization"} - 6) < 0.3"#, 1),
    (r#"gpu_steward_gpu_load_period_score{gpu="0", quantity="utilization"} > 0.5 <= 1"#, 1),
    (r#"gpu_steward_gpu_load_verdict{gpu="0", quantity="memory_copy", verdict="periodic"} == 1"#, 1),
    (r#"gpu_steward_gpu_load_forecast_ratio{gpu="0", quantity="utilization", horizon="30s"} >= 0"#, 3),
    (r#"gpu_steward_gpu_load_forecast_bytes{gpu="0", quantity="gpu_memory", horizon="30s", level="0.5"}"#, 1),
    (r#"gpu_steward_gpu_load_forecast_watts{gpu="0", quantity="power", horizon="30s", level="0.95"} > 0"#, 1),
    (r#"gpu_steward_gpu_load_period_seconds{gpu="1"}"#, 0),
    ("gpu_steward_profile_kept == 1", 1),
    ("gpu_steward_profile_series >= 8", 1),
    ("increase(gpu_steward_profile_analyses_total[2m]) > 0", 1),
];

#[test]
#[ignore = "needs prometheus: tests/run"]
fn a_cycle_of_six_seconds_is_shown_at_the_api_in_the_metrics_and_in_top() {
    let values = BTreeMap::from([
        (ReadingKind::UtilizationPercent, cycle(5.0, 95.0)),
        (ReadingKind::MemoryCopyPercent, cycle(2.0, 40.0)),
    ]);
    let cyclic = FakeGpu { values, ..fake_gpus("H100", 1) };
    let (_directory, fake) = fake(&Scenario { gpus: vec![cyclic, fake_gpus("H100", 1)], ..Scenario::default() });
    let agent = Agent::standalone(BINARY).with("--nvml-library", fake.library()).with("--node-name", "node-a").start();
    let address = agent.metrics;
    let prometheus = Prometheus::start(&format!(
        "global: {{scrape_interval: 1s, scrape_timeout: 1s}}\nscrape_configs:\n\
         - job_name: gpu-steward\n  static_configs:\n  - targets: ['{address}']\n"
    ));
    let seconds = eventually("the period of GPU 0", PUBLISHED, || {
        let answer = agent.get("/api/v1/profile?subject=gpu/0");
        // Before the first reading of the GPU the answer is 404.
        let document = (answer.status == 200).then(|| answer.json())?;
        let profiles = document["profiles"].as_array()?;
        let used = profiles.iter().find(|profile| profile["quantity"] == "utilization")?;
        assert_eq!(used["unit"], "ratio");
        used["cycles"]["period"]["seconds"].as_f64()
    });
    assert!(is_period(seconds), "{seconds}");
    let metrics = agent.get("/metrics/gpu").text();
    let of_gpu = ["gpu=\"0\"", "quantity=\"utilization\""];
    assert!(is_period(series(&metrics, &["gpu_steward_gpu_load_period_seconds{", of_gpu[0], of_gpu[1]])));
    let verdict = ["gpu_steward_gpu_load_verdict{", of_gpu[0], of_gpu[1], "verdict=\"periodic\""];
    assert!((series(&metrics, &verdict) - 1.0).abs() < f64::EPSILON);

    let url = format!("http://{address}");
    let (frame, _) = text(&run(&["top", "--once", "--url", &url], None));
    let line = frame.lines().find(|line| line.starts_with("0    H100")).unwrap_or_else(|| panic!("{frame}"));
    let shown = line.strip_suffix(" s").and_then(|line| line.rsplit(' ').next()).and_then(|text| text.parse().ok());
    assert!(shown.is_some_and(is_period), "{line}");
    let (wide, _) = text(&run(&["top", "--once", "--url", &url], Some("200")));
    let line = wide.lines().find(|line| line.starts_with("0    H100")).unwrap_or_else(|| panic!("{wide}"));
    assert!(line.contains('█') && line.contains('▁'), "{line}");

    for (query, answers) in QUERIES {
        prometheus.until(query, |values| values.len() == answers);
    }
    assert_eq!(agent.terminate().status.code(), Some(0));
}

#[test]
fn the_history_of_a_gpu_is_read_as_json_csv_and_a_table() {
    let agent = Agent::standalone(BINARY).with("--gpus", "simulated=H100:1").start();
    let points = eventually("ten values", SOON, || {
        let answer = agent.get("/api/v1/history?series=gpu/0/utilization&from=-5m&step=1s");
        let document = (answer.status == 200).then(|| answer.json())?;
        let points = document["points"].as_array()?.clone();
        (points.len() >= 10).then_some(points)
    });
    for point in &points {
        let [mean, maximum] = ["mean", "maximum"].map(|key| point[key].as_f64().unwrap());
        assert!((0.0..=1.0).contains(&mean) && mean <= maximum + 1e-9, "{point}");
    }
    let url = format!("http://{}", agent.metrics);
    let history = |more: &[&str]| {
        let output = run(&[&["profile", "history", "gpu/0/utilization", "--url", &url][..], more].concat(), None);
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        text(&output)
    };
    let (csv, note) = history(&["--from", "-5m", "--step", "1s", "-o", "csv"]);
    let mut lines = csv.lines();
    assert_eq!(lines.next(), Some("time,mean_ratio,maximum_ratio"));
    assert!(lines.count() >= points.len(), "{csv}");
    assert!(note.contains("simulated"), "{note}");
    let (table, _) = history(&[]);
    assert!(table.starts_with("gpu/0/utilization of ") && table.contains("(simulated GPUs)"), "{table}");
    let (json, _) = history(&["-o", "json"]);
    assert_eq!(serde_json::from_str::<serde_json::Value>(&json).unwrap()["unit"], "ratio");
}

#[test]
#[ignore = "needs root: tests/run"]
fn a_pod_has_a_history_and_a_profile_until_it_is_gone() {
    let mut pods = Pods::prepare(Path::new("/sys/fs/cgroup")).unwrap();
    let uid = pods.add(0x51, 1, &["sleep", "1000"]).unwrap().uid.clone();
    let agent = Agent::standalone(BINARY).with("--gpus", "none").with("--slow-period", "1s").launch();
    for quantity in ["cpu", "memory"] {
        let points = eventually("ten values", SOON, || {
            let points = history(&agent, &format!("series=pod/{uid}/{quantity}&from=-5m&step=1s"));
            (points.len() >= 10).then_some(points)
        });
        let least = points.iter().map(|(_, mean)| *mean).fold(f64::MAX, f64::min);
        assert!(least >= 0.0 && (quantity == "memory" || least < 0.5), "it sleeps: {quantity}: {points:?}");
    }
    let profile = |quantity: &str| {
        let answer = agent.get("/api/v1/profile?subject=pod");
        let document = (answer.status == 200).then(|| answer.json())?;
        let is_it = |one: &&serde_json::Value| one["pod_uid"] == uid.as_str() && one["quantity"] == quantity;
        document["profiles"].as_array()?.iter().find(is_it).cloned()
    };
    let memory = eventually("a profile of its memory with its last values", POD_ANALYSED, || {
        profile("memory").filter(|one| one["recent"].as_array().is_some_and(|recent| !recent.is_empty()))
    });
    assert_eq!((&memory["unit"], &memory["gpu"]), (&"bytes".into(), &serde_json::Value::Null), "{memory}");
    assert_eq!(memory["series"], format!("pod/{uid}/memory"));
    assert_eq!(profile("gpu_memory"), None, "a pod without a GPU uses none of its memory, not 0");
    assert!(pods.remove_last());
    eventually("the end of its profile", SOON, || profile("memory").is_none().then_some(()));
    assert_eq!(agent.terminate().status.code(), Some(0));
}

/// Bad input: the driver's clock jumps, and the machine's does not.
#[test]
fn stamps_of_the_driver_that_jump_move_no_value_of_a_history() {
    const USED: f64 = 0.4;
    let began = seconds();
    let origin = u64::try_from(SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_micros()).unwrap();
    let at = |hours: i64| {
        let values = [(ReadingKind::UtilizationPercent, Value::Constant(100.0 * USED))].into();
        let clock = scenario::Clock {
            origin_us: origin.checked_add_signed(hours * 3_600_000_000),
            ..scenario::Clock::default()
        };
        Scenario { clock, gpus: vec![FakeGpu { values, ..fake_gpus("H100", 1) }], ..Scenario::default() }
    };
    let (_directory, fake) = fake(&at(0));
    let agent = Agent::standalone(BINARY).with("--nvml-library", fake.library()).with("--process-period", "1s").start();
    let own = "series=gpu/0/utilization&step=200ms";
    eventually("the driver's own samples", SOON, || {
        history(&agent, own).windows(2).any(|pair| pair[1].0 - pair[0].0 < 0.5).then_some(())
    });
    for hours in [-1, 0, 1, 0] {
        fake.write(&at(hours)).expect("the scenario is written");
        let jumped = seconds();
        eventually("values of six seconds after the jump", SOON, || {
            let points = history(&agent, "series=gpu/0/utilization&from=-5m&step=1s");
            (points.last()?.0 > jumped + 6.0).then_some(())
        });
    }
    for question in [own, "series=gpu/0/utilization&from=-5m&step=1s"] {
        let points = history(&agent, question);
        assert!(points.iter().all(|(_, mean)| (mean - USED).abs() < 0.001), "{question}: {points:?}");
        assert!(points.windows(2).all(|pair| pair[0].0 < pair[1].0), "{question}: {points:?}");
        let all = began - 2.0..seconds() + 2.0;
        assert!(points.iter().all(|(at, _)| all.contains(at)), "{question}: {all:?} {points:?}");
    }
    let steps = history(&agent, "series=gpu/0/utilization&from=-5m&step=1s");
    assert!(steps.windows(2).all(|pair| pair[1].0 - pair[0].0 < 5.0), "a jump leaves no gap: {steps:?}");
    let ended = agent.terminate();
    assert_eq!(ended.status.code(), Some(0), "{}", ended.log);
    assert!(!ended.log.contains("panicked"), "{}", ended.log);
}

#[test]
fn a_history_that_cannot_be_had_is_refused_with_a_sentence() {
    let agent = Agent::standalone(BINARY).with("--gpus", "simulated=H100:1").start();
    agent.logs("simulated");
    let url = format!("http://{}", agent.metrics);
    for (arguments, code, words) in [
        (&["gpu/9/power"][..], 69, "this node has no such GPU or pod"),
        (&["pod/ml/other/cpu"], 69, "this node has no such GPU or pod"),
        (&["gpu/0/cpu"], 64, "a GPU has no quantity \"cpu\": use utilization"),
        (&["everything"], 64, "names no GPU and no pod"),
        (&["gpu/0/power", "--from", "-35d", "--step", "1ms"], 64, "name a step of at least"),
        (&["gpu/0/power", "--from", "2999-01-01T00:00:00Z"], 64, "from is in the future"),
        (&["gpu/0/power", "--from", "-9999d"], 64, "from is more than 36 days ago"),
        (&["gpu/0/power", "--step", "0s"], 64, "name a step above zero"),
    ] {
        let (_, error) = {
            let output = run(&[&["profile", "history", "--url", &url][..], arguments].concat(), None);
            assert_eq!(output.status.code(), Some(code), "{arguments:?}: {output:?}");
            text(&output)
        };
        assert!(error.contains(words), "{arguments:?}: {error}");
    }
    assert_eq!(agent.terminate().status.code(), Some(0));
    let output = run(&["profile", "history", "gpu/0/power", "--url", &url], None);
    assert_eq!(output.status.code(), Some(69), "{output:?}");
    assert!(text(&output).1.contains("no agent answers at"), "{output:?}");
}

#[test]
fn where_profiles_are_off_the_setting_is_named_and_top_works() {
    let agent = Agent::standalone(BINARY).with("--gpus", "simulated=H100:1").switch("--workload-profiles=off").start();
    for path in ["/api/v1/profile", "/api/v1/history?series=gpu/0/power"] {
        let answer = agent.get(path);
        assert_eq!(answer.status, 404, "{path}");
        assert!(answer.text().contains("--workload-profiles=on"), "{}", answer.text());
    }
    let url = format!("http://{}", agent.metrics);
    let (_, error) = text(&run(&["profile", "history", "gpu/0/power", "--url", &url], None));
    assert!(error.contains("--workload-profiles=on"), "{error}");
    assert_eq!(run(&["top", "--once", "--url", &url], None).status.code(), Some(0));
    assert!(!agent.get("/metrics").text().contains("gpu_steward_profile_"));
}
