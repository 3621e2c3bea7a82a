//! The node allocator: decides which slots the kubelet may allocate, which container a start is for, and which device
//! shares that container gets.
//!
//! ```text
//!   GPUs (NVML)          ─┐                     ┌─▶ list     the slots that the kubelet may count
//!   GPU pods             ─┼──▶ NodeAllocator ───┼─▶ prefer   the slots that the kubelet should allocate
//!   kubelet's checkpoint ─┘                     └─▶ start    the container that holds the slots, and its device shares
//! ```
//!
//! `Allocate` names no pod. Its answer therefore holds only a ticket: the name of a CDI device. The agent fills the ticket
//! when the container starts and the kubelet's checkpoint names its pod. Earlier releases could give the devices in the
//! answer itself, if the runtime had no CDI. Containers that got their devices that way keep them, and may start again.
//!
//! What must never happen here: a container gets devices that another container claims, in whatever order the calls
//! come. A start that is in doubt *waits* or is *refused*; the allocator never guesses.

mod device;
mod tickets;
mod recent_tickets;
mod state;
mod list;
mod effective_claim;
mod prefer;
mod memory_claims;
mod issue;
mod recall;
mod refusal;
mod numa;
mod start;
mod distinct;
mod admitted;
mod listing;
mod tally;
mod withdrawn;
mod taken;

pub use device::{ListedSlot, SharedDevice};
pub use listing::HolderDisagreement;
pub use recent_tickets::RecentTickets;
pub use refusal::{Refusal, ScarceResource};
pub use start::{BoundContainer, StartVerdict, WaitReason};
pub use state::{AllocatorChanges, MAX_GPU_PODS, NodeAllocator, WithoutClaim};
pub use taken::OtherHolding;
pub use tickets::MAX_ISSUED;

#[cfg(test)]
mod tests;
