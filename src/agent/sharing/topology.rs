//! The kubelet's topology manager policy, from the setting, otherwise from the kubelet's configuration file.

use crate::settings::Topology;
use sources::kubelet_config::{self, KubeletConfigError};
use std::path::Path;

/// The policy from the setting, otherwise from the kubelet's file, otherwise no policy.
pub(super) fn read(setting: Option<Topology>, kubelet_root: &Path) -> Topology {
    let policy = setting.or_else(|| of_file(kubelet_root)).unwrap_or(Topology::None);
    if policy == Topology::Aligned {
        tracing::info!(
            "kubelet aligns devices by topology: a claim moves to the devices that kubelet chose, if it fits there"
        );
    }
    policy
}

fn of_file(kubelet_root: &Path) -> Option<Topology> {
    let path = kubelet_root.join(kubelet_config::FILE);
    let word = match kubelet_config::topology_policy(kubelet_root) {
        Ok(word) => word?,
        // The chart does not mount this file, because on a node without the file the mount would create a folder of
        // that name.
        Err(KubeletConfigError::Unread(error)) => {
            tracing::info!(
                file = %path.display(), %error,
                "kubelet's topology policy is unknown and assumed to be none; if kubelet has one, give --topology-policy"
            );
            return None;
        }
        Err(KubeletConfigError::NotYaml(error)) => {
            tracing::warn!(file = %path.display(), error, "kubelet's configuration cannot be read: give --topology-policy");
            return None;
        }
    };
    let policy = Topology::of_policy(&word);
    if policy.is_none() {
        tracing::warn!(file = %path.display(), policy = word, "unknown topology policy of kubelet: give --topology-policy");
    }
    policy
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_setting_comes_first_then_kubelets_file_then_none() {
        let root = tempfile::tempdir().unwrap();
        assert_eq!(read(None, root.path()), Topology::None);
        for (text, policy) in [
            ("kind: KubeletConfiguration\ntopologyManagerPolicy: single-numa-node\n", Topology::Aligned),
            ("topologyManagerPolicy: none\n", Topology::None),
            ("topologyManagerPolicy: later\n", Topology::None),
            ("kind: KubeletConfiguration\n", Topology::None),
            ("{", Topology::None),
        ] {
            std::fs::write(root.path().join(kubelet_config::FILE), text).unwrap();
            assert_eq!(read(None, root.path()), policy, "{text}");
            assert_eq!(read(Some(Topology::None), root.path()), Topology::None, "{text}");
        }
    }
}
