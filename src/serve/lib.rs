//! HTTP serving and the process lifecycle: what agent and extender share as programs. Nothing here is about GPUs.
//!
//! ```text
//!   exit version terminal   exit codes; the version of the program; text from outside on a terminal
//!   open_files              the limit of open files
//!   log                     the log: text, JSON or journald; its level; repeated lines
//!   notify                  tells the service manager (systemd) what the program does
//!   stop lifecycle          signals; tasks that must not end, and the drain
//!   caller                  who may make a request: checks of Host, address and bearer token
//!   query                   the keys and values of a request's query
//!   server                  how each TCP port is served: connection limits, TLS, callers, request bodies, drain
//!   exposition negotiate    Prometheus text in both formats; which format and compression a client accepts
//!   answer_queue            how many large answers are in progress, and which requests wait for one
//!   answer_body             pooled buffers for large answers
//!   answer_copy             a large answer that all its readers share, in pieces
//!   admin_access            what callers of the admin port must show
//!   admin                   the loopback port: log level, profiles of the crate `pprof`, commands that a mode adds
//! ```
//!
//! What must never happen here: code about GPUs or pods, a decision, a queue or connection count without a bound.

pub mod exit;
pub mod version;
pub mod terminal;
pub mod open_files;
pub mod log;
pub mod notify;
pub mod stop;
pub mod lifecycle;
pub mod caller;
pub mod query;
pub mod server;
pub mod exposition;
pub mod negotiate;
pub mod answer_queue;
pub mod answer_body;
pub mod answer_copy;
pub mod admin_access;
pub mod admin;
