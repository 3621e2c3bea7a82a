//! The configuration that a container runtime reports: no input causes a panic.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    if let Ok(config) = wire::runtime_config::decode(text) {
        let _ = config.nvidia_injects();
    }
});
