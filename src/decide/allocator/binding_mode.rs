//! The choice of the binding mode: whether the kubelet and the runtime of this node pass CDI devices from a device
//! plugin into a container. What the runtime reports about its CDI takes precedence over what its version suggests.

use model::cdi_support::CdiSupport;
use model::plugin::SecondConnection;

/// When a container gets its devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BindingMode {
    /// At its start, through CDI: by then the checkpoint names the container.
    Late,
    /// In the answer to `Allocate`; the agent confirms them at the start.
    Early,
}

/// The choice of a binding mode, with its reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BindingChoice {
    /// What was found about CDI; it decides the binding mode and is saved.
    pub found: CdiSupport,
    /// Whether it is known that the CDI device of a ticket reaches no container of this node.
    pub lost: bool,
    /// Whether the runtime reports that its CDI is on. Then one container without its devices does not prove that CDI
    /// is off.
    pub announced: bool,
    /// The reason, as a clause for the log.
    pub why: String,
}

impl BindingChoice {
    /// The binding mode that follows.
    #[must_use]
    pub fn binding(&self) -> BindingMode {
        match self.found {
            CdiSupport::Late => BindingMode::Late,
            CdiSupport::Early | CdiSupport::Disproved => BindingMode::Early,
        }
    }
}

/// The first kubelet that passes a plugin's CDI devices on by default (`DevicePluginCDIDevices`; off by default
/// before).
const KUBELET: (u32, u32) = (1, 29);
/// The first containerd that has CDI on by default.
const CONTAINERD: (u32, u32) = (2, 0);
/// The first containerd that has CDI; it is off unless the configuration turns it on.
const CONTAINERD_CAN: (u32, u32) = (1, 7);
/// The first CRI-O that takes CDI devices from the kubelet.
const CRI_O: (u32, u32) = (1, 28);

/// The first kubelet that keeps one connection for each socket of a resource. The end of a connection changes nothing
/// there while the resource has another one.
const KEEPS_CONNECTIONS: (u32, u32) = (1, 37);
/// The first kubelet that drops the newer connection when the older one ends (`runClient` in
/// `pkg/kubelet/cm/devicemanager/plugin/v1beta1/handler.go`, read in 1.25, 1.28, 1.34 and 1.36). Earlier kubelets have
/// other code.
const KEEPS_ONE: (u32, u32) = (1, 25);

/// What the kubelet does when an agent registers while the previous agent is still registered, by the kubelet's version
/// as the Node object reports it. `None` where that is not known.
#[must_use]
pub fn second_connection(kubelet: &str) -> Option<SecondConnection> {
    match numbers(kubelet)? {
        kubelet if kubelet >= KEEPS_CONNECTIONS => Some(SecondConnection::Kept),
        kubelet if kubelet >= KEEPS_ONE => Some(SecondConnection::DroppedWithTheFirst),
        _ => None,
    }
}

/// What a runtime reports about itself: its name and version (`containerd://2.1.4`), and whether its CDI is on.
pub type RuntimeCdi<'a> = (&'a str, bool);

/// Chooses by the versions in the Node object, `v1.34.9` and `containerd://2.1.4`, by the `report` of the runtime, if
/// there is one, and by whether CDI was `disproved` on this runtime. On a node with two runtimes, only the report of
/// the runtime that the kubelet uses counts.
#[must_use]
pub fn choose(kubelet: &str, runtime: &str, report: Option<RuntimeCdi<'_>>, disproved: bool) -> BindingChoice {
    let early = |lost: bool, why: String| BindingChoice { found: CdiSupport::Early, lost, announced: false, why };
    let late = |announced: bool, why: String| BindingChoice { found: CdiSupport::Late, lost: false, announced, why };
    let (name, version) = runtime.split_once("://").unwrap_or((runtime, ""));
    let known = numbers(kubelet);
    if known.is_none_or(|kubelet| kubelet < KUBELET) {
        return early(
            known.is_some(),
            format!("kubelet {kubelet} does not pass on the CDI devices of a plugin by default (1.29 does)"),
        );
    }
    match reported_by(runtime, report) {
        Some(false) => return early(true, format!("{runtime} reports that its CDI is switched off (enable_cdi)")),
        Some(true) => {
            return late(true, format!("kubelet {kubelet} has CDI, and {runtime} reports that its own CDI is on"));
        }
        None => {}
    }
    let version = numbers(version);
    match name {
        "containerd" if version.is_some_and(|version| version >= CONTAINERD) => {}
        "containerd" if version.is_some_and(|version| version >= CONTAINERD_CAN) => {
            return early(false, format!("{runtime} has CDI switched off unless its configuration turns it on"));
        }
        "cri-o" if version.is_some_and(|version| version >= CRI_O) => {}
        "containerd" | "cri-o" => return early(version.is_some(), format!("{runtime} has no CDI")),
        _ => return early(false, format!("it is not known whether {runtime:?} has CDI")),
    }
    if disproved {
        let why = format!(
            "{runtime} did not make the edits of a CDI device when that was last tried; --binding=late tries it again"
        );
        return BindingChoice { found: CdiSupport::Disproved, lost: true, announced: false, why };
    }
    late(false, format!("kubelet {kubelet} and {runtime} have CDI"))
}

/// Chooses before the versions are known: by what was found `last`, on which runtime, and by what that runtime reports
/// now. If nothing was found before, the result is `None` until the agent has `tried` for long enough to learn the
/// versions. Then it is early binding, which works with every runtime.
#[must_use]
pub fn guess(last: Option<(CdiSupport, &str)>, report: Option<RuntimeCdi<'_>>, tried: bool) -> Option<BindingChoice> {
    let reports = last.and_then(|(_, runtime)| reported_by(runtime, report));
    let (found, lost, why) = match (last.map(|(found, _)| found), reports) {
        (Some(_), Some(false)) => {
            (CdiSupport::Early, true, "the runtime that was found last reports that its CDI is off")
        }
        (Some(CdiSupport::Late | CdiSupport::Disproved), Some(true)) => {
            (CdiSupport::Late, false, "the runtime that was found last reports that its CDI is on")
        }
        (Some(CdiSupport::Disproved), None) => (CdiSupport::Disproved, true, "this was found last"),
        (Some(found), _) => (found, false, "this was found last"),
        (None, _) if !tried => return None,
        (None, _) => (CdiSupport::Early, false, "this works with any runtime"),
    };
    Some(BindingChoice { found, lost, announced: reports == Some(true), why: why.into() })
}

/// Whether this runtime reports that its CDI is on; `None` if the report is of another runtime. Only name, major and
/// minor version are compared, because patch levels are written in more than one way.
fn reported_by(runtime: &str, report: Option<RuntimeCdi<'_>>) -> Option<bool> {
    let parts = |runtime: &str| {
        let (name, version) = runtime.split_once("://")?;
        Some((name.to_owned(), numbers(version)?))
    };
    let (reporter, on) = report?;
    parts(reporter).is_some_and(|parts_of_reporter| Some(parts_of_reporter) == parts(runtime)).then_some(on)
}

fn numbers(version: &str) -> Option<(u32, u32)> {
    let mut parts = version.trim_start_matches('v').split('.');
    let digits = |part: &str| part.split(|c: char| !c.is_ascii_digit()).next().and_then(|digits| digits.parse().ok());
    Some((parts.next()?.parse().ok()?, digits(parts.next()?)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_binding_mode_follows_from_versions_and_the_report_of_the_runtime() {
        use CdiSupport::{Early, Late};
        for (kubelet, runtime, report, expect) in [
            ("v1.34.9", "containerd://2.1.4", None, (Late, false)),
            ("v1.34.9", "containerd://2.1.4", Some(("containerd://2.1.4", true)), (Late, false)),
            ("v1.34.9", "containerd://2.1.4", Some(("containerd://2.1.4", false)), (Early, true)),
            ("v1.34.9", "containerd://2.0.0-rc.3", None, (Late, false)),
            ("v1.29.0+k3s1", "cri-o://1.28.1", None, (Late, false)),
            ("v1.29.0", "cri-o://1.27.9", None, (Early, true)),
            ("v1.28.9", "containerd://2.1.4", Some(("containerd://2.1.4", true)), (Early, true)),
            ("v1.34.9", "containerd://1.7.24", None, (Early, false)),
            ("v1.34.9", "containerd://1.7.24~ds1", Some(("containerd://1.7.24", true)), (Late, false)),
            ("v1.34.9", "containerd://1.6.20~ds1", None, (Early, true)),
            ("v1.20.2", "docker://20.10.5", None, (Early, true)),
            ("v1.34.9", "docker://20.10.5", None, (Early, false)),
            // The report is of another runtime on the same node.
            ("v1.34.9", "docker://28.1.1", Some(("containerd://2.1.4", true)), (Early, false)),
            ("v1.34.9", "cri-o://1.30.0", Some(("containerd://2.1.4", false)), (Late, false)),
            ("v1.34.9", "containerd://2.1.4-k3s1", Some(("containerd://1.7.24", false)), (Late, false)),
            ("v1.34.9", "containerd://", None, (Early, false)),
            ("", "", None, (Early, false)),
        ] {
            let BindingChoice { found, lost, announced, why } = choose(kubelet, runtime, report, false);
            assert_eq!((found, lost), expect, "{kubelet} {runtime} {report:?}: {why}");
            assert_eq!(announced, found == Late && report.is_some_and(|(_, on)| on), "{why}");
        }
        assert!(choose("v1.34.9", "containerd://1.7.24", None, false).why.contains("switched off"));
    }

    #[test]
    fn kubelets_before_1_37_drop_the_newer_connection_with_the_older() {
        use SecondConnection::{DroppedWithTheFirst, Kept};
        for (kubelet, expect) in [
            ("v1.24.17", None),
            ("v1.25.16", Some(DroppedWithTheFirst)),
            ("v1.34.9", Some(DroppedWithTheFirst)),
            ("v1.36.2", Some(DroppedWithTheFirst)),
            ("v1.37.0", Some(Kept)),
            ("v2.0", Some(Kept)),
            ("", None),
        ] {
            assert_eq!(second_connection(kubelet), expect, "{kubelet}");
        }
    }

    #[test]
    fn disproved_cdi_stays_disproved_until_the_runtime_reports_it() {
        let runtime = "containerd://2.1.4";
        for (report, expect) in [
            (None, (CdiSupport::Disproved, true)),
            (Some((runtime, true)), (CdiSupport::Late, false)),
            (Some((runtime, false)), (CdiSupport::Early, true)),
            (Some(("containerd://1.7.24", true)), (CdiSupport::Disproved, true)),
        ] {
            let choice = choose("v1.34.9", runtime, report, true);
            assert_eq!((choice.found, choice.lost), expect, "{report:?}: {}", choice.why);
        }
        assert_eq!(choose("v1.34.9", "containerd://1.7.24", None, true).found, CdiSupport::Early);
    }

    #[test]
    fn before_the_versions_are_known_the_last_finding_and_the_report_of_the_runtime_count() {
        use CdiSupport::{Disproved, Early, Late};
        let (runtime, other) = ("containerd://2.1.4", "containerd://1.7.24");
        for (last, report, expect) in [
            (None, None, (Early, false)),
            (None, Some((runtime, true)), (Early, false)),
            (Some(Late), None, (Late, false)),
            (Some(Late), Some((runtime, true)), (Late, false)),
            (Some(Late), Some((runtime, false)), (Early, true)),
            (Some(Late), Some((other, false)), (Late, false)),
            (Some(Early), None, (Early, false)),
            // Early may have been chosen because of the kubelet.
            (Some(Early), Some((runtime, true)), (Early, false)),
            (Some(Early), Some((runtime, false)), (Early, true)),
            (Some(Disproved), None, (Disproved, true)),
            (Some(Disproved), Some((runtime, true)), (Late, false)),
            (Some(Disproved), Some((other, true)), (Disproved, true)),
        ] {
            let last = last.map(|found| (found, runtime));
            let choice = guess(last, report, true).unwrap();
            assert_eq!(guess(last, report, false), last.map(|_| choice.clone()), "nothing is guessed without a reason");
            assert_eq!((choice.found, choice.lost), expect, "{last:?} {report:?}");
        }
    }
}
