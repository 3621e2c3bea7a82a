//! Files of the machine, which `procfs-core` parses: no input causes a panic.
#![no_main]

use libfuzzer_sys::fuzz_target;
use sources::procfs::host_file::{diskstats, host_stat, loadavg, meminfo, oom_kills, stacked_majors};

fuzz_target!(|text: &[u8]| {
    let _ = (host_stat(text), meminfo(text), loadavg(text), diskstats(text, |_, _| {}));
    let _ = (oom_kills(text), stacked_majors(text));
});
