//! Wire formats: decodes the bytes that other programs write into the types of `model`, and encodes them again. One
//! file per format; every function is total and does no I/O.
//!
//! ```text
//!   bytes of a file, line or message ──decode, parse──▶ types of `model`   (every known form is read)
//!   types of `model` ──encode──▶ one canonical form                        (the form that the agent writes)
//! ```
//!
//! ```text
//!   timestamp time_span quantity decode_error kept_file object_list
//!                                                 what several formats share
//!   proc_file proc_line cgroup_file cgroup_path sysfs_file kernel_log log_link
//!                                                 files of the kernel; kubelet's links to logs
//!   pod variables gpu_pod resource bound_pod placement misspelt_key
//!                                                 a pod, its requests, and which GPUs it accepts
//!   claim claim_version claim_origin bind binding its claim, who wrote it, and the Binding that carries it
//!   node node_facts versions labels register handshake links cordon assumed node_lock annotation_keys
//!                                                 a Node, and what agents and extenders write on it
//!   profile_keys alnair gpu_profile               what an agent writes on its Node about the load of its GPUs
//!   watch lease token authority                   lists and watches; Leases; tokens; the extenders' authority
//!   described_pod described_node described_event  pods, Nodes and events as `doctor` describes them
//!   websocket                                     frames of a port that is forwarded through the API server
//!   extender scheduler_config                     kube-scheduler's calls, and its configuration
//!   checkpoint ticket cdi limits runtime_config device_config
//!                                                 the kubelet's checkpoint, CDI, the limits file, runtime and HAMi settings
//!   issued_ticket ticket_journal started_pods binding_file incidents profile_row
//!                                                 files of the agent's state directory
//!   api history_query                             the JSON of /api/v1; the query for a history
//!   golden                                        for tests: texts that other programs and earlier releases wrote
//! ```
//!
//! What must never happen here: access to a file, socket, clock or log; a panic on any input (each decoder has a
//! property test and a fuzz target under `tests/fuzz`); a guess: an input that cannot be decoded gives an error with
//! the reason and the place.

// A pure crate answers every input. It reports an impossible input as an error and never ends the program.
#![deny(clippy::expect_used)]

pub mod decode_error;
mod kept_file;
mod object_list;
pub mod annotation_keys;
pub mod timestamp;
pub mod time_span;
pub mod cgroup_path;
pub mod cgroup_file;
pub mod proc_file;
pub mod proc_line;
pub mod kernel_log;
pub mod log_link;
pub mod sysfs_file;
pub mod quantity;
mod variables;
pub mod pod;
pub mod watch;
pub mod node;
pub mod node_facts;
pub mod labels;
pub mod register;
pub mod handshake;
pub mod links;
pub mod cordon;
pub mod profile_keys;
pub mod alnair;
pub mod gpu_profile;
pub mod assumed;
pub mod node_lock;
pub mod bind;
pub mod binding;
pub mod lease;
pub mod token;
pub mod authority;
pub mod claim;
pub mod claim_version;
pub mod claim_origin;
pub mod resource;
pub mod gpu_pod;
pub mod bound_pod;
pub mod placement;
pub mod misspelt_key;
pub mod extender;
pub mod scheduler_config;
pub mod device_config;
pub mod ticket;
pub mod cdi;
pub mod runtime_config;
pub mod checkpoint;
pub mod limits;
pub mod issued_ticket;
pub mod ticket_journal;
pub mod started_pods;
pub mod binding_file;
pub mod incidents;
pub mod profile_row;
pub mod versions;
pub mod described_pod;
pub mod described_node;
pub mod described_event;
pub mod websocket;
pub mod history_query;
pub mod api;

#[cfg(test)]
mod golden;
