//! Checkpoints of kubelets, and files that are not checkpoints.

use super::*;
use proptest::prelude::*;

const UID: &str = "466d3e0f-28fd-4a4c-a28d-790ef2a79f8c";
/// An answer as kubelet keeps it: an environment variable, then `cdi_devices { name: "gpu-steward.io/gpu=t00…0" }`.
const ANSWER: &str = "CgUKAUESABoAKjYKNGdwdS1zdGV3YXJkLmlvL2dwdT10MDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDA=";

fn entry(uid: &str, container: &str, ids: &str, answer: &str) -> String {
    format!(
        r#"{{"PodUID":"{uid}","ContainerName":"{container}","ResourceName":"nvidia.com/gpu","DeviceIDs":{ids},"AllocResp":{answer}}}"#
    )
}

fn file(entries: &[String]) -> Vec<u8> {
    format!(
        r#"{{"Data":{{"PodDeviceEntries":[{}],"RegisteredDevices":{{"nvidia.com/gpu":["GPU-a-0","GPU-a-1"],"x":null}}}},"Checksum":1234567890123456789}}"#,
        entries.join(",")
    )
    .into_bytes()
}

fn ticket() -> Ticket {
    Ticket::of_random([0; 16])
}

#[test]
fn a_ticket_leads_to_its_container() {
    let bytes = file(&[
        entry(UID, "main", r#"{"-1":["GPU-a-1","GPU-a-0"]}"#, &format!("\"{ANSWER}\"")),
        entry(UID, "other", r#"{"0":["GPU-a-2"],"1":["GPU-b-2","GPU-a-2"],"2":null}"#, "\"\""),
    ]);
    let read = parse(&bytes).unwrap();
    assert_eq!(read.unreadable, []);
    let holder = read.holder(&ticket()).unwrap();
    assert_eq!((holder.pod.as_str(), &*holder.container, &*holder.resource), (UID, "main", "nvidia.com/gpu"));
    assert_eq!(holder.ids, [Arc::from("GPU-a-0"), Arc::from("GPU-a-1")]);
    assert_eq!(read.allocations[1].ids, [Arc::from("GPU-a-2"), Arc::from("GPU-b-2")]);
    assert_eq!(read.registered[&Arc::from("nvidia.com/gpu")].len(), 2);
    assert_eq!(read.holder(&Ticket::of_random([1; 16])), None);
}

#[test]
fn empty_checkpoints_and_missing_lists_are_read() {
    for ids in ["null", "{}", r#"{"0":null}"#] {
        let read = parse(&file(&[entry(UID, "main", ids, "null")])).unwrap();
        assert!(read.allocations[0].ids.is_empty(), "{ids}");
    }
    for (bytes, allocations) in [
        (&br#"{"Data":{"PodDeviceEntries":null,"RegisteredDevices":null},"Checksum":0}"#[..], 0),
        (br#"{"Data":{}}"#, 0),
    ] {
        assert_eq!(parse(bytes).unwrap().allocations.len(), allocations);
    }
}

#[test]
fn a_ticket_is_in_an_annotation_where_there_is_no_cdi() {
    // `annotations { key: "a" value: "b" }` and then the agent's annotation.
    let answer = "IgYKAWESAWIiOgoVZ3B1LXN0ZXdhcmQuaW8vdGlja2V0EiF0MDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDA=";
    let read = parse(&file(&[entry(UID, "main", "{}", &format!("\"{answer}\""))])).unwrap();
    assert_eq!((read.allocations[0].ticket.clone(), read.allocations[0].cdi_devices.len()), (Some(ticket()), 0));
    let late = parse(&file(&[entry(UID, "main", "{}", &format!("\"{ANSWER}\""))])).unwrap();
    assert_eq!(late.allocations[0].ticket, None);
}

#[test]
fn an_answer_of_another_plugin_is_recognised_and_a_lost_answer_is_not_one() {
    let named = |answer: &str| answer.replace("MDAwMDA", "LS0tLS0");
    let early = "IgYKAWESAWIiOgoVZ3B1LXN0ZXdhcmQuaW8vdGlja2V0EiF0MDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDA=";
    for (answer, foreign) in [
        // `envs { key: "A" value: "" }`, and `annotations { key: "a" value: "b" }`.
        ("\"CgUKAUESAA==\"".to_owned(), true),
        ("\"IgYKAWESAWI=\"".to_owned(), true),
        // `annotations { key: "k" value: "\xff" }`: a value that is not UTF-8 comes from another plugin.
        ("\"IgYKAWsSAf8=\"".to_owned(), true),
        ("null".to_owned(), false),
        ("\"\"".to_owned(), false),
        (format!("\"{ANSWER}\""), false),
        (format!("\"{early}\""), false),
        // A ticket of the agent that cannot be read does not make the answer another plugin's.
        (format!("\"{}\"", named(ANSWER)), false),
        (format!("\"{}\"", named(early)), false),
    ] {
        let read = parse(&file(&[entry(UID, "main", "{}", &answer)])).unwrap();
        assert_eq!((read.unreadable.len(), read.allocations[0].foreign), (0, foreign), "{answer}");
    }
}

#[test]
fn a_ticket_that_two_containers_hold_has_no_holder() {
    let answer = format!("\"{ANSWER}\"");
    let twice = [entry(UID, "a", "{}", &answer), entry(UID, "b", "{}", &answer)];
    assert_eq!(parse(&file(&twice)).unwrap().holder(&ticket()), None);
}

const OTHERS: &str = include_str!("../../../tests/golden/checkpoints/other-plugins.json");

#[test]
fn an_answer_names_gpus_only_if_it_is_another_plugins() {
    let read = parse(OTHERS.as_bytes()).unwrap();
    let answered: Vec<(&str, usize)> = read
        .allocations
        .iter()
        .map(|row| (&*row.container, row.answered.len()))
        .filter(|(_, gpus)| *gpus != 1)
        .collect();
    assert_eq!(
        answered,
        [("by-index", 0), ("time-slice", 0), ("nic", 0), ("named-otherwise", 0), ("elsewhere", 0), ("ours", 0)]
    );
}

#[test]
fn the_device_nodes_of_gpus_in_an_answer_are_read_by_their_paths_on_the_host() {
    let read = parse(OTHERS.as_bytes()).unwrap();
    let nodes = |name: &str| read.allocations.iter().find(|row| &*row.container == name).unwrap().nodes.clone();
    assert_eq!((nodes("named-otherwise"), nodes("elsewhere"), nodes("nic")), (vec![0], vec![1], vec![]));
    // An answer of an earlier release of the agent: `devices { host_path: "/dev/nvidia0" }` and a ticket in an annotation.
    let answer =
        "Gg4SDC9kZXYvbnZpZGlhMCI6ChVncHUtc3Rld2FyZC5pby90aWNrZXQSIXQwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMA==";
    let read = parse(&file(&[entry(UID, "main", "{}", &format!("\"{answer}\""))])).unwrap();
    assert_eq!((read.allocations[0].ticket.clone(), read.allocations[0].nodes.len()), (Some(ticket()), 0));
}

#[test]
fn an_entry_that_cannot_be_read_does_not_hide_the_others() {
    let read = parse(&file(&[
        entry("not-a-uid", "a", "{}", "null"),
        entry(UID, "b", "{}", "\"***\""),
        entry(UID, "c", "{}", "\"KgUKBQ==\""),
        entry(UID, "d", "{}", &format!("\"{ANSWER}\"")),
    ]))
    .unwrap();
    assert_eq!(read.holder(&ticket()).map(|holder| &*holder.container), Some("d"));
    let faults: Vec<String> = read.unreadable.iter().map(|one| format!("{}: {}", one.resource, one.fault)).collect();
    assert_eq!(
        faults,
        [
            "nvidia.com/gpu: kubelet_internal_checkpoint: entry 0 cannot be read: not a pod UID: \"not-a-uid\"",
            "nvidia.com/gpu: kubelet_internal_checkpoint: entry 1 cannot be read: not a plugin's answer to Allocate (\"b\", \"nvidia.com/gpu\")",
            "nvidia.com/gpu: kubelet_internal_checkpoint: entry 2 cannot be read: not a plugin's answer to Allocate (\"c\", \"nvidia.com/gpu\")",
        ]
    );
}

#[test]
fn an_invalid_checkpoint_is_reported_with_the_position() {
    for (bytes, at, what) in [
        (&b""[..], 0, "EOF"),
        (b"{}", 2, "missing field `Data`"),
        (b"\x7fELF", 1, "expected value"),
        (br#"{"Data":{"PodDeviceEntries":[{"PodUID":1}]}}"#, 40, "invalid type"),
        (br#"{"Data":{"PodDeviceEntries":[{"PodUID":"#, 39, "EOF"),
    ] {
        let fault = parse(bytes).unwrap_err();
        assert!(fault.at == at && fault.what.contains(what), "{}: {fault}", String::from_utf8_lossy(bytes));
    }
}

#[test]
fn a_file_that_is_too_large_is_not_read() {
    assert!(parse(&vec![b' '; MAX_BYTES + 1]).unwrap_err().what.contains("bytes long"));
    let ids: Vec<String> = (0..=MAX_IDS).map(|n| format!("\"{n}\"")).collect();
    let many = file(&[entry(UID, "a", &format!("{{\"-1\":[{}]}}", ids.join(",")), "null")]);
    assert!(parse(&many).unwrap_err().what.contains("more than 65536 devices in use"));
    let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
    assert!(parse(format!("{{\"Data\":{{\"x\":{deep}}}}}").as_bytes()).is_ok(), "unknown fields need no stack");
    assert!(parse(&file(&[entry(UID, "a", &deep, "null")])).is_err());
}

proptest! {
    #[test]
    fn no_input_causes_a_panic(bytes: Vec<u8>) {
        let _ = parse(&bytes);
    }

    #[test]
    fn no_answer_of_a_plugin_causes_a_panic(bytes in "[A-Za-z0-9+/]{0,40}={0,2}") {
        let _ = parse(&file(&[entry(UID, "a", "{}", &format!("\"{bytes}\""))]));
    }

    /// Every entry is read or reported: none is missing.
    #[test]
    fn a_checkpoint_that_differs_a_little_from_a_golden_one_loses_no_entry(
        text in crate::golden::mutated(vec![OTHERS.into()]),
    ) {
        if let Ok(read) = parse(text.as_bytes()) {
            let file: serde_json::Value = serde_json::from_str(&text).unwrap();
            let entries = file["Data"]["PodDeviceEntries"].as_array().map_or(0, Vec::len);
            prop_assert_eq!(read.allocations.len() + read.unreadable.len(), entries);
            for row in &read.allocations {
                prop_assert!(row.ids.is_sorted_by(|one, other| one < other));
                prop_assert!(row.answered.iter().all(|gpu| model::gpu_id::is_of_gpu(gpu)));
                prop_assert!(row.nodes.is_sorted_by(|one, other| one < other));
            }
        }
    }

    #[test]
    fn every_entry_of_a_container_is_read(entries in prop::collection::vec(("[a-z]{1,5}", prop::collection::btree_set("[a-z0-9-]{1,6}", 0..4)), 0..6)) {
        let texts: Vec<String> = entries.iter().map(|(container, ids)| {
            let ids: Vec<String> = ids.iter().map(|id| format!("{id:?}")).collect();
            entry(UID, container, &format!("{{\"-1\":[{}]}}", ids.join(",")), "null")
        }).collect();
        let read = parse(&file(&texts)).unwrap();
        let found: Vec<_> = read.allocations.iter().map(|held| {
            (held.container.to_string(), held.ids.iter().map(ToString::to_string).collect())
        }).collect();
        prop_assert_eq!(found, entries);
    }
}
