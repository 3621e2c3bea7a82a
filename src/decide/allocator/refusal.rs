//! The reasons why a container must not start, each with a reason code and a sentence. `docs/sharing.md` has the table. Its
//! rows `NotDelivered` and `HolderUnknown` come from `agent/sharing/pod_status.rs`.
//!
//! The sentence becomes an event on the pod and a log line. It names the resource, uses the unit in which the pod's
//! owner wrote the request (MiB, percent, GPUs), and ends with what to change.

use model::id::{GpuUuid, PodRef};
use model::nvidia::{CORES, COUNT, MEMORY};
use model::unit::{Bytes, Mib};
use std::fmt;
use std::sync::Arc;

/// Why a container must not start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The pod has no claim, and by the settings or this node's history every GPU pod needs one.
    NotPlaced,
    /// The claim cannot be read.
    Unreadable(Arc<str>),
    /// A container requests something that no GPU has.
    BadRequest(Arc<str>),
    /// The claim has another number of devices than the kubelet allocated slots.
    Count {
        /// Devices in the claim.
        claimed: usize,
        /// Slots from the kubelet.
        given: usize,
    },
    /// The claim names a device that this node does not have.
    NoSuchDevice(GpuUuid),
    /// The claim does not fit alongside the claims of started pods.
    DoesNotFit {
        /// The device.
        device: GpuUuid,
        /// The resource that is scarce.
        what: ScarceResource,
        /// All that pods may claim, in the unit of `what`.
        total: u64,
        /// What started pods claim.
        claimed: u64,
        /// What this pod claims.
        requested: u64,
    },
    /// One pod claims all SM time of the device, and another pod would share it.
    NotAlone {
        /// The device.
        device: GpuUuid,
        /// Whether this pod claims all SM time; otherwise a started pod does.
        own: bool,
    },
    /// Another owner holds the device: a pod that got it from another plugin, or whose claim cannot be mapped to a device.
    HeldByOther {
        /// The device.
        device: GpuUuid,
        /// The pod that holds the device.
        holder: PodRef,
    },
    /// The container would get the same GPU more than once.
    SameGpuTwice {
        /// The GPU.
        device: GpuUuid,
        /// Number of slots of this GPU.
        slots: usize,
        /// Number of GPUs of the node.
        gpus: usize,
    },
    /// The pod has finished.
    Finished,
    /// An earlier release gave the container its devices at `Allocate`, and no record shows that they are the devices of
    /// its claim.
    Forgotten,
    /// The kubelet's checkpoint has no answer, or a broken answer, for the container's ids: it would start without devices
    /// and limits.
    AnswerLost,
    /// The kubelet has only a ticket for the container, and the node's runtime ignores CDI devices.
    WithoutCdi,
    /// The host's CDI spec has something that the node's runtime does not read; the text says what.
    RuntimeTooOld(Arc<str>),
}

/// The resource that is scarce on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScarceResource {
    /// Memory, counted in bytes.
    Memory,
    /// SM time, counted in percent of a GPU.
    Cores,
    /// Slots: containers that may share a device.
    Slots,
}

impl Refusal {
    /// Whether no later try can succeed: the pod must be deleted, and its controller creates a new pod.
    #[must_use]
    pub fn for_good(&self) -> bool {
        matches!(self, Refusal::Forgotten | Refusal::AnswerLost | Refusal::WithoutCdi)
    }

    /// Whether the container would start if other pods ended.
    #[must_use]
    pub fn lacks_room(&self) -> bool {
        matches!(self, Refusal::DoesNotFit { .. } | Refusal::NotAlone { .. } | Refusal::HeldByOther { .. })
    }

    /// The reason code for events and metrics.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Refusal::NotPlaced => "NotPlaced",
            Refusal::Unreadable(_) => "UnreadableClaim",
            Refusal::BadRequest(_) => "BadRequest",
            Refusal::Count { .. } => "CountDiffers",
            Refusal::NoSuchDevice(_) => "NoSuchDevice",
            Refusal::DoesNotFit { .. } => "DoesNotFit",
            Refusal::NotAlone { .. } => "NotAlone",
            Refusal::HeldByOther { .. } => "HeldByOther",
            Refusal::SameGpuTwice { .. } => "SameGpuTwice",
            Refusal::Finished => "Finished",
            Refusal::Forgotten => "Forgotten",
            Refusal::AnswerLost => "AnswerLost",
            Refusal::WithoutCdi => "WithoutCdi",
            Refusal::RuntimeTooOld(_) => "RuntimeTooOld",
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refusal::NotPlaced => f.write_str(
                "the pod has no GPU claim (annotation hami.io/vgpu-devices-allocated), because no scheduler that knows GPUs \
                 placed it; set spec.schedulerName to the scheduler that uses the GPU extender, or start the agent with \
                 --without-claim=share",
            ),
            Refusal::Unreadable(why) => write!(
                f,
                "the pod's GPU claim (annotation hami.io/vgpu-devices-allocated) cannot be read: {why}; delete the pod, so that \
                 the scheduler places a new one"
            ),
            Refusal::BadRequest(why) => write!(f, "the pod's request cannot be met: {why}; correct the request in its spec"),
            Refusal::Count { claimed, given } => write!(
                f,
                "the pod's claim names {claimed} GPUs for this container, and the kubelet allocated {given} \
                 ({COUNT}); delete the pod, so that the scheduler places a new one"
            ),
            Refusal::NoSuchDevice(device) => write!(
                f,
                "the pod's claim names {device}, and this node has no such GPU; delete the pod, so that the scheduler places \
                 a new one"
            ),
            Refusal::DoesNotFit { device, what, total, claimed, requested } => {
                does_not_fit(f, (*what, device), (*requested, *claimed, *total))
            }
            Refusal::NotAlone { device, own } => not_alone(f, device, *own),
            Refusal::HeldByOther { device, holder } => write!(
                f,
                "the pod {holder} holds {device}: another device plugin gave it the GPU, or its claim cannot be mapped to one; \
                 delete this pod, so that the scheduler places a new one, or wait until {holder} has ended"
            ),
            Refusal::SameGpuTwice { device, slots, gpus } => write!(
                f,
                "the container asks for several GPUs and would get {device} {slots} times, which its programs see as one GPU; ask \
                 for less {COUNT} (this node has {gpus} GPUs), or start the agent with --same-gpu-twice=allow"
            ),
            Refusal::Finished => f.write_str("the pod has finished, and its containers do not start again"),
            Refusal::Forgotten => f.write_str(
                "an earlier release of the agent gave this container its GPUs at Allocate, and no record says that they are \
                 those of its claim; delete the pod",
            ),
            Refusal::WithoutCdi => f.write_str(
                "the container's GPUs were to come by CDI, and this node's container runtime ignores CDI devices; delete the \
                 pod, or set enable_cdi in the runtime's configuration",
            ),
            Refusal::RuntimeTooOld(why) => write!(
                f,
                "the container runtime of this node would refuse the container's devices: {why}; upgrade the container runtime, \
                 or delete the pod, so that it is placed on another node"
            ),
            Refusal::AnswerLost => f.write_str(
                "the kubelet's checkpoint holds this container's GPU ids without the agent's answer, so the container would \
                 start without devices and limits; delete the pod",
            ),
        }
    }
}

fn not_alone(f: &mut fmt::Formatter<'_>, device: &GpuUuid, own: bool) -> fmt::Result {
    if own {
        write!(
            f,
            "the pod asks for all SM time of {device} ({CORES}: 100), and running pods share that GPU; ask for \
             less {CORES}, or delete the pod, so that the scheduler places a new one"
        )
    } else {
        write!(
            f,
            "a running pod has all SM time of {device} ({CORES}: 100) and does not share that GPU; delete this \
             pod, so that the scheduler places a new one"
        )
    }
}

fn does_not_fit(
    f: &mut fmt::Formatter<'_>,
    (what, device): (ScarceResource, &GpuUuid),
    (requested, claimed, total): (u64, u64, u64),
) -> fmt::Result {
    match what {
        ScarceResource::Memory => {
            let mib = |bytes| Mib::within(Bytes(bytes)).0;
            write!(
                f,
                "the pod asks for {} MiB of {device}, which has {} MiB ({} MiB claimed by running pods); ask for less \
                 {MEMORY}, or delete the pod, so that the scheduler places a new one",
                mib(requested),
                mib(total),
                mib(claimed)
            )
        }
        ScarceResource::Cores => write!(
            f,
            "the pod asks for {requested} % of the SM time of {device}, which has {total} % ({claimed} % claimed by \
             running pods); ask for less {CORES}, or delete the pod, so that the scheduler places a new one"
        ),
        ScarceResource::Slots => write!(
            f,
            "the pod needs {requested} slots of {device}, which has {total} ({claimed} used by running pods); delete the \
             pod, so that the scheduler places a new one, or raise --split-count"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn every_refusal() -> Vec<Refusal> {
        let device = GpuUuid::parse("GPU-1").expect("a UUID");
        let scarce =
            [ScarceResource::Memory, ScarceResource::Cores, ScarceResource::Slots].map(|what| Refusal::DoesNotFit {
                device: device.clone(),
                what,
                total: 85_520_809_984,
                claimed: 0,
                requested: 209_715_200_000,
            });
        let alone = [true, false].map(|own| Refusal::NotAlone { device: device.clone(), own });
        let others = [
            Refusal::NotPlaced,
            Refusal::Unreadable("it ends early".into()),
            Refusal::BadRequest(
                "container main: nvidia.com/gpumem counts whole MiB: write 3072 instead of \"3Gi\"".into(),
            ),
            Refusal::Count { claimed: 1, given: 2 },
            Refusal::NoSuchDevice(device.clone()),
            Refusal::HeldByOther {
                device: device.clone(),
                holder: PodRef { namespace: "ml".into(), name: "train".into() },
            },
            Refusal::SameGpuTwice { device, slots: 2, gpus: 1 },
            Refusal::Finished,
            Refusal::Forgotten,
            Refusal::AnswerLost,
            Refusal::WithoutCdi,
            Refusal::RuntimeTooOld(
                "netDevices of the host's CDI spec needs CDI 1.1.0, and it reads up to 0.7.0".into(),
            ),
        ];
        scarce.into_iter().chain(alone).chain(others).collect()
    }

    #[test]
    fn a_refusal_gives_memory_in_the_unit_of_the_request() {
        let text = every_refusal()[0].to_string();
        assert_eq!(
            text,
            "the pod asks for 200000 MiB of GPU-1, which has 81559 MiB (0 MiB claimed by running pods); ask for less \
             nvidia.com/gpumem, or delete the pod, so that the scheduler places a new one"
        );
    }

    #[test]
    fn every_sentence_ends_with_what_to_change() {
        for refusal in every_refusal() {
            let text = refusal.to_string();
            let (_, remedy) = text.split_once("; ").unwrap_or_default();
            let acts = ["delete", "ask for less", "set spec.schedulerName", "correct the request"]
                .iter()
                .any(|act| remedy.contains(act));
            assert!(acts || refusal == Refusal::Finished, "{}: {text}", refusal.code());
            for unclear in ["promised", "slot of another", "somebody", "nobody", "assignment", " bytes"] {
                assert!(!text.contains(unclear), "{}: {text}", refusal.code());
            }
        }
    }

    #[test]
    fn each_reason_code_belongs_to_one_variant() {
        let codes: BTreeSet<&str> = every_refusal().iter().map(Refusal::code).collect();
        // `DoesNotFit` is in the list three times and `NotAlone` twice.
        assert_eq!(codes.len(), every_refusal().len() - 3);
    }
}
