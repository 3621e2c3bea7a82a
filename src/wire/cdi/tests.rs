//! CDI specs: nvidia-ctk's spec, the specs of tickets, and specs that no runtime accepts.

use super::*;
use proptest::prelude::*;
use serde_json::json;

/// nvidia-ctk's spec, cut to one entry of each kind.
fn nvidia() -> Value {
    json!({
        "cdiVersion": "0.5.0",
        "kind": "nvidia.com/gpu",
        "devices": [
            {"name": "0", "containerEdits": {"deviceNodes": [{"path": "/dev/nvidia0"}]}},
            {"name": "all", "containerEdits": {"deviceNodes": [{"path": "/dev/nvidia0"}], "hooks": null}},
        ],
        "containerEdits": {
            "env": ["NVIDIA_VISIBLE_DEVICES=void"],
            "deviceNodes": [{"path": "/dev/nvidiactl"}, {"path": "/dev/nvidia-uvm", "hostPath": "/dev/nvidia-uvm", "fileMode": 438}],
            "hooks": [{"hookName": "createContainer", "path": "/usr/bin/nvidia-cdi-hook",
                       "args": ["nvidia-cdi-hook", "update-ldcache", "--folder", "/usr/lib"], "env": ["NVIDIA_CTK_DEBUG=false"]}],
            "mounts": [{"hostPath": "/usr/lib/libcuda.so.1", "containerPath": "/usr/lib/libcuda.so.1",
                        "options": ["ro", "nosuid", "nodev", "rbind", "rprivate"]}],
        },
    })
}

fn ticket(edits: CdiEdits) -> CdiSpec {
    CdiSpec::of_device("gpu-steward.io/gpu", "t00000000000000000000000000000000", edits, CdiVersion::OLDEST)
}

#[test]
fn the_spec_of_a_ticket_has_the_edits_for_all_gpus() {
    let source = of_value(nvidia()).unwrap();
    assert_eq!(decode(nvidia().to_string().as_bytes()).unwrap(), source);
    let mut edits = source.container_edits.clone();
    edits.add(&source.device("0").unwrap().container_edits);
    edits.add(&CdiEdits {
        env: vec!["NVIDIA_VISIBLE_DEVICES=GPU-a".into(), "CUDA_DEVICE_MEMORY_LIMIT_0=3000m".into()],
        mounts: vec![CdiMount::read_only("/run/x/limits.json", "/etc/gpu-steward/limits.json")],
        ..CdiEdits::default()
    });
    edits.add(&source.container_edits.clone());
    edits.add(&CdiEdits { env: vec!["NVIDIA_VISIBLE_DEVICES=GPU-a".into()], ..CdiEdits::default() });
    let text = encode(&CdiSpec::of_device("gpu-steward.io/gpu", "t0", edits, source.cdi_version), None).unwrap();
    let expected = concat!(
        r#"{"cdiVersion":"0.5.0","kind":"gpu-steward.io/gpu","devices":[{"name":"t0","containerEdits":{"#,
        r#""env":["CUDA_DEVICE_MEMORY_LIMIT_0=3000m","NVIDIA_VISIBLE_DEVICES=GPU-a"],"#,
        r#""deviceNodes":[{"path":"/dev/nvidia0"},{"path":"/dev/nvidiactl"},{"path":"/dev/nvidia-uvm","hostPath":"/dev/nvidia-uvm","fileMode":438}],"#,
        r#""mounts":[{"hostPath":"/run/x/limits.json","containerPath":"/etc/gpu-steward/limits.json","options":["ro","nosuid","nodev","bind"]},"#,
        r#"{"hostPath":"/usr/lib/libcuda.so.1","containerPath":"/usr/lib/libcuda.so.1","options":["ro","nosuid","nodev","rbind","rprivate"]}],"#,
        r#""hooks":[{"hookName":"createContainer","path":"/usr/bin/nvidia-cdi-hook","#,
        r#""args":["nvidia-cdi-hook","update-ldcache","--folder","/usr/lib"],"env":["NVIDIA_CTK_DEBUG=false"]}]}}]}"#,
        "\n"
    );
    assert_eq!(text, expected);
}

#[test]
fn the_spec_of_nvidia_ctk_is_read_without_loss() {
    let source = decode(include_bytes!("../../../tests/golden/cdi/nvidia-ctk.json")).unwrap();
    let yaml = include_str!("../../../tests/golden/cdi/nvidia-ctk.yaml");
    assert_eq!(of_value(serde_saphyr::from_str(yaml).unwrap()).unwrap(), source);
    assert_eq!((source.kind.as_str(), source.devices.len()), ("nvidia.com/gpu", 1));
    let (shared, all) = (&source.container_edits, &source.device("all").unwrap().container_edits);
    assert_eq!((shared.env.len(), shared.hooks.len(), shared.mounts.len(), all.device_nodes.len()), (1, 2, 10, 6));
    assert!(shared.other.is_empty() && all.other.is_empty());

    let mut edits = shared.clone();
    edits.add(all);
    let text = encode(&CdiSpec::of_device("gpu-steward.io/gpu", "t0", edits, source.cdi_version), None).unwrap();
    let again: Value = serde_json::from_str(&text).unwrap();
    let given: Value = serde_json::from_slice(include_bytes!("../../../tests/golden/cdi/nvidia-ctk.json")).unwrap();
    assert_eq!(again["cdiVersion"], given["cdiVersion"]);
    let inlined = &again["devices"][0]["containerEdits"];
    for kind in ["env", "hooks", "mounts"] {
        assert_eq!(inlined[kind], given["containerEdits"][kind], "{kind}");
    }
    assert_eq!(inlined["deviceNodes"], given["devices"][0]["containerEdits"]["deviceNodes"]);
}

#[test]
fn the_lowest_version_that_fits_is_written() {
    let written = |edits: Value| {
        let edits: CdiEdits = serde_json::from_value(edits).unwrap();
        let text = encode(&CdiSpec { cdi_version: CdiVersion::new(9, 9), ..ticket(edits) }, None).unwrap();
        serde_json::from_str::<Value>(&text).unwrap()["cdiVersion"].as_str().unwrap().to_owned()
    };
    for (edits, version) in [
        (json!({"env": ["A=b"], "deviceNodes": [{"path": "/dev/nvidia0", "permissions": "rw", "type": "c"}]}), "0.3.0"),
        (json!({"mounts": [{"hostPath": "/a", "containerPath": "/b", "type": "bind"}]}), "0.4.0"),
        (json!({"deviceNodes": [{"path": "/dev/a", "hostPath": "/dev/b"}]}), "0.5.0"),
        (json!({"additionalGids": [44]}), "0.7.0"),
        (json!({"netDevices": []}), "1.1.0"),
        (json!({"somethingNew": {"a": 1}}), "9.9.0"),
        (json!({"mounts": [{"hostPath": "/a", "containerPath": "/b", "new": 1}]}), "9.9.0"),
        (json!({"hooks": [{"hookName": "poststop", "path": "/a", "new": 1}]}), "9.9.0"),
        (json!({"deviceNodes": [{"path": "/a", "new": 1}]}), "9.9.0"),
    ] {
        assert_eq!(written(edits.clone()), version, "{edits}");
    }
    let one = || ticket(CdiEdits { env: vec!["A=b".into()], ..CdiEdits::default() });
    let of = |spec: CdiSpec| lowest::version(&spec).to_string();
    assert_eq!(of(CdiSpec { kind: "a/b.c".into(), ..one() }), "0.6.0");
    assert_eq!(of(CdiSpec { annotations: [("a".to_owned(), "b".to_owned())].into(), ..one() }), "0.6.0");
    assert_eq!(
        of(CdiSpec { devices: of_value(nvidia()).unwrap().devices, ..one() }),
        "0.5.0",
        "a name that begins with a digit"
    );
}

/// containerd 1.7.2 reads 0.5, 1.7.13 reads 0.6, 1.7.20 reads 0.7.
#[test]
fn a_spec_has_only_what_the_runtime_reads_or_is_not_written() {
    let edits = |value: Value| serde_json::from_value::<CdiEdits>(value).unwrap();
    let host = || {
        edits(json!({
            "deviceNodes": [{"path": "/dev/nvidia0", "hostPath": "/run/nvidia/driver/dev/nvidia0"}],
            "additionalGids": [44, 110], "intelRdt": {"closID": "a"},
        }))
    };
    let carried = CdiVersion::new(0, 7);
    for (newest, left_out) in
        [(5, &["additionalGids", "intelRdt"][..]), (6, &["additionalGids", "intelRdt"]), (7, &[]), (8, &[])]
    {
        let newest = CdiVersion::new(0, newest);
        let mut own = host();
        assert_eq!(own.leave_out(carried, newest), left_out);
        assert_eq!(own.unreadable(carried, newest), None);
        let spec = CdiSpec { cdi_version: carried, ..ticket(own) };
        let written: Value = serde_json::from_str(&encode(&spec, Some(newest)).unwrap()).unwrap();
        let version = if left_out.is_empty() { "0.7.0" } else { "0.5.0" };
        assert_eq!(written["cdiVersion"], version, "the lowest version that the rest needs");
        let text = written.to_string();
        assert!(left_out.iter().all(|key| !text.contains(key)), "{text}");
    }
    for (more, field, needs) in [
        (json!({"netDevices": []}), "netDevices", CdiVersion::new(1, 1)),
        (json!({"hooks": [{"hookName": "poststop", "path": "/a", "new": 1}]}), "new", carried),
        (json!({"mounts": [{"hostPath": "/a", "containerPath": "/b", "new": 1}]}), "new", carried),
        (json!({"deviceNodes": [{"path": "/a", "new": 1}]}), "new", carried),
        (json!({"later": 1}), "later", carried),
    ] {
        let mut own = edits(more);
        let newest = CdiVersion::new(0, 6);
        assert!(own.leave_out(carried, newest).is_empty(), "the container may need it");
        assert_eq!(own.unreadable(carried, newest), Some((field, needs)));
        let why = encode(&CdiSpec { cdi_version: carried, ..ticket(own) }, Some(newest)).unwrap_err();
        assert!(why.what.ends_with("and the container runtime reads CDI up to 0.6.0"), "{why}");
    }
}

#[test]
fn unknown_edits_are_kept() {
    let mut value = nvidia();
    value["containerEdits"]["netDevices"] = json!([{"hostInterfaceName": "eth0", "name": "net0"}]);
    value["cdiVersion"] = json!("v1.1.0");
    let spec = of_value(value).unwrap();
    let mut edits = CdiEdits::default();
    edits.add(&spec.container_edits);
    let again = decode(encode(&ticket(edits), None).unwrap().as_bytes()).unwrap();
    assert_eq!(again.devices[0].container_edits.other, spec.container_edits.other);
    assert_eq!(again.cdi_version, CdiVersion::new(1, 1));
}

#[test]
fn later_edits_override_earlier_ones() {
    let set = |env: &[&str]| CdiEdits { env: env.iter().map(|one| (*one).to_owned()).collect(), ..CdiEdits::default() };
    let mut edits = set(&["A=1", "B=2", "A=3"]);
    edits.add(&set(&["C=4", "A=5", "C=6"]));
    assert_eq!(edits, set(&["B=2", "A=5", "C=6"]));
    assert!(CdiEdits::default().is_empty() && !edits.is_empty());
}

#[test]
fn a_spec_that_no_runtime_accepts_is_refused_with_the_faulty_field() {
    let broken = |pointer: &str, to: Value| {
        let mut value = nvidia();
        *value.pointer_mut(pointer).unwrap() = to;
        of_value(value).unwrap_err().what
    };
    for (pointer, to, what) in [
        ("/cdiVersion", json!("1"), "not a version of three numbers: \"1\""),
        ("/cdiVersion", json!("1.0.0.0"), "not a version"),
        ("/cdiVersion", json!("99999.0.0"), "not a version"),
        ("/kind", json!("gpu"), "kind is not vendor/class: \"gpu\""),
        ("/kind", json!("nvidia.com/gpu/x"), "kind is not"),
        ("/kind", json!("-a/gpu"), "kind is not"),
        ("/kind", json!("a/0gpu"), "kind is not"),
        ("/kind", json!(format!("a/{}", "g".repeat(64))), "kind is not"),
        ("/devices", json!([]), "has 0 devices where 1 to 1024 are expected"),
        ("/devices", json!(null), "has 0 devices"),
        ("/devices/0/name", json!(""), "is not the name of a device: \"\""),
        ("/devices/0/name", json!("a/b"), "is not the name of a device"),
        ("/devices/0/name", json!("all"), "device \"all\" appears twice"),
        ("/devices/0/containerEdits", json!({}), "device \"0\" has no edits"),
        ("/containerEdits/env/0", json!("A"), "containerEdits: env is not NAME=value: \"A\""),
        ("/containerEdits/env/0", json!("=A"), "env is not NAME=value"),
        ("/containerEdits/deviceNodes/0/path", json!("dev"), "path of a device node is not an absolute path: \"dev\""),
        ("/containerEdits/mounts/0/containerPath", json!("x"), "containerPath of a mount is not"),
        ("/containerEdits/mounts/0/hostPath", json!(""), "hostPath of the mount at"),
        ("/containerEdits/hooks/0/hookName", json!("now"), "hookName is not the name of a CDI hook: \"now\""),
        ("/containerEdits/hooks/0/path", json!("a"), "path of a hook is not"),
        ("/devices/0/containerEdits/deviceNodes/0", json!({"path": "/a", "type": "x"}), "type of \"/a\" is not b"),
        ("/devices/0/containerEdits/deviceNodes/0", json!({"path": "/a", "permissions": "x"}), "permissions of \"/a\""),
        ("/devices/0/containerEdits/deviceNodes/0", json!({"path": "/a", "hostPath": ""}), "hostPath of a device node"),
        ("/containerEdits/env", json!(vec!["A=b"; 4097]), "has more than 4096 edits"),
    ] {
        let found = broken(pointer, to.clone());
        assert!(found.contains(what), "{pointer} = {to}: {found}");
    }
    assert!(decode(b"{}").unwrap_err().what.contains("missing field `cdiVersion`"));
    assert!(decode(&vec![b' '; MAX_BYTES + 1]).unwrap_err().what.contains("bytes long"));
    assert!(encode(&ticket(CdiEdits::default()), None).unwrap_err().what.contains("has no edits"));
    let huge = CdiEdits { env: vec![format!("A={}", "b".repeat(MAX_BYTES))], ..CdiEdits::default() };
    assert!(encode(&ticket(huge), None).unwrap_err().what.contains("bytes long"));
}

proptest! {
    #[test]
    fn no_input_causes_a_panic(bytes: Vec<u8>) {
        let _ = decode(&bytes);
    }

    #[test]
    fn no_similar_input_causes_a_panic(
        version in "v?[0-9.]{0,9}", kind in "[a-z./]{0,9}", name in "[a-z0-9:]{0,4}", env in "[A-Z=]{0,4}", path in "/?[a-z]{0,4}",
    ) {
        let value = json!({"cdiVersion": version, "kind": kind, "devices": [{"name": name, "containerEdits": {
            "env": [env], "deviceNodes": [{"path": path}]}}]});
        if let Ok(spec) = of_value(value) {
            let written = encode(&spec, None).unwrap();
            let again = decode(written.as_bytes()).unwrap();
            prop_assert_eq!(&again.devices, &spec.devices);
            prop_assert!(again.cdi_version <= CdiVersion::new(0, 6));
            prop_assert_eq!(encode(&again, None).unwrap(), written);
        }
    }

    #[test]
    fn adding_the_same_edits_twice_changes_nothing(env in prop::collection::vec("[ABC]=[0-9]", 0..6), paths in prop::collection::vec("/[abc]", 0..6)) {
        let more = CdiEdits { env, device_nodes: paths.iter().map(|path| CdiDeviceNode::at(path)).collect(), ..CdiEdits::default() };
        let mut once = CdiEdits::default();
        once.add(&more);
        let mut twice = once.clone();
        twice.add(&more);
        prop_assert_eq!(once, twice);
    }
}
