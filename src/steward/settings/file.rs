//! Parses the configuration file: a flat YAML mapping of setting to value. Each entry keeps its line number.

use super::removed;
use super::table::{Key, nearest};
use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_saphyr::Spanned;
use std::fmt;

/// One setting in the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    /// The name of the setting, which may have been removed.
    pub key: &'static str,
    /// The setting's value, as the text that a flag would have.
    pub text: String,
    /// Line, from 1.
    pub line: u64,
}

/// A mistake in the file, and its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Fault {
    /// Line, from 1; 0 if it is unknown.
    pub line: u64,
    /// Column, from 1, if the YAML parser reports it.
    pub column: Option<u64>,
    /// The text of the error.
    pub what: String,
}

/// Maximum size of the file in bytes. All settings take about a screen.
pub(crate) const MAX_BYTES: u64 = 64 * 1024;

/// The end of the error message if the file cannot be parsed completely. The message names one mistake, but there may
/// be more.
const EXPECTED: &str = "expected a line such as `period: 2s` for each setting; what follows was not checked";

impl Fault {
    fn on(line: u64, what: impl Into<String>) -> Fault {
        Fault { line, column: None, what: what.into() }
    }
}

/// The contents of a file that was parsed to its end.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Contents {
    /// The valid settings.
    pub entries: Vec<Entry>,
    /// The mistakes in the other lines. Parsing continues after a mistake such as an unknown key.
    pub faults: Vec<Fault>,
}

/// Parses the bytes of the file. An empty file, or a file that has only comments, sets nothing.
///
/// # Errors
/// The mistake at which parsing stopped.
pub(crate) fn parse(bytes: &[u8]) -> Result<Contents, Fault> {
    let text = std::str::from_utf8(bytes).map_err(|error| {
        let before = bytes.get(..error.valid_up_to()).unwrap_or_default();
        let line = 1 + before.iter().fold(0_u64, |lines, byte| lines + u64::from(*byte == b'\n'));
        Fault::on(line, format!("is not UTF-8; {EXPECTED}"))
    })?;
    if text.lines().all(|line| line.trim().is_empty() || line.trim_start().starts_with('#')) {
        return Ok(Contents::default());
    }
    let lines: Lines = serde_saphyr::from_str(text).map_err(|error| syntax(&error))?;
    let Contents { mut entries, mut faults } = Contents::default();
    for (key, value) in lines.0 {
        let line = key.referenced.line();
        if let Some(row) = removed::named(&key.value) {
            let text = if let Scalar::Text(text) = value.value { text } else { String::new() };
            entries.push(Entry { key: row.name, text, line });
            continue;
        }
        match (Key::named(&key.value), value.value) {
            (None, _) => faults.push(Fault::on(line, unknown(&key.value))),
            (Some(key), Scalar::Text(text)) => entries.push(Entry { key: key.name, text, line }),
            (Some(key), Scalar::Nothing) => {
                faults.push(Fault::on(line, format!("{} has no value (leave the line out instead)", key.name)));
            }
            (Some(key), Scalar::Many) => {
                faults.push(Fault::on(line, format!("{} must be a single value", key.name)));
            }
        }
    }
    Ok(Contents { entries, faults })
}

fn unknown(name: &str) -> String {
    let shown: String = name.chars().take(60).collect();
    match nearest(name) {
        Some(near) => format!("unknown key {shown:?}; did you mean {near}?"),
        None => format!("unknown key {shown:?}; gpu-steward print-config lists all keys"),
    }
}

/// Shortens the YAML parser's message to its first line. Removes the source snippet, which does not fit into a log
/// line, the position, which [`Fault`] already has, and advice for programmers.
fn syntax(error: &serde_saphyr::Error) -> Fault {
    let (line, column) = error.location().map_or((0, None), |at| (at.line(), Some(at.column())));
    let message = error.without_snippet().to_string();
    let mut first = message.lines().next().unwrap_or("cannot be read").trim();
    for end in [" at line ", ", set DuplicateKeyPolicy", "; use from_str"] {
        first = first.split(end).next().unwrap_or(first);
    }
    Fault { line, column, what: format!("is not a YAML mapping of settings: {first}; {EXPECTED}") }
}

/// The mapping, with the keys in the order of the file.
struct Lines(Vec<(Spanned<String>, Spanned<Scalar>)>);

/// A value. Its YAML type (number, boolean, text) does not matter.
enum Scalar {
    Text(String),
    Nothing,
    Many,
}

impl<'de> Deserialize<'de> for Lines {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Mapping;
        impl<'de> Visitor<'de> for Mapping {
            type Value = Lines;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a mapping of settings")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Lines, A::Error> {
                let mut lines = Vec::new();
                while let Some(entry) = map.next_entry()? {
                    lines.push(entry);
                }
                Ok(Lines(lines))
            }
        }
        deserializer.deserialize_map(Mapping)
    }
}

impl<'de> Deserialize<'de> for Scalar {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Value;
        impl<'de> Visitor<'de> for Value {
            type Value = Scalar;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a single value")
            }
            fn visit_bool<E>(self, value: bool) -> Result<Scalar, E> {
                Ok(Scalar::Text(value.to_string()))
            }
            fn visit_u64<E>(self, value: u64) -> Result<Scalar, E> {
                Ok(Scalar::Text(value.to_string()))
            }
            fn visit_i64<E>(self, value: i64) -> Result<Scalar, E> {
                Ok(Scalar::Text(value.to_string()))
            }
            fn visit_f64<E>(self, value: f64) -> Result<Scalar, E> {
                Ok(Scalar::Text(value.to_string()))
            }
            fn visit_str<E>(self, value: &str) -> Result<Scalar, E> {
                Ok(Scalar::Text(value.to_owned()))
            }
            fn visit_unit<E>(self) -> Result<Scalar, E> {
                Ok(Scalar::Nothing)
            }
            fn visit_none<E>(self) -> Result<Scalar, E> {
                Ok(Scalar::Nothing)
            }
            fn visit_seq<A: serde::de::SeqAccess<'de>>(self, mut many: A) -> Result<Scalar, A::Error> {
                while many.next_element::<serde::de::IgnoredAny>()?.is_some() {}
                Ok(Scalar::Many)
            }
            fn visit_map<A: MapAccess<'de>>(self, mut many: A) -> Result<Scalar, A::Error> {
                while many.next_entry::<serde::de::IgnoredAny, serde::de::IgnoredAny>()?.is_some() {}
                Ok(Scalar::Many)
            }
        }
        deserializer.deserialize_any(Value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(key: &'static str, text: &str, line: u64) -> Entry {
        Entry { key, text: text.into(), line }
    }

    #[test]
    fn a_value_has_the_text_that_its_flag_would_have() {
        let text = b"# ours\nperiod: 2s\nv: 4\n\nmetrics-hami: true\nnode-name: \"7\"\nlisten: :9410\n";
        assert_eq!(
            parse(text).unwrap().entries,
            [
                entry("period", "2s", 2),
                entry("v", "4", 3),
                entry("metrics-hami", "true", 5),
                entry("node-name", "7", 6),
                entry("listen", ":9410", 7),
            ]
        );
        assert_eq!(parse(b""), Ok(Contents::default()));
        assert_eq!(parse(b"# nothing\n\n"), Ok(Contents::default()));
    }

    #[test]
    fn every_fault_is_reported_with_its_line() {
        for (text, line, what) in [
            ("period: 1s\nusage_socket: /a\n", 2, "unknown key \"usage_socket\"; did you mean usage-socket?"),
            ("colour: red\n", 1, "unknown key \"colour\"; gpu-steward print-config lists all keys"),
            ("v:\n", 1, "v has no value (leave the line out instead)"),
            ("v: [1, 2]\n", 1, "v must be a single value"),
            ("v: {a: b}\n", 1, "v must be a single value"),
        ] {
            assert_eq!(parse(text.as_bytes()).unwrap().faults, [Fault::on(line, what)], "{text}");
        }
        let two = parse(b"perod: 1s\nv: 1\nlisen: x\n").unwrap();
        assert_eq!(two.faults.iter().map(|fault| fault.line).collect::<Vec<_>>(), [1, 3]);
        assert_eq!(two.entries, [entry("v", "1", 2)], "valid lines are read although others have mistakes");
    }

    #[test]
    fn a_file_that_cannot_be_parsed_to_its_end_gives_one_fault_that_says_so() {
        assert_eq!(parse(b"v: 1\nperiod: \xff\n").unwrap_err().line, 2);
        for (broken, place, why) in [
            ("- v\n", (1, 1), "expected mapping start"),
            ("v: 1\nv: 2\n", (2, 1), "duplicate mapping key: v"),
            ("just words\n", (1, 1), "expected mapping start"),
            ("v: 0\nperiod 2s\nlisen: x\n", (2, 1), "simple key expected ':'"),
            ("v: 1\nperiod: [1s\n", (2, 9), "unclosed bracket '['"),
            ("v: 1\n---\nv: 2\n", (3, 1), "multiple YAML documents detected"),
        ] {
            let (line, column) = (place.0, Some(place.1));
            let what = format!("is not a YAML mapping of settings: {why}; {EXPECTED}");
            assert_eq!(parse(broken.as_bytes()), Err(Fault { line, column, what }), "{broken}");
        }
        let open = parse(b"v: 'open\n").unwrap_err();
        assert!(open.what.ends_with(EXPECTED) && !open.what.contains('\n'), "{open:?}");
    }

    proptest::proptest! {
        #[test]
        fn any_bytes_give_entries_or_faults(bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..200)) {
            let _ = parse(&bytes);
        }

        #[test]
        fn any_yaml_like_text_gives_entries_or_faults(text in "([a-z-]{1,12}: ?[\\[{&*!|>'\"#a-z0-9, :-]{0,12}\n){0,6}") {
            let _ = parse(text.as_bytes());
        }
    }
}
