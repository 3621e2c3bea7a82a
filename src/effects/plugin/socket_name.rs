//! The names of the agent's sockets: one for each resource in each of the kubelet's two folders.
//!
//! In the registry the name decides whether the agent understands the kubelet. The kubelet's client makes the
//! `:authority` of its call from the whole path of the socket and escapes what an authority may not hold
//! (`%2Fvar%2Flib%2F…`). The agent's HTTP/2 library accepts a percent sign only in the user part of an authority. So
//! the name has an `@`: the part before it is the user, and the part after it is a host in which nothing needs an
//! escape (docs/decisions/0091).
//!
//! What must never happen here: a character after the `@` that an authority cannot hold unescaped.

const IN_PLUGINS: &str = "gpu-steward-";
const IN_REGISTRY: &str = "gpu-steward@";
const END: &str = ".sock";
/// The name of a resource has no comma.
const BESIDE: &str = ",2";
const UNANSWERING: &str = ",0";

/// In the plugin folder. The kubelet calls sockets there with the authority `localhost`.
pub(super) fn plugin(resource: &str) -> String {
    format!("{IN_PLUGINS}{}{END}", resource.replace('/', "-"))
}

/// In the plugin folder, while a previous agent still listens on the socket [`plugin`].
pub(super) fn plugin_beside(resource: &str) -> String {
    format!("{IN_PLUGINS}{}{BESIDE}{END}", resource.replace('/', "-"))
}

/// In the plugin folder, for a registration that has to fail.
pub(super) fn unanswering(resource: &str) -> String {
    format!("{IN_PLUGINS}{}{UNANSWERING}{END}", resource.replace('/', "-"))
}

/// In the registry.
pub(super) fn registry(resource: &str) -> String {
    format!("{IN_REGISTRY}{}{END}", resource.replace('/', "-"))
}

/// Whether a file of this name is the socket of an agent, for any resource.
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

    /// The authority that the kubelet's client (grpc-go, `encodeAuthority`) makes from a path: characters that RFC 3986
    /// allows in an authority stay, every other byte is escaped.
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
    fn socket_names_are_as_documented() {
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
    fn a_socket_path_without_an_at_sign_is_no_valid_authority() {
        let path = Path::new("/var/lib/kubelet/plugins_registry").join(plugin("nvidia.com/gpu"));
        assert!(authority(&path).parse::<Authority>().is_err());
    }

    proptest! {
        /// For every kubelet folder and resource name. Paths with colons or brackets, which the kubelet's client does
        /// not escape, are left out: the agent registers the classic way on such a node.
        #[test]
        fn every_registry_socket_path_is_a_valid_authority(
            root in "(/[^\\x00/:\\[\\]]{1,20}){0,4}",
            resource in "[a-z0-9]([a-z0-9.-]{0,30}[a-z0-9])?/[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?",
        ) {
            let path = Path::new(&format!("{root}/plugins_registry")).join(registry(&resource));
            let authority: Authority = authority(&path).parse().unwrap();
            prop_assert_eq!(authority.host(), format!("{}.sock", resource.replace('/', "-")));
        }
    }
}
