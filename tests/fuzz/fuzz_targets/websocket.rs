//! Frames of a WebSocket server: a frame ends inside the input.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(Some((frame, length))) = wire::websocket::decode(bytes) {
        assert!(length <= bytes.len() && frame.payload.len() < length);
    }
});
