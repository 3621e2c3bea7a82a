//! Tests of the built program from outside, one module per subject. Tests that need root or installed programs are
//! marked `ignore`; `tests/run` runs them.

#[cfg(test)]
mod program;
#[cfg(test)]
mod kubelet;
#[cfg(test)]
mod life;
#[cfg(test)]
mod config;
#[cfg(test)]
mod telemetry;
#[cfg(test)]
mod pprof;
#[cfg(test)]
mod certificates;
#[cfg(test)]
mod bad_host;
#[cfg(test)]
mod crowd;
#[cfg(test)]
mod crowded_pods;
#[cfg(test)]
mod wall_clock;
#[cfg(test)]
mod journald;
#[cfg(test)]
mod systemd;
#[cfg(test)]
mod top;
#[cfg(test)]
mod usage;
#[cfg(test)]
mod profile;
#[cfg(test)]
mod driver;
#[cfg(test)]
mod not_offered;
#[cfg(test)]
mod incidents;
#[cfg(test)]
mod release;
#[cfg(test)]
mod clean;
#[cfg(test)]
mod doctor;
#[cfg(test)]
mod simulated;
#[cfg(test)]
mod eight;
#[cfg(test)]
mod metrics;
#[cfg(test)]
mod api;
#[cfg(test)]
mod cgroup_namespace;
#[cfg(test)]
mod ghosts;
#[cfg(test)]
mod shares;
#[cfg(test)]
mod prometheus;
#[cfg(test)]
mod profiles;
#[cfg(test)]
mod pods;
#[cfg(test)]
mod sharing;
#[cfg(test)]
mod host_spec;
#[cfg(test)]
mod extender;
#[cfg(test)]
mod extender_admin;
#[cfg(test)]
mod extender_flags;
#[cfg(test)]
mod event_queue;
#[cfg(test)]
mod recorded;
#[cfg(test)]
mod node_annotations;
#[cfg(test)]
mod closings;
#[cfg(test)]
mod hostile;
#[cfg(test)]
mod lost_bindings;
#[cfg(test)]
mod wakes;
#[cfg(test)]
mod own_mark;
#[cfg(test)]
mod holds;
#[cfg(test)]
mod refusal_events;
#[cfg(test)]
mod bad_questions;
#[cfg(test)]
mod bad_objects;
#[cfg(test)]
mod streams;
