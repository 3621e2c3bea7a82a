//! Writes events and annotations on pods. An event tells the pod's owner why a container does not start. An annotation
//! tells HAMi's scheduler that a pod has its GPUs or was refused. If no scheduler placed the pod, an annotation records
//! the claim that the agent made. Each write runs in its own task, so that the kubelet's calls do not wait for it. The
//! agent retries an annotation until it is written or the pod is gone, because the scheduler and later agents rely on
//! it. It retries most events on pods for about a minute, but tries an event on a pod about GPU health, over-use or an
//! eviction only once.

use super::event_notes::{self, NOT_APPLIED, gpu_missing, too_much_written};
use super::health::{GpuHealthWatch, HealthChange};
use super::overuse;
use super::pod_write::{Ended, write};
use crate::event_log::{PodEvent, log_pod_event};
use apiserver::own_node::OwnNodeReader;
use apiserver::writes::{ApiServer, EventType, ObjectEvent};
use decide::allocator::{NodeAllocator, Refusal};
use decide::bind_phases::{BindPhases, PhaseWrite};
use decide::eviction::{EvictionStep, Evictions};
use decide::pod_writes::{AnnotationChanges, MAX_IN_FLIGHT, PendingPodWrites, PodWriteKind, PodWriteOutcome};
use decide::sent_events::SentEvents;
use model::claim::{BindPhase, Claim};
use model::gpu_pod::GpuPod;
use model::id::{GpuUuid, NodeName, PodRef, PodUid};
use model::plugin::PodFiles;
use model::pod::{Pod, PodList};
use model::unit::Bytes;
use model::view::NodeView;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use wire::{annotation_keys, bind, claim};

/// Seconds before each new attempt to write an event. An event is made only once, so one failed attempt must not lose
/// it. If the API server stays unreachable for more than about a minute, the event is lost, but the log has it.
const EVENT_PAUSES: [u64; 4] = [1, 4, 15, 60];

/// Writes events and annotations on pods, and remembers which were written.
#[derive(Debug)]
pub(crate) struct PodStatusWriter {
    api: ApiServer,
    own: OwnNodeReader,
    node: NodeName,
    sent: SentEvents,
    /// Static pods: the kubelet knows each by the hash of its manifest, the API server by the UID of its mirror pod.
    /// Annotations are written on the mirror. Events name the hash, like the kubelet's own events, because
    /// `kubectl describe` finds events by it.
    mirrors: BTreeMap<PodUid, PodUid>,
    /// The bind phases that were written for HAMi's scheduler.
    phases: BindPhases,
    evictions: Evictions,
    /// The health of the GPUs at the last view.
    watched: GpuHealthWatch,
    unwritten: PendingPodWrites,
    /// The results of attempts to write on pods.
    ended: (mpsc::Sender<Ended>, mpsc::Receiver<Ended>),
}

impl PodStatusWriter {
    /// Writes to this API server.
    pub(crate) fn new(api: ApiServer, own: OwnNodeReader, node: NodeName) -> PodStatusWriter {
        PodStatusWriter {
            api,
            own,
            node,
            sent: SentEvents::default(),
            mirrors: BTreeMap::new(),
            phases: BindPhases::default(),
            evictions: Evictions::default(),
            watched: GpuHealthWatch::default(),
            unwritten: PendingPodWrites::default(),
            ended: mpsc::channel(MAX_IN_FLIGHT),
        }
    }

    /// Sets whether pods that use more memory than they claim, or write too many files, are evicted.
    pub(super) fn switch_evictions(&mut self, on: bool) {
        self.evictions.switch(on);
    }

    /// Takes the list of pods, and forgets pods that are gone.
    pub(super) fn pods_are(&mut self, pods: &PodList) {
        if pods.pods.iter().any(|pod| self.is_awaited(pod)) {
            self.allocates();
        }
        let mirrored = pods.pods.iter().filter(|pod| pod.mirror_of.is_some());
        self.mirrors = mirrored.map(|pod| (pod.cgroup_uid().clone(), pod.uid.clone())).collect();
        let here: BTreeSet<&PodUid> = pods.pods.iter().map(|pod| pod.cgroup_uid()).collect();
        self.sent.forget(&here);
        self.phases.forget(&here);
        self.unwritten.forget(&here);
    }

    /// Waits until a write is due or an attempt has ended, and handles it.
    pub(super) async fn turn(&mut self) {
        let next = self.unwritten.next();
        let until = next.map(|at| at.since(clock::monotonic())).unwrap_or_default();
        tokio::select! {
            Some(ended) = self.ended.1.recv() => self.has_ended(&ended),
            () = tokio::time::sleep(until), if next.is_some() => self.write(),
        }
    }

    /// Starts the writes that are due.
    fn write(&mut self) {
        for due in self.unwritten.due(clock::monotonic()) {
            tokio::spawn(write(self.api.clone(), self.own.clone(), due, self.ended.0.clone()));
        }
    }

    /// Handles the result of an attempt.
    fn has_ended(&mut self, ended: &Ended) {
        let Ended { write, outcome, why } = ended;
        let (pod, what) = (&write.pod, meaning(write.kind));
        match outcome {
            PodWriteOutcome::Failed if write.failed == 0 => {
                tracing::warn!(%pod, why, "cannot write to the API server: {what}; the agent tries until it succeeds");
            }
            PodWriteOutcome::Failed => {
                tracing::debug!(%pod, why, tries = write.failed + 1, "still cannot write: {what}")
            }
            PodWriteOutcome::Written if write.failed > 0 => {
                tracing::info!(%pod, tries = write.failed + 1, "it is written now: {what}");
            }
            PodWriteOutcome::Gone => tracing::debug!(%pod, "the pod is gone; no longer written: {what}"),
            PodWriteOutcome::Written => {}
        }
        self.unwritten.ended(write, *outcome, clock::monotonic());
        self.write();
    }

    /// The API server's UID of the pod that the kubelet knows as `of`. The two differ for a static pod.
    fn at_server(&self, of: &PodUid) -> PodUid {
        self.mirrors.get(of).unwrap_or(of).clone()
    }

    /// Writes these annotations on the pod that the kubelet knows as `of`, and repeats that until they are written.
    fn write_until_done(&mut self, kind: PodWriteKind, (of, pod): (&PodUid, &PodRef), annotations: AnnotationChanges) {
        let uid = self.at_server(of);
        if !self.unwritten.add((of, kind), (&uid, pod), annotations, clock::monotonic()) {
            tracing::error!(%pod, "too many writes on pods are pending; this one is dropped: {}", meaning(kind));
        }
        self.write();
    }

    /// Handles a refused start: writes an event if the reason is new, because the kubelet retries the start again and
    /// again. A pod that can never start here also gets the mark for eviction.
    pub(super) fn refused(&mut self, (uid, pod): (&PodUid, &PodRef), container: &Arc<str>, why: &Refusal) {
        let Some(refusal) = self.sent.refused(uid, container, why) else { return };
        self.event(uid, pod, why.code(), format!("container {container}: {why}"));
        if let Some(reason) = refusal.mark {
            self.mark((uid, pod), Some(reason));
        }
    }

    /// Removes the mark for eviction from a pod that starts although this refusal said that it never could.
    pub(super) fn starts_after_all(&mut self, (uid, pod): (&PodUid, &PodRef), why: &Refusal) {
        if self.sent.starts_after_all(uid, why) {
            self.mark((uid, pod), None);
        }
    }

    /// Handles a pod that an extender has placed and that finds no room for its claim. After a while the pod gets the
    /// mark for eviction.
    pub(super) fn finds_no_room(&mut self, names: (&PodUid, &PodRef), why: &Refusal) {
        if self.sent.finds_no_room(names.0, clock::monotonic()) {
            log_pod_event(names.1, &PodEvent::NoRoom);
            self.mark(names, Some(why.code()));
        }
    }

    /// Records that a pod has found room: it starts.
    pub(super) fn finds_room(&mut self, names: (&PodUid, &PodRef)) {
        if self.sent.finds_room(names.0) {
            self.mark(names, None);
        }
    }

    /// Writes the mark for eviction with this reason, or removes it.
    fn mark(&mut self, names: (&PodUid, &PodRef), reason: Option<&'static str>) {
        let mark = AnnotationChanges::from([(annotation_keys::EVICT, reason.map(Into::into))]);
        self.write_until_done(PodWriteKind::Evict, names, mark);
    }

    /// Writes an event that the files of a container could not be written for the runtime.
    pub(super) fn undelivered(&mut self, names: (&PodUid, &PodRef), container: &Arc<str>, why: String) {
        self.event_once(names, container, "NotDelivered", why);
    }

    /// Writes an event that a start has waited too long for information that it needs.
    pub(super) fn late(&mut self, names: (&PodUid, &PodRef), container: &Arc<str>, why: &str) {
        self.event_once(names, container, "HolderUnknown", why.to_owned());
    }

    /// Writes an event if this reason is new for this container; returns whether it is.
    fn event_once(
        &mut self,
        (uid, pod): (&PodUid, &PodRef),
        container: &Arc<str>,
        reason: &'static str,
        note: String,
    ) -> bool {
        if !self.sent.is_new(uid, container, reason) {
            return false;
        }
        self.event(uid, pod, reason, note);
        true
    }

    /// Handles a pod that runs without the CDI edits of its containers: writes an event and the mark for eviction.
    /// Returns whether this is new.
    pub(super) fn not_applied(&mut self, uid: &PodUid, pod: &PodRef) -> bool {
        const REASON: &str = "LimitsNotApplied";
        self.mark_once((uid, pod), REASON, NOT_APPLIED.into())
    }

    /// Handles a pod that has written more into its folders than it may: writes an event and the mark for eviction
    /// once. If evictions are switched on, tries to evict the pod each time, because a disruption budget may forbid it
    /// for now.
    pub(super) fn has_written_too_much(&mut self, pod: &Pod, files: &PodFiles, limit: Bytes) {
        const REASON: &str = "TooMuchWritten";
        let note = too_much_written(files, limit);
        if self.mark_once((pod.cgroup_uid(), &pod.name), REASON, note.clone()) {
            log_pod_event(&pod.name, &PodEvent::WroteTooMuch(files, &note));
        }
        if self.evictions.for_files(pod) {
            overuse::evict(&self.api, pod, ("EvictedForFiles", note, now()));
        }
    }

    /// Writes an event and the mark for eviction if this reason is new for the pod; returns whether it is.
    fn mark_once(&mut self, names: (&PodUid, &PodRef), reason: &'static str, note: String) -> bool {
        let is_new = self.sent.must_be_deleted(names.0, reason);
        if is_new {
            self.event(names.0, names.1, reason, note);
            self.mark(names, Some(reason));
        }
        is_new
    }

    fn event(&self, uid: &PodUid, pod: &PodRef, reason: &'static str, note: String) {
        let (api, uid, pod) = (self.api.clone(), uid.clone(), pod.clone());
        let event = ObjectEvent { weight: EventType::Warning, reason, action: "Allocate", note, at: now() };
        tokio::spawn(async move {
            let mut pauses = EVENT_PAUSES.into_iter();
            while let Err(error) = api.pod_event(&uid, &pod, &event).await {
                // If the API server refuses an event, it would refuse it again.
                match pauses.next().filter(|_| error.refusal().is_none()) {
                    Some(pause) => tokio::time::sleep(Duration::from_secs(pause)).await,
                    None => {
                        tracing::warn!(%pod, reason, %error, "cannot write an event on the pod");
                        break;
                    }
                }
            }
        });
    }

    /// Writes the annotation of a pod whose claim has moved to other devices.
    pub(super) fn moved(&mut self, gpu_pod: &GpuPod, claim: &Claim) {
        match claim::encode(annotation_keys::ALLOCATED, claim) {
            Ok(text) => {
                let claim = AnnotationChanges::from([(annotation_keys::ALLOCATED, Some(text.into()))]);
                self.write_until_done(PodWriteKind::Claim, (&gpu_pod.uid, &gpu_pod.pod), claim);
            }
            Err(fault) => {
                tracing::warn!(pod = %gpu_pod.pod, %fault, "the claim has moved, but cannot be written on its pod");
            }
        }
    }

    /// Takes a view: writes events about changes of the health of GPUs, about pods that the driver names in errors, and
    /// about pods that hold a GPU that is not listed. Returns the number of pods that hold such a GPU.
    pub(super) fn gpus_are(&mut self, view: &NodeView, allocator: &NodeAllocator) -> usize {
        for change in self.watched.look(view, &now()) {
            let holders = allocator.holders(&change.devices);
            self.health(change, holders);
        }
        for error in self.watched.errors(view) {
            if let Some(name) = view.pod(&error.pod).and_then(|pod| pod.name.as_ref()) {
                self.driver_error((&error.pod, name), error.code, error.note);
            }
        }
        let missing = self.watched.missing(view, |there| allocator.without_device(there));
        for (uid, pod, device) in &missing {
            self.without_gpu((uid, pod), device);
        }
        missing.iter().map(|(uid, ..)| uid).collect::<BTreeSet<&PodUid>>().len()
    }

    /// Writes an event about a change of a GPU's health on the Node and on every pod that holds a share of the GPU.
    fn health(&self, change: HealthChange, holders: Vec<(PodUid, PodRef)>) {
        let (api, own) = (self.api.clone(), self.own.clone());
        let HealthChange { event, .. } = change;
        tokio::spawn(async move {
            node_event(&api, &own, &event).await;
            for (uid, pod) in holders {
                if let Err(error) = api.pod_event(&uid, &pod, &event).await {
                    tracing::warn!(%pod, %error, "cannot write the event about a GPU's health on a pod that holds it");
                }
            }
        });
    }

    /// Writes an event about the sharing of GPUs on the Node.
    pub(super) fn write_on_node(&self, weight: EventType, reason: &'static str, note: String) {
        let (api, own) = (self.api.clone(), self.own.clone());
        let event = ObjectEvent { weight, reason, action: "OfferGpus", note, at: now() };
        tokio::spawn(async move { node_event(&api, &own, &event).await });
    }

    /// Writes an event on a pod if the driver names one of its processes in an error. A pod gets one event for each
    /// error code.
    fn driver_error(&mut self, pod: (&PodUid, &PodRef), code: u32, note: String) {
        self.event_once(pod, &Arc::from(format!("xid {code}")), "GpuDriverError", note);
    }

    /// Writes an event on a running pod that holds a GPU that this node does not list.
    fn without_gpu(&mut self, (uid, pod): (&PodUid, &PodRef), device: &GpuUuid) {
        let note = gpu_missing(device);
        if self.event_once((uid, pod), &Arc::from(device.as_str()), "GpuMissing", note) {
            log_pod_event(pod, &PodEvent::GpuMissing(device));
        }
    }

    /// Handles pods that hold more memory than they claim.
    pub(super) fn over_uses(&mut self, view: &NodeView, pods: Option<&PodList>) {
        let at = now();
        for step in self.evictions.over_uses(&view.over_uses, pods, view.now.monotonic) {
            match step {
                EvictionStep::Report(pod, over) => overuse::report(&self.api, pod, over, &at),
                EvictionStep::Evict(pod, over) => {
                    overuse::evict(&self.api, pod, ("EvictedForOverUse", event_notes::over_use(over), at.clone()));
                }
            }
        }
    }

    /// Records that the kubelet has called `Allocate`: its pod may be admitted soon.
    pub(super) fn allocates(&mut self) {
        self.phases.expect(clock::monotonic());
    }

    /// Whether the sharing task must look in the checkpoint for pods that a scheduler waits for.
    pub(super) fn looks_for_admitted(&self) -> bool {
        self.phases.reads_checkpoint(clock::monotonic())
    }

    /// Whether HAMi's scheduler placed this pod, and does not yet know that the pod has its GPUs.
    pub(super) fn is_awaited(&self, pod: &Pod) -> bool {
        self.phases.is_awaited(pod.cgroup_uid(), phase(pod))
    }

    /// The pods of this list that HAMi's scheduler waits for. If there are no such pods, the sharing task stops looking
    /// in the checkpoint.
    pub(super) fn awaited<'a>(&mut self, pods: &'a PodList) -> Vec<&'a Pod> {
        let awaited: Vec<&Pod> = pods.pods.iter().map(AsRef::as_ref).filter(|pod| self.is_awaited(pod)).collect();
        if awaited.is_empty() {
            self.phases.expect_nothing(clock::monotonic());
        }
        awaited
    }

    /// Tells HAMi's scheduler that a container of this pod may not start. The scheduler places no other pod here until
    /// it knows this.
    pub(super) fn unfilled(&mut self, pod: &Pod) {
        if let Some(write) = self.phases.refused(pod.cgroup_uid(), phase(pod)) {
            self.tell_scheduler(pod, write);
        }
    }

    /// Tells HAMi's scheduler that all containers of a pod have their GPUs. The scheduler waits for this, and holds the
    /// node lock until then.
    pub(super) fn filled(&mut self, pod: &Pod) {
        if let Some(write) = self.phases.filled(pod.cgroup_uid(), phase(pod)) {
            self.tell_scheduler(pod, write);
        }
    }

    /// Writes the phase on the pod, and releases the node lock.
    fn tell_scheduler(&mut self, pod: &Pod, write: PhaseWrite) {
        let phase = bind::encode_phase(write.phase());
        let mut annotations = AnnotationChanges::from([(annotation_keys::BIND_PHASE, Some(phase.into()))]);
        if write == PhaseWrite::Success {
            let left = pod
                .annotation(annotation_keys::TO_ALLOCATE)
                .map(|text| claim::all_served(annotation_keys::TO_ALLOCATE, text))
                .unwrap_or_default();
            annotations.insert(annotation_keys::TO_ALLOCATE, Some(left.into()));
        }
        let names = (pod.cgroup_uid(), &pod.name);
        self.write_until_done(PodWriteKind::Served, names, annotations);
        self.write_until_done(PodWriteKind::Lock, names, AnnotationChanges::new());
    }

    /// Writes the claim of a pod that got device shares although no scheduler placed it. The claim is in the annotation
    /// in which a scheduler would have written it. Another annotation says that the agent placed the pod.
    pub(super) fn shared(&mut self, gpu_pod: &GpuPod, claim: &Claim) {
        match claim::encode(annotation_keys::ALLOCATED, claim) {
            Ok(text) => {
                let share = AnnotationChanges::from([
                    (annotation_keys::ALLOCATED, Some(text.into())),
                    (annotation_keys::ASSIGNED_NODE, Some(self.node.as_str().into())),
                    (annotation_keys::PLACED_BY, Some(annotation_keys::PLACED_BY_AGENT.into())),
                ]);
                self.write_until_done(PodWriteKind::Claim, (&gpu_pod.uid, &gpu_pod.pod), share);
            }
            Err(fault) => tracing::warn!(pod = %gpu_pod.pod, %fault, "the devices of this pod cannot be written on it"),
        }
    }
}

/// Writes an event on this agent's Node. Tries a few times, because the event says what an operator has to do.
async fn node_event(api: &ApiServer, own: &OwnNodeReader, event: &ObjectEvent) {
    let mut pauses = EVENT_PAUSES.into_iter();
    loop {
        let written = match own.read().await {
            Ok(node) => api.node_event(&node.uid, event).await,
            Err(error) => Err(error),
        };
        let Err(error) = written else { return };
        match pauses.next().filter(|_| error.refusal().is_none()) {
            Some(pause) => tokio::time::sleep(Duration::from_secs(pause)).await,
            None => return tracing::warn!(reason = event.reason, %error, "cannot write an event on this agent's Node"),
        }
    }
}

/// The bind phase of this pod, if HAMi's scheduler placed it.
fn phase(pod: &Pod) -> Option<BindPhase> {
    bind::decode_phase(pod.annotation(annotation_keys::BIND_PHASE)?).ok()
}

/// What a write says, and what happens until it is written.
fn meaning(kind: PodWriteKind) -> &'static str {
    match kind {
        PodWriteKind::Claim => "which devices this pod has; schedulers assume others or none meanwhile",
        PodWriteKind::Served => "whether this pod has its GPUs; HAMi's scheduler waits for it",
        PodWriteKind::Lock => "that the node's lock is released; HAMi's scheduler places no other pod here meanwhile",
        PodWriteKind::Evict => "whether this pod has to be evicted",
    }
}

/// Now, in the format that the API server requires for the times of events.
pub(super) fn now() -> String {
    jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%S%.6fZ").to_string()
}

#[cfg(test)]
mod tests {
    use super::super::event_notes::not_delivered;
    use super::*;
    use lab::api_server::{self, FakeApiServer as Server};
    use model::reading::Reading;
    use model::view::OverUse;
    use serde_json::{Value, json};
    use std::time::Duration;

    #[test]
    fn every_text_of_an_event_ends_with_what_to_do() {
        let pod = PodUid::parse("0b0d8d3c-6b5e-4f3c-9a5e-1d2f3a4b5c6d").unwrap();
        let name = PodRef { namespace: "ml".into(), name: "train".into() };
        let device = GpuUuid::parse("GPU-1").unwrap();
        let used = Reading::Measured(Bytes(8192 << 20), clock::monotonic());
        let over = OverUse { pod: pod.clone(), device, claimed: Bytes(3000 << 20), used, lasted: Duration::ZERO };
        let files = PodFiles { uid: pod, pod: name, bytes: Bytes(80 << 20), files: 3, over: true };
        for (text, remedy) in [
            (event_notes::over_use(&over), "keep within nvidia.com/gpumem, or ask for more of it"),
            (not_delivered("main", &"No space left on device"), "make room on the disk of --state-dir"),
            (NOT_APPLIED.into(), "delete the pod"),
            (too_much_written(&files, Bytes(64 << 20)), "write elsewhere, and delete the pod"),
        ] {
            let (_, advice) = text.split_once("; ").unwrap_or_default();
            assert!(advice.contains(remedy), "{text}");
            for unclear in ["promised", "somebody", "nobody", "assignment", " bytes"] {
                assert!(!text.contains(unclear), "{text}");
            }
        }
    }

    const HASH: &str = "0123456789abcdef0123456789abcdef";
    const MIRROR: &str = "cccccccc-0000-4000-8000-000000000003";

    fn mirror() -> Value {
        let mut pod = api_server::pod("n1", "ml", "train-n1", MIRROR, &[("main", "")]);
        pod["metadata"]["annotations"] = json!({
            "kubernetes.io/config.hash": HASH, "kubernetes.io/config.mirror": HASH, (annotation_keys::BIND_PHASE): "allocating",
        });
        pod["metadata"]["ownerReferences"] =
            json!([{ "apiVersion": "v1", "kind": "Node", "name": "n1", "uid": "u", "controller": true }]);
        pod
    }

    /// Waits until the condition holds, while the writer handles its writes.
    async fn until(writer: &mut PodStatusWriter, what: &str, holds: impl Fn() -> bool) {
        let deadline = tokio::time::Instant::now() + Duration::from_secs(30);
        while !holds() {
            assert!(tokio::time::Instant::now() < deadline, "{what}");
            let turn = tokio::time::timeout(Duration::from_millis(50), writer.turn());
            let _ = turn.await;
        }
    }

    #[tokio::test]
    async fn a_static_pod_gets_annotations_on_its_mirror_and_events_by_its_hash() {
        let (server, folder) = (Server::start(), tempfile::tempdir().unwrap());
        server.put("pods", mirror());
        let connection = apiserver::connect(Some(&server.kubeconfig(folder.path()))).await.unwrap();
        let node = NodeName::parse("n1").unwrap();
        let api = ApiServer::new(connection.clone(), node.clone());
        let mut writer = PodStatusWriter::new(api, OwnNodeReader::new(connection, node.clone()), node);
        let pod = Arc::new(wire::pod::decode(mirror().to_string().as_bytes()).unwrap());
        assert_eq!((pod.cgroup_uid().as_str(), pod.uid.as_str()), (HASH, MIRROR));
        writer.pods_are(&PodList { pods: vec![Arc::clone(&pod)], ..PodList::default() });

        let names = (pod.cgroup_uid(), &pod.name);
        assert!(writer.not_applied(names.0, names.1));
        writer.unfilled(&pod);
        let annotation = |key: &str| {
            let pod = server.object("pods", "ml", "train-n1").unwrap();
            pod["metadata"]["annotations"][key].as_str().map(str::to_owned)
        };
        until(&mut writer, "the mark for eviction", || annotation(annotation_keys::EVICT).is_some()).await;
        until(&mut writer, "the phase for the scheduler", || {
            annotation(annotation_keys::BIND_PHASE) == Some("failed".into())
        })
        .await;
        until(&mut writer, "the event", || !server.objects("events").is_empty()).await;
        assert_eq!(server.objects("events")[0]["regarding"]["uid"], HASH);
    }
}
