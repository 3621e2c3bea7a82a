//! The messages of the streams between agents and the leading extender (`proto/stream.proto`), and the tokens with which
//! the callers of the extender's TLS port prove who they are.
//!
//! ```text
//!   AgentMessage, LeaderView ──encode──▶ proto::stream ──gRPC──▶ decode, bounded ──▶ AgentMessage, LeaderView
//! ```

pub mod convert;
pub mod codec;
pub mod token_keys;
pub mod authority;

pub use authority::SERVER_NAME;

use std::time::Duration;

/// Largest message in bytes: 1,024 pods with the UUIDs of the GPUs that they use take some 150 KiB.
pub const MAX_MESSAGE: usize = 256 << 10;
/// Time for the first message of a stream. An agent sends it at once.
pub const FIRST_WITHIN: Duration = Duration::from_secs(10);
