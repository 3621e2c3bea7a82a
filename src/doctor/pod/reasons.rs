//! The reason codes of refusals: what each means, and what to do.

use decide::placement::RefusalReason;

/// The code that leads refusals of a whole node and of wrong types in HAMi's table.
const UNFIT: &str = "NodeUnfitPod";

/// The reasons that a text names, in its order, each once.
pub(crate) fn named(text: &str) -> Vec<RefusalReason> {
    let mut found = Vec::new();
    let words = || text.split(|c: char| !c.is_ascii_alphanumeric());
    for word in words() {
        let reason = RefusalReason::ALL.into_iter().find(|reason| reason.code() == word);
        if let Some(reason) = reason.filter(|reason| !found.contains(reason)) {
            found.push(reason);
        }
    }
    // The code alone, as HAMi writes it, says no more than that nodes register nothing that the pod accepts.
    if found.is_empty() && words().any(|word| word == UNFIT) {
        found.push(RefusalReason::NodeUnregistered);
    }
    found
}

/// A sentence about the reason.
pub(crate) fn meaning(reason: RefusalReason) -> &'static str {
    match reason {
        RefusalReason::CardNotHealth => "GPUs get no new containers because of errors",
        RefusalReason::CardCordoned => "an operator keeps GPUs from new containers",
        RefusalReason::CardInUse => "processes of a pod without a claim, such as one that has ended, use GPUs",
        RefusalReason::CardTypeMismatch => "the pod does not accept the products or sharing modes of GPUs",
        RefusalReason::CardUuidMismatch => "the pod does not accept the UUIDs of GPUs",
        RefusalReason::NumaNotFit => "the GPUs that fit are on different NUMA nodes",
        RefusalReason::CardTimeSlicingExhausted => "the largest allowed number of containers share GPUs already",
        RefusalReason::ExclusiveDeviceAllocateConflict => {
            "the pod needs GPUs for itself and other pods use them, or another pod has them for itself"
        }
        RefusalReason::CardInsufficientMemory => "no GPU has the memory that the pod requests",
        RefusalReason::CardInsufficientCore => "no GPU has the SM time that the pod requests",
        RefusalReason::CardComputeUnitsExhausted => "all SM time of GPUs is claimed",
        RefusalReason::AllocatedCardsInsufficientRequest => "some GPUs fit, but fewer than the container requests",
        RefusalReason::NodeInsufficientDevice => "nodes have fewer GPUs than the container requests",
        RefusalReason::NodeUnregistered => "nodes register no GPUs",
        RefusalReason::NodeClosed => "nodes take no new pods now",
        RefusalReason::PodPlacedElsewhere => "the pod is being bound to another node",
    }
}

/// What to do.
pub(crate) fn advice(reason: RefusalReason) -> &'static [&'static str] {
    match reason {
        RefusalReason::CardNotHealth => &[
            "find the incidents with gpu-steward doctor nodes and gpu-steward top on the node; repair or reset the GPU, then run \
             gpu-steward clear-incident GPU",
        ],
        RefusalReason::CardCordoned => {
            &["remove the GPU from the annotation hami.io/device-cordon of the Node to use it again"]
        }
        RefusalReason::CardInUse => &[
            "end the processes that the pod left behind on the GPU (gpu-steward top shows them), or wait until they have ended",
        ],
        RefusalReason::CardTypeMismatch => &[
            "compare nvidia.com/use-gputype, nvidia.com/nouse-gputype and nvidia.com/vgpu-mode of the pod with the label \
             nvidia.com/gpu.product of the Nodes",
        ],
        RefusalReason::CardUuidMismatch => &[
            "compare nvidia.com/use-gpuuuid and nvidia.com/nouse-gpuuuid of the pod with the UUIDs that the Nodes register",
        ],
        RefusalReason::NumaNotFit => &["remove nvidia.com/numa-bind, or request fewer GPUs for a container"],
        RefusalReason::CardTimeSlicingExhausted => {
            &["wait until a pod on the GPUs ends, or raise split-count of the agents"]
        }
        RefusalReason::ExclusiveDeviceAllocateConflict => &[
            "wait until the pods on the GPUs end, or let the pod run on other nodes, or request less than 100 nvidia.com/gpucores",
        ],
        RefusalReason::CardInsufficientMemory => &[
            "request less nvidia.com/gpumem, or let the pod run on nodes with larger GPUs",
            "if memory is in use that nobody claims, find its processes with gpu-steward top on the node and end them",
        ],
        RefusalReason::CardInsufficientCore | RefusalReason::CardComputeUnitsExhausted => {
            &["request less nvidia.com/gpucores, or wait until a pod on the GPUs ends"]
        }
        RefusalReason::AllocatedCardsInsufficientRequest => {
            &["request fewer GPUs for a container, or wait until more GPUs are free"]
        }
        RefusalReason::NodeInsufficientDevice => &[
            "compare the number of GPUs of the nodes with the request: gpu-steward doctor nodes; request fewer GPUs for a container",
        ],
        RefusalReason::NodeUnregistered => &["check the agents of the nodes: gpu-steward doctor nodes"],
        RefusalReason::NodeClosed => {
            &["remove what the reason names; docs/scheduling.md says when a node opens by itself"]
        }
        RefusalReason::PodPlacedElsewhere => &["wait: the pod is bound when the API server confirms it"],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reasons_in_events_of_gpu_steward_hami_and_kube_scheduler_are_found() {
        use RefusalReason::{CardInsufficientMemory, CardTimeSlicingExhausted, CardTypeMismatch, NodeUnregistered};
        for (text, reasons) in [
            (
                "no node fits: 3 nodes refused: CardTimeSlicingExhausted on 2 GPUs of 2 nodes, CardInsufficientMemory on 2 GPUs of 2 \
                 nodes, NodeUnregistered on 1 node; requests 8192 MiB",
                vec![CardTimeSlicingExhausted, CardInsufficientMemory, NodeUnregistered],
            ),
            ("Bindingfailed: CardInsufficientMemory on node gpu-node-01", vec![CardInsufficientMemory]),
            ("0/3 nodes are available: 1 4/4 CardTypeMismatch, 2 CardTypeMismatch.", vec![CardTypeMismatch]),
            ("NodeUnfitPod", vec![NodeUnregistered]),
            ("1 node refused: NodeUnfitPod: CardTypeMismatch on 8 GPUs of 1 node", vec![CardTypeMismatch]),
            ("no reason is named, not even NodeUnregisteredX", vec![]),
        ] {
            assert_eq!(named(text), reasons, "{text}");
        }
    }

    #[test]
    fn each_reason_has_a_meaning_and_advice() {
        for reason in RefusalReason::ALL {
            assert!(!meaning(reason).is_empty() && !advice(reason).is_empty(), "{reason:?}");
        }
    }
}
