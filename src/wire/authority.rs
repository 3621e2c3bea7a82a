//! The extenders' certificate authority as the API server stores it: a Secret with the keys, and a ConfigMap with the
//! certificates that agents trust.
//!
//! ```text
//!   Secret     data: ca.crt, ca.key, made, next.crt, next.key, next.made, previous.crt      (base64)
//!   ConfigMap  data: ca.crt      all certificates, PEM
//! ```

use crate::decode_error::DecodeError;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use model::authority::{AuthoritySet, CertificateAuthority};
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;

const SECRET: &str = "Secret";
const CONFIG_MAP: &str = "ConfigMap";
/// The key of the bundle in the ConfigMap.
const BUNDLE: &str = "ca.crt";
/// Maximum size of a value that is read, in bytes: a certificate has 1 KiB.
const MAX_VALUE: usize = 64 << 10;

/// An object and its content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredObject<T> {
    /// The object's resource version.
    pub version: Arc<str>,
    /// The object's content; `None` if it is empty, as a chart makes it.
    pub content: Option<T>,
}

#[derive(Deserialize)]
struct Object {
    metadata: Metadata,
    #[serde(default)]
    data: Option<BTreeMap<String, String>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Metadata {
    resource_version: String,
}

fn object(kind: &'static str, json: &[u8]) -> Result<(Arc<str>, BTreeMap<String, String>), DecodeError> {
    let Object { metadata, data } =
        // serde's messages may quote the text, and a Secret has keys.
        serde_json::from_slice(json).map_err(|_| DecodeError::new(kind, 0, "is not the JSON that is expected"))?;
    Ok((metadata.resource_version.into(), data.unwrap_or_default()))
}

/// Reads the Secret.
///
/// # Errors
/// [`DecodeError`], even if only a part of the authority is missing. It quotes nothing of the Secret.
pub fn decode_secret(json: &[u8]) -> Result<StoredObject<AuthoritySet>, DecodeError> {
    let (version, data) = object(SECRET, json)?;
    let text = |key: &str| -> Result<Option<String>, DecodeError> {
        let Some(text) = data.get(key).filter(|text| !text.is_empty()) else { return Ok(None) };
        if text.len() > MAX_VALUE {
            return Err(DecodeError::too_long(SECRET, text.len(), MAX_VALUE));
        }
        let bytes = STANDARD.decode(text).ok().and_then(|bytes| String::from_utf8(bytes).ok());
        bytes.map(Some).ok_or_else(|| DecodeError::new(SECRET, 0, format!("has a value {key} that is not base64")))
    };
    let authority = |keys: [&str; 3]| -> Result<Option<CertificateAuthority>, DecodeError> {
        let [certificate, key, made] = keys;
        match (text(certificate)?, text(key)?, text(made)?) {
            (None, None, None) => Ok(None),
            (Some(certificate), Some(key), Some(made)) => {
                let made = made.trim().parse();
                let made = made.map_err(|_| DecodeError::new(SECRET, 0, "has a time that is not a number"))?;
                Ok(Some(CertificateAuthority { certificate: certificate.into(), key: key.into(), made }))
            }
            _ => Err(DecodeError::new(SECRET, 0, format!("has only a part of {certificate}, {key} and its time"))),
        }
    };
    let (current, next) = (authority(["ca.crt", "ca.key", "made"])?, authority(["next.crt", "next.key", "next.made"])?);
    let previous = text("previous.crt")?.map(Arc::from);
    let content = current.map(|current| AuthoritySet { current, next, previous });
    Ok(StoredObject { version, content })
}

/// Reads the ConfigMap: the certificates that agents trust.
///
/// # Errors
/// [`DecodeError`].
pub fn decode_bundle(json: &[u8]) -> Result<StoredObject<String>, DecodeError> {
    let (version, mut data) = object(CONFIG_MAP, json)?;
    let content = data.remove(BUNDLE).filter(|bundle| !bundle.is_empty());
    Ok(StoredObject { version, content })
}

/// Writes the Secret; `version` is the version of the Secret that it replaces.
#[must_use]
pub fn encode_secret((namespace, name): (&str, &str), version: Option<&str>, set: &AuthoritySet) -> Value {
    let AuthoritySet { current, next, previous } = set;
    let mut data = BTreeMap::new();
    let mut put = |key: &'static str, text: &str| data.insert(key, STANDARD.encode(text));
    put("ca.crt", &current.certificate);
    put("ca.key", &current.key);
    put("made", &current.made.to_string());
    if let Some(next) = next {
        put("next.crt", &next.certificate);
        put("next.key", &next.key);
        put("next.made", &next.made.to_string());
    }
    if let Some(previous) = previous {
        put("previous.crt", previous);
    }
    json!({
        "apiVersion": "v1", "kind": SECRET, "metadata": metadata((namespace, name), version), "type": "Opaque", "data": data,
    })
}

/// Writes the ConfigMap; `version` is the version of the ConfigMap that it replaces.
#[must_use]
pub fn encode_bundle((namespace, name): (&str, &str), version: Option<&str>, bundle: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": CONFIG_MAP, "metadata": metadata((namespace, name), version), "data": { BUNDLE: bundle },
    })
}

fn metadata((namespace, name): (&str, &str), version: Option<&str>) -> Value {
    match version {
        Some(version) => json!({ "namespace": namespace, "name": name, "resourceVersion": version }),
        None => json!({ "namespace": namespace, "name": name }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn of(made: u64) -> CertificateAuthority {
        CertificateAuthority {
            certificate: format!("cert {made}\n").into(),
            key: format!("hidden {made}").into(),
            made,
        }
    }

    #[test]
    fn a_set_comes_back_and_an_empty_object_of_a_chart_is_empty() {
        let mut set = AuthoritySet::of(of(7));
        for step in 0..3 {
            let text = encode_secret(("gpu", "ca"), Some("4"), &set).to_string();
            let read = decode_secret(text.as_bytes()).unwrap();
            assert_eq!((&*read.version, read.content.as_ref()), ("4", Some(&set)), "{step}");
            if step == 0 { set.next = Some(of(8)) } else { set.previous = Some("old".into()) }
        }
        assert_eq!(set.bundle(), "cert 7\ncert 8\nold\n");
        assert!(!format!("{set:?}").contains("hidden"));
        let empty = br#"{"metadata":{"resourceVersion":"1"},"type":"Opaque"}"#;
        assert_eq!((decode_secret(empty).unwrap().content, decode_bundle(empty).unwrap().content), (None, None));
        let bundle = encode_bundle(("gpu", "ca"), Some("2"), &set.bundle()).to_string();
        let read = decode_bundle(bundle.as_bytes()).unwrap();
        assert_eq!((&*read.version, read.content), ("2", Some(set.bundle())));
    }

    #[test]
    fn a_part_of_an_authority_is_an_error_that_quotes_nothing() {
        let mut part = encode_secret(("gpu", "ca"), Some("4"), &AuthoritySet::of(of(7)));
        part["data"]["ca.crt"] = Value::Null;
        part["data"].as_object_mut().unwrap().remove("ca.crt");
        let mut text = encode_secret(("gpu", "ca"), Some("4"), &AuthoritySet::of(of(7)));
        text["data"]["ca.key"] = "hidden!".into();
        let mut time = encode_secret(("gpu", "ca"), Some("4"), &AuthoritySet::of(of(7)));
        time["data"]["made"] = STANDARD.encode("hidden").into();
        for bad in [part, text, time, json!("hidden"), json!({ "metadata": {} })] {
            let why = decode_secret(bad.to_string().as_bytes()).unwrap_err().to_string();
            assert!(!why.contains("hidden"), "{why}");
        }
    }

    proptest! {
        #[test]
        fn no_bytes_panic(bytes in prop::collection::vec(any::<u8>(), 0..200), value in "\\PC{0,40}") {
            let _ = (decode_secret(&bytes), decode_bundle(&bytes));
            let text = json!({ "metadata": { "resourceVersion": "1" }, "data": { "ca.crt": value, "made": value } });
            let _ = decode_secret(text.to_string().as_bytes());
        }
    }
}
