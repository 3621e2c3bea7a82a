//! Keeps the certificate authority of the extenders in a Secret, publishes its certificates in a ConfigMap, and signs
//! the certificates of this extender's ports ([`PortCertificate`](super::port_certificate::PortCertificate)).
//!
//! ```text
//!   Secret LEASE-ca: keys ──▶ every extender signs the certificates of its own ports, anew every ten days
//!        └── certificates ──▶ ConfigMap LEASE-ca ──mounted──▶ agents
//! ```
//!
//! Every extender does this, whether it leads or not. If two extenders change the Secret at once, the API server
//! refuses one of them, and that extender then reads the other's Secret.

use apiserver::ApiError;
use apiserver::kept_object::KeptObject;
use decide::authority::{AUTHORITY_VALID, AuthorityStep, authority_step};
use model::authority::AuthoritySet;
use parking_lot::RwLock;
use std::sync::Arc;
use stream::authority::make;
use tokio::sync::Mutex;
use wire::authority::{decode_bundle, decode_secret, encode_bundle, encode_secret};

/// Keeps the authority.
#[derive(Debug)]
pub(super) struct AuthorityKeeper {
    secret: KeptObject,
    bundle: KeptObject,
    /// The trusted certificates, as PEM; empty before they are known.
    trusted: RwLock<Arc<str>>,
    /// Only one port at a time reads and changes the authority, so that changes by two ports of one process never
    /// conflict.
    looking: Mutex<()>,
}

impl AuthorityKeeper {
    pub(super) fn new(secret: KeptObject, bundle: KeptObject) -> AuthorityKeeper {
        AuthorityKeeper { secret, bundle, trusted: RwLock::new("".into()), looking: Mutex::default() }
    }

    /// The trusted certificates, as PEM; empty before they are known.
    pub(super) fn trusted(&self) -> Arc<str> {
        Arc::clone(&self.trusted.read())
    }

    /// What an operator must do so that the authority can be read.
    pub(super) fn advice(&self) -> String {
        let (namespace, name) = self.secret.place();
        format!(
            "let the extender's account get and update the Secret and the ConfigMap {namespace}/{name}, and remove the data of the \
             Secret if it is damaged"
        )
    }

    /// Reads the authority, makes it if there is none, rotates it if that is due, and publishes the certificates.
    ///
    /// # Errors
    /// A sentence that says what failed.
    pub(super) async fn look(&self) -> Result<AuthoritySet, String> {
        let _alone = self.looking.lock().await;
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
            // A real API server never sends such an object.
            Err(why) => {
                tracing::warn!(%why, "the ConfigMap of the certificates cannot be read: {why}");
                Ok(())
            }
        }
    }
}

/// The new content of the Secret; `None` if the Secret stays as it is.
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

/// Unix seconds.
pub(super) fn seconds() -> u64 {
    clock::now().wall.0 / 1_000_000
}
