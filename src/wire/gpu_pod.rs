//! Turns a pod into a GPU pod: the request of each container, and the claim in the pod's annotations.

use crate::resource::{self, RequestRules, ResourceAmounts};
use crate::{annotation_keys, claim, claim_version};
use model::claim::PodClaim;
use model::gpu_pod::GpuPod;
use model::id::NodeName;
use model::pod::{ContainerKind, ContainerState, Pod, PodContainer};
use model::request::{ContainerRequest, ContainerRole, MemoryRequest};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Reads a pod that is bound to `node` as a GPU pod. `None` for a pod that requests no GPU.
#[must_use]
pub fn of(pod: &Pod, rules: &RequestRules, node: &NodeName) -> Option<GpuPod> {
    let (requests, unreadable) = requests(pod, rules);
    let invalid = unreadable.is_some();
    let claim = match unreadable {
        Some(why) => PodClaim::BadRequest(why.into()),
        None => read(pod, &requests, node),
    };
    // A claim that does not fit the pod's requests, for example if no container requests a GPU, is a mistake that the user must
    // see.
    let has_fault =
        invalid || (matches!(claim, PodClaim::Unreadable(_)) && pod.annotation(annotation_keys::ALLOCATED).is_some());
    let requests_gpus = has_fault || requests.iter().any(|request| request.slots > 0);
    let started =
        own_containers(pod).zip(&requests).any(|(container, request)| request.slots > 0 && has_run(container));
    requests_gpus.then(|| GpuPod {
        // The kubelet knows a static pod by the hash of its manifest.
        uid: pod.cgroup_uid().clone(),
        pod: pod.name.clone(),
        arrival: pod.arrival,
        chooses_gpus: chooses_gpus(pod),
        placed_here: pod.annotation(annotation_keys::PLACED_BY) == Some(annotation_keys::PLACED_BY_AGENT),
        started,
        finished: pod.ended(),
        requests,
        claim,
    })
}

/// Removes the requests for all other resources. `names` includes all resources of the rules, so the GPU pod stays the same.
/// Anyone who may create pods can make up names of resources, and an agent or extender keeps thousands of pods.
pub fn keep_resources(pod: &mut Pod, names: &[Arc<str>]) {
    let known = |name: &str| names.iter().find(|known| ***known == *name);
    for container in &mut pod.containers {
        container.limits.retain_mut(|(name, _)| {
            let Some(known) = known(name) else { return false };
            // One copy of the name for all pods.
            *name = Arc::clone(known);
            true
        });
        container.limits.shrink_to_fit();
    }
    let Some(left_out) = &mut pod.containers_left_out else { return };
    left_out.resources.retain(|name| known(name).is_some());
    left_out.resources.shrink_to_fit();
    if left_out.resources.is_empty() && !left_out.more_resources {
        pod.containers_left_out = None;
    }
}

/// Keeps at most one container of a pod without a claim: a scheduler must know only whether a container requests GPUs, and
/// whether such a container has run. Returns whether the pod requests GPUs. Anyone who may create pods can give each of its
/// containers a name and amounts that no other container has.
pub fn keep_one_container(pod: &mut Pod, rules: &RequestRules) -> bool {
    let requests_gpus = |container: &PodContainer| resource::count(rules, &amounts(container)) > 0;
    let is_bad = |container: &PodContainer| {
        container.requests_left_out || resource::request(rules, &amounts(container), &BTreeMap::new()).is_err()
    };
    let rank = |container: &PodContainer| match (requests_gpus(container), has_run(container)) {
        (true, true) => 3,
        (true, false) => 2,
        (false, _) if is_bad(container) => 1,
        (false, _) => 0,
    };
    let kept = own_containers(pod).max_by_key(|container| rank(container)).cloned();
    let any = kept.as_ref().is_some_and(|container| rank(container) > 0);
    pod.containers = kept.into_iter().collect();
    any || hidden(pod, rules).is_some()
}

/// The containers that may request resources. The API server accepts no requests for an ephemeral container.
fn own_containers(pod: &Pod) -> impl Iterator<Item = &PodContainer> {
    pod.containers.iter().filter(|container| container.kind != ContainerKind::Ephemeral)
}

/// Whether annotations of the pod limit which GPUs it accepts, or may do so because some were not read.
fn chooses_gpus(pod: &Pod) -> bool {
    let says = |key: &str| pod.annotation(key).is_some_and(|value| !value.trim().is_empty());
    pod.annotations_left_out > 0
        || annotation_keys::GPU_CONDITIONS.into_iter().any(says)
        || pod.annotation(annotation_keys::GPU_POLICY).is_some_and(|policy| policy.contains("mutex"))
}

/// The requests of the pod's containers, init containers first, and the first reason why they are not fully known or
/// cannot be granted. A container whose request is invalid has only its number of slots.
pub(crate) fn requests(pod: &Pod, rules: &RequestRules) -> (Vec<ContainerRequest>, Option<String>) {
    let mut fault = hidden(pod, rules);
    let requests = own_containers(pod)
        .map(|container| {
            let role = match container.kind {
                ContainerKind::Init => ContainerRole::Init,
                ContainerKind::Sidecar => ContainerRole::Sidecar,
                ContainerKind::App | ContainerKind::Ephemeral => ContainerRole::App,
            };
            request(container, role, rules).unwrap_or_else(|why| {
                fault.get_or_insert(why);
                let slots = resource::count(rules, &amounts(container));
                ContainerRequest {
                    container: container.name.clone(),
                    role,
                    slots,
                    memory: None,
                    cores: None,
                    priority: None,
                }
            })
        })
        .collect();
    (requests, fault)
}

/// The reason why the request of the pod is not fully known: it has more containers or resources than the pod decoder
/// keeps. One of the missing entries may be a GPU, and the claim of the whole pod would then go to the wrong
/// containers. Missing entries that request no GPU do not make a pod a GPU pod: otherwise, anyone who may create pods
/// could close a node.
fn hidden(pod: &Pod, rules: &RequestRules) -> Option<String> {
    let count = &rules.names.count;
    if let Some(left_out) = &pod.containers_left_out
        && (left_out.more_resources || left_out.resources.iter().any(|name| **name == **count))
    {
        let (more, most) = (left_out.number, model::pod::MAX_CONTAINERS);
        return Some(format!(
            "it has {more} containers more than the {most} that the agent reads, and {count} may be among their resources"
        ));
    }
    let unknown = |container: &&PodContainer| {
        container.limits_left_out > 0
            && (container.requests_left_out || resource::count(rules, &amounts(container)) > 0)
    };
    let container = own_containers(pod).find(unknown)?;
    let (more, most) = (container.limits_left_out, model::pod::MAX_RESOURCES);
    let name = &container.name;
    Some(format!("container {name}: names {more} extended resources more than the {most} that the agent reads"))
}

/// Whether the container has started at least once. The runtime creates it only after the agent has answered
/// `PreStartContainer`, and its status keeps the last id between two starts.
fn has_run(container: &PodContainer) -> bool {
    container.id.is_some() || matches!(container.state, ContainerState::Running | ContainerState::Terminated)
}

fn amounts(container: &PodContainer) -> ResourceAmounts {
    container.limits.iter().map(|(name, quantity)| (name.to_string(), quantity.to_string())).collect()
}

fn request(container: &PodContainer, role: ContainerRole, rules: &RequestRules) -> Result<ContainerRequest, String> {
    let limits = amounts(container);
    let request = resource::request(rules, &limits, &BTreeMap::new())
        .map_err(|bad| format!("container {}: {bad}", container.name))?;
    // Without a memory resource, the pod requests the whole GPU, which is no limit.
    let named = |name: &String| limits.contains_key(name.as_str());
    Ok(ContainerRequest {
        container: container.name.clone(),
        role,
        slots: request.map_or(0, |request| request.count),
        memory: request.map(|request| request.memory).filter(|memory| match memory {
            MemoryRequest::Amount(_) => true,
            MemoryRequest::Percent(_) => named(&rules.names.memory_percentage),
        }),
        cores: request.map(|request| request.cores).filter(|cores| cores.0 > 0),
        priority: request.and_then(|request| request.priority),
    })
}

fn read(pod: &Pod, requests: &[ContainerRequest], node: &NodeName) -> PodClaim {
    // Checked before the claim itself: a later version may give the same text another meaning, or use another
    // annotation.
    if let Some(version) = pod.annotation(annotation_keys::CLAIM_VERSION)
        && let Err(why) = claim_version::check(version, claim_version::WRITTEN)
    {
        return PodClaim::Unreadable(why.to_string().into());
    }
    let Some(text) = pod.annotation(annotation_keys::ALLOCATED) else {
        return match pod.system_keys_left_out {
            0 => PodClaim::None,
            _ => PodClaim::Unreadable("the pod's annotations are too large to be kept".into()),
        };
    };
    // HAMi leaves an older claim on a pod when a later filter call fails.
    if let Some(assigned) = pod.annotation(annotation_keys::ASSIGNED_NODE)
        && assigned != node.as_str()
    {
        let why =
            format!("{} names node {assigned:.80} and the pod is bound to {node}", annotation_keys::ASSIGNED_NODE);
        return PodClaim::Unreadable(why.into());
    }
    let counts: Vec<u32> = requests.iter().map(|request| request.slots).collect();
    let claim = match claim::decode(annotation_keys::ALLOCATED, text) {
        Ok(claim) => claim,
        Err(error) => return PodClaim::Unreadable(error.to_string().into()),
    };
    match claim.by_container(&counts) {
        Ok(claim) => PodClaim::Given(claim),
        Err(why) => PodClaim::Unreadable(format!("{}: {why}", annotation_keys::ALLOCATED).into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pod::decode;
    use model::claim::DeviceShare;
    use model::id::GpuUuid;
    use model::pod::MAX_CONTAINERS;
    use model::unit::Mib;
    use proptest::prelude::*;
    use serde_json::{Value, json};

    const UID: &str = "0f5b9a3e-0d2c-4b7f-9a51-2f1f6a1f8d11";

    fn pod(annotations: &Value, limits: &Value) -> Pod {
        let text = json!({
            "metadata": { "name": "train", "namespace": "ml", "uid": UID, "annotations": annotations },
            "spec": {
                "nodeName": "node-1",
                "initContainers": [{ "name": "warm" }, { "name": "side", "restartPolicy": "Always", "resources": { "limits": limits } }],
                "containers": [{ "name": "main", "resources": { "limits": limits } }],
            },
            "status": { "phase": "Pending" },
        });
        decode(text.to_string().as_bytes()).unwrap()
    }

    fn gpu_pod(annotations: &Value, limits: &Value) -> Option<GpuPod> {
        of(&pod(annotations, limits), &RequestRules::default(), &NodeName::parse("node-1").unwrap())
    }

    #[test]
    fn a_pod_without_a_gpu_request_is_no_gpu_pod() {
        assert_eq!(gpu_pod(&json!({}), &json!({ "cpu": "1" })), None);
    }

    #[test]
    fn a_pod_that_says_which_gpus_it_accepts_is_marked() {
        let marked =
            |annotations: &Value| gpu_pod(annotations, &json!({ "nvidia.com/gpu": "1" })).unwrap().chooses_gpus;
        for key in annotation_keys::GPU_CONDITIONS {
            assert_eq!([marked(&json!({ key: "A100" })), marked(&json!({ key: " " }))], [true, false], "{key}");
        }
        let policy = |text: &str| marked(&json!({ annotation_keys::GPU_POLICY: text }));
        assert_eq!([policy("mutex"), policy("spread,mutex"), policy("binpack")], [true, true, false]);
        assert!(!marked(&json!({})));
        // A condition may be among the annotations that were left out.
        assert!(marked(&json!({ annotation_keys::USE_TYPES: "x".repeat(17 << 10) })));
    }

    #[test]
    fn annotations_that_users_may_write_make_neither_a_gpu_pod_nor_a_claim() {
        let large = json!({ "nvidia.com/use-gputype": "x".repeat(17 << 10) });
        assert_eq!(gpu_pod(&large, &json!({ "cpu": "1" })), None);
        let requests = json!({ "nvidia.com/gpu": "1" });
        assert_eq!(gpu_pod(&large, &requests).unwrap().claim, PodClaim::None);
        // A pod whose claim was too large to be kept is not a pod without a claim.
        let claim = json!({ annotation_keys::ALLOCATED: "x".repeat(17 << 10) });
        assert_eq!(gpu_pod(&claim, &json!({ "cpu": "1" })), None);
        assert!(matches!(gpu_pod(&claim, &requests).unwrap().claim, PodClaim::Unreadable(_)));
    }

    #[test]
    fn each_container_gets_its_own_part_of_the_claim() {
        let limits = json!({ "nvidia.com/gpu": "1", "nvidia.com/gpumem": "3k", "nvidia.com/gpucores": "30", "nvidia.com/priority": "0" });
        let claim = json!({ annotation_keys::ALLOCATED: ";GPU-1,NVIDIA,3000,30:;GPU-2,NVIDIA,2000,0:;", annotation_keys::ASSIGNED_NODE: "node-1" });
        let gpu_pod = gpu_pod(&claim, &limits).unwrap();
        let shapes: Vec<_> =
            gpu_pod.requests.iter().map(|request| (&*request.container, request.role, request.slots)).collect();
        assert_eq!(
            shapes,
            [("warm", ContainerRole::Init, 0), ("side", ContainerRole::Sidecar, 1), ("main", ContainerRole::App, 1)]
        );
        assert_eq!(gpu_pod.requests[2].memory, Some(MemoryRequest::Amount(Mib(3000))));
        assert_eq!((gpu_pod.requests[0].priority, gpu_pod.requests[2].priority), (None, Some(0)));
        let PodClaim::Given(claim) = &gpu_pod.claim else { panic!("{:?}", gpu_pod.claim) };
        let flat: Vec<_> = claim
            .iter()
            .map(|own| own.iter().map(|p| (p.device.as_str(), p.cores.map(|cores| cores.0))).collect::<Vec<_>>())
            .collect();
        assert_eq!(flat, [vec![], vec![("GPU-1", Some(30))], vec![("GPU-2", None)]]);
        assert!(!gpu_pod.placed_here && !gpu_pod.started && !gpu_pod.finished);
    }

    /// A pod whose GPU container was refused holds no GPU, even if its other containers run.
    #[test]
    fn only_a_container_with_a_gpu_request_marks_its_pod_as_started() {
        let id = &*format!("containerd://{}", "a".repeat(64));
        let (runs, over, waits) =
            (json!({ "running": {} }), json!({ "terminated": { "exitCode": 0 } }), json!({ "waiting": {} }));
        for (plain, main, main_id, started) in [
            (&runs, &waits, "", false),
            (&over, &waits, "", false),
            (&waits, &runs, id, true),
            (&waits, &over, id, true),
            (&runs, &waits, id, true),
        ] {
            let text = json!({
                "metadata": { "name": "train", "namespace": "ml", "uid": UID },
                "spec": { "nodeName": "node-1", "containers": [
                    { "name": "plain" }, { "name": "main", "resources": { "limits": { "nvidia.com/gpu": "1" } } },
                ] },
                "status": { "phase": "Running", "containerStatuses": [
                    { "name": "plain", "state": plain, "containerID": id },
                    { "name": "main", "state": main, "containerID": main_id },
                ] },
            });
            let pod = decode(text.to_string().as_bytes()).unwrap();
            let gpu_pod = of(&pod, &RequestRules::default(), &NodeName::parse("node-1").unwrap()).unwrap();
            assert_eq!(gpu_pod.started, started, "{text}");
        }
    }

    #[test]
    fn an_invalid_claim_is_unreadable_with_a_reason() {
        let limits = json!({ "nvidia.com/gpu": "1" });
        for (annotations, word) in [
            (json!({ annotation_keys::ALLOCATED: "x" }), annotation_keys::ALLOCATED),
            (json!({ annotation_keys::ALLOCATED: ";GPU-1,NVIDIA,3000,30:;;" }), "2 request GPUs"),
            (
                json!({ annotation_keys::ALLOCATED: ";GPU-1,NVIDIA,1,0:;GPU-1,NVIDIA,1,0:;", annotation_keys::ASSIGNED_NODE: "node-2" }),
                "node-2",
            ),
        ] {
            match gpu_pod(&annotations, &limits).unwrap().claim {
                PodClaim::Unreadable(why) => assert!(why.contains(word), "{why}"),
                other => panic!("{annotations}: {other:?}"),
            }
        }
        let invalid = gpu_pod(&json!({}), &json!({ "nvidia.com/gpu": "1.5" })).unwrap();
        assert!(matches!(invalid.claim, PodClaim::BadRequest(why) if why.contains("side")));
        for (resource, amount) in [("nvidia.com/gpucores", "150"), ("nvidia.com/priority", "7")] {
            let requests = gpu_pod(&json!({}), &json!({ "nvidia.com/gpu": "2", resource: amount })).unwrap();
            let PodClaim::BadRequest(why) = &requests.claim else { panic!("{:?}", requests.claim) };
            assert!(why.starts_with(&format!("container side: {resource} ")) && why.contains(amount), "{why}");
            assert_eq!(requests.requests[1].slots, 2, "the kubelet still allocates this many ids to it");
        }
        assert_eq!(gpu_pod(&json!({}), &limits).unwrap().claim, PodClaim::None);
    }

    /// Without its requests, the agent would match the pod's call of `Allocate` to no pod, or to another pod.
    #[test]
    fn a_request_that_was_not_kept_in_full_is_a_bad_request_with_a_reason() {
        let mut limits: serde_json::Map<String, Value> =
            (0..40).map(|n| (format!("a{n}.example.com/none"), json!("0"))).collect();
        limits.insert("nvidia.com/gpu".into(), json!("1"));
        let claim = json!({ annotation_keys::ALLOCATED: ";GPU-1,NVIDIA,0,0:;GPU-1,NVIDIA,0,0:;" });
        let invalid = gpu_pod(&claim, &limits.into()).unwrap();
        let PodClaim::BadRequest(why) = &invalid.claim else { panic!("{:?}", invalid.claim) };
        assert_eq!(&**why, "container side: names 9 extended resources more than the 32 that the agent reads");
        assert_eq!(
            invalid.requests.iter().map(|request| request.slots).collect::<Vec<_>>(),
            [0, 1, 1],
            "the calls for them are known"
        );
        let invalid = crowd(200, &json!({ "nvidia.com/gpu": "1" })).unwrap();
        assert!(matches!(invalid.claim, PodClaim::BadRequest(why) if why.contains("72 containers more")));
    }

    /// A pod with this many containers; the 129th and all later ones have these limits.
    fn crowd(containers: usize, limits: &Value) -> Option<GpuPod> {
        let named = |n: usize| match n {
            0..MAX_CONTAINERS => json!({ "name": format!("c{n}") }),
            _ => json!({ "name": format!("c{n}"), "resources": { "limits": limits } }),
        };
        let containers: Vec<Value> = (0..containers).map(named).collect();
        let text = json!({
            "metadata": { "name": "train", "namespace": "ml", "uid": UID }, "spec": { "containers": containers },
        });
        let pod = decode(text.to_string().as_bytes()).unwrap();
        of(&pod, &RequestRules::default(), &NodeName::parse("node-1").unwrap())
    }

    /// Otherwise, anyone who may create pods could close a node with such a pod.
    #[test]
    fn a_pod_without_gpus_is_no_gpu_pod_however_many_containers_and_resources_it_names() {
        for limits in [
            json!({}),
            json!({ "cpu": "1", "nvidia.com/gpu": "0" }),
            json!({ "rdma.example.com/hca": "1" }),
            json!({ "nvidia.com/gpumem": "3000" }),
        ] {
            for containers in [128, 129, 10_000] {
                assert_eq!(crowd(containers, &limits), None, "{containers} containers with {limits}");
            }
        }
        assert_eq!(crowd(128, &json!({ "nvidia.com/gpu": "1" })), None, "none of them has the limits");
        for (containers, more) in [(129, "1 containers"), (130, "2 containers")] {
            let found = crowd(containers, &json!({ "nvidia.com/gpu": "1" })).unwrap();
            assert!(matches!(&found.claim, PodClaim::BadRequest(why) if why.contains(more)), "{:?}", found.claim);
        }
        let many = |amount: &str| -> Value {
            let all = (0..40).map(|n| (format!("a{n}.example.com/none"), json!(amount)));
            all.collect::<serde_json::Map<_, _>>().into()
        };
        assert_eq!(gpu_pod(&json!({}), &many("0")), None);
        assert!(gpu_pod(&json!({}), &many("1")).is_some(), "GPUs may be among the resources that are not kept");
        assert!(crowd(129, &many("1")).is_some());
    }

    /// The names of the usual rules.
    fn names() -> [Arc<str>; 5] {
        RequestRules::default().names.all().map(Arc::from)
    }

    #[test]
    fn of_the_requests_of_a_pod_only_those_for_gpus_are_kept() {
        let amounts = |gpus: bool| -> Value {
            let own = [("nvidia.com/gpu", "1"), ("nvidia.com/gpumem", "3k")].into_iter().filter(|_| gpus);
            let own = own.map(|(name, amount)| (name.to_owned(), json!(amount)));
            let other = (0..20).map(|n| (format!("a/b{n:02}"), json!("1")));
            other.chain(own).collect::<serde_json::Map<_, _>>().into()
        };
        let crowd = |late: bool| {
            let of = |n: usize| {
                let limits = amounts(n == 7 || (late && n > 130));
                json!({ "name": format!("c{n}"), "resources": { "limits": limits } })
            };
            let containers: Vec<Value> = (0..140).map(of).collect();
            let metadata = json!({ "name": "train", "namespace": "ml", "uid": UID });
            let text = json!({ "metadata": metadata, "spec": { "containers": containers } });
            let mut pod = decode(text.to_string().as_bytes()).unwrap();
            keep_resources(&mut pod, &names());
            pod
        };
        for late in [false, true] {
            let pod = crowd(late);
            assert_eq!(pod.containers.len(), MAX_CONTAINERS, "the place of a container counts");
            let kept: Vec<_> = pod.containers.iter().flat_map(|container| &container.limits).collect();
            let expected: [(Arc<str>, Arc<str>); 2] =
                [("nvidia.com/gpu".into(), "1".into()), ("nvidia.com/gpumem".into(), "3k".into())];
            assert_eq!(kept, expected.iter().collect::<Vec<_>>());
            let left_out = pod.containers_left_out.as_ref().map(|left_out| (left_out.number, left_out.resources.len()));
            assert_eq!(left_out, late.then_some((12, 2)));
        }
    }

    #[test]
    fn a_claim_that_the_agent_made_is_marked() {
        let claim = json!({ annotation_keys::ALLOCATED: ";GPU-1,NVIDIA,0,0:;GPU-1,NVIDIA,0,0:;", annotation_keys::PLACED_BY: annotation_keys::PLACED_BY_AGENT });
        let gpu_pod = gpu_pod(&claim, &json!({ "nvidia.com/gpu": "1" })).unwrap();
        assert!(gpu_pod.placed_here);
        let free = |n| vec![DeviceShare { device: GpuUuid::parse(n).unwrap(), memory: None, cores: None }];
        assert_eq!(gpu_pod.claim, PodClaim::Given(vec![vec![], free("GPU-1"), free("GPU-1")].into()), "0 is no limit");
    }

    proptest! {
        #[test]
        fn requests_for_other_resources_change_nothing_in_a_gpu_pod(
            containers in prop::collection::vec(
                prop::collection::btree_map("nvidia\\.com/(gpu|gpumem|gpucores|priority)|a/[a-z]", "[0-9]{1,2}", 0..4), 1..135,
            ),
            more in 0usize..40, amount in "[01]", claim: bool,
        ) {
            let other = (0..more).map(|n| (format!("b/{n}"), amount.clone()));
            let mut containers = containers;
            containers[0].extend(other);
            let container = |limits: &BTreeMap<String, String>| json!({ "name": "c", "resources": { "limits": limits } });
            let annotations = if claim { json!({ annotation_keys::ALLOCATED: "GPU-1,NVIDIA,1,0:;" }) } else { json!({}) };
            let text = json!({
                "metadata": { "name": "train", "namespace": "ml", "uid": UID, "annotations": annotations },
                "spec": { "containers": containers.iter().map(container).collect::<Vec<_>>() },
            });
            let whole = decode(text.to_string().as_bytes()).unwrap();
            let mut kept = whole.clone();
            keep_resources(&mut kept, &names());
            prop_assert!(kept.containers.iter().all(|container| container.limits.len() <= 5));
            let (rules, node) = (RequestRules::default(), NodeName::parse("node-1").unwrap());
            prop_assert_eq!(of(&kept, &rules, &node), of(&whole, &rules, &node));
        }

        #[test]
        fn one_container_shows_as_much_of_a_pod_without_a_claim_as_all_of_them(
            containers in prop::collection::vec(
                (
                    prop::collection::btree_map("nvidia\\.com/(gpu|gpumem|gpucores|priority)", "[0-2]|101|1\\.5", 0..4),
                    "(waiting|running|terminated)?", 0usize..3,
                ),
                1..6,
            ),
            more in prop_oneof![Just(0usize), Just(40)], amount in "[01]", crowd in prop_oneof![Just(0usize), Just(130)],
        ) {
            let mut specs = [vec![], vec![], vec![]];
            let mut statuses = Vec::new();
            for (at, (limits, state, list)) in containers.iter().enumerate() {
                let mut limits = limits.clone();
                limits.extend((0..more).map(|n| (format!("b/{n}"), amount.clone())));
                specs[*list].push(json!({ "name": format!("c{at}"), "resources": { "limits": limits } }));
                let state = if state.is_empty() { json!({}) } else { json!({ state: {} }) };
                statuses.push(json!({ "name": format!("c{at}"), "state": state }));
            }
            specs[1].extend((0..crowd).map(|n| {
                json!({ "name": format!("d{n}"), "resources": { "limits": if n < 127 { json!({}) } else { json!(containers[0].0) } } })
            }));
            let [init, app, ephemeral] = specs;
            let text = json!({
                "metadata": { "name": "train", "namespace": "ml", "uid": UID },
                "spec": { "initContainers": init, "containers": app, "ephemeralContainers": ephemeral },
                "status": {
                    "initContainerStatuses": statuses, "containerStatuses": statuses, "ephemeralContainerStatuses": statuses,
                },
            });
            let (rules, node) = (RequestRules::default(), NodeName::parse("node-1").unwrap());
            let whole = decode(text.to_string().as_bytes()).unwrap();
            let mut kept = whole.clone();
            let requests_gpus = keep_one_container(&mut kept, &rules);
            prop_assert!(kept.containers.len() <= 1);
            let [whole, kept] = [whole, kept].map(|pod| of(&pod, &rules, &node));
            prop_assert_eq!(kept.is_some(), requests_gpus);
            let shown = |pod: Option<GpuPod>| pod.map(|pod| (pod.started, matches!(pod.claim, PodClaim::Given(_) | PodClaim::Unreadable(_))));
            prop_assert_eq!(shown(kept), shown(whole));
        }

        #[test]
        fn no_annotation_or_quantity_causes_a_panic(claim in "\\PC{0,80}", gpus in "\\PC{0,12}", node in "\\PC{0,12}") {
            let annotations = json!({ annotation_keys::ALLOCATED: claim, annotation_keys::ASSIGNED_NODE: node });
            let gpu_pod = gpu_pod(&annotations, &json!({ "nvidia.com/gpu": gpus }));
            if let Some(GpuPod { requests, claim: PodClaim::Given(given), .. }) = gpu_pod {
                let counts: Vec<usize> = given.iter().map(Vec::len).collect();
                let requested: Vec<usize> = requests.iter().map(|request| request.slots as usize).collect();
                prop_assert_eq!(counts, requested);
            }
        }
    }
}
