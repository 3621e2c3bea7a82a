//! Makes the certificate authority of the extenders, and the certificates of their ports.

use model::authority::CertificateAuthority;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
    date_time_ymd,
};
use std::time::Duration;

/// The name in the certificate of every extender's port for agents. Agents and extenders connect to the address of a
/// Service or a pod, so they check this name instead: only an extender has a certificate of this authority.
pub const SERVER_NAME: &str = "extender.gpu-steward.io";
/// The name of every authority. Authorities differ by their keys.
const NAME: &str = "gpu-steward extender";
/// The validity of a certificate begins this long before it is made, because the clocks of machines differ.
const SKEW: Duration = Duration::from_secs(60 * 60);

/// A certificate cannot be made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cannot make a certificate: {0}")]
pub struct CertificateError(#[from] rcgen::Error);

/// The certificate of a port with its key, both PEM.
pub struct IssuedCertificate {
    /// The certificate.
    pub chain: String,
    /// The certificate's key.
    pub key: String,
}

impl std::fmt::Debug for IssuedCertificate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("IssuedCertificate").finish_non_exhaustive()
    }
}

fn params(names: Vec<String>, now: u64, valid: Duration) -> Result<CertificateParams, rcgen::Error> {
    let mut params = CertificateParams::new(names)?;
    let now = Duration::from_secs(now);
    let epoch = date_time_ymd(1970, 1, 1);
    (params.not_before, params.not_after) = (epoch + now.saturating_sub(SKEW), epoch + now + valid);
    Ok(params)
}

/// The fields that identify an authority in the certificates that it signs. They are the same for every authority, so
/// the key alone is enough to issue certificates.
fn authority_params(now: u64, valid: Duration) -> Result<CertificateParams, rcgen::Error> {
    let mut params = params(Vec::new(), now, valid)?;
    params.distinguished_name.push(DnType::CommonName, NAME);
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    Ok(params)
}

/// Makes a certificate authority at this moment, in Unix seconds.
///
/// # Errors
/// [`CertificateError`].
pub fn make(now: u64, valid: Duration) -> Result<CertificateAuthority, CertificateError> {
    let key = KeyPair::generate()?;
    let certificate = authority_params(now, valid)?.self_signed(&key)?;
    Ok(CertificateAuthority { certificate: certificate.pem().into(), key: key.serialize_pem().into(), made: now })
}

/// Makes a certificate for a port with these DNS names.
///
/// # Errors
/// [`CertificateError`].
pub fn issue(
    authority: &CertificateAuthority,
    names: &[String],
    now: u64,
    valid: Duration,
) -> Result<IssuedCertificate, CertificateError> {
    let issuer = Issuer::new(authority_params(authority.made, valid)?, KeyPair::from_pem(&authority.key)?);
    let key = KeyPair::generate()?;
    let mut params = params(names.to_vec(), now, valid)?;
    params.use_authority_key_identifier_extension = true;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    let certificate = params.signed_by(&key, &issuer)?;
    Ok(IssuedCertificate { chain: certificate.pem(), key: key.serialize_pem() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustls::RootCertStore;
    use rustls::client::WebPkiServerVerifier;
    use rustls::client::danger::ServerCertVerifier;
    use rustls::crypto::ring;
    use rustls::pki_types::pem::PemObject;
    use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
    use std::sync::Arc;

    const VALID: Duration = Duration::from_secs(1000);

    /// Whether a client that trusts `authority` accepts the certificate at this moment.
    fn accepted(authority: &CertificateAuthority, issued: &IssuedCertificate, name: &'static str, now: u64) -> bool {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(authority.certificate.as_bytes()).unwrap()).unwrap();
        let provider = Arc::new(ring::default_provider());
        let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider).build().unwrap();
        let chain = CertificateDer::from_pem_slice(issued.chain.as_bytes()).unwrap();
        let name = ServerName::try_from(name).unwrap();
        let now = UnixTime::since_unix_epoch(Duration::from_secs(now));
        verifier.verify_server_cert(&chain, &[], &name, &[], now).is_ok()
    }

    #[test]
    fn a_certificate_is_accepted_with_its_names_in_its_time_by_those_who_trust_its_authority() {
        let now = 1_795_256_507;
        let [one, other] = [now, now + 500].map(|now| make(now, 10 * VALID).unwrap());
        let names = [SERVER_NAME, "svc.gpu.svc"].map(str::to_owned);
        let issued = issue(&one, &names, now + 100, VALID).unwrap();
        for (authority, name, at, accepts) in [
            (&one, SERVER_NAME, now + 100, true),
            (&one, "svc.gpu.svc", now + 1000, true),
            (&one, SERVER_NAME, now - 1000, true),
            (&one, SERVER_NAME, now - 4000, false),
            (&one, SERVER_NAME, now + 1200, false),
            (&one, "other.gpu.svc", now + 100, false),
            (&other, SERVER_NAME, now + 600, false),
        ] {
            assert_eq!(accepted(authority, &issued, name, at), accepts, "{name} {}", at - now + 4000);
        }
        assert!(!format!("{issued:?}{one:?}").contains("PRIVATE"));
        let broken = CertificateAuthority { key: "x".into(), ..one };
        assert!(issue(&broken, &[], now, VALID).is_err());
    }
}
