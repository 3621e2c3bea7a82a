//! Whether a policy of the chart is in force, judged by what the API server answers to two writes that are tried and never made.

use model::guard::{AdmissionPolicy, PolicyGuard};

/// What came of a write that was tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TriedWrite {
    /// It would have been made.
    Passes,
    /// This policy refuses it.
    RefusedBy(AdmissionPolicy),
    /// Something else stood in the way, which says nothing of the policies.
    Unknown,
}

/// What `policy` does. `forbidden` is a write that this policy alone refuses, `needed` one that an agent makes itself. `None`
/// where the answers do not tell.
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
            // A token that names no node, or another one.
            (RefusedBy(Nodes), RefusedBy(Nodes), Some(PolicyGuard::Hinders)),
            // An account that may not own system keys is the other policy's business.
            (RefusedBy(Nodes), RefusedBy(Keys), Some(PolicyGuard::InForce)),
            (RefusedBy(Pods), Passes, None),
            (Unknown, Passes, None),
        ] {
            assert_eq!(judge(Nodes, forbidden, needed), expected, "{forbidden:?}, {needed:?}");
        }
    }
}
