//! Annotation keys that a user has probably misspelt. An unknown key is not an error, because other programs have keys
//! under the same prefixes. But a pod with `nvidia.com/use-gputyp` gets GPUs that its owner wanted to avoid, so an
//! event tells the owner.
//!
//! What must never happen here: work or text that grows with the annotations of a pod.

use crate::annotation_keys::{
    AVOID_TYPES, AVOID_UUIDS, GPU_POLICY, NODE_POLICY, NUMA_BIND, REALTIME_CHECK, SCORE_WEIGHTS, SHARING_MODES,
    SYSTEM_OWNED, USE_TYPES, USE_UUIDS,
};
use model::pod::Pod;

/// The keys that users write on pods.
const USER_KEYS: [&str; 10] = [
    USE_TYPES,
    AVOID_TYPES,
    USE_UUIDS,
    AVOID_UUIDS,
    NUMA_BIND,
    SHARING_MODES,
    NODE_POLICY,
    GPU_POLICY,
    SCORE_WEIGHTS,
    REALTIME_CHECK,
];
/// Maximum number of keys that are looked at, for some ten microseconds each. A pod has a handful of keys under these prefixes.
const LOOKED_AT: usize = 32;
/// Maximum number of misspelt keys that are named: the note of an event is short.
const NAMED: usize = 2;
/// Maximum bytes of a key's name, by Kubernetes' rules.
const MAX_NAME: usize = 63;
/// Maximum number of faults in a misspelt name: wrong, missing and additional characters, and exchanged neighbours. With three,
/// different keys of HAMi would count as equal.
const MAX_FAULTS: usize = 2;

/// The keys of a pod that are probably misspelt, each with the key that its owner probably meant; at most two.
pub fn of(pod: &Pod) -> impl Iterator<Item = (&str, &'static str)> {
    let unknown = pod.annotations.iter().map(|(key, _)| &**key).filter(|key| !is_known(key));
    unknown.take(LOOKED_AT).filter_map(|key| Some((key, meant(key)?))).take(NAMED)
}

/// Whether a key has the name of a user key with at most one fault, whatever its prefix is. The pod decoder checks each
/// annotation of each pod with it, so it allocates no memory.
pub(crate) fn is_near(key: &str) -> bool {
    let name = without_prefix(key).as_bytes();
    USER_KEYS.into_iter().any(|known| {
        let known = without_prefix(known).as_bytes();
        let begin = name.iter().zip(known).take_while(are_alike).count();
        let end = name.iter().rev().zip(known.iter().rev()).take_while(are_alike).count();
        let longest = name.len().max(known.len());
        let at = |text: &[u8], place: usize| text.get(place).copied().map(simple);
        let exchanged = begin + end + 2 == longest
            && at(name, begin) == at(known, begin + 1)
            && at(name, begin + 1) == at(known, begin);
        match name.len().abs_diff(known.len()) {
            0 => begin + end + 1 >= longest || exchanged,
            1 => begin + end + 1 >= longest,
            _ => false,
        }
    })
}

fn are_alike((one, other): &(&u8, &u8)) -> bool {
    simple(**one) == simple(**other)
}

/// A character of a name. Case and the kind of dash do not matter.
fn simple(character: u8) -> u8 {
    match character {
        b'_' | b'.' => b'-',
        other => other.to_ascii_lowercase(),
    }
}

fn is_known(key: &str) -> bool {
    USER_KEYS.contains(&key) || SYSTEM_OWNED.contains(&key)
}

/// The user key whose name is nearest, if it is near enough. The prefix may be another key's.
fn meant(key: &str) -> Option<&'static str> {
    let name = name(key);
    if name.len() > MAX_NAME {
        return None;
    }
    let near = USER_KEYS.into_iter().filter_map(|known| Some((faults(&name, &self::name(known))?, known)));
    near.min_by_key(|(faults, _)| *faults).map(|(_, known)| known)
}

/// The name of a key without its prefix. Case and the kind of dash do not matter here.
fn name(key: &str) -> String {
    without_prefix(key).to_lowercase().replace(['_', '.'], "-")
}

fn without_prefix(key: &str) -> &str {
    key.split_once('/').map_or(key, |(_, name)| name)
}

/// The number of faults between two names: wrong, missing, additional characters, and exchanged neighbours; `None` for more than
/// [`MAX_FAULTS`].
fn faults(one: &str, other: &str) -> Option<usize> {
    let (one, other): (Vec<char>, Vec<char>) = (one.chars().collect(), other.chars().collect());
    if one.len().abs_diff(other.len()) > MAX_FAULTS {
        return None;
    }
    let mut rows: [Vec<usize>; 2] = [Vec::new(), (0..=other.len()).collect()];
    for (at, left) in one.iter().enumerate() {
        let [before_last, last] = &rows;
        let mut row = vec![at + 1];
        for (place, right) in other.iter().enumerate() {
            let of = |row: &[usize], place: usize| row.get(place).copied().unwrap_or(usize::MAX - 1);
            let replaced = of(last, place) + usize::from(left != right);
            let mut least = replaced.min(of(last, place + 1) + 1).min(of(&row, place) + 1);
            let exchanged = place > 0 && at > 0 && one.get(at - 1) == Some(right) && other.get(place - 1) == Some(left);
            if exchanged {
                least = least.min(of(before_last, place - 1) + 1);
            }
            row.push(least);
        }
        let [_, last] = rows;
        rows = [last, row];
    }
    rows[1].last().copied().filter(|faults| *faults <= MAX_FAULTS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    fn pod(keys: impl IntoIterator<Item = String>) -> Pod {
        let annotations: serde_json::Map<String, serde_json::Value> =
            keys.into_iter().map(|key| (key, json!("x"))).collect();
        let pod = json!({
            "metadata": { "name": "a", "namespace": "b", "uid": "1".repeat(32), "annotations": annotations },
            "spec": { "containers": [] },
        });
        crate::pod::decode(pod.to_string().as_bytes()).unwrap()
    }

    fn found(key: &str) -> Option<&'static str> {
        of(&pod([key.to_owned()])).next().map(|(_, meant)| meant)
    }

    #[test]
    fn a_key_that_is_nearly_right_is_found() {
        for (key, meant) in [
            ("nvidia.com/use-gputyp", USE_TYPES),
            ("nvidia.com/use-gputypes", USE_TYPES),
            ("nvidia.com/use-gpu-type", USE_TYPES),
            ("nvidia.com/use_gputype", USE_TYPES),
            ("nvidia.com/use-gptuype", USE_TYPES),
            ("nvidia.com/Use-GPUType", USE_TYPES),
            ("hami.io/use-gputype", USE_TYPES),
            ("gpu-steward.io/use-gputype", USE_TYPES),
            ("nvidia.com/no-use-gputype", AVOID_TYPES),
            ("nvidia.com/use-gpuuid", USE_UUIDS),
            ("nvidia.com/nouse-gpuuid", AVOID_UUIDS),
            ("nvidia.com/numabind", NUMA_BIND),
            ("nvidia.com/vgpu-modes", SHARING_MODES),
            ("nvidia.com/node-scheduler-policy", NODE_POLICY),
            ("hami.io/gpu-schedular-policy", GPU_POLICY),
            ("hami.io/device-scoring-weight", SCORE_WEIGHTS),
            ("hami.io/enable-realtime-checks", REALTIME_CHECK),
            ("hami.io/enable-real-time-check", REALTIME_CHECK),
            ("nvidia.com/enable-realtime-check", REALTIME_CHECK),
            // With another prefix.
            ("nvida.com/use-gputype", USE_TYPES),
            ("nvidia/use-gputype", USE_TYPES),
            ("use-gputype", USE_TYPES),
            ("hami.oi/gpu-scheduler-policy", GPU_POLICY),
            ("hami.oi/gpu_scheduler_policy", GPU_POLICY),
            ("nvida.com/use-gputyp", USE_TYPES),
            ("nvida.com/use-gpputype", USE_TYPES),
            ("nvida.com/use-gqutype", USE_TYPES),
            ("nvida.com/use-gptuype", USE_TYPES),
            ("example.com/NUMA.bind", NUMA_BIND),
        ] {
            assert_eq!(found(key), Some(meant), "{key}");
        }
    }

    #[test]
    fn keys_that_are_known_or_far_from_all_are_left_alone() {
        for key in USER_KEYS.into_iter().chain(SYSTEM_OWNED) {
            assert_eq!(found(key), None, "{key}");
        }
        for key in [
            "nvidia.com/gpu.product",
            "nvidia.com/gpu",
            "hami.io/node-handshake",
            "hami.io/gpu-topology",
            "nvidia.com/x",
            "ai.centaurus.io/profile",
            "gpu-steward.io/evict",
            // With another prefix and more than one fault.
            "example.com/use-mlutype",
            "example.com/use-gput",
            "example.com/sue-gputyp",
            "example.com/numa",
            "example.com/",
            "/",
        ] {
            assert_eq!(found(key), None, "{key}");
        }
    }

    #[test]
    fn the_number_of_keys_that_are_looked_at_and_named_is_bounded() {
        let many = pod((0..100).map(|n| format!("nvidia.com/use-gputype{n:02}")));
        assert_eq!(of(&many).count(), NAMED);
        // The misspelt key comes after as many others as are looked at.
        let late = (0..LOOKED_AT).map(|n| format!("hami.io/a{n}")).chain(["nvidia.com/use-gputyp".to_owned()]);
        assert_eq!(of(&pod(late)).count(), 0);
        assert_eq!(found(&format!("nvidia.com/{}", "use-gputype".repeat(20))), None);
    }

    proptest! {
        #[test]
        fn no_key_causes_a_panic(key in "(nvidia.com/|hami.io/)?\\PC{0,70}") {
            let _ = found(&key);
        }

        #[test]
        fn one_fault_is_found(at in 0..11_usize, letter in "[a-z]") {
            let name = "use-gputype";
            let replaced = format!("nvidia.com/{}{letter}{}", &name[..at], &name[at + 1..]);
            prop_assert!(replaced == USE_TYPES || found(&replaced) == Some(USE_TYPES), "{}", replaced);
            let missing = format!("nvidia.com/{}{}", &name[..at], &name[at + 1..]);
            prop_assert_eq!(found(&missing), Some(USE_TYPES), "{}", missing);
        }
    }
}
