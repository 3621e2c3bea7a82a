//! Files of one process in `/proc`, as the kernel writes them.
//!
//! ```text
//!   /proc/<pid>/    stat  cgroup  net/dev  mountinfo     (`io`: see `cgroup_file::process_io`)
//! ```
//!
//! What must never happen here: a number from an incomplete file; a process name that shifts the fields after it.
//! Process names are bytes: a process may have the name `a) R 1 (b`, or a name that is not UTF-8.

use crate::cgroup_file::{MalformedCgroupFile, digits, fields, lines};
use model::cgroup::NetworkSample;

/// The fields that are read from `/proc/<pid>/stat`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcStat<'a> {
    /// PID, in the PID namespace of this `/proc`.
    pub pid: u32,
    /// `comm`: at most 15 bytes of any value.
    pub command: &'a [u8],
    /// State: `R`, `S`, `Z`, …
    pub state: u8,
    /// PID of the parent; 0 for a process whose parent is not in this PID namespace.
    pub parent: u32,
    /// User time in clock ticks.
    pub user_ticks: u64,
    /// System time in clock ticks.
    pub system_ticks: u64,
    /// Number of threads.
    pub threads: u64,
    /// Start time in clock ticks since boot.
    pub start_ticks: u64,
    /// Resident memory in pages.
    pub rss_pages: u64,
}

/// Reads `/proc/<pid>/stat`.
///
/// # Errors
/// [`MalformedCgroupFile`] when the file is incomplete, or has fewer fields than every supported kernel writes.
pub fn stat(text: &[u8]) -> Result<ProcStat<'_>, MalformedCgroupFile> {
    let line = text.strip_suffix(b"\n").ok_or(MalformedCgroupFile::Incomplete)?;
    // Only the name may contain a parenthesis, so it ends at the last parenthesis.
    let open = line.iter().position(|b| *b == b'(').ok_or(MalformedCgroupFile::Missing("the command"))?;
    let close = line
        .iter()
        .rposition(|b| *b == b')')
        .filter(|at| *at > open)
        .ok_or(MalformedCgroupFile::Missing("the command"))?;
    let pid = line[..open].strip_suffix(b" ").and_then(digits).and_then(|pid| u32::try_from(pid).ok());
    let mut rest = fields(&line[close + 1..]);
    let state =
        rest.next().and_then(|field| field.first().copied()).ok_or(MalformedCgroupFile::Missing("the state"))?;
    // Field 3 is read already; `field(n)` reads field n with the numbers of proc_pid_stat(5), in rising order.
    let mut at = 3;
    let mut field = |n: usize| {
        let value = rest.nth(n - at - 1);
        at = n;
        value.and_then(digits).ok_or(MalformedCgroupFile::NotANumber("a field of stat"))
    };
    let parent = u32::try_from(field(4)?).map_err(|_| MalformedCgroupFile::NotANumber("the parent"))?;
    let (user_ticks, system_ticks) = (field(14)?, field(15)?);
    let (threads, start_ticks) = (field(20)?, field(22)?);
    let rss_pages = field(24)?;
    field(25)?; // without a field after it, the resident size could be cut off
    let pid = pid.ok_or(MalformedCgroupFile::NotANumber("the process"))?;
    let command = &line[open + 1..close];
    Ok(ProcStat { pid, command, state, parent, user_ticks, system_ticks, threads, start_ticks, rss_pages })
}

/// One line of `/proc/<pid>/cgroup`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CgroupMembership<'a> {
    /// Controllers: `memory`, `cpu,cpuacct`, `name=systemd`; empty for cgroup v2.
    pub controllers: &'a str,
    /// Path below the root of that hierarchy, as the agent's cgroup namespace shows it.
    pub path: &'a str,
}

/// Calls `each` for every hierarchy in `/proc/<pid>/cgroup`. A line whose path is not UTF-8 is skipped: kubelet and the
/// runtimes write only ASCII.
///
/// # Errors
/// [`MalformedCgroupFile`], after `each` was called for the lines before the fault.
pub fn memberships<'a>(text: &'a [u8], mut each: impl FnMut(CgroupMembership<'a>)) -> Result<(), MalformedCgroupFile> {
    for line in lines(text)? {
        let Ok(line) = std::str::from_utf8(line) else { continue };
        let mut parts = line.splitn(3, ':');
        match (parts.next(), parts.next(), parts.next()) {
            (Some(number), Some(controllers), Some(path)) if digits(number.as_bytes()).is_some() => {
                each(CgroupMembership { controllers, path });
            }
            _ => return Err(MalformedCgroupFile::Missing("a field of the cgroup line")),
        }
    }
    Ok(())
}

/// Calls `each` for every interface of `/proc/<pid>/net/dev` with its counters.
///
/// # Errors
/// [`MalformedCgroupFile`], after `each` was called for the interfaces before the fault, so a caller must use its sum
/// only after `Ok`.
pub fn net_dev<'a>(text: &'a [u8], mut each: impl FnMut(&'a [u8], NetworkSample)) -> Result<(), MalformedCgroupFile> {
    let mut body = lines(text)?;
    if !body.by_ref().take(2).all(|line| line.contains(&b'|')) {
        return Err(MalformedCgroupFile::Missing("the head of net/dev"));
    }
    for line in body {
        // The name may contain a colon (an alias), the numbers cannot.
        let colon = line.iter().rposition(|b| *b == b':').ok_or(MalformedCgroupFile::Missing("the interface"))?;
        let mut counters = [0; 16];
        let mut values = fields(&line[colon + 1..]);
        for counter in &mut counters {
            *counter = values.next().and_then(digits).ok_or(MalformedCgroupFile::NotANumber("a counter of net/dev"))?;
        }
        let [rx_bytes, rx_packets, rx_errors, rx_dropped, _, _, _, _, tx_bytes, tx_packets, tx_errors, tx_dropped, ..] =
            counters;
        let row = [rx_bytes, tx_bytes, rx_packets, tx_packets, rx_errors, tx_errors, rx_dropped, tx_dropped];
        each(line[..colon].trim_ascii(), NetworkSample::of(row));
    }
    Ok(())
}

/// One line of `/proc/<pid>/mountinfo`. Its texts still contain the kernel's octal escapes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MountInfo<'a> {
    /// The mounted folder of the file system; for cgroups relative to the root of the agent's cgroup namespace.
    pub root: &'a [u8],
    /// Mount point.
    pub point: &'a [u8],
    /// Type of the file system: `cgroup`, `cgroup2`, …
    pub kind: &'a [u8],
}

/// Calls `each` for every mount of `/proc/<pid>/mountinfo`.
///
/// # Errors
/// [`MalformedCgroupFile`], after `each` was called for the mounts before the fault.
pub fn mountinfo<'a>(text: &'a [u8], mut each: impl FnMut(MountInfo<'a>)) -> Result<(), MalformedCgroupFile> {
    for line in lines(text)? {
        let mut values = fields(line);
        let (root, point) = (values.nth(3), values.next());
        // Optional fields end with a lone dash; the type follows.
        let kind = values.by_ref().find(|field| *field == b"-").and_then(|_| values.next());
        match (root, point, kind) {
            (Some(root), Some(point), Some(kind)) => each(MountInfo { root, point, kind }),
            _ => return Err(MalformedCgroupFile::Missing("a field of mountinfo")),
        }
    }
    Ok(())
}

/// The text of a mount with its escapes (`\040` for a space) decoded.
#[must_use]
pub fn unescape(text: &[u8]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(text.len());
    let mut rest = text;
    while let [first, tail @ ..] = rest {
        if let [b'\\', a @ b'0'..=b'3', b @ b'0'..=b'7', c @ b'0'..=b'7', tail @ ..] = rest {
            plain.push((a - b'0') << 6 | (b - b'0') << 3 | (c - b'0'));
            rest = tail;
        } else {
            plain.push(*first);
            rest = tail;
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::unit::{Bytes, Count};
    use proptest::prelude::*;

    const TAIL: &str =
        "S 1 42 42 0 -1 4194560 100 0 0 0 7 5 0 0 20 0 3 0 123456 1000000 250 18446744073709551615 1 1 0\n";

    #[test]
    fn a_process_name_may_be_any_bytes() {
        for name in [&b"sh"[..], b"a b", b"a) R 1 (b", b")", b"((", b"\xff\xfe", b"", b"x\ny"] {
            let text = [b"42 (", name, b") ", TAIL.as_bytes()].concat();
            let stat = stat(&text).unwrap();
            assert_eq!((stat.pid, stat.command, stat.state), (42, name, b'S'));
            assert_eq!((stat.user_ticks, stat.system_ticks, stat.threads), (7, 5, 3));
            assert_eq!((stat.start_ticks, stat.rss_pages), (123_456, 250));
        }
    }

    #[test]
    fn a_stat_cut_before_its_end_is_an_error() {
        let text = format!("42 (sh) {TAIL}");
        for cut in 0..text.len() {
            assert!(stat(&text.as_bytes()[..cut]).is_err(), "cut at {cut}");
        }
        assert!(stat(b"42 (sh) S 1 2 3\n").is_err());
        assert!(stat(b"4x (sh) S 1 2 3\n").is_err());
        assert!(stat(b")(\n").is_err());
    }

    #[test]
    fn cgroup_memberships_of_both_versions_are_read() {
        let mut seen = Vec::new();
        let text = b"12:memory:/kubepods/a:b\n3:cpu,cpuacct:/\n1:name=systemd:/x\n0::/y\n4:pids:/\xff\n";
        memberships(text, |m| seen.push((m.controllers, m.path))).unwrap();
        assert_eq!(seen, [("memory", "/kubepods/a:b"), ("cpu,cpuacct", "/"), ("name=systemd", "/x"), ("", "/y")]);
        for bad in [&b""[..], b"0::/y", b"12:memory\n", b"x:memory:/\n"] {
            assert!(memberships(bad, |_| {}).is_err(), "{bad:?}");
        }
    }

    const NET: &[u8] = b"Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed
    lo:    3193      29    0    0    0     0          0         0     3193      29    0    0    0     0       0          0
eth0.1:12 3 4 5 0 0 0 0 22 13 14 15 0 0 0 0
";

    #[test]
    fn interfaces_are_read_with_their_counters() {
        let mut seen = Vec::new();
        net_dev(NET, |name, sample| seen.push((name, sample))).unwrap();
        assert_eq!((seen[0].0, seen[0].1.rx_bytes, seen[0].1.tx_packets), (&b"lo"[..], Bytes(3193), Count(29)));
        let eth = &seen[1].1;
        assert_eq!(
            (seen[1].0, eth.rx_bytes, eth.rx_packets, eth.rx_errors),
            (&b"eth0.1"[..], Bytes(12), Count(3), Count(4))
        );
        assert_eq!((eth.rx_dropped, eth.tx_bytes, eth.tx_packets), (Count(5), Bytes(22), Count(13)));
        assert_eq!((eth.tx_errors, eth.tx_dropped), (Count(14), Count(15)));
        for cut in 0..NET.len() {
            if !NET[..cut].ends_with(b"\n") {
                assert!(net_dev(&NET[..cut], |_, _| {}).is_err(), "cut at {cut}");
            }
        }
    }

    #[test]
    fn mounts_are_read_with_and_without_optional_fields() {
        let mut seen = Vec::new();
        let text = b"31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n35 31 0:32 /../.. /a\\040b rw master:1 x:2 - cgroup cgroup rw,memory\n";
        mountinfo(text, |mount| seen.push((mount.root, mount.point, mount.kind))).unwrap();
        assert_eq!(seen, [(&b"/"[..], &b"/sys/fs/cgroup"[..], &b"tmpfs"[..]), (b"/../..", b"/a\\040b", b"cgroup")]);
        assert_eq!(unescape(b"/a\\040b\\"), b"/a b\\");
        assert!(mountinfo(b"31 23 0:28 / /sys\n", |_| {}).is_err());
    }

    proptest! {
        #[test]
        fn no_bytes_cause_a_panic(text in prop::collection::vec(prop_oneof![any::<u8>(), prop::sample::select(b"0123456789 \n:()|-".to_vec())], 0..300)) {
            let _ = (stat(&text), memberships(&text, |_| {}), net_dev(&text, |_, _| {}));
            let _ = (mountinfo(&text, |_| {}), unescape(&text));
        }

        #[test]
        fn no_process_name_changes_the_fields_after_it(name in prop::collection::vec(any::<u8>(), 0..16)) {
            let text = [b"7 (", &name[..], b") ", TAIL.as_bytes()].concat();
            let stat = stat(&text).unwrap();
            prop_assert_eq!((stat.command, stat.start_ticks), (&name[..], 123_456));
        }
    }
}
