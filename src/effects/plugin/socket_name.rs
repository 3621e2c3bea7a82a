//! What our sockets are called: one for each resource in each of kubelet's two folders.
//!
//! In the registry the name decides whether kubelet can be heard. Its client makes the `:authority` of its question from
//! the socket's whole path and escapes what no authority may hold (`%2Fvar%2Flib%2F…`). Our HTTP/2 takes a percent sign in
//! the user of an authority and nowhere else, so the name holds an `@`: what stands before it is the user, what follows is
//! a host without anything to escape (docs/decisions/0091).
//!
//! What must never happen here: a character behind the `@` that an authority cannot hold as it is.

const IN_PLUGINS: &str = "gpu-steward-";
const IN_REGISTRY: &str = "gpu-steward@";
const END: &str = ".sock";
/// No resource's name has a comma.
const BESIDE: &str = ",2";
const UNANSWERING: &str = ",0";

/// In the plugin folder, whose sockets kubelet calls `localhost`.
pub(super) fn plugin(resource: &str) -> String {
    format!("{IN_PLUGINS}{}{END}", resource.replace('/', "-"))
}

/// In the plugin folder, beside a predecessor that still listens at the other one.
pub(super) fn plugin_beside(resource: &str) -> String {
    format!("{IN_PLUGINS}{}{BESIDE}{END}", resource.replace('/', "-"))
}

/// In the plugin folder, for a registration that is to fail.
pub(super) fn unanswering(resource: &str) -> String {
    format!("{IN_PLUGINS}{}{UNANSWERING}{END}", resource.replace('/', "-"))
}

/// In the registry.
pub(super) fn registry(resource: &str) -> String {
    format!("{IN_REGISTRY}{}{END}", resource.replace('/', "-"))
}

/// Whether a file of this name is a socket of an agent, whatever resource it serves.
pub(super) fn is_an_agents(name: &str) -> bool {
    (name.starts_with(IN_PLUGINS) || name.starts_with(IN_REGISTRY)) && name.ends_with(END)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use axum::http::uri::Authority;
    use proptest::prelude::*;
    use std::fmt::Write;
    use std::path::Path;

    /// As kubelet's client (grpc-go, `encodeAuthority`) makes it of a path: what RFC 3986 lets an authority hold stays as it
    /// is, every other byte is escaped.
    pub(in crate::plugin) fn authority(path: &Path) -> String {
        let mut authority = String::new();
        for byte in path.as_os_str().as_encoded_bytes() {
            if byte.is_ascii_alphanumeric() || b"-_.~!$&'()*+,;=:[]@".contains(byte) {
                authority.push(char::from(*byte));
            } else {
                write!(authority, "%{byte:02X}").expect("a string grows");
            }
        }
        authority
    }

    #[test]
    fn the_names_are_these() {
        assert_eq!(plugin("nvidia.com/gpu"), "gpu-steward-nvidia.com-gpu.sock");
        assert_eq!(plugin_beside("nvidia.com/gpu"), "gpu-steward-nvidia.com-gpu,2.sock");
        assert_eq!(registry("nvidia.com/gpu"), "gpu-steward@nvidia.com-gpu.sock");
        assert_eq!(unanswering("nvidia.com/gpu"), "gpu-steward-nvidia.com-gpu,0.sock");
        let all = [plugin, plugin_beside, unanswering, registry].map(|name| name("a.b/c"));
        assert!(all.iter().all(|name| is_an_agents(name)));
        assert!(!["kubelet.sock", "nvidia-gpu.sock", "gpu-steward-notes.txt"].into_iter().any(is_an_agents));
        assert_eq!(
            authority(&Path::new("/var/lib/kubelet/plugins_registry").join(registry("nvidia.com/gpu"))),
            "%2Fvar%2Flib%2Fkubelet%2Fplugins_registry%2Fgpu-steward@nvidia.com-gpu.sock"
        );
    }

    #[test]
    fn without_the_sign_the_path_is_no_authority() {
        let path = Path::new("/var/lib/kubelet/plugins_registry").join(plugin("nvidia.com/gpu"));
        assert!(authority(&path).parse::<Authority>().is_err());
    }

    proptest! {
        /// Whatever kubelet's folder and the resource are called. Colons and brackets, which kubelet's client does not
        /// escape, are beyond this: a node whose kubelet lives under such a path is registered the classic way.
        #[test]
        fn every_path_is_an_authority(
            root in "(/[^\\x00/:\\[\\]]{1,20}){0,4}",
            resource in "[a-z0-9]([a-z0-9.-]{0,30}[a-z0-9])?/[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?",
        ) {
            let path = Path::new(&format!("{root}/plugins_registry")).join(registry(&resource));
            let authority: Authority = authority(&path).parse().unwrap();
            prop_assert_eq!(authority.host(), format!("{}.sock", resource.replace('/', "-")));
        }
    }
}
