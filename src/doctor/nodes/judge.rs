//! Judges each Node by its annotations, by what its kubelet says, and by what the leader believes.

use super::problems::explained;
use crate::finding::{Finding, Verdict};
use crate::vendors;
use model::nvidia::{COUNT, LABEL_DRIVER, REGISTER};
use model::time::WallTime;
use serde::Serialize;
use std::collections::BTreeMap;
use wire::annotation_keys::{CORDON, HANDSHAKE};
use wire::api::believed_nodes::{BelievedNodeJson, BelievedNodesJson};
use wire::described_node::DescribedNode;
use wire::handshake::{self, Handshake};
use wire::{quantity, register};

/// An older handshake, in seconds, means that the agent is gone. Agents write a handshake every 240 s.
const STALE: f64 = 300.0;
/// A stream without a message for longer, in seconds, is silent. An agent sends a message every ten seconds.
const SILENT: f64 = 25.0;

/// One Node.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(crate) struct NodeRow {
    pub(crate) node: String,
    pub(crate) ready: Option<bool>,
    /// Whether the Node has, or should have, GPUs that gpu-steward places.
    pub(crate) has_gpus: bool,
    /// `ok`, `none`, `empty` or `unreadable`.
    pub(crate) register: String,
    /// What the handshake is, if it is not a time: `none`, `requested`, `deleted`, `reported` or `unreadable`.
    pub(crate) handshake: String,
    pub(crate) handshake_age_seconds: Option<f64>,
    pub(crate) slots_registered: Option<u64>,
    pub(crate) slots_allocatable: Option<u64>,
    pub(crate) gpus: Option<u64>,
    pub(crate) gpus_healthy: Option<u64>,
    /// `open`, `closed`, `away` or `never`; missing if the leader is not seen.
    pub(crate) stream: Option<String>,
    pub(crate) stream_age_seconds: Option<f64>,
    /// Why the leader places no pods there.
    pub(crate) closed: Option<String>,
    pub(crate) driver: Option<String>,
    /// `yes`, `no`, or `?` if it is not known.
    pub(crate) cdi: String,
    pub(crate) runtime: String,
    pub(crate) kubelet: String,
    pub(crate) other_vendors: Vec<String>,
}

/// A problem of one Node: its code, how it counts, and a sentence.
type Problem = (&'static str, Verdict, String);

/// The rows of these Nodes, and a finding for each kind of problem.
pub(crate) fn judged(
    nodes: &[DescribedNode],
    believed: Option<&BelievedNodesJson>,
    now: WallTime,
) -> (Vec<NodeRow>, Vec<Finding>) {
    let by_name: Option<BTreeMap<&str, &BelievedNodeJson>> =
        believed.map(|all| all.nodes.iter().map(|node| (node.node.as_str(), node)).collect());
    let mut found: BTreeMap<(&'static str, Verdict), Vec<String>> = BTreeMap::new();
    let mut rows = Vec::with_capacity(nodes.len());
    for node in nodes {
        let believed = by_name.as_ref().map(|all| all.get(node.name.as_str()).copied());
        let (row, problems) = judge(node, believed, now);
        for (code, verdict, what) in problems {
            found.entry((code, verdict)).or_default().push(format!("{}: {what}", row.node));
        }
        rows.push(row);
    }
    let findings = found.into_iter().map(|((code, verdict), nodes)| {
        let (what, advice) = explained(code);
        let count = nodes.len();
        let what = format!("{count} Node{} {what}", if count == 1 { "" } else { "s" });
        Finding::new(verdict, code, what).because(nodes).advise(advice.iter().copied())
    });
    (rows, findings.collect())
}

/// One Node. `believed` is `None` if the leader is not seen, and `Some(None)` if it does not know the Node.
fn judge(node: &DescribedNode, believed: Option<Option<&BelievedNodeJson>>, now: WallTime) -> (NodeRow, Vec<Problem>) {
    let mut row = NodeRow {
        node: node.name.clone(),
        ready: node.ready,
        slots_allocatable: node.allocatable.get(COUNT).and_then(|text| amount(text)),
        driver: node.labels.get(LABEL_DRIVER).cloned(),
        runtime: node.runtime.clone(),
        kubelet: node.kubelet.clone(),
        other_vendors: vendors::of(&node.annotations).into_iter().collect(),
        ..NodeRow::default()
    };
    let mut problems = Vec::new();
    let is_known = believed.flatten().is_some_and(|node| node.gpus > 0 || node.stream.is_some());
    let has_keys = [REGISTER, HANDSHAKE].iter().any(|key| node.annotations.contains_key(*key));
    row.has_gpus = has_keys || is_known || row.slots_allocatable.is_some_and(|slots| slots > 0);
    if !row.other_vendors.is_empty() {
        problems.push(("OtherVendor", Verdict::Note, row.other_vendors.join(", ")));
    }
    if row.has_gpus {
        take_state(node, &mut row, &mut problems);
        take_register(node, &mut row, &mut problems);
        take_handshake(node, now, &mut row, &mut problems);
        take_belief(believed, &mut row, &mut problems);
    }
    take_cdi(believed.flatten(), &mut row, &mut problems);
    (row, problems)
}

/// Whether pods can run there at all.
fn take_state(node: &DescribedNode, row: &mut NodeRow, problems: &mut Vec<Problem>) {
    if row.ready != Some(true) {
        let why = if node.why_not_ready.is_empty() { "its kubelet has not reported" } else { &node.why_not_ready };
        problems.push(("NodeNotReady", Verdict::Wrong, why.to_owned()));
    }
    if node.cordoned {
        problems.push(("NodeCordoned", Verdict::Note, "kubectl cordon keeps new pods away".to_owned()));
    }
    if let Some(devices) = node.annotations.get(CORDON).filter(|devices| !devices.trim().is_empty()) {
        problems.push(("CardCordoned", Verdict::Note, format!("{CORDON} is {devices}")));
    }
    if let Some((major, minor)) = version(&row.kubelet)
        && (major, minor) < (1, 30)
    {
        problems.push(("OldKubelet", Verdict::Wrong, format!("kubelet {}", row.kubelet)));
    }
}

fn take_register(node: &DescribedNode, row: &mut NodeRow, problems: &mut Vec<Problem>) {
    let Some(text) = node.annotations.get(REGISTER).filter(|text| !text.trim().is_empty()) else {
        "none".clone_into(&mut row.register);
        problems.push(("NodeUnregistered", Verdict::Wrong, format!("{REGISTER} is missing or empty")));
        return;
    };
    let gpus = match register::decode(text) {
        Ok(gpus) => gpus,
        Err(why) => {
            "unreadable".clone_into(&mut row.register);
            problems.push(("RegisterUnreadable", Verdict::Wrong, why.to_string()));
            return;
        }
    };
    if gpus.is_empty() {
        "empty".clone_into(&mut row.register);
        problems.push(("NodeUnregistered", Verdict::Wrong, "its register lists no GPU".to_owned()));
        return;
    }
    "ok".clone_into(&mut row.register);
    let healthy = gpus.iter().filter(|gpu| gpu.healthy).count();
    row.gpus = u64::try_from(gpus.len()).ok();
    row.gpus_healthy = u64::try_from(healthy).ok();
    row.slots_registered = Some(gpus.iter().map(|gpu| u64::from(gpu.slots)).sum());
    let ill: Vec<String> = gpus.iter().filter(|gpu| !gpu.healthy).map(|gpu| gpu.uuid.to_string()).collect();
    if !ill.is_empty() {
        problems.push(("CardNotHealth", Verdict::Wrong, ill.join(", ")));
    }
    if healthy > 0 && row.slots_allocatable.unwrap_or(0) == 0 {
        problems.push(("NoSlots", Verdict::Wrong, format!("the kubelet offers no {COUNT}")));
    }
}

fn take_handshake(node: &DescribedNode, now: WallTime, row: &mut NodeRow, problems: &mut Vec<Problem>) {
    let (word, problem): (&str, Option<Problem>) =
        match node.annotations.get(HANDSHAKE).map(|text| handshake::decode(text)) {
            None => ("none", Some(("NoHandshake", Verdict::Note, format!("{HANDSHAKE} is missing")))),
            Some(Handshake::At(at)) => {
                let age = now.as_seconds() - at.as_seconds();
                row.handshake_age_seconds = Some(age);
                let problem: Option<Problem> = if age > STALE {
                    Some(("HandshakeStale", Verdict::Wrong, format!("{age:.0} s old, more than {STALE} s")))
                } else if age < -STALE {
                    Some(("ClockSkew", Verdict::Wrong, format!("its handshake is {:.0} s in the future", -age)))
                } else {
                    None
                };
                ("", problem)
            }
            Some(Handshake::Reported) => {
                ("reported", Some(("OtherPlugin", Verdict::Note, "HAMi's plugin reports it".to_owned())))
            }
            Some(Handshake::Requesting { .. }) => (
                "requested",
                Some(("HandshakeRequested", Verdict::Note, "a HAMi scheduler waits for its answer".to_owned())),
            ),
            Some(Handshake::Deleted) => {
                ("deleted", Some(("HandshakeDeleted", Verdict::Wrong, "a HAMi scheduler has removed it".to_owned())))
            }
            Some(Handshake::Other) => (
                "unreadable",
                Some(("HandshakeUnreadable", Verdict::Note, "its handshake is not a Unix time".to_owned())),
            ),
        };
    word.clone_into(&mut row.handshake);
    problems.extend(problem);
}

fn take_belief(believed: Option<Option<&BelievedNodeJson>>, row: &mut NodeRow, problems: &mut Vec<Problem>) {
    let Some(believed) = believed else { return };
    row.closed = believed.and_then(|node| node.closed.clone());
    let Some(stream) = believed.and_then(|node| node.stream.as_ref()) else {
        row.stream = Some("never".to_owned());
        let what = "its agent has never reported to this leader".to_owned();
        problems.push(("NoStream", Verdict::Note, what));
        return;
    };
    row.stream = Some(stream.state.clone());
    row.stream_age_seconds = Some(stream.age_seconds);
    let age = stream.age_seconds;
    if stream.state != "open" {
        problems.push((
            "AgentAway",
            Verdict::Wrong,
            format!("the stream is {}, the last message {age:.0} s old", stream.state),
        ));
    } else if age > SILENT {
        problems.push(("AgentSilent", Verdict::Wrong, format!("the last message is {age:.0} s old")));
    }
    if let Some(why) = &row.closed {
        problems.push(("NodeClosed", Verdict::Wrong, why.clone()));
    }
}

/// CDI: what the agent says, otherwise what the version of the runtime says.
fn take_cdi(believed: Option<&BelievedNodeJson>, row: &mut NodeRow, problems: &mut Vec<Problem>) {
    let containerd = row.runtime.strip_prefix("containerd://").and_then(version);
    let phase = believed.and_then(|node| node.stream.as_ref()).map(|stream| stream.phase.as_str());
    let (word, problem) = match (phase, containerd) {
        (Some("serving" | "leaving"), _) => ("yes", None),
        (Some("serving_early"), _) => ("no", Some("its runtime gives no devices by CDI".to_owned())),
        (_, Some((1, ..7) | (0, _))) => ("no", Some(format!("{} is too old", row.runtime))),
        (_, Some((2.., _))) => ("yes", None),
        _ => ("?", None),
    };
    word.clone_into(&mut row.cdi);
    problems.extend(problem.filter(|_| row.has_gpus).map(|why| ("NoCdi", Verdict::Wrong, why)));
}

/// Major and minor number of `v1.34.9` or `2.1.4`.
fn version(text: &str) -> Option<(u32, u32)> {
    let mut parts = text.trim_start_matches('v').split('.');
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

/// A whole amount of a resource.
fn amount(text: &str) -> Option<u64> {
    u64::try_from(quantity::parse(text).ok()?.integer()?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nodes::problems::PROBLEMS;
    use wire::api::believed_nodes::AgentStreamJson;

    const NOW: WallTime = WallTime(1_795_256_472_000_000);

    fn gpu(index: u32, healthy: bool) -> String {
        format!(
            r#"{{"id":"GPU-{index}","index":{index},"count":10,"devmem":81920,"devcore":100,"type":"NVIDIA H100","health":{healthy}}}"#
        )
    }

    /// A Node of which nothing is wrong.
    fn node() -> DescribedNode {
        let texts = |pairs: &[(&str, &str)]| {
            pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect::<BTreeMap<_, _>>()
        };
        let register = format!("[{},{}]", gpu(0, true), gpu(1, true));
        DescribedNode {
            name: "n1".into(),
            ready: Some(true),
            runtime: "containerd://2.1.4".into(),
            kubelet: "v1.34.9".into(),
            allocatable: texts(&[(COUNT, "20")]),
            labels: texts(&[(LABEL_DRIVER, "550.127.08")]),
            annotations: texts(&[(REGISTER, &register), (HANDSHAKE, "1795256372")]),
            ..DescribedNode::default()
        }
    }

    fn believed(state: &str, age_seconds: f64, phase: &str) -> BelievedNodeJson {
        let stream = AgentStreamJson { state: state.into(), age_seconds, phase: phase.into() };
        BelievedNodeJson { node: "n1".into(), gpus: 2, stream: Some(stream), ..BelievedNodeJson::default() }
    }

    fn codes(node: &DescribedNode, believed: Option<Option<&BelievedNodeJson>>) -> Vec<(&'static str, Verdict)> {
        judge(node, believed, NOW).1.into_iter().map(|(code, verdict, _)| (code, verdict)).collect()
    }

    #[test]
    fn a_node_of_which_nothing_is_wrong_has_a_full_row() {
        let open = believed("open", 3.0, "serving");
        let (row, problems) = judge(&node(), Some(Some(&open)), NOW);
        assert_eq!(problems, []);
        let expected = NodeRow {
            node: "n1".into(),
            ready: Some(true),
            has_gpus: true,
            register: "ok".into(),
            handshake: String::new(),
            handshake_age_seconds: Some(100.0),
            slots_registered: Some(20),
            slots_allocatable: Some(20),
            gpus: Some(2),
            gpus_healthy: Some(2),
            stream: Some("open".into()),
            stream_age_seconds: Some(3.0),
            closed: None,
            driver: Some("550.127.08".into()),
            cdi: "yes".into(),
            runtime: "containerd://2.1.4".into(),
            kubelet: "v1.34.9".into(),
            other_vendors: Vec::new(),
        };
        assert_eq!(row, expected);
        assert_eq!(
            codes(&node(), None),
            [],
            "without the leader the streams are not known, which is no problem of a Node"
        );
    }

    /// A change of the Node, and the problem that follows.
    type Case = (fn(&mut DescribedNode), &'static str, Verdict);

    #[test]
    fn each_problem_of_a_node_is_found() {
        use Verdict::{Note, Wrong};
        let cases: [Case; 15] = [
            (|node| node.ready = Some(false), "NodeNotReady", Wrong),
            (|node| node.ready = None, "NodeNotReady", Wrong),
            (|node| node.cordoned = true, "NodeCordoned", Note),
            (|node| node.kubelet = "v1.29.4".into(), "OldKubelet", Wrong),
            (|node| drop(node.annotations.remove(REGISTER)), "NodeUnregistered", Wrong),
            (|node| drop(node.annotations.insert(REGISTER.into(), " ".into())), "NodeUnregistered", Wrong),
            (|node| drop(node.annotations.insert(REGISTER.into(), "[]".into())), "NodeUnregistered", Wrong),
            (|node| drop(node.annotations.insert(REGISTER.into(), "x".into())), "RegisterUnreadable", Wrong),
            (
                |node| drop(node.annotations.insert(REGISTER.into(), format!("[{},{}]", gpu(0, true), gpu(1, false)))),
                "CardNotHealth",
                Wrong,
            ),
            (|node| drop(node.allocatable.insert(COUNT.into(), "0".into())), "NoSlots", Wrong),
            (|node| drop(node.annotations.remove(HANDSHAKE)), "NoHandshake", Note),
            (|node| drop(node.annotations.insert(HANDSHAKE.into(), "1795256171".into())), "HandshakeStale", Wrong),
            (|node| drop(node.annotations.insert(HANDSHAKE.into(), "1795260072".into())), "ClockSkew", Wrong),
            (
                |node| drop(node.annotations.insert(HANDSHAKE.into(), "Deleted_2026-11-21 10:21:12".into())),
                "HandshakeDeleted",
                Wrong,
            ),
            (|node| node.runtime = "containerd://1.6.8".into(), "NoCdi", Wrong),
        ];
        for (change, code, verdict) in cases {
            let mut node = node();
            change(&mut node);
            assert_eq!(codes(&node, None), [(code, verdict)], "{node:?}");
            assert!(PROBLEMS.iter().any(|(known, ..)| *known == code), "{code} has no advice");
        }
        let mut other = node();
        other.annotations.insert(HANDSHAKE.into(), "1795256172".into());
        assert_eq!(codes(&other, None), [], "a handshake is good for 300 s");
        other.annotations.insert(HANDSHAKE.into(), "Requesting_2026-11-21 10:21:12".into());
        assert_eq!(codes(&other, None), [("HandshakeRequested", Note)]);
    }

    #[test]
    fn the_leader_sees_agents_that_are_away_or_silent_and_closed_nodes() {
        use Verdict::{Note, Wrong};
        let mut closed = believed("open", 1.0, "serving");
        closed.closed = Some("pod ml/a holds GPUs without a claim".into());
        for (believed, expected) in [
            (None, &[("NoStream", Note)][..]),
            (Some(believed("away", 90.0, "serving")), &[("AgentAway", Wrong)]),
            (Some(believed("closed", 1.0, "serving")), &[("AgentAway", Wrong)]),
            (Some(believed("open", 26.0, "serving")), &[("AgentSilent", Wrong)]),
            (Some(believed("open", 1.0, "serving_early")), &[("NoCdi", Wrong)]),
            (Some(closed), &[("NodeClosed", Wrong)]),
        ] {
            assert_eq!(codes(&node(), Some(believed.as_ref())), expected, "{believed:?}");
        }
    }

    #[test]
    fn a_node_without_gpus_has_no_problem_and_devices_of_other_vendors_are_named() {
        let mut plain = DescribedNode { name: "n2".into(), ready: Some(false), ..DescribedNode::default() };
        let (row, problems) = judge(&plain, Some(None), NOW);
        assert_eq!((row.has_gpus, problems), (false, Vec::new()));
        plain.annotations.insert("hami.io/node-dcu-register".into(), "x".into());
        assert_eq!(codes(&plain, None), [("OtherVendor", Verdict::Note)]);
    }

    #[test]
    fn equal_problems_of_many_nodes_are_one_finding() {
        let stale = |number: usize| {
            let mut node = DescribedNode { name: format!("n{number:04}"), ..node() };
            node.annotations.insert(HANDSHAKE.into(), "1".into());
            node
        };
        let nodes: Vec<DescribedNode> = (0..5000).map(stale).collect();
        let (rows, findings) = judged(&nodes, None, NOW);
        let [finding] = &findings[..] else { panic!("{}", findings.len()) };
        assert_eq!((rows.len(), finding.code, finding.evidence.len()), (5000, "HandshakeStale", 21));
        assert_eq!(finding.what, "5000 Nodes with a handshake older than 300 s");
        assert!(finding.evidence[0].starts_with("n0000: "), "{finding:?}");
    }
}
