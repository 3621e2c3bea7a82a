//! Reads a pod from the JSON of the API server into a [`Pod`]. Only the fields of [`Pod`] are kept: about 1 KiB of an
//! object of 15 KiB. The rest (managed fields, volumes, environments) is skipped or only counted.
//!
//! Everything in a pod is bounded, whether kubelet, a scheduler or a user wrote it. Names are checked, and texts and
//! lists have a maximum length. Entries beyond it are counted, because a claim that was cut off must not look like a
//! missing claim.

mod status_size;

use self::status_size::status_bytes;
use crate::annotation_keys::{ASSUMED, SYSTEM_OWNED};
use crate::assumed::MAX_ASSUMED;
use crate::profile_keys::ProfileKey;
use crate::variables::{Variables, may_name_one_of_nvidia};
use crate::{misspelt_key, quantity, timestamp};
use model::id::{ContainerId, NodeName, NotAName, PodRef, PodUid};
use model::nvidia;
use model::pod::{
    ANNOTATION_BYTES, ContainerKind, ContainerState, LeftOutContainers, MAX_ANNOTATIONS, MAX_CONTAINERS, MAX_RESOURCES,
    Pod, PodContainer, PodController, PodLabels, PodPhase, RestartPolicy,
};
use serde::de::{DeserializeOwned, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;
use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

/// Prefixes of the annotations that are kept: HAMi's, NVIDIA's and HAMi's for users, gpu-steward's, Alnair's.
const ANNOTATIONS: [&str; 4] = ["hami.io/", nvidia::KEY_PREFIX, "gpu-steward.io/", "ai.centaurus.io/"];
/// Maximum number of keys with other prefixes that are kept in addition to [`MAX_ANNOTATIONS`], because a user has probably misspelt
/// them. An event names two.
const MAX_MISSPELT: usize = 8;
/// kubelet's annotation on a static pod and its mirror: the hash of the manifest, after which kubelet names the cgroup.
const CONFIG_HASH: &str = "kubernetes.io/config.hash";
/// The label that names the group of a pod, as in PodGroups of scheduler-plugins (coscheduling) and projects that use its label.
const POD_GROUP: &str = "scheduling.x-k8s.io/pod-group";
/// kubelet's annotation on the mirror only, with the hash of the manifest.
const CONFIG_MIRROR: &str = "kubernetes.io/config.mirror";
/// Kubernetes' limit for names, in bytes.
const MAX_NAME: usize = 253;
/// Kubernetes' limit for keys, in bytes: a domain, a slash, 63 characters.
const MAX_KEY: usize = MAX_NAME + 64;
/// Kubernetes' limit for the value of a label, in bytes.
const MAX_LABEL: usize = 63;
/// Maximum bytes of an image reference that is kept: registries allow 255 for the name, a digest is 71.
const MAX_IMAGE: usize = 512;
/// Maximum bytes of a quantity that is kept: the canonical form of the largest quantity has about twenty.
const MAX_QUANTITY: usize = 64;

/// Maximum bytes of a pod that is placed, with the parts that its status repeats. etcd stores objects of up to 1.5 MiB, in a form
/// that may be a third longer than JSON: an empty item of a list (`{},`) takes four bytes there. The rest is room for annotations,
/// conditions and the messages of ended containers, of which the kubelet keeps 12 KiB. The API server refuses every later write to a
/// bound pod without that room: the kubelet cannot even report that the pod runs.
pub(crate) const MAX_POD: usize = 1 << 20;
/// Bytes that etcd stores in addition to a text (tags and lengths), and at most for a number.
const PART_BYTES: usize = 6;

/// Why an object cannot be read as a pod.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotAPod {
    /// The text is not the JSON of a pod.
    #[error("not the JSON of a pod: {0}")]
    Json(String),
    /// The UID is missing or invalid.
    #[error("metadata.uid: {0}")]
    Uid(#[from] NotAName),
    /// A name that Kubernetes would not accept.
    #[error("{0} is missing, too long, or has control characters")]
    Text(&'static str),
}

/// Reads one pod.
///
/// # Errors
/// [`NotAPod`] if its UID, its names or its time of deletion cannot be read. Any other missing or unknown field
/// stays empty.
pub fn decode(json: &[u8]) -> Result<Pod, NotAPod> {
    decode_with(json, &[])
}

/// Reads one pod as [`decode`] does, and keeps its labels with these keys.
///
/// # Errors
/// As [`decode`].
pub fn decode_with(json: &[u8], label_keys: &[Arc<str>]) -> Result<Pod, NotAPod> {
    let raw: Raw<'_> = serde_json::from_slice(json).map_err(|error| NotAPod::Json(error.to_string()))?;
    let managed = raw.metadata.0.managed_fields.map(RawValue::get).unwrap_or_default();
    Ok(sized(pod(raw, label_keys)?, json, managed))
}

/// As [`decode_with`], for a text that is known to be UTF-8, which takes less time.
///
/// # Errors
/// As [`decode`].
pub fn decode_text(json: &str, label_keys: &[Arc<str>]) -> Result<Pod, NotAPod> {
    let raw: Raw<'_> = serde_json::from_str(json).map_err(|error| NotAPod::Json(error.to_string()))?;
    let managed = raw.metadata.0.managed_fields.map(RawValue::get).unwrap_or_default();
    Ok(sized(pod(raw, label_keys)?, json.as_bytes(), managed))
}

/// The pod with the size of its object. etcd stores `managedFields` as JSON, with its escapes.
fn sized(pod: Pod, json: &[u8], managed: &str) -> Pod {
    let room = MAX_POD.saturating_sub(usize::try_from(pod.status_bytes).unwrap_or(usize::MAX));
    let matters = json.len() > room;
    let escapes = u32::try_from(managed.len()).unwrap_or(u32::MAX).saturating_sub(size(managed.as_bytes(), matters));
    Pod { bytes: size(json, matters).saturating_add(escapes), ..pod }
}

/// The length of a JSON text in which each escaped character counts with its stored bytes: one byte, or three for a character that
/// Go escapes as `\u2028`. Escapes are counted only if that `matters`.
fn size(json: &[u8], matters: bool) -> u32 {
    let (mut rest, mut size) = (json, json.len());
    while matters && let Some(at) = rest.iter().position(|byte| *byte == b'\\') {
        // `\n` or `\u000a`.
        let (more, stored) = match rest.get(at + 1..at + 4) {
            Some(b"u00") => (5, 1),
            Some([b'u', ..]) => (5, 3),
            _ => (1, 1),
        };
        size -= (more + 1 - stored).min(rest.len() - at - 1);
        rest = rest.get(at + more + 1..).unwrap_or_default();
    }
    u32::try_from(size).unwrap_or(u32::MAX)
}

fn pod(raw: Raw<'_>, label_keys: &[Arc<str>]) -> Result<Pod, NotAPod> {
    let (metadata, spec, status) = (raw.metadata.0, raw.spec.0, raw.status.0);
    let Metadata {
        name,
        namespace,
        uid,
        resource_version,
        creation_timestamp,
        deletion_timestamp,
        annotations,
        labels,
        owner_references,
        managed_fields: _,
    } = metadata;
    let uid = PodUid::parse(&uid)?;
    // A grace period without a bound can give a time before 1970. Such a pod is being deleted, and it must not be unreadable:
    // its owner could keep a node closed with it.
    let deleted_at = deletion_timestamp.map(|text| timestamp::rfc3339(&text).unwrap_or_default());
    let Annotations { kept, left_out, system_left_out, bytes, mirror_of, longest_class, assumed: _ } = annotations.0;
    let controller = owner_references.0.iter().find(|owner| owner.controller == Some(true));
    let is_of_node = controller.is_some_and(|owner| owner.kind == "Node" && owner.api_version == "v1");
    let (containers, containers_left_out) = containers(&spec, &status);
    Ok(Pod {
        uid,
        // Any user who may create pods may write these annotations; a mirror that kubelet made also has its Node as controller.
        mirror_of: mirror_of.filter(|_| is_of_node),
        name: PodRef {
            namespace: shown(&namespace, MAX_NAME).ok_or(NotAPod::Text("metadata.namespace"))?,
            name: shown(&name, MAX_NAME).ok_or(NotAPod::Text("metadata.name"))?,
        },
        node: NodeName::parse(&spec.node_name.0).ok(),
        phase: phase(&status.phase.0),
        // These two only order the pods, so an unreadable value is not an error.
        created_at: creation_timestamp.as_deref().and_then(timestamp::rfc3339),
        version: resource_version.as_deref().and_then(|text| text.parse().ok()),
        arrival: None,
        deleted_at,
        annotations: kept,
        annotations_left_out: left_out,
        system_keys_left_out: system_left_out,
        annotation_bytes: u32::try_from(bytes).unwrap_or(u32::MAX),
        bytes: 0,
        status_bytes: status_bytes(&spec, longest_class),
        labels: selected_labels(labels, label_keys),
        priority: spec.priority,
        controller: controller.and_then(of_controller),
        gang: gang(&spec, labels),
        nominated: NodeName::parse(&status.nominated_node_name.0).ok(),
        // A pod with a node needs no scheduler, and there may be many such pods.
        scheduler: if spec.node_name.0.is_empty() { shown(&spec.scheduler_name.0, MAX_NAME) } else { None },
        request: None,
        gated: !spec.scheduling_gates.0.is_empty(),
        prefers_nodes: spec.prefers_nodes(),
        host_network: spec.host_network.0,
        runtime_class: shown(&spec.runtime_class_name.0, MAX_NAME),
        restart: restart(&spec.restart_policy.0),
        containers,
        containers_left_out,
    })
}

// === the JSON ===

/// A value that Go may write as `null` if it is empty.
#[derive(Debug, Default)]
pub(crate) struct OrNull<T>(pub(crate) T);

impl<'de, T: Deserialize<'de> + Default> Deserialize<'de> for OrNull<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Option::<T>::deserialize(deserializer).map(|value| OrNull(value.unwrap_or_default()))
    }
}

#[derive(Deserialize)]
struct Raw<'a> {
    #[serde(default, borrow)]
    metadata: OrNull<Metadata<'a>>,
    #[serde(default, borrow)]
    spec: OrNull<Spec<'a>>,
    #[serde(default)]
    status: OrNull<Status>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Metadata<'a> {
    name: String,
    namespace: String,
    uid: String,
    resource_version: Option<String>,
    creation_timestamp: Option<String>,
    deletion_timestamp: Option<String>,
    annotations: OrNull<Annotations>,
    /// Parsed only if the caller requests labels.
    #[serde(borrow)]
    labels: Option<&'a RawValue>,
    #[serde(borrow)]
    managed_fields: Option<&'a RawValue>,
    owner_references: OrNull<Vec<OwnerReference>>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct OwnerReference {
    api_version: String,
    kind: String,
    name: String,
    uid: String,
    controller: Option<bool>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Spec<'a> {
    node_name: OrNull<String>,
    priority: Option<i32>,
    scheduler_name: OrNull<String>,
    scheduling_gates: OrNull<Vec<IgnoredAny>>,
    workload_ref: OrNull<WorkloadRef>,
    scheduling_group: OrNull<SchedulingGroup>,
    affinity: OrNull<Affinity>,
    topology_spread_constraints: OrNull<Vec<TopologySpreadConstraint>>,
    host_network: OrNull<bool>,
    runtime_class_name: OrNull<String>,
    restart_policy: OrNull<String>,
    security_context: ValueSize,
    readiness_gates: ValueSize,
    volumes: OrNull<Vec<Volume>>,
    #[serde(borrow)]
    init_containers: OrNull<Vec<Container<'a>>>,
    #[serde(borrow)]
    containers: OrNull<Vec<Container<'a>>>,
    #[serde(borrow)]
    ephemeral_containers: OrNull<Vec<Container<'a>>>,
}

impl Spec<'_> {
    /// Whether the pod has preferences by which kube-scheduler scores nodes.
    fn prefers_nodes(&self) -> bool {
        let Affinity { node_affinity, pod_affinity, pod_anti_affinity } = &self.affinity.0;
        let mut by_affinity = [node_affinity, pod_affinity, pod_anti_affinity].into_iter();
        by_affinity.any(|kind| !kind.0.preferred.0.is_empty())
            || self.topology_spread_constraints.0.iter().any(|one| one.when_unsatisfiable.0 == "ScheduleAnyway")
    }
}

/// The group of a pod in Kubernetes 1.35.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct WorkloadRef {
    name: OrNull<String>,
    pod_group: OrNull<String>,
    pod_group_replica_key: OrNull<String>,
}

/// The same from 1.36 on.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct SchedulingGroup {
    pod_group_name: OrNull<String>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Affinity {
    node_affinity: OrNull<AffinityKind>,
    pod_affinity: OrNull<AffinityKind>,
    pod_anti_affinity: OrNull<AffinityKind>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct AffinityKind {
    #[serde(rename = "preferredDuringSchedulingIgnoredDuringExecution")]
    preferred: OrNull<Vec<IgnoredAny>>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct TopologySpreadConstraint {
    when_unsatisfiable: OrNull<String>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Volume {
    image: ValueSize,
    host_path: ValueSize,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Container<'a> {
    name: String,
    image: OrNull<String>,
    restart_policy: OrNull<String>,
    working_dir: ValueSize,
    resources: OrNull<Resources>,
    termination_message_path: ValueSize,
    volume_devices: ValueSize,
    /// Parsed only if a message may have something of it.
    #[serde(borrow)]
    env: Option<&'a RawValue>,
    #[serde(borrow)]
    env_from: Option<&'a RawValue>,
    command: OrNull<FirstText>,
    args: OrNull<FirstText>,
    lifecycle: OrNull<Lifecycle>,
    #[serde(borrow)]
    volume_mounts: Option<&'a RawValue>,
    security_context: OrNull<SecurityContext>,
}

impl Container<'_> {
    /// Bytes that a status may have of its mounts as they stand in the specification, and of the longest path in a volume that
    /// comes from an expression.
    fn mounts(&self, variables: &Variables) -> (usize, usize) {
        let Some(mounts) = self.volume_mounts.map(RawValue::get) else { return (0, 0) };
        let size = serde_json::from_str::<ValueSize>(mounts).unwrap_or_default().stored();
        // Most mounts have no expression.
        let mounts = Some(mounts).filter(|mounts| mounts.contains(SUB_PATH_EXPR));
        let mounts = mounts.and_then(|mounts| serde_json::from_str::<Vec<VolumeMount>>(mounts).ok());
        let paths = mounts.iter().flatten().map(|mount| &mount.sub_path_expr.0);
        (size, paths.map(|path| variables.expanded(path)).max().unwrap_or_default())
    }

    /// The container's variables, as far as its texts or a message refer to them.
    fn variables(&self) -> Variables {
        let refers = |text: &str| text.contains("$(");
        let mounts = self.volume_mounts.is_some_and(|mounts| mounts.get().contains(SUB_PATH_EXPR));
        Variables::of(self.env.filter(|env| mounts || refers(self.program()) || may_name_one_of_nvidia(env)))
    }

    /// The program that a runtime names if it cannot start it. Without a command it may be the first argument.
    fn program(&self) -> &str {
        let FirstText(command) = &self.command.0;
        if command.is_empty() { &self.args.0.0 } else { command }
    }
}

/// The first text of a list.
#[derive(Default)]
struct FirstText(String);

impl<'de> Deserialize<'de> for FirstText {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_seq(FirstText::default())
    }
}

impl<'de> Visitor<'de> for FirstText {
    type Value = FirstText;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a list of texts")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<FirstText, A::Error> {
        let first: Option<String> = seq.next_element()?;
        while seq.next_element::<IgnoredAny>()?.is_some() {}
        Ok(FirstText(first.unwrap_or_default()))
    }
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Lifecycle {
    post_start: ValueSize,
}

/// The key of an expression in a mount.
const SUB_PATH_EXPR: &str = "subPathExpr";

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct VolumeMount {
    sub_path_expr: OrNull<String>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct SecurityContext {
    privileged: OrNull<bool>,
    capabilities: OrNull<Capabilities>,
    seccomp_profile: ValueSize,
    app_armor_profile: ValueSize,
    se_linux_options: ValueSize,
    windows_options: ValueSize,
}

impl SecurityContext {
    /// Whether the container may mount file systems. Runtimes accept capabilities with and without `CAP_`, in upper and
    /// lower case.
    fn may_mount(&self) -> bool {
        let mounts = |name: &String| {
            let name = name.to_ascii_uppercase();
            matches!(name.trim_start_matches("CAP_"), "SYS_ADMIN" | "ALL")
        };
        self.privileged.0 || self.capabilities.0.add.0.iter().any(mounts)
    }

    /// Bytes of the texts that a runtime's message about the container may have.
    fn texts(&self) -> usize {
        let profiles = self.seccomp_profile.with(self.app_armor_profile).with(self.se_linux_options);
        let added: usize = self.capabilities.0.add.0.iter().map(String::len).sum();
        profiles.with(self.windows_options).with(self.capabilities.0.drop).stored() + added
    }
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Capabilities {
    add: OrNull<Vec<String>>,
    drop: ValueSize,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Resources {
    limits: OrNull<Limits>,
    requests: ValueSize,
    claims: ValueSize,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Status {
    phase: OrNull<String>,
    nominated_node_name: OrNull<String>,
    init_container_statuses: OrNull<Vec<ContainerStatus>>,
    container_statuses: OrNull<Vec<ContainerStatus>>,
    ephemeral_container_statuses: OrNull<Vec<ContainerStatus>>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ContainerStatus {
    name: String,
    #[serde(rename = "containerID")]
    container_id: OrNull<String>,
    state: OrNull<State>,
}

/// The state of a container: one of these fields is present, and its content is not read.
#[derive(Default, Deserialize)]
#[serde(default)]
struct State {
    waiting: Option<IgnoredAny>,
    running: Option<IgnoredAny>,
    terminated: Option<IgnoredAny>,
}

/// Reads the entries of a map with the keys that `selects` accepts; of all others, `skips` gets the length of key and value
/// together.
struct SelectedEntries<T, F, S> {
    selects: fn(&str) -> bool,
    take: F,
    skips: S,
    value: PhantomData<T>,
}

/// The size of a value, which is not kept itself.
#[derive(Clone, Copy, Default)]
pub(crate) struct ValueSize {
    /// Bytes of the value's texts, keys included.
    text: usize,
    /// Number of the value's texts, keys included, and of its numbers.
    parts: usize,
}

impl ValueSize {
    /// About as many bytes as etcd stores of it.
    pub(crate) fn stored(self) -> usize {
        self.text + PART_BYTES * self.parts
    }

    pub(crate) fn with(self, other: ValueSize) -> ValueSize {
        ValueSize { text: self.text + other.text, parts: self.parts + other.parts }
    }
}

impl<'de> Deserialize<'de> for ValueSize {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ValueSize::default())
    }
}

impl<'de> Visitor<'de> for ValueSize {
    type Value = ValueSize;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a value")
    }

    fn visit_str<E>(self, text: &str) -> Result<ValueSize, E> {
        Ok(ValueSize { text: text.len(), parts: 1 })
    }

    fn visit_unit<E>(self) -> Result<ValueSize, E> {
        Ok(self)
    }

    fn visit_bool<E>(self, _: bool) -> Result<ValueSize, E> {
        Ok(self)
    }

    fn visit_i64<E>(self, _: i64) -> Result<ValueSize, E> {
        Ok(ValueSize { text: 0, parts: 1 })
    }

    fn visit_u64<E>(self, _: u64) -> Result<ValueSize, E> {
        Ok(ValueSize { text: 0, parts: 1 })
    }

    fn visit_f64<E>(self, _: f64) -> Result<ValueSize, E> {
        Ok(ValueSize { text: 0, parts: 1 })
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut seq: A) -> Result<ValueSize, A::Error> {
        while let Some(value) = seq.next_element()? {
            self = self.with(value);
        }
        Ok(self)
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut map: A) -> Result<ValueSize, A::Error> {
        while let Some((key, value)) = map.next_entry::<ValueSize, ValueSize>()? {
            self = self.with(key).with(value);
        }
        Ok(self)
    }
}

impl<'de, T: DeserializeOwned, F: FnMut(String, T), S: FnMut(usize)> Visitor<'de> for SelectedEntries<T, F, S> {
    type Value = ();

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a map of texts")
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut map: A) -> Result<(), A::Error> {
        while let Some(key) = map.next_key::<String>()? {
            if (self.selects)(&key) {
                (self.take)(key, map.next_value()?);
            } else {
                let value: ValueSize = map.next_value()?;
                (self.skips)(key.len() + value.text);
            }
        }
        Ok(())
    }
}

/// The group with which a pod is to be placed together.
fn gang(spec: &Spec<'_>, labels: Option<&RawValue>) -> Option<Arc<str>> {
    let text = |text: &OrNull<String>| shown(&text.0, MAX_NAME);
    if let Some(group) = text(&spec.scheduling_group.0.pod_group_name) {
        return Some(format!("group {group}").into());
    }
    let WorkloadRef { name, pod_group, pod_group_replica_key } = &spec.workload_ref.0;
    if let (Some(name), Some(group)) = (text(name), text(pod_group)) {
        let replica = text(pod_group_replica_key).unwrap_or_default();
        return Some(format!("workload {name}/{group}/{replica}").into());
    }
    let mut found = None;
    let entries = SelectedEntries {
        selects: |key: &str| key == POD_GROUP,
        take: |_, value: String| found = shown(&value, MAX_LABEL),
        skips: |_| {},
        value: PhantomData,
    };
    // Labels that are not a map of texts name no group.
    serde_json::Deserializer::from_str(labels?.get()).deserialize_map(entries).ok()?;
    found.map(|group: Arc<str>| format!("label {group}").into())
}

/// The labels with these keys. Empty if `labels` is not a map of texts.
fn selected_labels(labels: Option<&RawValue>, keys: &[Arc<str>]) -> PodLabels {
    let Some(labels) = labels.filter(|_| !keys.is_empty()) else { return Vec::new() };
    let Ok(labels) = serde_json::from_str::<HashMap<Cow<'_, str>, Cow<'_, str>>>(labels.get()) else {
        return Vec::new();
    };
    let one = |key: &Arc<str>| Some((Arc::clone(key), shown(labels.get(&**key)?, MAX_LABEL)?));
    keys.iter().filter_map(one).collect()
}

/// Whether the annotation is kept. What a Node says about the load of its GPUs is left out: no scheduler reads it, and it would take
/// the room of the register.
fn is_ours(key: &str) -> bool {
    let known = key.len() <= MAX_KEY && ANNOTATIONS.iter().any(|prefix| key.starts_with(prefix));
    known && ProfileKey::parse(key).is_none()
}

/// Whether this is probably a user's key with a wrong prefix.
fn is_misspelt(key: &str) -> bool {
    key.len() <= MAX_KEY && misspelt_key::is_near(key)
}

/// Whether this is an extended resource. The device configuration may give GPUs any resource name with a domain;
/// Kubernetes' own resources (`cpu`, `memory`, `hugepages-2Mi`) have no domain.
fn is_extended(resource: &str) -> bool {
    resource.len() <= MAX_KEY && resource.contains('/')
}

/// The beginnings of the keys by which a pod chooses a class of block I/O or of the processor's caches (RDT) for its containers. A
/// runtime that knows no such class repeats the value in its error for each container.
const RESOURCE_CLASSES: [&str; 2] = ["blockio.resources.beta.kubernetes.io/", "rdt.resources.beta.kubernetes.io/"];

fn names_class(key: &str) -> bool {
    RESOURCE_CLASSES.iter().any(|beginning| key.starts_with(beginning))
}

/// The annotations that are kept. A misspelt key is kept without its value, which has no effect.
#[derive(Default)]
pub(crate) struct Annotations {
    pub(crate) kept: Vec<(Arc<str>, Arc<str>)>,
    pub(crate) left_out: u32,
    system_left_out: u32,
    /// Bytes of all annotations, kept or not.
    bytes: usize,
    mirror_of: Option<PodUid>,
    /// Bytes of the longest value that names a class of [`RESOURCE_CLASSES`].
    longest_class: usize,
    /// On a Node: how much of its GPUs is taken. It takes no room of other annotations, and a pod does not have it.
    pub(crate) assumed: Option<Arc<str>>,
}

impl<'de> Deserialize<'de> for Annotations {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        // A user's annotations must not displace a claim: system-owned annotations get their space first.
        let (mut system, mut free) = (BoundedEntries::default(), BoundedEntries::default());
        let (mut hash, mut mirror, mut assumed) = (None, None, None);
        let (mut skipped, mut read, mut longest_class) = (0, 0, 0);
        let mut misspelt: Vec<Arc<str>> = Vec::new();
        deserializer.deserialize_map(SelectedEntries {
            selects: |key| {
                is_ours(key) || is_misspelt(key) || key == CONFIG_HASH || key == CONFIG_MIRROR || names_class(key)
            },
            take: |key: String, value: String| {
                read += key.len() + value.len();
                match key.as_str() {
                    CONFIG_HASH => hash = Some(value),
                    CONFIG_MIRROR => mirror = Some(value),
                    class if names_class(class) => longest_class = longest_class.max(value.len()),
                    ASSUMED => assumed = Some(value).filter(|text| text.len() <= MAX_ASSUMED).map(Arc::from),
                    owned if SYSTEM_OWNED.contains(&owned) => system.take(key.into(), value.into()),
                    ours if is_ours(ours) => free.take(key.into(), value.into()),
                    other if misspelt.len() < MAX_MISSPELT => misspelt.push(other.into()),
                    _ => {}
                }
            },
            skips: |length| skipped += length,
            value: PhantomData,
        })?;
        let system_left_out = system.left_out;
        system.left_out += free.left_out;
        for (key, value) in free.kept {
            system.take(key, value);
        }
        let BoundedEntries { mut kept, left_out, .. } = system;
        kept.extend(misspelt.into_iter().map(|key| (key, Arc::from(""))));
        kept.sort();
        kept.shrink_to_fit();
        let mirror_of = mirror_of(hash.as_deref(), mirror.as_deref());
        Ok(Annotations { kept, left_out, system_left_out, bytes: skipped + read, mirror_of, longest_class, assumed })
    }
}

/// The entries that fit into [`MAX_ANNOTATIONS`], and the number of entries that do not fit.
#[derive(Default)]
struct BoundedEntries {
    kept: Vec<(Arc<str>, Arc<str>)>,
    size: usize,
    left_out: u32,
}

impl BoundedEntries {
    fn take(&mut self, key: Arc<str>, value: Arc<str>) {
        // Otherwise a thousand empty annotations would take far more memory than their texts.
        let size = self.size + key.len() + value.len() + ANNOTATION_BYTES;
        if size > MAX_ANNOTATIONS {
            self.left_out += 1;
        } else {
            self.size = size;
            self.kept.push((key, value));
        }
    }
}

/// The hash of a mirror, which has it in both annotations. The hash has no dashes, unlike the UIDs of the API server,
/// so a user cannot put the UID of another pod here.
fn mirror_of(hash: Option<&str>, mirror: Option<&str>) -> Option<PodUid> {
    let hash = hash.filter(|hash| Some(*hash) == mirror && !hash.contains('-'))?;
    PodUid::parse(hash).ok()
}

/// The limits of extended resources.
#[derive(Default)]
struct Limits {
    kept: Vec<(Arc<str>, Arc<str>)>,
    left_out: u32,
    /// Whether a limit that was left out may have an amount other than 0.
    requests_left_out: bool,
}

impl<'de> Deserialize<'de> for Limits {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        // A user may list any number of resources with the amount 0. They must not displace the resources that are
        // really requested.
        let (mut requested, mut zero) = (Vec::new(), Vec::new());
        let (mut left_out, mut requests_left_out) = (0, false);
        deserializer.deserialize_map(SelectedEntries {
            selects: is_extended,
            take: |key: String, quantity: String| {
                let is_zero = is_zero(&quantity);
                let list = if is_zero { &mut zero } else { &mut requested };
                if list.len() < MAX_RESOURCES && quantity.len() <= MAX_QUANTITY {
                    list.push((Arc::from(key), Arc::from(quantity)));
                } else {
                    left_out += 1;
                    requests_left_out |= !is_zero;
                }
            },
            skips: |_| {},
            value: PhantomData,
        })?;
        let mut kept = requested;
        let left = MAX_RESOURCES - kept.len();
        left_out += u32::try_from(zero.len().saturating_sub(left)).unwrap_or(u32::MAX);
        kept.extend(zero.into_iter().take(left));
        kept.sort();
        Ok(Limits { kept, left_out, requests_left_out })
    }
}

fn is_zero(text: &str) -> bool {
    quantity::parse(text).is_ok_and(|quantity| quantity.integer() == Some(0))
}

// === conversion ===

fn containers(spec: &Spec<'_>, status: &Status) -> (Vec<PodContainer>, Option<Box<LeftOutContainers>>) {
    let lists = [
        (ContainerKind::Init, &spec.init_containers.0, &status.init_container_statuses.0),
        (ContainerKind::App, &spec.containers.0, &status.container_statuses.0),
        (ContainerKind::Ephemeral, &spec.ephemeral_containers.0, &status.ephemeral_container_statuses.0),
    ];
    let mut kept = Vec::new();
    let mut left_out = LeftOutContainers::default();
    for (kind, specs, statuses) in lists {
        for spec in specs {
            let has_place = kept.len() < MAX_CONTAINERS;
            match has_place.then(|| container(kind, spec, statuses)).flatten() {
                Some(container) => kept.push(container),
                // The API server accepts no resources for ephemeral containers, so no request is lost.
                None if kind == ContainerKind::Ephemeral => {}
                None => leave_out(&mut left_out, &spec.resources.0.limits.0),
            }
        }
    }
    (kept, (left_out.number > 0).then(|| Box::new(left_out)))
}

/// Counts a container with these limits that is not kept, if it requests an extended resource.
fn leave_out(left_out: &mut LeftOutContainers, limits: &Limits) {
    let mut requests_any = limits.requests_left_out;
    for (name, _) in limits.kept.iter().filter(|(_, amount)| !is_zero(amount)) {
        requests_any = true;
        if left_out.resources.contains(name) {
            continue;
        }
        if left_out.resources.len() < MAX_RESOURCES {
            left_out.resources.push(Arc::clone(name));
        } else {
            left_out.more_resources = true;
        }
    }
    left_out.more_resources |= limits.requests_left_out;
    left_out.number += u32::from(requests_any);
}

fn container(kind: ContainerKind, spec: &Container<'_>, statuses: &[ContainerStatus]) -> Option<PodContainer> {
    let status = statuses.iter().find(|status| status.name == spec.name);
    let restart = restart(&spec.restart_policy.0);
    let limits = &spec.resources.0.limits.0;
    Some(PodContainer {
        name: shown(&spec.name, MAX_NAME)?,
        kind: if kind == ContainerKind::Init && restart == Some(RestartPolicy::Always) {
            ContainerKind::Sidecar
        } else {
            kind
        },
        restart,
        image: shown(&spec.image.0, MAX_IMAGE),
        limits: limits.kept.clone(),
        limits_left_out: limits.left_out,
        requests_left_out: limits.requests_left_out,
        id: status.and_then(|status| container_id(&status.container_id.0)),
        state: status.map_or(ContainerState::Unknown, |status| state(&status.state.0)),
        may_mount: spec.security_context.0.may_mount(),
    })
}

/// The id in `containerd://<id>`.
fn container_id(text: &str) -> Option<ContainerId> {
    let (_, id) = text.split_once("://")?;
    ContainerId::parse(id).ok()
}

fn state(state: &State) -> ContainerState {
    match state {
        State { running: Some(_), .. } => ContainerState::Running,
        State { terminated: Some(_), .. } => ContainerState::Terminated,
        State { waiting: Some(_), .. } => ContainerState::Waiting,
        _ => ContainerState::Unknown,
    }
}

fn phase(word: &str) -> PodPhase {
    match word {
        "Pending" => PodPhase::Pending,
        "Running" => PodPhase::Running,
        "Succeeded" => PodPhase::Succeeded,
        "Failed" => PodPhase::Failed,
        _ => PodPhase::Unknown,
    }
}

fn restart(word: &str) -> Option<RestartPolicy> {
    match word {
        "Always" => Some(RestartPolicy::Always),
        "OnFailure" => Some(RestartPolicy::OnFailure),
        "Never" => Some(RestartPolicy::Never),
        _ => None,
    }
}

fn of_controller(owner: &OwnerReference) -> Option<PodController> {
    Some(PodController {
        api_version: shown(&owner.api_version, MAX_NAME)?,
        kind: shown(&owner.kind, MAX_NAME)?,
        name: shown(&owner.name, MAX_NAME)?,
        uid: shown(&owner.uid, MAX_NAME)?,
    })
}

/// The text, if it is not empty, not too long and without control characters.
fn shown(text: &str, longest: usize) -> Option<Arc<str>> {
    let fit = !text.is_empty() && text.len() <= longest && !text.chars().any(char::is_control);
    fit.then(|| Arc::from(text))
}

#[cfg(test)]
mod tests;
