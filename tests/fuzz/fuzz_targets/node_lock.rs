//! The node lock: a decoded lock is the same after encoding and decoding.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(lock) = wire::node_lock::decode(&String::from_utf8_lossy(bytes)) {
        if let Some(owner) = &lock.owner {
            assert_eq!(wire::node_lock::decode(&wire::node_lock::encode(lock.at, owner)).unwrap(), lock);
        }
    }
});
