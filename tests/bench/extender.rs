//! Measures what the extender costs for a filter call and a bind, and how much memory it holds, beside a pass-through
//! extender in the same run that only decodes and encodes the same messages (`tests/lab/pass_through.rs`). The state has
//! nodes with 8 GPUs and ten claims each; 10 or 90 % of the nodes are full, so that the answers have as many reasons.
//!
//! ```text
//!   this program ──filter──▶ gpu-steward extender ──▶ fake API server in this program
//!                ──filter──▶ pass-through (this program again)
//! ```
//!
//! `tests/run --long extender` runs it. CPU time is that of the whole process, by the scheduler's nanoseconds. Times on a
//! shared machine say little, so each check is a ratio in one interleaved run, or is about memory.

#![allow(clippy::print_stdout, reason = "a bench prints what it measured")]

use lab::api_server::FakeApiServer;
use lab::eventually::eventually;
use lab::http::{self, HttpResponse, read_answer};
use lab::pass_through;
use serde_json::{Value, json};
use std::error::Error;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

type Outcome<T> = Result<T, Box<dyn Error>>;

const GPUS: usize = 8;
const PODS_A_NODE: usize = 10;
const GPU_MIB: u64 = 81_920;
const SOON: Duration = Duration::from_secs(300);
/// Rounds in which both programs take turns. The median of their ratios counts.
const ROUNDS: usize = 7;
/// Names in all calls of one round: as many calls as make this many.
const NAMES_A_ROUND: usize = 400_000;
const CONNECTIONS: usize = 8;
/// Kinds of requests that alternate, as if so many Deployments grew at once.
const KINDS: usize = 4;
const BINDS: u32 = 200;

/// The marks.
const MOST_CPU: f64 = 3.0;
const LEAST_RATE: f64 = 0.7;
const MOST_MEMORY_KIB: u64 = 150 << 10;
/// By how much the cost of a node may grow between 1,000 and 5,000 nodes: more would not be linear.
const MOST_GROWTH: f64 = 1.5;
/// By how much a bind may cost more with five times the nodes. It is some hundred microseconds of asynchronous work, so it
/// varies.
const MOST_BIND_GROWTH: f64 = 1.5;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().collect();
    if arguments.get(1).map(String::as_str) == Some("pass-through") {
        let tenths = arguments.get(2).and_then(|text| text.parse().ok()).unwrap_or(1);
        return if pass_through::serve(tenths).is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    }
    if std::env::var_os("EXTENDER").is_none() {
        println!("extender: takes minutes; run it with tests/run --long extender");
        return ExitCode::SUCCESS;
    }
    match bench() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            println!("extender: {error}");
            ExitCode::FAILURE
        }
    }
}

/// A child process that ends with the bench.
struct Served {
    child: Child,
    address: SocketAddr,
    _dir: Option<TempDir>,
}

impl Drop for Served {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Served {
    fn pass_through(tenths: u8) -> Outcome<Served> {
        let mut child = Command::new(std::env::current_exe()?)
            .args(["pass-through", &tenths.to_string()])
            .stdout(Stdio::piped())
            .spawn()?;
        let mut line = String::new();
        BufReader::new(child.stdout.take().ok_or("no output")?).read_line(&mut line)?;
        Ok(Served { child, address: line.trim().parse()?, _dir: None })
    }

    fn extender(server: &FakeApiServer) -> Outcome<Served> {
        let dir = tempfile::tempdir()?;
        let log = dir.path().join("log");
        let child = Command::new(env!("CARGO_BIN_EXE_gpu-steward"))
            .args(["extender", "--extender-listen", "127.0.0.1:0", "--log-format", "json"])
            .arg("--kubeconfig")
            .arg(server.kubeconfig(dir.path()))
            .env_clear()
            .stdin(Stdio::null())
            .stderr(File::create(&log)?)
            .spawn()?;
        let address = eventually("the address of the extender", SOON, || {
            let text = fs::read_to_string(&log).ok()?;
            let (_, rest) = text.split_once("\"address\":\"")?;
            rest.split_once('"')?.0.parse().ok()
        });
        let served = Served { child, address, _dir: Some(dir) };
        eventually("the extender to lead", SOON, || {
            http::get(address, "/leadz").is_ok_and(|answer| answer.status == 200).then_some(())
        });
        Ok(served)
    }

    /// CPU time of all threads.
    fn cpu(&self) -> Outcome<Duration> {
        let mut sum = 0;
        for task in fs::read_dir(format!("/proc/{}/task", self.child.id()))? {
            let text = fs::read_to_string(task?.path().join("schedstat"))?;
            sum += text.split(' ').next().ok_or("schedstat is empty")?.parse::<u64>()?;
        }
        Ok(Duration::from_nanos(sum))
    }

    fn anon_kib(&self) -> Outcome<u64> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id()))?;
        let line = status.lines().find(|line| line.starts_with("RssAnon:")).ok_or("no RssAnon")?;
        Ok(line.split_whitespace().nth(1).ok_or("no number")?.parse()?)
    }
}

/// A connection that stays open.
struct Connection(BufReader<TcpStream>, SocketAddr);

impl Connection {
    fn open(address: SocketAddr) -> Outcome<Connection> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(SOON))?;
        Ok(Connection(BufReader::new(stream), address))
    }

    fn ask(&mut self, verb: &str, body: &[u8]) -> Outcome<HttpResponse> {
        let address = self.1;
        let head = format!(
            "POST /{verb} HTTP/1.1\r\nHost: {address}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        let stream = self.0.get_mut();
        stream.write_all(head.as_bytes())?;
        stream.write_all(body)?;
        let answer = read_answer(&mut self.0)?;
        if answer.status == 200 { Ok(answer) } else { Err(format!("{verb}: {}", answer.text()).into()) }
    }
}

// === the cluster ===

fn node_name(number: usize) -> String {
    format!("gpu-node-{number:05}")
}

fn uid(number: usize) -> String {
    format!("{number:08x}-0000-4000-8000-000000000001")
}

/// Nodes with 8 GPUs each and ten pods with claims. Of ten nodes so many are full.
fn cluster(nodes: usize, tenths: u8) -> FakeApiServer {
    let server = FakeApiServer::start();
    for number in 0..nodes {
        let name = node_name(number);
        let gpu = |index: usize| {
            json!({
                "id": format!("GPU-{number:08x}-0000-4000-8000-{index:012x}"), "index": index, "count": 10,
                "devmem": GPU_MIB, "devcore": 100, "type": "NVIDIA-NVIDIA H100 80GB HBM3", "numa": index / 4,
                "mode": "hami-core", "health": true,
            })
        };
        let register = Value::from((0..GPUS).map(gpu).collect::<Vec<_>>()).to_string();
        let annotations = json!({ "hami.io/node-nvidia-register": register });
        let metadata = json!({ "name": name, "uid": format!("uid-{number}"), "annotations": annotations });
        server.put("nodes", json!({ "metadata": metadata }));
        let mib = if pass_through::is_full(&name, tenths) { GPU_MIB / 10 * 9 } else { GPU_MIB / 10 };
        for place in 0..PODS_A_NODE {
            let mib = if place < GPUS { mib } else { 100 };
            let claim = format!("GPU-{number:08x}-0000-4000-8000-{:012x},NVIDIA,{mib},5:;", place % GPUS);
            server.put("pods", held_pod((number * PODS_A_NODE + place, &name), mib, &claim));
        }
    }
    server
}

/// A pod that runs and holds a GPU.
fn held_pod((number, node): (usize, &str), mib: u64, claim: &str) -> Value {
    let limits = json!({ "nvidia.com/gpu": "1", "nvidia.com/gpumem": mib.to_string(), "nvidia.com/gpucores": "5" });
    json!({
        "metadata": {
            "name": format!("held-{number}"), "namespace": "ml", "uid": uid(number), "creationTimestamp": "2026-11-21T10:00:00Z",
            "annotations": {
                "hami.io/vgpu-devices-allocated": claim, "hami.io/vgpu-devices-to-allocate": ";", "hami.io/vgpu-node": node,
                "hami.io/vgpu-time": "1795256507", "hami.io/bind-time": "1795256507", "hami.io/bind-phase": "success",
                "gpu-steward.io/epoch": "1", "gpu-steward.io/claim-version": "1/0",
            },
        },
        "spec": {
            "nodeName": node,
            "containers": [{ "name": "main", "image": "registry.example/train:1", "resources": { "limits": limits, "requests": limits } }],
        },
        "status": {
            "phase": "Running",
            "containerStatuses": [{ "name": "main", "containerID": format!("containerd://{number:064x}"), "state": { "running": {} } }],
        },
    })
}

/// A pod as kube-scheduler sends it, with what a real API server adds.
fn asking_pod(number: usize, mib: u64) -> Value {
    let limits = json!({ "nvidia.com/gpu": "1", "nvidia.com/gpumem": mib.to_string(), "nvidia.com/gpucores": "5" });
    let owned = json!({ "f:spec": { "f:containers": { "k:{\"name\":\"main\"}": { ".": {}, "f:image": {}, "f:imagePullPolicy": {},
        "f:name": {}, "f:resources": { ".": {}, "f:limits": { ".": {}, "f:nvidia.com/gpu": {}, "f:nvidia.com/gpumem": {} } },
        "f:terminationMessagePath": {}, "f:terminationMessagePolicy": {} } }, "f:dnsPolicy": {}, "f:enableServiceLinks": {},
        "f:restartPolicy": {}, "f:schedulerName": {}, "f:securityContext": {}, "f:terminationGracePeriodSeconds": {} } });
    json!({
        "metadata": {
            "name": format!("asks-{number}"), "namespace": "ml", "uid": uid(0x0fff_0000 + number),
            "creationTimestamp": "2026-11-21T10:00:00Z",
            "managedFields": [{ "manager": "kube-controller-manager", "operation": "Update", "apiVersion": "v1",
                "time": "2026-11-21T10:00:00Z", "fieldsType": "FieldsV1", "fieldsV1": owned }],
        },
        "spec": {
            "volumes": [{ "name": "kube-api-access", "projected": { "sources": [
                { "serviceAccountToken": { "expirationSeconds": 3607, "path": "token" } },
                { "configMap": { "name": "kube-root-ca.crt", "items": [{ "key": "ca.crt", "path": "ca.crt" }] } },
            ], "defaultMode": 420 } }],
            "containers": [{
                "name": "main", "image": "registry.example/train:1", "resources": { "limits": limits, "requests": limits },
                "volumeMounts": [{ "name": "kube-api-access", "readOnly": true, "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount" }],
                "terminationMessagePath": "/dev/termination-log", "imagePullPolicy": "IfNotPresent",
            }],
            "restartPolicy": "Always", "terminationGracePeriodSeconds": 30, "dnsPolicy": "ClusterFirst",
            "serviceAccountName": "default", "schedulerName": "gpu-steward", "priority": 0,
            "tolerations": [{ "key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300 }],
        },
        "status": { "phase": "Pending", "qosClass": "BestEffort" },
    })
}

/// The bodies of filter calls about all nodes.
fn calls(nodes: usize, count: usize, mib: impl Fn(usize) -> u64) -> Vec<Vec<u8>> {
    let names: Vec<String> = (0..nodes).map(node_name).collect();
    let one = |number: usize| {
        let call = json!({ "Pod": asking_pod(number, mib(number)), "Nodes": null, "NodeNames": names });
        call.to_string().into_bytes()
    };
    (0..count).map(one).collect()
}

// === measurements ===

/// CPU time of one call, in microseconds, with all calls on one connection.
fn cpu_of(program: &Served, bodies: &[Vec<u8>]) -> Outcome<f64> {
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
fn rate_of(program: &Served, bodies: &[Vec<u8>]) -> Outcome<f64> {
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

fn micros(time: Duration, calls: usize) -> f64 {
    time.as_secs_f64() * 1e6 / many(calls)
}

#[expect(clippy::cast_precision_loss, reason = "numbers of calls and nodes")]
fn many(number: usize) -> f64 {
    number as f64
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// What was measured with one cluster.
struct Measured {
    cpu: f64,
    codec: f64,
    passed: f64,
    rate: f64,
    bind: f64,
    anon_kib: u64,
}

fn measure(nodes: usize, tenths: u8) -> Outcome<Measured> {
    let server = cluster(nodes, tenths);
    let (extender, pass) = (Served::extender(&server)?, Served::pass_through(tenths)?);
    let bodies = calls(nodes, (NAMES_A_ROUND / nodes).max(2 * CONNECTIONS), |number| 16_000 + many_kinds(number));
    check(&extender, &bodies[0], (nodes, tenths))?;
    check(&pass, &bodies[0], (nodes, tenths))?;
    let (mut cpu, mut passed, mut codecs, mut rates) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        cpu.push(cpu_of(&extender, &bodies)?);
        passed.push(cpu_of(&pass, &bodies)?);
        codecs.push(codec(&bodies, tenths)?);
        rates.push(rate_of(&extender, &bodies)? / rate_of(&pass, &bodies)?);
    }
    // Each call has a request that no call before it had, so that nothing of the verdicts can be kept.
    let fresh = calls(nodes, 2 * CONNECTIONS, |number| 20_000 + u64::try_from(number).unwrap_or(0));
    let first = cpu_of(&extender, &fresh)?;
    let ratios = |of: &[f64]| median(cpu.iter().zip(of).map(|(one, other)| one / other).collect());
    let (to_codec, to_pass, rate) = (ratios(&codecs), ratios(&passed), median(rates));
    let bind = bind(&server, &extender, nodes)?;
    let anon_kib = extender.anon_kib()?;
    let (cpu, passed, codecs) = (median(cpu), median(passed), median(codecs));
    println!(
        "{nodes} nodes, {tenths}0 % full: filter {cpu:.0} us of CPU, pass-through {passed:.0} us, decoding and encoding alone \
         {codecs:.0} us; ratios {to_pass:.2} and {to_codec:.2}"
    );
    println!(
        "      a request of a new kind {first:.0} us; with {CONNECTIONS} connections {rate:.2} of the pass-through's calls a second"
    );
    println!("      bind {bind:.0} us of CPU; RssAnon {anon_kib} KiB with {} claims", nodes * PODS_A_NODE);
    Ok(Measured { cpu, codec: to_codec, passed: to_pass, rate, bind, anon_kib })
}

fn many_kinds(number: usize) -> u64 {
    u64::try_from(number % KINDS).unwrap_or(0) * 500
}

/// The answer has as many nodes with a reason as are full.
fn check(program: &Served, body: &[u8], (nodes, tenths): (usize, u8)) -> Outcome<()> {
    let answer = Connection::open(program.address)?.ask("filter", body)?.json();
    let fit = answer["NodeNames"].as_array().map_or(0, Vec::len);
    let failed = answer["FailedNodes"].as_object().ok_or("no reasons")?;
    let full = nodes / 10 * usize::from(tenths);
    let reasons = failed.values().all(|why| why == pass_through::REASON);
    if (fit, failed.len(), reasons) == (nodes - full, full, true) {
        Ok(())
    } else {
        Err(format!("{fit} nodes fit and {} do not, of {nodes} of which {full} are full: {answer:.300}", failed.len())
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
    // The events of the filter calls are written beside.
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

fn bench() -> Outcome<bool> {
    let mut checks: Vec<(String, bool)> = Vec::new();
    let mut sizes = Vec::new();
    for nodes in [1000, 5000] {
        for tenths in [1, 9] {
            let measured = measure(nodes, tenths)?;
            let state = format!("{nodes} nodes, {tenths}0 % full");
            checks.push((
                format!("{state}: filter at most {MOST_CPU} of decoding and encoding alone: {:.2}", measured.codec),
                measured.codec <= MOST_CPU,
            ));
            checks.push((
                format!("{state}: filter at most {MOST_CPU} of the pass-through's CPU: {:.2}", measured.passed),
                measured.passed <= MOST_CPU,
            ));
            checks.push((
                format!("{state}: at least {LEAST_RATE} of the pass-through's calls a second: {:.2}", measured.rate),
                measured.rate >= LEAST_RATE,
            ));
            sizes.push(measured);
        }
    }
    for (small, large) in sizes.iter().zip(sizes.iter().skip(2)) {
        let slope = (large.cpu - small.cpu) / 4.0;
        let growth = large.cpu / small.cpu / 5.0;
        checks.push((
            format!("filter grows by {slope:.0} ns a node, {growth:.2} of proportional (at most {MOST_GROWTH})"),
            growth <= MOST_GROWTH,
        ));
        let growth = large.bind / small.bind;
        checks.push((
            format!("a bind costs {growth:.2} with five times the nodes (at most {MOST_BIND_GROWTH})"),
            growth <= MOST_BIND_GROWTH,
        ));
        let mib = large.anon_kib >> 10;
        checks.push((format!("RssAnon at most 150 MiB: {mib} MiB"), large.anon_kib <= MOST_MEMORY_KIB));
    }
    for (what, holds) in &checks {
        println!("{}  {what}", if *holds { "ok  " } else { "FAIL" });
    }
    Ok(checks.iter().all(|(_, holds)| *holds))
}
