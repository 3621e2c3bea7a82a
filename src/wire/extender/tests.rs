use super::*;
use crate::annotation_keys::REGISTER;
use model::followed_node::MAX_CLUSTER_NODES;
use model::pod::MAX_POD_OBJECTS;
use proptest::prelude::*;
use serde_json::{Value, json};
use std::borrow::Cow;

const UID: &str = "0f5b9a3e-0d2c-4b7f-9a51-2f1f6a1f8d11";
const OTHER: &str = "1f5b9a3e-0d2c-4b7f-9a51-2f1f6a1f8d11";

fn pod() -> Value {
    json!({
        "metadata": { "name": "train", "namespace": "ml", "uid": UID },
        "spec": { "containers": [{ "name": "main", "resources": { "limits": { "nvidia.com/gpu": "1" } } }] },
    })
}

fn of_names(names: &[&str]) -> String {
    json!({ "Pod": pod(), "Nodes": null, "NodeNames": names }).to_string()
}

fn names(args: &ExtenderArgs<'_>) -> Vec<String> {
    args.nodes.names().map(ToOwned::to_owned).collect()
}

fn value(text: &str) -> Value {
    serde_json::from_str(text).unwrap()
}

fn failed(place: usize, reason: &str, unresolvable: bool) -> FailedNode<'_> {
    FailedNode { place, reason, unresolvable }
}

#[test]
fn names_of_fields_are_read_in_upper_and_lower_case() {
    for [pod_field, nodes, list] in
        [["Pod", "Nodes", "NodeNames"], ["pod", "nodes", "nodeNames"], ["POD", "NODES", "nodenames"]]
    {
        let text = json!({ pod_field: pod(), nodes: null, list: ["n1", "n2"], "More": [1, {"a": null}] }).to_string();
        let args = decode_args(text.as_bytes()).unwrap();
        assert_eq!(names(&args), ["n1", "n2"]);
        assert_eq!((args.pod.uid.as_str(), args.pod.name.to_string()), (UID, "ml/train".into()));
        assert_eq!(args.pod.containers[0].limit("nvidia.com/gpu"), Some("1"));
    }
    for text in [
        json!({ "podName": "train", "podNamespace": "ml", "podUID": UID, "node": "n1" }),
        json!({ "PodName": "train", "PodNamespace": "ml", "podUid": UID, "Node": "n1", "Next": null }),
    ] {
        let args = decode_binding(text.to_string().as_bytes()).unwrap();
        assert_eq!((args.uid.as_str(), args.pod.to_string(), args.node.as_str()), (UID, "ml/train".into(), "n1"));
    }
}

#[test]
fn names_of_nodes_are_borrowed_from_the_message() {
    let text = of_names(&["n1", "n2"]).replace("n2", "n\\u0032");
    let args = decode_args(text.as_bytes()).unwrap();
    let CandidateNodes::Names(list) = &args.nodes else { panic!("{:?}", args.nodes) };
    assert!(matches!(&list.names[..], [Cow::Borrowed("n1"), Cow::Owned(second)] if second == "n2"));
}

#[test]
fn names_are_answered_as_they_stand_in_the_call_whatever_is_between_them() {
    let reason = "a \"reason\"";
    for list in [
        r#"["n1","n2","n3","n4"]"#,
        r#"[ "n1" , "n2","n3",
             "n4" ]"#,
        r#"["n1","n\u0032","n3","n4"]"#,
        r#"["n1","n2"  ,"n3","\u006e4"]"#,
    ] {
        let call = of_names(&[]).replace("[]", list);
        let args = decode_args(call.as_bytes()).unwrap();
        for (fit, rest) in
            [(vec![0, 1, 2, 3], vec![]), (vec![0, 2, 3], vec![1]), (vec![3, 1, 2], vec![0]), (vec![1], vec![3, 2, 9])]
        {
            let failed: Vec<FailedNode<'_>> = rest.iter().map(|place| failed(*place, reason, false)).collect();
            let answer = value(&encode_filter(&args.nodes, &fit, &failed));
            let name = |place: &usize| format!("n{}", place + 1);
            assert_eq!(answer["NodeNames"], json!(fit.iter().map(name).collect::<Vec<_>>()), "{list}");
            let named = rest.iter().filter(|place| **place < 4).map(|place| (name(place), reason.into()));
            let named: serde_json::Map<String, Value> = named.collect();
            assert_eq!(answer["FailedNodes"], if named.is_empty() { Value::Null } else { named.into() }, "{list}");
        }
    }
}

#[test]
fn a_call_without_nodes_has_no_names() {
    for text in [
        json!({ "Pod": pod() }),
        json!({ "Pod": pod(), "Nodes": null, "NodeNames": null }),
        json!({ "Pod": pod(), "Nodes": { "items": null } }),
    ] {
        let text = text.to_string();
        let args = decode_args(text.as_bytes()).unwrap();
        assert!(args.nodes.is_empty() && args.nodes.name(0).is_none());
        assert_eq!(encode_scores(&args.nodes, &[]), "[]");
    }
}

#[test]
fn whole_nodes_come_back_unchanged() {
    let register = r#"[{"id":"GPU-1","count":10}]"#;
    let first = format!(
        r#"{{ "metadata" : {{"name":"n1","labels":{{"a":"b"}},"annotations":{{"x":"y","{REGISTER}":{}}}}},  "status":{{"n":1.50}}}}"#,
        Value::from(register)
    );
    let second = r#"{"metadata":{"name":"n\u0032","annotations":null}}"#;
    let text = format!(r#"{{"Pod":{},"nodes":{{"metadata":{{}},"Items":[{first},{second}]}}}}"#, pod());
    let args = decode_args(text.as_bytes()).unwrap();
    assert_eq!(names(&args), ["n1", "n2"]);
    let CandidateNodes::Objects(nodes) = &args.nodes else { panic!("{:?}", args.nodes) };
    assert_eq!((nodes[0].register.as_deref(), nodes[1].register.as_deref()), (Some(register), None));
    let answer = encode_filter(&args.nodes, &[1, 0], &[]);
    assert_eq!(
        answer,
        format!(
            r#"{{"Nodes":{{"metadata":{{}},"items":[{second},{first}]}},"NodeNames":null,"FailedNodes":null,"FailedAndUnresolvableNodes":null,"Error":""}}"#
        )
    );
    let answer = value(&encode_filter(&args.nodes, &[], &[failed(1, "no", false)]));
    assert_eq!((&answer["Nodes"], &answer["FailedNodes"]), (&Value::Null, &json!({ "n2": "no" })));
    assert_eq!(encode_scores(&args.nodes, &[7, -1]), r#"[{"Host":"n1","Score":7},{"Host":"n2","Score":-1}]"#);
}

#[test]
fn answers_have_the_names_and_the_reasons_of_the_nodes() {
    let text = of_names(&["n1", "n2", "n\"3", "n4"]);
    let args = decode_args(text.as_bytes()).unwrap();
    let reasons =
        [failed(2, "a \"b\"\n", false), failed(3, "gone", true), failed(0, "busy", false), failed(9, "", true)];
    let answer = value(&encode_filter(&args.nodes, &[1, 2, 9], &reasons));
    assert_eq!(
        answer,
        json!({
            "Nodes": null, "NodeNames": ["n2", "n\"3"], "FailedNodes": { "n\"3": "a \"b\"\n", "n1": "busy" },
            "FailedAndUnresolvableNodes": { "n4": "gone" }, "Error": "",
        })
    );
    let answer = value(&encode_filter(&args.nodes, &[], &[]));
    assert_eq!(answer, value(&encode_filter_error("")), "no node fits and none is refused");
    assert_eq!(value(&encode_filter_error("a\"b"))["Error"], "a\"b");
    assert_eq!(encode_binding_error(""), r#"{"Error":""}"#);
    assert_eq!(encode_binding_error("n1 is \"full\""), r#"{"Error":"n1 is \"full\""}"#);
    let scores = value(&encode_scores(&args.nodes, &[i64::MAX, 0, -3, i64::MIN]));
    assert_eq!((&scores[2]["Host"], &scores[3]["Score"]), (&json!("n\"3"), &json!(i64::MIN)));
}

/// A text that was reallocated while it grew would have up to twice the capacity that it needs.
#[test]
fn an_answer_of_names_is_written_into_one_allocation() {
    let all: Vec<String> = (0..500).map(|number| format!("node-{number}")).collect();
    let text = of_names(&all.iter().map(String::as_str).collect::<Vec<_>>());
    let args = decode_args(text.as_bytes()).unwrap();
    let (fit, rest): (Vec<usize>, Vec<usize>) = (0..500).partition(|place| place % 3 == 0);
    let rest: Vec<FailedNode<'_>> = rest.iter().map(|place| failed(*place, "busy", place % 2 == 0)).collect();
    let answer = encode_filter(&args.nodes, &fit, &rest);
    assert!(answer.capacity() - answer.len() <= 128, "{} of {}", answer.len(), answer.capacity());
    let answer = encode_scores(&args.nodes, &[12_345; 500]);
    assert!(answer.capacity() - answer.len() <= 500 * 10, "{} of {}", answer.len(), answer.capacity());
}

#[test]
fn a_fault_is_reported_with_its_byte() {
    let text = of_names(&["n1", "n2"]);
    let at = |part: &str| text.find(part).unwrap();
    let second_list = at("\"Nodes\"") + "\"nodenames\"".len();
    for (broken, byte, what) in [
        (text.replace("\"n2\"", "7"), at("\"n2\"") + 1, "invalid type: integer `7`, expected a string"),
        (text.replace(UID, "no"), at("{\"metadata"), "Pod: metadata.uid: not a pod UID"),
        (text.replace("\"Pod\"", "\"Pods\""), 0, "has no Pod"),
        (text.replace("\"Nodes\"", "\"nodenames\""), second_list, "duplicate field `NodeNames`"),
        (text.replace("null", r#"{"items":[{"metadata":{"name":"a"}}]}"#), 0, "has both Nodes and NodeNames"),
        (text.clone() + "x", text.len() + 1, "trailing characters"),
        (text.replace("[\"n1\",\"n2\"]", "{}"), at("[\"n1"), "expected a list"),
        ("[]".into(), 2, "invalid type: sequence, expected the object ExtenderArgs"),
        (String::new(), 0, "EOF"),
    ] {
        let fault = decode_args(broken.as_bytes()).unwrap_err();
        assert!(fault.key == "ExtenderArgs" && fault.what.contains(what) && fault.at == byte, "{byte}: {fault}");
    }
    let object = r#"{"metadata":{"name":"n1","annotations":{"a":"b","hami.io/node-nvidia-register":7}}}"#;
    let text = format!(r#"{{"Pod":{},"Nodes":{{"items":[{object}]}}}}"#, pod());
    let fault = decode_args(text.as_bytes()).unwrap_err();
    assert_eq!(fault.at, text.find(":7}").unwrap() + 2, "{fault}");
    let fault = decode_args(b"{\"Pod\":\"\xff\"}").unwrap_err();
    assert_eq!((fault.at, &*fault.what), (8, "is not UTF-8"));
}

#[test]
fn a_call_beyond_its_bounds_is_refused() {
    let short: Vec<&str> = vec!["n"; MAX_CLUSTER_NODES + 1];
    let fault = decode_args(of_names(&short).as_bytes()).unwrap_err();
    assert!(fault.what.contains("has more than 15000 nodes"), "{fault}");
    assert_eq!(decode_args(of_names(&short[1..]).as_bytes()).unwrap().nodes.len(), MAX_CLUSTER_NODES);
    let object = json!({ "metadata": { "name": "n" } });
    let objects = json!({ "Pod": pod(), "Nodes": { "items": vec![object; MAX_CLUSTER_NODES + 1] } }).to_string();
    assert!(decode_args(objects.as_bytes()).unwrap_err().what.contains("has more than 15000 nodes"));
    let long = vec![b' '; MAX_EXTENDER_ARGS + 1];
    for (fault, most) in [
        (decode_args(&long).unwrap_err(), MAX_EXTENDER_ARGS),
        (decode_preemption(&long).unwrap_err(), MAX_EXTENDER_ARGS),
        (decode_binding(&long).unwrap_err(), MAX_BINDING_ARGS),
    ] {
        assert!(fault.at == most && fault.what.contains("bytes long"), "{fault}");
    }
    let names = ["n".repeat(253); 1].concat();
    let all: Vec<&str> = vec![&names; MAX_CLUSTER_NODES];
    assert!(of_names(&all).len() + (9 << 20) < MAX_EXTENDER_ARGS, "the longest names and the largest pod fit");
}

#[test]
fn a_bind_call_with_a_name_that_is_none_is_refused() {
    let whole = json!({ "PodName": "train", "PodNamespace": "ml", "PodUID": UID, "Node": "n1" });
    for (field, bad, what) in [
        ("PodName", Value::Null, "PodName is missing or not a valid name"),
        ("PodNamespace", json!("a b"), "PodNamespace is missing or not a valid name"),
        ("PodUID", json!("7"), "PodUID: not a pod UID: \"7\""),
        ("Node", json!(""), "Node: not a node name"),
        ("Node", json!(7), "expected a string"),
    ] {
        let mut text = whole.clone();
        text[field] = bad;
        let fault = decode_binding(text.to_string().as_bytes()).unwrap_err();
        assert!(fault.key == "ExtenderBindingArgs" && fault.what.contains(what), "{fault}");
    }
}

#[test]
fn victims_are_read_as_uids_and_as_whole_pods() {
    let meta = json!({ "Pod": pod(), "NodeNameToVictims": null, "NodeNameToMetaVictims": {
        "n2": { "Pods": [{ "UID": OTHER }, { "uid": UID }], "NumPDBViolations": 1 }, "n1": { "Pods": null }, "n3": null,
    } });
    let whole = json!({ "pod": pod(), "nodeNameToVictims": {
        "n2": { "pods": [{ "metadata": { "uid": OTHER }, "spec": {} }, pod()], "numPDBViolations": 1 }, "n1": {}, "n3": null,
    } });
    for text in [meta, whole] {
        let text = text.to_string();
        let args = decode_preemption(text.as_bytes()).unwrap();
        assert_eq!(args.pod.uid.as_str(), UID);
        let found = |node: &str| args.nodes.iter().find(|victims| victims.node == node).unwrap();
        let uids: Vec<&str> = found("n2").pods.iter().map(|uid| uid.as_str()).collect();
        assert_eq!((uids, found("n2").pdb_violations), (vec![OTHER, UID], 1));
        assert!(found("n1").pods.is_empty() && found("n3").pods.is_empty());
        assert!(args.nodes.iter().all(|victims| matches!(victims.node, Cow::Borrowed(_))));
        let answer = encode_preemption(std::slice::from_ref(found("n2")));
        let expected = json!({ "NodeNameToMetaVictims": {
            "n2": { "Pods": [{ "UID": OTHER }, { "UID": UID }], "NumPDBViolations": 1 },
        } });
        assert_eq!(value(&answer), expected);
    }
    assert_eq!(encode_preemption(&[]), r#"{"NodeNameToMetaVictims":{}}"#);
}

/// Anyone who may create pods can make so many.
#[test]
fn a_node_with_more_victims_than_pods_are_kept_is_left_out() {
    let many = |count: usize| json!({ "Pods": vec![json!({ "UID": UID }); count] });
    let victims = json!({ "n1": many(MAX_POD_OBJECTS + 1), "n2": many(MAX_POD_OBJECTS), "n3": many(1) });
    let text = json!({ "Pod": pod(), "NodeNameToMetaVictims": victims }).to_string();
    let nodes = decode_preemption(text.as_bytes()).unwrap().nodes;
    assert_eq!(nodes.iter().map(|node| &*node.node).collect::<Vec<_>>(), ["n2", "n3"]);
}

#[test]
fn victims_that_cannot_be_read_are_refused() {
    let of = |victims: Value| json!({ "Pod": pod(), "NodeNameToMetaVictims": { "n1": victims } }).to_string();
    for (text, what) in [
        (of(json!({ "Pods": [{ "UID": "7" }] })), "not a pod UID: \"7\""),
        (of(json!({ "Pods": [{}] })), "missing field `UID`"),
        (json!({ "NodeNameToMetaVictims": {} }).to_string(), "has no Pod"),
        (
            json!({ "Pod": pod(), "NodeNameToMetaVictims": { "n1": null }, "NodeNameToVictims": { "n1": null } })
                .to_string(),
            "has both NodeNameToVictims and NodeNameToMetaVictims",
        ),
    ] {
        let fault = decode_preemption(text.as_bytes()).unwrap_err();
        assert!(fault.key == "ExtenderPreemptionArgs" && fault.what.contains(what), "{fault}");
    }
    let nodes: serde_json::Map<String, Value> =
        (0..=MAX_CLUSTER_NODES).map(|number| (format!("n{number}"), Value::Null)).collect();
    let text = json!({ "Pod": pod(), "NodeNameToMetaVictims": nodes }).to_string();
    assert!(decode_preemption(text.as_bytes()).unwrap_err().what.contains("has more than 15000 nodes"));
}

proptest! {
    #[test]
    fn no_bytes_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = (decode_args(&bytes), decode_binding(&bytes), decode_preemption(&bytes));
    }

    #[test]
    fn no_message_with_something_changed_panics(
        at in 0..600_usize, cut in 0..12_usize, with in "[\\[\\]{}:,\"a-z0-9\\\\ ]{0,12}", whole: bool,
    ) {
        let object = json!({ "metadata": { "name": "n1", "annotations": { REGISTER: "[]" } } });
        let args = if whole {
            json!({ "Pod": pod(), "Nodes": { "items": [object] } })
        } else {
            json!({ "Pod": pod(), "NodeNames": ["n1", "n2"] })
        };
        let victims = json!({ "Pod": pod(), "NodeNameToMetaVictims": { "n2": { "Pods": [{ "UID": OTHER }] } } });
        let binding = json!({ "PodName": "train", "PodNamespace": "ml", "PodUID": UID, "Node": "n1" });
        for text in [args, victims, binding] {
            let text = text.to_string();
            let at = at % text.len();
            let end = (at + cut).min(text.len());
            let text = format!("{}{with}{}", &text[..at], &text[end..]);
            if let Ok(args) = decode_args(text.as_bytes()) {
                let fit: Vec<usize> = (0..args.nodes.len()).collect();
                value(&encode_filter(&args.nodes, &fit, &[]));
            }
            let _ = decode_binding(text.as_bytes());
            if let Ok(args) = decode_preemption(text.as_bytes()) {
                value(&encode_preemption(&args.nodes));
            }
        }
    }

    #[test]
    fn names_and_reasons_come_back(nodes in prop::collection::btree_map(".{0,20}", (".{0,20}", 0..3_u8, any::<i64>()), 0..20)) {
        let sent: Vec<&str> = nodes.keys().map(String::as_str).collect();
        let text = of_names(&sent);
        let args = decode_args(text.as_bytes()).unwrap();
        prop_assert_eq!(names(&args), sent.clone());
        let places = || nodes.values().enumerate();
        let fit: Vec<usize> = places().filter(|(_, (_, kind, _))| *kind == 0).map(|(place, _)| place).collect();
        let rest: Vec<FailedNode<'_>> = places()
            .filter(|(_, (_, kind, _))| *kind > 0)
            .map(|(place, (reason, kind, _))| failed(place, reason, *kind == 2))
            .collect();
        let answer = value(&encode_filter(&args.nodes, &fit, &rest));
        for (name, (reason, kind, _)) in &nodes {
            let named = answer["NodeNames"].as_array().is_some_and(|names| names.contains(&json!(name)));
            prop_assert_eq!(named, *kind == 0);
            let told = |field: &str| answer[field].get(name).and_then(Value::as_str);
            let reason = Some(reason.as_str());
            prop_assert_eq!(told("FailedNodes"), reason.filter(|_| *kind == 1));
            prop_assert_eq!(told("FailedAndUnresolvableNodes"), reason.filter(|_| *kind == 2));
        }
        let scores: Vec<i64> = nodes.values().map(|node| node.2).collect();
        let expected: Vec<Value> =
            sent.iter().zip(&scores).map(|(name, score)| json!({ "Host": name, "Score": score })).collect();
        prop_assert_eq!(value(&encode_scores(&args.nodes, &scores)), Value::from(expected));
    }
}
