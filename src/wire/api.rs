//! The JSON documents of `/api/v1`: the agent's, which `top` reads, and the extender's, which `doctor` reads.
//!
//! ```text
//!   reading        {"value": 3, "age_seconds": 0.4}  or  {"absent": "call_hangs", "reason": "call hangs"}
//!   head           the node, the number and the age of its view, and whether the GPUs are simulated
//!   process_owner  the owner of a process: pod and container by name
//!   gpus pods processes node     one document each of the agent
//!   profile history              what the agent says about the load of a GPU or a pod, and the values of one series
//!   snapshot       what `top` shows: the four documents, and the profiles of the GPUs
//!   decisions believed_nodes     the documents of the extender
//! ```
//!
//! Numbers are in base units, and the names of their fields end in the unit: bytes, seconds, joules, hertz, ratios from
//! 0 to 1. Fields may be added; no field changes its meaning. The largest lists are converted item by item while they
//! are written ([`pods::PodsListing`], [`processes::ProcessesListing`]), so an answer needs memory for its text, but
//! not for a second copy of the view.
//!
//! What must never happen here: reading a clock (the time of the answer is an argument); a value for an absent reading.

pub mod reading;
pub mod head;
pub mod process_owner;
pub mod gpus;
pub mod pods;
pub mod processes;
pub mod node;
pub mod profile;
pub mod history;
pub mod snapshot;
pub mod decisions;
pub mod believed_nodes;

pub use head::ViewHeadJson;
pub use reading::ReadingJson;
pub use snapshot::Snapshot;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde::Serialize;
    use serde::de::DeserializeOwned;

    /// Whether `text` is a document of type `T`; such a document can be written and read again.
    fn read<T: Serialize + DeserializeOwned>(text: &[u8]) -> bool {
        let Ok(document) = serde_json::from_slice::<T>(text) else { return false };
        let written = serde_json::to_vec(&document).unwrap();
        serde_json::from_slice::<T>(&written).unwrap();
        true
    }

    fn any_of_them(text: &[u8]) -> usize {
        let read = [
            read::<node::NodeJson>(text),
            read::<gpus::GpusJson>(text),
            read::<pods::PodsJson>(text),
            read::<processes::ProcessesJson>(text),
            read::<decisions::DecisionsJson>(text),
            read::<believed_nodes::BelievedNodesJson>(text),
            read::<profile::ProfilesJson>(text),
            read::<history::HistoryJson>(text),
        ];
        read.into_iter().filter(|read| *read).count()
    }

    const SMALL: &str = r#"{"view": {"node": "n", "sequence": 1, "time_seconds": 1.5, "age_seconds": 0.25, "simulated": false},
        "gpus": [], "gpus_unidentified": [], "left_out": 0, "pods": [], "containers": [], "processes": [], "kept": 0,
        "decisions": [], "nodes": [],
        "recorder": {"series": 1, "left_out": 0, "memory_bytes": 9, "file_bytes": null, "not_kept": null, "missed_samples": 0,
            "analyses": 2, "analysis_seconds": 0.5}, "profiles": [], "jobs": [],
        "series": "gpu/0/power", "unit": "watts", "step_seconds": 60.0, "points": [{"time": "t", "mean": 1.0, "maximum": 2.0}]}"#;

    #[test]
    fn an_empty_document_is_read() {
        assert!(any_of_them(SMALL.as_bytes()) >= 6);
    }

    proptest! {
        /// Promise 18 in docs/specification.md.
        #[test]
        fn no_document_causes_a_panic(bytes: Vec<u8>) {
            any_of_them(&bytes);
        }

        #[test]
        fn no_changed_document_causes_a_panic(at in 0..SMALL.len(), with in "[0-9a-z\\[\\]{}:,.\"-]{0,12}", cut in 0_usize..8) {
            let end = (at + cut).min(SMALL.len());
            any_of_them(format!("{}{with}{}", &SMALL[..at], &SMALL[end..]).as_bytes());
        }
    }
}
