//! The streams between agents and the leading extender, and the tokens with which the callers of the extender's TLS port
//! prove who they are.
//!
//! ```text
//!   AgentMessage, LeaderView ──encode──▶ proto::stream ──MessageStream──▶ decode, bounded ──▶ AgentMessage, LeaderView
//! ```

pub mod convert;
pub mod token_keys;
pub mod authority;
mod message_stream;
pub mod opening;

pub use authority::SERVER_NAME;
pub use message_stream::{MAX_MESSAGE, MessageError, MessageStream};

use std::time::Duration;

/// Time for the first message of a stream. An agent sends it at once.
pub const FIRST_WITHIN: Duration = Duration::from_secs(10);
