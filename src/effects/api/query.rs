//! The query of a request: `?namespace=`, `?pod=`, `?gpu=`.
//!
//! What must never happen here: an unknown key is ignored. A misspelt filter would then return the whole list.

/// The filter of a query.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ApiFilter {
    /// Only this namespace.
    pub namespace: Option<String>,
    /// Only pods of this name.
    pub pod: Option<String>,
    /// Only this GPU: UUID or index.
    pub gpu: Option<String>,
}

/// The error of a query that cannot be answered; its text is sent to the caller.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadQuery {
    /// There is no such key.
    #[error("query key {0:?} is not known: use namespace, pod or gpu")]
    UnknownKey(String),
    /// A `%` that is not followed by two hexadecimal digits, or bytes that are not UTF-8.
    #[error("value of query key {0:?} is not percent-encoded UTF-8")]
    BadEncoding(String),
}

impl ApiFilter {
    /// Parses the text after `?`.
    ///
    /// # Errors
    /// [`BadQuery`], with a text for the caller.
    pub fn parse(query: &str) -> Result<ApiFilter, BadQuery> {
        let mut filter = ApiFilter::default();
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            let place = match key {
                "namespace" => &mut filter.namespace,
                "pod" => &mut filter.pod,
                "gpu" => &mut filter.gpu,
                other => return Err(BadQuery::UnknownKey(other.chars().take(80).collect())),
            };
            *place = Some(decoded(value).ok_or_else(|| BadQuery::BadEncoding(key.to_owned()))?);
        }
        Ok(filter)
    }
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
    fn queries_are_decoded_and_misspelt_keys_are_reported() {
        let filter = ApiFilter::parse("namespace=ml%2Fx&pod=a+b&gpu=3").unwrap();
        assert_eq!(filter.namespace.as_deref(), Some("ml/x"));
        assert_eq!(filter.pod.as_deref(), Some("a b"));
        assert_eq!(filter.gpu.as_deref(), Some("3"));
        assert_eq!(ApiFilter::parse("").unwrap(), ApiFilter::default());
        for (query, sentence) in [
            ("pods=a", "query key \"pods\" is not known: use namespace, pod or gpu"),
            ("pod=%f", "value of query key \"pod\" is not percent-encoded UTF-8"),
            ("pod=%ff", "value of query key \"pod\" is not percent-encoded UTF-8"),
        ] {
            assert_eq!(ApiFilter::parse(query).unwrap_err().to_string(), sentence);
        }
    }

    proptest::proptest! {
        #[test]
        fn no_query_panics(query in ".*") {
            let _ = ApiFilter::parse(&query);
        }
    }
}
