//! How well the GPUs of a node are connected (`hami.io/node-nvidia-score`): a score for each pair of GPUs.
//!
//! ```text
//!   [{"uuid":"GPU-a","score":{"GPU-b":310}},{"uuid":"GPU-b","score":{"GPU-a":310}}]
//! ```
//!
//! HAMi's device plugin computes the scores: 10 to 60 for the PCIe path, and 100 for each NVLink. A higher score is a
//! better connection; only the order of scores matters.

use crate::annotation_keys::{MAX_ANNOTATION, NODE_LINKS};
use crate::decode_error::{DecodeError, shown};
use crate::pod::OrNull;
use model::gpu::MAX_GPUS;
use model::id::GpuUuid;
use serde::Deserialize;
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

/// Maximum score: HAMi's programs hold scores in signed integers.
const MAX_SCORE: i64 = i32::MAX as i64;

#[derive(Deserialize)]
struct Entry<'a> {
    #[serde(borrow)]
    uuid: Cow<'a, str>,
    #[serde(default)]
    score: OrNull<BTreeMap<String, i64>>,
}

/// Reads the scores. The map has each pair in both orders with the same score. If the text has two scores for a pair,
/// the lower score counts.
///
/// # Errors
/// [`DecodeError`] for another format, for a name that is not a UUID, for a GPU that appears twice, and for more than
/// [`MAX_GPUS`] GPUs.
pub fn decode(text: &str) -> Result<BTreeMap<(GpuUuid, GpuUuid), u32>, DecodeError> {
    if text.len() > MAX_ANNOTATION {
        return Err(DecodeError::too_long(NODE_LINKS, text.len(), MAX_ANNOTATION));
    }
    let entries: Vec<Entry<'_>> =
        serde_json::from_str(text).map_err(|error| DecodeError::json(NODE_LINKS, text.as_bytes(), &error))?;
    if entries.len() > MAX_GPUS || entries.iter().any(|entry| entry.score.0.len() > MAX_GPUS) {
        return Err(DecodeError::too_many(NODE_LINKS, 0, "GPUs", MAX_GPUS));
    }
    let (mut links, mut seen) = (BTreeMap::new(), BTreeSet::new());
    for (number, entry) in entries.into_iter().enumerate() {
        let fault = |what: String| DecodeError::new(NODE_LINKS, 0, format!("entry {number}: {what}"));
        let one = GpuUuid::parse(&entry.uuid).map_err(|error| fault(error.to_string()))?;
        if !seen.insert(one.clone()) {
            return Err(fault(format!("{one} appears twice")));
        }
        for (other, score) in entry.score.0 {
            let other = GpuUuid::parse(&other).map_err(|error| fault(error.to_string()))?;
            let score = u32::try_from(score).ok().filter(|score| i64::from(*score) <= MAX_SCORE);
            let Some(score) = score else {
                let other = shown(other.as_str());
                return Err(fault(format!("the score of {other} is not between 0 and {MAX_SCORE}")));
            };
            if one != other {
                for pair in [(one.clone(), other.clone()), (other, one.clone())] {
                    links.entry(pair).and_modify(|known: &mut u32| *known = score.min(*known)).or_insert(score);
                }
            }
        }
    }
    Ok(links)
}

/// Writes the scores, which have each pair in both orders: the GPUs and their peers in the order of their UUIDs.
#[must_use]
pub fn encode(scores: &BTreeMap<(GpuUuid, GpuUuid), u32>) -> String {
    let mut text = "[".to_owned();
    let mut last: Option<&GpuUuid> = None;
    for ((one, other), score) in scores {
        if last == Some(one) {
            text.push(',');
        } else {
            text.push_str(if last.is_some() { "}}," } else { "" });
            // Writing into a String does not fail. A UUID has no character that JSON escapes.
            let _ = write!(text, "{{\"uuid\":\"{one}\",\"score\":{{");
        }
        let _ = write!(text, "\"{other}\":{score}");
        last = Some(one);
    }
    text.push_str(if last.is_some() { "}}]" } else { "]" });
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::{Value, json};

    fn links(text: &Value) -> Vec<(String, String, u32)> {
        let links = decode(&text.to_string()).unwrap_or_else(|error| panic!("{text}: {error}"));
        links.into_iter().map(|((one, other), score)| (one.to_string(), other.to_string(), score)).collect()
    }

    fn row(one: &str, other: &str, score: u32) -> (String, String, u32) {
        (one.into(), other.into(), score)
    }

    #[test]
    fn each_pair_has_one_score_in_both_orders() {
        let text = json!([
            { "uuid": "GPU-a", "score": { "GPU-b": 310, "GPU-c": 20, "GPU-a": 7 } },
            { "uuid": "GPU-b", "score": { "GPU-a": 310, "GPU-c": 0 } },
            { "uuid": "GPU-c", "score": { "GPU-a": 10 }, "more": [] },
        ]);
        let expected = [("GPU-a", "GPU-b", 310), ("GPU-a", "GPU-c", 10), ("GPU-b", "GPU-a", 310)];
        let rest = [("GPU-b", "GPU-c", 0), ("GPU-c", "GPU-a", 10), ("GPU-c", "GPU-b", 0)];
        assert_eq!(links(&text), expected.into_iter().chain(rest).map(|(a, b, n)| row(a, b, n)).collect::<Vec<_>>());
        assert_eq!(links(&json!([{ "uuid": "GPU-a" }, { "uuid": "GPU-b", "score": null }])), []);
        assert_eq!(links(&json!([])), []);
    }

    #[test]
    fn scores_are_written_as_hami_writes_them() {
        let text = r#"[{"uuid":"GPU-a","score":{"GPU-b":310,"GPU-c":10}},{"uuid":"GPU-b","score":{"GPU-a":310}},{"uuid":"GPU-c","score":{"GPU-a":10}}]"#;
        assert_eq!(encode(&decode(text).unwrap()), text);
        assert_eq!(encode(&BTreeMap::new()), "[]");
    }

    #[test]
    fn other_texts_are_refused_with_their_fault() {
        let many: Vec<Value> = (0..=MAX_GPUS).map(|number| json!({ "uuid": format!("GPU-{number}") })).collect();
        let wide: serde_json::Map<String, Value> =
            (0..=MAX_GPUS).map(|number| (format!("GPU-{number}"), json!(1))).collect();
        for (text, what) in [
            (json!([{ "uuid": "" }]), "entry 0: not a GPU UUID"),
            (json!([{ "uuid": "a" }, { "uuid": "a" }]), "entry 1: a appears twice"),
            (json!([{ "uuid": "a", "score": { "b c": 1 } }]), "entry 0: not a GPU UUID: \"b c\""),
            (json!([{ "uuid": "a", "score": { "b": -1 } }]), "the score of \"b\" is not between 0 and 2147483647"),
            (json!([{ "uuid": "a", "score": { "b": 1_i64 << 31 } }]), "the score of \"b\" is not between"),
            (json!([{ "uuid": "a", "score": { "b": "1" } }]), "expected i64"),
            (json!({}), "expected a sequence"),
            (Value::from(many), "has more than 64 GPUs"),
            (json!([{ "uuid": "a", "score": wide }]), "has more than 64 GPUs"),
        ] {
            let fault = decode(&text.to_string()).unwrap_err();
            assert!(fault.key == NODE_LINKS && fault.what.contains(what), "{text}: {fault}");
        }
        assert!(decode(&" ".repeat(MAX_ANNOTATION + 1)).unwrap_err().what.contains("bytes long"));
    }

    proptest! {
        #[test]
        fn nothing_makes_it_panic(text in "\\PC{0,100}") {
            let _ = decode(&text);
        }

        #[test]
        fn nothing_like_it_makes_it_panic(inner in "[\\[\\]{}:,\"a-c0-9.-]{0,60}") {
            let _ = decode(&format!(r#"[{{"uuid":"a","score":{{{inner}}}}}]"#));
        }

        #[test]
        fn what_is_written_is_read_back(
            pairs in prop::collection::btree_map((0..6_u8, 0..6_u8), 0..=0x7fff_ffff_u32, 0..20),
        ) {
            let pairs: BTreeMap<_, _> = pairs.into_iter().filter(|((one, other), _)| one < other).collect();
            let mut scores: BTreeMap<String, serde_json::Map<String, Value>> = BTreeMap::new();
            for ((one, other), score) in &pairs {
                scores.entry(format!("GPU-{one}")).or_default().insert(format!("GPU-{other}"), json!(score));
            }
            let text: Vec<Value> =
                scores.into_iter().map(|(uuid, score)| json!({ "uuid": uuid, "score": score })).collect();
            let text = Value::from(text);
            let found = links(&text);
            let decoded = decode(&text.to_string()).unwrap();
            prop_assert_eq!(decode(&encode(&decoded)).unwrap(), decoded);
            prop_assert_eq!(found.len(), 2 * pairs.len());
            for ((one, other), score) in pairs {
                let (one, other) = (format!("GPU-{one}"), format!("GPU-{other}"));
                prop_assert!(found.contains(&row(&one, &other, score)) && found.contains(&row(&other, &one, score)));
            }
        }
    }
}
