//! Compares the reports with independent readings of real cgroups, processes, interfaces and namespaces. Needs root.

use crate::cgroup::layout::{CgroupLayout, CgroupNamespace};
use crate::cgroup::table::CgroupTable;
use crate::kernel_file::KernelFileReader;
use crate::process_owner::ProcessOwnerReader;
use crate::roots::HostRoots;
use lab::pods::{FakePod, MARK, Pods};
use model::Absence;
use model::cgroup::{CgroupReport, NetworkSample};
use model::process::ProcessOwner;
use rustix::fs::inotify;
use rustix::process::{Pid, Signal, kill_process};
use std::collections::{HashSet, VecDeque};
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::mem::MaybeUninit;
use std::net::UdpSocket;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Name of the variable with the task for a process that these tests start.
const TASK: &str = "GPU_STEWARD_TEST_TASK";
/// Bytes that a process touches. The tests allow a deviation of two percent. The kernel charges a cgroup in batches of
/// 256 KiB for each processor, and the process itself needs a MiB, so two percent of this number must be several MiB.
const HELD: usize = 256 << 20;

fn table(turns: u64) -> CgroupTable {
    let roots = HostRoots::default();
    let layout = CgroupLayout::detect(&mut KernelFileReader::default(), &roots).unwrap();
    CgroupTable::new(&roots, layout, turns, 4096)
}

/// The directories of a cgroup in all trees.
fn directories(path: &str) -> Vec<PathBuf> {
    let trees = ["cpu", "cpuacct", "memory", "blkio", "pids"].map(|name| PathBuf::from("/sys/fs/cgroup").join(name));
    let trees = trees.into_iter().filter(|tree| tree.join("cgroup.procs").exists());
    let trees: Vec<PathBuf> =
        trees.chain(["/sys/fs/cgroup".into()]).filter(|tree| tree.join("cgroup.procs").exists()).collect();
    trees.iter().map(|tree| tree.join(&path[1..])).collect()
}

fn join(path: &str, pid: u32) {
    for directory in directories(path) {
        fs::write(directory.join("cgroup.procs"), pid.to_string()).unwrap();
    }
}

fn sample(reports: &[CgroupReport], path: &str) -> CgroupReport {
    reports.iter().find(|report| *report.identity.path == *path).unwrap_or_else(|| panic!("{path} is not seen")).clone()
}

#[track_caller]
fn within_two_percent(what: &str, ours: f64, independent: f64) {
    println!("{what}: ours {ours}, independent {independent}, ratio {:.4}", ours / independent);
    assert!((ours / independent - 1.0).abs() <= 0.02, "{what}: ours {ours}, independent {independent}");
}

/// Starts this test binary again for one task; a line on its input makes it begin.
fn task(name: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "sampler::truth::entry_of_a_child_process", "--nocapture"]).env(TASK, name);
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    command
}

fn send_line(child: &mut Child, line: &str) {
    child.stdin.as_mut().unwrap().write_all(format!("{line}\n").as_bytes()).unwrap();
}

fn read_line(child: &mut Child, prefix: &str) -> String {
    let lines = BufReader::new(child.stdout.as_mut().unwrap()).lines();
    lines.map(Result::unwrap).find_map(|line| line.split(prefix).nth(1).map(str::to_string)).expect(prefix)
}

/// Not a test of its own: [`task`] starts this test binary again with this function as its entry, because the binary
/// has no `main` of ours. The tests that start it check its output. Without the variable it ends at once, and counts as
/// passed.
#[test]
fn entry_of_a_child_process() {
    let Ok(task) = std::env::var(TASK) else { return };
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
    match task.as_str() {
        "memory" => {
            let held = vec![1u8; HELD];
            println!("held {}", std::hint::black_box(&held).len());
            std::io::stdin().read_line(&mut line).unwrap();
        }
        "owner" => {
            let namespace = CgroupNamespace::detect(&mut KernelFileReader::default(), &HostRoots::default());
            let (mut owners, pid) = (ProcessOwnerReader::new(HostRoots::default()), line.trim().parse().unwrap());
            let began = Instant::now();
            let path = loop {
                match owners.identify(pid).unwrap().owner {
                    ProcessOwner::Cgroup(identity) => break identity.path.to_string(),
                    // A process that started just before the walk has no owner until the next walk.
                    ProcessOwner::Unknown if began.elapsed() < Duration::from_secs(30) => {
                        std::thread::sleep(Duration::from_millis(50));
                    }
                    other => break format!("{other:?}"),
                }
            };
            println!("owner {namespace:?} {path} end");
        }
        other => panic!("{other}"),
    }
}

/// Promise 5 in docs/specification.md.
#[test]
#[ignore = "needs root: tests/run"]
fn cpu_time_of_a_busy_loop_equals_its_own_count() {
    let mut pods = Pods::prepare("/sys/fs/cgroup".as_ref()).unwrap();
    let path = pods.add(1, 1, &["sleep", "1000"]).unwrap().containers[0].path.clone();
    let mut table = table(1);
    let before = sample(&table.pass(), &path).sample;
    let script = "trap 'times; exit' TERM; read go; while :; do :; done";
    let mut child =
        Command::new("sh").args(["-c", script]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    join(&path, child.id());
    send_line(&mut child, "go");
    let began = Instant::now();
    // The kernel's ticks are 10 ms, so an accuracy of 2 % needs a load of seconds. Passes go on meanwhile.
    while began.elapsed() < Duration::from_secs(20) {
        std::thread::sleep(Duration::from_secs(1));
        table.pass();
    }
    kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    let mut output = String::new();
    child.stdout.take().unwrap().read_to_string(&mut output).unwrap();
    child.wait().unwrap();
    let after = sample(&table.pass(), &path).sample;
    // `times` prints "0m19.870000s 0m0.010000s": user and system.
    let times = output.lines().next().unwrap().split_whitespace().map(|time| {
        let (minutes, seconds) = time.trim_end_matches('s').split_once('m').unwrap();
        minutes.parse::<f64>().unwrap() * 60.0 + seconds.parse::<f64>().unwrap()
    });
    let times: Vec<f64> = times.collect();
    let total = after.cpu_total.get().unwrap().as_seconds() - before.cpu_total.get().unwrap().as_seconds();
    within_two_percent("CPU seconds", total, times[0] + times[1]);
    let user = after.cpu_user.get().unwrap().as_seconds() - before.cpu_user.get().unwrap().as_seconds();
    within_two_percent("user seconds", user, times[0]);
}

/// Promise 5 in docs/specification.md.
#[test]
#[ignore = "needs root: tests/run"]
fn memory_that_a_process_touches_is_measured_completely() {
    let mut pods = Pods::prepare("/sys/fs/cgroup".as_ref()).unwrap();
    let pod = pods.add(1, 1, &["sleep", "1000"]).unwrap();
    let (path, pod) = (pod.containers[0].path.clone(), format!("/kubepods/burstable/pod{}", pod.uid));
    let mut child = task("memory").spawn().unwrap();
    join(&path, child.id());
    let mut table = table(1);
    let before = sample(&table.pass(), &path).sample;
    send_line(&mut child, "go");
    assert_eq!(read_line(&mut child, "held ").trim(), HELD.to_string());
    let reports = table.pass();
    let after = sample(&reports, &path).sample;
    let held = f64::from(u32::try_from(HELD).unwrap());
    for (what, before, after) in [
        ("usage", before.memory_usage, after.memory_usage),
        ("rss", before.memory_rss, after.memory_rss),
        ("working set", before.memory_working_set, after.memory_working_set),
    ] {
        within_two_percent(what, after.get().unwrap().less(before.get().unwrap()).mib() * 1048576.0, held);
    }
    assert_eq!(after.processes.get(), sample(&reports, &pod).sample.processes.get(), "the pod has one container");
    assert_eq!(after.processes.get().unwrap().0, 2);
    child.kill().unwrap();
    child.wait().unwrap();
}

fn ip(arguments: &str) {
    let done = Command::new("ip").args(arguments.split_whitespace()).output().unwrap();
    assert!(done.status.success(), "ip {arguments}: {}", String::from_utf8_lossy(&done.stderr));
}

/// Promise 5 in docs/specification.md.
#[test]
#[ignore = "needs root: tests/run"]
fn bytes_over_a_veth_pair_equal_the_count_of_the_other_end() {
    let mut pods = Pods::prepare("/sys/fs/cgroup".as_ref()).unwrap();
    let FakePod { uid, containers } = pods.add(1, 2, &["sleep", "1000"]).unwrap();
    let (path, pid) = (format!("/kubepods/burstable/pod{uid}"), containers[0].pid);
    let _ = Command::new("ip").args(["link", "del", "gsveth0"]).output();
    ip(&format!("link add gsveth0 type veth peer name eth0 netns {pid}"));
    ip("addr add 10.251.7.1/24 dev gsveth0");
    ip("link set gsveth0 up");
    for command in ["ip addr add 10.251.7.2/24 dev eth0", "ip link set eth0 up", "ip link set lo up"] {
        let target = pid.to_string();
        let arguments = ["-t", &target, "-n"].into_iter().chain(command.split(' '));
        assert!(Command::new("nsenter").args(arguments).status().unwrap().success());
    }
    let mut table = table(1);
    compare_with_the_other_end(&mut table, &path, pid);
    table.identify_namespaces_by_counters();
    compare_with_the_other_end(&mut table, &path, pid);
}

/// Bytes of a datagram of 1,000 bytes with its headers.
const FRAME: f64 = 1042.0;

fn compare_with_the_other_end(table: &mut CgroupTable, path: &str, pid: u32) {
    let network =
        |table: &mut CgroupTable| -> NetworkSample { sample(&table.pass(), path).network.value().unwrap().clone() };
    let other_end = |name: &str| -> f64 {
        let text = fs::read_to_string(format!("/sys/class/net/gsveth0/statistics/{name}")).unwrap();
        f64::from(text.trim().parse::<u32>().unwrap())
    };
    let all = || ["tx_bytes", "tx_packets", "rx_bytes", "rx_packets"].map(other_end);
    let ours = |after: u64, before: u64| f64::from(u32::try_from(after - before).unwrap());

    let (before, other_before) = (network(table), all());
    let socket = UdpSocket::bind("10.251.7.1:0").unwrap();
    for _ in 0..10_000 {
        // The pod's kernel answers "port unreachable", which the socket returns as an error of the next call.
        let _ = socket.send_to(&[7; 1000], "10.251.7.2:9");
    }
    let (between, other_between) = (network(table), all());
    let [sent, packets, ..] = [0, 1, 2, 3].map(|at| other_between[at] - other_before[at]);
    assert!(sent > 9e6, "only {sent} bytes were sent");
    let received = ours(between.rx_bytes.0, before.rx_bytes.0);
    within_two_percent("bytes received", received, sent);
    within_two_percent("packets received", ours(between.rx_packets.0, before.rx_packets.0), packets);
    within_two_percent("bytes known to be received", received, packets * FRAME);

    // The other direction: from inside the pod's namespace to a socket that exists.
    let script = format!(
        "dd if=/dev/zero bs=1000 count=10000 status=none > /dev/udp/10.251.7.1/{}",
        socket.local_addr().unwrap().port()
    );
    let arguments = ["-t", &pid.to_string(), "-n", "bash", "-c", &script];
    assert!(Command::new("nsenter").args(arguments).status().unwrap().success());
    let (after, other_after) = (network(table), all());
    let [.., sent, packets] = [0, 1, 2, 3].map(|at| other_after[at] - other_between[at]);
    let transmitted = ours(after.tx_bytes.0, between.tx_bytes.0);
    within_two_percent("bytes transmitted", transmitted, sent);
    within_two_percent("packets transmitted", ours(after.tx_packets.0, between.tx_packets.0), packets);
    within_two_percent("bytes known to be transmitted", transmitted, 10_000.0 * FRAME);
}

/// Promise 5 in docs/specification.md.
#[test]
#[ignore = "needs root: tests/run"]
fn a_pod_in_the_hosts_network_namespace_does_not_show_the_hosts_traffic() {
    let inode = |process: &str| fs::metadata(format!("/proc/{process}/net/dev")).unwrap().ino();
    assert_eq!(inode("self"), inode("1"), "this test must run in the machine's own network namespace");
    drop(Pods::prepare("/sys/fs/cgroup".as_ref()).unwrap());
    let pod = format!("/kubepods/burstable/pod{MARK}{:012x}", 1);
    let container = format!("{pod}/{:064x}", 1);
    directories(&container).iter().for_each(|directory| fs::create_dir_all(directory).unwrap());
    let mut child = Command::new("sleep").arg("60").spawn().unwrap();
    join(&container, child.id());
    let mut seen = Vec::new();
    for by_counters in [false, true] {
        let mut table = table(1);
        if by_counters {
            table.identify_namespaces_by_counters();
        }
        seen.extend([(); 2].map(|()| sample(&table.pass(), &pod).network.absence()));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    drop(Pods::prepare("/sys/fs/cgroup".as_ref()).unwrap());
    assert_eq!(seen, [Some(Absence::HostNetwork); 4]);
}

#[test]
#[ignore = "needs root: tests/run"]
fn from_a_private_cgroup_namespace_owners_are_found_in_the_mounted_hierarchy() {
    let mut pods = Pods::prepare("/sys/fs/cgroup".as_ref()).unwrap();
    let containers = pods.add(1, 2, &["sleep", "1000"]).unwrap().containers.iter();
    let containers: Vec<(String, u32)> = containers.map(|one| (one.path.clone(), one.pid)).collect();
    for (path, pid) in &containers {
        let inner = task("owner");
        // The root of the new namespace is the cgroup of the process at that moment: the cgroup of the first container,
        // below the root of every hierarchy.
        let mut child = Command::new("sh");
        child.args(["-c", "read joined; exec unshare -C \"$@\"", "sh"]).arg(inner.get_program()).args(inner.get_args());
        let mut child = child.env(TASK, "owner").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        join(&containers[0].0, child.id());
        send_line(&mut child, "joined");
        send_line(&mut child, &pid.to_string());
        let output = read_line(&mut child, "owner ");
        child.wait().unwrap();
        assert!(output.contains("private: Some(true), mounted_above: true"), "{output}");
        assert!(output.contains(path.as_str()), "{pid} is in {path}, but: {output}");
    }
}

/// How long pods come and go, in seconds.
const SECONDS: u32 = 6;

/// Promise 17 in docs/specification.md.
#[test]
#[ignore = "needs root: tests/run"]
fn pods_created_at_fifty_a_second_are_all_sampled_and_leave_no_open_file() {
    let held = || -> Vec<PathBuf> {
        let open = fs::read_dir("/proc/self/fd").unwrap();
        open.filter_map(|file| fs::read_link(file.unwrap().path()).ok()).collect()
    };
    // One pod stays, so that the directories above pods are open before and after.
    let mut stays = Pods::prepare("/sys/fs/cgroup".as_ref()).unwrap();
    stays.add(1_000_000, 1, &["sleep", "1000"]).unwrap();
    let mut table = table(5);
    table.pass();
    let before = held();
    // Fifty in each second, as far as the machine keeps up; each lives until two passes have seen it.
    let mut running: VecDeque<(u32, String, Child)> = VecDeque::new();
    let (mut seen, mut sampled, mut names) = (HashSet::new(), HashSet::new(), HashSet::new());
    let (mut made, mut next_pass) = (0, Instant::now());
    for round in 0..=SECONDS {
        if round < SECONDS {
            for _ in 0..50 {
                let path = format!("/kubepods/burstable/pod{MARK}{made:012x}/{made:064x}");
                directories(&path).iter().for_each(|directory| fs::create_dir_all(directory).unwrap());
                let child = Command::new("sleep").arg("1000").spawn().unwrap();
                join(&path, child.id());
                names.insert(path.clone());
                running.push_back((round, path, child));
                made += 1;
            }
        }
        next_pass += Duration::from_secs(1);
        std::thread::sleep(next_pass.saturating_duration_since(Instant::now()));
        for report in table.pass().into_iter().filter(|report| report.identity.container().is_some()) {
            if report.sample.tasks.get().is_some() {
                sampled.insert(report.identity.path.to_string());
            }
            seen.insert(report.identity.path.to_string());
        }
        while running.front().is_some_and(|(born, ..)| *born < round) {
            let Some((_, path, mut child)) = running.pop_front() else { break };
            child.kill().unwrap();
            child.wait().unwrap();
            for directory in directories(&path) {
                let deadline = Instant::now() + Duration::from_secs(30);
                while fs::remove_dir(&directory).is_err() {
                    assert!(Instant::now() < deadline, "{} stays", directory.display());
                }
                fs::remove_dir(directory.parent().unwrap()).unwrap();
            }
        }
    }
    assert!(running.is_empty());
    table.pass();
    let missed: Vec<&String> = names.iter().filter(|name| !sampled.contains(*name)).collect();
    let after = held();
    let files = (before.len(), after.len());
    println!("{made} pods made, {} seen, {} sampled, files {} -> {}", seen.len(), sampled.len(), files.0, files.1);
    assert!(missed.is_empty(), "{} pods that existed for two passes were missed", missed.len());
    assert_eq!(files.0, files.1, "kept-open files of pods that are gone: {after:?}");
    drop(stays);
    table.pass();
    assert!(held().len() <= before.len(), "kept open: {:?}", held());
}

/// The calls of this thread that read a file, by the kernel's count.
fn reads() -> u64 {
    let io = fs::read_to_string("/proc/thread-self/io").unwrap();
    io.lines().find_map(|line| line.strip_prefix("syscr: ")).unwrap().parse().unwrap()
}

/// The calls that read a file in `pass`, without those that ask for the count.
fn reads_in(pass: impl FnOnce()) -> u64 {
    let asking = reads();
    let before = reads();
    pass();
    reads() - before - (before - asking)
}

/// Number of passes between two slow readings of a cgroup.
const SLOW: u64 = 5;

/// The cost of a pass is counted in calls, because their time depends on what else the machine does. The CPU time of
/// the whole agent beside cAdvisor's is in tests/bench/footprint. On cgroup v1 trees a busy cgroup takes 3.2 reads a
/// pass and two opened files each fifth pass, an idle one 2.1 reads and none.
#[test]
#[ignore = "needs root: tests/run"]
fn a_pass_over_known_cgroups_takes_few_reads_and_opens_nothing_in_idle_ones() {
    let mut pods = Pods::prepare("/sys/fs/cgroup".as_ref()).unwrap();
    for number in 0..100 {
        pods.add(number, 2, &["sleep", "1000"]).unwrap();
    }
    let mut table = table(SLOW);
    let reports = table.pass();
    assert!(reports.len() >= 300);
    let directories = reports.iter().flat_map(|report| directories(&report.identity.path));
    let opened = inotify::init(inotify::CreateFlags::NONBLOCK | inotify::CreateFlags::CLOEXEC).unwrap();
    for directory in directories {
        inotify::add_watch(&opened, &directory, inotify::WatchFlags::OPEN).unwrap();
    }
    let mut period = |idle: bool| {
        let reads = (0..SLOW).map(|_| {
            if !idle {
                table.forget_idle_state();
            }
            reads_in(|| drop(table.pass()))
        });
        (reads.sum::<u64>(), opened_files(&opened))
    };
    period(false);
    let busy = period(false);
    // The second slow reading is compared with the first.
    period(true);
    let idle = period(true);
    let cgroups = reports.len() as u64;
    println!("{cgroups} cgroups, {SLOW} passes, (reads, opened files): busy {busy:?}, idle {idle:?}");
    assert!(busy.0 <= 4 * cgroups * SLOW && busy.1 <= 3 * cgroups, "{busy:?}");
    assert!(idle.0 * 4 <= busy.0 * 3 && idle.1 * 4 <= busy.1, "{idle:?} of {busy:?}");
}

/// The number of files that were opened, without directories, since the last call.
fn opened_files(watched: &OwnedFd) -> u64 {
    let mut buffer = [MaybeUninit::uninit(); 4096];
    let mut events = inotify::Reader::new(watched, &mut buffer);
    let mut files = 0;
    while let Ok(event) = events.next() {
        files += u64::from(!event.events().contains(inotify::ReadFlags::ISDIR));
    }
    files
}
