//! Claims: what a pod was promised of GPUs, for each of its containers, as it stands on the pod.
//!
//! The kubelet counts slots and knows nothing of memory; a scheduler counts memory and knows nothing of slots. A claim is what
//! was promised. Where claim and slots name different GPUs, the claim holds.

use crate::id::{ContainerKey, GpuUuid, PodRef};
use crate::time::WallTime;
use crate::unit::{Bytes, CorePercent};
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

/// What one container may use of one device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceShare {
    /// Which GPU or MIG instance.
    pub device: GpuUuid,
    /// How much of its memory; absent where nothing was promised and nothing is limited.
    pub memory: Option<Bytes>,
    /// Percent of its SM time; absent where it is not limited.
    pub cores: Option<CorePercent>,
}

/// All device shares of one pod, by container: init containers first, then app containers, in the order of the pod's
/// specification. A container without device shares has no GPU, or, in HAMi's list of what is still to be allocated, has been
/// served. It derefs to the list of containers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Claim(pub Vec<Vec<DeviceShare>>);

impl Deref for Claim {
    type Target = [Vec<DeviceShare>];

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl DerefMut for Claim {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.0
    }
}

impl<'a> IntoIterator for &'a Claim {
    type Item = &'a Vec<DeviceShare>;
    type IntoIter = std::slice::Iter<'a, Vec<DeviceShare>>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.iter()
    }
}

impl IntoIterator for Claim {
    type Item = Vec<DeviceShare>;
    type IntoIter = std::vec::IntoIter<Vec<DeviceShare>>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

impl<'a> IntoIterator for &'a mut Claim {
    type Item = &'a mut Vec<DeviceShare>;
    type IntoIter = std::slice::IterMut<'a, Vec<DeviceShare>>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.iter_mut()
    }
}

impl From<Vec<Vec<DeviceShare>>> for Claim {
    fn from(containers: Vec<Vec<DeviceShare>>) -> Self {
        Claim(containers)
    }
}

impl FromIterator<Vec<DeviceShare>> for Claim {
    fn from_iter<I: IntoIterator<Item = Vec<DeviceShare>>>(containers: I) -> Self {
        Claim(containers.into_iter().collect())
    }
}

impl Claim {
    /// The device shares of a container; none beyond the last container.
    #[must_use]
    pub fn of(&self, container: usize) -> &[DeviceShare] {
        self.get(container).map_or(&[], Vec::as_slice)
    }

    /// All device shares of all containers.
    pub fn shares(&self) -> impl Iterator<Item = &DeviceShare> {
        self.iter().flatten()
    }

    /// The device shares of each container of a pod whose containers request `counts` GPUs, init containers first. Where the
    /// shares stand at the containers that request GPUs, they are taken as they stand. Where they do not, the containers that
    /// have shares belong to the containers that request GPUs, in order: HAMi 2.10.0 leaves out the containers without GPU
    /// that come first.
    ///
    /// # Errors
    /// [`MisalignedClaim`] when the numbers do not agree, or when some containers have been served already.
    pub fn by_container(&self, counts: &[u32]) -> Result<Claim, MisalignedClaim> {
        let requesting: Vec<usize> =
            (0..counts.len()).filter(|place| counts.get(*place).is_some_and(|count| *count > 0)).collect();
        let given: Vec<&Vec<DeviceShare>> = self.iter().filter(|shares| !shares.is_empty()).collect();
        if requesting.len() != given.len() {
            return Err(MisalignedClaim::Containers { given: given.len(), requesting: requesting.len() });
        }
        let mut placed = vec![Vec::new(); counts.len()];
        for (container, shares) in requesting.into_iter().zip(given) {
            let requested = counts.get(container).copied().unwrap_or_default();
            if usize::try_from(requested).ok() != Some(shares.len()) {
                return Err(MisalignedClaim::Count { container, requested, given: shares.len() });
            }
            if let Some(place) = placed.get_mut(container) {
                place.clone_from(shares);
            }
        }
        Ok(Claim(placed))
    }
}

/// Why a claim does not fit the containers of its pod.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MisalignedClaim {
    /// The number of containers with device shares differs from the number of containers that request GPUs.
    #[error("{given} containers have GPUs in the claim and {requesting} request GPUs")]
    Containers {
        /// Containers with device shares.
        given: usize,
        /// Containers that request GPUs.
        requesting: usize,
    },
    /// A container has another number of device shares than it requests GPUs.
    #[error("container {container} requests {requested} GPUs and has {given} in the claim")]
    Count {
        /// Its place among the pod's containers, init containers first, from 0.
        container: usize,
        /// GPUs that it requests.
        requested: u32,
        /// Device shares that it has.
        given: usize,
    },
}

/// What a scheduler wrote on the pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PodClaim {
    /// Nothing: no scheduler that knows of GPUs placed this pod.
    None,
    /// For each container of the spec, in its order, what it was promised.
    Given(Claim),
    /// Something that cannot be read; the sentence names key and place.
    Unreadable(Arc<str>),
    /// The pod asks for something that no GPU has; the sentence names container, resource and amount.
    BadRequest(Arc<str>),
}

/// What one container was promised, as it holds now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContainerClaim {
    /// Whose.
    pub holder: ContainerKey,
    /// In the order in which the container counts its devices.
    pub device_shares: Vec<DeviceShare>,
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

    fn claim(numbers: &[usize]) -> Claim {
        let share = |n: usize| DeviceShare {
            device: GpuUuid::parse(&format!("GPU-{n}")).unwrap(),
            memory: Some(Bytes(1000)),
            cores: None,
        };
        numbers.iter().map(|number| (0..*number).map(share).collect()).collect()
    }

    fn placed(numbers: &[usize], counts: &[u32]) -> Result<Vec<usize>, MisalignedClaim> {
        claim(numbers).by_container(counts).map(|found| found.iter().map(Vec::len).collect())
    }

    #[test]
    fn shares_find_their_containers_even_where_empty_containers_are_missing() {
        assert_eq!(placed(&[1, 2], &[1, 2]), Ok(vec![1, 2]));
        assert_eq!(placed(&[0, 1, 0, 0, 0], &[0, 1, 0]), Ok(vec![0, 1, 0]));
        assert_eq!(placed(&[1], &[0, 1]), Ok(vec![0, 1]), "HAMi 2.10.0 leaves the first container out");
        assert_eq!(placed(&[], &[0, 0]), Ok(vec![0, 0]));
    }

    #[test]
    fn shares_of_other_containers_are_refused() {
        assert_eq!(placed(&[1], &[1, 1]), Err(MisalignedClaim::Containers { given: 1, requesting: 2 }));
        assert_eq!(placed(&[1, 1], &[1]), Err(MisalignedClaim::Containers { given: 2, requesting: 1 }));
        assert_eq!(placed(&[1, 2], &[2, 1]), Err(MisalignedClaim::Count { container: 0, requested: 2, given: 1 }));
    }

    #[test]
    fn a_container_beyond_the_last_has_no_share() {
        let claim = claim(&[0, 1]);
        assert_eq!((claim.of(0).len(), claim.of(1).len(), claim.of(7).len(), claim.shares().count()), (0, 1, 0, 1));
    }
}
