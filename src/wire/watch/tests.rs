use super::*;
use proptest::prelude::*;
use serde_json::json;

const UID: &str = "0f5b9a3e-0d2c-4b7f-9a51-2f1f6a1f8d11";

fn a_pod(name: &str, version: &str) -> serde_json::Value {
    json!({"metadata": {"name": name, "namespace": "ml", "uid": UID, "resourceVersion": version}, "spec": {}})
}

fn line(kind: &str, object: &serde_json::Value) -> String {
    format!("{}\n", json!({"type": kind, "object": object}))
}

#[test]
fn a_page_has_its_pods_its_version_and_its_unreadable_objects() {
    let text = json!({
        "kind": "PodList", "metadata": {"resourceVersion": "12", "continue": "more"},
        "items": [a_pod("a", "3"), {"metadata": {"name": "b", "namespace": "ml", "uid": "?"}}, a_pod("c", "4")],
    });
    let text = text.to_string();
    let page = page(text.as_bytes()).unwrap();
    let objects: Vec<_> = page.objects(&NodePods::default()).collect();
    assert_eq!((page.version.as_str(), page.next.as_deref(), page.count(), objects.len()), ("12", Some("more"), 3, 3));
    let message = objects[1].as_ref().unwrap_err().to_string();
    assert!(message.starts_with("pod ml/b: metadata.uid: not a pod UID"), "{message}");
    assert_eq!(objects[2].as_ref().unwrap().name.to_string(), "ml/c");
}

#[test]
fn null_is_an_empty_list_and_a_list_without_a_version_is_an_error() {
    let empty = page(br#"{"metadata":{"resourceVersion":"7","continue":""},"items":null}"#).unwrap();
    assert_eq!((empty.version.as_str(), empty.next.as_deref(), empty.count()), ("7", None, 0));
    assert!(page(br#"{"items":[]}"#).is_err());
    assert!(page(b"<html>").is_err());
}

#[test]
fn each_kind_of_event_is_read() {
    let gone =
        json!({"kind": "Status", "code": 410, "reason": "Expired", "message": "too old resource version: 1 (2)"});
    let text = [
        line("ADDED", &a_pod("a", "3")),
        "\n".to_owned(),
        line("DELETED", &a_pod("a", "5")),
        line("BOOKMARK", &json!({"kind": "Pod", "metadata": {"resourceVersion": "9"}})),
        line("ERROR", &gone),
    ];
    let lines = WatchLines::<NodePods>::default().feed(text.concat().as_bytes()).unwrap();
    let versions: Vec<_> = lines.iter().map(|line| line.version.as_deref()).collect();
    assert_eq!(versions, [Some("3"), Some("5"), Some("9"), None]);
    assert!(matches!(&lines[0].event, WatchEvent::Applied(pod) if pod.is_ok()));
    assert!(matches!(&lines[1].event, WatchEvent::Deleted(Some(uid)) if uid.as_str() == UID));
    assert_eq!(lines[2].event, WatchEvent::Bookmark);
    let refusal = ApiRefusal { code: 410, message: "too old resource version: 1 (2)".into(), is_status: true };
    assert_eq!(lines[3].event, WatchEvent::Error(refusal));
}

#[test]
fn an_unreadable_pod_says_what_can_be_read_of_it() {
    let whole = json!({
        "metadata": { "name": "b", "namespace": "ml", "uid": UID },
        "spec": { "nodeName": "n1", "containers": 7 }, "status": { "phase": "Running" },
    });
    let with = |pointer: &str, value: serde_json::Value| {
        let mut object = whole.clone();
        *object.pointer_mut(pointer).unwrap() = value;
        object
    };
    let (name, uid, node) = (Some("ml/b"), Some(UID), Some("n1"));
    for (object, expected) in [
        (whole.clone(), (uid, name, node)),
        (with("/metadata/name", json!(7)), (uid, None, node)),
        (with("/metadata/uid", json!([])), (None, name, node)),
        (with("/spec/nodeName", json!({})), (uid, name, None)),
        (with("/spec", json!(7)), (uid, name, None)),
        (with("/metadata", json!("x")), (None, None, node)),
        (with("/status", json!(0)), (uid, name, node)),
        (with("/status/phase", json!(0)), (uid, name, node)),
        (with("/status/phase", json!("Failed")), (uid, name, None)),
    ] {
        let lines = WatchLines::<NodePods>::default().feed(line("MODIFIED", &object).as_bytes()).unwrap();
        let WatchEvent::Applied(read) = &lines[0].event else { panic!("{:?}", lines[0]) };
        let bad = read.as_ref().as_ref().unwrap_err();
        let found =
            (bad.uid.as_ref().map(PodUid::as_str), bad.name.as_deref(), bad.node.as_ref().map(NodeName::as_str));
        assert_eq!(found, expected, "{object}");
        // A deletion event of the pod has its UID, too.
        let lines = WatchLines::<NodePods>::default().feed(line("DELETED", &object).as_bytes()).unwrap();
        assert!(matches!(&lines[0].event, WatchEvent::Deleted(uid) if uid.as_ref().map(PodUid::as_str) == expected.0));
    }
}

#[test]
fn an_unreadable_pod_is_one_event_and_an_invalid_event_ends_the_stream() {
    let bad = json!({"metadata": {"name": "b", "namespace": "ml", "uid": UID, "resourceVersion": "4"}, "spec": {"containers": 7}});
    let mut stream = WatchLines::<NodePods>::default();
    let lines = stream.feed(line("MODIFIED", &bad).as_bytes()).unwrap();
    let WatchEvent::Applied(pod) = &lines[0].event else { panic!("{lines:?}") };
    assert_eq!(pod.as_ref().as_ref().unwrap_err().uid.as_ref().unwrap().as_str(), UID);
    assert_eq!(lines[0].version.as_deref(), Some("4"));
    for garbage in ["{}\n", "<html>\n", "{\"type\":\"ODD\",\"object\":{}}\n"] {
        assert!(
            matches!(WatchLines::<NodePods>::default().feed(garbage.as_bytes()), Err(BadWatchAnswer::Event(_))),
            "{garbage}"
        );
    }
}

#[test]
fn a_line_longer_than_the_limit_is_an_error() {
    let mut stream = WatchLines::<NodePods>::default();
    let piece = vec![b'x'; 1 << 20];
    let outcome = (0..20).find_map(|_| stream.feed(&piece).err());
    assert_eq!(outcome, Some(BadWatchAnswer::TooLong));
}

#[test]
fn a_refusal_has_the_servers_message_or_its_raw_body() {
    let status =
        br#"{"kind":"Status","status":"Failure","message":"pods is forbidden","reason":"Forbidden","code":403}"#;
    assert_eq!(refusal(403, status), ApiRefusal { code: 403, message: "pods is forbidden".into(), is_status: true });
    assert_eq!(
        refusal(502, b"bad\ngateway"),
        ApiRefusal { code: 502, message: "bad gateway".into(), is_status: false }
    );
    assert_eq!(refusal(502, &[b'x'; 5000]).message.len(), MAX_MESSAGE);
}

fn any_line() -> impl Strategy<Value = String> {
    prop_oneof![
        4 => ("[a-z]{1,5}", 0u32..99).prop_map(|(name, version)| line("ADDED", &a_pod(&name, &version.to_string()))),
        2 => Just(line("BOOKMARK", &json!({"metadata": {"resourceVersion": "9"}}))),
        1 => Just("\n".to_owned()),
    ]
}

proptest! {
    #[test]
    fn no_bytes_cause_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let pods = NodePods { label_keys: ["app".into()].into() };
        let _ = page(&bytes).map(|page| page.objects(&pods).count());
        let _ = object(&bytes, &pods);
        let _ = refusal(500, &bytes);
        let _ = WatchLines::<NodePods>::default().feed(&bytes);
    }

    #[test]
    fn the_pieces_of_a_stream_do_not_change_its_events(
        lines in prop::collection::vec(any_line(), 0..6), cuts in prop::collection::vec(1usize..50, 1..40),
    ) {
        let text = lines.concat();
        let whole = WatchLines::<NodePods>::default().feed(text.as_bytes()).unwrap();
        let (mut stream, mut rest, mut pieces) = (WatchLines::<NodePods>::default(), text.as_bytes(), Vec::new());
        for cut in cuts.iter().cycle() {
            let (piece, behind) = rest.split_at((*cut).min(rest.len()));
            pieces.extend(stream.feed(piece).unwrap());
            rest = behind;
            if rest.is_empty() {
                break;
            }
        }
        prop_assert_eq!(pieces, whole);
    }
}
