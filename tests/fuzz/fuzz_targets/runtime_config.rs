//! How a container runtime says that it is set up: read or refused, never a panic.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    if let Ok(config) = wire::runtime_config::decode(text) {
        let _ = config.nvidia_injects();
    }
});
