//! Judges a machine.

use super::look::{CdiFolder, NodeFacts, Tried};
use crate::finding::{Finding, Verdict};
use model::Absence;
use sources::nvml::probe::{NvmlFailure, NvmlProbe};

/// Maximum clock difference in seconds: an agent writes a handshake every 240 s, and readers reject it after 300 s.
const SKEW: f64 = 30.0;
/// `NVML_ERROR_NOT_FOUND`.
const NOT_FOUND: Absence = Absence::Nvml(6);

/// What the real-time check does if nothing can be read.
const CLAIMS_COUNT: &str = "until then the claims count on this node, which HAMI_REALTIME_CHECK_MODE and HAMI_ENABLE_REALTIME_CHECK do not \
                            change";

/// The findings.
pub(crate) fn judged(facts: &NodeFacts) -> Vec<Finding> {
    let mut findings = match &facts.nvml {
        Ok(probe) => gpus(facts, probe),
        Err(failure) => vec![no_driver(facts, failure)],
    };
    findings.extend(devices(facts));
    findings.extend(kubelet(facts));
    findings.extend(cdi(&facts.cdi));
    findings.push(cgroups(facts));
    findings.push(rights(facts));
    findings.push(agent(facts));
    findings.push(clock(facts));
    findings.push(versions(facts));
    findings
}

/// Why NVML cannot be used. The first three are the failures that the guide to the real-time check names.
fn no_driver(facts: &NodeFacts, failure: &NvmlFailure) -> Finding {
    let module = match &facts.driver {
        Some(version) => format!("the kernel module is loaded: {version}"),
        None => "the kernel module is not loaded: there is no driver/nvidia/version in /proc".to_owned(),
    };
    let (code, advice): (_, &[&str]) = match failure.why {
        Absence::DriverNotLoaded => (
            "DriverNotLoaded",
            &[
                "install the NVIDIA driver and load its kernel module: modprobe nvidia; nvidia-smi must list the GPUs, and dmesg says why a \
                 module does not load",
                CLAIMS_COUNT,
            ],
        ),
        Absence::NoPermission => (
            "NoPermission",
            &[
                "run the agent as a user who may read and write /dev/nvidiactl and /dev/nvidia*; in a container, let its device cgroup pass \
                 them",
                CLAIMS_COUNT,
            ],
        ),
        Absence::LibraryNotFound => (
            "LibraryNotFound",
            &[
                "install the NVIDIA driver, or name its library with --nvml-library; in a container, set runtimeClassName: nvidia, or \
                 NVIDIA_DRIVER_CAPABILITIES=utility",
            ],
        ),
        Absence::Nvml(18) => (
            "DriverReplaced",
            &[
                "the driver was updated and the old kernel module is still loaded: reload the module or reboot, then restart the agent",
            ],
        ),
        Absence::CallHangs => {
            ("DriverHangs", &["look for NVRM lines in dmesg; a GPU that has fallen off the bus needs a reboot"])
        }
        _ => ("DriverFails", &["look for NVRM lines in dmesg, and try nvidia-smi on this machine"]),
    };
    Finding::wrong(code, format!("failed to initialize NVML: {failure}"))
        .because([module])
        .advise(advice.iter().copied())
}

/// A driver that answers.
fn gpus(facts: &NodeFacts, probe: &NvmlProbe) -> Vec<Finding> {
    let mut findings = Vec::new();
    let good = probe.gpus.iter().flatten().map(|gpu| format!("{} {}", gpu.uuid, gpu.name));
    let bad: Vec<String> = probe
        .gpus
        .iter()
        .enumerate()
        .filter_map(|(index, gpu)| Some(format!("GPU {index}: {}", gpu.as_ref().err()?)))
        .collect();
    let what = format!("driver {}, NVML {}, {} GPU(s)", probe.driver, probe.nvml, probe.gpus.len());
    findings.push(match probe.gpus.len() {
        0 => Finding::wrong("NoGpu", format!("{what}: the driver lists no GPU"))
            .advise(["look for the GPUs in lspci -d 10de:, and for NVRM lines in dmesg"]),
        _ => Finding::well("Driver", what).because(good),
    });
    if !bad.is_empty() {
        let advice = "a lost GPU needs a reboot, and one that asks for it a reset: nvidia-smi --gpu-reset; without permission see /dev/nvidia*";
        findings.push(
            Finding::wrong("GpuFails", format!("{} GPU(s) do not answer", bad.len())).because(bad).advise([advice]),
        );
    }
    let unknown: Vec<String> = probe
        .unknown
        .iter()
        .map(|(uuid, why)| {
            let code = if why.why == NOT_FOUND { "NVML_ERROR_NOT_FOUND" } else { why.why.code() };
            format!("failed to get device handle for UUID {uuid}: {code}")
        })
        .collect();
    if !unknown.is_empty() {
        findings.push(
            Finding::wrong("DeviceNotFound", "the Node registers GPUs that the driver of this machine does not know").because(unknown).advise([
                "check that the agent of this node runs and registers its GPUs: gpu-steward doctor nodes; a stopped agent leaves its register",
                "let one device plugin alone write hami.io/node-nvidia-register, so that plugin and scheduler agree on the UUIDs",
            ]),
        );
    } else if facts.registered.as_ref().is_some_and(Vec::is_empty) {
        findings.push(
            Finding::wrong("NodeUnregistered", "the driver lists GPUs, and the Node registers none")
                .advise(["the /readyz and the log of the agent on this node say why it offers no GPU"]),
        );
    }
    findings
}

fn devices(facts: &NodeFacts) -> Option<Finding> {
    let failed = failures(&facts.devices);
    if failed.is_empty() {
        return Some(Finding::well("Devices", format!("{} device nodes can be read and written", facts.devices.len())));
    }
    // If NVML fails, the finding about NVML already gives the reason.
    facts.nvml.is_ok().then(|| {
        Finding::wrong("DeviceNodes", "device nodes of the driver are missing or may not be used").because(failed).advise([
            "nvidia-modprobe -u -c 0 makes the nodes; in a container, mount /dev or let the runtime add them; without nvidia-uvm no CUDA \
             program runs",
        ])
    })
}

fn failures(tried: &[Tried]) -> Vec<String> {
    let failed =
        tried.iter().filter_map(|one| Some(format!("{}: {}", one.path.display(), one.outcome.as_ref().err()?)));
    failed.collect()
}

fn kubelet(facts: &NodeFacts) -> Option<Finding> {
    let failed = failures(&facts.sockets);
    Some(if failed.is_empty() {
        Finding::well("Kubelet", "the kubelet accepts device plugins and questions about pods' devices")
    } else {
        Finding::wrong("KubeletSockets", "sockets of the kubelet cannot be used").because(failed).advise([
            "check that the kubelet runs, and name its directory with --kubelet-root if it is not /var/lib/kubelet; in a container, mount \
             device-plugins and pod-resources",
        ])
    })
}

fn cdi(folders: &[CdiFolder]) -> Option<Finding> {
    let state = |folder: &CdiFolder| {
        let path = folder.tried.path.display();
        match &folder.tried.outcome {
            Ok(()) => format!("{path}: {} specs of NVIDIA's toolkit, {} of gpu-steward", folder.toolkit, folder.own),
            Err(why) => format!("{path}: {why}"),
        }
    };
    let evidence: Vec<String> = folders.iter().map(state).collect();
    // The agent writes only into one folder, whatever access it has to the others.
    if folders.iter().any(|folder| folder.is_agents && folder.tried.outcome.is_ok()) {
        return Some(
            Finding::well("CdiFolders", "specs can be written where the runtime reads them").because(evidence),
        );
    }
    let what = "the folder in which the agent writes CDI specs cannot be written";
    Some(Finding::wrong("CdiFolders", what).because(evidence).advise([
        "make /var/run/cdi, and mount it writable into the agent; containerd 1.7 also needs enable_cdi = true (docs/sharing.md)",
    ]))
}

fn cgroups(facts: &NodeFacts) -> Finding {
    match &facts.cgroups {
        Ok(version) => {
            let private = facts.private_cgroups == Some(true);
            let namespace = if private { ", in a private namespace" } else { "" };
            Finding::well("Cgroups", format!("cgroup {version}{namespace}"))
        }
        Err(why) => Finding::wrong("Cgroups", why.clone())
            .advise(["mount the host's /sys/fs/cgroup read-only, and name it with --cgroup-root"]),
    }
}

fn rights(facts: &NodeFacts) -> Finding {
    let what = format!("user {}", facts.user);
    match facts.host_pids {
        Some(false) => Finding::note("Rights", format!("{what}; the processes of this machine are hidden (no hostPID)"))
            .advise(["set agent.hostPID: true in the chart, so that memory is attributed to pods; without it the check knows only sums"]),
        Some(true) => Finding::well("Rights", format!("{what}; the processes of this machine are seen")),
        None => {
            let what = format!("{what}; /proc does not show whether the processes of this machine are seen");
            Finding::unknown("Rights", what).advise(["run it as the user of the agent, in the container of the agent"])
        }
    }
}

fn agent(facts: &NodeFacts) -> Finding {
    match &facts.agent {
        Ok(Some((200, text))) => Finding::well("Agent", "the agent is ready").because(text.lines().skip(1).map(str::to_owned)),
        Ok(Some((status, text))) => Finding::wrong("AgentNotReady", format!("the agent answers {status} at /readyz"))
            .because(text.lines().map(str::to_owned))
            .advise(["change what the lines of /readyz name"]),
        Ok(None) => {
            let what = "the agent listens and serves HTTPS, so it was not asked whether it is ready";
            Finding::unknown("AgentNotAsked", what).advise([
                "see whether the kubelet finds the agent ready: kubectl get pods -A -o wide -l app.kubernetes.io/component=agent; or read its \
                 /readyz: curl -k https://ADDRESS/readyz",
            ])
        }
        Err(why) => Finding::wrong("NoAgent", why.clone()).because(failures(std::slice::from_ref(&facts.usage_socket))).advise([
            "start the agent, or name its address with --listen: kubectl get pods -A -o wide -l app.kubernetes.io/component=agent",
        ]),
    }
}

fn clock(facts: &NodeFacts) -> Finding {
    let (there, here) = match &facts.clocks {
        Ok(clocks) => clocks,
        Err(unread) => {
            let what = format!("the clock was compared with no other one: {unread}");
            return Finding::new(unseen(facts), "ClockNotCompared", what);
        }
    };
    let ahead = here.as_seconds() - there.as_seconds();
    if ahead.abs() <= SKEW {
        return Finding::well("Clock", format!("the clock differs from the API server's by {:.0} s", ahead.abs()));
    }
    let side = if ahead > 0.0 { "ahead of" } else { "behind" };
    Finding::wrong("ClockSkew", format!("the clock is {:.0} s {side} the API server's", ahead.abs()))
        .advise(["synchronise the clocks of the nodes: chronyc tracking, timedatectl"])
}

fn versions(facts: &NodeFacts) -> Finding {
    let mut text = format!("gpu-steward {}, kernel {}", facts.version, facts.kernel);
    match &facts.node {
        Ok(node) => {
            text.push_str(&format!(", kubelet {}, {}", node.kubelet, node.runtime));
            Finding::well("Versions", text)
        }
        Err(unread) => {
            let what = format!("{text}; {unread}; its register was not compared with the driver");
            Finding::new(unseen(facts), "NodeNotSeen", what)
        }
    }
}

/// The verdict if the API server did not show something: unknown if the machine has a cluster, otherwise a note.
fn unseen(facts: &NodeFacts) -> Verdict {
    if facts.has_cluster { Verdict::Unknown } else { Verdict::Note }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::finding::Unread;
    use model::time::WallTime;
    use sources::nvml::probe::ProbedGpu;
    use wire::described_node::DescribedNode;

    fn tried(path: &str, why: Option<&str>) -> Tried {
        Tried { path: path.into(), outcome: why.map_or(Ok(()), |why| Err(why.to_owned())) }
    }

    fn cdi_folder(path: &str, why: Option<&str>) -> CdiFolder {
        CdiFolder { tried: tried(path, why), is_agents: false, toolkit: 1, own: 0 }
    }

    fn agents_cdi_folder(why: Option<&str>) -> CdiFolder {
        CdiFolder { is_agents: true, ..cdi_folder("/var/run/cdi", why) }
    }

    /// A machine of which nothing is wrong.
    fn facts() -> NodeFacts {
        let gpu = ProbedGpu { uuid: "GPU-1".into(), name: "NVIDIA H100".into() };
        let probe = NvmlProbe { driver: "550".into(), nvml: "12".into(), gpus: vec![Ok(gpu)], unknown: Vec::new() };
        NodeFacts {
            name: "n1".into(),
            version: "0.1.0".into(),
            kernel: "6.18".into(),
            driver: Some("NVRM version: 550".into()),
            nvml: Ok(probe),
            registered: Some(vec!["GPU-1".into()]),
            devices: vec![tried("/dev/nvidiactl", None)],
            sockets: vec![tried("/k/kubelet.sock", None)],
            cdi: vec![cdi_folder("/etc/cdi", None), agents_cdi_folder(None)],
            cgroups: Ok("v2".into()),
            private_cgroups: Some(false),
            host_pids: Some(true),
            user: 0,
            agent: Ok(Some((200, "ready\nadmission policies: in force".into()))),
            usage_socket: tried("/run/agent.sock", None),
            has_cluster: true,
            node: Ok(DescribedNode::default()),
            clocks: Ok((WallTime(100_000_000), WallTime(101_000_000))),
        }
    }

    fn failure(why: Absence) -> NvmlFailure {
        NvmlFailure { why, text: "x".into() }
    }

    fn bad(facts: &NodeFacts) -> Vec<(&'static str, Verdict)> {
        let worse = judged(facts).into_iter().filter(|finding| finding.verdict != Verdict::Well);
        worse.map(|finding| (finding.code, finding.verdict)).collect()
    }

    #[test]
    fn nothing_is_wrong_with_a_good_machine() {
        assert_eq!(bad(&facts()), []);
    }

    /// The three failures of the guide to the real-time check come first.
    #[test]
    fn each_failure_of_nvml_has_its_advice() {
        for (why, code, advice) in [
            (Absence::DriverNotLoaded, "DriverNotLoaded", ["modprobe nvidia", "the claims count"]),
            (Absence::NoPermission, "NoPermission", ["/dev/nvidiactl", "the claims count"]),
            (Absence::LibraryNotFound, "LibraryNotFound", ["--nvml-library", "runtimeClassName"]),
            (Absence::Nvml(18), "DriverReplaced", ["reload the module", "restart the agent"]),
            (Absence::CallHangs, "DriverHangs", ["NVRM", "dmesg"]),
            (Absence::Nvml(999), "DriverFails", ["NVRM", "nvidia-smi"]),
        ] {
            let facts =
                NodeFacts { nvml: Err(failure(why)), devices: vec![tried("/dev/nvidiactl", Some("no"))], ..facts() };
            assert_eq!(bad(&facts), [(code, Verdict::Wrong)]);
            let steps = judged(&facts)[0].advice.join("\n");
            assert!(advice.iter().all(|part| steps.contains(part)), "{code}: {steps}");
        }
        let mut unknown = facts();
        unknown.nvml.as_mut().unwrap().unknown = vec![("GPU-12345".into(), failure(NOT_FOUND))];
        assert_eq!(bad(&unknown), [("DeviceNotFound", Verdict::Wrong)]);
        let finding = judged(&unknown).into_iter().find(|finding| finding.code == "DeviceNotFound").unwrap();
        assert_eq!(finding.evidence, ["failed to get device handle for UUID GPU-12345: NVML_ERROR_NOT_FOUND"]);
    }

    /// A change of the machine, and what is then not well.
    type Case = (fn(&mut NodeFacts), &'static str, Verdict);

    #[test]
    fn each_part_of_a_machine_is_judged() {
        use Verdict::{Note, Unknown, Wrong};
        let cases: [Case; 16] = [
            (|facts| facts.nvml.as_mut().unwrap().gpus.clear(), "NoGpu", Wrong),
            (|facts| facts.nvml.as_mut().unwrap().gpus.push(Err(failure(Absence::GpuLost))), "GpuFails", Wrong),
            (|facts| facts.registered = Some(Vec::new()), "NodeUnregistered", Wrong),
            (|facts| facts.devices = vec![tried("/dev/nvidia-uvm", Some("No such file"))], "DeviceNodes", Wrong),
            (|facts| facts.sockets = vec![tried("/k/kubelet.sock", Some("refused"))], "KubeletSockets", Wrong),
            (|facts| facts.cdi.clear(), "CdiFolders", Wrong),
            (
                |facts| facts.cdi = vec![cdi_folder("/etc/cdi", None), agents_cdi_folder(Some("no such folder"))],
                "CdiFolders",
                Wrong,
            ),
            (|facts| facts.cgroups = Err("no cgroups".into()), "Cgroups", Wrong),
            (|facts| facts.host_pids = Some(false), "Rights", Note),
            (|facts| facts.host_pids = None, "Rights", Unknown),
            (|facts| facts.agent = Ok(Some((503, "no GPU is offered".into()))), "AgentNotReady", Wrong),
            (|facts| facts.agent = Ok(None), "AgentNotAsked", Unknown),
            (|facts| facts.agent = Err("no agent".into()), "NoAgent", Wrong),
            (|facts| facts.clocks = Ok((WallTime(0), WallTime(31_000_000))), "ClockSkew", Wrong),
            (|facts| facts.clocks = Err(Unread::new("the API server", "away")), "ClockNotCompared", Unknown),
            (|facts| facts.node = Err(Unread::new("Node n1", "403")), "NodeNotSeen", Unknown),
        ];
        for (change, code, verdict) in cases {
            let mut facts = facts();
            change(&mut facts);
            assert_eq!(bad(&facts), [(code, verdict)], "{code}");
        }
        let none = Unread::new("the API server", "nothing names one");
        let alone = NodeFacts { has_cluster: false, node: Err(none.clone()), clocks: Err(none), ..facts() };
        assert_eq!(bad(&alone), [("ClockNotCompared", Note), ("NodeNotSeen", Note)]);
    }
}
