//! Our own Node object, its annotations only, as old as the API server's cache.

use super::Connection;
use http_body_util::BodyExt;
use kube::client::Body;
use model::id::NodeName;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::time::timeout;

/// A server that is silent for longer hangs.
const WITHIN: Duration = Duration::from_secs(10);
/// Metadata of one object: etcd takes 1.5 MiB for all of it.
const MAX_BYTES: usize = 2 << 20;
/// Metadata alone: a Node's status lists every image that it holds.
const METADATA: &str = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1";

/// Looks at our Node.
#[derive(Clone, Debug)]
pub struct OwnNode {
    connection: Connection,
    node: NodeName,
}

/// What was seen.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Looked {
    annotations: BTreeMap<String, String>,
}

#[derive(Deserialize)]
struct Object {
    metadata: Metadata,
}

#[derive(Deserialize)]
struct Metadata {
    #[serde(default)]
    annotations: BTreeMap<String, String>,
}

impl Looked {
    /// The annotation of this key.
    #[must_use]
    pub fn annotation(&self, key: &str) -> Option<&str> {
        self.annotations.get(key).map(String::as_str)
    }
}

impl OwnNode {
    /// Our Node at this server.
    #[must_use]
    pub fn new(connection: Connection, node: NodeName) -> OwnNode {
        OwnNode { connection, node }
    }

    /// Looks once.
    ///
    /// # Errors
    /// A sentence for the log.
    pub async fn look(&self) -> Result<Looked, String> {
        let told = |why: &dyn std::fmt::Display| format!("node {} at {}: {why}", self.node, self.connection.server);
        let request = http::Request::get(format!("/api/v1/nodes/{}?resourceVersion=0", self.node))
            .header("accept", METADATA)
            .body(Body::empty())
            .map_err(|error| told(&error))?;
        let ask = async {
            let answer = self.connection.client.send(request).await.map_err(|error| told(&error))?;
            let code = answer.status();
            if !code.is_success() {
                return Err(told(&code));
            }
            let body = http_body_util::Limited::new(answer.into_body(), MAX_BYTES).collect().await;
            read(&body.map_err(|error| told(&error))?.to_bytes()).map_err(|error| told(&error))
        };
        timeout(WITHIN, ask).await.unwrap_or_else(|_| Err(told(&format!("no answer within {} s", WITHIN.as_secs()))))
    }
}

fn read(bytes: &[u8]) -> Result<Looked, serde_json::Error> {
    serde_json::from_slice(bytes).map(|object: Object| Looked { annotations: object.metadata.annotations })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn annotations_are_taken_and_nothing_else_is_asked_for() {
        let text = r#"{"kind":"PartialObjectMetadata","metadata":{"name":"n","annotations":{"hami.io/a":"1"}}}"#;
        let looked = read(text.as_bytes()).unwrap();
        assert_eq!((looked.annotation("hami.io/a"), looked.annotation("b")), (Some("1"), None));
        assert_eq!(read(br#"{"metadata":{"name":"n"}}"#).unwrap(), Looked::default());
        assert!(read(b"{}").is_err());
    }

    proptest! {
        #[test]
        fn no_bytes_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = read(&bytes);
        }
    }
}
