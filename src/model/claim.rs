//! Claims: all device shares of one pod, by container, as they stand on the pod.
//!
//! The kubelet counts slots and does not know memory; a scheduler counts memory and does not know slots. If the claim
//! and the kubelet's slots name different GPUs, the claim decides.

use crate::id::{ContainerKey, GpuUuid, NodeName, PodRef, PodUid};
use crate::time::WallTime;
use crate::unit::{Bytes, CorePercent};
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

/// The part of one device that one container may use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceShare {
    /// The GPU or MIG instance.
    pub device: GpuUuid,
    /// Memory that the container may use; `None` if no amount is claimed, so that nothing is limited.
    pub memory: Option<Bytes>,
    /// Percent of the device's SM time; `None` if it is not limited.
    pub cores: Option<CorePercent>,
}

/// All device shares of one pod, by container: init containers first, then app containers, in the order of the pod's
/// specification. An empty list of shares means that the container has no GPU. In HAMi's annotation of devices still to
/// be allocated, it can also mean that the container already has its devices. The type derefs to the list of
/// containers.
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
    /// All device shares of all containers.
    pub fn shares(&self) -> impl Iterator<Item = &DeviceShare> {
        self.iter().flatten()
    }

    /// Assigns the claim to the containers of a pod; `counts` has the number of GPUs that each container requests, init
    /// containers first. The lists of shares that are not empty are assigned, in order, to the containers that request
    /// GPUs. So the claim need not have a list for each container without a GPU: HAMi 2.10.0 leaves out such lists at
    /// the start.
    ///
    /// # Errors
    /// [`MisalignedClaim`] if the numbers differ, for example because the claim no longer has the shares of containers
    /// that already got their devices.
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
    /// A container's number of device shares differs from the number of GPUs that it requests.
    #[error("container {container} requests {requested} GPUs and has {given} in the claim")]
    Count {
        /// The container's index among the pod's containers, init containers first, from 0.
        container: usize,
        /// GPUs that the container requests.
        requested: u32,
        /// Device shares that the container has.
        given: usize,
    },
}

/// What the agent knows of the claim on a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PodClaim {
    /// There is no claim: no scheduler that knows GPUs placed this pod.
    None,
    /// The claim, with an entry for each container of the pod's specification, in its order.
    Given(Claim),
    /// The claim cannot be read; the text names the annotation key and the place in it.
    Unreadable(Arc<str>),
    /// The pod requests something that no GPU has; the text names container, resource and amount.
    BadRequest(Arc<str>),
}

/// The Binding to write at the API server for one pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BindOrder {
    /// The pod.
    pub uid: PodUid,
    /// The pod's namespace and name.
    pub pod: PodRef,
    /// The node.
    pub node: NodeName,
    /// The claim, init containers first.
    pub claim: Claim,
    /// The epoch of the leader that decided.
    pub epoch: u64,
    /// The pod version that the Binding names; the API server refuses it for any other version. `None` if the version
    /// is not known: the Binding is then valid for any version.
    pub version: Option<u64>,
}

/// Which scheduler wrote a claim, and when. The time is `None` if it cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClaimOrigin {
    /// A leader of this installation.
    Own(Option<WallTime>),
    /// A leader of another installation, which has this Lease.
    OtherLease(Option<WallTime>, Arc<str>),
    /// Another scheduler.
    Other(Option<WallTime>),
}

/// The device shares that one container holds now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContainerClaim {
    /// The container.
    pub holder: ContainerKey,
    /// The container's device shares, in the order in which the container numbers its devices.
    pub device_shares: Vec<DeviceShare>,
}

/// How far the start of a bound pod has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BindPhase {
    /// Bound; its containers wait for their GPUs.
    Allocating,
    /// Every container has its GPUs.
    Success,
    /// A container did not get its GPUs.
    Failed,
}

/// The lock that HAMi's scheduler holds on a node from the binding of a pod until its containers have their GPUs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeLock {
    /// When the lock was taken.
    pub at: WallTime,
    /// The pod for which the lock was taken; older schedulers do not write it.
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
    fn device_shares_are_assigned_to_containers_where_the_claim_leaves_out_empty_ones() {
        assert_eq!(placed(&[1, 2], &[1, 2]), Ok(vec![1, 2]));
        assert_eq!(placed(&[0, 1, 0, 0, 0], &[0, 1, 0]), Ok(vec![0, 1, 0]));
        assert_eq!(placed(&[1], &[0, 1]), Ok(vec![0, 1]), "HAMi 2.10.0 leaves the first container out");
        assert_eq!(placed(&[], &[0, 0]), Ok(vec![0, 0]));
    }

    #[test]
    fn a_claim_that_does_not_fit_the_containers_is_refused() {
        assert_eq!(placed(&[1], &[1, 1]), Err(MisalignedClaim::Containers { given: 1, requesting: 2 }));
        assert_eq!(placed(&[1, 1], &[1]), Err(MisalignedClaim::Containers { given: 2, requesting: 1 }));
        assert_eq!(placed(&[1, 2], &[2, 1]), Err(MisalignedClaim::Count { container: 0, requested: 2, given: 1 }));
    }
}
