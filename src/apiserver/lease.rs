//! Reads and writes one Lease. Each write names the version that was read: if two processes write at the same time, the
//! API server refuses one write.

use crate::client::{ApiClient, ObjectForm, ReadAge};
use crate::connect::ApiConnection;
use crate::error::{ApiCall, ApiError, ApiFailure, ApiVerb};
use crate::resource::{ApiPath, ApiResource};
use model::lease::{LeaseRecord, StoredLease};
use serde_json::Value;
use std::sync::Arc;
use std::time::Duration;

/// Access to one Lease.
#[derive(Clone, Debug)]
pub struct LeaseClient {
    client: ApiClient,
    namespace: Arc<str>,
    name: Arc<str>,
    /// Time limit for a call.
    within: Duration,
}

impl LeaseClient {
    /// The Lease of this namespace and name. A call may take `within`: a part of the renew deadline, so that after a call
    /// on a connection that has died silently there is time for another call.
    #[must_use]
    pub fn new(connection: ApiConnection, (namespace, name): (Arc<str>, Arc<str>), within: Duration) -> LeaseClient {
        LeaseClient { client: ApiClient::new(connection), namespace, name, within }
    }

    /// The Lease as it is in etcd now; `None` if it does not exist.
    ///
    /// # Errors
    /// [`ApiError`].
    pub async fn get(&self) -> Result<Option<StoredLease>, ApiError> {
        let call = self.call(ApiVerb::Get);
        let path = ApiPath::lease(&self.namespace, Some(&self.name));
        let read = self.client.get(call.clone(), path, &ReadAge::Newest, ObjectForm::Whole);
        match self.client.within(self.within, call, read).await {
            Ok(bytes) => self.read(ApiVerb::Get, &bytes).map(Some),
            // A proxy in front of the server may also answer 404, but without a `Status`.
            Err(error) if error.refusal().is_some_and(|refusal| refusal.code == 404 && refusal.is_status) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Creates the Lease.
    ///
    /// # Errors
    /// [`ApiError`]; code 409 if another process has created it.
    pub async fn create(&self, record: &LeaseRecord) -> Result<StoredLease, ApiError> {
        let object = wire::lease::encode(&self.namespace, &self.name, None, record);
        self.store(ApiVerb::Create, ApiPath::lease(&self.namespace, None), &object).await
    }

    /// Replaces the Lease, if it still has this version.
    ///
    /// # Errors
    /// [`ApiError`]; code 409 if it has another version, 404 if it is gone.
    pub async fn replace(&self, lease: &StoredLease) -> Result<StoredLease, ApiError> {
        let object = wire::lease::encode(&self.namespace, &self.name, Some(&lease.version), &lease.record);
        let path = ApiPath::lease(&self.namespace, Some(&self.name));
        self.store(ApiVerb::Update, path, &object).await
    }

    async fn store(&self, verb: ApiVerb, path: ApiPath, object: &Value) -> Result<StoredLease, ApiError> {
        let call = self.call(verb);
        let bytes = self.client.within(self.within, call.clone(), self.client.store(call, path, object)).await?;
        self.read(verb, &bytes)
    }

    fn call(&self, verb: ApiVerb) -> ApiCall {
        ApiCall::new(verb, ApiResource::Leases, format!("lease {}/{}", self.namespace, self.name))
    }

    fn read(&self, verb: ApiVerb, bytes: &[u8]) -> Result<StoredLease, ApiError> {
        let unreadable = |why: String| self.client.error(self.call(verb), ApiFailure::Unreadable(why));
        wire::lease::decode(bytes).map_err(|why| unreadable(why.to_string()))
    }
}
