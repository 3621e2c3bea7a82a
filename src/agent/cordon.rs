//! The GPUs that an operator keeps from new containers, from the annotation of the agent's Node.

use model::id::GpuUuid;
use std::collections::BTreeSet;
use wire::{annotation_keys, cordon};

/// The last text of the cordon annotation.
#[derive(Debug, Default)]
pub(super) struct Cordon {
    text: Option<String>,
}

impl Cordon {
    /// The cordoned GPUs, if the annotation has changed. A text that cannot be parsed changes nothing: a typing error
    /// must not give containers a GPU that an operator keeps free.
    pub(super) fn changed(&mut self, text: Option<&str>) -> Option<BTreeSet<GpuUuid>> {
        if self.text.as_deref() == text {
            return None;
        }
        self.text = text.map(str::to_owned);
        match cordon::decode(text.unwrap_or_default()) {
            Ok(cordoned) => {
                let gpus: Vec<&str> = cordoned.iter().map(GpuUuid::as_str).collect();
                tracing::info!(?gpus, "the list of cordoned GPUs ({}) has changed", annotation_keys::CORDON);
                Some(cordoned)
            }
            Err(fault) => {
                tracing::warn!(%fault, "cannot read which GPUs are cordoned; the last valid list stays in force");
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cordon_that_cannot_be_parsed_keeps_the_last_valid_list() {
        let gpu = |name: &str| GpuUuid::parse(name).unwrap();
        let mut cordon = Cordon::default();
        assert_eq!(cordon.changed(None), None, "there was no annotation, and there is none");
        assert_eq!(cordon.changed(Some("GPU-a, GPU-b")), Some([gpu("GPU-a"), gpu("GPU-b")].into()));
        assert_eq!(cordon.changed(Some("GPU-a, GPU-b")), None, "reported once");
        assert_eq!(cordon.changed(Some("GPU a")), None);
        assert_eq!(cordon.changed(Some("GPU-a")), Some([gpu("GPU-a")].into()));
        assert_eq!(cordon.changed(None), Some(BTreeSet::new()), "removed");
    }
}
