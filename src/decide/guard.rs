//! Whether an admission policy of the chart is in force, judged by the API server's answers to two dry-run writes.

use model::guard::{AdmissionPolicy, PolicyGuard};

/// The answer to a dry-run write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TriedWrite {
    /// The API server accepts the write.
    Passes,
    /// This policy refuses the write.
    RefusedBy(AdmissionPolicy),
    /// Another error, which proves nothing about the policies.
    Unknown,
}

/// What `policy` does. `forbidden` is the answer to a write that only this policy refuses, `needed` the answer to a
/// write that the agent itself needs. `None` if the answers do not show it.
#[must_use]
pub fn judge(policy: AdmissionPolicy, forbidden: TriedWrite, needed: TriedWrite) -> Option<PolicyGuard> {
    match (forbidden, needed) {
        (_, TriedWrite::RefusedBy(by)) if by == policy => Some(PolicyGuard::Hinders),
        (TriedWrite::RefusedBy(by), _) if by == policy => Some(PolicyGuard::InForce),
        (TriedWrite::Passes, _) => Some(PolicyGuard::Open),
        (TriedWrite::RefusedBy(_) | TriedWrite::Unknown, _) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_policy_is_in_force_when_it_refuses_what_it_must_and_lets_the_agent_write() {
        use AdmissionPolicy::{Keys, Nodes, Pods};
        use TriedWrite::{Passes, RefusedBy, Unknown};
        for (forbidden, needed, expected) in [
            (RefusedBy(Nodes), Passes, Some(PolicyGuard::InForce)),
            (RefusedBy(Nodes), Unknown, Some(PolicyGuard::InForce)),
            (Passes, Passes, Some(PolicyGuard::Open)),
            // The token names no node, or another node.
            (RefusedBy(Nodes), RefusedBy(Nodes), Some(PolicyGuard::Hinders)),
            // The system-keys policy refuses the second write. That proves nothing about this policy.
            (RefusedBy(Nodes), RefusedBy(Keys), Some(PolicyGuard::InForce)),
            (RefusedBy(Pods), Passes, None),
            (Unknown, Passes, None),
        ] {
            assert_eq!(judge(Nodes, forbidden, needed), expected, "{forbidden:?}, {needed:?}");
        }
    }
}
