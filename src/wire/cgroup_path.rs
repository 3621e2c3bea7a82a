//! Finds the pod or container that a cgroup path belongs to.
//!
//! ```text
//!   /kubepods/burstable/pod<UID>/<id>                                          cgroupfs driver
//!   /kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod<U_I_D>.slice/<runtime>-<id>.scope   systemd driver
//!   …/kubepods-burstable-pod<U_I_D>.slice:cri-containerd:<id>                  kubelet: systemd, containerd: cgroupfs
//!   /docker/<id>   docker-<id>.scope   libpod-<id>.scope                       containers without a pod
//! ```
//!
//! A path may have any prefix (kubelet has its own root cgroup, or the node itself is a container) and any suffix
//! (cgroups that a container creates itself). A cgroup inside a pod belongs to the outermost pod and to the outermost
//! container in it. If kubelet runs in a container that belongs to no pod, the pods below that container count as pods.
//!
//! What must never happen here: a guess. A path that starts above the reader's cgroup namespace (`/../…`) is
//! incomplete, so it is always [`CgroupPlace::Foreign`].

use model::cgroup::{CgroupKind, Qos, RuntimeKind};
use model::id::{ContainerId, PodUid};

/// The place of a cgroup path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CgroupPlace<'a> {
    /// The path is in a pod or container.
    Inside {
        /// The path of the cgroup of that pod or container, without the cgroups below it.
        path: &'a str,
        /// The pod or container.
        kind: CgroupKind,
    },
    /// The path is neither in a pod nor in a container.
    Host,
    /// The path is outside the reader's cgroup namespace.
    Foreign,
}

/// Finds the pod or container that `path` belongs to. The suffix ` (deleted)`, which the kernel appends to the path of
/// a removed cgroup, is ignored.
#[must_use]
pub fn place(path: &str) -> CgroupPlace<'_> {
    let path = path.strip_suffix(" (deleted)").unwrap_or(path);
    if path == "/.." || path.starts_with("/../") {
        return CgroupPlace::Foreign;
    }
    let mut walk = Steps::default();
    for (end, segment) in segments(path) {
        if walk.step(segment, end) {
            break;
        }
    }
    match walk.found {
        Some((end, kind)) => CgroupPlace::Inside { path: path.get(..end).unwrap_or(path), kind },
        None => CgroupPlace::Host,
    }
}

/// The segments of a path, each with the position of its end.
fn segments(path: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut end = 0;
    path.split('/').map(move |segment| {
        let segment_end = end + segment.len();
        end = segment_end + 1;
        (segment_end, segment)
    })
}

/// The state of the walk over the segments.
#[derive(Default)]
struct Steps<'a> {
    parent: &'a str,
    in_kubepods: bool,
    qos: Option<Qos>,
    found: Option<(usize, CgroupKind)>,
}

impl<'a> Steps<'a> {
    /// Processes one segment; `true` when no later segment can change the result.
    fn step(&mut self, segment: &'a str, end: usize) -> bool {
        let parent = std::mem::replace(&mut self.parent, segment);
        if let Some((_, CgroupKind::Pod { uid, qos })) = &self.found {
            if let Some((runtime, id)) = container(segment, true) {
                let kind = CgroupKind::Container { pod: Some((uid.clone(), *qos)), id, runtime };
                self.found = Some((end, kind));
            }
            return true;
        }
        if let Some(kind) = systemd_name_in_cgroupfs(segment) {
            self.found = Some((end, kind));
            return true;
        }
        if let Some((uid, qos)) = self.pod(segment) {
            self.found = Some((end, CgroupKind::Pod { uid, qos }));
            return false;
        }
        self.class(segment);
        if self.found.is_none()
            && let Some((runtime, id)) = container(segment, parent == "docker")
        {
            let runtime = if parent == "docker" { RuntimeKind::Docker } else { runtime };
            self.found = Some((end, CgroupKind::Container { pod: None, id, runtime }));
        }
        false
    }

    /// Records `kubepods` and the QoS class below it.
    fn class(&mut self, segment: &str) {
        let name = segment.strip_suffix(".slice").unwrap_or(segment);
        if name == "kubepods" || name.ends_with("-kubepods") {
            self.in_kubepods = true;
            self.qos = None;
        } else if self.in_kubepods {
            match name {
                "burstable" => self.qos = Some(Qos::Burstable),
                "besteffort" => self.qos = Some(Qos::BestEffort),
                _ => {}
            }
        }
    }

    /// The pod whose cgroup this segment names, with either cgroup driver.
    fn pod(&self, segment: &str) -> Option<(PodUid, Qos)> {
        if let Some(pod) = segment.strip_suffix(".slice").and_then(slice_pod) {
            return Some(pod);
        }
        let uid = segment.strip_prefix("pod").filter(|_| self.in_kubepods)?;
        Some((PodUid::parse(uid).ok()?, self.qos.unwrap_or(Qos::Guaranteed)))
    }
}

/// The pod of `kubepods-burstable-pod<U_I_D>`: the name of a systemd slice contains the names of its parents.
fn slice_pod(name: &str) -> Option<(PodUid, Qos)> {
    let (parents, uid) = name.rsplit_once("-pod")?;
    let qos = [
        ("kubepods", Qos::Guaranteed),
        ("kubepods-burstable", Qos::Burstable),
        ("kubepods-besteffort", Qos::BestEffort),
    ]
    .into_iter()
    .find(|(end, _)| parents.strip_suffix(end).is_some_and(|rest| rest.is_empty() || rest.ends_with('-')))?
    .1;
    Some((PodUid::parse(&uid.replace('_', "-")).ok()?, qos))
}

/// The container of `kubepods-…-pod<U_I_D>.slice:cri-containerd:<id>`: kubelet uses the systemd driver and the runtime
/// uses cgroupfs, so the runtime takes the whole text as the name of a directory.
fn systemd_name_in_cgroupfs(segment: &str) -> Option<CgroupKind> {
    let (slice, rest) = segment.split_once(".slice:")?;
    let (runtime, id) = rest.split_once(':')?;
    let (uid, qos) = slice_pod(slice)?;
    let runtime = RUNTIMES.iter().find(|(prefix, _)| *prefix == runtime)?.1;
    Some(CgroupKind::Container { pod: Some((uid, qos)), id: ContainerId::parse(id).ok()?, runtime })
}

/// Prefixes that runtimes put before the container id. The monitor processes of CRI-O and Podman (`crio-conmon-`,
/// `libpod-conmon-`) are not containers: `conmon-…` is not a valid id.
const RUNTIMES: [(&str, RuntimeKind); 5] = [
    ("cri-containerd", RuntimeKind::Containerd),
    ("nerdctl", RuntimeKind::Containerd),
    ("crio", RuntimeKind::CriO),
    ("docker", RuntimeKind::Docker),
    ("libpod", RuntimeKind::Podman),
];

/// The container whose cgroup this segment names. With `unnamed`, a bare id without a runtime's prefix counts too: the
/// caller knows from the position that it is a container.
fn container(segment: &str, unnamed: bool) -> Option<(RuntimeKind, ContainerId)> {
    let name = segment.strip_suffix(".scope").unwrap_or(segment);
    for (prefix, runtime) in RUNTIMES {
        if let Some(id) = name.strip_prefix(prefix).and_then(|rest| rest.strip_prefix('-')) {
            return Some((runtime, ContainerId::parse(id).ok()?));
        }
    }
    if unnamed { Some((RuntimeKind::Unnamed, ContainerId::parse(segment).ok()?)) } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const UID: &str = "0f5b9a3e-0d2c-4b7f-9a51-2f1f6a1f8d11";
    const SYSTEMD: &str = "0f5b9a3e_0d2c_4b7f_9a51_2f1f6a1f8d11";
    const STATIC: &str = "0f5b9a3e0d2c4b7f9a512f1f6a1f8d11";
    const ID: &str = "1234567890abcdef1234567890abcdef1234567890abcdef1234567890abcdef";

    /// Replaces `{U}`, `{S}`, `{T}` and `{I}` by the names above.
    fn fill(text: &str) -> String {
        text.replace("{U}", UID).replace("{S}", SYSTEMD).replace("{T}", STATIC).replace("{I}", ID)
    }

    fn check(path: &str, cut: &str, pod: Option<(&str, Qos)>, runtime: Option<RuntimeKind>) {
        let (path, cut) = (fill(path), fill(cut));
        let CgroupPlace::Inside { path: found, kind } = place(&path) else { panic!("{path} is in nothing") };
        assert_eq!(found, cut, "{path}");
        let pod = pod.map(|(uid, qos)| (PodUid::parse(&fill(uid)).unwrap(), qos));
        let expected = match (pod, runtime) {
            (Some((uid, qos)), None) => CgroupKind::Pod { uid, qos },
            (pod, Some(runtime)) => CgroupKind::Container { pod, id: ContainerId::parse(ID).unwrap(), runtime },
            (None, None) => unreachable!(),
        };
        assert_eq!(kind, expected, "{path}");
    }

    #[test]
    fn pods_and_their_containers_are_recognised_in_every_spelling() {
        use Qos::{BestEffort, Burstable, Guaranteed};
        let slices = "/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod{S}.slice";
        for (path, pod, runtime) in [
            ("/kubepods/pod{U}", ("{U}", Guaranteed), None),
            ("/kubepods/burstable/pod{U}", ("{U}", Burstable), None),
            ("/kubepods/besteffort/pod{T}", ("{T}", BestEffort), None),
            ("/kubepods/pod{U}/{I}", ("{U}", Guaranteed), Some(RuntimeKind::Unnamed)),
            ("/kubepods/burstable/pod{T}/{I}", ("{T}", Burstable), Some(RuntimeKind::Unnamed)),
            ("/node-b/kubepods/besteffort/pod{U}/{I}", ("{U}", BestEffort), Some(RuntimeKind::Unnamed)),
            ("/kubepods/burstable/pod{U}/crio-{I}", ("{U}", Burstable), Some(RuntimeKind::CriO)),
            (slices, ("{U}", BestEffort), None),
            (&format!("{slices}/cri-containerd-{{I}}.scope"), ("{U}", BestEffort), Some(RuntimeKind::Containerd)),
            (&format!("{slices}/crio-{{I}}.scope"), ("{U}", BestEffort), Some(RuntimeKind::CriO)),
            (&format!("{slices}/docker-{{I}}.scope"), ("{U}", BestEffort), Some(RuntimeKind::Docker)),
            ("/kubepods.slice/kubepods-pod{T}.slice", ("{T}", Guaranteed), None),
            (
                "/a.slice/a-b.slice/a-b-kubepods.slice/a-b-kubepods-pod{S}.slice/crio-{I}.scope",
                ("{U}", Guaranteed),
                Some(RuntimeKind::CriO),
            ),
            (
                "/system.slice/containerd.service/kubepods-burstable-pod{S}.slice:cri-containerd:{I}",
                ("{U}", Burstable),
                Some(RuntimeKind::Containerd),
            ),
            ("/docker/{I}/kubelet/kubepods/burstable/pod{U}/{I}", ("{U}", Burstable), Some(RuntimeKind::Unnamed)),
        ] {
            check(path, path, Some(pod), runtime);
        }
    }

    #[test]
    fn a_nested_cgroup_belongs_to_the_outermost_pod_and_container() {
        let container = "/kubepods/burstable/pod{U}/{I}";
        for tail in
            ["/init.scope", "/docker/{I}", "/kubepods/pod{T}/{I}", "/system.slice/docker-{I}.scope", " (deleted)"]
        {
            check(&format!("{container}{tail}"), container, Some(("{U}", Qos::Burstable)), Some(RuntimeKind::Unnamed));
        }
        check("/docker/{I}/docker/{I}", "/docker/{I}", None, Some(RuntimeKind::Docker));
    }

    #[test]
    fn a_monitor_process_belongs_to_its_pod_and_is_no_container() {
        let pod = "/kubepods.slice/kubepods-pod{S}.slice";
        check(&format!("{pod}/crio-conmon-{{I}}.scope"), pod, Some(("{U}", Qos::Guaranteed)), None);
        check(&format!("{pod}/init"), pod, Some(("{U}", Qos::Guaranteed)), None);
    }

    #[test]
    fn containers_without_a_pod_are_recognised() {
        for (path, runtime) in [
            ("/docker/{I}", RuntimeKind::Docker),
            ("/system.slice/docker-{I}.scope", RuntimeKind::Docker),
            ("/machine.slice/libpod-{I}.scope", RuntimeKind::Podman),
            ("/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-{I}.scope", RuntimeKind::Podman),
            ("/libpod_parent/libpod-{I}", RuntimeKind::Podman),
        ] {
            check(path, path, None, Some(runtime));
        }
    }

    #[test]
    fn other_paths_are_neither_pods_nor_containers() {
        for path in [
            "",
            "/",
            "/system.slice/sshd.service",
            "/kubepods",
            "/kubepods.slice/kubepods-burstable.slice",
            "/pod{U}",
            "/kubepods/podium",
            "/process_api/{T}",
            "/machine.slice/libpod-conmon-{I}.scope",
            "/{I}",
            "/docker/buildx",
            "/xkubepods-pod{S}.slice",
            "/kubepods-pod{S}.slice:runtime:{I}",
            "/docker-{I}x.scope",
        ] {
            assert_eq!(place(&fill(path)), CgroupPlace::Host, "{path}");
        }
    }

    #[test]
    fn a_path_above_the_cgroup_namespace_is_foreign_whatever_follows() {
        for path in ["/..", "/../..", "/../../kubepods/pod{U}/{I}"] {
            assert_eq!(place(&fill(path)), CgroupPlace::Foreign);
        }
        assert_eq!(place("/..data"), CgroupPlace::Host);
    }

    proptest! {
        #[test]
        fn no_path_causes_a_panic_and_only_its_end_is_cut_off(path in "(/(\\.\\.|kubepods|burstable|pod[0-9a-f-]{36}|[0-9a-f]{64}|docker|é|.{0,9})){0,8}") {
            if let CgroupPlace::Inside { path: cut, .. } = place(&path) {
                prop_assert!(path.starts_with(cut));
                prop_assert_eq!(place(cut), place(&path));
            }
        }
    }
}
