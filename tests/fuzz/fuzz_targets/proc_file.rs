//! Files of `/proc`: no input causes a panic.
#![no_main]

use libfuzzer_sys::fuzz_target;
use wire::proc_file::{
    diskstats, host_stat, loadavg, meminfo, memberships, mountinfo, net_dev, stacked_majors, stat, unescape,
};

fuzz_target!(|text: &[u8]| {
    let _ = (stat(text), memberships(text, |_| {}), net_dev(text, |_, _| {}), host_stat(text), meminfo(text));
    let _ = (loadavg(text), diskstats(text, |_, _| {}), mountinfo(text, |_| {}), stacked_majors(text), unescape(text));
});
