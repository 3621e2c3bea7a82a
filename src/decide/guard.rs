//! Whether a policy of the chart is in force, judged by what the API server answers to two writes that are tried and never made.

use model::guard::{Guard, Policy};

/// What came of a write that was tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tried {
    /// It would have been made.
    Passes,
    /// This policy refuses it.
    RefusedBy(Policy),
    /// Something else stood in the way, which says nothing of the policies.
    Unknown,
}

/// What `policy` does. `forbidden` is a write that this policy alone refuses, `needed` one that an agent makes itself. `None`
/// where the answers do not tell.
#[must_use]
pub fn judge(policy: Policy, forbidden: Tried, needed: Tried) -> Option<Guard> {
    match (forbidden, needed) {
        (_, Tried::RefusedBy(by)) if by == policy => Some(Guard::Hinders),
        (Tried::RefusedBy(by), _) if by == policy => Some(Guard::InForce),
        (Tried::Passes, _) => Some(Guard::Open),
        (Tried::RefusedBy(_) | Tried::Unknown, _) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_policy_is_in_force_when_it_refuses_what_it_must_and_lets_the_agent_write() {
        use Policy::{Keys, Nodes, Pods};
        use Tried::{Passes, RefusedBy, Unknown};
        for (forbidden, needed, expected) in [
            (RefusedBy(Nodes), Passes, Some(Guard::InForce)),
            (RefusedBy(Nodes), Unknown, Some(Guard::InForce)),
            (Passes, Passes, Some(Guard::Open)),
            // A token that names no node, or another one.
            (RefusedBy(Nodes), RefusedBy(Nodes), Some(Guard::Hinders)),
            // An account that may not own system keys is the other policy's business.
            (RefusedBy(Nodes), RefusedBy(Keys), Some(Guard::InForce)),
            (RefusedBy(Pods), Passes, None),
            (Unknown, Passes, None),
        ] {
            assert_eq!(judge(Nodes, forbidden, needed), expected, "{forbidden:?}, {needed:?}");
        }
    }
}
