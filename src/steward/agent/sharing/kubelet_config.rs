//! Reads the topology manager's policy (`topologyManagerPolicy`) from the text of the kubelet's configuration file.

/// The key of the topology manager's policy.
const KEY: &str = "topologyManagerPolicy";

/// The topology manager's policy as the file spells it; `None` if the file has no such key, or the value is no text.
///
/// # Errors
/// What is wrong with the YAML, and where.
pub(crate) fn topology_policy(text: &str) -> Result<Option<String>, String> {
    let config: serde_json::Value = serde_saphyr::from_str(text).map_err(|error| error.to_string())?;
    Ok(config.get(KEY).and_then(serde_json::Value::as_str).map(ToOwned::to_owned))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_word_is_found_and_other_kinds_of_values_are_none() {
        let found = |text: &str| topology_policy(text).map(|word| word.unwrap_or_default());
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

    proptest! {
        #[test]
        fn no_text_makes_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..200), word in "[a-z-]{0,20}") {
            let _ = topology_policy(&String::from_utf8_lossy(&bytes));
            prop_assert_eq!(topology_policy(&format!("{KEY}: '{word}'\n")), Ok(Some(word)));
        }
    }
}
