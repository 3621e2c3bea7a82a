//! Files of a process: no input causes a panic.
#![no_main]

use libfuzzer_sys::fuzz_target;
use wire::proc_file::{memberships, mountinfo, net_dev, stat, unescape};

fuzz_target!(|text: &[u8]| {
    let _ = (stat(text), memberships(text, |_| {}), net_dev(text, |_, _| {}));
    let _ = (mountinfo(text, |_| {}), unescape(text));
});
