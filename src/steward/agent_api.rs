//! The client of the agent's JSON API, for `top` and `profile history`. This is the only part of these commands that uses
//! HTTP.
//!
//! What must never happen here: an endless wait, an answer without a limit on its size.

pub(crate) mod arguments;

use http_body_util::{BodyExt, Empty, Limited};
use hyper::body::Bytes;
use hyper::client::conn::http1::{self, Connection, SendRequest};
use hyper::{Method, Request, StatusCode, Uri, header};
use hyper_util::rt::TokioIo;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use serde::de::DeserializeOwned;
use std::future::Future;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use wire::api::Snapshot;

/// Time limit for one response. The agent answers from memory in milliseconds; on a machine that swaps, it may take
/// seconds.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum size of a response in bytes. 8,192 cgroups of about 4 KiB each are 32 MiB; a response of more than twice
/// this size is not from an agent.
const MAX_RESPONSE: usize = 64 << 20;

/// Maximum bytes of a refusal that are shown. The agent sends one sentence.
const MAX_REFUSAL: usize = 400;

/// The reason why there is no answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FetchError {
    #[error("{url:?} is not the address of an agent: it must look like http://127.0.0.1:9410 or https://node-a:9410")]
    Url { url: String },
    #[error("cannot read the token file {path:?}: {source}")]
    Token { path: PathBuf, source: std::io::Error },
    #[error(
        "{url}: only certificates that you name are trusted: give --ca-file with the file (PEM) of the authority that signed the agent's --tls-cert, or of that certificate itself"
    )]
    Untrusted { url: String },
    #[error("{url}: --ca-file is for agents that serve HTTPS: write https://")]
    NeedlessCa { url: String },
    #[error("cannot read certificates from --ca-file {path:?}: {why}")]
    Ca { path: PathBuf, why: String },
    #[error(
        "no TLS connection with {url}: {source}. The agent serves HTTPS only with --tls-cert; its certificate must be for this name and signed by an authority in --ca-file"
    )]
    Tls { url: String, source: std::io::Error },
    #[error(
        "no agent answers at {url}: {source}. Start one with `gpu-steward agent --standalone`, or say where it listens with --url"
    )]
    Connect { url: String, source: std::io::Error },
    #[error("GET {url}{path}: no answer within {} s", TIMEOUT.as_secs())]
    Slow { url: String, path: &'static str },
    #[error("GET {url}{path}: {source}{hint}", hint = FetchError::https_hint(url, source))]
    Http { url: String, path: &'static str, source: hyper::Error },
    #[error("GET {url}{path}: {source}")]
    Body { url: String, path: &'static str, source: Box<dyn std::error::Error + Send + Sync> },
    #[error("GET {url}{path}: refused: {why} (--token-file names the file of a token)")]
    Refused { url: String, path: &'static str, why: String },
    #[error("GET {url}{path}: answered {status}{reason}", reason = FetchError::reason(why))]
    Status { url: String, path: &'static str, status: StatusCode, why: String },
    #[error("GET {url}{path}: the answer cannot be read ({source}); is this a gpu-steward agent of this version?")]
    Answer { url: String, path: &'static str, source: serde_json::Error },
}

impl FetchError {
    /// Advice for plain HTTP to an agent that serves HTTPS. Such an agent closes the connection.
    fn https_hint(url: &str, source: &hyper::Error) -> &'static str {
        let closed = source.is_incomplete_message() || source.is_parse() || source.is_closed() || source.is_canceled();
        if closed && url.starts_with("http://") {
            ". If the agent serves HTTPS (--tls-cert), write https:// and give --ca-file"
        } else {
            ""
        }
    }

    /// The agent's sentence. Another program may have none.
    fn reason(why: &str) -> String {
        if why.is_empty() { "; is this a gpu-steward agent?".to_owned() } else { format!(": {why}") }
    }

    /// Whether the user's arguments are wrong, not the connection or the answer.
    pub(crate) fn is_usage(&self) -> bool {
        matches!(
            self,
            FetchError::Status { status: StatusCode::BAD_REQUEST, .. }
                | FetchError::Url { .. }
                | FetchError::Token { .. }
                | FetchError::Untrusted { .. }
                | FetchError::NeedlessCa { .. }
                | FetchError::Ca { .. }
        )
    }
}

/// The agent's address and the token.
#[derive(Clone)]
pub(crate) struct Agent {
    /// The URL as the user wrote it, without a trailing slash.
    url: String,
    /// `host:port`.
    authority: String,
    token: Option<String>,
    /// With HTTPS: the trusted certificates, and the name that the agent's certificate must have.
    tls: Option<(TlsConnector, ServerName<'static>)>,
}

type Sender = SendRequest<Empty<Bytes>>;
type HttpConnection = Connection<TokioIo<Box<dyn Stream>>, Empty<Bytes>>;

/// A connection to the agent, with or without TLS.
trait Stream: AsyncRead + AsyncWrite + Unpin {}

impl<T: AsyncRead + AsyncWrite + Unpin> Stream for T {}

/// One response.
struct Answer {
    status: StatusCode,
    body: Bytes,
    /// Whether the body is text for people.
    sentence: bool,
}

// === impl Agent ===

impl Agent {
    /// Checks the user's arguments.
    pub(crate) fn new(url: &str, token_file: Option<&PathBuf>, ca_file: Option<&PathBuf>) -> Result<Agent, FetchError> {
        let text = || url.to_owned();
        let refuse = || FetchError::Url { url: text() };
        let parsed: Uri = url.parse().map_err(|_| refuse())?;
        let host = parsed.host().ok_or_else(refuse)?;
        if parsed.path() != "/" || parsed.query().is_some() {
            return Err(refuse());
        }
        let (port, tls) = match (parsed.scheme_str(), ca_file) {
            (Some("http"), None) => (80, None),
            (Some("http"), Some(_)) => return Err(FetchError::NeedlessCa { url: text() }),
            (Some("https"), None) => return Err(FetchError::Untrusted { url: text() }),
            (Some("https"), Some(path)) => {
                let bare = host.trim_start_matches('[').trim_end_matches(']').to_owned();
                let name = ServerName::try_from(bare).map_err(|_| refuse())?;
                (443, Some((connector_that_trusts(path)?, name)))
            }
            _ => return Err(refuse()),
        };
        let authority = format!("{host}:{}", parsed.port_u16().unwrap_or(port));
        let read = |path: &PathBuf| {
            std::fs::read_to_string(path).map_err(|source| FetchError::Token { path: path.clone(), source })
        };
        let token = token_file.map(read).transpose()?.map(|text| text.trim().to_owned());
        Ok(Agent { url: url.trim_end_matches('/').to_owned(), authority, token, tls })
    }

    /// Fetches the documents that `top` shows, over one connection.
    pub(crate) async fn fetch(&self) -> Result<Snapshot, FetchError> {
        let (mut sender, connection) = self.connect().await?;
        let requests = async {
            let node = self.get(&mut sender, ("/api/v1/node", "")).await?;
            let gpus = self.get(&mut sender, ("/api/v1/gpus", "")).await?;
            let pods = self.get(&mut sender, ("/api/v1/pods", "")).await?;
            let processes = self.get(&mut sender, ("/api/v1/processes", "")).await?;
            let profile = match self.get(&mut sender, ("/api/v1/profile", "subject=gpu")).await {
                // The agent answers like this where profiles are off.
                Err(FetchError::Status { status: StatusCode::NOT_FOUND, .. }) => None,
                profile => Some(profile?),
            };
            Ok(Snapshot { node, gpus, pods, processes, profile })
        };
        self.together(requests, connection).await
    }

    /// Fetches one document. The query is the text after `?`.
    pub(crate) async fn document<T: DeserializeOwned>(&self, path: &'static str, query: &str) -> Result<T, FetchError> {
        let (mut sender, connection) = self.connect().await?;
        self.together(self.get(&mut sender, (path, query)), connection).await
    }

    async fn connect(&self) -> Result<(Sender, HttpConnection), FetchError> {
        let http = |source| FetchError::Http { url: self.url.clone(), path: "/", source };
        http1::handshake(TokioIo::new(self.stream().await?)).await.map_err(http)
    }

    async fn stream(&self) -> Result<Box<dyn Stream>, FetchError> {
        let connect = |source| FetchError::Connect { url: self.url.clone(), source };
        let stream = match timeout(TIMEOUT, TcpStream::connect(&self.authority)).await {
            Ok(stream) => stream.map_err(connect)?,
            Err(_) => return Err(connect(std::io::ErrorKind::TimedOut.into())),
        };
        let Some((connector, name)) = &self.tls else { return Ok(Box::new(stream)) };
        let tls = |source| FetchError::Tls { url: self.url.clone(), source };
        match timeout(TIMEOUT, connector.connect(name.clone(), stream)).await {
            Ok(stream) => Ok(Box::new(stream.map_err(tls)?)),
            Err(_) => Err(tls(std::io::ErrorKind::TimedOut.into())),
        }
    }

    /// The connection is polled together with the requests and dropped with them, so no task outlives a fetch.
    async fn together<T>(
        &self,
        requests: impl Future<Output = Result<T, FetchError>>,
        connection: HttpConnection,
    ) -> Result<T, FetchError> {
        tokio::pin!(requests);
        tokio::select! {
            responses = &mut requests => responses,
            ended = connection => match ended {
                // The connection closed after the last response was read into memory, so the requests can still finish.
                Ok(()) => requests.await,
                Err(source) => Err(FetchError::Http { url: self.url.clone(), path: "/", source }),
            },
        }
    }

    /// The answer about a path with a query, which may be empty.
    async fn get<T: DeserializeOwned>(
        &self,
        sender: &mut Sender,
        (path, query): (&'static str, &str),
    ) -> Result<T, FetchError> {
        let url = || self.url.clone();
        let Ok(response) = timeout(TIMEOUT, self.send(sender, (path, query))).await else {
            return Err(FetchError::Slow { url: url(), path });
        };
        let Answer { status, body, sentence } = response?;
        match status {
            StatusCode::OK => {
                serde_json::from_slice(&body).map_err(|source| FetchError::Answer { url: url(), path, source })
            }
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
                Err(FetchError::Refused { url: url(), path, why: shown(&body) })
            }
            status => {
                let why = if sentence { shown(&body) } else { String::new() };
                Err(FetchError::Status { url: url(), path, status, why })
            }
        }
    }

    async fn send(&self, sender: &mut Sender, (path, query): (&'static str, &str)) -> Result<Answer, FetchError> {
        let http = |source| FetchError::Http { url: self.url.clone(), path, source };
        let body = |source| FetchError::Body { url: self.url.clone(), path, source };
        let target = if query.is_empty() { path.to_owned() } else { format!("{path}?{query}") };
        let mut request = Request::builder().method(Method::GET).uri(target).header("host", &self.authority);
        if let Some(token) = &self.token {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        let request = request.body(Empty::new()).map_err(|source| body(Box::new(source)))?;
        sender.ready().await.map_err(http)?;
        let response = sender.send_request(request).await.map_err(http)?;
        let status = response.status();
        let kind = response.headers().get(header::CONTENT_TYPE);
        let sentence = kind.is_some_and(|kind| kind.as_bytes().starts_with(b"text/plain"));
        let body = Limited::new(response.into_body(), MAX_RESPONSE).collect().await.map_err(body)?.to_bytes();
        Ok(Answer { status, body, sentence })
    }
}

/// The begin of a refusal, on one line.
fn shown(body: &Bytes) -> String {
    let text = String::from_utf8_lossy(&body[..body.len().min(MAX_REFUSAL)]);
    text.trim().chars().filter(|c| !c.is_control()).collect()
}

/// A connector that trusts only the certificates in this file.
fn connector_that_trusts(path: &Path) -> Result<TlsConnector, FetchError> {
    let refuse = |why: String| FetchError::Ca { path: path.to_owned(), why };
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_file_iter(path).map_err(|error| refuse(error.to_string()))? {
        let certificate = certificate.map_err(|error| refuse(error.to_string()))?;
        roots.add(certificate).map_err(|error| refuse(error.to_string()))?;
    }
    if roots.is_empty() {
        return Err(refuse("the file has no certificate".into()));
    }
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| refuse(error.to_string()))?;
    Ok(TlsConnector::from(Arc::new(config.with_root_certificates(roots).with_no_client_auth())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_address_of_an_agent_is_accepted() {
        for (url, authority) in [
            ("http://127.0.0.1:9410", "127.0.0.1:9410"),
            ("http://node-a:1/", "node-a:1"),
            ("http://[::1]:9410", "[::1]:9410"),
        ] {
            assert_eq!(Agent::new(url, None, None).map(|agent| agent.authority).unwrap(), authority);
        }
        for bad in ["", "127.0.0.1:9410", "http://", "http://a/api", "unix:///run/x", "http://a?b", "https://a/api"] {
            let error = refused(bad, None);
            assert!(error.contains("must look like http://127.0.0.1:9410"), "{bad}: {error}");
        }
    }

    fn refused(url: &str, ca_file: Option<&Path>) -> String {
        let refused = Agent::new(url, None, ca_file.map(Path::to_path_buf).as_ref()).err().expect("an error");
        assert!(refused.is_usage(), "{refused}");
        refused.to_string()
    }

    #[test]
    fn https_needs_the_file_of_an_authority_and_http_takes_none() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("ca.pem");
        assert!(refused("https://node-a:9410", None).contains("give --ca-file"));
        assert!(refused("https://node-a:9410", Some(&file)).contains("ca.pem"));
        for text in ["", "no certificate", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"] {
            std::fs::write(&file, text).unwrap();
            assert!(refused("https://node-a:9410", Some(&file)).contains("cannot read certificates"), "{text:?}");
        }
        let issued = rcgen::generate_simple_self_signed(vec!["node-a".to_owned()]).unwrap();
        std::fs::write(&file, issued.cert.pem()).unwrap();
        assert!(refused("http://node-a:9410", Some(&file)).contains("write https://"));
        for (url, authority) in [("https://node-a", "node-a:443"), ("https://[::1]:9410", "[::1]:9410")] {
            assert_eq!(Agent::new(url, None, Some(&file)).map(|agent| agent.authority).unwrap(), authority);
        }
    }

    #[test]
    fn a_token_that_cannot_be_read_names_its_file() {
        let error = Agent::new("http://a:1", Some(&PathBuf::from("/nonexistent/token")), None).err().unwrap();
        assert!(error.to_string().contains("/nonexistent/token"), "{error}");
    }
}
