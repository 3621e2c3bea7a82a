//! The streams between agents and the leading extender, and the tokens with which the callers of the extender's TLS
//! port prove who they are.
//!
//! ```text
//!   AgentMessage, LeaderView ──encode──▶ proto::stream ──MessageStream──▶ decode, bounded ──▶ AgentMessage, LeaderView
//!
//!   convert             converts between messages and the types of `model`
//!   message_stream      reads and writes messages on a connection
//!   opening             opens a stream with an HTTP upgrade request
//!   leader_connection   the TLS connection to an extender
//!   token_keys          checks the tokens of callers
//!   authority           the certificates of the extenders
//! ```
//!
//! What must never happen here: a message that is used before its bounds are checked, a token or key in a log line.

pub mod leader_connection;
pub mod convert;
pub mod token_keys;
pub mod authority;
mod message_stream;
pub mod opening;

pub use authority::SERVER_NAME;
pub use message_stream::{MAX_MESSAGE, MessageError, MessageStream};

use std::time::Duration;

/// Time limit for the first message of a stream. An agent sends it at once.
pub const FIRST_WITHIN: Duration = Duration::from_secs(10);
