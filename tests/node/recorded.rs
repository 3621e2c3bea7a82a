//! Places the pods of a recording of HAMi 2.10.0's scheduler, on the same nodes in the same state, and writes both answers
//! side by side (`docs/compatibility.md`). A different answer needs a reason: either both chose among equal GPUs, which
//! this test checks, or the reason is listed in `REASONS`.
//!
//! ```text
//!   tests/golden/hami/cases.json ──pod──▶ /filter, /bind of the extender ──▶ its node and claim ─┐
//!        │                                                                                       ├─▶ a row
//!        └─ HAMi's node and claim ───────────────────────────────────────────────────────────────┘
//!   then the pod gets HAMi's claim instead of its own, so that the next case starts in the same state as for HAMi
//! ```

use crate::extender::{CLAIM, Extender, SOON, stored};
use lab::api_server::FakeApiServer;
use lab::eventually::eventually;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fmt::Write as _;

const CASES: &str = include_str!("../golden/hami/cases.json");
const PAGE: &str = "docs/compatibility.md";
const BEGIN: &str = "<!-- made from tests/golden/hami/cases.json by UPDATE_GOLDEN=1 cargo test -->\n";
const END: &str = "<!-- end of the recorded cases -->\n";
/// Name, product, GPUs, MiB of each GPU. The recording has no register: the amounts of A100 and T4 follow from its claims
/// and scores, and the amount of an H100 is NVML's.
const NODES: [(&str, &str, usize, u64); 3] = [
    ("a100", "NVIDIA A100-SXM4-80GB", 4, 81_920),
    ("t4", "NVIDIA Tesla T4", 4, 15_360),
    ("h100", "NVIDIA H100 80GB HBM3", 8, 81_559),
];
/// The reason why an answer differs, by case.
const REASONS: [(&str, &str); 1] = [(
    "too-many-cores",
    "No GPU has 101 % of SM time. HAMi grants 100 % without a word; here the pod is refused and its event names the amount.",
)];

/// The used part of a GPU: containers, percent of SM time, MiB.
type Used = (u64, u64, u64);

/// The device shares of each container that has any.
fn shares(claim: &str) -> Vec<Vec<(String, u64, u64)>> {
    let share = |text: &str| {
        let fields: Vec<&str> = text.split(',').collect();
        (fields[0].to_owned(), fields[2].parse().unwrap(), fields[3].parse().unwrap())
    };
    let containers =
        claim.split(';').map(|part| part.split(':').filter(|text| text.contains(',')).map(share).collect());
    containers.filter(|shares: &Vec<_>| !shares.is_empty()).collect()
}

/// The part of each GPU that the claim takes: the maximum of the init containers, which run one after the other, and the sum
/// of the other containers.
fn taken(claim: &str, inits: usize) -> BTreeMap<String, Used> {
    let (mut init, mut app): (BTreeMap<String, Used>, BTreeMap<String, Used>) = Default::default();
    for (place, container) in shares(claim).into_iter().enumerate() {
        for (gpu, memory, cores) in container {
            if place < inits {
                let most = init.entry(gpu).or_default();
                *most = (1, most.1.max(cores), most.2.max(memory));
            } else {
                let sum = app.entry(gpu).or_default();
                *sum = (sum.0 + 1, sum.1 + cores, sum.2 + memory);
            }
        }
    }
    for (gpu, other) in init {
        let sum = app.entry(gpu).or_default();
        *sum = (sum.0.max(other.0), sum.1.max(other.1), sum.2.max(other.2));
    }
    app
}

fn nodes(server: &FakeApiServer) {
    for (name, product, gpus, memory) in NODES {
        let gpu = |index: usize| {
            json!({
                "id": format!("GPU-{name}-{index:04}-0000-0000-000000000000"), "index": index, "count": 10, "devmem": memory,
                "devcore": 100, "type": product, "numa": 0, "mode": "hami-core", "health": true,
            })
        };
        let register = Value::from((0..gpus).map(gpu).collect::<Vec<_>>()).to_string();
        let annotations = json!({ "hami.io/node-nvidia-register": register });
        let name = format!("g-{name}");
        let metadata = json!({ "name": name, "uid": format!("uid-{name}"), "annotations": annotations });
        server.put("nodes", json!({ "metadata": metadata }));
    }
}

fn pod(server: &FakeApiServer, number: usize, case: &Value) -> Value {
    let containers = |key: &str| -> Vec<Value> {
        let list = case[key].as_array().unwrap().iter().enumerate();
        list.map(|(n, limits)| json!({ "name": format!("{}{n}", &key[..1]), "image": "x", "resources": { "limits": limits } }))
            .collect()
    };
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "name": case["case"], "namespace": "ml", "uid": format!("{number:08x}-0000-4000-8000-00000000000a"),
            "creationTimestamp": "2026-11-21T10:00:00Z", "annotations": case["annotations"],
        },
        "spec": { "initContainers": containers("initContainers"), "containers": containers("containers") },
        "status": { "phase": "Pending" },
    });
    server.put("pods", pod.clone());
    pod
}

/// The reasons of a refusal by node, without numbers.
fn reasons(failed: &[&Value]) -> BTreeMap<String, String> {
    let all = failed.iter().filter_map(|map| map.as_object()).flatten();
    // HAMi writes "4/4 CardTypeMismatch".
    let counted = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'/');
    let without = |one: &str| match one.split_once(' ') {
        Some((number, rest)) if counted(number) => rest.to_owned(),
        _ => one.to_owned(),
    };
    let plain = |text: &str| text.split(", ").map(without).collect::<Vec<_>>().join(", ");
    all.map(|(node, why)| (node.clone(), plain(why.as_str().unwrap()))).collect()
}

/// How the reasons compare, if no listed reason is needed.
fn same_reasons(ours: &BTreeMap<String, String>, hamis: &BTreeMap<String, String>) -> Option<&'static str> {
    let without = ours.iter().map(|(node, why)| (node.clone(), why.replace("NodeUnfitPod: ", "")));
    if ours == hamis {
        Some("same")
    } else if without.collect::<BTreeMap<_, _>>() == *hamis {
        Some("the same reasons, led by the code that HAMi's debugging guide has for them")
    } else {
        None
    }
}

/// The claim in readable form: GPUs and amounts of each container.
fn told(claim: &str) -> String {
    let share = |(gpu, memory, cores): &(String, u64, u64)| {
        let name = gpu.trim_start_matches("GPU-").trim_end_matches("-0000-0000-000000000000");
        let cores = if *cores > 0 { format!(" {cores} %") } else { String::new() };
        format!("{name} {memory} MiB{cores}")
    };
    let containers = shares(claim).into_iter().map(|shares| shares.iter().map(share).collect::<Vec<_>>().join(" + "));
    containers.collect::<Vec<_>>().join("; ")
}

/// How the claims compare, if no listed reason is needed: the same GPUs, or other GPUs that were equal when the pod came.
fn verdict(ours: &str, hamis: &str, used: &BTreeMap<String, Used>) -> Option<&'static str> {
    let (ours, hamis) = (shares(ours), shares(hamis));
    let sorted = |claim: &[Vec<(String, u64, u64)>]| -> Vec<Vec<(String, u64, u64)>> {
        let sort = |mut shares: Vec<(String, u64, u64)>| {
            shares.sort();
            shares
        };
        claim.iter().cloned().map(sort).collect()
    };
    // Each GPU is replaced by its used part.
    let states = |claim: &[Vec<(String, u64, u64)>]| -> Vec<Vec<(Used, u64, u64)>> {
        let of = |gpu: &String| used.get(gpu).copied().unwrap_or_default();
        let sort = |shares: &Vec<(String, u64, u64)>| {
            let mut states: Vec<_> = shares.iter().map(|(gpu, memory, cores)| (of(gpu), *memory, *cores)).collect();
            states.sort_unstable();
            states
        };
        claim.iter().map(sort).collect()
    };
    if ours == hamis {
        Some("same")
    } else if sorted(&ours) == sorted(&hamis) {
        Some("same GPUs, written in the order of their index; HAMi writes the last one first")
    } else if states(&ours) == states(&hamis) {
        Some("equal GPUs: of these HAMi takes the one with the highest index, the extender the lowest")
    } else {
        None
    }
}

/// The most that the pod takes at one time from a node whose GPUs have this memory.
fn own(case: &Value, memory: u64) -> Used {
    let of = |limits: &Value| -> Used {
        let number = |name: &str| limits[name].as_str().map(|text| text.parse::<u64>().unwrap());
        let count = number("nvidia.com/gpu").unwrap_or(0);
        let percent = number("nvidia.com/gpumem-percentage").unwrap_or(100);
        let mib = number("nvidia.com/gpumem").unwrap_or(memory * percent / 100);
        (count, count * number("nvidia.com/gpucores").unwrap_or(0), count * mib)
    };
    let all = |key: &str| -> Vec<Used> { case[key].as_array().unwrap().iter().map(of).collect() };
    let (inits, apps) = (all("initContainers"), all("containers"));
    let sum = apps.into_iter().fold((0, 0, 0), |sum: Used, one| (sum.0 + one.0, sum.1 + one.1, sum.2 + one.2));
    inits.into_iter().fold(sum, |most, one| (most.0.max(one.0), most.1.max(one.1), most.2.max(one.2)))
}

/// How full a node is, in parts of a million: the mean of slots, SM time and memory.
fn fill(node: &str, used: &BTreeMap<String, Used>, pod: Option<&Value>) -> u64 {
    let (name, _, gpus, memory) = NODES.into_iter().find(|(name, ..)| node == format!("g-{name}")).unwrap();
    let there = used.iter().filter(|(gpu, _)| gpu.starts_with(&format!("GPU-{name}-"))).map(|(_, used)| *used);
    let own = pod.map_or((0, 0, 0), |case| own(case, memory));
    let sum = there.fold(own, |sum: Used, one| (sum.0 + one.0, sum.1 + one.1, sum.2 + one.2));
    let gpus = u64::try_from(gpus).unwrap();
    (sum.0 * 1_000_000 / (10 * gpus) + sum.1 * 1_000_000 / (100 * gpus) + sum.2 * 1_000_000 / (memory * gpus)) / 3
}

/// Why the nodes differ, if the reason is that the extender's score includes the pod's own request and HAMi's does not.
fn other_node(
    case: &Value,
    (ours, hamis): (&str, &str),
    fit: &[&str],
    used: &BTreeMap<String, Used>,
) -> Option<String> {
    let spread = case["annotations"]["hami.io/node-scheduler-policy"] == "spread";
    let best = |pod: Option<&Value>, node: &str| {
        let of = |node: &str| if spread { u64::MAX - fill(node, used, pod) } else { fill(node, used, pod) };
        fit.iter().all(|other| of(other) <= of(node))
    };
    let part = |node: &str, pod| fill(node, used, pod) / 1000;
    (best(Some(case), ours) && best(None, hamis)).then(|| {
        format!(
            "with the pod {ours} is at {} ‰ and {hamis} at {}; without it, as HAMi counts, at {} and {}",
            part(ours, Some(case)),
            part(hamis, Some(case)),
            part(ours, None),
            part(hamis, None)
        )
    })
}

/// The answer for one case: the nodes that fit, the best one first, and why the others do not fit.
fn asked(extender: &Extender, pod: &Value) -> (Vec<String>, BTreeMap<String, String>) {
    let names = ["g-a100", "g-t4", "g-h100"];
    let answer = extender.filter(pod, &names);
    let fit = answer["NodeNames"].as_array().cloned().unwrap_or_default();
    let failed = reasons(&[&answer["FailedNodes"], &answer["FailedAndUnresolvableNodes"]]);
    let question = json!({ "Pod": pod, "Nodes": null, "NodeNames": fit });
    let mut scores: Vec<(i64, String)> = match fit.is_empty() {
        true => Vec::new(),
        false => extender
            .ask("prioritize", &question)
            .json()
            .as_array()
            .unwrap()
            .iter()
            .map(|one| (-one["Score"].as_i64().unwrap(), one["Host"].as_str().unwrap().to_owned()))
            .collect(),
    };
    scores.sort();
    (scores.into_iter().map(|(_, node)| node).collect(), failed)
}

/// The row of one case. Afterwards the cluster has the same state as in HAMi's recording.
fn row(
    server: &FakeApiServer,
    extender: &Extender,
    (number, case): (usize, &Value),
    used: &BTreeMap<String, Used>,
) -> String {
    let name = case["case"].as_str().unwrap();
    let mut pod = pod(server, number, case);
    let (fit, failed) = asked(extender, &pod);
    let fit: Vec<&str> = fit.iter().map(String::as_str).collect();
    let hamis = case["node"].as_str().zip(case["claim"].as_str());
    let listed = REASONS.iter().find(|(of, _)| *of == name).map(|(_, why)| (*why).to_owned());
    let because = |same: Option<String>| {
        same.or(listed.clone()).unwrap_or_else(|| panic!("{name}: a difference without a reason: {fit:?} {failed:?}"))
    };
    let (theirs, ours, why) = match (hamis, &fit[..]) {
        (None, []) => {
            let theirs = reasons(&[&case["failed"]]);
            let same = same_reasons(&failed, &theirs).map(str::to_owned);
            (format!("{theirs:?}"), format!("{failed:?}"), because(same))
        }
        (None, fit) => {
            let same = fit.len() == NODES.len() && case["failed"] == json!({});
            (
                "is not asked".to_owned(),
                "all nodes".to_owned(),
                because(same.then(|| "same: it requests no GPU".to_owned())),
            )
        }
        (Some((node, claim)), []) => (format!("{node}: {}", told(claim)), format!("{failed:?}"), because(None)),
        (Some((node, theirs)), [best, ..]) => {
            assert_eq!(extender.bind(&pod, node), "", "{name}: {}", extender.log());
            let claim = stored(server, &pod)["metadata"]["annotations"][CLAIM].as_str().unwrap().to_owned();
            let gpus = verdict(&claim, theirs, used).map(str::to_owned);
            let same = match *best == node {
                true => gpus,
                false => gpus.zip(other_node(case, (best, node), &fit, used)).map(|(gpus, why)| match &*gpus {
                    "same" => format!("{why}. On {node} the same GPUs"),
                    other => format!("{why}. On {node} {other}"),
                }),
            };
            (
                format!("{node}: {}", told(theirs)),
                format!(
                    "{}{node}: {}",
                    if *best == node { String::new() } else { format!("{best}; on ") },
                    told(&claim)
                ),
                because(same),
            )
        }
    };
    match hamis {
        // A request that is refused here has no claim afterwards.
        Some((node, claim)) if !fit.is_empty() => becomes(server, extender, (&mut pod, name), (node, claim)),
        _ => server.remove("pods", "ml", name),
    }
    let plain = |text: String| text.replace(['{', '}', '"', '\\'], "");
    format!("| `{name}` | {} | {} | {why} |\n", plain(theirs), plain(ours))
}

/// Gives the pod HAMi's node and claim, and waits until the extender knows.
fn becomes(server: &FakeApiServer, extender: &Extender, (pod, name): (&mut Value, &str), (node, claim): (&str, &str)) {
    pod["spec"]["nodeName"] = node.into();
    pod["metadata"]["annotations"][CLAIM] = claim.into();
    pod["metadata"]["annotations"]["hami.io/vgpu-time"] = "1795256507".into();
    server.put("pods", pod.clone());
    let gpus: Vec<String> = taken(claim, 0).into_keys().collect();
    eventually("HAMi's claim in the ledger", SOON, || {
        let text = extender.get("/metrics/hami").text();
        let of_pod = format!("pod=\"{name}\"");
        let of_this = |line: &&str| line.starts_with("hami_vgpu_memory_allocated_bytes{") && line.contains(&of_pod);
        let held: Vec<&str> = text.lines().filter(of_this).collect();
        let all = gpus.iter().all(|gpu| held.iter().any(|line| line.contains(gpu)));
        (all && held.iter().all(|line| gpus.iter().any(|gpu| line.contains(gpu)))).then_some(())
    });
}

#[test]
fn the_recorded_cases_of_hami_are_answered_alike_or_for_a_reason() {
    let server = FakeApiServer::start();
    nodes(&server);
    let extender = Extender::led(&server);
    let mut text = "| case | HAMi 2.10.0 | the extender | comparison |\n|---|---|---|---|\n".to_owned();
    let mut used: BTreeMap<String, Used> = BTreeMap::new();
    let cases: Vec<Value> = serde_json::from_str(CASES).unwrap();
    assert_eq!(cases.len(), 21);
    for (number, case) in cases.iter().enumerate() {
        let _ = write!(text, "{}", row(&server, &extender, (number, case), &used));
        if let Some(claim) = case["claim"].as_str() {
            for (gpu, (slots, cores, memory)) in taken(claim, case["initContainers"].as_array().unwrap().len()) {
                let sum = used.entry(gpu).or_default();
                *sum = (sum.0 + slots, sum.1 + cores, sum.2 + memory);
            }
        }
    }
    let path = format!("{}/../../{PAGE}", env!("CARGO_MANIFEST_DIR"));
    let page = std::fs::read_to_string(&path).unwrap();
    let (before, rest) = page.split_once(BEGIN).unwrap();
    let (kept, after) = rest.split_once(END).unwrap();
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(&path, format!("{before}{BEGIN}{text}{END}{after}")).unwrap();
        return;
    }
    assert!(
        kept == text,
        "{PAGE} has other answers; look at them and run with UPDATE_GOLDEN=1 if they are right:\n{text}"
    );
}
