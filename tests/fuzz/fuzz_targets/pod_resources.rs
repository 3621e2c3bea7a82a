//! Responses of the kubelet's PodResources: a container has at least one id, and each id once and in order.
#![no_main]

use libfuzzer_sys::fuzz_target;
use prost::Message;
use proto::pod_resources::ListPodResourcesResponse;

fuzz_target!(|bytes: &[u8]| {
    let devices = sources::names::pod_resources::gather(ListPodResourcesResponse::decode(bytes).unwrap_or_default());
    assert!(devices.iter().all(|one| !one.ids.is_empty() && one.ids.is_sorted_by(|one, other| one < other)));
});
