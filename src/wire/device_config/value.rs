//! Reads single values of settings. People and charts often quote numbers and flags in YAML, so both spellings are
//! accepted.

use super::setting::{CorePolicy, DeviceScaling, MigAllowance};
use crate::decode_error::shown;
use model::unit::Mib;
use serde_json::Value;

/// Maximum number of entries of one list: models, profiles, GPUs, nodes (a cluster of 5,000).
pub(super) const MAX_LIST: usize = 8192;
/// Maximum bytes of a text. The longest is a resource name: a DNS name, a slash and 63 characters.
const MAX_TEXT: usize = 317;

/// The value as text, for a message.
fn described(value: &Value) -> String {
    match value {
        Value::String(text) => shown(text),
        Value::Array(_) => "a list".into(),
        Value::Object(_) => "a mapping".into(),
        other => other.to_string(),
    }
}

/// A text; a number or flag is read as its text. `None` if the text is empty.
pub(super) fn text(value: &Value) -> Result<Option<String>, String> {
    let text = match value {
        Value::String(text) => text.clone(),
        Value::Number(_) | Value::Bool(_) => value.to_string(),
        _ => return Err(format!("is not a text: {}", described(value))),
    };
    if text.len() > MAX_TEXT {
        Err(format!("is longer than {MAX_TEXT} bytes"))
    } else {
        Ok(Some(text).filter(|text| !text.is_empty()))
    }
}

/// The name of a resource.
pub(super) fn resource(value: &Value) -> Result<String, String> {
    let name = text(value)?.unwrap_or_default();
    let sound = name.split_once('/').is_some_and(|(domain, rest)| !domain.is_empty() && !rest.is_empty());
    if sound && name.bytes().all(|byte| byte.is_ascii_graphic()) {
        Ok(name)
    } else {
        Err(format!("is not the name of a resource: {}", described(value)))
    }
}

/// `true` or `false`.
pub(super) fn flag(value: &Value) -> Result<bool, String> {
    match value {
        Value::Bool(flag) => Ok(*flag),
        Value::String(text) if text == "true" => Ok(true),
        Value::String(text) if text == "false" => Ok(false),
        _ => Err(format!("is neither true nor false: {}", described(value))),
    }
}

/// A whole number from `least` to `most`.
pub(super) fn number(value: &Value, least: u64, most: u64) -> Result<u32, String> {
    let number = match value {
        Value::String(text) => text.parse().ok(),
        other => other.as_u64(),
    };
    number
        .filter(|number| (least..=most).contains(number))
        .and_then(|number| u32::try_from(number).ok())
        .ok_or_else(|| format!("is not a whole number from {least} to {most}: {}", described(value)))
}

/// An amount of MiB; 0 means not set.
pub(super) fn memory(value: &Value) -> Result<Option<Mib>, String> {
    let number = number(value, 0, i32::MAX.unsigned_abs().into())?;
    Ok(Some(Mib(number.into())).filter(|memory| memory.0 > 0))
}

/// A scaling factor.
pub(super) fn scaling(value: &Value) -> Result<DeviceScaling, String> {
    let factor = match value {
        Value::String(text) => text.parse().ok(),
        other => other.as_f64(),
    };
    factor
        .and_then(DeviceScaling::new)
        .ok_or_else(|| format!("is not a number above 0 and up to 100: {}", described(value)))
}

/// A core policy; an empty text means the default.
pub(super) fn core_policy(value: &Value) -> Result<CorePolicy, String> {
    match text(value)?.as_deref() {
        None | Some("default") => Ok(CorePolicy::Default),
        Some("force") => Ok(CorePolicy::Force),
        Some("disable") => Ok(CorePolicy::Disable),
        Some(_) => Err(format!("is not default, force or disable: {}", described(value))),
    }
}

/// A list; `null` is an empty list.
pub(super) fn list(value: &Value) -> Result<&[Value], String> {
    match value {
        Value::Null => Ok(&[]),
        Value::Array(items) if items.len() <= MAX_LIST => Ok(items),
        Value::Array(_) => Err(format!("has more than {MAX_LIST} items")),
        _ => Err(format!("is not a list: {}", described(value))),
    }
}

/// A list of texts.
pub(super) fn texts(value: &Value) -> Result<Vec<String>, String> {
    list(value)?.iter().map(|item| text(item).map(Option::unwrap_or_default)).collect()
}

/// The MIG profiles that may be created, by GPU model.
pub(super) fn allowances(value: &Value) -> Result<Vec<MigAllowance>, String> {
    let allowance = |(number, item): (usize, &Value)| {
        let place = |what: String| format!("[{number}]: {what}");
        let item = item.as_object().ok_or_else(|| place("is not a mapping of models and profiles".into()))?;
        if let Some(key) = item.keys().find(|key| !["models", "profiles"].contains(&key.as_str())) {
            return Err(place(format!("has {}, which is neither models nor profiles", shown(key))));
        }
        let of = |key: &str| texts(item.get(key).unwrap_or(&Value::Null)).map_err(place);
        Ok(MigAllowance { models: of("models")?, profiles: of("profiles")? })
    };
    list(value)?.iter().enumerate().map(allowance).collect()
}
