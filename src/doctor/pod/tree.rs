//! The decision tree for a pod that waits. Each leaf is a finding with what to do.
//!
//! ```text
//!   no event ─────────▶ scheduler runs? ─▶ GPUs requested? ─▶ schedulerName right? ─▶ what kube-scheduler says, or a more detailed log
//!   FilteringFailed ──▶ reason code ─▶ NodeUnregistered: register there? ─▶ handshake fresh? ─▶ a more detailed log
//!   BindingFailed ────▶ right missing? API server or etcd? taken meanwhile?
//!   FilteringSucceed ─▶ another plugin of kube-scheduler
//! ```

use super::facts::{Outcome, PodFacts, PodSeen, Step};
use super::reasons;
use crate::finding::{Finding, Unread, Verdict};
use crate::nodes::{LEADER_ADVICE, NodeRow, judged};
use decide::placement::RefusalReason;
use wire::api::believed_nodes::{BelievedDeviceJson, BelievedNodeJson};
use wire::described_event::DescribedEvent;
use wire::described_pod::DescribedPod;

/// Seconds after which a pod that fits a node should be bound.
const BOUND_WITHIN: f64 = 30.0;
/// Maximum number of events that are shown: the newest events explain the state.
const MAX_EVENTS: usize = 5;
/// Maximum number of devices whose live use is shown.
const MAX_DEVICES: usize = 16;

const VERBOSE: &str = "raise the log level of the extender: add -v 5 to its arguments (extender.settings: {v: 5} in the chart), then read \
                       kubectl logs EXTENDER-POD -c extender";

/// The findings about the pod.
pub(crate) fn diagnose(facts: &PodFacts) -> Vec<Finding> {
    let seen = match &facts.pod {
        Ok(seen) => seen,
        Err(None) => {
            let what = format!("there is no pod {}", facts.name);
            return vec![
                Finding::wrong("PodNotFound", what).advise(["name the pod as NAMESPACE/NAME: kubectl get pods -A"]),
            ];
        }
        Err(Some(unread)) => return vec![Finding::unknown("PodNotSeen", unread.to_string())],
    };
    let mut findings = match placed(facts, seen) {
        // Nothing else is needed for the answer.
        Some(finding) if finding.verdict == Verdict::Well => return vec![finding],
        Some(finding) => vec![finding],
        None => waiting(facts, seen),
    };
    findings.extend(not_looked_at(facts));
    findings
}

/// What could not be looked at, with the right that is missing. The diagnosis goes on without it.
fn not_looked_at(facts: &PodFacts) -> Vec<Finding> {
    let mut blinds: Vec<&Unread> = Vec::new();
    let all = [
        facts.events.as_ref().err(),
        facts.extenders.as_ref().err(),
        facts.decisions.as_ref().err(),
        facts.nodes.as_ref().err(),
    ];
    for unread in all.into_iter().flatten() {
        if !blinds.iter().any(|known| known.why == unread.why) {
            blinds.push(unread);
        }
    }
    let advice = facts.decisions.is_err().then(|| format!("to see the leader's decisions: {LEADER_ADVICE}"));
    let finding = |unread: &Unread| Finding::note("NotLookedAt", unread.to_string());
    let mut findings: Vec<Finding> = blinds.into_iter().map(finding).collect();
    if let Some(last) = findings.last_mut() {
        last.advice.extend(advice);
    }
    findings.extend(facts.time.note());
    findings
}

/// A pod that waits for no node: it is bound, has ended, or must not be placed yet.
fn placed(facts: &PodFacts, seen: &PodSeen) -> Option<Finding> {
    let DescribedPod { node, phase, reason, message, deleting, gates, ready, .. } = &seen.described;
    if phase == "Succeeded" {
        return Some(Finding::well("PodEnded", "the pod has ended successfully"));
    }
    if phase == "Failed" {
        let what = format!("the pod has failed: {reason} {message}");
        let advice = "read the events and the log of the pod: kubectl describe pod; kubectl logs --previous; its owner makes a new pod";
        return Some(Finding::wrong("PodFailed", what).because(warnings(facts)).advise([advice]));
    }
    if !node.is_empty() {
        return Some(bound(facts, seen, *ready));
    }
    if *deleting {
        let what = "the pod is being deleted and is not placed any more";
        return Some(
            Finding::wrong("PodDeleted", what).advise(["remove its finalizers if it stays: kubectl get pod -o yaml"]),
        );
    }
    if !gates.is_empty() {
        let what = format!("the pod has scheduling gates: {}", gates.join(", "));
        let advice = "the controller that owns the gate removes it, such as Kueue when the quota has room";
        return Some(Finding::wrong("SchedulingGated", what).advise([advice]));
    }
    None
}

/// A pod with a node.
fn bound(facts: &PodFacts, seen: &PodSeen, ready: bool) -> Finding {
    let DescribedPod { node, phase, containers, .. } = &seen.described;
    if ready || phase == "Running" {
        return Finding::well("PodBound", format!("the pod runs on {node}"))
            .because(seen.request.clone().ok().flatten());
    }
    let waits = containers.iter().filter_map(|container| {
        let (reason, message) = container.waits.as_ref()?;
        let ordinary = matches!(reason.as_str(), "" | "ContainerCreating" | "PodInitializing");
        (!ordinary).then(|| format!("container {} waits: {reason} {message}", container.name))
    });
    let evidence: Vec<String> = waits.chain(warnings(facts)).collect();
    if evidence.is_empty() {
        return Finding::well("PodStarting", format!("the pod is bound to {node}, and its containers are starting"));
    }
    Finding::wrong("PodNotStarted", format!("the pod is bound to {node}, and its containers do not start"))
        .because(evidence)
        .advise([
            "read the newest events of the pod: an event of gpu-steward says what to do (the table in docs/sharing.md)",
            "run gpu-steward doctor node on the node",
        ])
}

/// A pod that waits for a node.
fn waiting(facts: &PodFacts, seen: &PodSeen) -> Vec<Finding> {
    match facts.last_step() {
        None => vec![no_step(facts, seen)],
        Some(step) => match step.outcome {
            Outcome::FilteringFailed => filtering_failed(facts, seen, &step),
            Outcome::BindingFailed => vec![binding_failed(&step)],
            Outcome::FilteringSucceed => vec![not_bound(facts, seen, &step)],
            Outcome::BindingSucceed => {
                let what = "the extender has bound the pod, and the API server does not show it yet";
                vec![Finding::note("BindingSucceed", what).because([step.text])]
            }
        },
    }
}

/// The extender was never asked about the pod, as far as is known.
fn no_step(facts: &PodFacts, seen: &PodSeen) -> Finding {
    if let Some(finding) = not_running(facts) {
        return finding;
    }
    match &seen.request {
        Ok(None) => {
            let what = "the pod requests no GPU, so no GPU scheduler places it";
            let advice =
                "add nvidia.com/gpu, and nvidia.com/gpumem or nvidia.com/gpucores, to resources.limits of a container";
            return unscheduled(seen, Finding::wrong("NoGpuRequested", what).advise([advice]));
        }
        Err(why) => {
            return Finding::wrong("BadRequest", why.clone()).advise(["correct the request and create the pod again"]);
        }
        Ok(Some(_)) => {}
    }
    let scheduler = &seen.described.scheduler;
    if *scheduler != facts.scheduler {
        let what =
            format!("the pod is for the scheduler {scheduler:?}, and gpu-steward is asked by {:?}", facts.scheduler);
        let advice = format!(
            "set spec.schedulerName: {} in the template of the pod (if the scheduler beside the extender has another name, give \
             --scheduler-name)",
            facts.scheduler
        );
        return unscheduled(seen, Finding::wrong("OtherScheduler", what).advise([advice]));
    }
    if let Err(unread) = &facts.events
        && facts.decisions.is_err()
    {
        let what = format!("neither the events nor the leader's decisions could be looked at: {unread}");
        return unscheduled(seen, Finding::unknown("NoEvidence", what));
    }
    if seen.described.unscheduled.as_ref().is_some_and(|(reason, _)| reason == "Unschedulable") {
        let what =
            "kube-scheduler refuses all nodes before it asks the extender: CPU, memory, taints, affinity or volumes";
        let advice = "change what kube-scheduler's sentence names, in the pod or on the nodes";
        return unscheduled(seen, Finding::wrong("RefusedBeforeGpus", what).advise([advice]));
    }
    let what = "the scheduler runs, the pod requests GPUs and names the scheduler, and there is no event of a decision about it";
    let finding = Finding::wrong("NoEvent", what).because(seen.request.clone().ok().flatten());
    unscheduled(
        seen,
        finding.advise([VERBOSE, "look for errors of kube-scheduler: kubectl logs EXTENDER-POD -c scheduler"]),
    )
}

/// The same finding with kube-scheduler's own sentence about the pod.
fn unscheduled(seen: &PodSeen, finding: Finding) -> Finding {
    let said =
        seen.described.unscheduled.as_ref().map(|(reason, message)| format!("kube-scheduler: {reason}: {message}"));
    finding.because(said)
}

/// Whether the scheduler does not run.
fn not_running(facts: &PodFacts) -> Option<Finding> {
    if facts.leader.is_ok() {
        return None;
    }
    let pods = facts.extenders.as_ref().ok()?;
    let runs = |pod: &&DescribedPod| pod.phase == "Running" && pod.ready && !pod.deleting;
    if pods.iter().any(|pod| runs(&pod)) {
        return None;
    }
    let state = |pod: &DescribedPod| {
        let waits = pod.containers.iter().filter_map(|container| {
            let (reason, message) = container.waits.as_ref()?;
            Some(format!("; container {} waits: {reason} {message}", container.name))
        });
        format!("pod {}/{} is {}{}", pod.namespace, pod.name, pod.phase, waits.collect::<String>())
    };
    let what = match pods.len() {
        0 => "no pod of the extender is there",
        _ => "no pod of the extender runs and is ready",
    };
    let finding = Finding::wrong("SchedulerNotRunning", format!("the scheduler does not run: {what}"));
    Some(finding.because(pods.iter().map(state)).advise([
        "start it again: kubectl rollout restart deployment -l app.kubernetes.io/component=extender -n NAMESPACE; kubectl logs shows why it ended",
        "if it runs outside this cluster's pods, name it with --extender URL",
    ]))
}

/// No node fits.
fn filtering_failed(facts: &PodFacts, seen: &PodSeen, step: &Step) -> Vec<Finding> {
    let reasons = reasons::named(&step.text);
    let mut sentence = Some(step.text.clone());
    let refused = |reason: RefusalReason| {
        let nodes = step.refused.iter().filter(move |(_, why)| reasons::named(why).contains(&reason));
        nodes.map(|(node, why)| format!("{node}: {why}"))
    };
    let mut findings: Vec<Finding> = Vec::new();
    for reason in &reasons {
        let mut finding = match reason {
            RefusalReason::NodeUnregistered => unregistered(facts),
            _ => Finding::wrong(reason.code(), reasons::meaning(*reason))
                .advise(reasons::advice(*reason).iter().copied()),
        };
        finding = finding.because(sentence.take()).because(refused(*reason));
        if *reason == RefusalReason::CardInsufficientMemory {
            finding = finding.because(live_use(&facts.believed));
        }
        findings.push(finding);
    }
    if findings.is_empty() {
        // A request that cannot be read, or gates.
        let what = match &seen.request {
            Err(why) => why.clone(),
            Ok(_) => "no node fits the pod".to_owned(),
        };
        findings.push(
            Finding::wrong("FilteringFailed", what)
                .because(sentence)
                .advise(["change what the sentence of the event names"]),
        );
    }
    findings
}

/// Nodes register no GPUs: the register is missing, the handshake is old, or there is another reason.
fn unregistered(facts: &PodFacts) -> Finding {
    let rows: Vec<NodeRow> = match &facts.nodes {
        Ok(nodes) => judged(nodes, None, facts.time.now).0,
        Err(_) => Vec::new(),
    };
    let named = |wanted: fn(&NodeRow) -> bool| {
        rows.iter().filter(|row| wanted(row)).map(|row| row.node.clone()).collect::<Vec<_>>()
    };
    let stale = named(|row| row.handshake_age_seconds.is_some_and(|age| age > 300.0));
    // A Node without GPUs needs no register. If every Node is looked at, most have no register.
    let without =
        named(|row| row.register == "none" || (row.register.is_empty() && row.handshake_age_seconds.is_none()));
    let unreadable = named(|row| matches!(row.register.as_str(), "unreadable" | "empty"));
    if !unreadable.is_empty() {
        return Finding::wrong("RegisterUnreadable", "Nodes have a register that is empty or cannot be read")
            .because([unreadable.join(", ")])
            .advise(["restart the agents of these nodes; gpu-steward doctor nodes shows each register"]);
    }
    if !stale.is_empty() {
        return Finding::wrong(
            "HandshakeStale",
            "the agents of Nodes have not renewed their handshake for more than 300 s",
        )
        .because([stale.join(", ")])
        .advise(["check that the agents of these nodes run and reach the API server: kubectl logs AGENT-POD"]);
    }
    if !without.is_empty() {
        return Finding::wrong(RefusalReason::NodeUnregistered.code(), "Nodes have no register of GPUs")
            .because([format!("{} Nodes: {}", without.len(), without.iter().take(MAX_DEVICES).cloned().collect::<Vec<_>>().join(", "))])
            .advise([
                "check that an agent runs on each node with GPUs: kubectl get pods -A -o wide -l app.kubernetes.io/name=gpu-steward",
                "run gpu-steward doctor node on a node that should have GPUs",
            ]);
    }
    let what = reasons::meaning(RefusalReason::NodeUnregistered);
    Finding::wrong("NodeUnfitPod", format!("{what}, and what the Nodes show does not say why")).advise([
        "add -v 4 to the arguments of the extender: its log then names the reason for each node",
        "gpu-steward doctor nodes",
    ])
}

/// The memory of the devices of the nodes that refused the pod, the devices with the most free memory first.
fn live_use(nodes: &[BelievedNodeJson]) -> Vec<String> {
    let devices = nodes.iter().flat_map(|node| node.devices.iter().map(move |device| (node, device)));
    let mut devices: Vec<(&BelievedNodeJson, &BelievedDeviceJson)> = devices.collect();
    let free = |device: &BelievedDeviceJson| device.memory_bytes.saturating_sub(device.memory_claimed_bytes);
    let left = |device: &BelievedDeviceJson| device.memory_really_free_bytes.unwrap_or_else(|| free(device));
    devices.sort_by_key(|(_, device)| std::cmp::Reverse(left(device)));
    let mib = |bytes: u64| bytes >> 20;
    let one = |(node, device): (&BelievedNodeJson, &BelievedDeviceJson)| {
        let used = device
            .memory_used_bytes
            .map_or_else(|| "use not known".to_owned(), |used| format!("{} MiB in use", mib(used)));
        let really = device.memory_really_free_bytes.map(|really| format!(", {} MiB really free", mib(really)));
        format!(
            "{} GPU {}: {} MiB, {} MiB claimed by {} containers, {used}; claims leave {} MiB{}",
            node.node,
            device.index,
            mib(device.memory_bytes),
            mib(device.memory_claimed_bytes),
            device.slots_claimed,
            mib(free(device)),
            really.unwrap_or_default()
        )
    };
    devices.into_iter().take(MAX_DEVICES).map(one).collect()
}

/// The pod could not be bound.
fn binding_failed(step: &Step) -> Finding {
    let text = step.text.to_lowercase();
    let says = |words: &[&str]| words.iter().any(|word| text.contains(word));
    let (code, what, advice): (_, _, &[&str]) = if says(&["forbidden", "403", "denied request"]) {
        (
            "BindingForbidden",
            "the extender may not write the binding or the claim",
            &[
                "give the extender its rights back: helm upgrade writes them (charts/gpu-steward/templates/extender/rbac.yaml); docs/security.md \
               says which policies check its writes",
            ],
        )
    } else if says(&[
        "no answer",
        "not answered",
        "timed out",
        "timeout",
        "etcd",
        "500 ",
        "503 ",
        "504 ",
        "connection",
        "too many requests",
    ]) {
        (
            "ApiServerUnwell",
            "the API server did not answer the binding, or could not store it",
            &[
                "check the API server and etcd: kubectl get --raw='/readyz?verbose'; the database of etcd may be full or slow",
                "the extender finds out the outcome by itself; until then the GPUs stay reserved",
            ],
        )
    } else {
        (
            "BindingFailed",
            "the node changed between the decision and the binding; the pod is placed again",
            &["wait: kube-scheduler tries the pod again; if this repeats, read the sentence of the event"],
        )
    };
    Finding::wrong(code, what).because([step.text.clone()]).advise(advice.iter().copied())
}

/// A node fits, and the pod is not bound.
fn not_bound(facts: &PodFacts, seen: &PodSeen, step: &Step) -> Finding {
    let age = step.at.map_or(f64::INFINITY, |at| facts.time.now.as_seconds() - at.as_seconds());
    if age < BOUND_WITHIN {
        return Finding::note("BeingBound", "the extender has just found a node for the pod")
            .because([step.text.clone()]);
    }
    let what =
        "the extender found a node for the pod, and it is still not bound: another plugin of kube-scheduler stops it";
    let events = facts.events.iter().flatten().filter(|event| event.reason == "FailedScheduling");
    let finding = Finding::wrong("StoppedByOtherPlugin", what).because([step.text.clone()]);
    let finding = finding.because(events.take(MAX_EVENTS).map(shown));
    unscheduled(seen, finding).advise([
        "read kube-scheduler's sentence: volumes, affinity and pods that are to be placed together stop a pod after GPUs were found",
        "read the whole log of kube-scheduler: kubectl logs EXTENDER-POD -c scheduler",
    ])
}

/// The newest warnings about the pod.
fn warnings(facts: &PodFacts) -> Vec<String> {
    facts.events.iter().flatten().filter(|event| event.warning).take(MAX_EVENTS).map(shown).collect()
}

fn shown(event: &DescribedEvent) -> String {
    format!("{} ({}): {}", event.reason, event.from, event.note)
}
