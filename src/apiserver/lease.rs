//! Reads and writes one Lease. Each write names the version that was read: if two processes write at the same time, the
//! API server refuses one of them.

use crate::client::{ApiClient, ObjectForm, ReadAge};
use crate::connect::ApiConnection;
use crate::error::{ApiCall, ApiError, ApiFailure, ApiVerb};
use crate::resource::{ApiPath, ApiResource};
use model::lease::{LeaseRecord, StoredLease};
use std::sync::Arc;

/// Access to one Lease.
#[derive(Clone, Debug)]
pub struct LeaseClient {
    client: ApiClient,
    namespace: Arc<str>,
    name: Arc<str>,
}

impl LeaseClient {
    /// The Lease of this name.
    #[must_use]
    pub fn new(connection: ApiConnection, namespace: Arc<str>, name: Arc<str>) -> LeaseClient {
        LeaseClient { client: ApiClient::new(connection), namespace, name }
    }

    /// The Lease as it is in etcd now; `None` if it does not exist.
    ///
    /// # Errors
    /// [`ApiError`].
    pub async fn get(&self) -> Result<Option<StoredLease>, ApiError> {
        let call = self.call(ApiVerb::Get);
        let path = ApiPath::lease(&self.namespace, Some(&self.name));
        match self.client.get(call, path, &ReadAge::Newest, ObjectForm::Whole).await {
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
        let bytes =
            self.client.store(self.call(ApiVerb::Create), ApiPath::lease(&self.namespace, None), &object).await?;
        self.read(ApiVerb::Create, &bytes)
    }

    /// Replaces the Lease, if it still has this version.
    ///
    /// # Errors
    /// [`ApiError`]; code 409 if it has another version, 404 if it is gone.
    pub async fn replace(&self, lease: &StoredLease) -> Result<StoredLease, ApiError> {
        let object = wire::lease::encode(&self.namespace, &self.name, Some(&lease.version), &lease.record);
        let path = ApiPath::lease(&self.namespace, Some(&self.name));
        let bytes = self.client.store(self.call(ApiVerb::Update), path, &object).await?;
        self.read(ApiVerb::Update, &bytes)
    }

    fn call(&self, verb: ApiVerb) -> ApiCall {
        ApiCall::new(verb, ApiResource::Leases, format!("lease {}/{}", self.namespace, self.name))
    }

    fn read(&self, verb: ApiVerb, bytes: &[u8]) -> Result<StoredLease, ApiError> {
        let unreadable = |why: String| self.client.error(self.call(verb), ApiFailure::Unreadable(why));
        wire::lease::decode(bytes).map_err(|why| unreadable(why.to_string()))
    }
}
