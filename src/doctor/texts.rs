//! The texts of a JSON document.

use serde_json::Value;

/// Changes each text of a document. `how` is called with the field of the text; a text in a list has the field of the list.
pub(crate) fn change(document: &mut Value, field: &str, how: &impl Fn(&str, &mut String)) {
    match document {
        Value::String(text) => how(field, text),
        Value::Array(items) => items.iter_mut().for_each(|item| change(item, field, how)),
        Value::Object(fields) => fields.iter_mut().for_each(|(field, value)| change(value, field, how)),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn each_text_is_changed_with_its_field() {
        let mut document = json!({ "a": ["x", { "b": "y", "n": 1 }], "c": null });
        change(&mut document, "", &|field: &str, text: &mut String| text.push_str(field));
        assert_eq!(document, json!({ "a": ["xa", { "b": "yb", "n": 1 }], "c": null }));
    }
}
