//! Each leaf of the decision tree, and what else can be the answer.

use super::facts::{PodFacts, PodSeen};
use super::tree::diagnose;
use crate::cluster::TimeSeen;
use crate::finding::{Finding, Report, Unread, Verdict};
use model::time::WallTime;
use std::collections::BTreeMap;
use wire::api::believed_nodes::{BelievedDeviceJson, BelievedNodeJson};
use wire::api::decisions::{DecisionJson, DecisionVerb, FilterDetailJson, RefusedNodeJson, ScoringJson};
use wire::described_event::DescribedEvent;
use wire::described_node::DescribedNode;
use wire::described_pod::{DescribedContainer, DescribedPod};

const NOW: WallTime = WallTime(1_795_256_472_000_000);

/// The moment this many seconds before [`NOW`].
fn before(seconds: u64) -> Option<WallTime> {
    Some(WallTime(NOW.0 - seconds * 1_000_000))
}

fn event(reason: &str, note: &str) -> DescribedEvent {
    let warning = reason.ends_with("Failed");
    DescribedEvent {
        reason: reason.into(),
        note: note.into(),
        warning,
        from: "gpu-steward".into(),
        at: before(60),
        count: 1,
        about: String::new(),
    }
}

fn extender() -> DescribedPod {
    DescribedPod {
        namespace: "gpu".into(),
        name: "x-extender".into(),
        phase: "Running".into(),
        ready: true,
        ..DescribedPod::default()
    }
}

/// A pod that requests a GPU, about which nothing is known, in a cluster of which all can be seen.
fn facts() -> PodFacts {
    let described = DescribedPod {
        namespace: "ml".into(),
        name: "a".into(),
        scheduler: "gpu-steward".into(),
        phase: "Pending".into(),
        ..DescribedPod::default()
    };
    PodFacts {
        name: "ml/a".into(),
        pod: Ok(PodSeen {
            described,
            request: Ok(Some("container c requests 1 GPU(s) with 8192 MiB of memory".into())),
        }),
        events: Ok(Vec::new()),
        scheduler: "gpu-steward".into(),
        extenders: Ok(vec![extender()]),
        leader: Ok("gpu/x-extender".into()),
        decisions: Ok(Vec::new()),
        believed: Vec::new(),
        nodes: Ok(Vec::new()),
        time: TimeSeen { now: NOW, own: None },
    }
}

fn with_event(reason: &str, note: &str) -> PodFacts {
    PodFacts { events: Ok(vec![event(reason, note)]), ..facts() }
}

/// The facts after this change of the pod.
fn with_pod(change: impl FnOnce(&mut PodSeen)) -> PodFacts {
    let mut facts = facts();
    change(facts.pod.as_mut().unwrap());
    facts
}

fn node(name: &str, annotations: &[(&str, &str)]) -> DescribedNode {
    let annotations: BTreeMap<String, String> =
        annotations.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
    DescribedNode { name: name.into(), ready: Some(true), annotations, ..DescribedNode::default() }
}

const REGISTER: (&str, &str) = (
    "hami.io/node-nvidia-register",
    r#"[{"id":"GPU-1","count":10,"devmem":81920,"devcore":100,"type":"NVIDIA H100","health":true}]"#,
);
const FRESH: (&str, &str) = ("hami.io/node-handshake", "1795256372");
const STALE: (&str, &str) = ("hami.io/node-handshake", "1795256072");

/// What is found about the pod in a cluster with this Node, which refused it as a whole.
fn refused_by(node: DescribedNode) -> PodFacts {
    PodFacts {
        nodes: Ok(vec![node]),
        ..with_event("FilteringFailed", "no node fits: 1 node refused: NodeUnregistered on 1 node")
    }
}

fn codes(facts: &PodFacts) -> Vec<(&'static str, Verdict)> {
    diagnose(facts).iter().map(|finding| (finding.code, finding.verdict)).collect()
}

fn first(facts: &PodFacts) -> Finding {
    diagnose(facts).remove(0)
}

/// The thirteen leaves of the tree, in its order.
#[test]
fn each_leaf_of_the_tree_is_found_and_says_what_to_do() {
    let failed =
        |why: &str| with_event("FilteringFailed", &format!("no node fits: 1 node refused: {why} on 1 GPU of 1 node"));
    let gone = PodFacts { extenders: Ok(Vec::new()), leader: Err(Unread::new("the leader", "none")), ..facts() };
    for (facts, code, step) in [
        (gone, "SchedulerNotRunning", "kubectl rollout restart"),
        (with_pod(|pod| pod.request = Ok(None)), "NoGpuRequested", "add nvidia.com/gpu"),
        (
            with_pod(|pod| pod.described.scheduler = "default-scheduler".into()),
            "OtherScheduler",
            "schedulerName: gpu-steward",
        ),
        (facts(), "NoEvent", "-v 5"),
        (failed("NodeInsufficientDevice"), "NodeInsufficientDevice", "request fewer GPUs"),
        (failed("CardInsufficientMemory"), "CardInsufficientMemory", "request less nvidia.com/gpumem"),
        (failed("ExclusiveDeviceAllocateConflict"), "ExclusiveDeviceAllocateConflict", "wait until the pods"),
        (refused_by(node("n1", &[])), "NodeUnregistered", "check that an agent runs"),
        (refused_by(node("n1", &[REGISTER, STALE])), "HandshakeStale", "reach the API server"),
        (refused_by(node("n1", &[REGISTER, FRESH])), "NodeUnfitPod", "-v 4"),
        (
            with_event("BindingFailed", "not bound to n1: create binding: no answer within 10 s"),
            "ApiServerUnwell",
            "etcd",
        ),
        (
            with_event(
                "BindingFailed",
                "not bound to n1: the API server has not answered yet; the binding is written again",
            ),
            "ApiServerUnwell",
            "etcd",
        ),
        (with_event("BindingFailed", "not bound to n1: 403 pods is forbidden"), "BindingForbidden", "rights"),
        (with_event("FilteringSucceed", "2 of 4 nodes fit, n1 best"), "StoppedByOtherPlugin", "kube-scheduler"),
    ] {
        let found = diagnose(&facts);
        assert_eq!((found.len(), found[0].code, found[0].verdict), (1, code, Verdict::Wrong), "{found:?}");
        assert!(found[0].advice.iter().any(|advice| advice.contains(step)), "{found:?}");
        assert_eq!(Report::<()>::new("doctor pod", "x", found, Vec::new()).exit().code(), 1);
    }
}

#[test]
fn a_pod_that_waits_for_no_node_is_answered_at_once() {
    use Verdict::{Unknown, Well, Wrong};
    let on_node = |change: fn(&mut DescribedPod)| {
        with_pod(|pod| {
            "n1".clone_into(&mut pod.described.node);
            change(&mut pod.described);
        })
    };
    let waits =
        |reason: &str| DescribedContainer { waits: Some((reason.into(), "x".into())), ..DescribedContainer::default() };
    for (facts, code, verdict) in [
        (PodFacts { pod: Err(None), ..facts() }, "PodNotFound", Wrong),
        (PodFacts { pod: Err(Some(Unread::new("pod", "403"))), ..facts() }, "PodNotSeen", Unknown),
        (with_pod(|pod| pod.described.phase = "Succeeded".into()), "PodEnded", Well),
        (with_pod(|pod| pod.described.phase = "Failed".into()), "PodFailed", Wrong),
        (with_pod(|pod| pod.described.deleting = true), "PodDeleted", Wrong),
        (with_pod(|pod| pod.described.gates = vec!["kueue".into()]), "SchedulingGated", Wrong),
        (on_node(|pod| pod.phase = "Running".into()), "PodBound", Well),
        (on_node(|_| {}), "PodStarting", Well),
        (with_pod(|pod| pod.request = Err("nvidia.com/gpumem counts whole MiB".into())), "BadRequest", Wrong),
    ] {
        assert_eq!(codes(&facts), [(code, verdict)]);
    }
    let ordinary = with_pod(|pod| {
        pod.described =
            DescribedPod { node: "n1".into(), containers: vec![waits("ContainerCreating")], ..pod.described.clone() };
    });
    assert_eq!(codes(&ordinary), [("PodStarting", Well)]);
    let stuck = with_pod(|pod| {
        pod.described = DescribedPod {
            node: "n1".into(),
            containers: vec![waits("CreateContainerError")],
            ..pod.described.clone()
        };
    });
    assert_eq!(codes(&stuck), [("PodNotStarted", Wrong)]);
}

#[test]
fn what_kube_scheduler_refuses_by_itself_is_no_matter_of_gpus() {
    let sentence = "0/3 nodes are available: 3 Insufficient cpu";
    let facts = with_pod(|pod| pod.described.unscheduled = Some(("Unschedulable".into(), sentence.into())));
    let finding = first(&facts);
    assert_eq!(finding.code, "RefusedBeforeGpus");
    assert!(finding.evidence.iter().any(|line| line.contains(sentence)), "{finding:?}");
}

#[test]
fn several_reasons_are_several_findings_and_a_node_names_its_reason() {
    let note = "no node fits: 3 nodes refused: CardNotHealth on 1 GPU of 1 node, NodeClosed on 1 node";
    let refused = |node: &str, why: &str, closed: Option<&str>| RefusedNodeJson {
        node: node.into(),
        why: why.into(),
        closed: closed.map(str::to_owned),
        memory: vec!["GPU 0: 6144 MiB in use by pod ml/b".to_owned(); usize::from(closed.is_none())],
    };
    let detail = FilterDetailJson {
        asks: Vec::new(),
        scoring: ScoringJson { node_policy: "binpack".into(), score_step: 121 },
        proposed: None,
        refused: vec![
            refused("n1", "CardNotHealth", None),
            refused("n2", "NodeClosed", Some("the agent is about to stop")),
        ],
    };
    let decision = DecisionJson {
        at: wire::timestamp::to_rfc3339_micros(before(60).unwrap()),
        pod: "ml/a".into(),
        uid: String::new(),
        verb: DecisionVerb::Filter,
        result: note.into(),
        scores: Vec::new(),
        detail: Some(detail),
    };
    let facts =
        PodFacts { decisions: Ok(vec![decision]), ..with_event("FilteringFailed", "an event of the same moment") };
    assert_eq!(codes(&facts), [("CardNotHealth", Verdict::Wrong), ("NodeClosed", Verdict::Wrong)]);
    let found = diagnose(&facts);
    assert_eq!(found[0].evidence, [note, "n1: CardNotHealth; GPU 0: 6144 MiB in use by pod ml/b"]);
    assert_eq!(found[1].evidence, ["n2: NodeClosed (the agent is about to stop)"]);
}

#[test]
fn too_little_memory_is_shown_with_the_live_use_of_the_gpus() {
    let device = |index, used: Option<u64>, really: Option<u64>| BelievedDeviceJson {
        index,
        slots_claimed: 2,
        memory_bytes: 80 << 30,
        memory_claimed_bytes: 60 << 30,
        memory_used_bytes: used,
        memory_really_free_bytes: really,
        ..BelievedDeviceJson::default()
    };
    let devices = vec![device(0, Some(70 << 30), Some(5 << 30)), device(1, None, None)];
    let believed = vec![BelievedNodeJson { node: "n1".into(), devices, ..BelievedNodeJson::default() }];
    let facts = PodFacts { believed, ..with_event("FilteringFailed", "CardInsufficientMemory on 2 GPUs of 1 node") };
    assert_eq!(
        first(&facts).evidence[1..],
        [
            "n1 GPU 1: 81920 MiB, 61440 MiB claimed by 2 containers, use not known; claims leave 20480 MiB",
            "n1 GPU 0: 81920 MiB, 61440 MiB claimed by 2 containers, 71680 MiB in use; claims leave 20480 MiB, 5120 MiB really free",
        ]
    );
}

#[test]
fn a_right_that_is_missing_is_named_and_the_diagnosis_goes_on() {
    let unread = |what: &str| Unread::new(what, "403 is forbidden; allow this identity to list events (ClusterRole)");
    let mut facts = with_event("FilteringFailed", "CardInsufficientMemory");
    facts.decisions = Err(unread("the leading extender"));
    facts.leader = Err(unread("the leading extender"));
    facts.extenders = Err(unread("the pods of the extender"));
    assert_eq!(codes(&facts), [("CardInsufficientMemory", Verdict::Wrong), ("NotLookedAt", Verdict::Note)]);
    let found = diagnose(&facts);
    assert!(found[1].what.contains("allow this identity to list events"), "{found:?}");
    assert!(found[1].advice[0].contains("--extender http://127.0.0.1:9444"), "{found:?}");
    facts.time.own = Some(unread("the time of the API server"));
    assert_eq!(codes(&facts)[2], ("OwnClock", Verdict::Note));
    facts.events = Err(unread("the events"));
    assert_eq!(codes(&facts)[0], ("NoEvidence", Verdict::Unknown), "without events and decisions nothing can be said");
    let report = Report::<()>::new("doctor pod", "x", diagnose(&facts), Vec::new());
    assert_eq!(report.exit().code(), 2);
}

#[test]
fn a_step_that_has_just_been_made_is_no_fault() {
    let mut just = with_event("FilteringSucceed", "1 of 1 nodes fit");
    just.events.as_mut().unwrap()[0].at = before(5);
    assert_eq!(codes(&just), [("BeingBound", Verdict::Note)]);
    assert_eq!(codes(&with_event("BindingSucceed", "bound to n1")), [("BindingSucceed", Verdict::Note)]);
    let raced = with_event("BindingFailed", "not bound to n1: the GPU is taken");
    assert_eq!(codes(&raced), [("BindingFailed", Verdict::Wrong)]);
}

#[test]
fn of_two_decisions_of_one_second_the_newer_one_counts() {
    let decision = |micros: u64, verb: DecisionVerb, result: &str| DecisionJson {
        at: wire::timestamp::to_rfc3339_micros(WallTime(NOW.0 - 60_000_000 + micros)),
        pod: "ml/a".into(),
        uid: String::new(),
        verb,
        result: result.into(),
        scores: Vec::new(),
        detail: None,
    };
    let newest_first = vec![
        decision(9_000, DecisionVerb::Bind, "not bound to n1: 403 pods is forbidden"),
        decision(2_000, DecisionVerb::Filter, "no node fits"),
    ];
    assert_eq!(codes(&PodFacts { decisions: Ok(newest_first), ..facts() }), [("BindingForbidden", Verdict::Wrong)]);
}
