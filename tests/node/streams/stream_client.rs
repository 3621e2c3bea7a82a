//! A client of the streams that sends any bytes, including those that an agent never sends.

use super::stream_extender::SOON;
use parking_lot::Mutex;
use prost::Message;
use proto::stream::{AgentMessage, GpuReport, GpuUse, LeaderMessage, NodeChange, NodeFull, Phase, PodReport, Stage};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use std::fmt::Display;
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::runtime::Runtime;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// The name in the certificates of extenders.
const NAME: &str = "extender.gpu-steward.io";

/// The first lines of a request for a stream.
pub(crate) const OPENS: &str =
    "GET /v1/agent-stream HTTP/1.1\r\nConnection: upgrade\r\nUpgrade: gpu-steward-stream\r\n";

/// One stream, with its own runtime.
pub(crate) struct StreamClient {
    runtime: Runtime,
    connection: Mutex<TlsStream<TcpStream>>,
}

/// Why a stream was refused, or has ended.
#[derive(Debug)]
pub(crate) struct Ended {
    /// The status of the answer, or the reason code of the end; `cut` if the connection ended without a code.
    pub(crate) code: String,
    pub(crate) text: String,
}

/// A TLS connection to an extender.
pub(crate) async fn connect(
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

/// The status of the answer to a request for a stream. The bytes after the header lines are not read.
pub(crate) async fn status(connection: &mut TlsStream<TcpStream>) -> std::io::Result<u16> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(connection.read_u8().await?);
    }
    let head = String::from_utf8(head).unwrap();
    Ok(head.split(' ').nth(1).unwrap().parse().unwrap())
}

/// The text of a refusal.
async fn refusal(connection: &mut TlsStream<TcpStream>) -> String {
    let mut text = Vec::new();
    while !text.ends_with(b".\n") {
        text.push(connection.read_u8().await.unwrap());
    }
    String::from_utf8(text).unwrap().trim_end_matches(".\n").to_owned()
}

/// The next message: four bytes with its length, then the message itself.
pub(crate) async fn read_message(connection: &mut TlsStream<TcpStream>) -> std::io::Result<LeaderMessage> {
    let mut bytes = vec![0; connection.read_u32().await? as usize];
    connection.read_exact(&mut bytes).await?;
    Ok(LeaderMessage::decode(&*bytes).unwrap())
}

impl StreamClient {
    /// Opens a stream; `token` is left out if it is empty.
    pub(crate) fn open(address: SocketAddr, trusted: &str, token: &str) -> Result<StreamClient, Ended> {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let bearer = if token.is_empty() { String::new() } else { format!("Authorization: Bearer {token}\r\n") };
        let opened = runtime.block_on(async {
            let mut connection = connect(address, trusted, b"http/1.1").await.map_err(|why| Ended::cut(&why))?;
            let head = format!("{OPENS}Host: {NAME}\r\n{bearer}\r\n");
            connection.write_all(head.as_bytes()).await.map_err(|why| Ended::cut(&why))?;
            match timeout(SOON, status(&mut connection)).await.expect("an answer in time") {
                Ok(101) => Ok(connection),
                Ok(code) => {
                    let text = refusal(&mut connection).await;
                    Err(Ended { code: code.to_string(), text })
                }
                Err(why) => Err(Ended::cut(&why)),
            }
        });
        opened.map(|connection| StreamClient { runtime, connection: Mutex::new(connection) })
    }

    /// Sends a message; `false` if the stream has ended.
    pub(crate) fn send(&self, message: AgentMessage) -> bool {
        let bytes = message.encode_to_vec();
        let bytes = [&u32::try_from(bytes.len()).unwrap().to_be_bytes()[..], &bytes].concat();
        let mut connection = self.connection.lock();
        self.runtime.block_on(async { timeout(SOON, connection.write_all(&bytes)).await.unwrap() }).is_ok()
    }

    /// The next message of the extender, or why the stream has ended.
    pub(crate) fn hear(&mut self) -> Result<LeaderMessage, Ended> {
        let connection = self.connection.get_mut();
        let next =
            self.runtime.block_on(async { timeout(SOON, read_message(connection)).await.expect("a message in time") });
        match next {
            Ok(LeaderMessage { end: Some(end), leader, .. }) => {
                let text = if leader.is_empty() { end.text } else { leader };
                Err(Ended { code: end.reason, text })
            }
            Ok(message) => Ok(message),
            Err(why) => Err(Ended::cut(&why)),
        }
    }

    /// Reads messages until one is as expected.
    pub(crate) fn hear_until(&mut self, what: &str, is: impl Fn(&LeaderMessage) -> bool) -> LeaderMessage {
        for _ in 0..30 {
            let message = self.hear().unwrap_or_else(|why| panic!("{what}: {why:?}"));
            if is(&message) {
                return message;
            }
        }
        panic!("no message: {what}")
    }

    /// Why the stream ends.
    pub(crate) fn end(mut self) -> Ended {
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

/// A full report about a node in this phase, with pods at these stages.
pub(crate) fn full(node: &str, phase: Phase, pods: &[(&str, Stage, u32)]) -> AgentMessage {
    let full = NodeFull {
        node: node.into(),
        phase: phase.into(),
        gpus: vec![gpu(node)],
        pods: pods_of(node, pods),
        ..NodeFull::default()
    };
    AgentMessage { version: 1, full: Some(full), change: None }
}

/// A report about a change to this phase, with pods at these stages.
pub(crate) fn change(node: &str, phase: Phase, pods: &[(&str, Stage, u32)], gone: &[&str]) -> AgentMessage {
    let change = NodeChange {
        phase: phase.into(),
        binding: 0,
        pods: pods_of(node, pods),
        pods_gone: gone.iter().map(ToString::to_string).collect(),
        ..NodeChange::default()
    };
    AgentMessage { version: 1, full: None, change: Some(change) }
}

pub(crate) fn gpu(node: &str) -> GpuReport {
    let (memory_total, processes) = (Some(80 << 30), Some(0));
    GpuReport { uuid: format!("GPU-{node}-0"), healthy: true, memory_total, processes, ..GpuReport::default() }
}

fn pods_of(node: &str, pods: &[(&str, Stage, u32)]) -> Vec<PodReport> {
    let pod = |(uid, stage, processes): &(&str, Stage, u32)| {
        let memory_used = Some(1 << 30);
        let used = GpuUse { uuid: format!("GPU-{node}-0"), processes: *processes, memory_used, ..GpuUse::default() };
        PodReport {
            uid: (*uid).to_owned(),
            stage: (*stage).into(),
            uses: if *processes > 0 { vec![used] } else { Vec::new() },
            has_containers: false,
        }
    };
    pods.iter().map(pod).collect()
}
