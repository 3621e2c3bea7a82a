//! Keeps the certificate authority of the extenders in a Secret, publishes its certificates in a ConfigMap, and makes the
//! certificate of this extender's TLS port.
//!
//! ```text
//!   Secret LEASE-ca: keys ──▶ every extender signs its own certificate, anew every ten days
//!        └── certificates ──▶ ConfigMap LEASE-ca ──mounted──▶ agents
//! ```
//!
//! All extenders do the same here, also those that do not lead. Of two that change the Secret at once the API server refuses
//! one, which then reads what the other one has written.

use apiserver::ApiError;
use apiserver::kept_object::KeptObject;
use decide::authority::{AUTHORITY_VALID, AuthorityStep, CERTIFICATE_USED, CERTIFICATE_VALID, authority_step};
use effects::server::certificate::{Certificates, HttpVersions};
use effects::stream::authority::{issue, make};
use model::authority::AuthoritySet;
use model::backoff::Backoff;
use parking_lot::{Mutex, RwLock};
use sources::clock;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::sleep;
use wire::authority::{decode_bundle, decode_secret, encode_bundle, encode_secret};

/// How often the Secret is read.
const EVERY: Duration = Duration::from_secs(10 * 60);
/// Pauses after a failure, while this extender has no certificate.
const FIRST: Duration = Duration::from_millis(500);
/// See [`FIRST`].
const LONGEST: Duration = Duration::from_secs(30);
/// Requests at once on one connection: an extender passes on some tens of questions, and as many bindings on another connection.
const VERSIONS: HttpVersions = HttpVersions::Http1AndHttp2 { streams: 64 };

/// Keeps the authority.
#[derive(Debug)]
pub(super) struct AuthorityKeeper {
    secret: KeptObject,
    bundle: KeptObject,
    /// The certificates that are trusted, PEM; empty before they are known.
    trusted: RwLock<Arc<str>>,
    certificate: Mutex<PortCertificate>,
}

/// What is known of this extender's certificate.
#[derive(Debug, Default)]
struct PortCertificate {
    /// When it expires, in Unix seconds; `None` before there is one.
    until: Option<u64>,
    /// Why the last try to read the authority or to make a certificate failed.
    failure: Option<String>,
}

impl AuthorityKeeper {
    pub(super) fn new(secret: KeptObject, bundle: KeptObject) -> AuthorityKeeper {
        AuthorityKeeper { secret, bundle, trusted: RwLock::new("".into()), certificate: Mutex::default() }
    }

    /// Why the TLS port has no certificate that counts, and what to do; `None` where it has one.
    pub(super) fn missing(&self) -> Option<String> {
        let PortCertificate { until, failure } = &*self.certificate.lock();
        let state = match until {
            Some(until) if *until > seconds() => return None,
            Some(_) => "the certificate of the TLS port (--stream-listen) has expired",
            None => "the TLS port (--stream-listen) has no certificate yet",
        };
        let Some(why) = failure else { return Some(state.to_owned()) };
        let (namespace, name) = self.secret.place();
        let advice =
            format!("let the extender's account get and update the Secret and the ConfigMap {namespace}/{name}");
        Some(format!("{state}: {why}; {advice}, and remove the data of the Secret if it is damaged"))
    }

    /// There is a certificate that was made at this moment.
    fn has_certificate(&self, issued: &IssuedBy) {
        let until = Some(issued.at + CERTIFICATE_VALID.as_secs());
        *self.certificate.lock() = PortCertificate { until, failure: None };
    }

    /// A try has failed. A certificate that was made before stays in use.
    fn failed(&self, why: &str) {
        self.certificate.lock().failure = Some(why.to_owned());
    }

    /// The certificates that are trusted, PEM; empty before they are known.
    pub(super) fn trusted(&self) -> Arc<str> {
        Arc::clone(&self.trusted.read())
    }

    /// The first certificate of this extender. Tries until there is one.
    pub(super) async fn first(&self) -> (Arc<Certificates>, IssuedBy) {
        let mut backoff = Backoff::new(FIRST, LONGEST);
        loop {
            let made = match self.look().await {
                Ok(set) => certificate(&set).and_then(|(chain, key, issued)| {
                    let made = Certificates::made("streams", (&chain, &key), VERSIONS);
                    made.map(|made| (Arc::new(made), issued)).map_err(|why| why.to_string())
                }),
                Err(why) => Err(why),
            };
            match made {
                Ok((made, issued)) => {
                    self.has_certificate(&issued);
                    return (made, issued);
                }
                Err(why) => {
                    self.failed(&why);
                    tracing::warn!(why, "agents and other extenders cannot connect yet: {why}");
                    sleep(backoff.pause()).await;
                }
            }
        }
    }

    /// Keeps authority and certificate fresh, for ever.
    pub(super) async fn keep_fresh(&self, certificates: Arc<Certificates>, mut issued: IssuedBy) {
        loop {
            sleep(EVERY).await;
            let set = match self.look().await {
                Ok(set) => set,
                Err(why) => {
                    self.failed(&why);
                    tracing::warn!(why, "the certificate authority cannot be read: {why}; the certificate stays");
                    continue;
                }
            };
            if issued.authority == set.current.certificate
                && seconds().saturating_sub(issued.at) < CERTIFICATE_USED.as_secs()
            {
                continue;
            }
            let replaced = certificate(&set).and_then(|(chain, key, now)| {
                certificates.replace((&chain, &key)).map_err(|why| why.to_string())?;
                issued = now;
                self.has_certificate(&issued);
                Ok(())
            });
            match replaced {
                Ok(()) => tracing::info!("the TLS port has a new certificate"),
                Err(why) => {
                    self.failed(&why);
                    tracing::warn!(why, "the TLS port keeps its certificate: {why}");
                }
            }
        }
    }

    /// Reads the authority, makes one if there is none, takes the step that is due, and publishes the certificates.
    async fn look(&self) -> Result<AuthoritySet, String> {
        let text = |why: ApiError| why.to_string();
        let found = self.secret.get().await.map_err(text)?;
        let stored = found.as_deref().map(decode_secret).transpose().map_err(|why| why.to_string())?;
        let version = stored.as_ref().map(|stored| Arc::clone(&stored.version));
        let kept = stored.and_then(|stored| stored.content);
        let set = match next(kept.as_ref())? {
            None => kept.ok_or("there is no authority")?,
            Some(set) => {
                let object = encode_secret(self.secret.place(), version.as_deref(), &set);
                let written = match version {
                    Some(_) => self.secret.replace(&object).await,
                    None => self.secret.create(&object).await,
                };
                written.map_err(text)?;
                tracing::info!("the extenders' certificate authority was changed");
                set
            }
        };
        let bundle = set.bundle();
        *self.trusted.write() = bundle.as_str().into();
        self.publish(&bundle).await.map_err(text)?;
        Ok(set)
    }

    async fn publish(&self, bundle: &str) -> Result<(), ApiError> {
        let Some(found) = self.bundle.get().await? else {
            return self.bundle.create(&encode_bundle(self.bundle.place(), None, bundle)).await;
        };
        match decode_bundle(&found) {
            Ok(stored) if stored.content.as_deref() == Some(bundle) => Ok(()),
            Ok(stored) => {
                let object = encode_bundle(self.bundle.place(), Some(&stored.version), bundle);
                self.bundle.replace(&object).await
            }
            // An API server sends no such object.
            Err(why) => {
                tracing::warn!(%why, "the ConfigMap of the certificates cannot be read: {why}");
                Ok(())
            }
        }
    }
}

/// By which authority a certificate was made, and when.
#[derive(Debug)]
pub(super) struct IssuedBy {
    authority: Arc<str>,
    at: u64,
}

/// What the Secret is to hold from now on, if that differs.
fn next(kept: Option<&AuthoritySet>) -> Result<Option<AuthoritySet>, String> {
    let made = || make(seconds(), AUTHORITY_VALID).map_err(|why| why.to_string());
    let Some(kept) = kept else { return Ok(Some(AuthoritySet::of(made()?))) };
    Ok(match (authority_step(kept, seconds()), &kept.next) {
        (AuthorityStep::MakeNext, _) => Some(AuthoritySet { next: Some(made()?), ..kept.clone() }),
        (AuthorityStep::UseNext, Some(next)) => Some(AuthoritySet {
            current: next.clone(),
            next: None,
            previous: Some(Arc::clone(&kept.current.certificate)),
        }),
        (AuthorityStep::UseNext | AuthorityStep::Keep, _) => None,
    })
}

fn certificate(set: &AuthoritySet) -> Result<(String, String, IssuedBy), String> {
    let at = seconds();
    let issued = issue(&set.current, &[], at, CERTIFICATE_VALID).map_err(|why| why.to_string())?;
    let by = IssuedBy { authority: Arc::clone(&set.current.certificate), at };
    Ok((issued.chain, issued.key, by))
}

/// Unix seconds.
fn seconds() -> u64 {
    clock::now().wall.0 / 1_000_000
}
