//! The facts about a Node that the scheduler uses: the GPUs that its agent registered, which GPUs are cordoned, and its handshake.

use crate::annotation_keys::{CORDON, HANDSHAKE, NODE_LINKS, REGISTER};
use crate::handshake::{self, Handshake};
use crate::{cordon, links, register};
use model::followed_node::{FollowedNode, NodeFacts};
use model::id::GpuUuid;
use model::registered::RegisteredGpu;
use std::collections::BTreeSet;
use std::sync::Arc;

/// The facts of a Node. An unreadable cordon may name any GPU, so it closes the node, like an unreadable register.
#[must_use]
pub fn of(node: &FollowedNode) -> NodeFacts {
    let (register, cordoned) = match (gpus(node), cordoned(node)) {
        (Ok(gpus), Ok(cordoned)) => (Ok(gpus), cordoned),
        (Err(why), _) | (_, Err(why)) => (Err(why), BTreeSet::new()),
    };
    // Links are optional: without them, any set of GPUs is as good as another. So an unreadable annotation is ignored.
    let links = node.annotation(NODE_LINKS).and_then(|text| links::decode(text).ok()).unwrap_or_default();
    let handshake = match node.annotation(HANDSHAKE).map(handshake::decode) {
        Some(Handshake::At(at)) => Some(at),
        // Those of HAMi's scheduler and plugin. A scheduler's request says nothing about the agent.
        Some(Handshake::Reported | Handshake::Requesting { .. } | Handshake::Deleted | Handshake::Other) | None => None,
    };
    let (uid, name, assumed) = (node.uid.clone(), node.name.clone(), node.assumed.clone());
    NodeFacts { uid, name, register, cordoned, handshake, assumed, links }
}

fn gpus(node: &FollowedNode) -> Result<Vec<RegisteredGpu>, Arc<str>> {
    match node.annotation(REGISTER) {
        Some(text) => register::decode(text).map_err(|why| why.to_string().into()),
        None if node.annotations_left_out > 0 => {
            Err(format!("{} annotations are too large to be read", node.annotations_left_out).into())
        }
        None => Ok(Vec::new()),
    }
}

fn cordoned(node: &FollowedNode) -> Result<BTreeSet<GpuUuid>, Arc<str>> {
    node.annotation(CORDON)
        .map_or(Ok(BTreeSet::new()), |text| cordon::decode(text).map_err(|why| why.to_string().into()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::id::{NodeName, ObjectUid};
    use model::time::WallTime;
    use proptest::prelude::*;

    fn facts(annotations: &[(&str, &str)], left_out: u32) -> NodeFacts {
        let mut annotations: Vec<(Arc<str>, Arc<str>)> =
            annotations.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect();
        annotations.sort();
        of(&FollowedNode {
            uid: ObjectUid::parse("u").unwrap(),
            name: NodeName::parse("n1").unwrap(),
            created_at: None,
            version: None,
            arrival: None,
            annotations,
            annotations_left_out: left_out,
            assumed: None,
        })
    }

    #[test]
    fn a_register_or_cordon_that_cannot_be_read_closes_the_node_and_unreadable_links_do_not() {
        assert_eq!(facts(&[], 0).register, Ok(Vec::new()));
        assert_eq!(facts(&[], 2).register, Err("2 annotations are too large to be read".into()));
        assert!(facts(&[(REGISTER, "x")], 0).register.is_err());
        assert!(facts(&[(CORDON, "GPU a")], 0).register.is_err_and(|why| why.contains(CORDON)));
        let cordoned = facts(&[(CORDON, "GPU-a"), (NODE_LINKS, "x")], 0);
        assert_eq!((cordoned.register, cordoned.links.len()), (Ok(Vec::new()), 0));
        assert_eq!(cordoned.cordoned, BTreeSet::from([GpuUuid::parse("GPU-a").unwrap()]));
    }

    #[test]
    fn only_a_handshake_that_is_a_unix_time_is_a_heartbeat() {
        let stated = |text: &str| facts(&[(HANDSHAKE, text)], 0).handshake;
        assert_eq!(stated("1795256472"), Some(WallTime(1_795_256_472_000_000)));
        for other in [
            "Requesting_2026-11-21 10:21:12",
            "Reported 2024-01-23 04:30:04",
            "Deleted_2026-11-21 10:21:12",
            "soon",
            "",
        ] {
            assert_eq!(stated(other), None, "{other}");
        }
        assert_eq!(facts(&[], 0).handshake, None);
    }

    proptest! {
        #[test]
        fn no_annotation_causes_a_panic(register in "\\PC{0,60}", cordon in "\\PC{0,40}", links in "\\PC{0,40}") {
            let facts = facts(&[(REGISTER, &register), (CORDON, &cordon), (NODE_LINKS, &links)], 0);
            prop_assert!(facts.register.is_ok() || facts.cordoned.is_empty());
        }
    }
}
