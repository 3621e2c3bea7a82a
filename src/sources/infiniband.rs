//! Reads InfiniBand ports from sysfs, in the slow period: `/sys/class/infiniband/<device>/ports/<n>/counters`. The
//! kernel lists RoCE devices there too.
//!
//! What must never happen here: a port that cannot be read shown with zeros; a list that grows with the contents of
//! sysfs.

use crate::kernel_file::{KernelFileReader, ReadFailure};
use crate::roots::{HostRoots, part};
use model::infiniband::{InfinibandPort, MAX_PORTS};
use model::unit::{Bytes, Count};
use model::{Absence, Reading};
use std::sync::Arc;
use wire::sysfs_file::{counter, port_active};

/// The kernel counts data in words of four bytes.
const WORD: u64 = 4;

/// Reads InfiniBand ports.
#[derive(Debug)]
pub(crate) struct Infiniband {
    class: Vec<u8>,
}

impl Infiniband {
    pub(crate) fn new(roots: &HostRoots) -> Self {
        Infiniband { class: [&part(&roots.sysfs)[..], b"/class/infiniband/"].concat() }
    }

    /// All ports, ordered by device and number; empty if there is no such device.
    pub(crate) fn read(&self, reader: &mut KernelFileReader) -> Vec<InfinibandPort> {
        let mut ports = Vec::new();
        for device in names(reader, &[&self.class]) {
            for number in names(reader, &[&self.class, device.as_bytes(), b"/ports"]) {
                if let Some(number) = counter(number.as_bytes()).and_then(|number| u32::try_from(number).ok())
                    && ports.len() < MAX_PORTS
                {
                    ports.push(self.port(reader, &device, number));
                }
            }
        }
        ports
    }

    fn port(&self, reader: &mut KernelFileReader, device: &str, number: u32) -> InfinibandPort {
        let at = clock::monotonic();
        let folder = [&self.class[..], device.as_bytes()].concat();
        let port = [&folder[..], b"/ports/", KernelFileReader::decimal(number, &mut [0; 10])].concat();
        let mut count = |name: &[u8]| file(reader, &[&port, b"/counters/", name], counter);
        let mut plain = |name: &[u8]| Reading::from_result(count(name).map(Count), at);
        let [packets_received, packets_sent, receive_errors, send_discards, symbol_errors, recoveries, downs] = [
            plain(b"port_rcv_packets"),
            plain(b"port_xmit_packets"),
            plain(b"port_rcv_errors"),
            plain(b"port_xmit_discards"),
            plain(b"symbol_error"),
            plain(b"link_error_recovery"),
            plain(b"link_downed"),
        ];
        let mut bytes =
            |name: &[u8]| Reading::from_result(count(name).map(|words| Bytes(words.saturating_mul(WORD))), at);
        let (received, sent) = (bytes(b"port_rcv_data"), bytes(b"port_xmit_data"));
        let active = file(reader, &[&port, b"/state"], port_active);
        // The kernel writes -1 if it does not know the node.
        let node = file(reader, &[&folder, b"/device/numa_node"], counter);
        let node = node.and_then(|node| u32::try_from(node).map_err(|_| Absence::Unreadable));
        let pci_path = match reader.link(&[&folder]) {
            Ok(target) => pci_path(target).map(Arc::from).ok_or(Absence::NotSupported),
            Err(failure) => Err(failure.absence()),
        };
        InfinibandPort {
            device: device.into(),
            number,
            pci_path: Reading::from_result(pci_path, at),
            numa_node: Reading::from_result(node, at),
            active: Reading::from_result(active, at),
            received,
            sent,
            packets_received,
            packets_sent,
            receive_errors,
            send_discards,
            symbol_errors,
            recoveries,
            downs,
        }
    }
}

/// Names in a folder, ordered; empty if there is no such folder.
fn names(reader: &mut KernelFileReader, folder: &[&[u8]]) -> Vec<String> {
    let mut names = Vec::new();
    let _ = reader.names(folder, |name| {
        if let Ok(name) = std::str::from_utf8(name)
            && names.len() < MAX_PORTS
        {
            names.push(name.to_owned());
        }
    });
    names.sort();
    names
}

fn file<T>(reader: &mut KernelFileReader, path: &[&[u8]], decode: fn(&[u8]) -> Option<T>) -> Result<T, Absence> {
    let text = reader.read_piece(path).map_err(ReadFailure::absence)?;
    decode(text).ok_or(Absence::Unreadable)
}

/// The PCI bridges above a device, from the target of its sysfs link:
/// `../../devices/pci0000:15/…/0000:18:00.0/infiniband/mlx5_0`. `None` for a device on no PCI bus.
pub(crate) fn pci_path(target: &[u8]) -> Option<&str> {
    let target = std::str::from_utf8(target).ok()?;
    let (_, path) = target.split_once("devices/")?;
    let path = path.split_once("/infiniband/").map_or(path, |(path, _)| path);
    path.starts_with("pci").then_some(path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;
    use std::path::Path;

    fn put(path: &Path, text: &str) {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    #[test]
    fn ports_are_read_with_their_counters_pci_path_and_numa_node() {
        let sysfs = tempfile::tempdir().unwrap();
        let slot = sysfs.path().join("devices/pci0000:15/0000:15:01.0/0000:19:00.0");
        let device = slot.join("infiniband/mlx5_0");
        put(&slot.join("numa_node"), "1\n");
        put(&device.join("ports/1/state"), "4: ACTIVE\n");
        for (name, text) in [
            ("port_rcv_data", "1000\n"),
            ("port_xmit_data", "2000\n"),
            ("port_rcv_errors", "3\n"),
            ("symbol_error", "N/A (not available)\n"),
            ("link_downed", "2\n"),
        ] {
            put(&device.join("ports/1/counters").join(name), text);
        }
        let class = sysfs.path().join("class/infiniband");
        std::fs::create_dir_all(&class).unwrap();
        symlink("../../devices/pci0000:15/0000:15:01.0/0000:19:00.0/infiniband/mlx5_0", class.join("mlx5_0")).unwrap();
        symlink("../../../0000:19:00.0", device.join("device")).unwrap();
        let roots = HostRoots { sysfs: sysfs.path().to_owned(), ..HostRoots::default() };
        let ports = Infiniband::new(&roots).read(&mut KernelFileReader::default());
        let [port] = &ports[..] else { panic!("{ports:?}") };
        assert_eq!((&*port.device, port.number, port.active.get()), ("mlx5_0", 1, Some(true)));
        assert_eq!((port.received.get(), port.sent.get()), (Some(Bytes(4000)), Some(Bytes(8000))), "words of four");
        assert_eq!((port.receive_errors.get(), port.downs.get()), (Some(Count(3)), Some(Count(2))));
        assert_eq!(port.symbol_errors.absence(), Some(Absence::Unreadable), "not counted is not 0");
        assert_eq!(port.recoveries.absence(), Some(Absence::NoSuchFile));
        assert_eq!(port.numa_node.get(), Some(1));
        assert_eq!(port.pci_path.value().map(|path| &**path), Some("pci0000:15/0000:15:01.0/0000:19:00.0"));
    }

    #[test]
    fn a_host_without_infiniband_has_no_ports_and_the_number_of_ports_is_bounded() {
        let sysfs = tempfile::tempdir().unwrap();
        let roots = HostRoots { sysfs: sysfs.path().to_owned(), ..HostRoots::default() };
        assert!(Infiniband::new(&roots).read(&mut KernelFileReader::default()).is_empty());
        for device in 0..100 {
            for port in ["1", "2", "x"] {
                std::fs::create_dir_all(sysfs.path().join(format!("class/infiniband/i{device}/ports/{port}"))).unwrap();
            }
        }
        assert_eq!(Infiniband::new(&roots).read(&mut KernelFileReader::default()).len(), MAX_PORTS);
    }
}
