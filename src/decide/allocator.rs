//! Sharing the GPUs of this node: which slots kubelet may hand out, whom a start is for, what it gets.
//!
//! ```text
//!   GPUs (NVML)      ─┐
//!   GPU pods (pods)     ├─▶ Share ──▶ list      what kubelet may count
//!   the kubelet's checkpoint   ─┘         ──▶ prefer    which of its ids kubelet should take
//!                                ──▶ start     whose ids these are, and what was promised to whom
//! ```
//!
//! Where the runtime has CDI nothing is given at `Allocate`, because `Allocate` names no pod: it takes a ticket, and the
//! ticket is filled when the container starts and the kubelet's checkpoint say whose it is (*late*). Elsewhere devices are given with
//! the ticket to whom they must be for, and the checkpoint confirm it before the container starts (*early*).
//!
//! What must never happen here: no container gets what was promised to another, whatever order calls come in; when in
//! doubt the answer is *wait* or *refuse*, never a guess.

mod binding_mode;
mod device;
mod tickets;
mod recent_tickets;
mod state;
mod list;
mod effective_claim;
mod prefer;
mod memory_claims;
mod recall;
mod refusal;
mod seat;
mod start;
mod distinct;
mod early;
mod admitted;
mod listing;
mod tally;

pub use binding_mode::{BindingChoice, BindingMode, CdiSupport, RuntimeCdi, choose, guess, second_connection};
pub use device::{ListedSlot, SharedDevice};
pub use early::MatchedRequest;
pub use listing::HolderDisagreement;
pub use recent_tickets::RecentTickets;
pub use refusal::{Refusal, ScarceResource};
pub use start::{BoundContainer, StartVerdict, WaitReason};
pub use state::{AllocatorChanges, MAX_GPU_PODS, NodeAllocator, WithoutClaim};
pub use tickets::MAX_ISSUED;

#[cfg(test)]
mod tests;
