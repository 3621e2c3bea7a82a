//! Tests the decoders with texts that HAMi's programs wrote, with one case of every form, and with the texts of each release
//! (`tests/golden/hami`). Reads the claims of each version of their format (`tests/golden/claims`). Gives the decoders' own
//! tests the golden texts with some characters changed.

use crate::annotation_keys;
use crate::extender::{self, CandidateNodes, FailedNode};
use crate::handshake::Handshake;
use crate::resource::{RequestRules, ResourceAmounts, request};
use crate::{bind, claim, claim_version, gpu_pod, handshake, node_lock, pod, register, timestamp};
use model::claim::{Claim, DeviceShare, PodClaim};
use model::id::NodeName;
use model::request::{GpuRequest, MemoryRequest};
use model::time::WallTime;
use model::unit::Mib;
use proptest::prelude::*;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::sync::LazyLock;

const SCHEDULER: &str = include_str!("../../tests/golden/hami/scheduler.json");
const PLUGIN: &str = include_str!("../../tests/golden/hami/plugin.json");
const CALLS: &str = include_str!("../../tests/golden/hami/extender.json");
const CLAIM_0: &str = include_str!("../../tests/golden/claims/version-0.json");
const CLAIM_1: &str = include_str!("../../tests/golden/claims/version-1.json");
const FORMATS: &str = include_str!("../../tests/golden/hami/formats.json");
const RELEASES: &str = include_str!("../../tests/golden/hami/releases.json");
/// Memory of the GPUs in the recording.
const MEMORY_OF_A100: Mib = Mib(81_920);

fn cases(text: &str) -> Vec<Value> {
    let cases: Vec<Value> = serde_json::from_str(text).unwrap();
    assert!(cases.len() > 5);
    cases
}

fn text<'a>(case: &'a Value, key: &str) -> &'a str {
    case[key].as_str().unwrap_or_else(|| panic!("{key} of {case}"))
}

fn amounts(limits: &Value) -> ResourceAmounts {
    serde_json::from_value(limits.clone()).unwrap()
}

fn requests(containers: &[&Value]) -> Vec<Option<GpuRequest>> {
    containers
        .iter()
        .map(|limits| request(&RequestRules::default(), &amounts(limits), &ResourceAmounts::new()).unwrap())
        .collect()
}

fn placed(claim: &Claim, requests: &[Option<GpuRequest>]) -> Claim {
    let counts: Vec<u32> = requests.iter().map(|request| request.map_or(0, |request| request.count)).collect();
    claim.by_container(&counts).unwrap()
}

/// MiB and percent as HAMi's annotation has them: 0 means no limit.
fn numbers(share: &DeviceShare) -> (u64, u32) {
    (share.memory.map_or(0, |memory| Mib::within(memory).0), share.cores.map_or(0, |cores| cores.0))
}

fn list(case: &Value) -> Vec<&Value> {
    case.as_array().unwrap().iter().collect()
}

#[test]
fn claims_of_hamis_scheduler_match_the_requests() {
    for case in cases(SCHEDULER) {
        let name = text(&case, "case");
        let annotations = &case["annotations"];
        let claim = claim::decode(annotation_keys::ALLOCATED, text(annotations, annotation_keys::ALLOCATED)).unwrap();
        assert_eq!(
            claim::decode(annotation_keys::TO_ALLOCATE, text(annotations, annotation_keys::TO_ALLOCATE)).as_ref(),
            Ok(&claim),
            "{name}"
        );
        assert_eq!(
            claim::encode(annotation_keys::ALLOCATED, &claim).unwrap(),
            text(annotations, annotation_keys::ALLOCATED),
            "{name}"
        );

        let containers = [list(&case["initContainers"]), list(&case["containers"])].concat();
        if name == "too-many-cores" {
            // HAMi reduces it to 100 silently; the agent refuses the request, so that the owner of the pod sees it.
            let refused =
                request(&RequestRules::default(), &amounts(containers[0]), &ResourceAmounts::new()).unwrap_err();
            assert_eq!(refused.resource, "nvidia.com/gpucores");
            continue;
        }
        let requests = requests(&containers);
        let granted = placed(&claim, &requests);
        for (request, shares) in requests.iter().zip(&granted) {
            let Some(request) = request else {
                assert!(shares.is_empty(), "{name}");
                continue;
            };
            for share in shares {
                let whole =
                    if text(annotations, annotation_keys::ASSIGNED_NODE) == "g-a100" { MEMORY_OF_A100 } else { Mib(0) };
                let memory = request.memory.of(whole.bytes());
                assert_eq!(numbers(share), (memory.0, request.cores.0), "{name}");
            }
        }
        bind::decode_phase(text(annotations, annotation_keys::BIND_PHASE)).unwrap();
        let bound = timestamp::unix_seconds(text(annotations, annotation_keys::BIND_TIME)).unwrap();
        let lock = node_lock::decode(text(&case, "nodeLock")).unwrap();
        assert_eq!(lock.owner.as_ref().map(ToString::to_string), Some(format!("default/{name}")));
        let second = std::time::Duration::from_secs(1);
        assert!(
            lock.at >= bound && lock.at.since(bound) <= second,
            "{name}: the bind time and the lock time come from two clock readings"
        );
        assert_eq!(node_lock::encode(lock.at, &lock.owner.unwrap()), text(&case, "nodeLock"));
        let Handshake::Requesting { stated: Some(stated) } = handshake::decode(text(&case, "nodeHandshake")) else {
            panic!("{name}: {}", case["nodeHandshake"]);
        };
        assert!(stated < bound, "{name}");
    }
}

#[test]
fn answers_of_hamis_plugin_follow_from_the_annotations() {
    for case in cases(PLUGIN) {
        let name = format!("{} {}", text(&case, "pod"), text(&case, "container"));
        let claim = claim::decode(annotation_keys::ALLOCATED, text(&case, "allocated")).unwrap();
        let requests = requests(&list(&case["limits"]));
        let number: usize = text(&case, "container").trim_start_matches('c').parse().unwrap();
        let shares = &placed(&claim, &requests)[number];
        let mut env = json!({
            "CUDA_DEVICE_SM_LIMIT": numbers(&shares[0]).1.to_string(),
            "LIBCUDA_LOG_LEVEL": "1",
            "NVIDIA_VISIBLE_DEVICES": shares.iter().map(|share| share.device.as_str()).collect::<Vec<_>>().join(","),
        });
        for (place, share) in shares.iter().enumerate() {
            env[format!("CUDA_DEVICE_MEMORY_LIMIT_{place}")] = json!(format!("{}m", numbers(share).0));
        }
        assert_eq!(case["env"], env, "{name}");
        let left = claim::decode(annotation_keys::TO_ALLOCATE, text(&case, "toAllocate")).unwrap();
        assert!(left.iter().all(Vec::is_empty), "{name}: every slot is blanked in the end");
        assert_eq!(bind::decode_phase(text(&case, "bindPhase")), Ok(model::claim::BindPhase::Success));
    }
}

/// The names of an answer, by their places in the call.
fn places(nodes: &CandidateNodes<'_>, names: &Value) -> Vec<usize> {
    let place = |name: &Value| nodes.names().position(|known| name == known).unwrap();
    names.as_array().into_iter().flatten().map(place).collect()
}

#[test]
fn what_kube_scheduler_sent_is_read_and_what_hami_answered_is_written() {
    let mut verbs = [0, 0];
    for case in cases(CALLS) {
        let (body, response) = (case["request"].to_string(), &case["response"]);
        let written = if text(&case, "path") == "/bind" {
            verbs[1] += 1;
            let call = extender::decode_binding(body.as_bytes()).unwrap();
            assert_eq!(case["request"]["PodUID"], call.uid.as_str());
            assert_eq!(call.pod.to_string(), format!("default/{}", text(&case["request"], "PodName")));
            assert_eq!(case["request"]["Node"], call.node.as_str());
            extender::encode_binding_error(text(response, "Error"))
        } else {
            verbs[0] += 1;
            let call = extender::decode_args(body.as_bytes()).unwrap();
            assert_eq!(case["request"]["Pod"]["metadata"]["name"], *call.pod.name.name);
            assert_eq!(call.nodes.names().collect::<Vec<_>>(), ["g-a100", "g-t4", "g-h100"]);
            let fit = places(&call.nodes, &response["NodeNames"]);
            let failed: Vec<FailedNode<'_>> = response["FailedNodes"]
                .as_object()
                .into_iter()
                .flatten()
                .map(|(name, reason)| FailedNode {
                    place: call.nodes.names().position(|known| known == name).unwrap(),
                    reason: reason.as_str().unwrap(),
                    unresolvable: false,
                })
                .collect();
            extender::encode_filter(&call.nodes, &fit, &failed)
        };
        assert_eq!(serde_json::from_str::<Value>(&written).unwrap(), *response);
    }
    assert_eq!(verbs, [5, 3]);
}

/// Compares the result of a decoder with the case: the value, or the error.
fn check(case: &Value, found: Result<Value, String>) {
    match (case.get("error"), found) {
        (Some(error), Err(found)) => assert_eq!(*error, json!(found), "{case}"),
        (None, Ok(found)) => {
            for (key, value) in found.as_object().unwrap() {
                assert_eq!(case.get(key).unwrap_or(&Value::Null), value, "{key} of {case}");
            }
        }
        (_, found) => panic!("{case}: {found:?}"),
    }
}

fn seconds(at: WallTime) -> u64 {
    at.0 / 1_000_000
}

#[test]
fn every_form_of_register_and_lock_is_read() {
    let formats: Value = serde_json::from_str(FORMATS).unwrap();
    for case in list(&formats["register"]) {
        let row = |gpu: &model::registered::RegisteredGpu| {
            json!([
                gpu.uuid.as_str(),
                gpu.index,
                gpu.slots,
                gpu.memory.0,
                gpu.cores.0,
                &*gpu.product,
                gpu.numa,
                &*gpu.mode,
                gpu.healthy
            ])
        };
        let found = register::decode(text(case, "text"));
        check(
            case,
            found.map(|gpus| json!({"gpus": gpus.iter().map(row).collect::<Vec<_>>()})).map_err(|fault| fault.what),
        );
    }
    for case in list(&formats["lock"]) {
        let found = node_lock::decode(text(case, "text"));
        let to_json = |lock: model::claim::NodeLock| json!({"seconds": seconds(lock.at), "owner": lock.owner.map(|owner| owner.to_string())});
        check(case, found.map(to_json).map_err(|fault| fault.what));
    }
}

#[test]
fn every_form_of_handshake_is_read() {
    let formats: Value = serde_json::from_str(FORMATS).unwrap();
    for case in list(&formats["handshake"]) {
        let (word, at) = match handshake::decode(text(case, "text")) {
            Handshake::At(at) => ("at", Some(at)),
            Handshake::Requesting { stated } => ("requesting", stated),
            Handshake::Reported => ("reported", None),
            Handshake::Deleted => ("deleted", None),
            Handshake::Other => ("other", None),
        };
        check(case, Ok(json!({"word": word, "seconds": at.map(seconds)})));
    }
}

#[test]
fn every_form_of_device_string_and_request_is_read() {
    let formats: Value = serde_json::from_str(FORMATS).unwrap();
    for case in list(&formats["devices"]) {
        let row = |share: &DeviceShare| json!([share.device.as_str(), numbers(share).0, numbers(share).1]);
        let to_json = |claim: Claim| json!({"slots": claim.0.iter().map(|slot| slot.iter().map(row).collect()).collect::<Vec<Vec<Value>>>()});
        let found = claim::decode(annotation_keys::TO_ALLOCATE, text(case, "text"));
        check(case, found.map(to_json).map_err(|fault| fault.what));
    }
    for case in list(&formats["request"]) {
        let found = request(&RequestRules::default(), &amounts(&case["limits"]), &ResourceAmounts::new());
        let to_json = |request: Option<GpuRequest>| {
            let memory = request.map(|request| request.memory);
            let percent = if let Some(MemoryRequest::Percent(share)) = memory { Some(share) } else { None };
            let mib = if let Some(MemoryRequest::Amount(amount)) = memory { Some(amount.0) } else { None };
            let (count, cores) = (request.map(|request| request.count), request.map(|request| request.cores.0));
            json!({"count": count, "percent": percent, "mib": mib, "cores": cores})
        };
        check(case, found.map(to_json).map_err(|error| error.to_string()));
    }
}

/// The pod of `tests/golden/claims`, with the annotations of one version, as this program reads it.
fn claim_of_version(annotations: &Value) -> PodClaim {
    let one = json!({ "nvidia.com/gpu": "1", "nvidia.com/gpumem": "3000", "nvidia.com/gpucores": "30" });
    let two = json!({ "nvidia.com/gpu": "2" });
    let container = |name: &str, limits: Value| json!({ "name": name, "resources": { "limits": limits } });
    let text = json!({
        "metadata": { "name": "train", "namespace": "ml", "uid": "1".repeat(32), "annotations": annotations },
        "spec": {
            "nodeName": "node-1", "initContainers": [container("warm", json!({}))],
            "containers": [container("main", one), container("other", two)],
        },
    });
    let pod = pod::decode(text.to_string().as_bytes()).unwrap();
    gpu_pod::of(&pod, &RequestRules::default(), &NodeName::parse("node-1").unwrap()).unwrap().claim
}

#[test]
fn the_versions_of_a_claim_read_each_other() {
    let versions = [CLAIM_0, CLAIM_1].map(|text| serde_json::from_str::<Value>(text).unwrap());
    let read: Vec<PodClaim> = versions.iter().map(claim_of_version).collect();
    let PodClaim::Given(claim) = &read[0] else { panic!("{:?}", read[0]) };
    let shapes: Vec<usize> = claim.iter().map(Vec::len).collect();
    assert_eq!((shapes, &read[0]), (vec![0, 1, 2], &read[1]), "this program reads both");
    // A reader of version 0 has no such check and skips the Lease. All other annotations of version 1 are those of
    // version 0.
    let mut seen = versions[1].clone();
    let new = |seen: &mut Value, key| seen.as_object_mut().unwrap().remove(key).unwrap();
    let version = new(&mut seen, annotation_keys::CLAIM_VERSION);
    let _ = new(&mut seen, annotation_keys::LEASE);
    assert_eq!((&seen, &version), (&versions[0], &json!(claim_version::encode())));
    for known in 0..=claim_version::WRITTEN + 1 {
        assert_eq!(claim_version::check(version.as_str().unwrap(), known), Ok(()), "a reader of version {known}");
    }
}

#[test]
fn a_claim_of_a_later_version_is_unreadable_unless_it_names_this_reader() {
    for (version, reads) in [("2/1", true), ("2/0", true), ("2", false), ("3/2", false), ("new", false)] {
        let mut annotations: Value = serde_json::from_str(CLAIM_1).unwrap();
        annotations[annotation_keys::CLAIM_VERSION] = version.into();
        for moved in [false, true] {
            if moved {
                // A later version may have the claim in another annotation.
                annotations.as_object_mut().unwrap().remove(annotation_keys::ALLOCATED);
            }
            match claim_of_version(&annotations) {
                PodClaim::Given(_) => assert!(reads && !moved, "{version}"),
                PodClaim::None => assert!(reads && moved, "{version}"),
                PodClaim::Unreadable(why) => {
                    assert!(!reads && why.starts_with("gpu-steward.io/claim-version: "), "{version}: {why}");
                }
                PodClaim::BadRequest(why) => panic!("{version}: {why}"),
            }
        }
    }
}

/// The texts at `keys` of the list `list` of a golden file.
fn texts(file: &str, list: &str, keys: &[&str]) -> Vec<String> {
    let file: Value = serde_json::from_str(file).unwrap();
    let cases = if list.is_empty() { &file } else { &file[list] };
    cases.as_array().unwrap().iter().flat_map(|case| keys.iter().map(|key| text(case, key).to_owned())).collect()
}

#[test]
fn the_claims_of_every_release_are_read() {
    let releases: Value = serde_json::from_str(RELEASES).unwrap();
    let mut seen = Vec::new();
    for case in list(&releases["claims"]) {
        let counts: Vec<u32> = serde_json::from_value(case["gpus"].clone()).unwrap();
        let row = |share: &DeviceShare| json!([share.device.as_str(), numbers(share).0, numbers(share).1]);
        let claim = claim::decode(annotation_keys::ALLOCATED, text(case, "allocated")).unwrap();
        let placed = claim.by_container(&counts).unwrap_or_else(|why| panic!("{case}: {why}"));
        let shapes: Vec<Vec<Value>> = placed.iter().map(|shares| shares.iter().map(row).collect()).collect();
        assert_eq!(json!(shapes), case["claim"], "{case}");
        // Once the first container with a GPU has got it, the text names the shares of the others.
        let left = claim::decode(annotation_keys::TO_ALLOCATE, text(case, "served")).unwrap();
        let first = placed.iter().find(|shares| !shares.is_empty()).unwrap();
        let others: Vec<&DeviceShare> = placed.shares().skip(first.len()).collect();
        assert_eq!(left.shares().collect::<Vec<_>>(), others, "{case}");
        seen.push(text(case, "release"));
    }
    seen.dedup();
    assert_eq!(seen, ["2.3", "2.4", "2.5", "2.6", "2.7", "2.8", "2.9", "2.10"]);
}

#[test]
fn the_registers_of_every_release_are_read() {
    let releases: Value = serde_json::from_str(RELEASES).unwrap();
    for case in list(&releases["registers"]) {
        let row = |gpu: &model::registered::RegisteredGpu| {
            json!([gpu.uuid.as_str(), gpu.index, gpu.slots, gpu.memory.0, gpu.healthy])
        };
        let gpus = register::decode(text(case, "text")).unwrap();
        assert_eq!(json!(gpus.iter().map(row).collect::<Vec<_>>()), case["gpus"], "{case}");
    }
}

/// Some of these texts with up to six changes: a part is removed, doubled, or replaced by a character of the formats.
pub(crate) fn mutated(texts: Vec<String>) -> impl Strategy<Value = String> {
    let mark = prop::sample::select(r#",;:[]{}"-0a9 é"#.chars().collect::<Vec<_>>());
    let change = (any::<prop::sample::Index>(), 0..8_usize, 0..3_u8, mark);
    (prop::sample::select(texts), prop::collection::vec(change, 0..=6)).prop_map(|(text, changes)| {
        let mut text: Vec<char> = text.chars().collect();
        for (place, length, kind, mark) in changes {
            let from = place.index(text.len() + 1);
            let part: Vec<char> = text.iter().skip(from).take(length).copied().collect();
            let end = from + part.len();
            let instead = match kind {
                0 => Vec::new(),
                1 => [part.clone(), part].concat(),
                _ => vec![mark],
            };
            text.splice(from..end, instead);
        }
        text.into_iter().collect()
    })
}

fn all_claims() -> Vec<String> {
    [
        texts(RELEASES, "claims", &["allocated", "served"]),
        texts(FORMATS, "devices", &["text"]),
        texts(PLUGIN, "", &["allocated", "toAllocate"]),
    ]
    .concat()
}

fn all_registers() -> Vec<String> {
    [texts(RELEASES, "registers", &["text"]), texts(FORMATS, "register", &["text"])].concat()
}

/// Those of the texts that the list `forms` of the golden file does not have as errors.
fn readable(texts: Vec<String>, forms: &str) -> BTreeSet<String> {
    let formats: Value = serde_json::from_str(FORMATS).unwrap();
    let refused = list(&formats[forms]).into_iter().filter(|case| case.get("error").is_some());
    let refused: BTreeSet<&str> = refused.map(|case| text(case, "text")).collect();
    let readable: BTreeSet<String> = texts.into_iter().filter(|one| !refused.contains(one.as_str())).collect();
    assert!(readable.len() > 5);
    readable
}

static READABLE_CLAIMS: LazyLock<BTreeSet<String>> = LazyLock::new(|| readable(all_claims(), "devices"));
static READABLE_REGISTERS: LazyLock<BTreeSet<String>> = LazyLock::new(|| readable(all_registers(), "register"));

proptest! {
    /// Some of the texts have no change: these are read.
    #[test]
    fn a_claim_that_differs_a_little_from_a_golden_one_is_read_in_full_or_not_at_all(text in mutated(all_claims())) {
        let read = claim::decode(annotation_keys::ALLOCATED, &text);
        prop_assert!(read.is_ok() || !READABLE_CLAIMS.contains(&text), "{}: {:?}", text, read);
        if let Ok(read) = read {
            // Each piece with a comma is a share, except the entry of a container without a GPU.
            let pieces = text.split([';', ':']).filter(|piece| piece.contains(','));
            let named = pieces.filter(|piece| !piece.starts_with(",,")).count();
            prop_assert_eq!(read.shares().count(), named, "{}", text);
            if let Ok(written) = claim::encode(annotation_keys::ALLOCATED, &read) {
                prop_assert_eq!(claim::decode(annotation_keys::ALLOCATED, &written), Ok(read));
            }
        }
    }

    /// Some of the texts have no change: these are read.
    #[test]
    fn a_register_that_differs_a_little_from_a_golden_one_is_read_the_same_again(text in mutated(all_registers())) {
        let read = register::decode(&text);
        prop_assert!(read.is_ok() || !READABLE_REGISTERS.contains(&text), "{}: {:?}", text, read);
        if let Ok(gpus) = read
            && let Ok(written) = register::encode(&gpus)
        {
            let mut ordered = gpus;
            ordered.sort_by(|one, other| one.uuid.cmp(&other.uuid));
            prop_assert_eq!(register::decode(&written), Ok(ordered));
        }
    }
}
