//! Single lines and links from the folder of a process in `/proc`.
//!
//! ```text
//!   ns/net    net:[4026531840]
//!   status    VmRSS:     1234 kB
//! ```
//!
//! What must never happen here: a number from an incomplete line.

use crate::cgroup_file::digits;

/// The number of a namespace of this kind (`net`, `cgroup`), from the target of its link in `ns/`.
#[must_use]
pub fn namespace(link: &[u8], kind: &str) -> Option<u64> {
    let number = link.strip_prefix(kind.as_bytes())?.strip_prefix(b":[")?.strip_suffix(b"]")?;
    digits(number)
}

/// The number after this key (`VmRSS:`, `Threads:`) in `status`.
#[must_use]
pub fn status(text: &str, key: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(key))?;
    line.split_ascii_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_namespace_is_its_number() {
        assert_eq!(namespace(b"net:[4026531840]", "net"), Some(4_026_531_840));
        for other in [&b"mnt:[4026531840]"[..], b"net:[]", b"net:[4026531840", b"net:4026531840", b""] {
            assert_eq!(namespace(other, "net"), None, "{other:?}");
        }
    }

    #[test]
    fn a_number_of_status_is_found_by_its_key() {
        let text = "Name:\tgpu-steward\nVmRSS:\t    1234 kB\nThreads:\t7\n";
        assert_eq!(
            [status(text, "VmRSS:"), status(text, "Threads:"), status(text, "VmSize:")],
            [Some(1234), Some(7), None]
        );
    }

    proptest! {
        #[test]
        fn no_text_causes_a_panic(text in "\\PC{0,120}", bytes in prop::collection::vec(any::<u8>(), 0..40)) {
            let _ = (namespace(&bytes, "net"), status(&text, "VmRSS:"));
        }

        #[test]
        fn lines_in_the_form_of_the_kernel_are_read(number in any::<u64>()) {
            prop_assert_eq!(namespace(format!("net:[{number}]").as_bytes(), "net"), Some(number));
        }
    }
}
