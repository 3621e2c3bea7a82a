//! Tokens of service accounts, as an API server signs them, and the keys that it publishes.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::rand::SystemRandom;
use ring::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair};
use serde_json::{Value, json};
use std::time::{SystemTime, UNIX_EPOCH};

/// The issuer of every token.
pub const ISSUER: &str = "https://lab.cluster";

/// Signs tokens with its own key.
#[derive(Debug)]
pub struct TokenMint {
    pair: EcdsaKeyPair,
    random: SystemRandom,
}

impl TokenMint {
    /// A new key.
    ///
    /// # Panics
    /// If there are no random numbers.
    #[must_use]
    pub fn new() -> TokenMint {
        let random = SystemRandom::new();
        let made = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &random).expect("a key");
        let pair = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, made.as_ref(), &random);
        TokenMint { pair: pair.expect("a key"), random }
    }

    /// The published keys (JWKS).
    #[must_use]
    pub fn keys(&self) -> Value {
        let point = self.pair.public_key().as_ref();
        let part = |from: usize| URL_SAFE_NO_PAD.encode(&point[from..from + 32]);
        json!({ "keys": [
            { "use": "sig", "kty": "EC", "crv": "P-256", "alg": "ES256", "kid": "lab", "x": part(1), "y": part(33) },
        ] })
    }

    /// A token with these claims.
    ///
    /// # Panics
    /// If it cannot be signed.
    #[must_use]
    pub fn sign(&self, claims: &Value) -> String {
        let encode = |part: &Value| URL_SAFE_NO_PAD.encode(part.to_string());
        let signed = format!("{}.{}", encode(&json!({ "alg": "ES256", "kid": "lab" })), encode(claims));
        let signature = self.pair.sign(&self.random, signed.as_bytes()).expect("a signature");
        format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature.as_ref()))
    }
}

impl Default for TokenMint {
    fn default() -> TokenMint {
        TokenMint::new()
    }
}

/// The claims of a projected token: of this account (`NAMESPACE:NAME`), bound to this pod (name and UID) on this Node (name
/// and UID), valid for an hour.
///
/// # Panics
/// If the clock is before 1970.
#[must_use]
pub fn claims(account: &str, audience: &str, node: (&str, &str), pod: (&str, &str)) -> Value {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("a clock").as_secs();
    json!({
        "iss": ISSUER, "aud": [audience], "iat": now, "nbf": now, "exp": now + 3600,
        "sub": format!("system:serviceaccount:{account}"),
        "kubernetes.io": {
            "namespace": account.split(':').next(), "node": { "name": node.0, "uid": node.1 },
            "pod": { "name": pod.0, "uid": pod.1 },
        },
    })
}
