//! Selects the interfaces of the machine that are counted, so that each byte counts once.
//!
//! ```text
//!   eth0  eth1        counted: sysfs names a device for each
//!   bond0  bond0.100  br0  wg0  veth…   not: their bytes pass eth0 or eth1 as well, or never leave the machine
//!   a VF whose bytes the synthetic interface above it counts (Azure, virtio failover), a representor (`pf0vf1`)   not
//! ```
//!
//! If sysfs names no device at all, the interfaces are selected by name. That happens if sysfs is not mounted, if it
//! shows a network namespace other than process 1's, or if the machine is a container itself, whose `eth0` is one end
//! of a pair.

use crate::kernel_file::KernelFileReader;
use crate::procfs::process::namespace;
use crate::roots::{HostRoots, part};
use std::collections::BTreeSet;

/// Maximum number of interfaces with a device that are counted; a host with all virtual functions of several network
/// cards has a few hundred.
pub(crate) const MAX_INTERFACES: usize = 1024;

/// Knows which interfaces are counted.
#[derive(Debug)]
pub(crate) struct Interfaces {
    net: Vec<u8>,
    procfs: Vec<u8>,
    /// Whether the host's sysfs is mounted at another path than `/sys`.
    mounted: bool,
    /// Interfaces with a device of their own. As soon as there was one, interfaces are never selected by name again,
    /// because the sum would jump.
    devices: BTreeSet<Box<[u8]>>,
    by_device: bool,
}

impl Interfaces {
    pub(crate) fn new(roots: &HostRoots) -> Self {
        Interfaces {
            net: [&part(&roots.sysfs)[..], b"/class/net/"].concat(),
            procfs: part(&roots.procfs),
            mounted: roots.sysfs != HostRoots::default().sysfs,
            devices: BTreeSet::new(),
            by_device: false,
        }
    }

    /// Finds the interfaces with a device.
    pub(crate) fn find(&mut self, reader: &mut KernelFileReader) {
        if !self.mounted && !same_network(reader, &self.procfs) {
            return;
        }
        let mut names: Vec<Box<[u8]>> = Vec::new();
        let listed = reader.names(&[&self.net], |name| {
            if names.len() < MAX_INTERFACES {
                names.push(name.into());
            }
        });
        if listed.is_err() {
            return;
        }
        names.retain(|name| self.has_device(reader, name));
        names.retain(|name| !self.is_below_another(reader, name) && !self.is_representor(reader, name));
        self.by_device |= !names.is_empty();
        self.devices = names.into_iter().collect();
    }

    /// Whether the bytes of this interface are counted.
    pub(crate) fn counts(&self, name: &[u8]) -> bool {
        if self.by_device { self.devices.contains(name) } else { external_by_name(name) }
    }

    fn has_device(&self, reader: &mut KernelFileReader, name: &[u8]) -> bool {
        let device: [&[u8]; 3] = [&self.net, name, b"/device"];
        reader.link(&device).is_ok()
    }

    /// Whether the interface is enslaved to another interface that has a device itself and so counts the bytes of both.
    fn is_below_another(&self, reader: &mut KernelFileReader, name: &[u8]) -> bool {
        let Ok(master) = reader.link(&[&self.net, name, b"/master"]) else { return false };
        let master = master.rsplit(|b| *b == b'/').next().unwrap_or_default().to_vec();
        self.has_device(reader, &master)
    }

    /// Whether this is the host's end of a virtual function or subfunction: the kernel gives its port a name such as
    /// `pf0vf1`; the port to the wire is `p0`.
    fn is_representor(&self, reader: &mut KernelFileReader, name: &[u8]) -> bool {
        reader.read(&[&self.net, name, b"/phys_port_name"]).is_ok_and(|port| port.starts_with(b"pf"))
    }
}

/// Whether the agent is in the network namespace of process 1, so that the agent's own `/sys` shows the machine's
/// interfaces. Compares the namespace links if the agent may read them, otherwise the inodes of the counter files,
/// which differ between namespaces.
fn same_network(reader: &mut KernelFileReader, procfs: &[u8]) -> bool {
    let by_link = |reader: &mut KernelFileReader, process| namespace(reader, procfs, process, "net");
    if let Ok(host) = by_link(reader, b"1") {
        return by_link(reader, b"self") == Ok(host);
    }
    let mut by_counters = |process: &[u8]| reader.inode(&[procfs, b"/", process, b"/net/dev"]);
    by_counters(b"1").is_ok_and(|host| by_counters(b"self") == Ok(host))
}

/// Whether the name is no name of a bridge, bond, tunnel or VLAN, or of the host's end of a pod's interface. Their
/// bytes pass a physical interface as well or never leave the machine.
fn external_by_name(name: &[u8]) -> bool {
    #[rustfmt::skip]
    const INTERNAL: [&[u8]; 47] = [
        b"veth", b"docker", b"virbr", b"cni", b"cbr", b"cali", b"cilium", b"lxc", b"lxdbr", b"flannel", b"tunl", b"vxlan",
        b"geneve", b"genev_sys", b"gre", b"erspan", b"sit", b"ip6tnl", b"ip6_vti", b"ip_vti", b"kube-", b"nodelocaldns",
        b"dummy", b"ifb", b"nerdctl", b"podman", b"tap", b"tun", b"wg", b"tailscale", b"weave", b"bond", b"team", b"vlan",
        b"macvlan", b"macvtap", b"ipvlan", b"vmbr", b"bridge", b"ovs", b"ovn", b"antrea", b"azv", b"gke", b"nlmon",
        b"vcan", b"vrf",
    ];
    let numbered = |rest: &[u8]| !rest.is_empty() && rest.iter().all(u8::is_ascii_digit);
    let bridge = name.strip_prefix(b"br").is_some_and(|rest| rest.starts_with(b"-") || numbered(rest));
    let vlan = name.iter().rposition(|b| *b == b'.').is_some_and(|dot| numbered(&name[dot + 1..]));
    // Amazon's network plugin names pods' ends `eni` and eleven hexadecimal digits.
    let pod = name.strip_prefix(b"eni").is_some_and(|rest| rest.len() == 11 && rest.iter().all(u8::is_ascii_hexdigit));
    name != b"lo" && !bridge && !vlan && !pod && !INTERNAL.iter().any(|internal| name.starts_with(internal))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::path::Path;

    /// Makes `/sys/class/net` as the kernel has it: with or without a device, a master and a port.
    fn interface(sysfs: &Path, name: &str, device: bool, master: Option<&str>, port: Option<&str>) {
        let at = sysfs.join("class/net").join(name);
        fs::create_dir_all(&at).unwrap();
        if device {
            symlink("../../../0000:65:00.0", at.join("device")).unwrap();
        }
        if let Some(master) = master {
            symlink(format!("../{master}"), at.join("master")).unwrap();
        }
        if let Some(port) = port {
            fs::write(at.join("phys_port_name"), format!("{port}\n")).unwrap();
        }
    }

    fn counted(interfaces: &Interfaces, names: &[&'static str]) -> Vec<&'static str> {
        names.iter().copied().filter(|name| interfaces.counts(name.as_bytes())).collect()
    }

    const ALL: [&str; 10] = ["lo", "eth0", "eth1", "bond0", "bond0.100", "br0", "wg0", "vf0", "rep0", "custom"];

    #[test]
    fn interfaces_with_a_device_are_counted_once() {
        let base = tempfile::tempdir().unwrap();
        let roots = HostRoots { procfs: base.path().join("p"), cgroup: "/".into(), sysfs: base.path().join("s") };
        let mut interfaces = Interfaces::new(&roots);
        let mut reader = KernelFileReader::default();
        interfaces.find(&mut reader);
        let by_name = ["eth0", "eth1", "vf0", "rep0", "custom"];
        assert_eq!(counted(&interfaces, &ALL), by_name, "without sysfs they are selected by name");
        for name in ["lo", "bond0", "bond0.100", "br0", "wg0", "custom"] {
            interface(&roots.sysfs, name, false, None, None);
        }
        interfaces.find(&mut reader);
        assert_eq!(counted(&interfaces, &ALL), by_name, "a host on which no interface has a device");
        interface(&roots.sysfs, "eth0", true, Some("bond0"), Some("p0"));
        interface(&roots.sysfs, "eth1", true, Some("bond0"), None);
        interface(&roots.sysfs, "vf0", true, Some("eth1"), None);
        interface(&roots.sysfs, "rep0", true, None, Some("pf0vf3"));
        interfaces.find(&mut reader);
        assert_eq!(counted(&interfaces, &ALL), ["eth0", "eth1"]);
        fs::remove_dir_all(roots.sysfs.join("class/net")).unwrap();
        fs::create_dir_all(roots.sysfs.join("class/net")).unwrap();
        interfaces.find(&mut reader);
        assert!(counted(&interfaces, &ALL).is_empty(), "a removed interface does not cause a selection by name");
    }

    #[test]
    fn internal_interfaces_are_recognised_by_name() {
        for external in ["eth0", "ens3", "enp1s0f0np0", "eno1", "ib0", "wlan0", "brcm0", "wwan0", "eni0", "venet0"] {
            assert!(external_by_name(external.as_bytes()), "{external}");
        }
        for internal in [
            "lo",
            "veth12ab",
            "docker0",
            "br-12",
            "br0",
            "cni0",
            "cali1",
            "cilium_host",
            "bond0",
            "team1",
            "eth0.100",
            "bond0.7",
            "vlan5",
            "ovs-system",
            "genev_sys_6081",
            "tun0",
            "wg0",
            "vmbr0",
            "eni1a2b3c4d5e6",
        ] {
            assert!(!external_by_name(internal.as_bytes()), "{internal}");
        }
    }

    #[test]
    fn sysfs_of_another_network_namespace_is_not_used() {
        let base = tempfile::tempdir().unwrap();
        let procfs = part(base.path());
        let mut reader = KernelFileReader::default();
        let write = |process: &str| {
            fs::create_dir_all(base.path().join(process).join("net")).unwrap();
            fs::write(base.path().join(process).join("net/dev"), "").unwrap();
        };
        assert!(!same_network(&mut reader, &procfs), "the namespace is unknown");
        write("1");
        write("self");
        assert!(!same_network(&mut reader, &procfs));
        fs::remove_file(base.path().join("self/net/dev")).unwrap();
        fs::hard_link(base.path().join("1/net/dev"), base.path().join("self/net/dev")).unwrap();
        assert!(same_network(&mut reader, &procfs));
        for (process, number, same) in [("1", 7, false), ("self", 7, true)] {
            fs::create_dir_all(base.path().join(process).join("ns")).unwrap();
            symlink(format!("net:[{number}]"), base.path().join(process).join("ns/net")).unwrap();
            assert_eq!(same_network(&mut reader, &procfs), same, "{process}");
        }
    }
}
