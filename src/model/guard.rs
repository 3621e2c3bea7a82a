//! The chart's policies, which guard at the API server what schedulers and agents trust, as this agent found them.

/// A policy, named after what it guards.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum AdmissionPolicy {
    /// An agent writes only to its own Node, and there only what an agent writes.
    Nodes,
    /// The same for pods.
    Pods,
    /// Nobody else writes the keys that schedulers and agents trust.
    Keys,
    /// An agent evicts only pods of its own node.
    Evictions,
}

/// What a policy does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PolicyGuard {
    /// It refuses what must not be written, and nothing else that was tried.
    InForce,
    /// It lets through what must not be written: the policy is missing or not bound.
    Open,
    /// It refuses what this agent has to write.
    Hinders,
}

impl AdmissionPolicy {
    /// All of them.
    pub const ALL: [AdmissionPolicy; 4] =
        [AdmissionPolicy::Nodes, AdmissionPolicy::Pods, AdmissionPolicy::Keys, AdmissionPolicy::Evictions];

    /// What the name of its object in the chart ends with.
    #[must_use]
    pub fn code(self) -> &'static str {
        match self {
            AdmissionPolicy::Nodes => "agent-nodes",
            AdmissionPolicy::Pods => "agent-pods",
            AdmissionPolicy::Keys => "system-keys",
            AdmissionPolicy::Evictions => "agent-evictions",
        }
    }
}

impl PolicyGuard {
    /// A stable short word.
    #[must_use]
    pub fn code(self) -> &'static str {
        match self {
            PolicyGuard::InForce => "in_force",
            PolicyGuard::Open => "open",
            PolicyGuard::Hinders => "hinders",
        }
    }
}
