//! The messages between kube-scheduler and a scheduler extender (`k8s.io/kube-scheduler/extender/v1`).
//!
//! ```text
//!   ExtenderArgs           {"Pod":{…},"Nodes":null,"NodeNames":["n1","n2"]}     filter and prioritize
//!                          {"Pod":{…},"Nodes":{"items":[{…}]},"NodeNames":null} the same with whole Nodes
//!     filter     ──▶       {"Nodes":null,"NodeNames":["n1"],"FailedNodes":{"n2":"…"},…,"Error":""}
//!     prioritize ──▶       [{"Host":"n1","Score":10}]
//!   ExtenderBindingArgs    {"PodName":…,"PodNamespace":…,"PodUID":…,"Node":…}   ──▶ {"Error":""}
//!   ExtenderPreemptionArgs {"Pod":{…},"NodeNameToMetaVictims":{"n1":{"Pods":[{"UID":…}],…}}}
//!                                                        ──▶ {"NodeNameToMetaVictims":{…}}
//! ```
//!
//! kube-scheduler writes the names of fields as shown here; other callers write the first letter in lower case. So
//! names are read in upper and lower case, and written as kube-scheduler writes them. `null` is the same as an absent
//! field, and unknown fields are skipped.
//!
//! kube-scheduler calls the filter for one pod after the other, and each call may name all nodes of the cluster. To
//! save time, names and Nodes are borrowed from the message, and an answer refers to nodes by their places in the
//! message.

mod field_names;
mod candidates;
mod args;
mod preemption;
mod answer;

pub use answer::{FailedNode, encode_binding_error, encode_filter, encode_filter_error, encode_scores};
pub use args::{ExtenderArgs, ExtenderBindingArgs, MAX_BINDING_ARGS, MAX_EXTENDER_ARGS, decode_args, decode_binding};
pub use candidates::{CandidateNames, CandidateNode, CandidateNodes};
pub use preemption::{ExtenderPreemptionArgs, NodeVictims, decode_preemption, encode_preemption};

#[cfg(test)]
mod tests;
