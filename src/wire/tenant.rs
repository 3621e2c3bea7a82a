//! A pod as sharing sees it: what each container asks for, and what a scheduler promised it.

use crate::resource::{self, Amounts, Rules};
use crate::{assignment, key};
use model::claim;
use model::id::NodeName;
use model::pod::{ContainerKind, ContainerState, Pod, PodContainer};
use model::request::MemoryRequest;
use model::share::{Ask, Assignment, MemoryAsk, Portion, Role, Tenant};
use model::unit::Bytes;
use std::collections::BTreeMap;

/// Reads a pod that is bound to `node`. `None` for one that asks for no GPU.
#[must_use]
pub fn of(pod: &Pod, rules: &Rules, node: &NodeName) -> Option<Tenant> {
    let mut unreadable = hidden(pod);
    let asks: Vec<Ask> = pod
        .containers
        .iter()
        .filter_map(|container| {
            let role = match container.kind {
                ContainerKind::Init => Role::Init,
                ContainerKind::Sidecar => Role::Sidecar,
                ContainerKind::App => Role::App,
                // Cannot ask for resources.
                ContainerKind::Ephemeral => return None,
            };
            Some(ask(container, role, rules).unwrap_or_else(|why| {
                unreadable.get_or_insert(why);
                let slots = resource::count(rules, &amounts(container));
                Ask { container: container.name.clone(), role, slots, memory: None, cores: None, priority: None }
            }))
        })
        .collect();
    let torn = unreadable.is_some();
    let assignment = match unreadable {
        Some(why) => Assignment::BadRequest(why.into()),
        None => read(pod, &asks, node),
    };
    // A claim without anybody who asks is somebody's mistake, and is told.
    let odd = torn || (matches!(assignment, Assignment::Unreadable(_)) && pod.annotation(key::ALLOCATED).is_some());
    let asking = odd || asks.iter().any(|ask| ask.slots > 0);
    let asks_for_gpus = |name: &str| asks.iter().any(|ask| ask.slots > 0 && *ask.container == *name);
    let started = pod.containers.iter().any(|container| asks_for_gpus(&container.name) && has_run(container));
    asking.then(|| Tenant {
        // kubelet calls a static pod by the hash of its manifest.
        uid: pod.cgroup_uid().clone(),
        pod: pod.name.clone(),
        arrival: pod.arrival,
        placed_here: pod.annotation(key::PLACED_BY) == Some(key::PLACED_BY_AGENT),
        started,
        finished: pod.ended(),
        asks,
        assignment,
    })
}

/// What of the pod's request was not kept, because it is beyond what one pod may have: it may be a GPU, and a claim that was made for
/// the whole pod would be shared out among those that are known.
fn hidden(pod: &Pod) -> Option<String> {
    if pod.containers_left_out > 0 {
        let (more, most) = (pod.containers_left_out, model::pod::MAX_CONTAINERS);
        return Some(format!("it has {more} containers more than the {most} that are looked at"));
    }
    let container = pod.containers.iter().find(|container| container.limits_left_out > 0)?;
    let (more, most) = (container.limits_left_out, model::pod::MAX_RESOURCES);
    let name = &container.name;
    Some(format!("container {name}: names {more} extended resources more than the {most} that are looked at"))
}

/// A container is made only after its start was answered, and between two starts it keeps the id of the last.
fn has_run(container: &PodContainer) -> bool {
    container.id.is_some() || matches!(container.state, ContainerState::Running | ContainerState::Terminated)
}

fn amounts(container: &PodContainer) -> Amounts {
    container.limits.iter().map(|(name, quantity)| (name.to_string(), quantity.to_string())).collect()
}

fn ask(container: &PodContainer, role: Role, rules: &Rules) -> Result<Ask, String> {
    let limits = amounts(container);
    let request = resource::request(rules, &limits, &BTreeMap::new())
        .map_err(|bad| format!("container {}: {bad}", container.name))?;
    // A memory that the pod did not name is the whole card, which is no limit.
    let named = |name: &String| limits.contains_key(name.as_str());
    Ok(Ask {
        container: container.name.clone(),
        role,
        slots: request.as_ref().map_or(0, |request| request.count),
        memory: request.as_ref().and_then(|request| match request.memory {
            MemoryRequest::Amount(amount) => Some(MemoryAsk::Bytes(amount.bytes())),
            MemoryRequest::Percent(percent) => {
                named(&rules.names.memory_percentage).then_some(MemoryAsk::Percent(u32::from(percent)))
            }
        }),
        cores: request.as_ref().map(|request| request.cores.0).filter(|cores| *cores > 0),
        priority: request.and_then(|request| request.priority),
    })
}

fn read(pod: &Pod, asks: &[Ask], node: &NodeName) -> Assignment {
    let Some(text) = pod.annotation(key::ALLOCATED) else {
        return match pod.system_keys_left_out {
            0 => Assignment::None,
            _ => Assignment::Unreadable("the pod's annotations are too large to be kept".into()),
        };
    };
    // HAMi leaves an older assignment on a pod whose later filter failed.
    if let Some(assigned) = pod.annotation(key::ASSIGNED_NODE)
        && assigned != node.as_str()
    {
        let why = format!("{} names node {assigned:.80} and the pod is bound to {node}", key::ASSIGNED_NODE);
        return Assignment::Unreadable(why.into());
    }
    let wants: Vec<u32> = asks.iter().map(|ask| ask.slots).collect();
    let slots = match assignment::decode(key::ALLOCATED, text) {
        Ok(slots) => slots,
        Err(fault) => return Assignment::Unreadable(fault.to_string().into()),
    };
    match slots.by_container(&wants) {
        Ok(grants) => Assignment::Given(grants.iter().map(|grants| grants.iter().map(portion).collect()).collect()),
        Err(why) => Assignment::Unreadable(format!("{}: {why}", key::ALLOCATED).into()),
    }
}

fn portion(grant: &claim::Grant) -> Portion {
    Portion {
        device: grant.uuid.clone(),
        // 0 is the word for no limit, of both.
        memory: Some(grant.memory.bytes()).filter(|memory| *memory > Bytes(0)),
        cores: Some(grant.cores.0).filter(|cores| *cores > 0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pod::decode;
    use model::id::GpuUuid;
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

    fn tenant(annotations: &Value, limits: &Value) -> Option<Tenant> {
        of(&pod(annotations, limits), &Rules::default(), &NodeName::parse("node-1").unwrap())
    }

    #[test]
    fn a_pod_that_asks_for_no_gpu_is_no_tenant() {
        assert_eq!(tenant(&json!({}), &json!({ "cpu": "1" })), None);
    }

    #[test]
    fn what_anybody_may_write_makes_no_tenant_and_no_claim() {
        let large = json!({ "nvidia.com/use-gputype": "x".repeat(17 << 10) });
        assert_eq!(tenant(&large, &json!({ "cpu": "1" })), None);
        let asks = json!({ "nvidia.com/gpu": "1" });
        assert_eq!(tenant(&large, &asks).unwrap().assignment, Assignment::None);
        // What a scheduler wrote and was too large to be kept is no pod that nobody placed.
        let claim = json!({ key::ALLOCATED: "x".repeat(17 << 10) });
        assert_eq!(tenant(&claim, &json!({ "cpu": "1" })), None);
        assert!(matches!(tenant(&claim, &asks).unwrap().assignment, Assignment::Unreadable(_)));
    }

    #[test]
    fn each_container_finds_its_own_part_of_the_claim() {
        let limits = json!({ "nvidia.com/gpu": "1", "nvidia.com/gpumem": "3k", "nvidia.com/gpucores": "30", "nvidia.com/priority": "0" });
        let claim =
            json!({ key::ALLOCATED: ";GPU-1,NVIDIA,3000,30:;GPU-2,NVIDIA,2000,0:;", key::ASSIGNED_NODE: "node-1" });
        let tenant = tenant(&claim, &limits).unwrap();
        let shapes: Vec<_> = tenant.asks.iter().map(|ask| (&*ask.container, ask.role, ask.slots)).collect();
        assert_eq!(shapes, [("warm", Role::Init, 0), ("side", Role::Sidecar, 1), ("main", Role::App, 1)]);
        assert_eq!(tenant.asks[2].memory, Some(MemoryAsk::Bytes(Mib(3000).bytes())));
        assert_eq!((tenant.asks[0].priority, tenant.asks[2].priority), (None, Some(0)));
        let Assignment::Given(portions) = &tenant.assignment else { panic!("{:?}", tenant.assignment) };
        let flat: Vec<_> =
            portions.iter().map(|own| own.iter().map(|p| (p.device.as_str(), p.cores)).collect::<Vec<_>>()).collect();
        assert_eq!(flat, [vec![], vec![("GPU-1", Some(30))], vec![("GPU-2", None)]]);
        assert!(!tenant.placed_here && !tenant.started && !tenant.finished);
    }

    /// One that was refused beside containers that need nothing of a GPU has started nothing that it could hold.
    #[test]
    fn only_a_container_that_asks_for_gpus_starts_its_pod() {
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
            let tenant = of(&pod, &Rules::default(), &NodeName::parse("node-1").unwrap()).unwrap();
            assert_eq!(tenant.started, started, "{text}");
        }
    }

    #[test]
    fn a_claim_that_cannot_be_right_is_unreadable_and_says_why() {
        let limits = json!({ "nvidia.com/gpu": "1" });
        for (annotations, word) in [
            (json!({ key::ALLOCATED: "x" }), key::ALLOCATED),
            (json!({ key::ALLOCATED: ";GPU-1,NVIDIA,3000,30:;;" }), "2 ask for GPUs"),
            (
                json!({ key::ALLOCATED: ";GPU-1,NVIDIA,1,0:;GPU-1,NVIDIA,1,0:;", key::ASSIGNED_NODE: "node-2" }),
                "node-2",
            ),
        ] {
            match tenant(&annotations, &limits).unwrap().assignment {
                Assignment::Unreadable(why) => assert!(why.contains(word), "{why}"),
                other => panic!("{annotations}: {other:?}"),
            }
        }
        let torn = tenant(&json!({}), &json!({ "nvidia.com/gpu": "1.5" })).unwrap();
        assert!(matches!(torn.assignment, Assignment::BadRequest(why) if why.contains("side")));
        for (resource, amount) in [("nvidia.com/gpucores", "150"), ("nvidia.com/priority", "7")] {
            let asks = tenant(&json!({}), &json!({ "nvidia.com/gpu": "2", resource: amount })).unwrap();
            let Assignment::BadRequest(why) = &asks.assignment else { panic!("{:?}", asks.assignment) };
            assert!(why.starts_with(&format!("container side: {resource}: ")) && why.contains(amount), "{why}");
            assert_eq!(asks.asks[1].slots, 2, "the kubelet gives it as many ids all the same");
        }
        assert_eq!(tenant(&json!({}), &limits).unwrap().assignment, Assignment::None);
    }

    /// Else its call of `Allocate` would be nobody's, or another pod's.
    #[test]
    fn a_request_of_which_a_part_was_not_kept_is_no_request_and_says_why() {
        let mut limits: serde_json::Map<String, Value> =
            (0..40).map(|n| (format!("a{n}.example.com/none"), json!("0"))).collect();
        limits.insert("nvidia.com/gpu".into(), json!("1"));
        let claim = json!({ key::ALLOCATED: ";GPU-1,NVIDIA,0,0:;GPU-1,NVIDIA,0,0:;" });
        let torn = tenant(&claim, &limits.into()).unwrap();
        let Assignment::BadRequest(why) = &torn.assignment else { panic!("{:?}", torn.assignment) };
        assert_eq!(&**why, "container side: names 9 extended resources more than the 32 that are looked at");
        assert_eq!(
            torn.asks.iter().map(|ask| ask.slots).collect::<Vec<_>>(),
            [0, 1, 1],
            "the calls for them are known"
        );
        let containers: Vec<Value> = (0..200).map(|n| json!({ "name": format!("c{n}") })).collect();
        let text = json!({
            "metadata": { "name": "train", "namespace": "ml", "uid": UID }, "spec": { "containers": containers },
        });
        let pod = decode(text.to_string().as_bytes()).unwrap();
        let torn = of(&pod, &Rules::default(), &NodeName::parse("node-1").unwrap()).unwrap();
        assert!(matches!(torn.assignment, Assignment::BadRequest(why) if why.contains("72 containers more")));
    }

    #[test]
    fn a_claim_that_this_node_made_says_so() {
        let claim =
            json!({ key::ALLOCATED: ";GPU-1,NVIDIA,0,0:;GPU-1,NVIDIA,0,0:;", key::PLACED_BY: key::PLACED_BY_AGENT });
        let tenant = tenant(&claim, &json!({ "nvidia.com/gpu": "1" })).unwrap();
        assert!(tenant.placed_here);
        let free = |n| vec![Portion { device: GpuUuid::parse(n).unwrap(), memory: None, cores: None }];
        assert_eq!(tenant.assignment, Assignment::Given(vec![vec![], free("GPU-1"), free("GPU-1")]), "0 is no limit");
    }

    proptest! {
        #[test]
        fn no_annotation_and_no_quantity_panics(claim in "\\PC{0,80}", gpus in "\\PC{0,12}", node in "\\PC{0,12}") {
            let annotations = json!({ key::ALLOCATED: claim, key::ASSIGNED_NODE: node });
            let tenant = tenant(&annotations, &json!({ "nvidia.com/gpu": gpus }));
            if let Some(Tenant { asks, assignment: Assignment::Given(portions), .. }) = tenant {
                let counts: Vec<usize> = portions.iter().map(Vec::len).collect();
                let asked: Vec<usize> = asks.iter().map(|ask| ask.slots as usize).collect();
                prop_assert_eq!(counts, asked);
            }
        }
    }
}
