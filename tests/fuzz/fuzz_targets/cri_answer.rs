//! Responses of a container runtime: the names are in order and have no control characters.
#![no_main]

use libfuzzer_sys::fuzz_target;
use prost::Message;
use proto::cri::{ListContainersResponse, ListPodSandboxResponse};

fuzz_target!(|bytes: &[u8]| {
    let containers = ListContainersResponse::decode(bytes).unwrap_or_default().containers;
    let sandboxes = ListPodSandboxResponse::decode(bytes).unwrap_or_default().items;
    let names = sources::names::cri::names(&containers, &sandboxes);
    assert!(names.is_sorted_by(|one, other| one.id <= other.id));
    assert!(names.iter().all(|one| !one.pod.name.is_empty() && !one.pod.name.contains(char::is_control)));
});
