//! Single lines and links from the folder of a process in `/proc`.
//!
//! ```text
//!   ns/net    net:[4026531840]
//!   maps      1000-3000 r-xp 00400000 fd:00 12   /usr/bin/gpu-steward
//!   status    VmRSS:     1234 kB
//! ```
//!
//! What must never happen here: a number from an incomplete line.

use crate::cgroup_file::digits;

/// One memory mapping of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryMapping<'a> {
    /// First address.
    pub begin: usize,
    /// Length in bytes.
    pub len: usize,
    /// Permissions: `r-xp`.
    pub rights: &'a str,
    /// Path of the mapped file, if there is one.
    pub path: Option<&'a str>,
}

/// The number of a namespace of this kind (`net`, `cgroup`), from the target of its link in `ns/`.
#[must_use]
pub fn namespace(link: &[u8], kind: &str) -> Option<u64> {
    let number = link.strip_prefix(kind.as_bytes())?.strip_prefix(b":[")?.strip_suffix(b"]")?;
    digits(number)
}

/// Reads a line of `maps`.
#[must_use]
pub fn mapping(line: &str) -> Option<MemoryMapping<'_>> {
    let mut words = line.split_ascii_whitespace();
    let (range, rights) = (words.next()?, words.next()?);
    let (begin, end) = range.split_once('-')?;
    let (begin, end) = (usize::from_str_radix(begin, 16).ok()?, usize::from_str_radix(end, 16).ok()?);
    // The path comes after offset, device and inode.
    Some(MemoryMapping { begin, len: end.checked_sub(begin)?, rights, path: words.nth(3) })
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
    fn a_mapping_has_an_address_permissions_and_optionally_a_file() {
        let file = mapping("1000-3000 r-xp 00400000 fd:00 12   /usr/bin/gpu-steward").unwrap();
        assert_eq!(
            (file.begin, file.len, file.rights, file.path),
            (0x1000, 0x2000, "r-xp", Some("/usr/bin/gpu-steward"))
        );
        assert_eq!(mapping("1000-3000 rw-p 00000000 00:00 0").unwrap().path, None);
        for other in ["3000-1000 r-xp 00400000 fd:00 12 /usr/bin/gpu-steward", "1000 r-xp", "x-y r-xp", ""] {
            assert_eq!(mapping(other), None, "{other}");
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
            let _ = (namespace(&bytes, "net"), mapping(&text), status(&text, "VmRSS:"));
        }

        #[test]
        fn lines_in_the_form_of_the_kernel_are_read(begin in 0_usize..1 << 40, len in 0_usize..1 << 30, number in any::<u64>()) {
            let line = format!("{:x}-{:x} rw-p 00000000 00:00 0 [heap]", begin, begin + len);
            let heap = mapping(&line).unwrap();
            prop_assert_eq!((heap.begin, heap.len, heap.path), (begin, len, Some("[heap]")));
            prop_assert_eq!(namespace(format!("net:[{number}]").as_bytes(), "net"), Some(number));
        }
    }
}
