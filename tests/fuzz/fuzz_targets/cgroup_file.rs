//! Files of cgroups: no input causes a panic.
#![no_main]

use libfuzzer_sys::fuzz_target;
use wire::cgroup_file::{
    blkio, cfs_limit, cpu_max, cpu_stat, cpuacct_stat, io_stat, memory_limit, memory_stat, number, oom_kills, pressure,
    process_io, processes,
};

fuzz_target!(|text: &[u8]| {
    let _ = (number(text), memory_limit(text), cpu_max(text), cfs_limit(text, text), cpu_stat(text), cpuacct_stat(text));
    let _ = (memory_stat(text), oom_kills(text), io_stat(text, &[7]), blkio(text, &[7]), pressure(text));
    let _ = (processes(text, |_| {}), process_io(text));
});
