//! Late or early: whether kubelet and runtime of this node carry CDI devices from a device plugin into a container.

/// When a container is given its devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Binding {
    /// When it starts, by CDI: it is known whose it is.
    Late,
    /// When kubelet allocates, and confirmed when it starts.
    Early,
}

/// The way, and a sentence that says why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    /// Which.
    pub binding: Binding,
    /// Half a sentence for the log.
    pub why: String,
}

/// kubelet hands a plugin's CDI devices on by itself from here (`DevicePluginCDIDevices`; before that it is off).
const KUBELET: (u32, u32) = (1, 29);
/// containerd does as it is told from here; 1.7 can, and has it switched off.
const CONTAINERD: (u32, u32) = (2, 0);
/// CRI-O takes CDI devices from kubelet from here.
const CRI_O: (u32, u32) = (1, 28);

/// Chooses by the versions as a Node tells them: `v1.34.9` and `containerd://2.1.4`.
#[must_use]
pub fn choose(kubelet: &str, runtime: &str) -> Choice {
    let early = |why: String| Choice { binding: Binding::Early, why };
    let (name, version) = runtime.split_once("://").unwrap_or((runtime, ""));
    if numbers(kubelet).is_none_or(|kubelet| kubelet < KUBELET) {
        return early(format!("kubelet {kubelet} does not hand CDI devices of a plugin on by itself (1.29 does)"));
    }
    let version = numbers(version);
    match name {
        "containerd" if version.is_some_and(|version| version >= CONTAINERD) => {}
        "containerd" if version.is_some_and(|version| version.0 == 1 && version.1 >= 7) => {
            return early(format!("{runtime} has CDI switched off unless its configuration says otherwise"));
        }
        "cri-o" if version.is_some_and(|version| version >= CRI_O) => {}
        "containerd" | "cri-o" => return early(format!("{runtime} has no CDI")),
        _ => return early(format!("it is not known whether {runtime:?} has CDI")),
    }
    Choice { binding: Binding::Late, why: format!("kubelet {kubelet} and {runtime} have CDI") }
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
    fn versions_say_whether_there_is_cdi() {
        for (kubelet, runtime, binding) in [
            ("v1.34.9", "containerd://2.1.4", Binding::Late),
            ("v1.34.9", "containerd://2.0.0-rc.3", Binding::Late),
            ("v1.29.0+k3s1", "cri-o://1.28.1", Binding::Late),
            ("v1.29.0", "cri-o://1.27.9", Binding::Early),
            ("v1.28.9", "containerd://2.1.4", Binding::Early),
            ("v1.34.9", "containerd://1.7.24", Binding::Early),
            ("v1.34.9", "containerd://1.6.20~ds1", Binding::Early),
            ("v1.20.2", "docker://20.10.5", Binding::Early),
            ("v1.34.9", "containerd://", Binding::Early),
            ("", "", Binding::Early),
        ] {
            let choice = choose(kubelet, runtime);
            assert_eq!(choice.binding, binding, "{kubelet} {runtime}: {}", choice.why);
        }
        assert!(choose("v1.34.9", "containerd://1.7.24").why.contains("switched off"));
    }
}
