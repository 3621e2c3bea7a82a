//! kubelet's configuration file. Its decoder lives in the front door, which is a program and no library, so its file is taken
//! as it stands.
#![no_main]

#[path = "../../../src/steward/agent/sharing/kubelet_config.rs"]
mod kubelet_config;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    let _ = kubelet_config::topology_policy(text);
});
