//! Names and files of tickets.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let text = String::from_utf8_lossy(bytes);
    if let Ok(ticket) = wire::ticket::parse(&text) {
        assert_eq!(wire::ticket::qualified(&ticket), text);
    }
    if let Some(ticket) = wire::ticket::of_file_name(&text) {
        assert_eq!(wire::ticket::file_name(&ticket), text);
    }
});
