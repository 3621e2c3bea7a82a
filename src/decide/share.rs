//! Sharing the GPUs of this node: which slots kubelet may hand out, whom a start is for, what it gets.
//!
//! ```text
//!   cards (NVML)      ─┐
//!   tenants (pods)     ├─▶ Share ──▶ list      what kubelet may count
//!   kubelet's books   ─┘         ──▶ prefer    which of its ids kubelet should take
//!                                ──▶ start     whose ids these are, and what was promised to whom
//! ```
//!
//! Where the runtime has CDI nothing is given at `Allocate`, because `Allocate` names no pod: it takes a ticket, and the
//! ticket is filled when the container starts and kubelet's books say whose it is (*late*). Elsewhere devices are given with
//! the ticket to whom they must be for, and the books confirm it before the container starts (*early*).
//!
//! What must never happen here: no container gets what was promised to another, whatever order calls come in; when in
//! doubt the answer is *wait* or *refuse*, never a guess.

mod binding;
mod card;
mod tickets;
mod ages;
mod state;
mod list;
mod ledger;
mod prefer;
mod promises;
mod recall;
mod refusal;
mod seat;
mod start;
mod distinct;
mod early;
mod admitted;
mod listing;
mod tally;

pub use ages::Ages;
pub use binding::{Binding, Choice, Found, Word, choose, guess, second_connection};
pub use card::{Card, Listed};
pub use early::Meant;
pub use listing::Disagreement;
pub use refusal::{Refusal, Scarce};
pub use start::{Bound, Verdict, Waiting};
pub use state::{Changes, MAX_TENANTS, Share, WithoutClaim};
pub use tickets::MAX_ISSUED;

#[cfg(test)]
mod tests;
