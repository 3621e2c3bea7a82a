//! The cost of processes over some time: CPU time and memory, as the kernel counts them.

use lab::http;
use std::error::Error;
use std::net::SocketAddr;
use std::process::Child;
use std::time::{Duration, Instant};

pub(crate) type Outcome<T> = Result<T, Box<dyn Error>>;

/// The budget of docs/specification.md: `RssAnon` of an agent alone, with sharing, and with a stream to the extender.
pub(crate) const ALONE_KIB: u64 = 12 << 10;
pub(crate) const SHARING_KIB: u64 = 18 << 10;
pub(crate) const STREAM_KIB: u64 = 20 << 10;
/// The budget for `VmRSS` of each agent: with the pages of the program's file, which the kernel shares and may drop.
pub(crate) const RESIDENT_KIB: u64 = 48 << 10;
const SCRAPE_EVERY: Duration = Duration::from_secs(15);
/// The growth that a short run may show: memory, and series that appear when an event first happens.
const MOST_GROWTH_KIB: u64 = 1024;
const MOST_NEW_SERIES: usize = 20;
/// The programs get this time to find everything before the measurement, because their start costs more.
const WARM_UP: Duration = Duration::from_secs(15);

/// The measured program: the release build if `FOOTPRINT_BINARY` names it, else the build of the test profile.
pub(crate) fn binary() -> String {
    std::env::var("FOOTPRINT_BINARY").unwrap_or_else(|_| env!("CARGO_BIN_EXE_gpu-steward").to_owned())
}

/// Prints each check, and returns whether all passed.
pub(crate) fn all_hold(checks: &[(String, bool)]) -> bool {
    for (what, holds) in checks {
        println!("{}  {what}", if *holds { "ok  " } else { "FAIL" });
    }
    checks.iter().all(|(_, holds)| *holds)
}

/// A child process that ends with the bench.
pub(crate) struct Running(pub(crate) Child);

impl Drop for Running {
    fn drop(&mut self) {
        // The process may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A program that is measured.
pub(crate) struct Measurand {
    pub(crate) name: &'static str,
    pub(crate) pid: u32,
    pub(crate) address: SocketAddr,
}

/// The cost of one program over the whole time.
pub(crate) struct Measured {
    pub(crate) name: &'static str,
    pub(crate) cpu_share: f64,
    pub(crate) rss_kib: u64,
    pub(crate) anon_kib: u64,
    pub(crate) peak_kib: u64,
    pub(crate) scrape_bytes: usize,
    /// The smallest `RssAnon` of the first and of the second half. The allocator returns memory a second late, so single
    /// samples swing; memory that is really kept is in every sample.
    pub(crate) kept_kib: [u64; 2],
    /// The series of the first and of the last scrape.
    pub(crate) series: [usize; 2],
}

pub(crate) fn measure(programs: &[Measurand], span: Duration) -> Outcome<Vec<Measured>> {
    std::thread::sleep(WARM_UP);
    let begin = Instant::now();
    let first: Vec<Cost> = programs.iter().map(|program| cost(program.pid)).collect::<Outcome<_>>()?;
    let mut largest = first.clone();
    let mut scrapes: Vec<Vec<String>> = vec![Vec::new(); programs.len()];
    let mut kept = vec![[u64::MAX; 2]; programs.len()];
    let mut next_scrape = begin;
    while begin.elapsed() < span {
        if Instant::now() >= next_scrape {
            for (index, program) in programs.iter().enumerate() {
                scrapes[index].push(http::get(program.address, "/metrics")?.text());
            }
            next_scrape += SCRAPE_EVERY;
        }
        for (index, program) in programs.iter().enumerate() {
            let (now, largest) = (cost(program.pid)?, &mut largest[index]);
            largest.rss_kib = largest.rss_kib.max(now.rss_kib);
            largest.anon_kib = largest.anon_kib.max(now.anon_kib);
            let half = &mut kept[index][usize::from(begin.elapsed() >= span / 2)];
            *half = now.anon_kib.min(*half);
        }
        std::thread::sleep(Duration::from_millis(500));
    }
    let elapsed = begin.elapsed();
    let mut measured = Vec::new();
    for (index, program) in programs.iter().enumerate() {
        let last = cost(program.pid)?;
        let series =
            |text: Option<&String>| text.map_or(0, |text| text.lines().filter(|line| !line.starts_with('#')).count());
        measured.push(Measured {
            name: program.name,
            cpu_share: (last.cpu.saturating_sub(first[index].cpu)).as_secs_f64() / elapsed.as_secs_f64(),
            rss_kib: largest[index].rss_kib,
            anon_kib: largest[index].anon_kib,
            peak_kib: last.peak_kib,
            scrape_bytes: scrapes[index].last().map_or(0, String::len),
            kept_kib: kept[index],
            series: [series(scrapes[index].first()), series(scrapes[index].last())],
        });
    }
    Ok(measured)
}

impl Measured {
    /// Whether the memory is within this limit for `RssAnon`, and within the limit for `VmRSS`.
    pub(crate) fn memory_checks(&self, anon_kib: u64) -> [(String, bool); 2] {
        let name = self.name;
        [
            (format!("{name}: RssAnon at most {} MiB", anon_kib >> 10), self.anon_kib <= anon_kib),
            (format!("{name}: VmRSS at most {} MiB", RESIDENT_KIB >> 10), self.rss_kib <= RESIDENT_KIB),
        ]
    }

    /// Whether the program needs no more memory, and shows no more series, in the second half than in the first.
    pub(crate) fn growth_checks(&self) -> [(String, bool); 2] {
        let (name, [first, second], [before, after]) = (self.name, self.kept_kib, self.series);
        [
            (
                format!("{name}: {first} KiB kept, then {second}: at most {MOST_GROWTH_KIB} more"),
                second <= first + MOST_GROWTH_KIB,
            ),
            (
                format!("{name}: {before} series, then {after}: at most {MOST_NEW_SERIES} more"),
                before > 0 && after <= before + MOST_NEW_SERIES,
            ),
        ]
    }

    /// One line of the report.
    pub(crate) fn line(&self) -> String {
        format!(
            "{:<12} {:>6.2} % of a core  VmRSS {:>7} KiB  RssAnon {:>7} KiB  VmHWM {:>7} KiB  scrape {:>8} B",
            self.name,
            self.cpu_share * 100.0,
            self.rss_kib,
            self.anon_kib,
            self.peak_kib,
            self.scrape_bytes
        )
    }
}

/// CPU time and memory of one process, as the kernel counts them.
#[derive(Clone, Copy, Debug)]
struct Cost {
    cpu: Duration,
    rss_kib: u64,
    /// Memory of this process alone: without the pages of the program's file, which the kernel shares and may drop.
    anon_kib: u64,
    peak_kib: u64,
}

/// CPU time from `/proc/<pid>/stat` (the sums that getrusage gives) and memory from `/proc/<pid>/status`.
fn cost(pid: u32) -> Outcome<Cost> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let field = |place: usize| -> Outcome<u64> { Ok(fields.get(place).ok_or("stat is short")?.parse()?) };
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let kib = |key: &str| -> Outcome<u64> {
        let line = status.lines().find(|line| line.starts_with(key)).ok_or("no such line in status")?;
        Ok(line.split_whitespace().nth(1).ok_or("no number")?.parse()?)
    };
    let cpu = Duration::from_millis((field(11)? + field(12)?) * 10);
    Ok(Cost { cpu, rss_kib: kib("VmRSS:")?, anon_kib: kib("RssAnon:")?, peak_kib: kib("VmHWM:")? })
}
