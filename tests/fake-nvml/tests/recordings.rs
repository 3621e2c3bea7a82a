//! The fake library replays whole recordings: every log of `nvidia-smi`, every tenant of Helios, every pod of GenTD26.
//! The folder that `FAKE_NVML_TRACES` names has a folder for each kind; `tests/run traces` shows where they come from.
//!
//! This test parses the files with its own code, not with the library's code, to get the expected values.

#![expect(clippy::unwrap_used, reason = "a test's own tools may panic")]

use crate::bench::{Bench, eventually, fake_gpu, still};
use fake_nvml::scenario::{FakeGpu, ReadingKind as Q, Scenario};
use fake_nvml::value::{Program, Replay, Value};
use flate2::read::GzDecoder;
use nvml_wrapper::{Device, Nvml};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The cells of a file, line by line.
type Table = Vec<Vec<String>>;
/// Reads the value of a series from a GPU.
type Read = fn(&Device<'_>) -> Result<f64, String>;

/// The number of moments at which the test compares a recording, including its first and its last row.
const MOMENTS: u32 = 9;
/// The number of GPUs in one scenario.
const GPUS: usize = 16;

/// One series of a file for one GPU: seconds since the first row, and the number or a gap.
struct Series {
    rows: Vec<(f64, Option<f64>)>,
    what: Q,
    replay: Replay,
    read: Read,
    /// The rounding error of NVML's unit.
    within: f64,
}

impl Series {
    fn at(&self, time: f64) -> Option<f64> {
        let after = self.rows.partition_point(|(stamp, _)| *stamp <= time);
        self.rows[after.max(1) - 1].1
    }
}

/// The files of one kind.
fn files(kind: &str) -> Vec<PathBuf> {
    let folder = std::env::var_os("FAKE_NVML_TRACES").expect("FAKE_NVML_TRACES names the folder of the recordings");
    let folder = Path::new(&folder).join(kind);
    let entries = std::fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    files.retain(|path| path.to_string_lossy().ends_with(".csv.gz"));
    files.sort();
    assert!(!files.is_empty(), "{} has no recording", folder.display());
    files
}

fn table(path: &Path) -> Table {
    let text = std::io::read_to_string(GzDecoder::new(std::fs::File::open(path).unwrap())).unwrap();
    text.lines().map(|line| line.split(',').map(|cell| cell.trim().to_owned()).collect()).collect()
}

/// Unix time, or a date: no recording is longer than a month, so the day of the month is enough to tell rows apart.
fn seconds(cell: &str) -> f64 {
    let Some((date, time)) = cell.split_once(' ') else { return cell.parse().unwrap() };
    let day: f64 = date[8..10].parse().unwrap();
    day * 86_400.0 + time.split(':').fold(0.0, |sum, part| sum * 60.0 + part.parse::<f64>().unwrap())
}

/// Rows by time. A row with an earlier time than the row before it is left out, as in the replay.
fn rows<'t>(cells: impl Iterator<Item = (&'t str, &'t str)>) -> Vec<(f64, Option<f64>)> {
    let mut rows: Vec<(f64, Option<f64>)> = Vec::new();
    let mut first = None;
    for (time, value) in cells {
        let time = seconds(time);
        let since = time - *first.get_or_insert(time);
        if rows.last().is_none_or(|(last, _)| since >= *last) {
            rows.push((since, value.split(' ').next().and_then(|number| number.parse().ok())));
        }
    }
    rows
}

/// The position of the column with this name, without its unit.
fn column(header: &[String], name: &str) -> Option<usize> {
    header.iter().position(|cell| cell.split(" [").next() == Some(name))
}

fn replay(path: &Path, column: &str, filter: Option<(&str, &str)>) -> Replay {
    let filter = filter.map(|(name, text)| (name.to_owned(), text.to_owned()));
    Replay { repeat: false, filter, ..Replay::of(path, column) }
}

/// A GPU that replays these series.
fn showing(series: &[Series]) -> FakeGpu {
    let values = series.iter().map(|one| (one.what, Program::Replay(one.replay.clone()).into()));
    // The samples are at whole seconds, because the rows of sampled values are a minute apart.
    FakeGpu { values: values.chain([(Q::SampleMillis, Value::Constant(1000.0))]).collect(), ..fake_gpu("A100") }
}

/// Compares all GPUs at moments over the whole recording, `late` seconds after a row.
fn replays(gpus: &[Vec<Series>], late: f64) {
    let longest = gpus.iter().flatten().max_by(|a, b| a.rows.len().cmp(&b.rows.len())).expect("a recording");
    let scenario = |time| still(gpus.iter().map(|series| showing(series)).collect(), time);
    let mut loaded: Option<(Bench, Nvml)> = None;
    for moment in 0..MOMENTS {
        let row = (longest.rows.len() - 1) * moment as usize / (MOMENTS as usize - 1);
        let time = longest.rows[row].0 + late;
        // A driver that has every call that is made here.
        let scenario = Scenario { driver: format!("580.{moment}"), ..scenario(time) };
        let (bench, nvml) = loaded.get_or_insert_with(|| {
            let bench = Bench::new(&scenario);
            let nvml = bench.load().unwrap();
            (bench, nvml)
        });
        bench.write(&scenario);
        eventually("the moment is read", || nvml.sys_driver_version().unwrap() == scenario.driver);
        for (place, recorded) in (0..).zip(gpus) {
            let device = nvml.device_by_index(place).unwrap();
            for series in recorded {
                let (shown, recorded) = ((series.read)(&device), series.at(time));
                let agree = match (&shown, recorded) {
                    (Ok(shown), Some(recorded)) => (shown - recorded).abs() <= series.within,
                    (Err(_), None) => true,
                    _ => false,
                };
                assert!(agree, "{:?} {time} s in: {shown:?}, in the file {recorded:?}", series.replay.path);
            }
        }
    }
}

#[test]
#[ignore = "needs recordings: tests/run --long"]
fn whole_logs_of_nvidia_smi_are_replayed() {
    let mut replayed = 0;
    for path in files("nvidia-smi") {
        let table = table(&path);
        // Each run also has a file with the moments at which its load changed; it is skipped.
        if table[0].len() == 1 {
            continue;
        }
        let series = |name: &str, what, read: Read, within| {
            let at = column(&table[0], name).unwrap_or_else(|| panic!("{} has no {name}", path.display()));
            let cells = table[1..].iter().map(|row| (row[0].as_str(), row[at].as_str()));
            Series { rows: rows(cells), what, replay: replay(&path, name, None), read, within }
        };
        let gpu = vec![
            series("power.draw", Q::PowerWatts, |gpu| number(gpu.power_usage()).map(|mw| mw / 1000.0), 0.001),
            series(
                "temperature.gpu",
                Q::TemperatureCelsius,
                |gpu| number(gpu.temperature(nvml_wrapper::enum_wrappers::device::TemperatureSensor::Gpu)),
                0.0,
            ),
            series(
                "clocks.current.sm",
                Q::ClockSmMhz,
                |gpu| number(gpu.clock_info(nvml_wrapper::enum_wrappers::device::Clock::SM)),
                0.0,
            ),
        ];
        assert!(gpu[0].rows.len() > 200, "{}", path.display());
        replays(&[gpu], 0.0005);
        replayed += 1;
    }
    assert!(replayed >= 2, "{replayed} logs");
}

#[test]
#[ignore = "needs recordings: tests/run --long"]
fn whole_months_of_helios_are_replayed() {
    for path in files("helios") {
        let table = table(&path);
        let gpus: Vec<Vec<Series>> = (1..table[0].len())
            .map(|at| {
                let cells = table[1..].iter().map(|row| (row[0].as_str(), row[at].as_str()));
                let read: Read = |gpu| number(gpu.pcie_replay_counter());
                let replay = replay(&path, &table[0][at], None);
                vec![Series { rows: rows(cells), what: Q::PcieReplays, replay, read, within: 0.0 }]
            })
            .collect();
        for gpus in gpus.chunks(GPUS) {
            replays(gpus, 0.5);
        }
    }
}

#[test]
#[ignore = "needs recordings: tests/run --long"]
fn every_pod_of_gentd26_is_replayed() {
    let mut gpus: BTreeMap<String, Vec<Series>> = BTreeMap::new();
    for path in files("gentd26") {
        let name = path.file_name().unwrap().to_string_lossy();
        let (what, read, within): (Q, Read, f64) = if name.contains("duty_cycle") {
            (Q::UtilizationPercent, |gpu| number(gpu.utilization_rates().map(|rates| rates.gpu)), 0.5)
        } else if name.contains("memory_used") {
            // The values are means over a minute, so the recording has fractions of a byte.
            #[expect(clippy::cast_precision_loss, reason = "bytes below 2^53")]
            (Q::MemoryUsedBytes, |gpu| gpu.memory_info().map(|it| it.used as f64).map_err(|e| e.to_string()), 0.5)
        } else {
            panic!("{name}: of what?")
        };
        let table = table(&path);
        let place = |name| column(&table[0], name).unwrap();
        let (time, value, pod) = (place("timestamp_anon"), place("value"), place("container_ip"));
        let mut pods: BTreeMap<&str, Vec<(&str, &str)>> = BTreeMap::new();
        for row in &table[1..] {
            pods.entry(&row[pod]).or_default().push((&row[time], &row[value]));
        }
        for (pod, cells) in pods {
            let replay = replay(&path, "value", Some(("container_ip", pod)));
            let series = Series { rows: rows(cells.into_iter()), what, replay, read, within };
            gpus.entry(pod.to_owned()).or_default().push(series);
        }
    }
    let gpus: Vec<Vec<Series>> = gpus.into_values().collect();
    for gpus in gpus.chunks(GPUS) {
        replays(gpus, 1.5);
    }
}

fn number(answer: Result<u32, nvml_wrapper::error::NvmlError>) -> Result<f64, String> {
    answer.map(f64::from).map_err(|error| error.to_string())
}
