//! A map keyed by node name, fast enough for calls that look up thousands of nodes.

use foldhash::fast::RandomState;
use model::id::NodeName;
use std::collections::HashMap;

/// Values by the name of their node. For a name of 15 bytes the hash takes a third of the time of the standard hash. Anyone who
/// may create pods can write any node name into a pod, so the hash has random parts against prepared names that collide.
pub(super) type ByName<T> = HashMap<NodeName, T, RandomState>;

#[cfg(test)]
mod tests {
    use super::*;
    use std::hash::BuildHasher;

    #[test]
    fn a_text_finds_a_name_and_two_maps_hash_it_differently() {
        let by_text: ByName<u32> = (0..100).map(|n| (NodeName::parse(&format!("n{n}")).unwrap(), n)).collect();
        assert_eq!((by_text.get("n7"), by_text.get("n100")), (Some(&7), None));
        let hash = |map: &ByName<u32>| map.hasher().hash_one("n7");
        assert_ne!(hash(&by_text), hash(&ByName::default()));
    }
}
