//! The kubelet's topology manager policy, as far as the kubelet's configuration file tells it.

use super::kubelet_config;
use crate::settings::value::{self, Topology};
use std::io::Read;
use std::path::Path;

/// The kubelet's configuration file as kubeadm names it, in the kubelet's root directory.
const FILE: &str = "config.yaml";
/// The most bytes that are read of the file; kubeadm's is 1 KiB.
const MAX_BYTES: u64 = 256 * 1024;

/// The policy that applies: that of the setting, else that of the kubelet's file, else none.
pub(super) fn read(setting: Option<Topology>, kubelet_root: &Path) -> Topology {
    let policy = setting.or_else(|| of_file(&kubelet_root.join(FILE))).unwrap_or(Topology::None);
    if policy == Topology::Aligned {
        tracing::info!("kubelet aligns devices by topology: a claim moves to the devices it chose, if it fits there");
    }
    policy
}

fn of_file(path: &Path) -> Option<Topology> {
    let mut text = String::new();
    if let Err(error) = std::fs::File::open(path).and_then(|file| file.take(MAX_BYTES).read_to_string(&mut text)) {
        // The chart does not mount this single file: where it is missing, the mount would make a folder of that name.
        tracing::info!(
            file = %path.display(), %error,
            "kubelet's topology policy is not known and taken for none; if it has one, give --topology-policy"
        );
        return None;
    }
    let word = match kubelet_config::topology_policy(&text) {
        Ok(word) => word?,
        Err(error) => {
            tracing::warn!(file = %path.display(), error, "kubelet's configuration cannot be read: give --topology-policy");
            return None;
        }
    };
    let policy = value::topology(&word);
    if policy.is_err() {
        tracing::warn!(file = %path.display(), policy = word, "this topology policy is not known: give --topology-policy");
    }
    policy.ok()
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
            std::fs::write(root.path().join(FILE), text).unwrap();
            assert_eq!(read(None, root.path()), policy, "{text}");
            assert_eq!(read(Some(Topology::None), root.path()), Topology::None, "{text}");
        }
    }
}
