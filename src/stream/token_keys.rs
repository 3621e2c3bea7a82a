//! Checks the tokens of callers: the signature (with the cluster's keys), the issuer, the audience and the time.
//!
//! What must never happen here: a token is accepted before its signature is checked; a refusal quotes a token.

use ring::signature::{ECDSA_P256_SHA256_FIXED, RSA_PKCS1_2048_8192_SHA256, RsaPublicKeyComponents, UnparsedPublicKey};
use std::sync::Arc;
use wire::token::{NamedTokenKey, TokenAlgorithm, TokenClaims, TokenKey, UncheckedToken};

/// Seconds by which the clocks of two machines may differ.
const SKEW: u64 = 60;

/// Why a token is not accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TokenRefusal {
    /// The token cannot be read.
    #[error("the token cannot be read")]
    Unreadable,
    /// The cluster has no key with the name that the token gives.
    #[error("the token names a key that the cluster does not have")]
    UnknownKey,
    /// The signature is wrong.
    #[error("the token is not signed by this cluster")]
    BadSignature,
    /// The token was issued by another cluster.
    #[error("the token was issued by another cluster")]
    OtherIssuer,
    /// The token is for another audience.
    #[error("the token is for another audience")]
    OtherAudience,
    /// The token has expired.
    #[error("the token has expired")]
    Expired,
    /// The token is not valid yet.
    #[error("the token is not valid yet")]
    NotYet,
}

impl TokenRefusal {
    /// A stable short code.
    #[must_use]
    pub fn code(self) -> &'static str {
        match self {
            TokenRefusal::Unreadable => "unreadable",
            TokenRefusal::UnknownKey => "unknown_key",
            TokenRefusal::BadSignature => "bad_signature",
            TokenRefusal::OtherIssuer => "other_issuer",
            TokenRefusal::OtherAudience => "other_audience",
            TokenRefusal::Expired => "expired",
            TokenRefusal::NotYet => "not_yet",
        }
    }
}

/// The cluster's keys and its issuer.
#[derive(Clone, Debug, Default)]
pub struct TokenKeys {
    /// The issuer; empty before it is known.
    pub issuer: Arc<str>,
    /// The keys, each with its name.
    pub keys: Vec<NamedTokenKey>,
}

impl TokenKeys {
    /// Checks a token for this audience; `now` is Unix seconds.
    ///
    /// # Errors
    /// [`TokenRefusal`]. After [`TokenRefusal::UnknownKey`] the caller should fetch the keys again, because the cluster
    /// may have a new key.
    pub fn check(&self, token: UncheckedToken, audience: &str, now: u64) -> Result<TokenClaims, TokenRefusal> {
        let mut named = self.keys.iter().filter(|(name, _)| token.key.is_none() || *name == token.key).peekable();
        if named.peek().is_none() {
            return Err(TokenRefusal::UnknownKey);
        }
        if !named.any(|(_, key)| signed_by(key, &token)) {
            return Err(TokenRefusal::BadSignature);
        }
        let claims = token.claims;
        if claims.issuer != self.issuer {
            return Err(TokenRefusal::OtherIssuer);
        }
        if !claims.audiences.iter().any(|one| **one == *audience) {
            return Err(TokenRefusal::OtherAudience);
        }
        if now >= ends_at(&claims) {
            return Err(TokenRefusal::Expired);
        }
        if now.saturating_add(SKEW) < claims.not_before {
            return Err(TokenRefusal::NotYet);
        }
        Ok(claims)
    }
}

/// When a token stops being accepted, in Unix seconds: its expiry plus the time by which clocks may differ.
#[must_use]
pub fn ends_at(claims: &TokenClaims) -> u64 {
    claims.expires.saturating_add(SKEW)
}

fn signed_by(key: &TokenKey, token: &UncheckedToken) -> bool {
    match (key, token.algorithm) {
        (TokenKey::Rsa { n, e }, TokenAlgorithm::Rs256) => {
            let key = RsaPublicKeyComponents { n, e };
            key.verify(&RSA_PKCS1_2048_8192_SHA256, &token.signed, &token.signature).is_ok()
        }
        (TokenKey::P256(point), TokenAlgorithm::Es256) => {
            let key = UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, point);
            key.verify(&token.signed, &token.signature).is_ok()
        }
        // A key is never used with an algorithm other than its own.
        (TokenKey::Rsa { .. }, TokenAlgorithm::Es256) | (TokenKey::P256(_), TokenAlgorithm::Rs256) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ring::rand::SystemRandom;
    use ring::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair};

    /// A token and its key, made with OpenSSL. Its issuer is `https://cluster`, and it is valid from second 1000 to
    /// second 2000.
    const MODULUS: &str = "knRyX7Zz3mwk9iSAkOTgLBgX_WPT_sHeqt22sDYLvPLX6ML3B79Z4DTKEQaOOnu7hDkZuB8jJpWEgEyOLru9Rlf1wSUfiX92npRh\
         Eix7__0bBwjX4piZ8yty1imjW0losvV_Fw-fY-2rqopENNwcXOtOCxeqecVGm32h6xD1p-HeWaaR4iv6mPuM-e5MXyyJrnT9R-9-\
         6ifAK4Z1GNfB6SA1todUM9DgRSLF8XzsMNyeR6K2WFXaqrP0fF0zSLXuJp__AVtRw3axuIyoiO4plvtZbHYeL0qB4d7UREKGkMn_\
         TGs_FzyDO-LMuWj7qSUoxAJMVI6FIdIv4CSrsNmpPQ";
    const TOKEN: &str = "eyJhbGciOiJSUzI1NiIsImtpZCI6Im9uZSJ9.eyJpc3MiOiJodHRwczovL2NsdXN0ZXIiLCJhdWQiOlsiZ3B1LXN0ZXdhcmQiXSw\
         iZXhwIjoyMDAwLCJuYmYiOjEwMDAsInN1YiI6InN5c3RlbTpzZXJ2aWNlYWNjb3VudDpncHU6YWdlbnQiLCJrdWJlcm5ldGVzLml\
         vIjp7Im5vZGUiOnsibmFtZSI6Im4xIiwidWlkIjoidTEifSwicG9kIjp7Im5hbWUiOiJwIiwidWlkIjoiMGY1YjlhM2UtMGQyYy0\
         0YjdmLTlhNTEtMmYxZjZhMWY4ZDExIn19fQ.XN5Jb2IwfLPugomvussPg2vzfiyDvX-\
         lZXAfmJRDq_Yvy5DC0NHwVBbO3T9cAfxAkaY40AQm9Cison443iYdcIVAOxvpuHqEqh_nfg6ass5FJl3mvg0l7m32kLxq58EEL-\
         WpgH4X1WmgtJ9NaQhdG43-7hM5T4NVRWUpep7oK0Qs0ffqUKRf0TpXq1EGSr0NvZh149MaSMRPUj4zMoOCvuByqYqbXIKR-XSRHY\
         dNPBNleF2a5mBj0CMfRqocgdQIHWMiJNKP-\
         a8tcQaEcDXq9A4iLpn9SulvV0Ste762QdCarMFiyMzQJ3b9NwG2a0OVnjWcgfQVj2GNamBsGLE8-A";

    fn cluster() -> TokenKeys {
        let set = format!(r#"{{"keys":[{{"kty":"RSA","kid":"one","n":"{MODULUS}","e":"AQAB"}}]}}"#);
        TokenKeys { issuer: "https://cluster".into(), keys: wire::token::decode_keys(set.as_bytes()).unwrap() }
    }

    fn token() -> UncheckedToken {
        wire::token::decode(TOKEN).unwrap()
    }

    #[test]
    fn a_token_of_this_cluster_for_this_audience_is_accepted_in_its_time() {
        let claims = cluster().check(token(), "gpu-steward", 1500).unwrap();
        assert_eq!(&*claims.subject, "system:serviceaccount:gpu:agent");
        let times = [(939, TokenRefusal::NotYet), (2060, TokenRefusal::Expired)];
        for (now, why) in times {
            assert_eq!(cluster().check(token(), "gpu-steward", now), Err(why), "{now}");
        }
        for now in [940, 2059] {
            assert!(cluster().check(token(), "gpu-steward", now).is_ok(), "{now}: clocks differ");
        }
        assert_eq!(cluster().check(token(), "api", 1500), Err(TokenRefusal::OtherAudience));
        let other = TokenKeys { issuer: "https://other".into(), ..cluster() };
        assert_eq!(other.check(token(), "gpu-steward", 1500), Err(TokenRefusal::OtherIssuer));
    }

    #[test]
    fn a_changed_token_and_a_key_of_another_cluster_are_refused() {
        let mut changed = token();
        changed.signed[40] ^= 1;
        assert_eq!(cluster().check(changed, "gpu-steward", 1500), Err(TokenRefusal::BadSignature));
        let mut unsigned = token();
        unsigned.signature.clear();
        assert_eq!(cluster().check(unsigned, "gpu-steward", 1500), Err(TokenRefusal::BadSignature));
        let other = TokenKeys { keys: vec![(Some("two".into()), cluster().keys[0].1.clone())], ..cluster() };
        assert_eq!(other.check(token(), "gpu-steward", 1500), Err(TokenRefusal::UnknownKey));
        let mut nameless = token();
        nameless.key = None;
        assert!(other.check(nameless, "gpu-steward", 1500).is_ok(), "the only key");
        let mut confused = token();
        confused.algorithm = TokenAlgorithm::Es256;
        assert_eq!(cluster().check(confused, "gpu-steward", 1500), Err(TokenRefusal::BadSignature));
        assert_eq!(TokenKeys::default().check(token(), "gpu-steward", 1500), Err(TokenRefusal::UnknownKey));
    }

    #[test]
    fn a_token_that_is_signed_with_ecdsa_is_accepted() {
        let random = SystemRandom::new();
        let pair = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &random).unwrap();
        let pair = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, pair.as_ref(), &random).unwrap();
        let mut signed = token();
        signed.algorithm = TokenAlgorithm::Es256;
        signed.signature = pair.sign(&random, &signed.signed).unwrap().as_ref().to_vec();
        let key = TokenKey::P256(pair.public_key().as_ref().to_vec());
        let keys = TokenKeys { keys: vec![(Some("one".into()), key)], ..cluster() };
        assert!(keys.check(signed, "gpu-steward", 1500).is_ok());
    }
}
