//! Tokens of service accounts (JWT), and the public keys with which the API server signs them (JWKS).
//!
//! ```text
//!   base64url(header) . base64url(claims) . base64url(signature)     header {"alg":"RS256","kid":"…"}
//!   claims {"iss":"https://kubernetes.default.svc","aud":["gpu-steward"],"exp":1795256507,"nbf":…,
//!           "sub":"system:serviceaccount:gpu:agent",
//!           "kubernetes.io":{"namespace":"gpu","node":{"name":"n1","uid":"…"},"pod":{"name":"agent-x","uid":"…"}}}
//!   /openid/v1/jwks                       {"keys":[{"kid":"…","kty":"RSA","alg":"RS256","n":"…","e":"AQAB"}, …]}
//!   /.well-known/openid-configuration     {"issuer":"https://kubernetes.default.svc", …}
//! ```
//!
//! What must never happen here: trust in a decoded token. Until its signature is checked, its sender may have written
//! anything.

use crate::decode_error::DecodeError;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use model::id::{NodeName, ObjectUid, PodUid};
use serde::Deserialize;
use serde_json::Value;
use std::sync::Arc;

/// Maximum bytes of a token that is read: the token of a service account has 1 to 2 KiB.
pub const MAX_TOKEN: usize = 8 << 10;
/// Maximum number of keys that are read. An API server has one key, or two during a rotation, and each API server of a
/// cluster may have its own.
pub const MAX_KEYS: usize = 32;
/// Maximum number of audiences of a token. A projected token has one audience.
const MAX_AUDIENCES: usize = 16;

const TOKEN: &str = "token";
const KEYS: &str = "keys of tokens";
const DISCOVERY: &str = "OpenID configuration";

/// How a token is signed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenAlgorithm {
    /// RSA with PKCS #1 v1.5 and SHA-256.
    Rs256,
    /// ECDSA on P-256 with SHA-256.
    Es256,
}

/// A token before its signature is checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UncheckedToken {
    /// The algorithm in the token's header.
    pub algorithm: TokenAlgorithm,
    /// The key id in the token's header, if the header has a key id.
    pub key: Option<Arc<str>>,
    /// The signed bytes.
    pub signed: Vec<u8>,
    /// The signature.
    pub signature: Vec<u8>,
    /// The token's claims.
    pub claims: TokenClaims,
}

/// The claims of a token. The times are Unix seconds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenClaims {
    /// The issuer.
    pub issuer: Arc<str>,
    /// The audiences that may accept the token.
    pub audiences: Vec<Arc<str>>,
    /// The time from which the token is no longer valid.
    pub expires: u64,
    /// The time before which the token is not valid yet.
    pub not_before: u64,
    /// The account: `system:serviceaccount:NAMESPACE:NAME`.
    pub subject: Arc<str>,
    /// The Node of the pod that the token is bound to, or the Node that the token itself is bound to.
    pub node: Option<(NodeName, ObjectUid)>,
    /// The UID of the pod that the token is bound to.
    pub pod: Option<PodUid>,
}

/// A public key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TokenKey {
    /// Modulus and exponent, big-endian.
    Rsa {
        /// The modulus.
        n: Vec<u8>,
        /// The exponent.
        e: Vec<u8>,
    },
    /// A point on P-256, uncompressed: 4, x, y.
    P256(Vec<u8>),
}

#[derive(Deserialize)]
struct Header {
    alg: String,
    #[serde(default)]
    kid: Option<String>,
}

#[derive(Deserialize)]
struct Payload {
    iss: String,
    aud: Value,
    exp: u64,
    #[serde(default)]
    nbf: u64,
    sub: String,
    #[serde(default, rename = "kubernetes.io")]
    kubernetes: Option<Kubernetes>,
}

#[derive(Deserialize)]
struct Kubernetes {
    #[serde(default)]
    node: Option<Named>,
    #[serde(default)]
    pod: Option<Named>,
}

#[derive(Deserialize)]
struct Named {
    name: String,
    uid: String,
}

#[derive(Deserialize)]
struct KeySet {
    keys: Vec<Key>,
}

#[derive(Deserialize)]
struct Key {
    #[serde(default)]
    kid: Option<String>,
    kty: String,
    #[serde(default)]
    crv: Option<String>,
    #[serde(default)]
    n: Option<String>,
    #[serde(default)]
    e: Option<String>,
    #[serde(default)]
    x: Option<String>,
    #[serde(default)]
    y: Option<String>,
}

#[derive(Deserialize)]
struct Discovery {
    issuer: String,
}

fn fault(at: usize, what: impl Into<String>) -> DecodeError {
    DecodeError::new(TOKEN, at, what)
}

fn base64(key: &'static str, at: usize, text: &str) -> Result<Vec<u8>, DecodeError> {
    // Some libraries add padding.
    let text = text.trim_end_matches('=');
    URL_SAFE_NO_PAD.decode(text).map_err(|why| DecodeError::new(key, at, format!("is not base64: {why}")))
}

/// Reads a token.
///
/// # Errors
/// [`DecodeError`]. It does not quote the token.
pub fn decode(text: &str) -> Result<UncheckedToken, DecodeError> {
    if text.len() > MAX_TOKEN {
        return Err(DecodeError::too_long(TOKEN, text.len(), MAX_TOKEN));
    }
    let mut parts = text.split('.');
    let (Some(header), Some(payload), Some(signature), None) = (parts.next(), parts.next(), parts.next(), parts.next())
    else {
        return Err(fault(0, "does not have three parts"));
    };
    let (payload_at, signature_at) = (header.len() + 1, header.len() + payload.len() + 2);
    let Header { alg, kid } = json(0, &base64(TOKEN, 0, header)?)?;
    let algorithm = match &*alg {
        "RS256" => TokenAlgorithm::Rs256,
        "ES256" => TokenAlgorithm::Es256,
        _ => return Err(fault(0, "is signed with an algorithm that is not used here")),
    };
    let claims = claims(payload_at, &base64(TOKEN, payload_at, payload)?)?;
    let signature = base64(TOKEN, signature_at, signature)?;
    let signed = text.as_bytes().get(..signature_at - 1).unwrap_or_default().to_vec();
    Ok(UncheckedToken { algorithm, key: kid.map(Arc::from), signed, signature, claims })
}

fn json<T: serde::de::DeserializeOwned>(at: usize, bytes: &[u8]) -> Result<T, DecodeError> {
    // serde's messages may quote unexpected input, and a token is a secret.
    serde_json::from_slice(bytes).map_err(|_| fault(at, "is not the JSON that is expected"))
}

fn claims(at: usize, bytes: &[u8]) -> Result<TokenClaims, DecodeError> {
    let Payload { iss, aud, exp, nbf, sub, kubernetes } = json(at, bytes)?;
    let audiences: Vec<Arc<str>> = match aud {
        Value::String(audience) => vec![audience.into()],
        Value::Array(list) if list.len() <= MAX_AUDIENCES => {
            list.into_iter().filter_map(|one| one.as_str().map(Arc::from)).collect()
        }
        _ => return Err(fault(at, "has no audience that can be read")),
    };
    let Kubernetes { node, pod } = kubernetes.unwrap_or(Kubernetes { node: None, pod: None });
    let node = node.map(|Named { name, uid }| Some((NodeName::parse(&name).ok()?, ObjectUid::parse(&uid).ok()?)));
    let pod = pod.map(|Named { uid, .. }| PodUid::parse(&uid).ok());
    if node == Some(None) || pod == Some(None) {
        return Err(fault(at, "names an invalid node or pod"));
    }
    Ok(TokenClaims {
        issuer: iss.into(),
        audiences,
        expires: exp,
        not_before: nbf,
        subject: sub.into(),
        node: node.flatten(),
        pod: pod.flatten(),
    })
}

/// A key with the name (`kid`) by which tokens refer to it.
pub type NamedTokenKey = (Option<Arc<str>>, TokenKey);

/// Reads the keys of an API server, each with its name. Keys of other kinds are left out.
///
/// # Errors
/// [`DecodeError`].
pub fn decode_keys(bytes: &[u8]) -> Result<Vec<NamedTokenKey>, DecodeError> {
    let KeySet { keys } = serde_json::from_slice(bytes).map_err(|error| DecodeError::json(KEYS, bytes, &error))?;
    if keys.len() > MAX_KEYS {
        return Err(DecodeError::too_many(KEYS, 0, "keys", MAX_KEYS));
    }
    let part = |text: &Option<String>| base64(KEYS, 0, text.as_deref().unwrap_or_default());
    let mut read = Vec::with_capacity(keys.len());
    for key in keys {
        let made = match (&*key.kty, key.crv.as_deref()) {
            ("RSA", _) => TokenKey::Rsa { n: part(&key.n)?, e: part(&key.e)? },
            ("EC", Some("P-256")) => {
                let (x, y) = (part(&key.x)?, part(&key.y)?);
                if (x.len(), y.len()) != (32, 32) {
                    return Err(DecodeError::new(KEYS, 0, "has a point of P-256 whose parts are not 32 bytes long"));
                }
                TokenKey::P256([&[4], &*x, &*y].concat())
            }
            _ => continue,
        };
        read.push((key.kid.map(Arc::from), made));
    }
    Ok(read)
}

/// Reads the issuer of an API server.
///
/// # Errors
/// [`DecodeError`].
pub fn decode_issuer(bytes: &[u8]) -> Result<Arc<str>, DecodeError> {
    let Discovery { issuer } =
        serde_json::from_slice(bytes).map_err(|error| DecodeError::json(DISCOVERY, bytes, &error))?;
    Ok(issuer.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn token(header: &str, payload: &str) -> String {
        format!(
            "{}.{}.{}",
            URL_SAFE_NO_PAD.encode(header),
            URL_SAFE_NO_PAD.encode(payload),
            URL_SAFE_NO_PAD.encode("s")
        )
    }

    const HEADER: &str = r#"{"alg":"RS256","kid":"k1"}"#;

    #[test]
    fn a_projected_token_of_a_pod_is_read() {
        let payload = r#"{"aud":["gpu-steward"],"exp":1795260107,"iat":1795256507,"iss":"https://kubernetes.default.svc",
            "jti":"0","kubernetes.io":{"namespace":"gpu","node":{"name":"n1","uid":"u-n1"},
            "pod":{"name":"agent-x","uid":"0f5b9a3e-0d2c-4b7f-9a51-2f1f6a1f8d11"},
            "serviceaccount":{"name":"agent","uid":"u-a"},"warnafter":1795260114},
            "nbf":1795256507,"sub":"system:serviceaccount:gpu:agent"}"#;
        let text = token(HEADER, payload);
        let read = decode(&text).unwrap();
        assert_eq!(
            (read.algorithm, read.key.as_deref(), &*read.signature),
            (TokenAlgorithm::Rs256, Some("k1"), &b"s"[..])
        );
        assert_eq!(read.signed, text.rsplit_once('.').unwrap().0.as_bytes());
        let claims = read.claims;
        assert_eq!(
            (&*claims.issuer, claims.expires, claims.not_before),
            ("https://kubernetes.default.svc", 1_795_260_107, 1_795_256_507)
        );
        assert_eq!((&*claims.subject, &*claims.audiences[0]), ("system:serviceaccount:gpu:agent", "gpu-steward"));
        let (node, uid) = claims.node.unwrap();
        assert_eq!((node.as_str(), uid.as_str()), ("n1", "u-n1"));
        assert_eq!(claims.pod.unwrap().as_str(), "0f5b9a3e-0d2c-4b7f-9a51-2f1f6a1f8d11");
    }

    #[test]
    fn a_token_without_node_and_pod_and_with_one_audience_is_read() {
        let read = decode(&token(HEADER, r#"{"iss":"i","aud":"a","exp":1,"sub":"s"}"#)).unwrap();
        assert_eq!((read.claims.node, read.claims.pod, read.claims.not_before), (None, None, 0));
        assert_eq!(read.claims.audiences, ["a".into()]);
    }

    #[test]
    fn what_is_no_token_has_a_reason_that_does_not_quote_it() {
        let secret = "hidden";
        for (text, words) in [
            (secret.to_owned(), "three parts"),
            (format!("{secret}.b.c.d"), "three parts"),
            (format!("{secret}!.b.c"), "not base64"),
            (token(r#"{"alg":"none"}"#, "{}"), "algorithm"),
            (token(r#"{"alg":"HS256"}"#, "{}"), "algorithm"),
            (token(HEADER, r#"{"iss":"hidden","exp":-1}"#), "JSON"),
            (token(HEADER, r#"{"iss":"i","aud":7,"exp":1,"sub":"s"}"#), "audience"),
            (
                token(
                    HEADER,
                    r#"{"iss":"i","aud":"a","exp":1,"sub":"s","kubernetes.io":{"pod":{"name":"p","uid":"x"}}}"#,
                ),
                "names an invalid node or pod",
            ),
            ("a".repeat(MAX_TOKEN + 1), "more than the 8192"),
        ] {
            let why = decode(&text).unwrap_err().to_string();
            assert!(why.contains(words) && !why.contains(secret), "{why}");
        }
    }

    #[test]
    fn keys_of_both_kinds_are_read_and_others_left_out() {
        let x = URL_SAFE_NO_PAD.encode([7; 32]);
        let text = format!(
            r#"{{"keys":[{{"use":"sig","kty":"RSA","kid":"k1","alg":"RS256","n":"AQID","e":"AQAB"}},
                {{"kty":"EC","kid":"k2","crv":"P-256","x":"{x}","y":"{x}"}},{{"kty":"OKP","crv":"Ed25519","x":"{x}"}}]}}"#
        );
        let keys = decode_keys(text.as_bytes()).unwrap();
        assert_eq!(keys.len(), 2);
        assert_eq!(keys[0], (Some("k1".into()), TokenKey::Rsa { n: vec![1, 2, 3], e: vec![1, 0, 1] }));
        assert!(matches!(&keys[1].1, TokenKey::P256(point) if point.len() == 65 && point[0] == 4));
        let short = r#"{"keys":[{"kty":"EC","crv":"P-256","x":"AQ","y":"AQ"}]}"#;
        assert!(decode_keys(short.as_bytes()).is_err());
        let many = format!(r#"{{"keys":[{}]}}"#, vec![r#"{"kty":"RSA"}"#; MAX_KEYS + 1].join(","));
        assert!(decode_keys(many.as_bytes()).unwrap_err().to_string().contains("more than 32 keys"));
        assert_eq!(&*decode_issuer(br#"{"issuer":"https://k","jwks_uri":"x"}"#).unwrap(), "https://k");
        assert!(decode_issuer(b"{}").is_err());
    }

    proptest! {
        #[test]
        fn no_text_panics(text in "\\PC{0,80}", bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = decode(&text);
            let _ = decode(&token(HEADER, &text));
            let _ = decode_keys(&bytes);
            let _ = decode_issuer(&bytes);
        }
    }
}
