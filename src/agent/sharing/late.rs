//! Writes the error message of a start that has waited too long. The message names the container if a source knows it,
//! and says what the agent was waiting for.

use decide::allocator::WaitReason;
use model::checkpoint::CheckpointEntry;
use model::id::{PodRef, PodUid};
use model::observation::ContainerDevices;
use model::pod::PodList;
use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// The container that holds some slot ids, according to the kubelet's checkpoint, its PodResources API and the agent's
/// list of pods together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TicketHolder {
    /// The pod's UID, if the checkpoint or the agent's list has it.
    pub uid: Option<PodUid>,
    /// The pod's namespace and name, if PodResources or the agent's list has them.
    pub pod: Option<PodRef>,
    /// The container; if several containers use the ids one after the other, their names, separated by commas.
    pub container: Arc<str>,
}

impl fmt::Display for TicketHolder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "container {} of ", self.container)?;
        match (&self.pod, &self.uid) {
            (Some(pod), Some(uid)) => write!(f, "pod {pod} ({uid})"),
            (Some(pod), None) => write!(f, "pod {pod}"),
            (None, Some(uid)) => write!(f, "the pod with UID {uid}"),
            (None, None) => f.write_str("a pod whose name is not known"),
        }
    }
}

/// The holder of exactly these ids; `None` if no source names a pod, or the sources name several pods.
pub(super) fn holder(
    ids: &[Arc<str>],
    checkpoint: &[CheckpointEntry],
    listed: &[ContainerDevices],
    pods: Option<&PodList>,
) -> Option<TicketHolder> {
    let requested: BTreeSet<&str> = ids.iter().map(|id| &**id).collect();
    let same = |own: &[Arc<str>]| own.iter().map(|id| &**id).collect::<BTreeSet<&str>>() == requested;
    let rows: Vec<&CheckpointEntry> = checkpoint.iter().filter(|row| same(&row.ids)).collect();
    let listed: Vec<&ContainerDevices> = listed.iter().filter(|one| same(&one.ids)).collect();
    let uids: BTreeSet<&PodUid> = rows.iter().map(|row| &row.holder.pod).collect();
    let names: BTreeSet<PodRef> =
        listed.iter().map(|one| PodRef { namespace: one.namespace.clone(), name: one.pod.clone() }).collect();
    if uids.len() > 1 || uids.is_empty() && names.len() != 1 {
        return None;
    }
    let mut uid = uids.first().map(|uid| (*uid).clone());
    let mut pod = names.first().filter(|_| names.len() == 1).cloned();
    let mut here = pods.iter().flat_map(|pods| &pods.pods);
    let known = match &uid {
        Some(uid) => here.find(|pod| pod.cgroup_uid() == uid),
        None => here.find(|one| Some(&one.name) == pod.as_ref() && !one.ended()),
    };
    if let Some(known) = known {
        (uid, pod) = (Some(known.cgroup_uid().clone()), Some(known.name.clone()));
    }
    let mut containers: Vec<&str> = match rows.is_empty() {
        false => rows.iter().map(|row| &*row.holder.container).collect(),
        true => listed.iter().map(|one| &*one.container).collect(),
    };
    containers.dedup();
    Some(TicketHolder { uid, pod, container: containers.join(", ").into() })
}

/// The message that says what was missing.
pub(super) fn sentence(
    (what, waited): (WaitReason, Duration),
    ids: &[Arc<str>],
    (checkpoint, unreadable): (Result<(), &str>, &[Arc<str>]),
    holder: Option<&TicketHolder>,
) -> String {
    let seconds = waited.as_secs();
    let by_listing = || match holder {
        Some(holder) => {
            format!("; by PodResources {holder} has them, but the agent cannot find the ticket of this container")
        }
        None => String::new(),
    };
    match (what, checkpoint, unreadable.first()) {
        (WaitReason::Checkpoint, Err(why), _) => {
            format!("after {seconds} s it is not known which container holds {ids:?}: {why}{}", by_listing())
        }
        (WaitReason::Checkpoint, Ok(()), Some(fault)) => {
            format!(
                "after {seconds} s it is not known which container holds {ids:?}: kubelet's checkpoint: {fault}{}",
                by_listing()
            )
        }
        (WaitReason::Checkpoint, Ok(()), None) => {
            format!("after {seconds} s kubelet's checkpoint does not say which container holds {ids:?}{}", by_listing())
        }
        (WaitReason::Pod, ..) => {
            let pod = holder.map_or_else(
                || format!("the pod that holds {ids:?}"),
                |holder| format!("{holder}, which holds {ids:?}"),
            );
            format!("after {seconds} s the API server has not shown {pod}: is it reachable from this node?")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::id::ContainerKey;

    fn uid() -> PodUid {
        PodUid::parse("466d3e0f-28fd-4a4c-a28d-790ef2a79f8c").unwrap()
    }

    fn ids() -> Vec<Arc<str>> {
        vec!["GPU-a-1".into()]
    }

    fn row(container: &str) -> CheckpointEntry {
        let holder = ContainerKey { pod: uid(), container: container.into() };
        CheckpointEntry { holder, ids: ids(), early: false, ticket: None, foreign: false }
    }

    fn listed(pod: &str) -> ContainerDevices {
        let (namespace, resource) = ("team".into(), "nvidia.com/gpu".into());
        ContainerDevices { namespace, pod: pod.into(), container: "main".into(), resource, ids: ids() }
    }

    fn late(
        what: WaitReason,
        checkpoint: Result<&[CheckpointEntry], &str>,
        unreadable: &[Arc<str>],
        listed: &[ContainerDevices],
    ) -> String {
        let holder = holder(&ids(), checkpoint.unwrap_or_default(), listed, None);
        sentence((what, Duration::from_secs(25)), &ids(), (checkpoint.map(drop), unreadable), holder.as_ref())
    }

    #[test]
    fn a_late_start_names_its_pod_from_any_source_that_knows_it() {
        let by_checkpoint = "container main of the pod with UID 466d3e0f-28fd-4a4c-a28d-790ef2a79f8c";
        let text = late(WaitReason::Pod, Ok(&[row("main")]), &[], &[]);
        assert!(text.contains("has not shown") && text.contains(by_checkpoint), "{text}");
        let text = late(WaitReason::Pod, Ok(&[row("warm"), row("main")]), &[], &[listed("a")]);
        assert!(text.contains("container warm, main of pod team/a (466d3e0f-"), "{text}");
        let text = late(WaitReason::Checkpoint, Err("no such file"), &[], &[listed("a")]);
        assert!(text.contains("no such file; by PodResources container main of pod team/a has them"), "{text}");
    }

    #[test]
    fn unknown_slots_are_reported_with_the_sources_that_were_read() {
        let text = late(WaitReason::Checkpoint, Ok(&[]), &[], &[]);
        assert_eq!(text, "after 25 s kubelet's checkpoint does not say which container holds [\"GPU-a-1\"]");
        let text = late(WaitReason::Checkpoint, Ok(&[]), &["entry 3 cannot be read: not a pod UID".into()], &[]);
        assert!(text.ends_with("kubelet's checkpoint: entry 3 cannot be read: not a pod UID"), "{text}");
    }

    #[test]
    fn the_holder_is_unknown_when_the_sources_name_two_pods() {
        assert_eq!(holder(&ids(), &[], &[listed("a"), listed("b")], None), None);
        let other = ContainerKey { pod: PodUid::parse(&"2".repeat(32)).unwrap(), container: "main".into() };
        assert_eq!(
            holder(&ids(), &[row("main"), CheckpointEntry { holder: other, ..row("main") }], &[listed("a")], None),
            None
        );
        assert_eq!(holder(&["GPU-b-1".into()], &[row("main")], &[listed("a")], None), None);
    }
}
