//! A leader with clients that ask for `/metrics/hami` and never read it: its memory, its filter calls, its Lease.

use crate::cluster::{calls, cluster};
use crate::outcome::{Figures, Outcome, many, median};
use crate::served::{Connection, Served};
use lab::api_server::FakeApiServer;
use lab::slow_reader;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const NODES: usize = 1000;
/// Clients that are connected at once. Each connects again once it was cut.
const READERS: usize = 300;
/// Rounds with and without them, which take turns.
const ROUNDS: usize = 5;
/// Filter calls of a round, and the pause between two.
const CALLS: usize = 400;
const PAUSE: Duration = Duration::from_millis(5);

const MOST_MEMORY_MIB: f64 = 64.0;
const MOST_SLOWER: f64 = 2.0;

pub(crate) fn measure(figures: &mut Figures) -> Outcome<()> {
    let server = cluster(NODES, 1);
    let extender = Served::extender(&server)?;
    let bodies = calls(NODES, CALLS, |number| 16_000 + u64::try_from(number % 4).unwrap_or(0));
    slowest(&extender, &bodies)?;
    let before = extender.memory_kib("VmRSS")?;
    let terms = transitions(&server);
    let (mut ratios, mut most) = (Vec::new(), before);
    for _ in 0..ROUNDS {
        let alone = slowest(&extender, &bodies)?;
        let (among, peak) = with_readers(&extender, &bodies)?;
        println!("p99 of {CALLS} filter calls: {alone:?} alone, {among:?} among {READERS} clients that read nothing");
        ratios.push(among.as_secs_f64() / alone.as_secs_f64());
        most = most.max(peak);
    }
    let more = many(usize::try_from(most - before)?) / 1024.0;
    figures.at_most("memory for clients that read nothing (VmRSS), MiB", more, MOST_MEMORY_MIB);
    figures.at_most("p99 of filter calls among such clients, of that without", median(ratios), MOST_SLOWER);
    figures.check("the leader has kept its Lease".into(), extender.leads() && transitions(&server) == terms);
    Ok(())
}

/// How often the Lease has changed its holder.
fn transitions(server: &FakeApiServer) -> Option<u64> {
    server.objects("leases").first()?["spec"]["leaseTransitions"].as_u64()
}

/// The 99th percentile of the times of these calls.
fn slowest(extender: &Served, bodies: &[Vec<u8>]) -> Outcome<Duration> {
    let mut connection = Connection::open(extender.address)?;
    let mut times = Vec::with_capacity(bodies.len());
    for body in bodies {
        let begun = Instant::now();
        connection.ask("filter", body)?;
        times.push(begun.elapsed());
        std::thread::sleep(PAUSE);
    }
    times.sort();
    Ok(times[times.len() * 99 / 100])
}

/// The same while clients read nothing, with the largest memory of the extender meanwhile, in KiB.
fn with_readers(extender: &Served, bodies: &[Vec<u8>]) -> Outcome<(Duration, u64)> {
    let (address, ended) = (extender.address, AtomicBool::new(false));
    std::thread::scope(|scope| {
        let readers = scope.spawn(|| read_nothing(address, &ended));
        let peak = scope.spawn(|| {
            let mut peak = 0;
            while !ended.load(Ordering::Relaxed) {
                peak = extender.memory_kib("VmRSS").unwrap_or(0).max(peak);
                std::thread::sleep(Duration::from_millis(20));
            }
            peak
        });
        let among = slowest(extender, bodies).map_err(|error| error.to_string());
        ended.store(true, Ordering::Relaxed);
        readers.join().map_err(|_| "the clients have failed")?;
        Ok((among?, peak.join().map_err(|_| "the memory was not measured")?))
    })
}

/// Keeps the clients connected until `ended`.
fn read_nothing(address: SocketAddr, ended: &AtomicBool) {
    let mut readers: Vec<TcpStream> = Vec::new();
    while !ended.load(Ordering::Relaxed) {
        readers.extend(slow_reader::ask(Ipv4Addr::LOCALHOST, address, "/metrics/hami"));
        if readers.len() > READERS {
            readers.remove(0);
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}
