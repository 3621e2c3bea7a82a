//! Totals of a pod's network namespace, read through any of its running processes.
//!
//! Counters belong to the namespace (its number), not to the process. The number is read before and after the counters,
//! so that a reused PID is noticed. `net/dev` is never kept open: an open file would keep an ended pod's namespace, and
//! its interfaces, alive.
//!
//! What must never happen here: counters for a pod whose namespace cannot be distinguished from the host's. They would
//! be the traffic of the whole machine.

use crate::kernel_file::{KernelFileReader, ReadFailure};
use crate::procfs::process::{ProcError, namespace};
use model::cgroup::NetworkSample;
use model::{Absence, Reading};
use wire::proc_file::net_dev;

/// Maximum number of interfaces of one pod. A pod has one or two, and up to a hundred with many secondary networks.
const MAX_INTERFACES: usize = 256;

/// One pod's totals since its namespace was made; they continue in a new namespace.
#[derive(Clone, Debug, Default)]
pub struct NetworkTotals {
    namespace: Option<u64>,
    process: Option<u32>,
    interfaces: Vec<Interface>,
    total: [u64; 8],
    text: Vec<u8>,
}

#[derive(Clone, Debug)]
struct Interface {
    name: Box<[u8]>,
    last: [u64; 8],
    present: bool,
}

/// How namespaces are identified, and which namespace is the host's. The two methods give different numbers, so the
/// agent stays with the first method that works: a change would look like a new namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NetworkNamespaces {
    id: NamespaceId,
    host: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NamespaceId {
    /// The link `/proc/<pid>/ns/net`, which only a process that may trace the other can read.
    Link,
    /// The inode of `/proc/<pid>/net/dev`, which differs for each namespace and which every process can read.
    Counters,
}

impl NetworkNamespaces {
    /// By the link if the link of the host (process 1) can be read, otherwise by the counter file.
    ///
    /// # Errors
    /// [`ReadFailure`] of the second method, when neither method shows the host's namespace.
    pub fn find(reader: &mut KernelFileReader, procfs: &[u8]) -> Result<Self, ReadFailure> {
        Self::by_links(reader, procfs).or_else(|_| Self::by_counters(reader, procfs))
    }

    /// By the link, even if it can be read only for process 1.
    ///
    /// # Errors
    /// [`ReadFailure`].
    pub fn by_links(reader: &mut KernelFileReader, procfs: &[u8]) -> Result<Self, ReadFailure> {
        NamespaceId::Link.number(reader, procfs, b"1").map(|host| NetworkNamespaces { id: NamespaceId::Link, host })
    }

    /// By the counter file, which needs no capability.
    ///
    /// # Errors
    /// [`ReadFailure`].
    pub fn by_counters(reader: &mut KernelFileReader, procfs: &[u8]) -> Result<Self, ReadFailure> {
        NamespaceId::Counters
            .number(reader, procfs, b"1")
            .map(|host| NetworkNamespaces { id: NamespaceId::Counters, host })
    }
}

impl NamespaceId {
    fn number(self, reader: &mut KernelFileReader, procfs: &[u8], process: &[u8]) -> Result<u64, ReadFailure> {
        match self {
            NamespaceId::Link => namespace(reader, procfs, process, "net"),
            NamespaceId::Counters => reader.inode(&[procfs, b"/", process, b"/net/dev"]),
        }
    }
}

/// Where to read, and how namespaces are identified there.
#[derive(Clone, Copy, Debug)]
pub struct NetworkReader<'a> {
    /// `/proc`.
    pub procfs: &'a [u8],
    /// How namespaces are identified.
    pub namespaces: NetworkNamespaces,
}

impl NetworkReader<'_> {
    /// The number of a process's namespace.
    fn number(self, reader: &mut KernelFileReader, pid: u32) -> Result<u64, ReadFailure> {
        self.namespaces.id.number(reader, self.procfs, KernelFileReader::decimal(pid, &mut [0; 10]))
    }
}

impl NetworkTotals {
    /// Reads through the process of the last read. `None` if that process is no longer in the namespace: the caller
    /// then finds another process.
    pub fn read_again(
        &mut self,
        reader: &mut KernelFileReader,
        net: NetworkReader<'_>,
    ) -> Option<Reading<NetworkSample>> {
        let (pid, known) = (self.process?, self.namespace?);
        // For a pod in the host's namespace, any process with a reused PID would seem to be the pod's.
        if known == net.namespaces.host {
            return None;
        }
        if net.namespaces.id == NamespaceId::Link && net.number(reader, pid) != Ok(known) {
            return None;
        }
        self.read_in(reader, net, pid, known).ok().map(|()| self.reading())
    }

    /// Reads through the first of these processes that can be read.
    pub fn read_through(
        &mut self,
        reader: &mut KernelFileReader,
        net: NetworkReader<'_>,
        pids: &[u32],
    ) -> Reading<NetworkSample> {
        let mut why = Absence::NoLivingProcess;
        for &pid in pids {
            match self.read(reader, net, pid) {
                Ok(()) => return self.reading(),
                Err(ProcError::File(ReadFailure::NotFound | ReadFailure::Gone)) => {}
                Err(ProcError::File(ReadFailure::Refused)) => why = Absence::NeedsPtrace,
                Err(fault) => why = fault.absence(),
            }
        }
        Reading::Absent(why)
    }

    fn reading(&self) -> Reading<NetworkSample> {
        match self.process {
            Some(_) => Reading::Measured(NetworkSample::of(self.total), clock::monotonic()),
            None => Reading::Absent(Absence::HostNetwork),
        }
    }

    /// Reads once through one process. If the process is in the host's namespace, it is not kept for the next read.
    fn read(&mut self, reader: &mut KernelFileReader, net: NetworkReader<'_>, pid: u32) -> Result<(), ProcError> {
        let before = net.number(reader, pid)?;
        if before == net.namespaces.host {
            (self.namespace, self.process) = (Some(before), None);
            return Ok(());
        }
        self.read_in(reader, net, pid, before)
    }

    /// Reads the counters through a process of this namespace, and checks that the process was in the namespace during
    /// the read. If namespaces are identified by the inode of the counter file, the inode of the file that was read
    /// shows this.
    fn read_in(
        &mut self,
        reader: &mut KernelFileReader,
        net: NetworkReader<'_>,
        pid: u32,
        here: u64,
    ) -> Result<(), ProcError> {
        let mut digits = [0; 10];
        let process = KernelFileReader::decimal(pid, &mut digits);
        let mut text = std::mem::take(&mut self.text);
        text.clear();
        let (read, inode) = reader.read_records_with_inode(&[net.procfs, b"/", process, b"/net/dev"])?;
        text.extend_from_slice(read);
        let present = if net.namespaces.id == NamespaceId::Counters { inode } else { net.number(reader, pid)? };
        if present != here {
            return Err(ReadFailure::Gone.into());
        }
        net_dev(&text, |_, _| {})?; // the whole text is parsed before any of it is added
        if self.namespace != Some(here) {
            // A new namespace counts from 0, so all of its counters are added.
            self.interfaces.clear();
        }
        (self.namespace, self.process) = (Some(here), Some(pid));
        let added = self.add(&text);
        self.text = text;
        added
    }

    fn add(&mut self, text: &[u8]) -> Result<(), ProcError> {
        let NetworkTotals { interfaces, total, .. } = self;
        interfaces.iter_mut().for_each(|interface| interface.present = false);
        net_dev(text, |name, now| {
            if name == b"lo" {
                return;
            }
            let now = now.counters();
            let at = interfaces.iter().position(|interface| *interface.name == *name).unwrap_or(interfaces.len());
            if at == MAX_INTERFACES {
                return;
            }
            if at == interfaces.len() {
                interfaces.push(Interface { name: name.into(), last: [0; 8], present: true });
            }
            let interface = &mut interfaces[at];
            for ((total, last), now) in total.iter_mut().zip(&mut interface.last).zip(now) {
                // A counter that went backwards has started again.
                *total = total.saturating_add(now.checked_sub(*last).unwrap_or(now));
                *last = now;
            }
            interface.present = true;
        })?;
        interfaces.retain(|interface| interface.present);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::roots::part;
    use std::fs;
    use std::path::Path;

    fn process(root: &Path, pid: u32, inode: u64, interfaces: &[(&str, u64)]) {
        let at = root.join(pid.to_string());
        let _ = fs::remove_dir_all(&at);
        fs::create_dir_all(at.join("net")).unwrap();
        fs::create_dir_all(at.join("ns")).unwrap();
        std::os::unix::fs::symlink(format!("net:[{inode}]"), at.join("ns/net")).unwrap();
        let mut text = "a|b|c\nd|e|f\n".to_string();
        for (name, bytes) in interfaces {
            text += &format!("{name}: {bytes} 1 0 0 0 0 0 0 {bytes} 2 0 0 0 0 0 0\n");
        }
        fs::write(at.join("net/dev"), text).unwrap();
    }

    /// Bytes received in total, after a read through these processes.
    fn read_total(totals: &mut NetworkTotals, root: &Path, pids: &[u32]) -> Result<u64, Absence> {
        let (mut reader, procfs) = (KernelFileReader::default(), part(root));
        let net = NetworkReader { procfs: &procfs, namespaces: NetworkNamespaces { id: NamespaceId::Link, host: 1 } };
        let reading = totals.read_again(&mut reader, net);
        match reading.unwrap_or_else(|| totals.read_through(&mut reader, net, pids)) {
            Reading::Measured(sample, _) => Ok(sample.rx_bytes.0),
            Reading::Absent(why) => Err(why),
        }
    }

    #[test]
    fn totals_continue_after_counter_resets_new_namespaces_and_removed_interfaces() {
        let root = tempfile::tempdir().unwrap();
        let (root, mut totals) = (root.path(), NetworkTotals::default());
        for (inode, interfaces, total, why) in [
            (7, vec![("lo", 9999), ("eth0", 100)], 100, "loopback does not count"),
            (7, vec![("lo", 9999), ("eth0", 150)], 150, "grows"),
            (7, vec![("eth0", 160), ("eth1", 5)], 165, "a second interface"),
            (7, vec![("eth0", 170)], 175, "the second interface is removed"),
            (7, vec![("eth0", 20)], 195, "a counter that went backwards has started again"),
            (8, vec![("eth0", 50)], 245, "a new namespace counts from 0"),
        ] {
            process(root, 10, inode, &interfaces);
            assert_eq!(read_total(&mut totals, root, &[10]), Ok(total), "{why}");
        }
    }

    #[test]
    fn totals_are_read_through_any_living_process() {
        let root = tempfile::tempdir().unwrap();
        let (root, mut totals) = (root.path(), NetworkTotals::default());
        process(root, 10, 7, &[("eth0", 100)]);
        process(root, 11, 7, &[("eth0", 130)]);
        assert_eq!(read_total(&mut totals, root, &[9, 10, 11]), Ok(100));
        fs::remove_dir_all(root.join("10")).unwrap();
        assert_eq!(read_total(&mut totals, root, &[10, 11]), Ok(130));
        fs::remove_dir_all(root.join("11")).unwrap();
        assert_eq!(read_total(&mut totals, root, &[10, 11]), Err(Absence::NoLivingProcess));
        process(root, 12, 7, &[("eth0", 140)]);
        assert_eq!(read_total(&mut totals, root, &[12]), Ok(140), "the totals continue");
    }

    #[test]
    fn a_pod_in_the_hosts_network_namespace_has_no_totals() {
        let root = tempfile::tempdir().unwrap();
        let (root, mut totals) = (root.path(), NetworkTotals::default());
        process(root, 10, 1, &[("eth0", 100)]);
        for _ in 0..2 {
            assert_eq!(read_total(&mut totals, root, &[10]), Err(Absence::HostNetwork));
        }
    }

    #[test]
    fn without_namespace_links_namespaces_are_distinguished_by_their_counter_files() {
        let root = tempfile::tempdir().unwrap();
        let (root, procfs, mut totals) = (root.path(), part(root.path()), NetworkTotals::default());
        let mut reader = KernelFileReader::default();
        assert_eq!(
            NetworkNamespaces::find(&mut reader, &procfs),
            Err(ReadFailure::NotFound),
            "the host's namespace is unknown"
        );
        for (pid, bytes) in [(1, 5_000_000), (20, 100), (22, 7)] {
            process(root, pid, u64::from(pid), &[("eth0", bytes)]);
        }
        assert_eq!(
            NetworkNamespaces::find(&mut reader, &procfs),
            Ok(NetworkNamespaces { id: NamespaceId::Link, host: 1 })
        );
        for (pid, other) in [(10, 1), (21, 20)] {
            fs::create_dir_all(root.join(format!("{pid}/net"))).unwrap();
            fs::hard_link(root.join(format!("{other}/net/dev")), root.join(format!("{pid}/net/dev"))).unwrap();
        }
        for pid in [1, 20, 22] {
            fs::remove_dir_all(root.join(format!("{pid}/ns"))).unwrap();
        }
        let net = NetworkReader { procfs: &procfs, namespaces: NetworkNamespaces::find(&mut reader, &procfs).unwrap() };
        let mut read_total = |pid| match totals.read_again(&mut reader, net) {
            Some(reading) => reading,
            None => totals.read_through(&mut reader, net, &[pid]),
        };
        let bytes = |reading: Reading<NetworkSample>| reading.value().map(|sample| sample.rx_bytes.0);
        assert_eq!(read_total(10).absence(), Some(Absence::HostNetwork));
        assert_eq!(bytes(read_total(20)), Some(100));
        fs::remove_dir_all(root.join("20")).unwrap();
        assert_eq!(bytes(read_total(21)), Some(100), "another process of the same namespace adds nothing");
        fs::remove_dir_all(root.join("21")).unwrap();
        assert_eq!(bytes(read_total(22)), Some(107), "a new namespace counts from 0");
    }

    #[test]
    fn a_reused_pid_is_not_read() {
        let root = tempfile::tempdir().unwrap();
        let (root, mut totals) = (root.path(), NetworkTotals::default());
        process(root, 10, 7, &[("eth0", 100)]);
        assert_eq!(read_total(&mut totals, root, &[10]), Ok(100));
        process(root, 10, 99, &[("eth0", 5_000_000)]);
        assert_eq!(read_total(&mut totals, root, &[]), Err(Absence::NoLivingProcess));
    }

    #[test]
    fn a_truncated_counter_file_adds_nothing() {
        let root = tempfile::tempdir().unwrap();
        let (root, mut totals) = (root.path(), NetworkTotals::default());
        process(root, 10, 7, &[("eth0", 100), ("eth1", 1)]);
        assert_eq!(read_total(&mut totals, root, &[10]), Ok(101));
        process(root, 10, 7, &[("eth0", 200), ("eth1", 1)]);
        let path = root.join("10/net/dev");
        let text = fs::read(&path).unwrap();
        fs::write(&path, &text[..text.len() - 5]).unwrap();
        assert_eq!(read_total(&mut totals, root, &[10]), Err(Absence::Unreadable));
        fs::write(&path, &text).unwrap();
        assert_eq!(read_total(&mut totals, root, &[10]), Ok(201));
    }
}
