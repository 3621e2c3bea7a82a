//! What a pod was given: its assignment as annotations carry it, how far its start has come, and the lock of its node.

use crate::id::{GpuUuid, PodRef};
use crate::time::WallTime;
use crate::unit::{CorePercent, Mib};
use std::sync::Arc;

/// A part of one GPU that was given to one container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    /// Which GPU.
    pub uuid: GpuUuid,
    /// The vendor's word: `NVIDIA`.
    pub vendor: Arc<str>,
    /// Memory, every share resolved.
    pub memory: Mib,
    /// Computing time; 0 is no limit.
    pub cores: CorePercent,
}

/// The grants of a pod, one slot for each container: init containers first, then app containers, in the order of the pod's
/// specification. A slot without grants is a container without GPU, or one that has been served.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Slots(pub Vec<Vec<Grant>>);

/// Why slots and containers do not belong together.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Misaligned {
    /// Another number of containers has grants than asks for GPUs.
    #[error("{granted} containers have grants and {asking} ask for GPUs")]
    Containers {
        /// Slots with grants.
        granted: usize,
        /// Containers that ask.
        asking: usize,
    },
    /// A container has another number of grants than it asks for.
    #[error("container {container} asks for {asked} GPUs and has {granted}")]
    Count {
        /// Its place among the pod's containers, init containers first, from 0.
        container: usize,
        /// GPUs it asks for.
        asked: u32,
        /// GPUs it was given.
        granted: usize,
    },
}

impl Slots {
    /// The grants of a container; none beyond the last slot.
    #[must_use]
    pub fn of(&self, container: usize) -> &[Grant] {
        self.0.get(container).map_or(&[], Vec::as_slice)
    }

    /// The first slot that still has grants.
    #[must_use]
    pub fn first_unserved(&self) -> Option<usize> {
        self.0.iter().position(|slot| !slot.is_empty())
    }

    /// Whether no slot has grants (any more).
    #[must_use]
    pub fn all_served(&self) -> bool {
        self.first_unserved().is_none()
    }

    /// Marks a container as served by emptying its slot; `false` when there was nothing in it.
    pub fn blank(&mut self, container: usize) -> bool {
        self.0.get_mut(container).is_some_and(|slot| !std::mem::take(slot).is_empty())
    }

    /// The grants of each container of a pod whose containers ask for `wants` GPUs, init containers first. Slots that stand
    /// where the containers are asked for are taken as they stand; where they do not, the slots with grants belong to the
    /// containers that ask, in order: HAMi 2.10.0 leaves out the slots of containers without GPU that come first.
    ///
    /// # Errors
    /// [`Misaligned`] when the numbers do not agree; so does a string in which some containers have been served already.
    pub fn by_container(&self, wants: &[u32]) -> Result<Vec<Vec<Grant>>, Misaligned> {
        let asking: Vec<usize> =
            (0..wants.len()).filter(|place| wants.get(*place).is_some_and(|want| *want > 0)).collect();
        let granted: Vec<&Vec<Grant>> = self.0.iter().filter(|slot| !slot.is_empty()).collect();
        if asking.len() != granted.len() {
            return Err(Misaligned::Containers { granted: granted.len(), asking: asking.len() });
        }
        let mut placed = vec![Vec::new(); wants.len()];
        for (container, grants) in asking.into_iter().zip(granted) {
            let asked = wants.get(container).copied().unwrap_or_default();
            if usize::try_from(asked).ok() != Some(grants.len()) {
                return Err(Misaligned::Count { container, asked, granted: grants.len() });
            }
            if let Some(place) = placed.get_mut(container) {
                place.clone_from(grants);
            }
        }
        Ok(placed)
    }
}

/// How far the start of a bound pod has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BindPhase {
    /// Bound; its containers wait for their GPUs.
    Allocating,
    /// Every container has its GPUs.
    Success,
    /// A container could not be given its GPUs.
    Failed,
}

/// The lock that HAMi's scheduler takes on a node for the time between binding a pod and its containers' start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeLock {
    /// When it was taken.
    pub at: WallTime,
    /// For whom; older schedulers did not say.
    pub owner: Option<PodRef>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grants(number: usize) -> Vec<Grant> {
        let grant = |n: usize| Grant {
            uuid: GpuUuid::parse(&format!("GPU-{n}")).unwrap(),
            vendor: Arc::from("NVIDIA"),
            memory: Mib(1000),
            cores: CorePercent(0),
        };
        (0..number).map(grant).collect()
    }

    fn slots(numbers: &[usize]) -> Slots {
        Slots(numbers.iter().map(|number| grants(*number)).collect())
    }

    fn placed(numbers: &[usize], wants: &[u32]) -> Result<Vec<usize>, Misaligned> {
        slots(numbers).by_container(wants).map(|found| found.iter().map(Vec::len).collect())
    }

    #[test]
    fn grants_find_their_containers_even_where_empty_slots_are_missing() {
        assert_eq!(placed(&[1, 2], &[1, 2]), Ok(vec![1, 2]));
        assert_eq!(placed(&[0, 1, 0, 0, 0], &[0, 1, 0]), Ok(vec![0, 1, 0]));
        assert_eq!(placed(&[1], &[0, 1]), Ok(vec![0, 1]), "HAMi 2.10.0 leaves the first slot out");
        assert_eq!(placed(&[], &[0, 0]), Ok(vec![0, 0]));
    }

    #[test]
    fn grants_of_other_containers_are_refused() {
        assert_eq!(placed(&[1], &[1, 1]), Err(Misaligned::Containers { granted: 1, asking: 2 }));
        assert_eq!(placed(&[1, 1], &[1]), Err(Misaligned::Containers { granted: 2, asking: 1 }));
        assert_eq!(placed(&[1, 2], &[2, 1]), Err(Misaligned::Count { container: 0, asked: 2, granted: 1 }));
    }

    #[test]
    fn a_container_is_served_once() {
        let mut slots = slots(&[0, 1, 2]);
        assert_eq!((slots.first_unserved(), slots.all_served()), (Some(1), false));
        assert!(slots.blank(1));
        assert!(!slots.blank(1) && !slots.blank(0) && !slots.blank(9));
        assert_eq!(slots.first_unserved(), Some(2));
        assert!(slots.blank(2) && slots.all_served());
        assert_eq!((slots.0.len(), slots.of(7).len()), (3, 0));
    }
}
