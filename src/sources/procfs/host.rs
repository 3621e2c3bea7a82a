//! Readings of the whole machine from files that are kept open: most of them every second, pressure and OOM kills in
//! the slow period.

use crate::kernel_file::{KernelFileReader, ReadFailure};
use crate::procfs::carried::Carried;
use crate::procfs::host_file::{DiskIo, HostStat, MemInfo, diskstats, host_stat, loadavg, meminfo, oom_kills};
use crate::procfs::interfaces::{Interfaces, MAX_INTERFACES};
use crate::procfs::visibility::ProcVisibility;
use crate::roots::{HostRoots, part};
use model::cgroup::NetworkSample;
use model::host::{HostPressure, HostSample};
use model::unit::{Bytes, Count, Nanos};
use model::{Absence, Reading};
use rustix::fd::OwnedFd;
use wire::cgroup_file;
use wire::proc_file::net_dev;

/// Maximum number of disks that are counted; a storage server has about a hundred.
const MAX_DISKS: usize = 1024;

/// Reads the whole machine. It keeps its files open from one reading to the next.
#[derive(Debug)]
pub struct HostReader {
    procfs: Vec<u8>,
    block: Vec<u8>,
    nanos_a_tick: u64,
    kept: [Option<OwnedFd>; 9],
    oom_kills: Reading<Count>,
    pressure: Reading<HostPressure>,
    /// The whole disks, or why they are not known.
    disks: Result<Vec<Box<[u8]>>, Absence>,
    read_and_written: Carried<4>,
    interfaces: Interfaces,
    received_and_sent: Carried<8>,
    visibility: ProcVisibility,
    logged: bool,
    /// Files that could not be parsed since the start.
    pub faults: u64,
}

#[derive(Clone, Copy)]
enum File {
    Stat,
    Load,
    Memory,
    Disks,
    Net,
    Vm,
    CpuPressure,
    MemoryPressure,
    IoPressure,
}

impl HostReader {
    /// A reader under these roots.
    #[must_use]
    pub fn new(roots: &HostRoots) -> Self {
        let procfs = part(&roots.procfs);
        let nanos_a_tick = 1_000_000_000 / rustix::param::clock_ticks_per_second().max(1);
        let block = [&part(&roots.sysfs)[..], b"/block/"].concat();
        HostReader {
            visibility: ProcVisibility::detect(&mut KernelFileReader::default(), &procfs),
            procfs,
            block,
            nanos_a_tick,
            kept: Default::default(),
            oom_kills: Reading::NOT_YET,
            pressure: Reading::NOT_YET,
            disks: Err(Absence::NotYet),
            read_and_written: Carried::new(MAX_DISKS),
            interfaces: Interfaces::new(roots),
            received_and_sent: Carried::new(MAX_INTERFACES),
            logged: false,
            faults: 0,
        }
    }

    /// Finds the whole disks in `/sys/block`, which lists partitions below their disks. Leaves out devices that lie on
    /// other disks or in memory: they would count twice, or are not disks.
    pub fn find_disks(&mut self, reader: &mut KernelFileReader) {
        let mut disks: Vec<Box<[u8]>> = Vec::new();
        // Entries of /sys/block are links; in a tree made by tests they may be directories.
        let listed = reader.names(&[&self.block], |name| {
            let virtual_disk = [&b"loop"[..], b"ram", b"zram", b"dm-", b"md"].iter().any(|kind| name.starts_with(kind));
            if !virtual_disk && disks.len() < MAX_DISKS {
                disks.push(name.into());
            }
        });
        self.disks = match listed {
            Ok(()) => Ok(disks),
            Err(failure) => {
                self.faults += 1;
                if !std::mem::replace(&mut self.logged, true) {
                    let path = String::from_utf8_lossy(&self.block);
                    tracing::warn!(%path, error = %failure, "disks of the machine cannot be listed, so what is read from and written to them is absent; further failures are only counted");
                }
                Err(failure.absence())
            }
        };
    }

    /// Finds the interfaces that are counted.
    pub fn find_interfaces(&mut self, reader: &mut KernelFileReader) {
        self.interfaces.find(reader);
    }

    /// Reads the values that change slowly; [`HostReader::read`] repeats these values with the time of this read.
    pub fn read_slow(&mut self, reader: &mut KernelFileReader) {
        self.oom_kills = match self.take(reader, File::Vm, oom_kills) {
            Reading::Measured(Some(kills), at) => Reading::Measured(kills, at),
            Reading::Measured(None, _) => Reading::Absent(Absence::NotSupported), // a kernel before 4.13
            Reading::Absent(why) => Reading::Absent(why),
        };
        self.pressure = self.pressure(reader);
    }

    fn pressure(&mut self, reader: &mut KernelFileReader) -> Reading<HostPressure> {
        let mut of = |file| self.take(reader, file, cgroup_file::pressure);
        match (of(File::CpuPressure), of(File::MemoryPressure), of(File::IoPressure)) {
            (Reading::Measured((cpu_waiting, _), _), Reading::Measured(memory, _), Reading::Measured(io, at)) => {
                let (memory_waiting, memory_stalled) = memory;
                let (io_waiting, io_stalled) = io;
                Reading::Measured(
                    HostPressure { cpu_waiting, memory_waiting, memory_stalled, io_waiting, io_stalled },
                    at,
                )
            }
            (Reading::Absent(why), ..) | (_, Reading::Absent(why), _) | (.., Reading::Absent(why)) => {
                Reading::Absent(why)
            }
        }
    }

    /// Reads everything once.
    pub fn read(&mut self, reader: &mut KernelFileReader) -> HostSample {
        let mut sample = HostSample::default();
        let tick = self.nanos_a_tick;
        let nanos = |ticks: u64| Nanos(ticks.saturating_mul(tick));
        let stat = self.take(reader, File::Stat, host_stat);
        let time = |field: fn(&HostStat) -> u64| stat.map(|stat| nanos(field(&stat)));
        sample.cpu_user = time(|stat| stat.user_ticks);
        sample.cpu_system = time(|stat| stat.system_ticks);
        sample.cpu_idle = time(|stat| stat.idle_ticks);
        sample.cpu_iowait = time(|stat| stat.iowait_ticks);
        sample.cpu_steal = time(|stat| stat.steal_ticks);
        sample.processors = stat.map(|stat| Count(stat.processors));
        let load = self.take(reader, File::Load, loadavg);
        (sample.load, sample.tasks) = (load.map(|load| load.loads), load.map(|load| Count(load.tasks)));
        let memory = self.take(reader, File::Memory, meminfo);
        let bytes = |field: fn(&MemInfo) -> Bytes| memory.map(|memory| field(&memory));
        sample.memory_total = bytes(|memory| memory.total);
        let optional = |field: fn(&MemInfo) -> Option<Bytes>| match &memory {
            Reading::Measured(memory, at) => {
                field(memory).ok_or(Absence::NotSupported).map_or_else(Reading::Absent, |it| Reading::Measured(it, *at))
            }
            Reading::Absent(why) => Reading::Absent(*why),
        };
        sample.memory_available = optional(|memory| memory.available);
        sample.memory_working_set = optional(|memory| Some(memory.total.less(memory.available?)));
        sample.memory_rss = optional(|memory| memory.anonymous);
        sample.memory_cache = bytes(|memory| memory.cache);
        sample.swap_used = bytes(|memory| memory.swap_used);
        let disks = self.disks(reader);
        (sample.disk_read, sample.disk_write) = (disks.map(|sum| sum.read), disks.map(|sum| sum.write));
        (sample.disk_reads, sample.disk_writes) = (disks.map(|sum| sum.reads), disks.map(|sum| sum.writes));
        sample.network = self.network(reader);
        (sample.oom_kills, sample.pressure) = (self.oom_kills, self.pressure);
        sample
    }

    fn disks(&mut self, reader: &mut KernelFileReader) -> Reading<DiskIo> {
        let disks_found = match &self.disks {
            Ok(disks_found) => disks_found.clone(),
            Err(why) => return Reading::Absent(*why),
        };
        let mut found: Vec<(usize, DiskIo)> = Vec::new();
        let read = self.take(reader, File::Disks, |text| {
            diskstats(text, |name, io| {
                found.extend(disks_found.iter().position(|disk| **disk == *name).map(|at| (at, io)));
            })
        });
        let sum = &mut self.read_and_written;
        read.map(|()| {
            sum.begin();
            for (at, io) in found {
                sum.add(&disks_found[at], [io.read.0, io.write.0, io.reads.0, io.writes.0]);
            }
            // A machine without disks reads nothing from them.
            let [read, write, reads, writes] = sum.total().unwrap_or_default();
            DiskIo { read: Bytes(read), write: Bytes(write), reads: Count(reads), writes: Count(writes) }
        })
    }

    fn network(&mut self, reader: &mut KernelFileReader) -> Reading<NetworkSample> {
        // Process 1 belongs to the agent's own container, and so does its network.
        if self.visibility == ProcVisibility::Private {
            return Reading::Absent(Absence::ProcessesHidden);
        }
        let mut found: Vec<(Box<[u8]>, NetworkSample)> = Vec::new();
        let read =
            self.take(reader, File::Net, |text| net_dev(text, |name, counters| found.push((name.into(), counters))));
        let (sum, interfaces) = (&mut self.received_and_sent, &self.interfaces);
        match read {
            Reading::Absent(why) => Reading::Absent(why),
            Reading::Measured((), at) => {
                sum.begin();
                for (name, sample) in found.iter().filter(|(name, _)| interfaces.counts(name)) {
                    sum.add(name, sample.counters());
                }
                match sum.total() {
                    Some(total) => Reading::Measured(NetworkSample::of(total), at),
                    None => Reading::Absent(Absence::NotSupported), // all interfaces lie on others
                }
            }
        }
    }

    fn take<T, E>(
        &mut self,
        reader: &mut KernelFileReader,
        file: File,
        parse: impl FnOnce(&[u8]) -> Result<T, E>,
    ) -> Reading<T> {
        let text = match self.text(reader, file) {
            Ok(text) => text,
            Err(failure) => return Reading::Absent(failure.absence()),
        };
        let at = clock::monotonic();
        Reading::from_result(
            parse(text).map_err(|_| {
                self.faults += 1;
                Absence::Unreadable
            }),
            at,
        )
    }

    fn text<'r>(&mut self, reader: &'r mut KernelFileReader, file: File) -> Result<&'r [u8], ReadFailure> {
        let kept = &mut self.kept[file as usize];
        if kept.is_none() {
            let name: &[u8] = match file {
                File::Stat => b"/stat",
                File::Load => b"/loadavg",
                File::Memory => b"/meminfo",
                File::Disks => b"/diskstats",
                // The file of process 1: `/proc/net` shows the agent's own namespace, which may be a pod's.
                File::Net => b"/1/net/dev",
                File::Vm => b"/vmstat",
                File::CpuPressure => b"/pressure/cpu",
                File::MemoryPressure => b"/pressure/memory",
                File::IoPressure => b"/pressure/io",
            };
            *kept = Some(reader.open(&[&self.procfs, name])?);
        }
        match kept {
            Some(kept) => reader.read_open(kept),
            None => Err(ReadFailure::NotFound),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::procfs::host_file::tests::meminfo_with;
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::path::Path;

    /// Bytes read from a disk, or received on an interface.
    type Counts = [(&'static str, u64)];

    fn counted(root: &Path, disks: &Counts, interfaces: &Counts) {
        let lines: String =
            disks.iter().map(|(name, count)| format!("8 0 {name} 1 0 {count} 0 1 0 4 0 0 0 0\n")).collect();
        fs::create_dir_all(root.join("1/net")).unwrap();
        fs::write(root.join("diskstats"), lines).unwrap();
        let line = |(name, count): &(&str, u64)| format!("{name}: {count} 1 0 0 0 0 0 0 20 2 0 0 0 0 0 0\n");
        let lines: String = interfaces.iter().map(line).collect();
        fs::write(root.join("1/net/dev"), format!("|\n|\n{lines}")).unwrap();
    }

    #[test]
    fn counts_of_removed_disks_and_interfaces_stay_in_the_sum() {
        let base = tempfile::tempdir().unwrap();
        let roots = HostRoots { procfs: base.path().join("p"), cgroup: "/".into(), sysfs: base.path().join("s") };
        let mut reader = KernelFileReader::default();
        counted(&roots.procfs, &[("sda", 2), ("sdb", 8)], &[("lo", 5), ("eth0", 10), ("eth1", 30)]);
        let mut host = HostReader::new(&roots);
        host.find_disks(&mut reader);
        for _ in 0..2 {
            let lost = host.read(&mut reader);
            assert_eq!(lost.disk_read.absence(), Some(Absence::NoSuchFile), "without sysfs no disk is known");
            assert_eq!(lost.disk_writes.absence(), Some(Absence::NoSuchFile));
        }
        assert_eq!(host.faults, 1);
        for disk in ["sda", "sdb"] {
            fs::create_dir_all(roots.sysfs.join("block").join(disk)).unwrap();
        }
        let mut read = |disks: &Counts, interfaces: &Counts| {
            counted(&roots.procfs, disks, interfaces);
            host.find_disks(&mut reader);
            host.find_interfaces(&mut reader);
            let sample = host.read(&mut reader);
            (sample.disk_read.get().map(|bytes| bytes.0), sample.network.value().map(|sum| sum.rx_bytes.0))
        };
        assert_eq!(read(&[("sda", 2), ("sdb", 8)], &[("eth0", 10), ("eth1", 30)]), (Some(5120), Some(40)));
        fs::remove_dir(roots.sysfs.join("block/sdb")).unwrap();
        assert_eq!(read(&[("sda", 4)], &[("eth0", 11)]), (Some(6144), Some(41)));
        fs::create_dir(roots.sysfs.join("block/sdb")).unwrap();
        let returned = read(&[("sda", 4), ("sdb", 1)], &[("eth0", 11), ("eth1", 32)]);
        assert_eq!(returned, (Some(6656), Some(43)), "another disk; an interface that was lent and came back");
    }

    #[test]
    fn bytes_that_pass_several_interfaces_are_counted_once() {
        let stacked: &Counts =
            &[("lo", 7), ("eth0", 1000), ("eth1", 2000), ("bond0", 3000), ("bond0.100", 3000), ("br0", 3000)];
        for with_devices in [false, true] {
            let base = tempfile::tempdir().unwrap();
            let roots = HostRoots { procfs: base.path().join("p"), cgroup: "/".into(), sysfs: base.path().join("s") };
            counted(&roots.procfs, &[], stacked);
            for (name, _) in stacked.iter().filter(|_| with_devices) {
                let at = roots.sysfs.join("class/net").join(name);
                fs::create_dir_all(&at).unwrap();
                if name.starts_with("eth") {
                    symlink("../../../0000:65:00.0", at.join("device")).unwrap();
                }
            }
            let (mut host, mut reader) = (HostReader::new(&roots), KernelFileReader::default());
            host.find_interfaces(&mut reader);
            let sample = host.read(&mut reader);
            assert_eq!(sample.network.value().map(|sum| sum.rx_bytes.0), Some(3000), "{with_devices}");
            counted(&roots.procfs, &[], &[("lo", 7), ("bond0", 3000)]);
            let sample = HostReader::new(&roots).read(&mut reader);
            assert_eq!(sample.network.absence(), Some(Absence::NotSupported), "no 0 where nothing is counted");
        }
    }

    #[test]
    fn the_network_of_the_agents_container_is_not_reported_as_the_hosts() {
        let base = tempfile::tempdir().unwrap();
        let roots = HostRoots { procfs: base.path().into(), cgroup: "/".into(), sysfs: base.path().join("s") };
        counted(&roots.procfs, &[], &[("eth0", 10)]);
        let own = std::process::id();
        fs::create_dir_all(base.path().join(format!("{own}/ns"))).unwrap();
        symlink(own.to_string(), base.path().join("self")).unwrap();
        symlink("pid:[4026532999]", base.path().join("self/ns/pid")).unwrap();
        let sample = HostReader::new(&roots).read(&mut KernelFileReader::default());
        assert_eq!(sample.network.absence(), Some(Absence::ProcessesHidden));
    }

    #[test]
    fn whole_disks_and_external_interfaces_are_summed() {
        let base = tempfile::tempdir().unwrap();
        let roots = HostRoots { procfs: base.path().join("p"), cgroup: "/".into(), sysfs: base.path().join("s") };
        fs::create_dir_all(roots.procfs.join("1/net")).unwrap();
        for disk in ["sda", "nvme0n1", "dm-0", "loop0", "zram0"] {
            fs::create_dir_all(roots.sysfs.join("block").join(disk)).unwrap();
        }
        let line = |name: &str| format!("8 0 {name} 1 0 2 0 1 0 4 0 0 0 0\n");
        let disks: String = ["sda", "sda1", "nvme0n1", "nvme0n1p1", "dm-0", "loop0", "zram0"].map(line).concat();
        fs::write(roots.procfs.join("diskstats"), disks).unwrap();
        let line = |name: &str| format!("{name}: 10 1 0 0 0 0 0 0 20 2 0 0 0 0 0 0\n");
        let interfaces =
            ["lo", "eth0", "ib0", "veth12", "docker0", "br-1", "cni0", "cali1", "cilium_host"].map(line).concat();
        fs::write(roots.procfs.join("1/net/dev"), format!("|\n|\n{interfaces}")).unwrap();
        fs::write(
            roots.procfs.join("stat"),
            "cpu  1 2 3 4 5 6 7 8 9 9\ncpu0 1 2 3 4 5 6 7 8 9 9\nctxt 1\nbtime 7\nprocesses 1\n",
        )
        .unwrap();
        fs::write(roots.procfs.join("meminfo"), meminfo_with(&["MemTotal: 10 kB", "Cached: 1 kB"])).unwrap();
        fs::write(roots.procfs.join("loadavg"), "0.5 1.0").unwrap();
        let (mut host, mut reader) = (HostReader::new(&roots), KernelFileReader::default());
        host.find_disks(&mut reader);
        let sample = host.read(&mut reader);
        assert_eq!((sample.disk_read.get(), sample.disk_write.get()), (Some(Bytes(2048)), Some(Bytes(4096))));
        assert_eq!((sample.disk_reads.get(), sample.disk_writes.get()), (Some(Count(2)), Some(Count(2))));
        let network = sample.network.value().unwrap();
        assert_eq!((network.rx_bytes, network.tx_bytes), (Bytes(20), Bytes(40)));
        assert_eq!((network.rx_packets, network.tx_packets), (Count(2), Count(4)));
        assert_eq!(sample.cpu_user.get(), Some(Nanos(30_000_000)));
        for unknown in [sample.memory_available, sample.memory_working_set, sample.memory_rss] {
            assert_eq!(unknown.absence(), Some(Absence::NotSupported));
        }
        assert_eq!(sample.load.absence(), Some(Absence::Unreadable), "torn");
        assert_eq!(sample.tasks.absence(), Some(Absence::Unreadable), "torn");
        assert_eq!(host.faults, 1);
        fs::remove_dir_all(&roots.procfs).unwrap();
        assert_eq!(HostReader::new(&roots).read(&mut reader).cpu_user.absence(), Some(Absence::NoSuchFile));
    }

    #[test]
    fn memory_tasks_oom_kills_and_pressure_of_the_host_are_read() {
        let base = tempfile::tempdir().unwrap();
        let roots = HostRoots { procfs: base.path().into(), cgroup: "/".into(), sysfs: base.path().into() };
        let write = |name: &str, text: &str| fs::write(roots.procfs.join(name), text).unwrap();
        let memory = ["MemTotal: 10 kB", "MemAvailable: 4 kB", "Cached: 1 kB", "AnonPages: 3 kB"];
        write("meminfo", &meminfo_with(&memory));
        write("loadavg", "0.00 0.01 0.05 2/345 6789\n");
        let (mut host, mut reader) = (HostReader::new(&roots), KernelFileReader::default());
        let sample = host.read(&mut reader);
        assert_eq!(sample.memory_working_set.get(), Some(Bytes(6 * 1024)), "total without available");
        assert_eq!((sample.memory_rss.get(), sample.tasks.get()), (Some(Bytes(3 * 1024)), Some(Count(345))));
        assert_eq!(sample.oom_kills.absence(), Some(Absence::NotYet));
        host.read_slow(&mut reader);
        let sample = host.read(&mut reader);
        assert_eq!(sample.oom_kills.absence(), Some(Absence::NoSuchFile));
        assert_eq!(sample.pressure.absence(), Some(Absence::NoSuchFile), "a kernel without it");

        write("vmstat", "nr_free_pages 1\npgfault 2\n");
        fs::create_dir(roots.procfs.join("pressure")).unwrap();
        for (name, some, full) in [("cpu", 1, 0), ("memory", 3, 2), ("io", 5, 4)] {
            let line = |kind, total| format!("{kind} avg10=0.00 avg60=0.00 avg300=0.00 total={total}\n");
            write(&format!("pressure/{name}"), &[line("some", some), line("full", full)].concat());
        }
        host.read_slow(&mut reader);
        let sample = host.read(&mut reader);
        assert_eq!(sample.oom_kills.absence(), Some(Absence::NotSupported), "a kernel before 4.13");
        let micros = |n: u64| Nanos(n * 1000);
        let pressure = HostPressure {
            cpu_waiting: micros(1),
            memory_waiting: micros(3),
            memory_stalled: micros(2),
            io_waiting: micros(5),
            io_stalled: micros(4),
        };
        assert_eq!(sample.pressure.get(), Some(pressure));

        write("vmstat", "nr_free_pages 1\noom_kill 7\n");
        write("pressure/io", "some avg10=0.00");
        host.read_slow(&mut reader);
        let sample = host.read(&mut reader);
        assert_eq!(sample.oom_kills.get(), Some(Count(7)));
        assert_eq!(sample.pressure.absence(), Some(Absence::Unreadable), "torn");
        assert_eq!(
            host.read(&mut reader).oom_kills.at(),
            sample.oom_kills.at(),
            "the time of the read, not of the report"
        );
    }

    #[test]
    fn the_host_of_the_test_can_be_read() {
        let (mut host, mut reader) = (HostReader::new(&HostRoots::default()), KernelFileReader::default());
        host.find_disks(&mut reader);
        for _ in 0..2 {
            host.read_slow(&mut reader);
            let sample = host.read(&mut reader);
            assert!(sample.tasks.get().unwrap().0 > 1);
            assert!(sample.memory_working_set.get().unwrap().0 > 1 << 20);
            assert!(sample.memory_rss.get().unwrap().0 > 1 << 20);
            assert!(sample.oom_kills.get().is_some());
            assert!(sample.cpu_idle.get().unwrap().0 > 0);
            assert!(sample.memory_total.get().unwrap().0 > 1 << 20);
            assert!(sample.processors.get().unwrap().0 > 0);
        }
    }
}
