//! Sharing the GPUs of this node: which slots kubelet may hand out, whom a start is for, what it gets.
//!
//! ```text
//!   cards (NVML)      ─┐
//!   tenants (pods)     ├─▶ Share ──▶ list      what kubelet may count
//!   kubelet's books   ─┘         ──▶ prefer    which of its ids kubelet should take
//!                                ──▶ start     whose ids these are, and what was promised to whom
//! ```
//!
//! Nothing is given at `Allocate`, because `Allocate` names no pod: it takes a ticket, and the ticket is filled when the
//! container starts and kubelet's books say whose it is.
//!
//! What must never happen here: no container gets what was promised to another, whatever order calls come in; when in
//! doubt the answer is *wait* or *refuse*, never a guess.

mod card;
mod state;
mod list;
mod ledger;
mod prefer;
mod start;

pub use card::{Card, Listed};
pub use start::{Bound, Refusal, Verdict, Waiting};
pub use state::{MAX_TENANTS, Share, WithoutClaim};

#[cfg(test)]
mod tests;
