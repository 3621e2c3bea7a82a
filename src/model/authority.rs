//! The certificate authority of the extenders: a certificate and a key that sign the certificates of their TLS port.

use std::fmt;
use std::sync::Arc;

/// One certificate authority. Its key is a secret.
#[derive(Clone, PartialEq, Eq)]
pub struct CertificateAuthority {
    /// The authority's certificate, PEM.
    pub certificate: Arc<str>,
    /// The authority's key, PEM.
    pub key: Arc<str>,
    /// When the authority was made, in Unix seconds.
    pub made: u64,
}

/// The authorities of one cluster: the authority that signs, and the others that are trusted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuthoritySet {
    /// The authority that signs.
    pub current: CertificateAuthority,
    /// The authority that signs next, once all agents trust it.
    pub next: Option<CertificateAuthority>,
    /// The certificate of the authority that signed before, PEM.
    pub previous: Option<Arc<str>>,
}

impl fmt::Debug for CertificateAuthority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CertificateAuthority").field("made", &self.made).finish_non_exhaustive()
    }
}

impl AuthoritySet {
    /// A set with only this authority.
    #[must_use]
    pub fn of(current: CertificateAuthority) -> AuthoritySet {
        AuthoritySet { current, next: None, previous: None }
    }

    /// All certificates that are trusted, PEM.
    #[must_use]
    pub fn bundle(&self) -> String {
        let mut bundle = String::new();
        let next = self.next.as_ref().map(|next| &next.certificate);
        for certificate in [Some(&self.current.certificate), next, self.previous.as_ref()].into_iter().flatten() {
            bundle.push_str(certificate.trim_end());
            bundle.push('\n');
        }
        bundle
    }
}
