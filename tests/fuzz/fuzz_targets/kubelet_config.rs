//! The kubelet's configuration file.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    let _ = sources::kubelet_config::parse_topology_policy(text);
});
