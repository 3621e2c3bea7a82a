//! The time from the start of an extender to its first answer, compared with a plain list of the same Nodes and pods from a
//! real API server. `tests/bench/extender` measures the same with a server that answers from memory.

use crate::placed::{Placed, SETTLED};
use crate::seats::{HostExtender, kubeconfig};
use crate::throughput::{CHUNK, GPU_MIB, GPUS, add_nodes, create, pod};
use apiserver::client::{ApiClient, ApiSelection, ObjectForm, ReadAge};
use apiserver::connect;
use apiserver::resource::ApiResource;
use lab::eventually::eventually;
use lab::http;
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;

const NODES: usize = 5_000;
const PODS_A_NODE: usize = 10;
/// The number of concurrent calls that create pods.
const TOGETHER: usize = 8;
/// Objects of one page, as in the extender's requests.
const PAGE: u32 = 500;
/// Rounds in which both take turns. The median of their ratios counts.
const ROUNDS: usize = 5;
const MOST: f64 = 1.5;
/// Longest time without answers while a leader stops and another extender takes over.
const GAP: Duration = Duration::from_secs(3);
/// The number of answers before and after the gap.
const ANSWERS: usize = 50;

#[test]
#[ignore = "takes 15 minutes and a cluster: tests/run --long"]
fn an_extender_answers_soon_after_its_start_where_pods_are_many() {
    let placed = Placed::control_plane("extender-ready");
    add_nodes(&placed, 0..NODES);
    hold(&placed);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let dir = tempfile::tempdir().expect("a directory");
    let account = kubeconfig(&placed, dir.path());
    let mut ratios = Vec::new();
    for round in 1..=ROUNDS {
        let list = plain_list(&runtime, &account);
        let answer = first_answer(&account);
        let ratio = answer.as_secs_f64() / list.as_secs_f64();
        println!(
            "{NODES} nodes, {} pods, round {round}: a plain list takes {:.2} s, an extender answers {:.2} s after its start: \
             {ratio:.3}",
            NODES * PODS_A_NODE,
            list.as_secs_f64(),
            answer.as_secs_f64()
        );
        ratios.push(ratio);
    }
    ratios.sort_by(f64::total_cmp);
    let median = ratios[ROUNDS / 2];
    println!("median {median:.3} (at most {MOST})");
    let gaps: Vec<Duration> = (1..=ROUNDS).map(|round| gap(&placed, &account, round)).collect();
    assert!(median <= MOST && gaps.iter().all(|gap| *gap <= GAP), "{ratios:?} {gaps:?}");
}

/// The time in which no extender answered, while the leader stopped and another extender took over.
fn gap(placed: &Placed, account: &Path, round: usize) -> Duration {
    let start = |name: String| {
        let mut pod = pod(&name, &json!({}));
        pod["spec"]["nodeName"] = "object-0".into();
        create(placed, vec![pod]);
        let space = &*placed.space.name;
        let made = placed.admin.get(&["pod", &name, "-n", space]);
        let uid = made["metadata"]["uid"].as_str().expect("a UID");
        HostExtender::start_in(account, &[("POD_NAME", &name), ("POD_NAMESPACE", space), ("POD_UID", uid)])
    };
    let mut leader = start(format!("leader-{round}"));
    leader.wait_until_leads();
    let mut other = start(format!("other-{round}"));
    eventually("the other extender to be ready", SETTLED, || (other.get("/readyz").status == 200).then_some(()));
    let (stop, begun) = (Arc::new(AtomicBool::new(false)), Instant::now());
    let answers = Arc::new(AtomicUsize::new(0));
    let more_answers = |what: &str| {
        let before = answers.load(Ordering::Relaxed);
        eventually(what, SETTLED, || (answers.load(Ordering::Relaxed) > before + ANSWERS).then_some(()));
    };
    let addresses = [leader.address, other.address];
    let asked = std::thread::spawn({
        let (stop, answers) = (Arc::clone(&stop), Arc::clone(&answers));
        move || asked(addresses, &stop, &answers)
    });
    more_answers("answers of the leader");
    let to_stop = Instant::now();
    leader.terminate();
    let ended = to_stop.elapsed();
    other.wait_until_leads();
    more_answers("answers of the next leader");
    stop.store(true, Ordering::Relaxed);
    let gap = asked.join().expect("the thread ends");
    // The Lease is free again for the next round.
    other.terminate();
    println!(
        "round {round}: nobody answered for {:.2} s; the leader ended {:.2} s after SIGTERM; {} answers in {:.1} s",
        gap.as_secs_f64(),
        ended.as_secs_f64(),
        answers.load(Ordering::Relaxed),
        begun.elapsed().as_secs_f64()
    );
    gap
}

/// Calls both extenders in turn as kube-scheduler does. Counts the answers, and returns the longest time between two answers.
fn asked(addresses: [SocketAddr; 2], stop: &AtomicBool, answers: &AtomicUsize) -> Duration {
    let (body, kind) = (question().into_bytes(), [("Content-Type", "application/json")]);
    let (mut last, mut gap) = (Instant::now(), Duration::ZERO);
    while !stop.load(Ordering::Relaxed) {
        for address in addresses {
            let answer = http::request(address, "POST", "/filter", &kind, &body);
            if answer.is_ok_and(|answer| answer.status == 200) {
                answers.fetch_add(1, Ordering::Relaxed);
                (gap, last) = (gap.max(last.elapsed()), Instant::now());
            }
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    gap
}

fn question() -> String {
    let limits = json!({ "nvidia.com/gpu": "1", "nvidia.com/gpumem": "1000" });
    let question = json!({
        "Pod": {
            "metadata": { "name": "asks", "namespace": "ml", "uid": "0f5b9a3e-0d2c-4b7f-9a51-2f1f6a1f8d11" },
            "spec": { "containers": [{ "name": "main", "resources": { "limits": limits } }] },
        },
        "Nodes": null, "NodeNames": ["object-0", "object-1"],
    });
    question.to_string()
}

/// Pods with claims on all Nodes.
fn hold(placed: &Placed) {
    let pods: Vec<Value> = (0..NODES * PODS_A_NODE).map(held).collect();
    let calls: Vec<&[Value]> = pods.chunks(CHUNK).collect();
    std::thread::scope(|scope| {
        for first in 0..TOGETHER {
            let calls = &calls;
            scope.spawn(move || {
                calls.iter().skip(first).step_by(TOGETHER).for_each(|pods| create(placed, pods.to_vec()))
            });
        }
    });
}

fn held(number: usize) -> Value {
    let (node, gpu) = (number / PODS_A_NODE, number % PODS_A_NODE % GPUS);
    let mib = GPU_MIB / 10;
    let limits = json!({ "nvidia.com/gpu": 1, "nvidia.com/gpumem": mib, "nvidia.com/gpucores": 5 });
    let claim = format!("GPU-{node:08x}-0000-4000-8000-{gpu:012x},NVIDIA,{mib},5:;");
    let node = format!("object-{node}");
    let mut pod = pod(&format!("held-{number}"), &limits);
    pod["spec"]["nodeName"] = node.as_str().into();
    pod["metadata"]["annotations"] = json!({
        "hami.io/vgpu-devices-allocated": claim, "hami.io/vgpu-devices-to-allocate": ";", "hami.io/vgpu-node": node,
        "hami.io/vgpu-time": "1795256507", "hami.io/bind-time": "1795256507", "hami.io/bind-phase": "success",
        "gpu-steward.io/epoch": "1", "gpu-steward.io/claim-version": "1/0",
    });
    pod
}

/// Reads all Nodes and then all pods in pages, in the same formats as the extender, and decodes only the token of the next
/// page.
fn plain_list(runtime: &Runtime, account: &Path) -> Duration {
    runtime.block_on(async {
        let client = ApiClient::new(connect(Some(account)).await.expect("a connection"));
        let begun = Instant::now();
        for (resource, form) in [(ApiResource::Nodes, ObjectForm::Metadata), (ApiResource::Pods, ObjectForm::Whole)] {
            let selection = ApiSelection::all(resource, form);
            let mut age = ReadAge::Newest;
            loop {
                let page = client.list(&selection, &age, Some(PAGE)).await.expect("a page");
                match token(&page) {
                    Some(token) => age = ReadAge::Continued(token),
                    None => break,
                }
            }
        }
        begun.elapsed()
    })
}

/// The token comes before the objects.
fn token(page: &[u8]) -> Option<String> {
    let head = String::from_utf8_lossy(&page[..page.len().min(4096)]);
    let (_, rest) = head.split_once("\"continue\":\"")?;
    Some(rest.split_once('"').expect("its end").0.to_owned())
}

/// Starts an extender, calls it until it answers, and stops it.
fn first_answer(account: &Path) -> Duration {
    let body = question().into_bytes();
    let kind = [("Content-Type", "application/json")];
    let begun = Instant::now();
    let mut extender = HostExtender::start_from(account);
    let answer = eventually("an answer", SETTLED, || {
        let answer = http::request(extender.address, "POST", "/filter", &kind, &body).ok()?;
        (answer.status == 200).then(|| (begun.elapsed(), answer.json()))
    });
    // The extender has read the Nodes and their claims.
    assert_eq!(answer.1["NodeNames"].as_array().map(Vec::len), Some(2), "{}", answer.1);
    // The Lease is free again for the next extender.
    extender.terminate();
    answer.0
}
