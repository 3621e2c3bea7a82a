//! The kubelet's configuration file: the topology manager's policy (`topologyManagerPolicy`) in it.
//!
//! What must never happen here: a file that cannot be read is treated like a file without the key.

use crate::bounded_file;
use std::io;
use std::path::Path;

/// The name that kubeadm gives the file, in the kubelet's root directory.
pub const FILE: &str = "config.yaml";
/// Longest file that is read, in bytes; kubeadm's has 1 KiB.
const MAX_BYTES: usize = 256 * 1024;
/// The key of the topology manager's policy.
const KEY: &str = "topologyManagerPolicy";

/// Why the policy is not known.
#[derive(Debug, thiserror::Error)]
pub enum KubeletConfigError {
    /// The file is missing or cannot be read.
    #[error("{0}")]
    Unread(#[from] io::Error),
    /// The text is not YAML.
    #[error("{0}")]
    NotYaml(String),
}

/// The topology manager's policy as it is written in the file below this root directory of the kubelet; `None` if the
/// file has no such key, or the value is not a string.
///
/// # Errors
/// [`KubeletConfigError`].
pub fn topology_policy(kubelet_root: &Path) -> Result<Option<String>, KubeletConfigError> {
    let text = bounded_file::read_text(&kubelet_root.join(FILE), MAX_BYTES)?;
    parse_topology_policy(&text).map_err(KubeletConfigError::NotYaml)
}

/// The topology manager's policy in this text; `None` if the file has no such key, or the value is not
/// a string.
///
/// # Errors
/// A text that says what is wrong with the YAML, and where.
pub fn parse_topology_policy(text: &str) -> Result<Option<String>, String> {
    let config: serde_json::Value = serde_saphyr::from_str(text).map_err(|error| error.to_string())?;
    Ok(config.get(KEY).and_then(serde_json::Value::as_str).map(ToOwned::to_owned))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_policy_is_read_and_values_of_other_types_are_none() {
        let found = |text: &str| parse_topology_policy(text).map(|policy| policy.unwrap_or_default());
        assert_eq!(
            found("kind: KubeletConfiguration\ntopologyManagerPolicy: restricted\n").as_deref(),
            Ok("restricted")
        );
        for none in ["", "kind: KubeletConfiguration\n", "topologyManagerPolicy: [none]\n", "- topologyManagerPolicy\n"]
        {
            assert_eq!(found(none).as_deref(), Ok(""), "{none}");
        }
        assert!(found("{").is_err());
    }

    #[test]
    fn an_unreadable_kubelet_configuration_is_an_error() {
        let root = tempfile::tempdir().unwrap();
        assert!(matches!(topology_policy(root.path()), Err(KubeletConfigError::Unread(_))));
        let path = root.path().join(FILE);
        for text in ["{".to_owned(), "#".repeat(MAX_BYTES + 1)] {
            std::fs::write(&path, text).unwrap();
            assert!(topology_policy(root.path()).is_err());
        }
        std::fs::write(&path, "topologyManagerPolicy: none\n").unwrap();
        assert_eq!(topology_policy(root.path()).unwrap().as_deref(), Some("none"));
    }

    proptest! {
        #[test]
        fn no_text_makes_the_policy_parser_panic(
            bytes in prop::collection::vec(any::<u8>(), 0..200), policy in "[a-z-]{0,20}",
        ) {
            let _ = parse_topology_policy(&String::from_utf8_lossy(&bytes));
            prop_assert_eq!(parse_topology_policy(&format!("{KEY}: '{policy}'\n")), Ok(Some(policy)));
        }
    }
}
