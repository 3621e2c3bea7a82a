//! Lines of the kernel log.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let _ = wire::kernel_log::error(bytes);
    if let Ok(text) = std::str::from_utf8(bytes) {
        let _ = wire::kernel_log::pci_slot(text);
    }
});
