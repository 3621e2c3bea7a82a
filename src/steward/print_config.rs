//! `print-config`: prints the effective settings, and where each value comes from.

use crate::settings::layer::{Origin, RawValue};
use crate::settings::removed::IgnoredSetting;
use crate::settings::table::{KEYS, Key};
use std::collections::BTreeMap;
use std::fmt::Write;

/// The output format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Output {
    /// A table for people.
    Text,
    /// One JSON object with a member for each setting.
    Json,
    /// A configuration file with the same settings.
    Yaml,
}

/// The settings in the given format, and the removed settings that are still set.
pub(crate) fn print(values: &BTreeMap<&'static str, RawValue>, ignored: &[IgnoredSetting], output: Output) -> String {
    let rows: Vec<(&Key, &RawValue)> = KEYS.iter().filter_map(|key| Some((key, values.get(key.name)?))).collect();
    match output {
        Output::Text => text(&rows, ignored),
        Output::Json => json(&rows, ignored),
        Output::Yaml => yaml(&rows, ignored),
    }
}

fn text(rows: &[(&Key, &RawValue)], ignored: &[IgnoredSetting]) -> String {
    let width = rows.iter().map(|(_, value)| value.text.chars().count()).max().unwrap_or(0).min(48);
    let mut out = String::new();
    for (key, value) in rows {
        let _ = writeln!(out, "{:22} {:width$}  {}", key.name, value.text, value.origin);
    }
    for ignored in ignored {
        let _ = writeln!(out, "warning: {ignored}");
    }
    out
}

fn json(rows: &[(&Key, &RawValue)], ignored: &[IgnoredSetting]) -> String {
    let member = |(key, raw): &(&Key, &RawValue)| {
        let mut value = serde_json::json!({ "value": raw.text, "origin": raw.origin.to_string() });
        if let Origin::File { path, line } = &raw.origin {
            value["file"] = path.to_string_lossy().into();
            value["line"] = (*line).into();
        }
        (key.name.to_owned(), value)
    };
    let mut object: serde_json::Map<String, serde_json::Value> = rows.iter().map(member).collect();
    for one in ignored {
        let entry = object.entry(one.row.name).or_insert_with(|| serde_json::json!({}));
        entry["ignored"] = serde_json::json!({
            "value": one.given.text, "origin": one.given.origin.to_string(), "why": one.row.advice,
        });
    }
    format!("{:#}\n", serde_json::Value::Object(object))
}

/// Quotes every value as in JSON, which is valid YAML, so that YAML reads no value as a number, a date or a comment.
fn yaml(rows: &[(&Key, &RawValue)], ignored: &[IgnoredSetting]) -> String {
    let mut out = String::from("# gpu-steward's settings, with the origin of each value\n");
    for one in ignored {
        let _ = writeln!(out, "# warning: {}", one.to_string().replace(['\n', '\r'], " "));
    }
    let mut group = None;
    for (key, raw) in rows {
        if group != Some(key.group) {
            let _ = write!(out, "\n# {}\n", key.group.title());
            group = Some(key.group);
        }
        let quoted = serde_json::Value::String(raw.text.clone());
        let _ = writeln!(out, "{}: {quoted}  # {}", key.name, raw.origin.to_string().replace(['\n', '\r'], " "));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::file;

    fn values(text: &str) -> BTreeMap<&'static str, RawValue> {
        let value = |key: &Key| RawValue { text: text.to_owned(), origin: Origin::Environment(key.variable()) };
        KEYS.iter().map(|key| (key.name, value(key))).collect()
    }

    proptest::proptest! {
        #[test]
        fn printed_yaml_is_parsed_to_the_same_settings(text in "[ -~äß\n\t]{1,30}") {
            let printed = print(&values(&text), &[], Output::Yaml);
            let entries = file::parse(printed.as_bytes()).unwrap().entries;
            proptest::prop_assert_eq!(entries.len(), KEYS.len());
            for entry in entries {
                proptest::prop_assert_eq!(&entry.text, &text);
            }
        }
    }

    #[test]
    fn json_names_file_and_line() {
        let path: std::sync::Arc<std::path::Path> = std::path::Path::new("/etc/x.yaml").into();
        let values = [("v", RawValue { text: "4".into(), origin: Origin::File { path, line: 3 } })].into();
        let value: serde_json::Value = serde_json::from_str(&print(&values, &[], Output::Json)).unwrap();
        let expect = serde_json::json!({"value": "4", "origin": "/etc/x.yaml:3", "file": "/etc/x.yaml", "line": 3});
        assert_eq!(value["v"], expect);
    }
}
