//! Turns the messages of the streams into the types of `model`, within bounds, and back.
//!
//! What must never happen here: a message that is accepted in part; a number of GPUs, pods or uses beyond the bounds of
//! `model::agent_stream`; an absent amount that becomes zero.

use model::agent_stream::{
    AgentMessage, AgentPhase, AgentReport, LeaderView, MAX_REPORTED_GPUS, MAX_REPORTED_PODS, MAX_REPORTED_USERS,
    MAX_REPORTED_USES, MAX_USER_NAME, MAX_WITHDRAWN, MemoryUser, PodStage, ReportChange, ReportedGpu, ReportedPod,
    ReportedUse,
};
use model::id::{GpuUuid, NodeName, PodUid};
use model::reading::Absence;
use model::realtime::{CheckMode, NodeCheck};
use model::reported_reading::{ReadingAge, ReportedReading};
use model::unit::Bytes;
use proto::stream as wire;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The version of the format.
pub const VERSION: u32 = 1;
/// Maximum size in bytes of a text from the leader: a sentence.
const MAX_TEXT: usize = 1024;

/// Why a message is not accepted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadMessage {
    /// More items than are accepted.
    #[error("the message has {found} {what}, and at most {most} are read")]
    TooMany {
        /// The kind of items.
        what: &'static str,
        /// Number of items.
        found: usize,
        /// The bound.
        most: usize,
    },
    /// A name that is not valid.
    #[error("invalid {what} in the message: {text:?}")]
    NotAName {
        /// The kind of name that was expected.
        what: &'static str,
        /// The text, cut.
        text: String,
    },
    /// The message has both the full state and a change.
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
                phase: phase(full.phase, full.binding),
                refuses_unclaimed: full.refuses_unclaimed,
                check: check(full.realtime_check),
                gpus: gpus(full.gpus)?,
                pods: pods(full.pods)?,
                withdrawn: withdrawn(&full.withdrawn)?,
                node,
            }))
        }
        (None, Some(change)) => {
            bounded("GPUs that are gone", change.gpus_gone.len(), MAX_REPORTED_GPUS)?;
            bounded("pods that have ended", change.pods_gone.len(), MAX_REPORTED_PODS)?;
            Ok(AgentMessage::Change(ReportChange {
                phase: phase(change.phase, change.binding),
                refuses_unclaimed: change.refuses_unclaimed,
                check: check(change.realtime_check),
                gpus: gpus(change.gpus)?,
                gpus_gone: change.gpus_gone.iter().map(|text| uuid(text)).collect::<Result<_, _>>()?,
                pods: pods(change.pods)?,
                pods_gone: change.pods_gone.iter().map(|text| uid(text)).collect::<Result<_, _>>()?,
                withdrawn: withdrawn(&change.withdrawn)?,
            }))
        }
        (Some(_), Some(_)) => Err(BadMessage::Both),
    }
}

/// A word that this version does not know counts as no word: the leader's own settings count then.
fn check(message: Option<wire::RealtimeCheck>) -> NodeCheck {
    let wire::RealtimeCheck { enabled, mode } = message.unwrap_or_default();
    NodeCheck { enabled, mode: CheckMode::parse(&mode) }
}

fn withdrawn(list: &[String]) -> Result<BTreeSet<GpuUuid>, BadMessage> {
    bounded("withdrawn GPUs", list.len(), MAX_WITHDRAWN)?;
    list.iter().map(|text| uuid(text)).collect()
}

/// No pod is bound in a phase that this version does not know.
fn phase(number: i32, binding: i32) -> AgentPhase {
    match wire::Phase::try_from(number) {
        Ok(wire::Phase::Serving) if wire::Binding::try_from(binding) == Ok(wire::Binding::Early) => {
            AgentPhase::ServingEarly
        }
        Ok(wire::Phase::Serving) => AgentPhase::Serving,
        Ok(wire::Phase::Leaving) => AgentPhase::Leaving,
        Ok(wire::Phase::Starting | wire::Phase::Unspecified) | Err(_) => AgentPhase::Starting,
    }
}

fn gpus(list: Vec<wire::GpuReport>) -> Result<BTreeMap<GpuUuid, ReportedGpu>, BadMessage> {
    bounded("GPUs", list.len(), MAX_REPORTED_GPUS)?;
    let gpu = |gpu: wire::GpuReport| {
        let reported = ReportedGpu {
            healthy: gpu.healthy,
            memory_total: reading(gpu.memory_total.map(Bytes), gpu.memory_total_state),
            memory_used: reading(gpu.memory_used.map(Bytes), gpu.memory_used_state),
            memory_listed: reading(gpu.memory_listed.map(Bytes), gpu.memory_listed_state),
            memory_unattributed: reading(gpu.memory_unattributed.map(Bytes), gpu.memory_unattributed_state),
            processes: reading(gpu.processes, gpu.processes_state),
            utilization: reading(gpu.utilization, gpu.utilization_state),
            users: users(gpu.users)?,
        };
        Ok((uuid(&gpu.uuid)?, reported))
    };
    list.into_iter().map(gpu).collect()
}

fn users(list: Vec<wire::MemoryUser>) -> Result<Box<[MemoryUser]>, BadMessage> {
    bounded("users of a GPU's memory", list.len(), MAX_REPORTED_USERS)?;
    let user = |user: wire::MemoryUser| {
        bounded("bytes of a user's name", user.name.len(), MAX_USER_NAME)?;
        Ok(MemoryUser { name: user.name.into(), memory: Bytes(user.memory) })
    };
    list.into_iter().map(user).collect()
}

fn pods(list: Vec<wire::PodReport>) -> Result<BTreeMap<PodUid, ReportedPod>, BadMessage> {
    bounded("pods", list.len(), MAX_REPORTED_PODS)?;
    let pod = |pod: wire::PodReport| {
        bounded("GPUs of one pod", pod.uses.len(), MAX_REPORTED_USES)?;
        let used = |used: wire::GpuUse| {
            let memory_used = reading(used.memory_used.map(Bytes), used.memory_used_state);
            Ok((uuid(&used.uuid)?, ReportedUse { processes: used.processes, memory_used }))
        };
        let uses = pod.uses.into_iter().map(used).collect::<Result<_, BadMessage>>()?;
        Ok((uid(&pod.uid)?, ReportedPod { stage: stage(pod.stage), has_containers: pod.has_containers, uses }))
    };
    list.into_iter().map(pod).collect()
}

/// A missing value is absent. An age or reason that the message does not have is not known.
fn reading<T>(value: Option<T>, state: Option<wire::ReadingState>) -> ReportedReading<T> {
    let state = state.unwrap_or_default();
    match value {
        Some(value) => ReportedReading::Measured(value, state.age_ms.map(ReadingAge)),
        None => ReportedReading::Absent(Absence::parse(&state.absent, state.nvml_error)),
    }
}

/// A stage that this version does not know counts as waiting: the kubelet may not have called `Allocate` yet.
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
                binding: binding(report.phase).into(),
                gpus: from_gpus(&report.gpus),
                pods: from_pods(&report.pods),
                refuses_unclaimed: report.refuses_unclaimed,
                withdrawn: report.withdrawn.iter().map(ToString::to_string).collect(),
                realtime_check: from_check(report.check),
            };
            (Some(full), None)
        }
        AgentMessage::Change(change) => {
            let change = wire::NodeChange {
                phase: from_phase(change.phase).into(),
                binding: binding(change.phase).into(),
                gpus: from_gpus(&change.gpus),
                gpus_gone: change.gpus_gone.iter().map(ToString::to_string).collect(),
                pods: from_pods(&change.pods),
                pods_gone: change.pods_gone.iter().map(ToString::to_string).collect(),
                refuses_unclaimed: change.refuses_unclaimed,
                withdrawn: change.withdrawn.iter().map(ToString::to_string).collect(),
                realtime_check: from_check(change.check),
            };
            (None, Some(change))
        }
    };
    wire::AgentMessage { version: VERSION, full, change }
}

fn from_check(check: NodeCheck) -> Option<wire::RealtimeCheck> {
    let mode = check.mode.map(CheckMode::code).unwrap_or_default().to_owned();
    (check != NodeCheck::default()).then_some(wire::RealtimeCheck { enabled: check.enabled, mode })
}

fn from_phase(phase: AgentPhase) -> wire::Phase {
    match phase {
        AgentPhase::Starting => wire::Phase::Starting,
        AgentPhase::Serving | AgentPhase::ServingEarly => wire::Phase::Serving,
        AgentPhase::Leaving => wire::Phase::Leaving,
    }
}

fn binding(phase: AgentPhase) -> wire::Binding {
    match phase {
        AgentPhase::ServingEarly => wire::Binding::Early,
        AgentPhase::Starting | AgentPhase::Serving | AgentPhase::Leaving => wire::Binding::Unspecified,
    }
}

fn from_gpus(gpus: &BTreeMap<GpuUuid, ReportedGpu>) -> Vec<wire::GpuReport> {
    let gpu = |(uuid, gpu): (&GpuUuid, &ReportedGpu)| wire::GpuReport {
        uuid: uuid.to_string(),
        healthy: gpu.healthy,
        memory_total: gpu.memory_total.get().map(|bytes| bytes.0),
        memory_used: gpu.memory_used.get().map(|bytes| bytes.0),
        memory_unattributed: gpu.memory_unattributed.get().map(|bytes| bytes.0),
        processes: gpu.processes.get(),
        memory_total_state: state(&gpu.memory_total),
        memory_used_state: state(&gpu.memory_used),
        memory_unattributed_state: state(&gpu.memory_unattributed),
        processes_state: state(&gpu.processes),
        memory_listed: gpu.memory_listed.get().map(|bytes| bytes.0),
        memory_listed_state: state(&gpu.memory_listed),
        utilization: gpu.utilization.get(),
        utilization_state: state(&gpu.utilization),
        users: gpu.users.iter().map(from_user).collect(),
    };
    gpus.iter().map(gpu).collect()
}

fn from_user(user: &MemoryUser) -> wire::MemoryUser {
    wire::MemoryUser { name: user.name.to_string(), memory: user.memory.0 }
}

fn from_pods(pods: &BTreeMap<PodUid, ReportedPod>) -> Vec<wire::PodReport> {
    let used = |(uuid, used): (&GpuUuid, &ReportedUse)| wire::GpuUse {
        uuid: uuid.to_string(),
        processes: used.processes,
        memory_used: used.memory_used.get().map(|bytes| bytes.0),
        memory_used_state: state(&used.memory_used),
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
        has_containers: pod.has_containers,
    };
    pods.iter().map(pod).collect()
}

/// The age of a reading, or the reason why it is absent; `None` if neither is known.
fn state<T>(reading: &ReportedReading<T>) -> Option<wire::ReadingState> {
    match reading {
        ReportedReading::Measured(_, age) => {
            age.map(|ReadingAge(age)| wire::ReadingState { age_ms: Some(age), ..wire::ReadingState::default() })
        }
        ReportedReading::Absent(why) => why.map(|why| wire::ReadingState {
            age_ms: None,
            absent: why.code().to_owned(),
            nvml_error: if let Absence::Nvml(number) = why { Some(number) } else { None },
        }),
    }
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
        // The reason may quote a register annotation that cannot be read.
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

    fn readings<T: std::fmt::Debug>(value: impl Strategy<Value = T>) -> impl Strategy<Value = ReportedReading<T>> {
        use Absence::{CallHangs, GpuLost, NotYet, Nvml};
        let reasons = prop::sample::select(vec![None, Some(NotYet), Some(CallHangs), Some(GpuLost), Some(Nvml(15))]);
        prop_oneof![
            (value, any::<Option<u32>>())
                .prop_map(|(value, age)| ReportedReading::Measured(value, age.map(ReadingAge))),
            reasons.prop_map(ReportedReading::Absent),
        ]
    }

    fn bytes() -> impl Strategy<Value = ReportedReading<Bytes>> {
        readings(any::<u64>().prop_map(Bytes))
    }

    prop_compose! {
        fn gpu()(
            healthy: bool, memory_total in bytes(), memory_used in bytes(), memory_listed in bytes(),
            memory_unattributed in bytes(), processes in readings(any::<u32>()), utilization in readings(any::<u32>()),
            users in prop::collection::vec(("[ -~]{0,20}", any::<u64>()), 0..=MAX_REPORTED_USERS),
        ) -> ReportedGpu {
            let user = |(name, memory): (String, u64)| MemoryUser { name: name.into(), memory: Bytes(memory) };
            let users = users.into_iter().map(user).collect();
            ReportedGpu {
                healthy, memory_total, memory_used, memory_listed, memory_unattributed, processes, utilization, users,
            }
        }
    }

    fn pod() -> impl Strategy<Value = ReportedPod> {
        use PodStage::{Allocated, Ended, Refused, Started, Waiting};
        let stages = vec![Refused, Waiting, Allocated, Started, Ended];
        let used = (any::<u32>(), bytes()).prop_map(|(processes, memory_used)| ReportedUse { processes, memory_used });
        (prop::sample::select(stages), any::<bool>(), prop::collection::btree_map(gpu_uuid(), used, 0..4))
            .prop_map(|(stage, has_containers, uses)| ReportedPod { stage, has_containers, uses: uses.into() })
    }

    fn phases() -> impl Strategy<Value = AgentPhase> {
        use AgentPhase::{Leaving, Serving, ServingEarly, Starting};
        prop::sample::select(vec![Starting, Serving, ServingEarly, Leaving])
    }

    fn checks() -> impl Strategy<Value = NodeCheck> {
        let mode = prop::option::of(prop::sample::select(CheckMode::ALL.to_vec()));
        (any::<Option<bool>>(), mode).prop_map(|(enabled, mode)| NodeCheck { enabled, mode })
    }

    proptest! {
        #[test]
        fn what_an_agent_writes_is_read_again(
            full: bool, phase in phases(), refuses_unclaimed: bool, check in checks(),
            gpus in prop::collection::btree_map(gpu_uuid(), gpu(), 0..8), gpus_gone in prop::collection::vec(gpu_uuid(), 0..4),
            pods in prop::collection::btree_map(pod_uid(), pod(), 0..8), pods_gone in prop::collection::vec(pod_uid(), 0..4),
            withdrawn in prop::collection::btree_set(gpu_uuid(), 0..4),
        ) {
            let message = match full {
                true => {
                    let node = NodeName::parse("node-1").unwrap();
                    AgentMessage::Full(AgentReport { node, phase, refuses_unclaimed, check, gpus, pods, withdrawn })
                }
                false => AgentMessage::Change(ReportChange {
                    phase,
                    refuses_unclaimed,
                    check,
                    gpus,
                    gpus_gone,
                    pods,
                    pods_gone,
                    withdrawn,
                }),
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
            (wire::NodeFull { withdrawn: vec!["GPU-1".into(); 177], ..node() }, "177 withdrawn GPUs"),
            (wire::NodeFull { node: "a b".into(), ..node() }, "invalid name of a node in the message: \"a b\""),
            (wire::NodeFull { pods: vec![wire::PodReport::default()], ..node() }, "UID of a pod"),
        ] {
            let why = agent_message(full(bad)).unwrap_err().to_string();
            assert!(why.contains(words), "{why}");
        }
        let both = wire::AgentMessage { change: Some(wire::NodeChange::default()), ..full(node()) };
        assert_eq!(agent_message(both), Err(BadMessage::Both));
    }

    /// A report of one GPU whose message has these fields.
    fn read_gpu(gpu: wire::GpuReport) -> ReportedGpu {
        let gpu = wire::GpuReport { uuid: "GPU-1".into(), ..gpu };
        gpus(vec![gpu]).unwrap().into_values().next().unwrap()
    }

    #[test]
    fn an_agent_of_an_earlier_release_gives_no_age_and_no_reason_and_nothing_of_it_becomes_0() {
        let gpu = read_gpu(wire::GpuReport { memory_used: Some(0), processes: Some(2), ..wire::GpuReport::default() });
        assert_eq!(gpu.memory_used, ReportedReading::Measured(Bytes(0), None));
        assert_eq!(gpu.processes, ReportedReading::Measured(2, None));
        assert_eq!([gpu.memory_total, gpu.memory_unattributed], [ReportedReading::UNKNOWN; 2]);
    }

    #[test]
    fn a_reason_of_a_later_release_is_not_known_and_a_value_with_a_reason_is_a_value() {
        let state = |absent: &str| Some(wire::ReadingState { absent: absent.into(), ..wire::ReadingState::default() });
        let gpu = read_gpu(wire::GpuReport {
            memory_total_state: state("of_a_later_release"),
            memory_used: Some(7),
            memory_used_state: state("gpu_lost"),
            memory_unattributed_state: state("gpu_lost"),
            ..wire::GpuReport::default()
        });
        assert_eq!(gpu.memory_total, ReportedReading::UNKNOWN);
        assert_eq!(gpu.memory_used, ReportedReading::Measured(Bytes(7), None));
        assert_eq!(gpu.memory_unattributed, ReportedReading::Absent(Some(Absence::GpuLost)));
    }

    /// The fields that an earlier release knows have their old numbers, and an absent value has no number.
    #[test]
    fn a_leader_of_an_earlier_release_reads_the_values_and_skips_their_states() {
        #[derive(Clone, PartialEq, prost::Message)]
        struct EarlierGpuReport {
            #[prost(string, tag = "1")]
            uuid: String,
            #[prost(bool, tag = "2")]
            healthy: bool,
            #[prost(uint64, optional, tag = "3")]
            memory_total: Option<u64>,
            #[prost(uint64, optional, tag = "4")]
            memory_used: Option<u64>,
            #[prost(uint64, optional, tag = "5")]
            memory_unattributed: Option<u64>,
            #[prost(uint32, optional, tag = "6")]
            processes: Option<u32>,
        }
        let gpu = ReportedGpu {
            healthy: true,
            memory_total: ReportedReading::Measured(Bytes(8), Some(ReadingAge(3))),
            memory_used: ReportedReading::Absent(Some(Absence::Nvml(15))),
            memory_listed: ReportedReading::UNKNOWN,
            memory_unattributed: ReportedReading::UNKNOWN,
            processes: ReportedReading::Measured(0, Some(ReadingAge(0))),
            utilization: ReportedReading::Measured(45, Some(ReadingAge(0))),
            users: [MemoryUser { name: "process 7 python".into(), memory: Bytes(7) }].into(),
        };
        let sent = from_gpus(&BTreeMap::from([(GpuUuid::parse("GPU-1").unwrap(), gpu)])).remove(0);
        let expected = EarlierGpuReport {
            uuid: "GPU-1".into(),
            healthy: true,
            memory_total: Some(8),
            memory_used: None,
            memory_unattributed: None,
            processes: Some(0),
        };
        assert_eq!(EarlierGpuReport::decode(&*sent.encode_to_vec()).unwrap(), expected);
    }

    /// Agents of earlier releases also report that their binding is late, with the number 1.
    #[test]
    fn an_agent_of_an_earlier_release_that_binds_early_is_known() {
        for (phase, binding, expect) in [
            (wire::Phase::Serving, 0, AgentPhase::Serving),
            (wire::Phase::Serving, 1, AgentPhase::Serving),
            (wire::Phase::Serving, 2, AgentPhase::ServingEarly),
            (wire::Phase::Starting, 2, AgentPhase::Starting),
            (wire::Phase::Leaving, 2, AgentPhase::Leaving),
        ] {
            let full = wire::NodeFull { node: "n1".into(), phase: phase.into(), binding, ..wire::NodeFull::default() };
            let message = wire::AgentMessage { version: VERSION, full: Some(full), change: None };
            let Ok(AgentMessage::Full(report)) = agent_message(message) else { panic!("it is read") };
            assert_eq!(report.phase, expect, "{phase:?} {binding}");
        }
    }

    #[test]
    fn what_a_later_version_says_proves_nothing_here() {
        let pod = wire::PodReport { uid: "a".repeat(32), stage: 99, ..wire::PodReport::default() };
        let full =
            wire::NodeFull { node: "n1".into(), phase: 99, binding: 99, pods: vec![pod], ..wire::NodeFull::default() };
        let message = wire::AgentMessage { version: 2, full: Some(full), change: None };
        let Ok(AgentMessage::Full(report)) = agent_message(message) else { panic!("it is read") };
        assert_eq!(report.phase, AgentPhase::Starting);
        assert!(report.pods.values().all(|pod| pod.stage == PodStage::Waiting));
    }
}
