//! Whether the containers of this node get their devices by CDI, and what to change if they do not.
//!
//! ```text
//!   Node object: versions of kubelet and runtime ──┐
//!   runtime: what it reports about its own CDI   ──┼──▶ NodeCdi ──▶ CdiFinding: CDI works, or what to change
//!   containers: whether they have their devices  ──┤
//!   state directory: what an earlier agent found ──┘
//! ```
//!
//! The runtime's own report decides. Without a report, the agent judges by the runtime's version and by whether containers have
//! their devices.
//!
//! What must never happen here: a GPU is offered although it is not known that containers get their limits.

use model::cdi_support::CdiSupport;
use std::sync::Arc;

/// The oldest kubelet that is supported. It passes the CDI devices of a plugin on (`DevicePluginCDIDevices`).
const KUBELET: (u32, u32) = (1, 30);
/// The first containerd that has CDI on by default.
const CONTAINERD: (u32, u32) = (2, 0);
/// The first containerd that has CDI; it is off unless the configuration turns it on.
const CONTAINERD_CAN: (u32, u32) = (1, 7);
/// The first CRI-O that takes CDI devices from the kubelet.
const CRI_O: (u32, u32) = (1, 28);

/// What is known about the CDI of this node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeCdi {
    /// What an earlier agent found, and on which runtime.
    saved: Option<(CdiSupport, Arc<str>)>,
    /// The versions of kubelet and runtime in the Node object: `v1.34.9`, `containerd://2.1.4`.
    versions: Option<(Arc<str>, Arc<str>)>,
    /// The runtime that answered last, and whether it reported that its CDI is on.
    report: Option<(Arc<str>, bool)>,
    /// Whether containers have their devices, once enough containers were checked.
    shown: Option<bool>,
}

/// The finding about this node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CdiFinding {
    /// Whether CDI works; this is saved for the next agent.
    pub found: CdiSupport,
    /// The runtime that the finding is about.
    pub runtime: Arc<str>,
    /// Whether it is known that the CDI device of a ticket reaches no container of this node.
    pub lost: bool,
    /// Whether the runtime reports that its CDI is on. Then a container without its devices does not prove that CDI is
    /// off.
    pub announced: bool,
    /// The reason; if CDI does not work, also what to change.
    pub why: Arc<str>,
}

impl CdiFinding {
    /// Whether containers get their devices by CDI.
    #[must_use]
    pub fn works(&self) -> bool {
        self.found == CdiSupport::Works
    }
}

impl NodeCdi {
    /// What an earlier agent saved.
    #[must_use]
    pub fn new(saved: Option<(CdiSupport, String)>) -> NodeCdi {
        let saved = saved.map(|(found, runtime)| (found, runtime.into()));
        NodeCdi { saved, ..NodeCdi::default() }
    }

    /// Sets the versions in the Node object. Returns whether they are new.
    pub fn versions_are(&mut self, kubelet: &str, runtime: &str) -> bool {
        let now = Some((kubelet.into(), runtime.into()));
        let new = self.versions != now;
        self.versions = now;
        new
    }

    /// Sets whether `runtime` reports that its CDI is on. Returns whether that is new. If it is, the evidence from containers
    /// under the earlier configuration is dropped.
    pub fn runtime_reports(&mut self, runtime: &str, on: bool) -> bool {
        let now = Some((runtime.into(), on));
        if self.report == now {
            return false;
        }
        (self.report, self.shown) = (now, None);
        if let Some((found @ CdiSupport::Disproved, _)) = self.saved.as_mut().filter(|_| on) {
            *found = CdiSupport::Works;
        }
        true
    }

    /// Sets whether containers have their devices. Returns whether that is new.
    pub fn containers_show(&mut self, devices: bool) -> bool {
        self.shown.replace(devices) != Some(devices)
    }

    /// The finding; `None` while too little is known.
    #[must_use]
    pub fn finding(&self) -> Option<CdiFinding> {
        match &self.versions {
            Some((kubelet, runtime)) => Some(self.by_versions(kubelet, runtime)),
            None => self.by_saved(),
        }
    }

    /// The finding before the versions are known.
    fn by_saved(&self) -> Option<CdiFinding> {
        let (found, runtime) = self.saved.as_ref()?;
        let finding = match (found, self.reported_by(runtime)) {
            (_, Some(false)) => reports_off(runtime),
            (CdiSupport::Missing, _) => missing(runtime, false, "the agent found no CDI here when it ran last"),
            (_, Some(true)) => works(runtime, true, "it reports that its CDI is on"),
            (_, None) if self.is_disproved(runtime) => disproved(runtime),
            (_, None) => works(runtime, false, "it had CDI when the agent ran last"),
        };
        Some(finding)
    }

    fn by_versions(&self, kubelet: &str, runtime: &Arc<str>) -> CdiFinding {
        if numbers(kubelet).is_none_or(|kubelet| kubelet < KUBELET) {
            let why = format!("kubelet {kubelet:?} is older than 1.30; upgrade Kubernetes on this node");
            return without(CdiSupport::Missing, runtime, false, why);
        }
        match self.reported_by(runtime) {
            Some(false) => return reports_off(runtime),
            Some(true) => return works(runtime, true, "it reports that its CDI is on"),
            None => {}
        }
        let (name, version) = parts(runtime);
        match name {
            "containerd" if version >= Some(CONTAINERD) => {}
            "containerd" if version >= Some(CONTAINERD_CAN) && self.has_worked(runtime) => {}
            "containerd" if version >= Some(CONTAINERD_CAN) => {
                let why = "its CDI is off unless its configuration turns it on, and it did not answer the agent (--cri-socket)";
                return missing(runtime, false, why);
            }
            "cri-o" if version >= Some(CRI_O) => {}
            "containerd" | "cri-o" => return missing(runtime, version.is_some(), "it has no CDI"),
            _ => return missing(runtime, false, "it is not known whether it has CDI"),
        }
        if self.is_disproved(runtime) {
            return disproved(runtime);
        }
        works(runtime, false, "its version supports CDI")
    }

    /// Whether containers lack their devices, now or on the same runtime when an earlier agent ran.
    fn is_disproved(&self, runtime: &str) -> bool {
        match self.shown {
            Some(devices) => !devices,
            None => self.was(CdiSupport::Disproved, runtime),
        }
    }

    fn has_worked(&self, runtime: &str) -> bool {
        self.shown.is_some() || self.was(CdiSupport::Works, runtime)
    }

    fn was(&self, found: CdiSupport, runtime: &str) -> bool {
        self.saved.as_ref().is_some_and(|(saved, on)| *saved == found && **on == *runtime)
    }

    /// Whether this runtime reports that its CDI is on; `None` if the report is of another runtime, because a node may have
    /// two. Only name, major and minor version are compared, because patch levels are written in different ways.
    fn reported_by(&self, runtime: &str) -> Option<bool> {
        let (reporter, on) = self.report.as_ref()?;
        let (one, other) = (parts(reporter), parts(runtime));
        (one.1.is_some() && one == other).then_some(*on)
    }
}

fn works(runtime: &Arc<str>, announced: bool, why: &str) -> CdiFinding {
    let why = format!("{runtime}: {why}").into();
    CdiFinding { found: CdiSupport::Works, runtime: Arc::clone(runtime), lost: false, announced, why }
}

fn reports_off(runtime: &Arc<str>) -> CdiFinding {
    missing(runtime, true, "it reports that its CDI is off")
}

fn missing(runtime: &Arc<str>, lost: bool, why: &str) -> CdiFinding {
    without(CdiSupport::Missing, runtime, lost, format!("{runtime}: {why}; {}", remedy(runtime)))
}

fn disproved(runtime: &Arc<str>) -> CdiFinding {
    let why = format!("{runtime}: containers did not get the edits of their CDI devices; {}", remedy(runtime));
    without(CdiSupport::Disproved, runtime, true, why)
}

fn without(found: CdiSupport, runtime: &Arc<str>, lost: bool, why: String) -> CdiFinding {
    CdiFinding { found, runtime: Arc::clone(runtime), lost, announced: false, why: why.into() }
}

/// What to change for CDI with this runtime.
fn remedy(runtime: &str) -> String {
    let turn_on = |section: &str| {
        format!(
            "set enable_cdi = true in /etc/containerd/config.toml, in the section [plugins.\"{section}\"], and restart containerd"
        )
    };
    match parts(runtime) {
        ("containerd", Some(version)) if version >= CONTAINERD => turn_on("io.containerd.cri.v1.runtime"),
        ("containerd", Some(version)) if version >= CONTAINERD_CAN => turn_on("io.containerd.grpc.v1.cri"),
        ("containerd", _) => {
            format!("upgrade containerd to 1.7 or later, then {}", turn_on("io.containerd.grpc.v1.cri"))
        }
        ("cri-o", Some(version)) if version >= CRI_O => {
            "check that cdi_spec_dirs in /etc/crio/crio.conf has the directory of --cdi-dir, and restart CRI-O".into()
        }
        ("cri-o", _) => "upgrade CRI-O to 1.28 or later".into(),
        _ => "use containerd 1.7 or later, or CRI-O 1.28 or later, as the container runtime of this node".into(),
    }
}

/// The newest version of CDI that each runtime's library reads, and the first release with that library.
const READERS: [(&str, [u32; 3], (u16, u16)); 9] = [
    ("containerd", [1, 7, 0], (0, 5)),
    ("containerd", [1, 7, 12], (0, 6)),
    ("containerd", [1, 7, 20], (0, 7)),
    ("containerd", [2, 0, 0], (0, 8)),
    ("containerd", [2, 1, 0], (1, 0)),
    ("cri-o", [1, 28, 0], (0, 6)),
    ("cri-o", [1, 30, 0], (0, 7)),
    ("cri-o", [1, 31, 0], (0, 8)),
    ("cri-o", [1, 33, 0], (1, 0)),
];

/// The newest version of CDI that this runtime reads (`containerd://1.7.2`); `None` if that is not known. A runtime refuses
/// a spec of a newer version, and the error of the container does not name the reason.
#[must_use]
pub fn newest_spec(runtime: &str) -> Option<(u16, u16)> {
    let (name, version) = runtime.split_once("://")?;
    let (major, minor) = numbers(version)?;
    let digits = |part: &str| part.split(|c: char| !c.is_ascii_digit()).next().and_then(|digits| digits.parse().ok());
    let patch: u32 = version.split('.').nth(2).and_then(digits).unwrap_or(0);
    let reads = |(reader, from, _): &&(&str, [u32; 3], (u16, u16))| *reader == name && *from <= [major, minor, patch];
    READERS.iter().rfind(reads).map(|(_, _, newest)| *newest)
}

/// The runtime that reads the specs: the runtime at the CRI socket, if the kubelet uses a runtime of that name. Its answer is
/// newer than the Node object after an upgrade.
#[must_use]
pub fn spec_reader<'a>(kubelets: Option<&'a Arc<str>>, answers: Option<&'a Arc<str>>) -> Option<&'a Arc<str>> {
    match (kubelets, answers) {
        (Some(kubelets), Some(answers)) if parts(kubelets).0 != parts(answers).0 => Some(kubelets),
        (_, Some(answers)) => Some(answers),
        (kubelets, None) => kubelets,
    }
}

/// Name and version of a runtime.
fn parts(runtime: &str) -> (&str, Option<(u32, u32)>) {
    let (name, version) = runtime.split_once("://").unwrap_or((runtime, ""));
    (name, numbers(version))
}

/// Major and minor version; `None` if the text does not begin with them.
pub(crate) fn numbers(version: &str) -> Option<(u32, u32)> {
    let mut parts = version.trim_start_matches('v').split('.');
    let digits = |part: &str| part.split(|c: char| !c.is_ascii_digit()).next().and_then(|digits| digits.parse().ok());
    Some((parts.next()?.parse().ok()?, digits(parts.next()?)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(kubelet: &str, runtime: &str, report: Option<(&str, bool)>) -> NodeCdi {
        let mut cdi = NodeCdi::default();
        cdi.versions_are(kubelet, runtime);
        if let Some((runtime, on)) = report {
            cdi.runtime_reports(runtime, on);
        }
        cdi
    }

    #[test]
    fn each_runtime_reads_the_cdi_versions_of_its_library() {
        for (runtime, newest) in [
            ("containerd://1.6.33", None),
            ("containerd://1.7.2", Some((0, 5))),
            ("containerd://1.7.13", Some((0, 6))),
            ("containerd://1.7.20", Some((0, 7))),
            ("containerd://1.7.27-0ubuntu1", Some((0, 7))),
            ("containerd://v2.0.5-k3s1.32", Some((0, 8))),
            ("containerd://2.1.4", Some((1, 0))),
            ("containerd://2.9.0", Some((1, 0))),
            ("cri-o://1.28.4", Some((0, 6))),
            ("cri-o://1.30.0", Some((0, 7))),
            ("cri-o://1.34.1", Some((1, 0))),
            ("docker://27.0", None),
            ("containerd://unknown", None),
        ] {
            assert_eq!(newest_spec(runtime), newest, "{runtime}");
        }
    }

    #[test]
    fn the_runtime_of_the_kubelet_reads_the_specs() {
        let (old, new, other): (Arc<str>, Arc<str>, Arc<str>) =
            ("containerd://1.7.2".into(), "containerd://1.7.27".into(), "cri-o://1.34.0".into());
        assert_eq!(spec_reader(Some(&old), Some(&new)), Some(&new), "it was upgraded");
        assert_eq!(spec_reader(Some(&old), Some(&other)), Some(&old), "a node with two runtimes");
        assert_eq!([spec_reader(Some(&old), None), spec_reader(None, Some(&new))], [Some(&old), Some(&new)]);
        assert_eq!(spec_reader(None, None), None);
    }

    #[test]
    fn cdi_follows_from_the_versions_and_the_report_of_the_runtime() {
        use CdiSupport::{Missing, Works};
        for (kubelet, runtime, report, expect) in [
            ("v1.34.9", "containerd://2.1.4", None, (Works, false)),
            ("v1.34.9", "containerd://2.1.4", Some(("containerd://2.1.4", true)), (Works, false)),
            ("v1.34.9", "containerd://2.1.4", Some(("containerd://2.1.4", false)), (Missing, true)),
            ("v1.34.9", "containerd://2.0.0-rc.3", None, (Works, false)),
            ("v1.30.0+k3s1", "cri-o://1.28.1", None, (Works, false)),
            ("v1.30.0", "cri-o://1.27.9", None, (Missing, true)),
            ("v1.29.9", "containerd://2.1.4", Some(("containerd://2.1.4", true)), (Missing, false)),
            ("v1.34.9", "containerd://1.7.24", None, (Missing, false)),
            ("v1.34.9", "containerd://1.7.24~ds1", Some(("containerd://1.7.24", true)), (Works, false)),
            ("v1.34.9", "containerd://1.6.20~ds1", None, (Missing, true)),
            ("v1.34.9", "docker://20.10.5", None, (Missing, false)),
            // The report is of another runtime on the same node.
            ("v1.34.9", "docker://28.1.1", Some(("containerd://2.1.4", true)), (Missing, false)),
            ("v1.34.9", "cri-o://1.30.0", Some(("containerd://2.1.4", false)), (Works, false)),
            ("v1.34.9", "containerd://2.1.4-k3s1", Some(("containerd://1.7.24", false)), (Works, false)),
            ("v1.34.9", "containerd://", None, (Missing, false)),
            ("", "", None, (Missing, false)),
        ] {
            let finding = node(kubelet, runtime, report).finding().unwrap();
            assert_eq!((finding.found, finding.lost), expect, "{kubelet} {runtime} {report:?}: {}", finding.why);
            assert_eq!(finding.announced, finding.works() && report.is_some_and(|(_, on)| on), "{}", finding.why);
        }
    }

    #[test]
    fn a_node_without_cdi_says_what_to_change() {
        for (kubelet, runtime, words) in [
            (
                "v1.34.9",
                "containerd://2.1.4",
                &["enable_cdi = true", "io.containerd.cri.v1.runtime", "restart containerd"][..],
            ),
            ("v1.34.9", "containerd://1.7.24", &["enable_cdi = true", "io.containerd.grpc.v1.cri", "config.toml"]),
            ("v1.34.9", "containerd://1.6.20", &["upgrade containerd to 1.7", "enable_cdi = true"]),
            ("v1.34.9", "cri-o://1.27.0", &["upgrade CRI-O"]),
            ("v1.34.9", "docker://20.10.5", &["use containerd 1.7"]),
            ("v1.28.4", "containerd://2.1.4", &["older than 1.30", "upgrade Kubernetes"]),
        ] {
            let why = node(kubelet, runtime, Some((runtime, false))).finding().unwrap().why;
            assert!(words.iter().all(|word| why.contains(word)), "{why}");
        }
    }

    #[test]
    fn what_containers_show_counts_until_the_runtime_reports() {
        let runtime = "containerd://2.1.4";
        let mut cdi = node("v1.34.9", runtime, None);
        assert!(cdi.containers_show(false) && !cdi.containers_show(false));
        let finding = cdi.finding().unwrap();
        assert_eq!((finding.found, finding.lost), (CdiSupport::Disproved, true));
        assert!(finding.why.contains("enable_cdi = true"), "{}", finding.why);
        assert!(cdi.containers_show(true));
        assert!(cdi.finding().unwrap().works(), "a container has its devices after all");
        cdi.containers_show(false);
        assert!(cdi.runtime_reports(runtime, true) && !cdi.runtime_reports(runtime, true));
        assert!(cdi.finding().unwrap().works());
        cdi.containers_show(true);
        assert!(cdi.runtime_reports(runtime, false));
        assert!(!cdi.finding().unwrap().works(), "the configuration has changed since");
    }

    #[test]
    fn an_earlier_finding_counts_until_the_versions_are_known() {
        use CdiSupport::{Disproved, Missing, Works};
        let (runtime, other) = ("containerd://2.1.4", "containerd://1.7.24");
        for (saved, report, expect) in [
            (Works, None, (Works, false)),
            (Works, Some((runtime, true)), (Works, false)),
            (Works, Some((runtime, false)), (Missing, true)),
            (Works, Some((other, false)), (Works, false)),
            (Missing, None, (Missing, false)),
            // The reason may have been the kubelet.
            (Missing, Some((runtime, true)), (Missing, false)),
            (Missing, Some((runtime, false)), (Missing, true)),
            (Disproved, None, (Disproved, true)),
            (Disproved, Some((runtime, true)), (Works, false)),
        ] {
            let mut cdi = NodeCdi::new(Some((saved, runtime.into())));
            if let Some((runtime, on)) = report {
                cdi.runtime_reports(runtime, on);
            }
            let finding = cdi.finding().unwrap();
            assert_eq!((finding.found, finding.lost), expect, "{saved:?} {report:?}");
            cdi.containers_show(false);
            if finding.found == Works && !finding.announced {
                assert_eq!(cdi.finding().unwrap().found, Disproved, "{saved:?} {report:?}");
            }
        }
        let mut fresh = NodeCdi::default();
        fresh.runtime_reports(runtime, true);
        assert_eq!(fresh.finding(), None, "the kubelet is not known");
    }

    #[test]
    fn an_earlier_finding_about_the_same_runtime_counts_beside_its_version() {
        use CdiSupport::{Disproved, Missing, Works};
        for (saved, on, runtime, expect) in [
            (Disproved, "containerd://2.1.4", "containerd://2.1.4", Disproved),
            (Disproved, "containerd://2.1.3", "containerd://2.1.4", Works),
            // The runtime reported its CDI as on, and does not answer while it restarts.
            (Works, "containerd://1.7.24", "containerd://1.7.24", Works),
            (Works, "containerd://1.7.23", "containerd://1.7.24", Missing),
            (Missing, "containerd://2.1.4", "containerd://2.1.4", Works),
        ] {
            let mut cdi = NodeCdi::new(Some((saved, on.into())));
            cdi.versions_are("v1.34.9", runtime);
            assert_eq!(cdi.finding().unwrap().found, expect, "{saved:?} {on} {runtime}");
        }
    }
}
