//! Sharing: slots that kubelet counts, claims that a scheduler wrote on a pod, tickets that tie the one to the other.
//!
//! kubelet knows slots and nothing of memory; a scheduler knows memory and nothing of slots. A claim is what was promised;
//! a slot is only how kubelet counts. Where the two name different GPUs, the claim is what holds.

use crate::id::{GpuUuid, PodRef, PodUid, Ticket};
use crate::time::Arrival;
use crate::unit::Bytes;
use std::fmt;
use std::sync::Arc;

/// Slots of one GPU or MIG instance at most. HAMi's default is 10; time-slicing setups of 100 are known.
pub const MAX_SLOTS_PER_DEVICE: u16 = 1000;
/// Containers of one pod that are looked at. The API server takes more only in a pod of more than a megabyte.
pub const MAX_CONTAINERS: usize = 256;

/// One kubelet device: a numbered share of a GPU or MIG instance, written `<uuid>-<number>`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Slot {
    /// The GPU or MIG instance.
    pub device: GpuUuid,
    /// 0 to one below the device's number of slots.
    pub number: u16,
}

impl Slot {
    /// Reads `<uuid>-<number>`. Anything else is an id of some other plugin, which is not an error of ours.
    #[must_use]
    pub fn parse(text: &str) -> Option<Slot> {
        let (device, number) = text.rsplit_once('-')?;
        // `-07` would be a second spelling of `-7`, and ids are compared as texts by kubelet.
        if number.len() > 1 && number.starts_with('0') || !number.bytes().all(|digit| digit.is_ascii_digit()) {
            return None;
        }
        let number = number.parse().ok().filter(|number| *number < MAX_SLOTS_PER_DEVICE)?;
        Some(Slot { device: GpuUuid::parse(device).ok()?, number })
    }
}

impl fmt::Display for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.device, self.number)
    }
}

/// What one container may use of one device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Portion {
    /// Which GPU or MIG instance.
    pub device: GpuUuid,
    /// How much of its memory; absent where nothing was promised and nothing is limited.
    pub memory: Option<Bytes>,
    /// Percent of its SM time; absent where it is not limited.
    pub cores: Option<u32>,
}

/// When a container runs, seen from its pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    /// Runs to its end before the others start.
    Init,
    /// An init container that keeps running (`restartPolicy: Always`).
    Sidecar,
    /// Runs beside the others.
    App,
}

/// One container of a pod, in the order of the pod's spec with init containers first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ask {
    /// The container's name.
    pub container: Arc<str>,
    /// When it runs.
    pub role: Role,
    /// How many slots it asks of kubelet: 0 for a container that must see no GPU.
    pub slots: u32,
    /// Memory of each GPU, where the pod names it.
    pub memory: Option<MemoryAsk>,
    /// Percent of SM time of each GPU, where the pod names it.
    pub cores: Option<u32>,
    /// Priority among the containers of one GPU, where the pod names it: 0 is high, 1 is low.
    pub priority: Option<u32>,
}

/// How a pod names memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryAsk {
    /// So much.
    Bytes(Bytes),
    /// So many hundredths of the card, 1 to 100.
    Percent(u32),
}

/// What a scheduler wrote on the pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Assignment {
    /// Nothing: no scheduler that knows of GPUs placed this pod.
    None,
    /// For each container of the spec, in its order, what it was promised.
    Given(Vec<Vec<Portion>>),
    /// Something that cannot be read; the sentence names key and place.
    Unreadable(Arc<str>),
    /// The pod asks for something that no GPU has; the sentence names container, resource and amount.
    BadRequest(Arc<str>),
}

/// A pod that is bound to this node and asks for GPUs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tenant {
    /// The identity.
    pub uid: PodUid,
    /// The names, for people and for the API.
    pub pod: PodRef,
    /// When it came to this node, beside the others.
    pub arrival: Option<Arrival>,
    /// All containers, init containers first.
    pub asks: Vec<Ask>,
    /// What was promised.
    pub assignment: Assignment,
    /// Whether the assignment is what this node gave it without a scheduler.
    pub placed_here: bool,
    /// Whether a container of it has ever started.
    pub started: bool,
    /// Whether it has succeeded or failed: it will never start a container again.
    pub finished: bool,
}

impl Tenant {
    /// Whether `claim` has for every container as many devices as it asks for.
    #[must_use]
    pub fn is_whole(&self, claim: &[Vec<Portion>]) -> bool {
        let mut containers = self.asks.iter().zip(claim);
        self.asks.len() == claim.len() && containers.all(|(ask, own)| usize::try_from(ask.slots) == Ok(own.len()))
    }
}

/// One container of one pod.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ContainerKey {
    /// The pod.
    pub pod: PodUid,
    /// The container's name in it.
    pub container: Arc<str>,
}

/// What one container was promised, as it holds now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// Whose.
    pub holder: ContainerKey,
    /// In the order in which the container counts its devices.
    pub portions: Vec<Portion>,
}

/// One row of kubelet's books: which container holds which slots, and the ticket that we gave for them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    /// Who holds them.
    pub holder: ContainerKey,
    /// The ids, as kubelet spells them; ids of a plugin that ran here before us stand among them.
    pub ids: Vec<Arc<str>>,
    /// Our ticket; absent in an answer that was not ours or carried none.
    pub ticket: Option<Ticket>,
    /// Whether the answer has something in it and nothing of ours: it is that of another plugin.
    pub foreign: bool,
    /// Whether everything was given with the ticket, before it was known whose it is.
    pub early: bool,
}

/// A ticket as it was given out at `Allocate`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Issued {
    /// Which.
    pub ticket: Ticket,
    /// Higher than that of every ticket given out before it.
    pub order: u64,
    /// The ids that it stands for.
    pub ids: Vec<Arc<str>>,
    /// For whom it was meant, where devices were given with it.
    pub meant: Option<ContainerKey>,
    /// Whose it is, once kubelet has said so.
    pub holder: Option<ContainerKey>,
    /// What its container has, where the claim alone does not say it.
    pub given: Option<Vec<Portion>>,
}

impl Issued {
    /// Whether devices were given with it.
    #[must_use]
    pub fn early(&self) -> bool {
        self.meant.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_has_one_spelling() {
        let uuid = "GPU-0f5b9a3e-0d2c-4b7f-9a51-2f1f6a1f8d11";
        let slot = Slot::parse(&format!("{uuid}-7")).unwrap();
        assert_eq!((slot.device.as_str(), slot.number), (uuid, 7));
        assert_eq!(slot.to_string(), format!("{uuid}-7"));
        for bad in
            ["", "GPU", "GPU-aa-07", "GPU-aa-1000", "GPU-aa-x", "GPU-aa-", "-1", "GPU aa-1", "GPU-aa::1", "GPU-aa-+1"]
        {
            assert_eq!(Slot::parse(bad), None, "{bad}");
        }
    }
}
