//! The kinds of objects that are read and written, and their paths at the API server.

use model::id::{NodeName, PodRef};
use std::fmt::Write;

/// A kind of object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ApiResource {
    /// Pods.
    Pods,
    /// A pod's binding to a Node.
    PodBindings,
    /// A pod's eviction.
    PodEvictions,
    /// A pod's logs.
    PodLogs,
    /// A connection to a port of a pod.
    PodPortForwards,
    /// Nodes.
    Nodes,
    /// Events.
    Events,
    /// Leases.
    Leases,
    /// Secrets.
    Secrets,
    /// ConfigMaps.
    ConfigMaps,
    /// The version of the server: a path of it.
    Version,
    /// The keys that sign tokens, and their issuer: not objects, but paths of the server.
    TokenKeys,
}

/// The path of a request and its query.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ApiPath {
    text: String,
    queried: bool,
}

// === impl ApiResource ===

impl ApiResource {
    /// The plural, as RBAC writes it.
    #[must_use]
    pub fn plural(self) -> &'static str {
        match self {
            ApiResource::Pods => "pods",
            ApiResource::PodBindings => "pods/binding",
            ApiResource::PodEvictions => "pods/eviction",
            ApiResource::PodLogs => "pods/log",
            ApiResource::PodPortForwards => "pods/portforward",
            ApiResource::Nodes => "nodes",
            ApiResource::Events => "events",
            ApiResource::Leases => "leases",
            ApiResource::Secrets => "secrets",
            ApiResource::ConfigMaps => "configmaps",
            ApiResource::Version => "/version",
            ApiResource::TokenKeys => "/openid/v1/jwks",
        }
    }
}

// === impl ApiPath ===

impl ApiPath {
    /// A path of these segments below `root`.
    pub(crate) fn of(root: &str, segments: &[&str]) -> ApiPath {
        let mut path = ApiPath { text: root.to_owned(), queried: false };
        for segment in segments {
            path.text.push('/');
            path.escaped(segment);
        }
        path
    }

    /// The path of a Node.
    pub(crate) fn node(node: &NodeName) -> ApiPath {
        ApiPath::of("/api/v1/nodes", &[node.as_str()])
    }

    /// The path of a Lease, or of all Leases of a namespace.
    pub(crate) fn lease(namespace: &str, name: Option<&str>) -> ApiPath {
        let mut segments = vec![namespace, "leases"];
        segments.extend(name);
        ApiPath::of("/apis/coordination.k8s.io/v1/namespaces", &segments)
    }

    /// The path of a pod, or of a subresource of it.
    pub(crate) fn pod(pod: &PodRef, subresource: &[&str]) -> ApiPath {
        let mut segments = vec![&*pod.namespace, "pods", &*pod.name];
        segments.extend(subresource);
        ApiPath::of("/api/v1/namespaces", &segments)
    }

    /// Adds a query parameter.
    pub(crate) fn with(mut self, key: &str, value: &str) -> ApiPath {
        self.text.push(if std::mem::replace(&mut self.queried, true) { '&' } else { '?' });
        self.text.push_str(key);
        self.text.push('=');
        self.escaped(value);
        self
    }

    /// The path and its query.
    pub(crate) fn as_str(&self) -> &str {
        &self.text
    }

    /// Appends a text. Percent-encodes every byte except letters, digits and `-._~`, so that no byte has a meaning in a
    /// path or a query.
    fn escaped(&mut self, text: &str) {
        for byte in text.bytes() {
            if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
                self.text.push(char::from(byte));
            } else {
                let _ = write!(self.text, "%{byte:02X}");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_values_cannot_change_the_meaning_of_a_path() {
        let pod = PodRef { namespace: "ml".into(), name: "../x?a=b#c".into() };
        let path =
            ApiPath::pod(&pod, &["eviction"]).with("fieldSelector", "spec.nodeName=n&limit=1").with("limit", "7");
        assert_eq!(
            path.as_str(),
            "/api/v1/namespaces/ml/pods/..%2Fx%3Fa%3Db%23c/eviction?fieldSelector=spec.nodeName%3Dn%26limit%3D1&limit=7"
        );
    }
}
