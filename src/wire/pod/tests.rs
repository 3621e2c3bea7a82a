use super::*;
use model::time::WallTime;
use proptest::prelude::*;
use serde_json::{Value, json};

const UID: &str = "0f5b9a3e-0d2c-4b7f-9a51-2f1f6a1f8d11";
const HASH: &str = "0f5b9a3e0d2c4b7f9a512f1f6a1f8d11";

fn id(digit: &str) -> String {
    digit.repeat(64)
}

/// A pod as an API server 1.34 writes it, without fields that do not matter here.
fn whole() -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "name": "train-0", "namespace": "ml", "uid": UID, "resourceVersion": "4711",
            "creationTimestamp": "2026-11-21T10:00:00Z", "deletionTimestamp": "2026-11-21T10:15:30Z",
            "annotations": {
                "kubectl.kubernetes.io/last-applied-configuration": "{}",
                "hami.io/vgpu-devices-allocated": "GPU-1,NVIDIA,8000,30:;",
                "nvidia.com/use-gputype": "A100", "gpu-steward.io/epoch": "3", "ai.centaurus.io/cycle": "12",
            },
            "ownerReferences": [
                {"apiVersion": "v1", "kind": "ConfigMap", "name": "c", "uid": "1"},
                {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "train", "uid": "2", "controller": true},
            ],
            "managedFields": [{"manager": "kubelet", "fieldsV1": {"f:status": {}}}],
        },
        "spec": {
            "nodeName": "n1", "schedulerName": "gpu-steward", "priority": 1000, "hostNetwork": true, "restartPolicy": "OnFailure", "runtimeClassName": "kata",
            "initContainers": [
                {"name": "fetch", "image": "fetch:1"},
                {"name": "proxy", "image": "proxy:1", "restartPolicy": "Always"},
            ],
            "containers": [{
                "name": "main", "image": "train:1", "securityContext": {"privileged": true, "runAsUser": 0},
                "resources": {"limits": {"cpu": "4", "nvidia.com/gpumem": "8k", "nvidia.com/gpu": "2"}},
            }],
            "ephemeralContainers": null,
        },
        "status": {
            "phase": "Running",
            "initContainerStatuses": [
                {"name": "fetch", "containerID": format!("containerd://{}", id("a")), "state": {"terminated": {}}},
            ],
            "containerStatuses": [
                {"name": "main", "containerID": format!("cri-o://{}", id("b")), "state": {"running": {"startedAt": null}}},
            ],
        },
    })
}

fn read(value: &Value) -> Result<Pod, NotAPod> {
    decode(value.to_string().as_bytes())
}

#[test]
fn the_group_of_a_pod_is_read_in_each_of_its_forms() {
    let with = |at: &str, value: Value| {
        let mut pod = whole();
        let (part, field) = at.split_once('/').unwrap();
        pod[part][field] = value;
        read(&pod).unwrap().gang
    };
    let label = |name: &str| json!({ "scheduling.x-k8s.io/pod-group": name, "app": "train" });
    let workload =
        |replica: Option<&str>| json!({ "name": "train", "podGroup": "workers", "podGroupReplicaKey": replica });
    for (at, value, expected) in [
        ("metadata/labels", label("train"), Some("label train")),
        ("metadata/labels", label(""), None),
        ("metadata/labels", json!({ "scheduling.x-k8s.io/pod-group": 7 }), None),
        ("metadata/labels", json!(7), None),
        ("spec/workloadRef", workload(None), Some("workload train/workers/")),
        ("spec/workloadRef", workload(Some("1")), Some("workload train/workers/1")),
        ("spec/workloadRef", json!({ "name": "train" }), None),
        ("spec/schedulingGroup", json!({ "podGroupName": "train-workers" }), Some("group train-workers")),
        ("spec/schedulingGroup", json!({ "podGroupName": "x".repeat(300) }), None),
        ("spec/schedulingGroup", json!(null), None),
    ] {
        assert_eq!(with(at, value.clone()).as_deref(), expected, "{at}: {value}");
    }
    let mut nominated = whole();
    nominated["status"]["nominatedNodeName"] = "n2".into();
    assert_eq!(read(&nominated).unwrap().nominated.unwrap().as_str(), "n2");
    nominated["status"]["nominatedNodeName"] = "".into();
    assert_eq!((read(&nominated).unwrap().nominated, read(&whole()).unwrap().nominated), (None, None));
}

#[test]
fn requested_labels_are_kept_and_invalid_labels_do_not_lose_the_pod() {
    let keys: [Arc<str>; 3] = ["app".into(), "missing".into(), "team".into()];
    let of = |labels: Value| {
        let mut value = whole();
        value["metadata"]["labels"] = labels;
        decode_with(value.to_string().as_bytes(), &keys).unwrap().labels
    };
    let expected = [("app", "train"), ("team", "vision")].map(|(key, value)| (key.into(), value.into()));
    assert_eq!(of(json!({"team": "vision", "pod-template-hash": "5d4f", "app": "train"})), expected);
    assert_eq!(of(json!({"app": "", "team": "x".repeat(64)})), [], "values that Kubernetes does not accept");
    for none in [Value::Null, json!([]), json!({"app": 1}), json!("app")] {
        assert_eq!(of(none.clone()), [], "{none}");
    }
    assert_eq!(read(&whole()).unwrap().labels, []);
}

#[test]
fn a_pod_prefers_nodes_by_affinity_and_by_constraints_that_may_be_broken() {
    let preferred = |kind: &str, terms: Value| {
        let terms = json!({ "preferredDuringSchedulingIgnoredDuringExecution": terms });
        json!({ "affinity": { kind: terms } })
    };
    let spread = |words: &[&str]| {
        let one = |word: &&str| json!({ "maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": word });
        json!({ "topologySpreadConstraints": words.iter().map(one).collect::<Vec<_>>() })
    };
    let required = json!({ "nodeSelectorTerms": [{ "matchFields": [] }] });
    for (fields, expected) in [
        (json!({}), false),
        (json!({ "affinity": null, "topologySpreadConstraints": null }), false),
        (json!({ "affinity": { "nodeAffinity": null, "podAffinity": {} } }), false),
        (
            json!({ "affinity": { "nodeAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": required } } }),
            false,
        ),
        (preferred("nodeAffinity", Value::Null), false),
        (preferred("nodeAffinity", json!([])), false),
        (preferred("nodeAffinity", json!([{ "weight": 1, "preference": {} }])), true),
        (preferred("podAffinity", json!([{ "weight": 1 }])), true),
        (preferred("podAntiAffinity", json!([{ "weight": 1 }])), true),
        (spread(&["DoNotSchedule"]), false),
        (spread(&["DoNotSchedule", "ScheduleAnyway"]), true),
    ] {
        let mut pod = whole();
        for (key, value) in fields.as_object().unwrap() {
            pod["spec"][key] = value.clone();
        }
        assert_eq!(read(&pod).unwrap().prefers_nodes, expected, "{fields}");
    }
}

#[test]
fn a_whole_pod_is_read_and_nothing_else_is_kept() {
    let pod = read(&whole()).unwrap();
    assert_eq!((pod.uid.as_str(), pod.name.to_string(), &pod.mirror_of), (UID, "ml/train-0".into(), &None));
    assert_eq!((pod.phase, pod.priority, pod.host_network), (PodPhase::Running, Some(1000), true));
    assert_eq!(pod.scheduler, None, "it has a node");
    assert_eq!((pod.restart, pod.deleted_at), (Some(RestartPolicy::OnFailure), Some(WallTime(1_795_256_130_000_000))));
    assert_eq!((pod.created_at, pod.version), (Some(WallTime(1_795_255_200_000_000)), Some(4711)));
    let keys: Vec<&str> = pod.annotations.iter().map(|(key, _)| &**key).collect();
    let expect =
        ["ai.centaurus.io/cycle", "gpu-steward.io/epoch", "hami.io/vgpu-devices-allocated", "nvidia.com/use-gputype"];
    assert_eq!((keys.as_slice(), pod.annotations_left_out), (&expect[..], 0));
    assert_eq!(pod.annotation("hami.io/vgpu-devices-allocated"), Some("GPU-1,NVIDIA,8000,30:;"));
    let controller = pod.controller.unwrap();
    assert_eq!((&*controller.kind, &*controller.name, &*controller.api_version), ("StatefulSet", "train", "apps/v1"));
    assert_eq!(pod.runtime_class.as_deref(), Some("kata"));
    assert!(!pod.gated);
    for (gates, gated) in
        [(json!([]), false), (Value::Null, false), (json!([{ "name": "kueue.x-k8s.io/admission" }]), true)]
    {
        let text = json!({ "metadata": { "name": "a", "namespace": "b", "uid": "1".repeat(32) }, "spec": { "schedulingGates": gates } });
        assert_eq!(decode(text.to_string().as_bytes()).unwrap().gated, gated, "{gates}");
    }
    assert!(pod.containers.iter().all(|container| container.may_mount == (&*container.name == "main")));
    let seen: Vec<_> = pod.containers.iter().map(|c| (&*c.name, c.kind, c.state)).collect();
    assert_eq!(
        seen,
        [
            ("fetch", ContainerKind::Init, ContainerState::Terminated),
            ("proxy", ContainerKind::Sidecar, ContainerState::Unknown),
            ("main", ContainerKind::App, ContainerState::Running),
        ]
    );
    let main = &pod.containers[2];
    assert_eq!((main.image.as_deref(), main.limits.len()), (Some("train:1"), 2));
    assert_eq!(
        (main.limit("nvidia.com/gpu"), main.limit("nvidia.com/gpumem"), main.limit("cpu")),
        (Some("2"), Some("8k"), None)
    );
    assert_eq!(main.id.as_ref().unwrap().as_str(), id("b"));
}

#[test]
fn gpus_are_counted_under_any_name_with_a_domain() {
    let mut value = whole();
    value["spec"]["containers"][0]["resources"]["limits"] = json!({
        "cpu": "4", "memory": "1Gi", "hugepages-2Mi": "4Mi", "example.com/vgpu": "2", "example.com/vgpu-memory": "3k",
    });
    let pod = read(&value).unwrap();
    let main = &pod.containers[2];
    assert_eq!((main.limit("example.com/vgpu"), main.limit("example.com/vgpu-memory")), (Some("2"), Some("3k")));
    assert_eq!((main.limits.len(), main.limits_left_out), (2, 0));
}

#[test]
fn a_pod_that_was_just_bound_is_read() {
    let value = json!({"metadata": {"name": "a", "namespace": "b", "uid": UID}, "spec": {"containers": [{"name": "c"}]}, "status": null});
    let pod = read(&value).unwrap();
    assert_eq!((pod.phase, pod.containers.len(), &pod.containers[0].id), (PodPhase::Unknown, 1, &None));
}

#[test]
fn a_mirror_pod_is_known_by_its_manifest_hash_and_no_pod_can_take_another_pods_uid() {
    let of = |owner: Value, hash: &str, mirror: &str| {
        let mut value = whole();
        value["metadata"]["annotations"] =
            json!({"kubernetes.io/config.hash": hash, "kubernetes.io/config.mirror": mirror});
        value["metadata"]["ownerReferences"] = json!([owner]);
        read(&value).unwrap()
    };
    let node = json!({"apiVersion": "v1", "kind": "Node", "name": "node-1", "uid": "n", "controller": true});
    let with = |hash: &str, mirror: &str| of(node.clone(), hash, mirror);
    // Every user who creates a pod may write the annotations.
    for (key, value) in
        [("kind", json!("ReplicaSet")), ("apiVersion", json!("example.com/v1")), ("controller", Value::Null)]
    {
        let mut other = node.clone();
        other[key] = value;
        assert_eq!(of(other, HASH, HASH).cgroup_uid().as_str(), UID, "{key}");
    }
    assert_eq!(with(HASH, HASH).cgroup_uid().as_str(), HASH);
    let other = "11111111-0d2c-4b7f-9a51-2f1f6a1f8d11";
    for (hash, mirror) in [(HASH, "x"), ("", ""), (other, other), ("../../x", "../../x")] {
        assert_eq!(with(hash, mirror).cgroup_uid().as_str(), UID, "{hash} {mirror}");
    }
}

#[test]
fn the_fields_that_identify_a_pod_must_be_present_and_valid() {
    let with = |path: &str, value: Value| {
        let mut pod = whole();
        *pod.pointer_mut(path).unwrap() = value;
        read(&pod).unwrap_err().to_string()
    };
    assert!(with("/metadata/uid", json!("7")).starts_with("metadata.uid: not a pod UID"));
    assert!(with("/metadata/name", json!("")).starts_with("metadata.name is missing"));
    assert!(with("/metadata/name", json!("a\u{7}b")).starts_with("metadata.name"));
    assert!(with("/metadata/namespace", json!("n".repeat(254))).starts_with("metadata.namespace"));
    assert!(with("/spec/containers", json!("none")).starts_with("not the JSON of a pod"));
    assert!(read(&json!([])).is_err() && decode(b"\xff").is_err() && decode(b"").is_err());
}

/// `kubectl delete --grace-period=10000000000` gives such a time.
#[test]
fn a_pod_whose_deletion_time_cannot_be_read_is_being_deleted() {
    for time in ["1759-02-28T10:00:00Z", "soon", ""] {
        let mut pod = whole();
        pod["metadata"]["deletionTimestamp"] = json!(time);
        assert!(read(&pod).unwrap().deleted_at.is_some(), "{time}");
    }
}

#[test]
fn entries_beyond_the_bounds_are_counted() {
    let mut value = whole();
    value["metadata"]["annotations"] = json!({
        "hami.io/large": "x".repeat(MAX_ANNOTATIONS), "hami.io/small": "y", "other.io/large": "z".repeat(100_000),
    });
    let asks = json!({"limits": {"nvidia.com/gpu": "1", "example.com/none": "0"}});
    value["spec"]["containers"] = (0..200).map(|n| json!({"name": format!("c{n}"), "resources": asks})).collect();
    let limits: serde_json::Map<String, Value> = (0..40).map(|n| (format!("nvidia.com/mig-{n}"), json!("1"))).collect();
    value["spec"]["initContainers"] = json!([{"name": "i", "resources": {"limits": limits}}]);
    let pod = read(&value).unwrap();
    assert_eq!((pod.annotations.len(), pod.annotations_left_out), (1, 1));
    let left_out = LeftOutContainers { number: 73, resources: vec!["nvidia.com/gpu".into()], more_resources: false };
    assert_eq!((pod.containers.len(), pod.containers_left_out), (MAX_CONTAINERS, Some(Box::new(left_out))));
    assert_eq!((pod.containers[0].limits.len(), pod.containers[0].limits_left_out), (MAX_RESOURCES, 8));
    assert!(pod.containers[0].requests_left_out);
}

#[test]
fn a_container_beyond_the_bound_counts_only_with_what_it_requests() {
    let beyond = |limits: Value| {
        let mut value = whole();
        let named = |n: usize| json!({"name": format!("c{n}")});
        value["spec"]["containers"] = (0..MAX_CONTAINERS).map(named).collect();
        value["spec"]["containers"][MAX_CONTAINERS - 1]["resources"] = json!({"limits": limits});
        // With its two init containers, the pod has two containers more than are kept.
        read(&value).unwrap().containers_left_out
    };
    let zero = json!({"nvidia.com/gpu": "0", "a.example.com/b": "0k"});
    for none in [json!({}), json!({"cpu": "1", "memory": "1Gi"}), zero] {
        assert_eq!(beyond(none.clone()), None, "{none}");
    }
    let many = |resources: usize| -> Value {
        (0..resources).map(|n| (format!("a{n}.example.com/b"), json!("1"))).collect::<serde_json::Map<_, _>>().into()
    };
    let kept = *beyond(many(MAX_RESOURCES)).unwrap();
    assert_eq!((kept.number, kept.resources.len(), kept.more_resources), (1, MAX_RESOURCES, false));
    let more = *beyond(many(MAX_RESOURCES + 1)).unwrap();
    assert_eq!((more.number, more.resources.len(), more.more_resources), (1, MAX_RESOURCES, true));
    let long = *beyond(json!({"nvidia.com/gpu": "0".repeat(MAX_QUANTITY + 1)})).unwrap();
    assert_eq!((long.number, long.resources.len(), long.more_resources), (1, 0, true));
}

/// Resource names that sort before all others: a user could add them to hide the container's request.
#[test]
fn resources_with_amount_0_do_not_displace_requested_resources() {
    let mut value = whole();
    let mut limits: serde_json::Map<String, Value> =
        (0..100).map(|n| (format!("a{n}.example.com/none"), json!(["0", "0k", "0.000"][n % 3]))).collect();
    limits.insert("nvidia.com/gpu".into(), json!("1"));
    limits.insert("nvidia.com/gpumem".into(), json!("3k"));
    limits.insert("z.example.com/odd".into(), json!("lots"));
    value["spec"]["containers"][0]["resources"]["limits"] = limits.into();
    let main = &read(&value).unwrap().containers[2];
    for (name, amount) in [("nvidia.com/gpu", "1"), ("nvidia.com/gpumem", "3k"), ("z.example.com/odd", "lots")] {
        assert_eq!(main.limit(name), Some(amount));
    }
    assert_eq!((main.limits.len(), main.limits_left_out, main.requests_left_out), (MAX_RESOURCES, 71, false));
}

#[test]
fn ephemeral_containers_beyond_the_bound_are_not_counted() {
    let mut value = whole();
    value["spec"]["ephemeralContainers"] = (0..200).map(|n| json!({"name": format!("e{n}")})).collect();
    let pod = read(&value).unwrap();
    assert_eq!((pod.containers.len(), pod.containers_left_out), (MAX_CONTAINERS, None));
}

#[test]
fn annotations_that_users_may_write_do_not_displace_a_claim() {
    let mut value = whole();
    value["metadata"]["annotations"] = json!({
        "gpu-steward.io/a": "x".repeat(MAX_ANNOTATIONS - 300), "hami.io/vgpu-devices-allocated": "y".repeat(200),
        "hami.io/vgpu-node": "n", "nvidia.com/use-gputype": "H100",
    });
    let pod = read(&value).unwrap();
    let keys: Vec<&str> = pod.annotations.iter().map(|(key, _)| &**key).collect();
    assert_eq!(keys, ["hami.io/vgpu-devices-allocated", "hami.io/vgpu-node", "nvidia.com/use-gputype"]);
    assert_eq!((pod.annotations_left_out, pod.system_keys_left_out), (1, 0));
    let lengths = value["metadata"]["annotations"].as_object().unwrap().iter();
    let bytes: usize = lengths.map(|(key, value)| key.len() + value.as_str().unwrap().len()).sum();
    assert_eq!(pod.annotation_bytes as usize, bytes);
    value["metadata"]["annotations"]["hami.io/vgpu-devices-allocated"] = "y".repeat(MAX_ANNOTATIONS).into();
    let pod = read(&value).unwrap();
    assert_eq!((pod.annotations_left_out, pod.system_keys_left_out), (1, 1));
}

/// An annotation without a value takes far more memory than its key.
#[test]
fn each_annotation_counts_with_what_it_takes_beside_its_texts() {
    let mut value = whole();
    let mut annotations: serde_json::Map<String, Value> =
        (0..1640).map(|n| (format!("hami.io/{n:04}"), json!(""))).collect();
    annotations.insert("hami.io/vgpu-devices-allocated".into(), "y".repeat(200).into());
    value["metadata"]["annotations"] = annotations.into();
    let pod = read(&value).unwrap();
    let kept = (MAX_ANNOTATIONS - 200 - 30 - ANNOTATION_BYTES) / (12 + ANNOTATION_BYTES);
    assert_eq!((pod.annotations.len(), pod.annotations_left_out as usize), (kept + 1, 1640 - kept));
    assert_eq!(pod.annotations.capacity(), pod.annotations.len());
    assert!(pod.annotation("hami.io/vgpu-devices-allocated").is_some() && pod.system_keys_left_out == 0);
}

#[test]
fn of_keys_with_another_prefix_a_few_that_are_misspelt_are_kept_without_their_values() {
    let mut value = whole();
    let keys = (0..100).map(|number| (format!("nvida{number:02}.com/use-gputype"), json!("H100")));
    let long = format!("{}/use-gputype", "x".repeat(MAX_KEY));
    let others = [long, "example.com/other".to_owned()].map(|key| (key, json!("1")));
    let annotations: serde_json::Map<String, Value> = keys.chain(others).collect();
    let bytes: usize = annotations.iter().map(|(key, value)| key.len() + value.as_str().unwrap().len()).sum();
    value["metadata"]["annotations"] = annotations.into();
    let pod = read(&value).unwrap();
    assert_eq!(pod.annotations.len(), MAX_MISSPELT);
    assert!(pod.annotations.iter().all(|(key, value)| key.starts_with("nvida0") && value.is_empty()));
    assert_eq!((pod.annotations_left_out, pod.annotation_bytes as usize), (0, bytes));
}

#[test]
fn the_size_of_a_pod_counts_an_escaped_character_as_one_byte() {
    let small = whole();
    assert_eq!(read(&small).unwrap().bytes as usize, small.to_string().len());
    let large = |text: String| {
        let mut value = whole();
        value["spec"]["x"] = text.into();
        read(&value).unwrap().bytes as usize
    };
    let beside = large("y".repeat(2 << 20)) - (2 << 20);
    // JSON has six bytes for each of them.
    assert_eq!(large("\u{1}".repeat(1 << 20)), beside + (1 << 20));
    // Go writes this character as six bytes; three are stored.
    let mut value = whole();
    value["spec"]["x"] = "§".repeat(1 << 20).into();
    let text = value.to_string().replace('§', r"\u2028");
    assert_eq!(decode_text(&text, &[]).unwrap().bytes as usize, beside + 3 * (1 << 20));
    // A text that looks like an escape.
    assert_eq!(large(r"\u".repeat(3 << 18)), beside + (3 << 19));
    // Escapes also matter where only the status makes a pod large.
    let mut value = whole();
    value["spec"]["x"] = "\u{1}".repeat(100_000).into();
    value["spec"]["containers"][0]["image"] = "A".repeat(120_000).into();
    let bytes = read(&value).unwrap().bytes;
    assert!(bytes < 300_000, "{bytes}");
}

#[test]
fn managed_fields_are_counted_with_their_escapes() {
    let mut value = whole();
    value["metadata"]["managedFields"] = json!([{ "fieldsV1": { ("\u{1}".repeat(200_000)): {} } }]);
    assert!(read(&value).unwrap().bytes > 6 * 200_000, "etcd stores them as JSON");
    value["metadata"]["managedFields"] = Value::Null;
    value["metadata"]["annotations"]["a"] = "\u{1}".repeat(200_000).into();
    assert!(read(&value).unwrap().bytes < 2 * 200_000, "the value of an annotation is stored without its escapes");
}

#[test]
#[expect(clippy::too_many_lines, reason = "a table of cases")]
fn what_a_status_repeats_of_the_specification_is_counted_for_every_container() {
    let with = |path: &str, part: &Value| {
        let mut value = whole();
        let (parent, key) = path.rsplit_once('/').unwrap();
        value.pointer_mut(parent).unwrap()[key.replace("~1", "/")] = part.clone();
        read(&value).unwrap().status_bytes as usize
    };
    let before = read(&whole()).unwrap().status_bytes as usize;
    assert_eq!(before, 3 * 1024 + 9 * (7 + 7 + 7), "three containers, each with an image of seven characters");
    let image = json!("A".repeat(1007));
    let mounts = json!([{ "name": "v", "mountPath": format!("/{}", "a".repeat(1000)), "readOnly": true }]);
    let many: Value = (0..10_000).map(|n| json!({ "name": format!("c{n}") })).collect();
    for (path, part, more) in [
        ("/metadata/annotations/blockio.resources.beta.kubernetes.io~1pod", json!("a".repeat(300)), 3 * 5 * 300),
        ("/metadata/annotations/rdt.resources.beta.kubernetes.io~1container.main", json!("abc"), 3 * 5 * 3),
        ("/metadata/annotations/rdt.example.com~1pod", json!("abc"), 0),
        ("/spec/containers/0/image", image.clone(), 9 * 1000),
        ("/spec/initContainers/1/image", image.clone(), 9 * 1000),
        ("/spec/ephemeralContainers", json!([{ "name": "e", "image": image }]), 1024 + 9 * 1007),
        ("/spec/containers/0/volumeMounts", mounts, 6 * (4 + 1 + 9 + 1001 + 8 + 5 * 6)),
        ("/spec/containers/0/workingDir", json!("/abc"), 5 * (4 + 6)),
        ("/spec/containers/0/terminationMessagePath", json!("/abc"), 5 * (4 + 6)),
        (
            "/spec/containers/0/volumeDevices",
            json!([{ "name": "v", "devicePath": "/b" }]),
            5 * (4 + 1 + 10 + 2 + 4 * 6),
        ),
        (
            "/spec/containers/0/env",
            json!([{ "name": "NVIDIA_A", "value": "abc" }, { "name": "B", "value": "b" }]),
            5 * 3,
        ),
        ("/spec/containers/0/env", json!([{ "name": "CUDA_VERSION", "value": "x12" }]), 5 * 3),
        ("/spec/containers/0/env", json!([{ "name": "CUDA", "value": "x12" }]), 0),
        ("/spec/containers/0/command", json!(["abc", "defg"]), 5 * 3),
        ("/spec/containers/0/args", json!(["abcd", "e"]), 5 * 4),
        ("/spec/containers/0/args", json!(["$(A)"]), 5 * (4 + 4096)),
        (
            "/spec/containers/0/lifecycle",
            json!({ "postStart": { "exec": { "command": ["a"] } }, "preStop": { "exec": { "command": ["a"] } } }),
            5 * (12 + 3 * 6),
        ),
        (
            "/spec/containers/0/securityContext",
            json!({ "seccompProfile": { "localhostProfile": "a".repeat(1000) }, "capabilities": { "add": ["abc"] } }),
            5 * (16 + 1000 + 2 * 6 + 3),
        ),
        ("/spec/containers/0/resources/claims", json!([{ "name": "a" }]), 6 * (5 + 2 * 6)),
        ("/spec/volumes", json!([{ "name": "v", "image": { "reference": "abc" } }]), 3 * 9 * (9 + 3 + 2 * 6)),
        (
            "/spec/volumes",
            json!([{ "hostPath": { "path": "/ab" } }, { "hostPath": { "path": "/abc" } }, { "emptyDir": {} }]),
            3 * 5 * (4 + 4 + 2 * 6),
        ),
        ("/spec/containers/0/resources/requests", json!({ "a/b": "0", "a/cd": "0" }), 6 * (9 + 4 * 6)),
        ("/spec/securityContext", json!({ "supplementalGroups": [1, 2, 3] }), 3 * 6 * (18 + 4 * 6)),
        ("/spec/readinessGates", json!([{ "conditionType": "a" }]), 3 * (14 + 2 * 6)),
        // Also those that are not kept.
        ("/spec/containers", many, 9_999 * 1024 - 9 * 7),
    ] {
        assert_eq!(with(path, &part) - before, more, "{path}");
    }
    for path in [
        "containers/0/volumeMounts",
        "containers/0/env",
        "containers/0/envFrom",
        "containers/0/terminationMessagePath",
        "containers/0/volumeDevices",
        "containers/0/command",
        "containers/0/args",
        "containers/0/lifecycle",
        "containers/0/resources/requests",
        "securityContext",
        "readinessGates",
    ] {
        assert_eq!(with(&format!("/spec/{path}"), &Value::Null), before, "{path}");
    }
}

/// A runtime names a variable whose value has a zero byte, and the kubelet names the source of a value.
#[test]
fn the_longest_name_of_a_variable_is_counted_where_the_lists_are_long() {
    let with = |list: &str, value: &Value| {
        let mut pod = whole();
        pod["spec"]["containers"][0][list] = value.clone();
        read(&pod).unwrap().status_bytes as usize
    };
    let (before, long) = (read(&whole()).unwrap().status_bytes as usize, "a".repeat(20_000));
    let file = json!({ "fileKeyRef": { "volumeName": "v", "key": "k", "path": long } });
    for (list, value, more) in [
        ("env", json!([{ "name": long, "value": "\0" }, { "name": "B", "value": long }]), 20_006),
        ("env", json!([{ "name": "A", "valueFrom": file }]), 1 + 10 + 10 + 1 + 3 + 1 + 4 + 20_000 + 8 * 6),
        (
            "env",
            json!([{ "name": "A", "valueFrom": { "resourceFieldRef": { "containerName": long } } }]),
            20_030 + 4 * 6,
        ),
        ("envFrom", json!([{ "prefix": long, "configMapRef": { "name": "m" } }]), 20_006),
        ("env", json!([{ "name": "A", "value": long }]), 1 + 6),
        ("env", json!([{ "name": &long[..10_000], "value": "" }]), 0),
    ] {
        assert_eq!(with(list, &value) - before, 5 * more, "{list}");
    }
    // Lists that are short one by one.
    let mut pod = whole();
    let container = |n: usize| json!({ "name": format!("c{n}"), "env": [{ "name": "a".repeat(1000), "value": "" }] });
    pod["spec"]["containers"] = (0..100).map(container).collect();
    assert!(read(&pod).unwrap().status_bytes > 100 * 6000);
}

#[test]
fn a_path_in_a_volume_counts_as_long_as_its_variables_make_it() {
    let with = |expression: &str, value: &str| {
        let mut pod = whole();
        pod["spec"]["containers"][0]["env"] = json!([{ "name": "A", "value": value }]);
        pod["spec"]["containers"][0]["volumeMounts"] =
            json!([{ "name": "v", "subPathExpr": "b" }, { "name": "v", "subPathExpr": expression }]);
        read(&pod).unwrap().status_bytes as usize
    };
    let (before, value) = (with("$(A)", ""), "x".repeat(100_000));
    // Beside long lists, the name of the variable counts too.
    assert_eq!(with("$(A)", &value) - before, 100_000 + 5 * ("A".len() + 6));
    // The kubelet puts all of this into one message.
    assert!(with(&"$(A)".repeat(16), &value) > MAX_POD);
    assert!(with(&"a".repeat(16 * 4), &value) < before + 1000, "a variable that no path refers to");
}

/// A value of any shape in the place of any value of a pod.
fn any_value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        ".{0,20}".prop_map(Value::from),
        Just(json!("x".repeat(300))),
        Just(json!(UID)),
    ];
    leaf.prop_recursive(2, 8, 3, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..3).prop_map(Value::from),
            prop::collection::btree_map("[a-z./]{0,12}", inner, 0..3).prop_map(|map| map.into_iter().collect()),
        ]
    })
}

/// Every place of a value, as a pointer.
fn places(value: &Value, at: &str, out: &mut Vec<String>) {
    out.push(at.to_owned());
    match value {
        Value::Object(fields) => fields.iter().for_each(|(key, field)| {
            places(field, &format!("{at}/{}", key.replace('~', "~0").replace('/', "~1")), out)
        }),
        Value::Array(items) => items.iter().enumerate().for_each(|(n, item)| places(item, &format!("{at}/{n}"), out)),
        _ => {}
    }
}

proptest! {
    /// Promise 18 in docs/specification.md.
    #[test]
    fn no_bytes_cause_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let _ = decode(&bytes);
    }

    #[test]
    fn the_status_of_a_pod_is_not_counted_too_small(
        images in prop::collection::vec(".{0,40}", 0..200), paths in prop::collection::vec("/.{0,20}", 0..10),
    ) {
        let mounts: Vec<Value> = paths.iter().map(|path| json!({ "name": "v", "mountPath": path })).collect();
        let container = |image: &String| json!({ "name": "c", "image": image, "volumeMounts": mounts });
        let mut value = whole();
        value["spec"]["initContainers"] = Value::Null;
        value["spec"]["containers"] = images.iter().map(container).collect();
        let mounted: usize = paths.iter().map(String::len).sum();
        let repeated: usize = images.iter().map(|image| 1024 + 9 * image.len() + mounted).sum();
        prop_assert!(read(&value).unwrap().status_bytes as usize >= repeated);
    }

    #[test]
    fn any_content_of_a_pod_is_kept_within_bounds_or_refused(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any_value()), 1..6),
    ) {
        let mut value = whole();
        for (place, any_value) in changes {
            let mut all = Vec::new();
            places(&value, "", &mut all);
            *value.pointer_mut(place.get::<String>(&all)).unwrap() = any_value;
        }
        if let Ok(pod) = read(&value) {
            let names = [&pod.name.name, &pod.name.namespace];
            let names = names.into_iter().chain(pod.containers.iter().map(|container| &container.name));
            for name in names {
                prop_assert!(!name.is_empty() && name.len() <= MAX_NAME && !name.contains(char::is_control));
            }
            let size: usize = pod.annotations.iter().map(|(key, value)| key.len() + value.len()).sum();
            prop_assert!(size <= MAX_ANNOTATIONS && pod.containers.len() <= MAX_CONTAINERS);
            prop_assert!(pod.annotations.len() <= MAX_ANNOTATIONS / ANNOTATION_BYTES + MAX_MISSPELT);
            prop_assert!(pod.annotations.is_sorted());
        }
    }
}
