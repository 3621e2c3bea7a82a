//! What a Node says of its kubelet and its runtime.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let _ = wire::versions::decode(bytes);
});
