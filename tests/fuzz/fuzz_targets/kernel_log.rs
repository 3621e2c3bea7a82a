//! Lines and messages of the kernel log.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let _ = wire::kernel_log::error(bytes);
    let mut messages = wire::kernel_log::KernelMessages::default();
    let mut each = |message: &[u8]| {
        let _ = wire::kernel_log::error(message);
    };
    bytes.split(|byte| *byte == b'\n').for_each(|line| messages.line(line, &mut each));
    messages.end(&mut each);
    if let Ok(text) = std::str::from_utf8(bytes) {
        let _ = wire::kernel_log::pci_slot(text);
    }
});
