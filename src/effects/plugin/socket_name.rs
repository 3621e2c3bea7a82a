//! The names of the agent's sockets, one for each resource.

const IN_PLUGINS: &str = "gpu-steward-";
const IN_REGISTRY: &str = "gpu-steward@";
const END: &str = ".sock";
/// The end of the second socket's name: no resource name has a comma.
const BESIDE: &str = ",2";
const UNANSWERING: &str = ",0";

/// In the plugin folder.
pub(super) fn plugin(resource: &str) -> String {
    format!("{IN_PLUGINS}{}{END}", resource.replace('/', "-"))
}

/// The socket in the plugin folder while a previous agent still listens on the socket [`plugin`].
pub(super) fn plugin_beside(resource: &str) -> String {
    format!("{IN_PLUGINS}{}{BESIDE}{END}", resource.replace('/', "-"))
}

/// The socket in the plugin folder for a registration that is meant to fail.
pub(super) fn unanswering(resource: &str) -> String {
    format!("{IN_PLUGINS}{}{UNANSWERING}{END}", resource.replace('/', "-"))
}

/// The socket in the kubelet's plugin registry, where agents of earlier releases registered.
pub(super) fn registry(resource: &str) -> String {
    format!("{IN_REGISTRY}{}{END}", resource.replace('/', "-"))
}

/// Whether this is the file name of an agent's socket, for any resource.
pub(super) fn is_an_agents(name: &str) -> bool {
    (name.starts_with(IN_PLUGINS) || name.starts_with(IN_REGISTRY)) && name.ends_with(END)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn socket_names_are_as_documented() {
        assert_eq!(plugin("nvidia.com/gpu"), "gpu-steward-nvidia.com-gpu.sock");
        assert_eq!(plugin_beside("nvidia.com/gpu"), "gpu-steward-nvidia.com-gpu,2.sock");
        assert_eq!(registry("nvidia.com/gpu"), "gpu-steward@nvidia.com-gpu.sock");
        assert_eq!(unanswering("nvidia.com/gpu"), "gpu-steward-nvidia.com-gpu,0.sock");
        let all = [plugin, plugin_beside, unanswering, registry].map(|name| name("a.b/c"));
        assert!(all.iter().all(|name| is_an_agents(name)));
        assert!(!["kubelet.sock", "nvidia-gpu.sock", "gpu-steward-notes.txt"].into_iter().any(is_an_agents));
    }
}
