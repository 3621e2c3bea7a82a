//! Turns the messages of the streams into the types of `model`, within bounds, and back.
//!
//! What must never happen here: a message that is taken over in part; a number of GPUs, pods or uses beyond the bounds of
//! `model::agent_stream`; an absent amount that becomes zero.

use model::agent_stream::{
    AgentMessage, AgentPhase, AgentReport, LeaderView, MAX_REPORTED_GPUS, MAX_REPORTED_PODS, MAX_REPORTED_USES,
    PodStage, ReportChange, ReportedGpu, ReportedPod, ReportedUse,
};
use model::id::{GpuUuid, NodeName, PodUid};
use model::unit::Bytes;
use proto::stream as wire;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The version of the format.
pub const VERSION: u32 = 1;
/// Longest text of the leader that an agent keeps, in bytes: a sentence.
const MAX_TEXT: usize = 1024;

/// Why a message cannot be taken over.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadMessage {
    /// More items than are read.
    #[error("the message has {found} {what}, and at most {most} are read")]
    TooMany {
        /// What there are too many of.
        what: &'static str,
        /// How many there are.
        found: usize,
        /// The bound.
        most: usize,
    },
    /// A name that cannot be one.
    #[error("the message has a {what} that is none: {text:?}")]
    NotAName {
        /// What it should be.
        what: &'static str,
        /// The text, cut.
        text: String,
    },
    /// Both the whole state and a change.
    #[error("the message has both the full state and a change")]
    Both,
}

fn bounded(what: &'static str, found: usize, most: usize) -> Result<(), BadMessage> {
    if found > most { Err(BadMessage::TooMany { what, found, most }) } else { Ok(()) }
}

fn name<T>(what: &'static str, text: &str, parsed: Option<T>) -> Result<T, BadMessage> {
    parsed.ok_or_else(|| BadMessage::NotAName { what, text: text.chars().take(80).collect() })
}

fn uuid(text: &str) -> Result<GpuUuid, BadMessage> {
    name("UUID of a GPU", text, GpuUuid::parse(text).ok())
}

fn uid(text: &str) -> Result<PodUid, BadMessage> {
    name("UID of a pod", text, PodUid::parse(text).ok())
}

/// Reads a message of an agent.
///
/// # Errors
/// [`BadMessage`].
pub fn agent_message(message: wire::AgentMessage) -> Result<AgentMessage, BadMessage> {
    match (message.full, message.change) {
        (None, None) => Ok(AgentMessage::Beat),
        (Some(full), None) => {
            let node = name("name of a node", &full.node, NodeName::parse(&full.node).ok())?;
            Ok(AgentMessage::Full(AgentReport {
                phase: phase(full.phase),
                early: early(full.binding),
                gpus: gpus(full.gpus)?,
                pods: pods(full.pods)?,
                node,
            }))
        }
        (None, Some(change)) => {
            bounded("GPUs that are gone", change.gpus_gone.len(), MAX_REPORTED_GPUS)?;
            bounded("pods that have ended", change.pods_gone.len(), MAX_REPORTED_PODS)?;
            Ok(AgentMessage::Change(ReportChange {
                phase: phase(change.phase),
                early: early(change.binding),
                gpus: gpus(change.gpus)?,
                gpus_gone: change.gpus_gone.iter().map(|text| uuid(text)).collect::<Result<_, _>>()?,
                pods: pods(change.pods)?,
                pods_gone: change.pods_gone.iter().map(|text| uid(text)).collect::<Result<_, _>>()?,
            }))
        }
        (Some(_), Some(_)) => Err(BadMessage::Both),
    }
}

/// A phase that this version does not know is one in which nothing is bound.
fn phase(number: i32) -> AgentPhase {
    match wire::Phase::try_from(number) {
        Ok(wire::Phase::Serving) => AgentPhase::Serving,
        Ok(wire::Phase::Leaving) => AgentPhase::Leaving,
        Ok(wire::Phase::Starting | wire::Phase::Unspecified) | Err(_) => AgentPhase::Starting,
    }
}

fn early(number: i32) -> Option<bool> {
    match wire::Binding::try_from(number) {
        Ok(wire::Binding::Early) => Some(true),
        Ok(wire::Binding::Late) => Some(false),
        Ok(wire::Binding::Unspecified) | Err(_) => None,
    }
}

fn gpus(list: Vec<wire::GpuReport>) -> Result<BTreeMap<GpuUuid, ReportedGpu>, BadMessage> {
    bounded("GPUs", list.len(), MAX_REPORTED_GPUS)?;
    let gpu = |gpu: wire::GpuReport| {
        let reported = ReportedGpu {
            healthy: gpu.healthy,
            memory_total: gpu.memory_total.map(Bytes),
            memory_used: gpu.memory_used.map(Bytes),
            memory_unattributed: gpu.memory_unattributed.map(Bytes),
            processes: gpu.processes,
        };
        Ok((uuid(&gpu.uuid)?, reported))
    };
    list.into_iter().map(gpu).collect()
}

fn pods(list: Vec<wire::PodReport>) -> Result<BTreeMap<PodUid, ReportedPod>, BadMessage> {
    bounded("pods", list.len(), MAX_REPORTED_PODS)?;
    let pod = |pod: wire::PodReport| {
        bounded("GPUs of one pod", pod.uses.len(), MAX_REPORTED_USES)?;
        let used = |used: &wire::GpuUse| {
            let reported = ReportedUse { processes: used.processes, memory_used: used.memory_used.map(Bytes) };
            Ok((uuid(&used.uuid)?, reported))
        };
        let uses = pod.uses.iter().map(used).collect::<Result<_, BadMessage>>()?;
        Ok((uid(&pod.uid)?, ReportedPod { stage: stage(pod.stage), uses }))
    };
    list.into_iter().map(pod).collect()
}

/// A stage that this version does not know proves nothing: the pod may still have to ask.
fn stage(number: i32) -> PodStage {
    match wire::Stage::try_from(number) {
        Ok(wire::Stage::Allocated) => PodStage::Allocated,
        Ok(wire::Stage::Started) => PodStage::Started,
        Ok(wire::Stage::Ended) => PodStage::Ended,
        Ok(wire::Stage::Refused) => PodStage::Refused,
        Ok(wire::Stage::Waiting | wire::Stage::Unspecified) | Err(_) => PodStage::Waiting,
    }
}

/// Writes a message of an agent.
#[must_use]
pub fn from_agent(message: &AgentMessage) -> wire::AgentMessage {
    let (full, change) = match message {
        AgentMessage::Beat => (None, None),
        AgentMessage::Full(report) => {
            let full = wire::NodeFull {
                node: report.node.to_string(),
                phase: from_phase(report.phase).into(),
                binding: from_early(report.early).into(),
                gpus: from_gpus(&report.gpus),
                pods: from_pods(&report.pods),
            };
            (Some(full), None)
        }
        AgentMessage::Change(change) => {
            let change = wire::NodeChange {
                phase: from_phase(change.phase).into(),
                binding: from_early(change.early).into(),
                gpus: from_gpus(&change.gpus),
                gpus_gone: change.gpus_gone.iter().map(ToString::to_string).collect(),
                pods: from_pods(&change.pods),
                pods_gone: change.pods_gone.iter().map(ToString::to_string).collect(),
            };
            (None, Some(change))
        }
    };
    wire::AgentMessage { version: VERSION, full, change }
}

fn from_phase(phase: AgentPhase) -> wire::Phase {
    match phase {
        AgentPhase::Starting => wire::Phase::Starting,
        AgentPhase::Serving => wire::Phase::Serving,
        AgentPhase::Leaving => wire::Phase::Leaving,
    }
}

fn from_early(early: Option<bool>) -> wire::Binding {
    match early {
        None => wire::Binding::Unspecified,
        Some(true) => wire::Binding::Early,
        Some(false) => wire::Binding::Late,
    }
}

fn from_gpus(gpus: &BTreeMap<GpuUuid, ReportedGpu>) -> Vec<wire::GpuReport> {
    let gpu = |(uuid, gpu): (&GpuUuid, &ReportedGpu)| wire::GpuReport {
        uuid: uuid.to_string(),
        healthy: gpu.healthy,
        memory_total: gpu.memory_total.map(|bytes| bytes.0),
        memory_used: gpu.memory_used.map(|bytes| bytes.0),
        memory_unattributed: gpu.memory_unattributed.map(|bytes| bytes.0),
        processes: gpu.processes,
    };
    gpus.iter().map(gpu).collect()
}

fn from_pods(pods: &BTreeMap<PodUid, ReportedPod>) -> Vec<wire::PodReport> {
    let used = |(uuid, used): (&GpuUuid, &ReportedUse)| wire::GpuUse {
        uuid: uuid.to_string(),
        processes: used.processes,
        memory_used: used.memory_used.map(|bytes| bytes.0),
    };
    let stage = |stage: PodStage| match stage {
        PodStage::Waiting => wire::Stage::Waiting,
        PodStage::Allocated => wire::Stage::Allocated,
        PodStage::Started => wire::Stage::Started,
        PodStage::Ended => wire::Stage::Ended,
        PodStage::Refused => wire::Stage::Refused,
    };
    let pod = |(uid, pod): (&PodUid, &ReportedPod)| wire::PodReport {
        uid: uid.to_string(),
        stage: stage(pod.stage).into(),
        uses: pod.uses.iter().map(used).collect(),
    };
    pods.iter().map(pod).collect()
}

/// Reads a message of the leader.
///
/// # Errors
/// [`BadMessage`].
pub fn leader_view(message: wire::LeaderMessage) -> Result<LeaderView, BadMessage> {
    bounded("pods", message.awaited.len(), MAX_REPORTED_PODS)?;
    bounded("bytes of text", message.closed.len().max(message.leader.len()), MAX_TEXT)?;
    let text = |text: String| (!text.is_empty()).then(|| Arc::from(text));
    Ok(LeaderView {
        epoch: message.epoch,
        leader: text(message.leader),
        closed: text(message.closed),
        leaving: message.leaving,
        awaited: message.awaited.iter().map(|text| uid(text)).collect::<Result<_, _>>()?,
    })
}

/// Writes a message of the leader.
#[must_use]
pub fn from_leader(view: &LeaderView) -> wire::LeaderMessage {
    let text = |text: &Option<Arc<str>>| {
        let text = text.as_deref().unwrap_or_default();
        // A reason may quote a register that cannot be read.
        text.chars().take(MAX_TEXT / char::MAX_LEN_UTF8).collect::<String>()
    };
    wire::LeaderMessage {
        version: VERSION,
        epoch: view.epoch,
        leader: text(&view.leader),
        closed: text(&view.closed),
        leaving: view.leaving,
        awaited: view.awaited.iter().map(ToString::to_string).collect(),
        end: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use prost::Message;

    fn pod_uid() -> impl Strategy<Value = PodUid> {
        any::<u128>().prop_map(|number| PodUid::parse(&format!("{number:032x}")).unwrap())
    }

    fn gpu_uuid() -> impl Strategy<Value = GpuUuid> {
        any::<u32>().prop_map(|number| GpuUuid::parse(&format!("GPU-{number}")).unwrap())
    }

    fn bytes() -> impl Strategy<Value = Option<Bytes>> {
        prop::option::of(any::<u64>().prop_map(Bytes))
    }

    prop_compose! {
        fn gpu()(
            healthy: bool, memory_total in bytes(), memory_used in bytes(), memory_unattributed in bytes(),
            processes: Option<u32>,
        ) -> ReportedGpu {
            ReportedGpu { healthy, memory_total, memory_used, memory_unattributed, processes }
        }
    }

    fn pod() -> impl Strategy<Value = ReportedPod> {
        use PodStage::{Allocated, Ended, Refused, Started, Waiting};
        let stages = vec![Refused, Waiting, Allocated, Started, Ended];
        let used = (any::<u32>(), bytes()).prop_map(|(processes, memory_used)| ReportedUse { processes, memory_used });
        (prop::sample::select(stages), prop::collection::btree_map(gpu_uuid(), used, 0..4))
            .prop_map(|(stage, uses)| ReportedPod { stage, uses: uses.into() })
    }

    fn phases() -> impl Strategy<Value = AgentPhase> {
        prop::sample::select(vec![AgentPhase::Starting, AgentPhase::Serving, AgentPhase::Leaving])
    }

    proptest! {
        #[test]
        fn what_an_agent_writes_is_read_again(
            full: bool, phase in phases(), early: Option<bool>,
            gpus in prop::collection::btree_map(gpu_uuid(), gpu(), 0..8), gpus_gone in prop::collection::vec(gpu_uuid(), 0..4),
            pods in prop::collection::btree_map(pod_uid(), pod(), 0..8), pods_gone in prop::collection::vec(pod_uid(), 0..4),
        ) {
            let message = match full {
                true => {
                    let node = NodeName::parse("node-1").unwrap();
                    AgentMessage::Full(AgentReport { node, phase, early, gpus, pods })
                }
                false => AgentMessage::Change(ReportChange { phase, early, gpus, gpus_gone, pods, pods_gone }),
            };
            let bytes = from_agent(&message).encode_to_vec();
            prop_assert_eq!(agent_message(wire::AgentMessage::decode(&*bytes).unwrap()), Ok(message));
        }

        #[test]
        fn what_the_leader_writes_is_read_again(
            epoch: u64, leader in prop::option::of("[a-z0-9.:]{1,40}"), closed in prop::option::of("\\PC{1,200}"),
            leaving: bool, awaited in prop::collection::vec(pod_uid(), 0..8),
        ) {
            let view =
                LeaderView { epoch, leader: leader.map(Arc::from), closed: closed.map(Arc::from), leaving, awaited };
            let bytes = from_leader(&view).encode_to_vec();
            prop_assert_eq!(leader_view(wire::LeaderMessage::decode(&*bytes).unwrap()), Ok(view));
        }

        #[test]
        fn no_bytes_panic(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
            if let Ok(message) = wire::AgentMessage::decode(&*bytes) {
                let _ = agent_message(message);
            }
            if let Ok(message) = wire::LeaderMessage::decode(&*bytes) {
                let _ = leader_view(message);
            }
        }
    }

    #[test]
    fn a_million_gpus_and_names_that_are_none_are_refused_with_the_reason() {
        let full = |full: wire::NodeFull| wire::AgentMessage { version: VERSION, full: Some(full), change: None };
        let node = || wire::NodeFull { node: "n1".into(), ..wire::NodeFull::default() };
        let many = full(wire::NodeFull { gpus: vec![wire::GpuReport::default(); 1_000_000], ..node() });
        let why = agent_message(many).unwrap_err();
        assert_eq!(why.to_string(), "the message has 1000000 GPUs, and at most 176 are read");
        let pods = vec![wire::PodReport::default(); MAX_REPORTED_PODS + 1];
        let uses = vec![wire::GpuUse::default(); MAX_REPORTED_USES + 1];
        let pod = wire::PodReport { uid: "x".into(), uses, ..wire::PodReport::default() };
        for (bad, words) in [
            (wire::NodeFull { pods, ..node() }, "1025 pods"),
            (wire::NodeFull { pods: vec![pod], ..node() }, "33 GPUs of one pod"),
            (wire::NodeFull { node: "a b".into(), ..node() }, "name of a node that is none: \"a b\""),
            (wire::NodeFull { pods: vec![wire::PodReport::default()], ..node() }, "UID of a pod"),
        ] {
            let why = agent_message(full(bad)).unwrap_err().to_string();
            assert!(why.contains(words), "{why}");
        }
        let both = wire::AgentMessage { change: Some(wire::NodeChange::default()), ..full(node()) };
        assert_eq!(agent_message(both), Err(BadMessage::Both));
    }

    #[test]
    fn what_a_later_version_says_proves_nothing_here() {
        let pod = wire::PodReport { uid: "a".repeat(32), stage: 99, uses: Vec::new() };
        let full =
            wire::NodeFull { node: "n1".into(), phase: 99, binding: 99, pods: vec![pod], ..wire::NodeFull::default() };
        let message = wire::AgentMessage { version: 2, full: Some(full), change: None };
        let Ok(AgentMessage::Full(report)) = agent_message(message) else { panic!("it is read") };
        assert_eq!((report.phase, report.early), (AgentPhase::Starting, None));
        assert!(report.pods.values().all(|pod| pod.stage == PodStage::Waiting));
    }
}
