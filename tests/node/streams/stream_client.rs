//! A client of the streams that sends what a test wants, also what an agent never sends.

use super::stream_extender::SOON;
use effects::stream::opening::{self, AgentStream, OpenError};
use parking_lot::Mutex;
use proto::stream::{AgentMessage, GpuReport, GpuUse, LeaderMessage, NodeChange, NodeFull, Phase, PodReport, Stage};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use std::fmt::Display;
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::net::TcpStream;
use tokio::runtime::Runtime;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// The name in the certificates of extenders.
const NAME: &str = "extender.gpu-steward.io";

/// One stream, with its own runtime.
pub(super) struct StreamClient {
    runtime: Runtime,
    messages: Mutex<AgentStream>,
}

/// Why a stream was refused, or has ended.
#[derive(Debug)]
pub(super) struct Ended {
    /// The status of the answer, or the word for the end; `cut` where the connection has ended without one.
    pub(super) code: String,
    pub(super) text: String,
}

/// A TLS connection to an extender.
pub(super) async fn connect(
    address: SocketAddr,
    trusted: &str,
    protocol: &[u8],
) -> std::io::Result<TlsStream<TcpStream>> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(trusted.as_bytes()) {
        roots.add(certificate.unwrap()).unwrap();
    }
    let mut config = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![protocol.to_vec()];
    let stream = TcpStream::connect(address).await?;
    TlsConnector::from(Arc::new(config)).connect(ServerName::try_from(NAME).unwrap(), stream).await
}

impl StreamClient {
    /// Opens a stream.
    pub(super) fn open(address: SocketAddr, trusted: &str, token: &str) -> Result<StreamClient, Ended> {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let opened = runtime.block_on(async {
            let connection = connect(address, trusted, b"http/1.1").await.map_err(|why| Ended::cut(&why))?;
            opening::open(connection, NAME, token).await.map_err(|why| match why {
                OpenError::Refused { status, words } => Ended { code: status.to_string(), text: words },
                other => Ended::cut(&other),
            })
        });
        opened.map(|messages| StreamClient { runtime, messages: Mutex::new(messages) })
    }

    /// Sends a message; `false` if the stream has ended.
    pub(super) fn send(&self, message: AgentMessage) -> bool {
        let mut messages = self.messages.lock();
        self.runtime.block_on(async { timeout(SOON, messages.send(&message)).await.unwrap() }).is_ok()
    }

    /// The next message of the extender, or why the stream has ended.
    pub(super) fn hear(&mut self) -> Result<LeaderMessage, Ended> {
        let messages = self.messages.get_mut();
        let next = self
            .runtime
            .block_on(async { timeout(SOON, messages.next::<LeaderMessage>()).await.expect("a message in time") });
        match next {
            Ok(Some(LeaderMessage { end: Some(end), leader, .. })) => {
                let text = if leader.is_empty() { end.text } else { leader };
                Err(Ended { code: end.reason, text })
            }
            Ok(Some(message)) => Ok(message),
            Ok(None) => Err(Ended::cut(&"no last message")),
            Err(why) => Err(Ended::cut(&why)),
        }
    }

    /// Hears messages until one is as expected.
    pub(super) fn hear_until(&mut self, what: &str, is: impl Fn(&LeaderMessage) -> bool) -> LeaderMessage {
        for _ in 0..30 {
            let message = self.hear().unwrap_or_else(|why| panic!("{what}: {why:?}"));
            if is(&message) {
                return message;
            }
        }
        panic!("no message: {what}")
    }

    /// Why the stream ends.
    pub(super) fn end(mut self) -> Ended {
        loop {
            if let Err(why) = self.hear() {
                return why;
            }
        }
    }
}

impl Ended {
    fn cut(why: &dyn Display) -> Ended {
        Ended { code: "cut".to_owned(), text: why.to_string() }
    }
}

/// Everything of a node in this phase, with pods at these stages.
pub(super) fn full(node: &str, phase: Phase, pods: &[(&str, Stage, u32)]) -> AgentMessage {
    let full = NodeFull {
        node: node.into(),
        phase: phase.into(),
        gpus: vec![gpu(node)],
        pods: pods_of(node, pods),
        binding: 1,
    };
    AgentMessage { version: 1, full: Some(full), change: None }
}

/// A change to this phase, with pods at these stages.
pub(super) fn change(node: &str, phase: Phase, pods: &[(&str, Stage, u32)], gone: &[&str]) -> AgentMessage {
    let change = NodeChange {
        phase: phase.into(),
        binding: 1,
        pods: pods_of(node, pods),
        pods_gone: gone.iter().map(ToString::to_string).collect(),
        ..NodeChange::default()
    };
    AgentMessage { version: 1, full: None, change: Some(change) }
}

pub(super) fn gpu(node: &str) -> GpuReport {
    GpuReport { uuid: format!("GPU-{node}-0"), healthy: true, memory_total: Some(80 << 30), ..GpuReport::default() }
}

fn pods_of(node: &str, pods: &[(&str, Stage, u32)]) -> Vec<PodReport> {
    let pod = |(uid, stage, processes): &(&str, Stage, u32)| {
        let used = GpuUse { uuid: format!("GPU-{node}-0"), processes: *processes, memory_used: Some(1 << 30) };
        PodReport {
            uid: (*uid).to_owned(),
            stage: (*stage).into(),
            uses: if *processes > 0 { vec![used] } else { Vec::new() },
        }
    };
    pods.iter().map(pod).collect()
}
