//! The cost of a filter call and of a bind, compared with the pass-through, and with decoding and encoding alone.

use crate::cluster::{PODS_A_NODE, asking_pod, calls, cluster};
use crate::outcome::{Figures, Outcome, many, median, micros};
use crate::served::{Connection, Served};
use lab::api_server::FakeApiServer;
use lab::pass_through;
use serde_json::json;
use std::fs;
use std::time::{Duration, Instant};

/// Rounds in which both programs take turns. The median of their ratios counts.
const ROUNDS: usize = 7;
/// The number of node names in all calls of one round together, which sets the number of calls.
const NAMES_A_ROUND: usize = 400_000;
const CONNECTIONS: usize = 8;
/// Kinds of requests that alternate, as if this many Deployments grew at once.
const KINDS: usize = 4;
const BINDS: u32 = 200;

/// The marks.
const MOST_CPU: f64 = 3.0;
/// CPU time of the first call for a new kind of request, which judges every node: microseconds for each node.
const MOST_NEW_KIND: f64 = 3.0;
const LEAST_RATE: f64 = 0.7;
const MOST_MEMORY_KIB: u64 = 150 << 10;
/// The largest growth of the cost per node between 1,000 and 5,000 nodes: more would not be linear.
const MOST_GROWTH: f64 = 1.5;
/// The largest growth of the cost of a bind with five times the nodes. A bind is some hundred microseconds of asynchronous
/// work, so its cost varies.
const MOST_BIND_GROWTH: f64 = 1.5;

/// CPU time of one call, in microseconds, with all calls on one connection.
pub(crate) fn cpu_of(program: &Served, bodies: &[Vec<u8>]) -> Outcome<f64> {
    let mut connection = Connection::open(program.address)?;
    let before = program.cpu()?;
    for body in bodies {
        connection.ask("filter", body)?;
    }
    Ok(micros(program.cpu()? - before, bodies.len()))
}

/// CPU time of decoding one call and encoding its answer, in microseconds, without any HTTP.
fn codec(bodies: &[Vec<u8>], tenths: u8) -> Outcome<f64> {
    let cpu = || -> Outcome<Duration> {
        let text = fs::read_to_string("/proc/thread-self/schedstat")?;
        Ok(Duration::from_nanos(text.split(' ').next().ok_or("schedstat is empty")?.parse()?))
    };
    let before = cpu()?;
    let mut length = 0;
    for body in bodies {
        length += pass_through::answer(body, tenths)?.len();
    }
    let taken = cpu()? - before;
    if length == 0 { Err("no answer".into()) } else { Ok(micros(taken, bodies.len())) }
}

/// Calls in a second, with several connections at once.
pub(crate) fn rate_of(program: &Served, bodies: &[Vec<u8>]) -> Outcome<f64> {
    let begun = Instant::now();
    let failed = std::thread::scope(|scope| {
        let run = |part: usize| {
            let mut connection = Connection::open(program.address).map_err(|error| error.to_string())?;
            for body in bodies.iter().skip(part).step_by(CONNECTIONS) {
                connection.ask("filter", body).map_err(|error| error.to_string())?;
            }
            Ok::<(), String>(())
        };
        let threads: Vec<_> = (0..CONNECTIONS).map(|part| scope.spawn(move || run(part))).collect();
        threads.into_iter().find_map(|thread| thread.join().map_or(Some("a thread".to_owned()), Result::err))
    });
    match failed {
        Some(why) => Err(why.into()),
        None => Ok(many(bodies.len()) / begun.elapsed().as_secs_f64()),
    }
}

/// The measurements with one cluster.
struct Measured {
    cpu: f64,
    codec: f64,
    passed: f64,
    rate: f64,
    bind: f64,
    new_kind: f64,
    anon_kib: u64,
}

fn measure(nodes: usize, tenths: u8) -> Outcome<Measured> {
    let server = cluster(nodes, tenths);
    let (extender, pass) = (Served::extender(&server)?, Served::pass_through(tenths)?);
    let bodies = calls(nodes, (NAMES_A_ROUND / nodes).max(2 * CONNECTIONS), |number| 16_000 + kind_of(number));
    check(&extender, &bodies[0], (nodes, tenths), (nodes / 20).max(100))?;
    check(&pass, &bodies[0], (nodes, tenths), nodes)?;
    let (mut cpu, mut passed, mut codecs, mut rates) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        cpu.push(cpu_of(&extender, &bodies)?);
        passed.push(cpu_of(&pass, &bodies)?);
        codecs.push(codec(&bodies, tenths)?);
        rates.push(rate_of(&extender, &bodies)? / rate_of(&pass, &bodies)?);
    }
    // Each call has a new request, so that no cached verdict can be used.
    let fresh = calls(nodes, 2 * CONNECTIONS, |number| 20_000 + u64::try_from(number).unwrap_or(0));
    let first = cpu_of(&extender, &fresh)?;
    let ratios = |of: &[f64]| median(cpu.iter().zip(of).map(|(one, other)| one / other).collect());
    let (to_codec, to_pass, rate) = (ratios(&codecs), ratios(&passed), median(rates));
    let bind = bind(&server, &extender, nodes)?;
    let anon_kib = extender.memory_kib("RssAnon")?;
    let (cpu, passed, codecs) = (median(cpu), median(passed), median(codecs));
    println!(
        "{nodes} nodes, {tenths}0 % full: filter {cpu:.0} us of CPU, pass-through {passed:.0} us, decoding and encoding alone \
         {codecs:.0} us; ratios {to_pass:.2} and {to_codec:.2}"
    );
    println!(
        "      a request of a new kind {first:.0} us; with {CONNECTIONS} connections {rate:.2} of the pass-through's calls a second"
    );
    println!("      bind {bind:.0} us of CPU; RssAnon {anon_kib} KiB with {} claims", nodes * PODS_A_NODE);
    Ok(Measured { cpu, codec: to_codec, passed: to_pass, rate, bind, new_kind: first / many(nodes), anon_kib })
}

/// The memory, beyond what all of them request, of the call with this number: few kinds of requests take turns.
pub(crate) fn kind_of(number: usize) -> u64 {
    u64::try_from(number % KINDS).unwrap_or(0) * 500
}

/// Checks that the answer has a reason for each full node, and names at most `most` of the other nodes.
fn check(program: &Served, body: &[u8], (nodes, tenths): (usize, u8), most: usize) -> Outcome<()> {
    let answer = Connection::open(program.address)?.ask("filter", body)?.json();
    let fit = answer["NodeNames"].as_array().map_or(0, Vec::len);
    let failed = answer["FailedNodes"].as_object().ok_or("no reasons")?;
    let full = nodes / 10 * usize::from(tenths);
    let reasons = failed.values().all(|why| why == pass_through::REASON);
    if (fit, failed.len(), reasons) == ((nodes - full).min(most), full, true) {
        Ok(())
    } else {
        Err(format!(
            "{fit} nodes are named and {} do not, of {nodes} of which {full} are full: {answer:.300}",
            failed.len()
        )
        .into())
    }
}

/// CPU time of one bind, in microseconds, without its filter call.
fn bind(server: &FakeApiServer, extender: &Served, nodes: usize) -> Outcome<f64> {
    let mut connection = Connection::open(extender.address)?;
    let bodies = calls(nodes, BINDS as usize, |_| 1000);
    let mut orders = Vec::new();
    for (number, body) in bodies.iter().enumerate() {
        let pod = asking_pod(number, 1000);
        server.put("pods", pod.clone());
        let answer = connection.ask("filter", body)?.json();
        let node = answer["NodeNames"][number % 10].clone();
        let metadata = &pod["metadata"];
        let order = json!({ "PodName": metadata["name"], "PodNamespace": metadata["namespace"], "PodUID": metadata["uid"], "Node": node });
        orders.push(order.to_string().into_bytes());
    }
    // The events of the filter calls are written at the same time.
    std::thread::sleep(Duration::from_secs(3));
    let before = extender.cpu()?;
    for order in &orders {
        let answer = connection.ask("bind", order)?.json();
        if answer["Error"] != "" {
            return Err(format!("bind: {answer}").into());
        }
    }
    std::thread::sleep(Duration::from_secs(1));
    Ok(micros(extender.cpu()? - before, orders.len()))
}

/// Measures with both sizes and both degrees of fullness.
pub(crate) fn measure_all(figures: &mut Figures) -> Outcome<()> {
    let mut sizes = Vec::new();
    for nodes in [1000, 5000] {
        for tenths in [1, 9] {
            let measured = measure(nodes, tenths)?;
            let state = format!("{nodes} nodes, {tenths}0 % full");
            figures.check(
                format!("{state}: filter at most {MOST_CPU} of decoding and encoding alone: {:.2}", measured.codec),
                measured.codec <= MOST_CPU,
            );
            figures.check(
                format!("{state}: filter at most {MOST_CPU} of the pass-through's CPU: {:.2}", measured.passed),
                measured.passed <= MOST_CPU,
            );
            figures.check(
                format!("{state}: at least {LEAST_RATE} of the pass-through's calls a second: {:.2}", measured.rate),
                measured.rate >= LEAST_RATE,
            );
            figures.check(
                format!(
                    "{state}: a new kind of request at most {MOST_NEW_KIND} us of CPU a node: {:.2}",
                    measured.new_kind
                ),
                measured.new_kind <= MOST_NEW_KIND,
            );
            sizes.push(measured);
        }
    }
    for (small, large) in sizes.iter().zip(sizes.iter().skip(2)) {
        let slope = (large.cpu - small.cpu) / 4.0;
        let growth = large.cpu / small.cpu / 5.0;
        figures.check(
            format!("filter grows by {slope:.0} ns a node, {growth:.2} of proportional (at most {MOST_GROWTH})"),
            growth <= MOST_GROWTH,
        );
        let growth = large.bind / small.bind;
        figures.check(
            format!("a bind costs {growth:.2} with five times the nodes (at most {MOST_BIND_GROWTH})"),
            growth <= MOST_BIND_GROWTH,
        );
        let mib = large.anon_kib >> 10;
        figures.check(format!("RssAnon at most 150 MiB: {mib} MiB"), large.anon_kib <= MOST_MEMORY_KIB);
    }
    Ok(())
}
