//! Counters and classes of PCI devices, and counters of InfiniBand ports.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let _ = wire::sysfs_file::aer_total(bytes);
    let _ = wire::sysfs_file::counter(bytes);
    let _ = wire::sysfs_file::port_active(bytes);
    let _ = wire::sysfs_file::hexadecimal(bytes).map(wire::sysfs_file::is_gpu_class);
});
