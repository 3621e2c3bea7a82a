//! Asks the leading extender: its last decisions, and what it believes of the nodes. The leader answers only callers on its own
//! machine, so the question goes through a port forwarded into its pod, or to an address that the caller names.

use crate::cluster::ClusterReader;
use crate::finding::{Seen, Unread};
use crate::http::HttpConnection;
use crate::texts;
use apiserver::port_forward::ForwardedPort;
use hyper::{StatusCode, Uri};
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::time::timeout;
use wire::api::believed_nodes::BelievedNodesJson;
use wire::api::decisions::DecisionsJson;
use wire::described_event::cut;
use wire::described_pod::DescribedPod;

/// Time limit for connecting to an address.
const CONNECT: Duration = Duration::from_secs(5);
/// Maximum number of extenders that are asked whether they lead; no cluster runs so many.
const MAX_EXTENDERS: usize = 8;
/// The extender's HTTP port, if the pod has no port with the name `metrics`.
const PORT: u16 = 9444;
/// Maximum number of characters of a refusal that are shown.
const MAX_REFUSAL: usize = 400;
/// What this module reads. An error names it as what could not be read ([`Unread::what`]).
const WHAT: &str = "the leading extender";

/// Where the leader is looked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum LeaderPlace {
    /// Among the pods of the extender.
    Pods,
    /// At this address: host and port.
    Address(String),
}

impl LeaderPlace {
    /// The address in `http://HOST:PORT`; without a port, [`PORT`].
    ///
    /// # Errors
    /// If `url` has another form; the text shows the right form.
    pub(crate) fn parse(url: &str) -> Result<LeaderPlace, String> {
        let bad = || {
            format!("{url:?} is not the address of an extender: write http://HOST:PORT, such as http://127.0.0.1:9444")
        };
        let parsed: Uri = url.parse().map_err(|_| bad())?;
        let host = parsed.host().filter(|_| parsed.scheme_str() == Some("http")).ok_or_else(bad)?;
        if parsed.path() != "/" || parsed.query().is_some() {
            return Err(bad());
        }
        Ok(LeaderPlace::Address(format!("{host}:{}", parsed.port_u16().unwrap_or(PORT))))
    }
}

/// A connection to the leader.
#[derive(Debug)]
pub(crate) struct Leader {
    http: HttpConnection,
    /// The name by which the leader knows itself.
    host: String,
    /// The leader's name for people.
    pub(crate) name: String,
    /// Carries the connection, if it goes through the API server.
    port: Option<ForwardedPort>,
}

impl Leader {
    /// Finds the leader and connects to it.
    pub(crate) async fn find(
        place: &LeaderPlace,
        cluster: Seen<&ClusterReader>,
        pods: &Seen<Vec<DescribedPod>>,
    ) -> Seen<Leader> {
        if let LeaderPlace::Address(address) = place {
            let mut leader = Leader::at(address).await?;
            leader.leads().await?;
            return Ok(leader);
        }
        let (cluster, pods) = (cluster?, pods.as_ref().map_err(Clone::clone)?);
        let mut why = "there is no pod of the extender; if it runs elsewhere, name it with --extender URL".to_owned();
        for pod in pods.iter().filter(|pod| pod.phase == "Running").take(MAX_EXTENDERS) {
            let leads = match Leader::in_pod(cluster, pod).await {
                Ok(mut leader) => leader.leads().await.map(|()| leader),
                Err(unread) => Err(unread),
            };
            match leads {
                Ok(leader) => return Ok(leader),
                Err(unread) => why = unread.why,
            }
        }
        Err(Unread::new(WHAT, why))
    }

    async fn at(address: &str) -> Seen<Leader> {
        let failed = |why: String| Unread::new(WHAT, format!("no extender answers at {address}: {why}"));
        let stream = match timeout(CONNECT, TcpStream::connect(address)).await {
            Ok(stream) => stream.map_err(|error| failed(error.to_string()))?,
            Err(_) => return Err(failed(format!("no connection within {} s", CONNECT.as_secs()))),
        };
        let http = HttpConnection::over(stream).await.map_err(failed)?;
        Ok(Leader { http, host: address.to_owned(), name: address.to_owned(), port: None })
    }

    async fn in_pod(cluster: &ClusterReader, pod: &DescribedPod) -> Seen<Leader> {
        let mut ports = pod.containers.iter().flat_map(|container| &container.ports);
        let port = ports.find(|(name, _)| name == "metrics").map_or(PORT, |(_, port)| *port);
        let place = pod.reference();
        let forwarded = cluster.client.forward_port(&place, port).await;
        let (stream, forwarded) = forwarded.map_err(|why| Unread::new(WHAT, why))?;
        let http = HttpConnection::over(stream).await.map_err(|why| Unread::new(WHAT, why))?;
        Ok(Leader { http, host: format!("localhost:{port}"), name: place.to_string(), port: Some(forwarded) })
    }

    /// Checks that the extender leads.
    async fn leads(&mut self) -> Seen<()> {
        let (status, body) = self.get("/leadz").await?;
        if status == StatusCode::OK { Ok(()) } else { Err(self.refused(status, &body)) }
    }

    /// The last decisions about this pod, the newest first; empty if the leader remembers no decision.
    pub(crate) async fn decisions(&mut self, pod: &str) -> Seen<DecisionsJson> {
        let none = DecisionsJson { kept: 0, decisions: Vec::new() };
        Ok(self.document(&format!("/api/v1/decisions?pod={}", escaped(pod))).await?.unwrap_or(none))
    }

    /// What the leader believes of all nodes, or of one node with its devices; empty if it knows no such node.
    pub(crate) async fn nodes(&mut self, node: Option<&str>) -> Seen<BelievedNodesJson> {
        let query = node.map(|node| format!("?node={}", escaped(node))).unwrap_or_default();
        Ok(self.document(&format!("/api/v1/nodes{query}")).await?.unwrap_or_default())
    }

    /// The text of a path, such as `/metrics`.
    pub(crate) async fn text(&mut self, path: &str) -> Seen<Vec<u8>> {
        let (status, body) = self.get(path).await?;
        if status == StatusCode::OK { Ok(body) } else { Err(self.refused(status, &body)) }
    }

    /// A document; `None` for 404.
    async fn document<T: DeserializeOwned>(&mut self, path: &str) -> Seen<Option<T>> {
        let (status, body) = self.get(path).await?;
        match status {
            StatusCode::OK => read(&body).map(Some).map_err(|why| {
                Unread::new(WHAT, format!("{} answered {path} in a form that cannot be read: {why}", self.name))
            }),
            StatusCode::NOT_FOUND => Ok(None),
            status => Err(self.refused(status, &body)),
        }
    }

    async fn get(&mut self, path: &str) -> Seen<(StatusCode, Vec<u8>)> {
        match self.http.get(&self.host, path).await {
            Ok((status, body)) => Ok((status, body.into())),
            Err(why) => {
                // The kubelet's reason says more than that the connection has ended.
                let why = self.port.as_ref().and_then(ForwardedPort::why).unwrap_or(why);
                Err(Unread::new(WHAT, format!("{} does not answer GET {path}: {why}", self.name)))
            }
        }
    }

    fn refused(&self, status: StatusCode, body: &[u8]) -> Unread {
        let text: String = String::from_utf8_lossy(body).trim().chars().take(MAX_REFUSAL).collect();
        Unread::new(WHAT, format!("{} answered {}: {text}", self.name, status.as_u16()))
    }
}

/// Reads a document, and cuts its texts like the texts of events.
fn read<T: DeserializeOwned>(body: &[u8]) -> serde_json::Result<T> {
    let mut document: Value = serde_json::from_slice(body)?;
    texts::change(&mut document, "", &|_: &str, text: &mut String| *text = cut(text));
    serde_json::from_value(document)
}

/// A value of a query. Names of pods and Nodes have letters, digits and `-.`; every other byte is encoded.
fn escaped(text: &str) -> String {
    let mut escaped = String::new();
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' => escaped.push(char::from(byte)),
            _ => escaped.push_str(&format!("%{byte:02X}")),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;
    use wire::api::believed_nodes::BelievedNodeJson;

    #[test]
    fn only_the_address_of_an_extender_is_accepted() {
        for (url, address) in [
            ("http://127.0.0.1:9444", "127.0.0.1:9444"),
            ("http://[::1]:1/", "[::1]:1"),
            ("http://gpu-extender", "gpu-extender:9444"),
        ] {
            assert_eq!(LeaderPlace::parse(url), Ok(LeaderPlace::Address(address.to_owned())));
        }
        for bad in ["", "127.0.0.1:9444", "https://a:9443", "http://a/api/v1", "http://a?b"] {
            assert!(LeaderPlace::parse(bad).unwrap_err().contains("http://127.0.0.1:9444"), "{bad}");
        }
    }

    #[test]
    fn no_text_of_the_leader_is_longer_than_that_of_an_event() {
        let node = BelievedNodeJson { node: "n1".into(), closed: Some("x".repeat(1 << 20)), ..Default::default() };
        let sent = serde_json::to_vec(&BelievedNodesJson { nodes: vec![node.clone()] }).unwrap();
        let got: BelievedNodesJson = read(&sent).unwrap();
        assert_eq!(got.nodes, [BelievedNodeJson { closed: node.closed.as_deref().map(cut), ..node }]);
        assert!(got.nodes[0].closed.as_ref().is_some_and(|text| text.chars().count() == 2049));
    }

    #[test]
    fn no_name_changes_the_meaning_of_a_query() {
        assert_eq!(escaped("ml/train-0"), "ml%2Ftrain-0");
        assert_eq!(escaped("a&node=b ü"), "a%26node%3Db%20%C3%BC");
    }
}
