//! Reads and writes one Secret or ConfigMap. Each replacement names the version that was read, so if two processes
//! write at the same time, the API server refuses one write.

use crate::client::{ApiClient, ObjectForm, ReadAge};
use crate::connect::ApiConnection;
use crate::error::{ApiCall, ApiError, ApiVerb};
use crate::resource::{ApiPath, ApiResource};
use serde_json::Value;
use std::sync::Arc;

/// Access to one object.
#[derive(Clone, Debug)]
pub struct KeptObject {
    client: ApiClient,
    resource: ApiResource,
    namespace: Arc<str>,
    name: Arc<str>,
}

impl KeptObject {
    /// The Secret of this name.
    #[must_use]
    pub fn secret(connection: ApiConnection, namespace: Arc<str>, name: Arc<str>) -> KeptObject {
        KeptObject { client: ApiClient::new(connection), resource: ApiResource::Secrets, namespace, name }
    }

    /// The ConfigMap of this name.
    #[must_use]
    pub fn config_map(connection: ApiConnection, namespace: Arc<str>, name: Arc<str>) -> KeptObject {
        KeptObject { client: ApiClient::new(connection), resource: ApiResource::ConfigMaps, namespace, name }
    }

    /// The object's namespace and name.
    #[must_use]
    pub fn place(&self) -> (&str, &str) {
        (&self.namespace, &self.name)
    }

    /// The object as it is in etcd now; `None` if it does not exist.
    ///
    /// # Errors
    /// [`ApiError`].
    pub async fn get(&self) -> Result<Option<Vec<u8>>, ApiError> {
        let path = self.path(true);
        match self.client.get(self.call(ApiVerb::Get), path, &ReadAge::Newest, ObjectForm::Whole).await {
            Ok(bytes) => Ok(Some(bytes)),
            // A proxy in front of the server may also answer 404, but without a `Status`.
            Err(error) if error.refusal().is_some_and(|refusal| refusal.code == 404 && refusal.is_status) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Creates the object.
    ///
    /// # Errors
    /// [`ApiError`]; code 409 if another process has created it.
    pub async fn create(&self, object: &Value) -> Result<(), ApiError> {
        self.client.create(self.call(ApiVerb::Create), self.path(false), object).await
    }

    /// Replaces the object if it still has the version that `object` names.
    ///
    /// # Errors
    /// [`ApiError`]; code 409 if it has another version.
    pub async fn replace(&self, object: &Value) -> Result<(), ApiError> {
        self.client.store(self.call(ApiVerb::Update), self.path(true), object).await.map(drop)
    }

    fn call(&self, verb: ApiVerb) -> ApiCall {
        let kind = if self.resource == ApiResource::Secrets { "secret" } else { "configmap" };
        ApiCall::new(verb, self.resource, format!("{kind} {}/{}", self.namespace, self.name))
    }

    fn path(&self, named: bool) -> ApiPath {
        let mut segments = vec![&*self.namespace, self.resource.plural()];
        segments.extend(named.then_some(&*self.name));
        ApiPath::of("/api/v1/namespaces", &segments)
    }
}
