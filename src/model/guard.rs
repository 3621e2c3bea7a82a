//! The chart's admission policies, as this agent found them. They protect, at the API server, the keys and objects that
//! schedulers and agents trust.

/// An admission policy, named after what it protects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum AdmissionPolicy {
    /// Lets an agent write only to its own Node, and there only the fields that an agent needs.
    Nodes,
    /// Lets an agent write only to pods of its own node, and there only the fields that an agent needs.
    Pods,
    /// Lets no other account write the keys that schedulers and agents trust.
    Keys,
    /// Lets an agent evict only pods of its own node.
    Evictions,
}

/// What an admission policy was found to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PolicyGuard {
    /// The policy refuses the forbidden write and does not refuse the agent's own write.
    InForce,
    /// It lets the forbidden write through: the policy is missing or not bound.
    Open,
    /// The policy refuses a write that this agent needs.
    Hinders,
}

impl AdmissionPolicy {
    /// All policies.
    pub const ALL: [AdmissionPolicy; 4] =
        [AdmissionPolicy::Nodes, AdmissionPolicy::Pods, AdmissionPolicy::Keys, AdmissionPolicy::Evictions];

    /// The ending of the name of the policy object in the chart.
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
    /// A stable short code.
    #[must_use]
    pub fn code(self) -> &'static str {
        match self {
            PolicyGuard::InForce => "in_force",
            PolicyGuard::Open => "open",
            PolicyGuard::Hinders => "hinders",
        }
    }
}
