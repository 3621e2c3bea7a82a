//! What processes cost over some time: CPU time and memory, as the kernel counts them.

use lab::http;
use std::error::Error;
use std::net::SocketAddr;
use std::process::Child;
use std::time::{Duration, Instant};

pub(crate) type Outcome<T> = Result<T, Box<dyn Error>>;

const SCRAPE_EVERY: Duration = Duration::from_secs(15);
/// The programs get this time to find everything before the measurement, because their start costs more.
const WARM_UP: Duration = Duration::from_secs(15);

/// The program that is measured: the release build if `FOOTPRINT_BINARY` names it, else that of the test profile.
pub(crate) fn binary() -> String {
    std::env::var("FOOTPRINT_BINARY").unwrap_or_else(|_| env!("CARGO_BIN_EXE_gpu-steward").to_owned())
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
}

pub(crate) fn measure(programs: &[Measurand], span: Duration) -> Outcome<Vec<Measured>> {
    std::thread::sleep(WARM_UP);
    let begin = Instant::now();
    let first: Vec<Cost> = programs.iter().map(|program| cost(program.pid)).collect::<Outcome<_>>()?;
    let mut largest = first.clone();
    let mut bytes = vec![0; programs.len()];
    let mut next_scrape = begin;
    while begin.elapsed() < span {
        if Instant::now() >= next_scrape {
            for (index, program) in programs.iter().enumerate() {
                bytes[index] = http::get(program.address, "/metrics")?.body.len();
            }
            next_scrape += SCRAPE_EVERY;
        }
        for (index, program) in programs.iter().enumerate() {
            let (now, largest) = (cost(program.pid)?, &mut largest[index]);
            largest.rss_kib = largest.rss_kib.max(now.rss_kib);
            largest.anon_kib = largest.anon_kib.max(now.anon_kib);
        }
        std::thread::sleep(Duration::from_millis(500));
    }
    let elapsed = begin.elapsed();
    let mut measured = Vec::new();
    for (index, program) in programs.iter().enumerate() {
        let last = cost(program.pid)?;
        measured.push(Measured {
            name: program.name,
            cpu_share: (last.cpu.saturating_sub(first[index].cpu)).as_secs_f64() / elapsed.as_secs_f64(),
            rss_kib: largest[index].rss_kib,
            anon_kib: largest[index].anon_kib,
            peak_kib: last.peak_kib,
            scrape_bytes: bytes[index],
        });
    }
    Ok(measured)
}

impl Measured {
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
