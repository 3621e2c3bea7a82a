//! The versions of kubelet and runtime on a Node.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let _ = wire::versions::decode(bytes);
});
