//! Small sysfs files: the error counters (AER) of a PCI device, and the counters and state of an InfiniBand port.
//!
//! ```text
//!   aer_dev_fatal      Undefined 0 ⏎ DLP 0 ⏎ … ⏎ TOTAL_ERR_FATAL 0        only the total is read
//!   port_rcv_data      123456                                             one number
//!   state              4: ACTIVE
//! ```

/// Longest name of a kind of error or of a state that is read.
const MAX_NAME: usize = 64;

/// The total of an AER file; `None` where the file has none, or two.
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

/// A number, with white space around it. `None` for text, which the kernel writes where the hardware lacks the counter
/// (`N/A (not available)`).
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

    proptest! {
        #[test]
        fn no_bytes_cause_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = (aer_total(&bytes), counter(&bytes), port_active(&bytes));
            let _ = aer_total(&[b"RxErr 0\nTOTAL_ERR_", &bytes[..]].concat());
        }

        #[test]
        fn files_in_the_form_of_the_kernel_are_read_unchanged(kinds in proptest::collection::vec(any::<u32>(), 0..12), total: u64) {
            let kinds: String = kinds.iter().map(|count| format!("Kind {count}\n")).collect();
            prop_assert_eq!(aer_total(format!("{kinds}TOTAL_ERR_NONFATAL {total}\n").as_bytes()), Some(total));
            prop_assert_eq!(counter(format!("{total}\n").as_bytes()), Some(total));
        }
    }
}
