//! The ticket journal: the decoded lines are a valid journal again.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let found = wire::ticket_journal::decode(bytes);
    let again: String = found.lines.iter().map(|line| line.text.as_str()).collect();
    assert_eq!(wire::ticket_journal::decode(again.as_bytes()).lines, found.lines);
});
