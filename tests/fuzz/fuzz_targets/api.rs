//! The documents of `/api/v1` as `top`, `doctor` and scripts decode them: a decoded document can be encoded and decoded again.
#![no_main]

use libfuzzer_sys::fuzz_target;
use serde::Serialize;
use serde::de::DeserializeOwned;
use wire::api::{believed_nodes, decisions, gpus, history, node, pods, processes, profile};

fn read<T: Serialize + DeserializeOwned>(bytes: &[u8]) {
    if let Ok(document) = serde_json::from_slice::<T>(bytes) {
        let text = serde_json::to_vec(&document).expect("a document is plain values");
        serde_json::from_slice::<T>(&text).expect("what was written is read");
    }
}

fuzz_target!(|bytes: &[u8]| {
    read::<node::NodeJson>(bytes);
    read::<gpus::GpusJson>(bytes);
    read::<pods::PodsJson>(bytes);
    read::<processes::ProcessesJson>(bytes);
    read::<decisions::DecisionsJson>(bytes);
    read::<believed_nodes::BelievedNodesJson>(bytes);
    read::<profile::ProfilesJson>(bytes);
    read::<history::HistoryJson>(bytes);
});
