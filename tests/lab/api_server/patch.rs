//! Applies patches to objects with the results of a real server: merge patches, with `uid` and `resourceVersion` as
//! preconditions, and the `test` and `remove` operations of JSON patches.

use serde_json::{Map, Value, json};

/// Applies a patch, or returns the status code and the reason of the refusal.
pub(super) fn apply(object: &mut Value, change: &Value, content: &str) -> Result<(), (u16, String)> {
    if content.starts_with("application/json-patch+json") {
        let mut changed = object.clone();
        for step in change.as_array().into_iter().flatten() {
            apply_step(&mut changed, step).map_err(|why| (422, why))?;
        }
        *object = changed;
        return Ok(());
    }
    let (old, new) = (&object["metadata"], &change["metadata"]);
    if new["uid"].is_string() && new["uid"] != old["uid"] {
        let why =
            format!("Precondition failed: UID in precondition: {}, UID in object meta: {}", new["uid"], old["uid"]);
        return Err((409, why));
    }
    if new["resourceVersion"].is_string() && new["resourceVersion"] != old["resourceVersion"] {
        return Err((409, "the object has been modified; please apply your changes to the latest version".into()));
    }
    merge(object, change);
    Ok(())
}

/// A JSON merge patch (RFC 7396).
fn merge(object: &mut Value, change: &Value) {
    let Some(fields) = change.as_object() else {
        *object = change.clone();
        return;
    };
    if !object.is_object() {
        *object = json!({});
    }
    let own = object.as_object_mut().expect("it was just made an object");
    for (name, value) in fields {
        match value {
            Value::Null => drop(own.remove(name)),
            _ => merge(own.entry(name.clone()).or_insert(Value::Null), value),
        }
    }
}

/// One step of a JSON patch (RFC 6902). Only `test` and `remove` are supported.
fn apply_step(object: &mut Value, step: &Value) -> Result<(), String> {
    let path = step["path"].as_str().unwrap_or_default();
    let (parent, last) = path.rsplit_once('/').ok_or("a path begins with a slash")?;
    let last = last.replace("~1", "/").replace("~0", "~");
    let there: Option<&mut Map<String, Value>> = object.pointer_mut(parent).and_then(Value::as_object_mut);
    let there = there.ok_or_else(|| format!("{path} does not exist"))?;
    match step["op"].as_str() {
        Some("test") if there.get(&last) == Some(&step["value"]) => Ok(()),
        Some("test") => Err(format!("testing value {path} failed")),
        Some("remove") => there.remove(&last).map(drop).ok_or_else(|| format!("{path} does not exist")),
        other => Err(format!("{other:?} is not a supported step")),
    }
}

/// Makes `manager` the owner of the labels and annotations of a merge patch in `managedFields`. Earlier owners lose
/// them.
pub(super) fn written(object: &mut Value, change: &Value, manager: &str) {
    for (part, field) in [("labels", "f:labels"), ("annotations", "f:annotations")] {
        let keys: Vec<String> =
            change["metadata"][part].as_object().into_iter().flatten().map(|(key, _)| key.clone()).collect();
        for key in keys {
            let name = format!("f:{key}");
            let fields = &mut object["metadata"]["managedFields"];
            if !fields.is_array() {
                *fields = json!([]);
            }
            let entries = fields.as_array_mut().expect("it was just made an array");
            for entry in entries.iter_mut() {
                if let Some(owned) = entry["fieldsV1"]["f:metadata"][field].as_object_mut() {
                    owned.remove(&name);
                }
            }
            if change["metadata"][part][&key].is_null() {
                continue;
            }
            if !entries.iter().any(|entry| entry["manager"] == manager) {
                entries.push(json!({"manager": manager, "operation": "Update", "fieldsV1": {}}));
            }
            let own = entries.iter_mut().find(|entry| entry["manager"] == manager).expect("an entry of this manager");
            own["fieldsV1"]["f:metadata"][field][name] = json!({});
        }
    }
}
