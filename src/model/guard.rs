//! The chart's policies, which guard at the API server what schedulers and agents trust, as this agent found them.

/// A policy, named after what it guards.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Policy {
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
pub enum Guard {
    /// It refuses what must not be written, and nothing else that was tried.
    InForce,
    /// It lets through what must not be written: the policy is missing or not bound.
    Open,
    /// It refuses what this agent has to write.
    Hinders,
}

impl Policy {
    /// All of them.
    pub const ALL: [Policy; 4] = [Policy::Nodes, Policy::Pods, Policy::Keys, Policy::Evictions];

    /// What the name of its object in the chart ends with.
    #[must_use]
    pub fn code(self) -> &'static str {
        match self {
            Policy::Nodes => "agent-nodes",
            Policy::Pods => "agent-pods",
            Policy::Keys => "system-keys",
            Policy::Evictions => "agent-evictions",
        }
    }
}

impl Guard {
    /// A stable short word.
    #[must_use]
    pub fn code(self) -> &'static str {
        match self {
            Guard::InForce => "in_force",
            Guard::Open => "open",
            Guard::Hinders => "hinders",
        }
    }
}
