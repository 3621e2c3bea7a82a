//! The query of a request: `?key=value&key=value`, percent-encoded.
//!
//! What must never happen here: a key is ignored. A misspelt filter would then return the whole list.

use std::fmt::Write;

/// Maximum number of characters of a key in an error.
const SHOWN: usize = 80;

/// The error of a query that cannot be answered; its text is sent to the caller.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadQuery {
    /// There is no such key.
    #[error("query key {key:?} is not known: {}", allowed(known))]
    UnknownKey {
        /// The key.
        key: String,
        /// The keys of the path.
        known: Vec<&'static str>,
    },
    /// The key appears more than once.
    #[error("query key {0:?} appears twice: give it once")]
    Twice(&'static str),
    /// A `%` that is not followed by two hexadecimal digits, or bytes that are not UTF-8.
    #[error("value of query key {0:?} is not percent-encoded UTF-8")]
    BadEncoding(&'static str),
}

fn allowed(known: &[&'static str]) -> String {
    let Some((last, first)) = known.split_last() else { return "this path has none".to_owned() };
    let mut text = "use ".to_owned();
    for (number, key) in first.iter().enumerate() {
        // Writing into a String does not fail.
        let _ = write!(text, "{}{key}", if number == 0 { "" } else { ", " });
    }
    if !first.is_empty() {
        text.push_str(" or ");
    }
    text + last
}

/// The values of these keys in the text after `?`; `None` for a key that it does not have.
///
/// # Errors
/// [`BadQuery`], with a text for the caller.
pub fn values<const N: usize>(query: &str, keys: [&'static str; N]) -> Result<[Option<String>; N], BadQuery> {
    let mut values = [const { None }; N];
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        let Some((key, place)) = keys.into_iter().zip(&mut values).find(|(known, _)| *known == key) else {
            return Err(BadQuery::UnknownKey { key: key.chars().take(SHOWN).collect(), known: keys.into() });
        };
        if place.replace(decoded(value).ok_or(BadQuery::BadEncoding(key))?).is_some() {
            return Err(BadQuery::Twice(key));
        }
    }
    Ok(values)
}

/// Percent-decoded text; `+` is a space.
fn decoded(text: &str) -> Option<String> {
    let mut bytes = text.bytes();
    let mut out = Vec::with_capacity(text.len());
    while let Some(byte) = bytes.next() {
        out.push(match byte {
            b'+' => b' ',
            b'%' => {
                let high = char::from(bytes.next()?).to_digit(16)?;
                let low = char::from(bytes.next()?).to_digit(16)?;
                u8::try_from(high * 16 + low).ok()?
            }
            other => other,
        });
    }
    String::from_utf8(out).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_decoded_and_wrong_keys_are_reported() {
        let three = |query| values(query, ["namespace", "pod", "gpu"]);
        let [namespace, pod, gpu] = three("namespace=ml%2Fx&pod=a+b&gpu=3").unwrap();
        assert_eq!((namespace.as_deref(), pod.as_deref(), gpu.as_deref()), (Some("ml/x"), Some("a b"), Some("3")));
        assert_eq!(three("").unwrap(), [None, None, None]);
        for (query, sentence) in [
            ("pods=a", "query key \"pods\" is not known: use namespace, pod or gpu"),
            ("pod=a&pod=b", "query key \"pod\" appears twice: give it once"),
            ("pod=%f", "value of query key \"pod\" is not percent-encoded UTF-8"),
            ("pod=%ff", "value of query key \"pod\" is not percent-encoded UTF-8"),
        ] {
            assert_eq!(three(query).unwrap_err().to_string(), sentence);
        }
        let refused = values("pod=a", []).unwrap_err();
        assert_eq!(refused.to_string(), "query key \"pod\" is not known: this path has none");
        assert_eq!(values("gpu=1", ["pod"]).unwrap_err().to_string(), "query key \"gpu\" is not known: use pod");
    }

    proptest::proptest! {
        #[test]
        fn no_query_panics(query in ".*") {
            let _ = values(&query, ["namespace", "pod", "gpu"]);
        }

        #[test]
        fn no_query_near_a_right_one_panics(query in "((pod|gpu|x)?=?[a-z0-9%+/]{0,8}&?){0,4}") {
            if let Ok(values) = values(&query, ["pod", "gpu"]) {
                proptest::prop_assert!(values.into_iter().flatten().map(|value| value.len()).sum::<usize>() <= query.len());
            }
        }
    }
}
