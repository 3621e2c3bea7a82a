//! The environment variables of a container, as far as they matter for the size of its pod's status: how long a text can become in
//! which the kubelet replaces `$(NAME)` by the value of the variable. A value may itself have references to earlier variables, so a
//! few short values can make a text of any length.
//!
//! Also how long the texts are by which a message names a variable.
//!
//! What must never happen here: a text counts as shorter than the kubelet makes it from values that stand in the pod. Values in a
//! ConfigMap, in a Secret or in a file are not seen; they count as [`UNSEEN`].

use crate::annotation_keys::MAX_ANNOTATION;
use crate::pod::{OrNull, ValueSize};
use serde::Deserialize;
use serde_json::value::RawValue;
use std::collections::HashMap;

/// Bytes that count for a value that is not in the pod: the longest path of Linux. A longer value makes no valid path or program
/// name, so pods that work are not refused.
const UNSEEN: usize = 4096;
/// Bytes that count for a pod's field that is not an annotation: names have at most 253 bytes, labels 63, and two IP addresses 91.
const FIELD: usize = 253;

/// The variables whose values NVIDIA's runtime repeats in its errors: all with this beginning, and the version of CUDA, which it reads
/// if no `NVIDIA_REQUIRE_CUDA` is set.
const OF_NVIDIA: &str = "NVIDIA_";
const CUDA_VERSION: &str = "CUDA_VERSION";

/// The variables of a container: the length of the longest value that each can have.
#[derive(Debug, Default)]
pub(crate) struct Variables(HashMap<String, usize>);

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Variable {
    name: OrNull<String>,
    value: OrNull<String>,
    value_from: Option<ValueFrom>,
}

/// What names an entry of `env` or `envFrom`: everything in it but the value. The API server bounds the names of ConfigMaps and
/// Secrets and their keys.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct EntryName {
    name: ValueSize,
    prefix: ValueSize,
    value_from: ValueSize,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ValueFrom {
    field_ref: Option<FieldRef>,
    resource_field_ref: Option<serde::de::IgnoredAny>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct FieldRef {
    field_path: OrNull<String>,
}

impl ValueFrom {
    /// Bytes of the longest value. The owner of a pod may change its annotations until the container is created.
    fn longest(&self) -> usize {
        match (&self.field_ref, &self.resource_field_ref) {
            (Some(field), _) if field.field_path.0.starts_with("metadata.annotations") => MAX_ANNOTATION,
            (Some(_), _) | (None, Some(_)) => FIELD,
            (None, None) => UNSEEN,
        }
    }
}

/// Whether a list `env` may have a variable whose value NVIDIA's runtime repeats. An API server escapes no letter of a name.
pub(crate) fn may_name_one_of_nvidia(env: &RawValue) -> bool {
    [OF_NVIDIA, CUDA_VERSION].iter().any(|part| env.get().contains(part))
}

/// Bytes of the longest text by which a message may name an entry of this list `env` or `envFrom`.
pub(crate) fn longest_name(list: &RawValue) -> usize {
    let entries = serde_json::from_str::<OrNull<Vec<EntryName>>>(list.get()).unwrap_or_default().0;
    let sizes = entries.iter().map(|entry| entry.name.with(entry.prefix).with(entry.value_from).stored());
    sizes.max().unwrap_or_default()
}

impl Variables {
    /// Reads the list `env` of a container. Any other value has no variables.
    pub(crate) fn of(env: Option<&RawValue>) -> Variables {
        let read = |env: &RawValue| serde_json::from_str::<OrNull<Vec<Variable>>>(env.get()).ok();
        let mut variables = Variables::default();
        for Variable { name, value, value_from } in env.and_then(read).unwrap_or_default().0 {
            let longest = value_from.map_or_else(|| variables.expanded(&value.0), |from| from.longest());
            // A later variable may be missing if it is optional, and then the earlier variable of the same name holds.
            let known = variables.0.entry(name.0).or_default();
            *known = longest.max(*known);
        }
        variables
    }

    /// Bytes of the longest value of a variable of NVIDIA's runtime.
    pub(crate) fn longest_of_nvidia(&self) -> usize {
        let named = self.0.iter().filter(|(name, _)| name.starts_with(OF_NVIDIA) || *name == CUDA_VERSION);
        named.map(|(_, longest)| *longest).max().unwrap_or_default()
    }

    /// Bytes of the text with the longest values in the place of its references. `$$` is a `$` and begins no reference.
    pub(crate) fn expanded(&self, text: &str) -> usize {
        let (mut rest, mut longest) = (text, text.len());
        while let Some((_, after)) = rest.split_once('$') {
            let Some(name) = after.strip_prefix('(') else {
                rest = after.strip_prefix('$').unwrap_or(after);
                continue;
            };
            // If this reference has no end, no later reference has an end. The text may have a megabyte of beginnings.
            let Some((name, after)) = name.split_once(')') else { break };
            longest = longest.saturating_add(self.0.get(name).copied().unwrap_or(UNSEEN));
            rest = after;
        }
        longest
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::{Value, json};

    fn variables(env: &Value) -> Variables {
        Variables::of(Some(&RawValue::from_string(env.to_string()).unwrap()))
    }

    #[test]
    fn a_reference_counts_with_the_longest_value_that_it_can_have() {
        let field = |path: &str| json!({ "fieldRef": { "apiVersion": "v1", "fieldPath": path } });
        let known = variables(&json!([
            { "name": "A", "value": "x".repeat(1000) },
            { "name": "TWICE", "value": "$(A)/$(A)" },
            { "name": "A", "value": "short" },
            { "name": "NONE" },
            { "name": "POD", "valueFrom": field("metadata.name") },
            { "name": "NOTE", "valueFrom": field("metadata.annotations['a/b']") },
            { "name": "CPUS", "valueFrom": { "resourceFieldRef": { "resource": "limits.cpu" } } },
            { "name": "MAP", "valueFrom": { "configMapKeyRef": { "name": "m", "key": "k" } } },
        ]));
        for (text, longest) in [
            ("plain", 5),
            ("$(A)", 4 + 1000),
            ("a/$(A)/$(A)", 11 + 2000),
            ("$(TWICE)", 8 + 9 + 2000),
            ("$(NONE)", 7),
            ("$(POD)", 6 + 253),
            ("$(NOTE)", 7 + 262_144),
            ("$(CPUS)", 7 + 253),
            ("$(MAP)", 6 + 4096),
            ("$(OTHER)", 8 + 4096),
            ("$$(A)", 5),
            ("$$$(A)", 6 + 1000),
            ("$(A", 3),
            ("$", 1),
        ] {
            assert_eq!(known.expanded(text), longest, "{text}");
        }
    }

    #[test]
    fn values_that_refer_to_each_other_are_counted_without_being_written_out() {
        let level = |n: u32| {
            let before = format!("$(V{})", n.saturating_sub(1));
            json!({ "name": format!("V{n}"), "value": if n == 0 { "x".repeat(100) } else { before.repeat(100) } })
        };
        let known = variables(&(0..40).map(level).collect());
        assert!(known.expanded("$(V2)") > 100 * 100 * 100);
        assert_eq!(known.expanded("$(V39)"), usize::MAX);
    }

    #[test]
    fn an_entry_is_named_by_all_of_it_but_its_value() {
        let list = json!([
            { "name": "abc", "value": "x".repeat(1000) },
            { "name": "A", "valueFrom": { "fileKeyRef": { "path": "a/b" } } },
            null,
        ]);
        let longest = |list: &Value| longest_name(&RawValue::from_string(list.to_string()).unwrap());
        assert_eq!(longest(&list), 0, "not a list of entries");
        assert_eq!(longest(&json!([list[0], list[1]])), 1 + 10 + 4 + 3 + 4 * 6);
        assert_eq!(longest(&json!([list[0]])), 3 + 6);
        assert_eq!(longest(&json!([{ "prefix": "abcd", "secretRef": { "name": "s" } }])), 4 + 6);
        for other in [json!([]), json!({}), json!(7), Value::Null] {
            assert_eq!(longest(&other), 0, "{other}");
        }
        let known = variables(&json!([{ "name": "NVIDIA_A", "value": "ab" }, { "name": "B", "value": "abc" }]));
        assert_eq!((known.longest_of_nvidia(), Variables::default().longest_of_nvidia()), (2, 0));
        assert_eq!(variables(&json!([{ "name": "CUDA_VERSION", "value": "12.4" }])).longest_of_nvidia(), 4);
    }

    proptest! {
        #[test]
        fn no_list_and_no_text_cause_a_panic(env in "\\PC{0,60}", text in "[$()A-C]{0,30}") {
            let known = variables(&json!([{ "name": "A", "value": env }, { "name": "B", "value": &text }]));
            prop_assert!(known.expanded(&text) >= text.len());
            if let Ok(raw) = RawValue::from_string(env) {
                Variables::of(Some(&raw)).expanded(&text);
                let _ = longest_name(&raw);
            }
        }

        #[test]
        fn no_text_becomes_longer_than_counted(values in prop::collection::vec("[a$()AB]{0,12}", 3), text in "[a$()AB]{0,20}") {
            let names = ["A", "B", "AB"];
            let env: Value = names.iter().zip(&values).map(|(name, value)| json!({ "name": name, "value": value })).collect();
            let mut known: HashMap<&str, String> = HashMap::new();
            for (name, value) in names.into_iter().zip(&values) {
                let value = replaced(value, &known);
                known.insert(name, value);
            }
            prop_assert!(replaced(&text, &known).len() <= variables(&env).expanded(&text));
        }
    }

    /// The text as the kubelet makes it: a reference to a variable that is not known stays as it is.
    fn replaced(text: &str, known: &HashMap<&str, String>) -> String {
        let (mut out, mut rest) = (String::new(), text);
        while let Some(at) = rest.find('$') {
            out.push_str(&rest[..at]);
            let after = &rest[at + 1..];
            if let Some(after) = after.strip_prefix('$') {
                out.push('$');
                rest = after;
            } else if let Some((name, after)) = after.strip_prefix('(').and_then(|after| after.split_once(')')) {
                out.push_str(&known.get(name).cloned().unwrap_or_else(|| format!("$({name})")));
                rest = after;
            } else {
                out.push('$');
                rest = after;
            }
        }
        out + rest
    }
}
