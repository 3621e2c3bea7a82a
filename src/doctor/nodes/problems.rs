//! The problems of Nodes: what each means, and what to do.

/// Each problem: its code, what it means after the number of Nodes that have it, and what to do.
pub(super) const PROBLEMS: [(&str, &str, &[&str]); 20] = [
    (
        "NodeNotReady",
        "not ready",
        &["look at the kubelet of the node: kubectl describe node NODE; journalctl -u kubelet"],
    ),
    (
        "NodeUnregistered",
        "without registered GPUs",
        &[
            "check the agent of the node: kubectl get pods -A -o wide -l app.kubernetes.io/component=agent; its log says why it offers no \
           GPU; gpu-steward doctor node, on the node, checks driver and runtime",
        ],
    ),
    (
        "RegisterUnreadable",
        "with a register that cannot be read",
        &[
            "let one device plugin alone write hami.io/node-nvidia-register; restart the agent of the node to write it again",
        ],
    ),
    (
        "HandshakeStale",
        "with a handshake older than 300 s",
        &["check that the agent of the node runs and reaches the API server: kubectl logs AGENT-POD"],
    ),
    (
        "HandshakeDeleted",
        "that a HAMi scheduler has removed",
        &["restart the agent of the node; do not run HAMi's scheduler on nodes of gpu-steward"],
    ),
    (
        "ClockSkew",
        "whose clock differs from the API server's",
        &["synchronise the clocks: chronyc tracking, timedatectl"],
    ),
    (
        "NoSlots",
        "whose kubelet offers no slot",
        &[
            "check that the agent is registered with the kubelet: the /readyz of the agent; gpu-steward doctor node, on the node",
        ],
    ),
    (
        "CardNotHealth",
        "with GPUs that get no new containers",
        &[
            "gpu-steward top on the node shows the incidents of each GPU; repair or reset the GPU, then gpu-steward clear-incident GPU",
        ],
    ),
    (
        "AgentAway",
        "whose agent has left the leader",
        &[
            "check that the agent of the node runs and reaches the Service of the extender on port 9443: kubectl logs AGENT-POD",
        ],
    ),
    (
        "AgentSilent",
        "whose agent has sent nothing for more than 25 s",
        &["check the agent of the node and the network between node and extender; until then only claims count there"],
    ),
    (
        "NodeClosed",
        "closed to new pods",
        &["remove what the reason names; docs/scheduling.md says when the node opens"],
    ),
    (
        "NoCdi",
        "without CDI",
        &[
            "upgrade containerd to 2.0 or later, or set enable_cdi = true in the configuration of containerd 1.7; see docs/sharing.md",
        ],
    ),
    ("OldKubelet", "with a kubelet before 1.30", &["upgrade the node to Kubernetes 1.30 or later"]),
    ("NodeCordoned", "cordoned", &["kubectl uncordon NODE lets new pods in"]),
    (
        "CardCordoned",
        "with cordoned GPUs",
        &["remove the GPU from the annotation hami.io/device-cordon to use it again"],
    ),
    (
        "NoHandshake",
        "without a handshake",
        &["nothing, if the agent runs with --handshake=false; otherwise check that the agent may patch its Node"],
    ),
    ("HandshakeRequested", "whose handshake a HAMi scheduler waits for", &[ONE_SCHEDULER]),
    ("HandshakeUnreadable", "with a handshake that is not a Unix time", &[ONE_SCHEDULER]),
    ("OtherPlugin", "that HAMi's plugin reports", &[ONE_SCHEDULER]),
    (
        "NoStream",
        "whose agent does not report to the leader",
        &[
            "start the agents with --extender-address, so that memory that is really in use counts; see docs/scheduling.md",
        ],
    ),
];

const ONE_SCHEDULER: &str = "run one device plugin and one GPU scheduler on a node; docs/compatibility.md";

/// What a problem means, and what to do. Devices of another vendor need no action.
pub(super) fn explained(code: &str) -> (&'static str, &'static [&'static str]) {
    let known = PROBLEMS.iter().find(|(known, ..)| *known == code).map(|(_, what, advice)| (*what, *advice));
    known.unwrap_or(("with devices of another vendor: not implemented here", &[]))
}
