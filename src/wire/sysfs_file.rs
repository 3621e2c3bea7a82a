//! Small sysfs files: the error counters (AER), vendor and class of a PCI device, and the counters and state of an InfiniBand port.
//!
//! ```text
//!   aer_dev_fatal      Undefined 0 ⏎ DLP 0 ⏎ … ⏎ TOTAL_ERR_FATAL 0        only the total is read
//!   port_rcv_data      123456                                             one number
//!   state              4: ACTIVE
//!   class              0x030200                                           a hexadecimal number
//! ```

/// Maximum bytes of the name of an error or state that is read.
const MAX_NAME: usize = 64;

/// Base class and subclass of a display controller (VGA), and of a 3D controller, which data centre GPUs are.
const GPU_CLASSES: [u32; 2] = [0x0300, 0x0302];

/// Whether the class of a PCI device is a GPU's; the lowest byte is its programming interface.
#[must_use]
pub fn is_gpu_class(class: u32) -> bool {
    GPU_CLASSES.contains(&(class >> 8))
}

/// A hexadecimal number with its prefix, as in the files `vendor` and `class`.
#[must_use]
pub fn hexadecimal(text: &[u8]) -> Option<u32> {
    let digits = text.trim_ascii().strip_prefix(b"0x")?;
    let plain = !digits.is_empty() && digits.iter().all(u8::is_ascii_hexdigit);
    if plain { u32::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok() } else { None }
}

/// The total of an AER file; `None` if the file has no total, or two.
#[must_use]
pub fn aer_total(text: &[u8]) -> Option<u64> {
    let lines = text.split(|byte| *byte == b'\n').filter_map(|line| line.strip_prefix(b"TOTAL_ERR_"));
    let mut totals = lines.map(|rest| {
        let space = rest.iter().take(MAX_NAME).position(|byte| *byte == b' ')?;
        counter(rest.get(space..)?)
    });
    let total = totals.next()??;
    // A file with two totals is not an AER file.
    totals.next().is_none().then_some(total)
}

/// A number, with white space around it. `None` for text, which the kernel writes if the hardware lacks the counter (`N/A (not
/// available)`).
#[must_use]
pub fn counter(text: &[u8]) -> Option<u64> {
    let text = text.trim_ascii();
    let digits = !text.is_empty() && text.iter().all(u8::is_ascii_digit);
    if digits { std::str::from_utf8(text).ok()?.parse().ok() } else { None }
}

/// Whether a port is active, by the number of its state: 4 in `4: ACTIVE`.
#[must_use]
pub fn port_active(text: &[u8]) -> Option<bool> {
    let colon = text.iter().take(MAX_NAME).position(|byte| *byte == b':')?;
    counter(text.get(..colon)?).map(|number| number == 4)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_total_is_read_and_a_file_without_one_is_refused() {
        let correctable = b"RxErr 3\nBadTLP 1\nBadDLLP 0\nRollover 0\nTimeout 0\nNonFatalErr 0\nCorrIntErr 0\nHeaderOF 0\nTOTAL_ERR_COR 4\n";
        assert_eq!(aer_total(correctable), Some(4));
        assert_eq!(aer_total(b"Undefined 0\nDLP 0\nTOTAL_ERR_FATAL 0\n"), Some(0), "none is a number");
        for text in
            [&b""[..], b"RxErr 3\n", b"TOTAL_ERR_COR\n", b"TOTAL_ERR_COR x\n", b"TOTAL_ERR_COR 1\nTOTAL_ERR_COR 2\n"]
        {
            assert_eq!(aer_total(text), None, "{:?}", String::from_utf8_lossy(text));
        }
    }

    #[test]
    fn a_counter_is_a_number_and_nothing_else() {
        assert_eq!(counter(b"18446744073709551615\n"), Some(u64::MAX));
        for text in [&b""[..], b"N/A (not available)\n", b"-1", b"1 2", b"18446744073709551616"] {
            assert_eq!(counter(text), None, "{:?}", String::from_utf8_lossy(text));
        }
        assert_eq!((port_active(b"4: ACTIVE\n"), port_active(b"1: DOWN\n")), (Some(true), Some(false)));
        assert_eq!(port_active(b"ACTIVE"), None);
    }

    #[test]
    fn the_class_of_a_gpu_is_known() {
        for (text, gpu) in [("0x030200\n", true), ("0x030000\n", true), ("0x068000\n", false), ("0x040300\n", false)] {
            assert_eq!(hexadecimal(text.as_bytes()).map(is_gpu_class), Some(gpu), "{text}");
        }
        assert_eq!(hexadecimal(b"0x10de\n"), Some(model::nvidia::PCI_VENDOR));
        for text in ["", "10de", "0x", "0x+1", "0xg", "0x100000000"] {
            assert_eq!(hexadecimal(text.as_bytes()), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn no_bytes_cause_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = (aer_total(&bytes), counter(&bytes), port_active(&bytes), hexadecimal(&bytes));
            let _ = aer_total(&[b"RxErr 0\nTOTAL_ERR_", &bytes[..]].concat());
        }

        #[test]
        fn files_in_the_form_of_the_kernel_are_read_unchanged(kinds in proptest::collection::vec(any::<u32>(), 0..12), total: u64) {
            let kinds: String = kinds.iter().map(|count| format!("Kind {count}\n")).collect();
            prop_assert_eq!(aer_total(format!("{kinds}TOTAL_ERR_NONFATAL {total}\n").as_bytes()), Some(total));
            prop_assert_eq!(counter(format!("{total}\n").as_bytes()), Some(total));
            let low = u32::try_from(total & 0xffff_ffff).unwrap();
            prop_assert_eq!(hexadecimal(format!("0x{low:x}\n").as_bytes()), Some(low));
        }
    }
}
