//! How a stream begins: an HTTP/1.1 request switches the connection to another protocol ([RFC 9110, 7.8]). So one port
//! serves both kube-scheduler's requests and the agents' streams.
//!
//! ```text
//!   agent     GET /v1/agent-stream, Upgrade: gpu-steward-stream, Authorization: Bearer <token> ──▶ extender
//!   extender  101, Upgrade: gpu-steward-stream                                                 ──▶ agent
//!   both      messages
//! ```
//!
//! [RFC 9110, 7.8]: https://www.rfc-editor.org/rfc/rfc9110#section-7.8

use super::message_stream::MessageStream;
use http_body_util::{BodyExt, Empty, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::header::{self, HeaderMap, HeaderValue};
use hyper::upgrade::{self, Upgraded};
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};

/// The path of the request.
pub const STREAM_PATH: &str = "/v1/agent-stream";
/// The name of the protocol. It has no version, because each message has a version.
const PROTOCOL: HeaderValue = HeaderValue::from_static("gpu-steward-stream");
/// Maximum size of the text of a refusal, in bytes.
const MAX_REFUSAL: usize = 4 << 10;

/// A stream on either side.
pub type AgentStream = MessageStream<TokioIo<Upgraded>>;

/// Why no stream was opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The extender has refused the stream.
    #[error("{words}")]
    Refused {
        /// The HTTP status of the extender's answer.
        status: u16,
        /// The extender's text.
        words: String,
    },
    /// The connection has failed.
    #[error("{0}")]
    Connection(#[from] hyper::Error),
    /// The token cannot be sent.
    #[error("the stream token contains bytes that are not allowed in an HTTP header: {0}")]
    Token(#[from] hyper::http::Error),
}

/// Whether a request asks for a stream.
#[must_use]
pub fn asks<B>(request: &Request<B>) -> bool {
    request.method() == Method::GET && is_switch(request.headers())
}

/// The answer to a request that [`asks`].
#[must_use]
pub fn accepted<B: Default>() -> Response<B> {
    let mut response = Response::new(B::default());
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
    response.headers_mut().insert(header::UPGRADE, PROTOCOL);
    response
}

/// The answer to a request for [`STREAM_PATH`] that does not ask for a stream.
#[must_use]
pub fn no_switch() -> Response<Full<Bytes>> {
    let words = "this path opens the stream of an agent, which needs the header Upgrade: see proto/stream.proto.\n";
    let mut response = Response::new(Full::new(Bytes::from_static(words.as_bytes())));
    *response.status_mut() = StatusCode::UPGRADE_REQUIRED;
    response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
    response.headers_mut().insert(header::UPGRADE, PROTOCOL);
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    response
}

/// Waits until the answer to a request for a stream ([`asks`]) is written, and returns the stream.
///
/// # Errors
/// If the connection ends before the answer is written.
pub async fn begun(request: Request<Incoming>) -> hyper::Result<AgentStream> {
    Ok(MessageStream::new(TokioIo::new(upgrade::on(request).await?)))
}

/// Opens a stream on a connection to an extender, with the agent's token.
///
/// # Errors
/// [`OpenError`].
pub async fn open<S>(connection: S, host: &str, token: &str) -> Result<AgentStream, OpenError>
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let request = Request::get(STREAM_PATH)
        .header(header::HOST, host)
        .header(header::CONNECTION, "upgrade")
        .header(header::UPGRADE, PROTOCOL)
        .header(header::AUTHORIZATION, format!("Bearer {token}"))
        .body(Empty::<Bytes>::new())?;
    let (mut sender, driver) = hyper::client::conn::http1::handshake(TokioIo::new(connection)).await?;
    tokio::spawn(driver.with_upgrades());
    let answer = sender.send_request(request).await?;
    if answer.status() == StatusCode::SWITCHING_PROTOCOLS && is_switch(answer.headers()) {
        return Ok(MessageStream::new(TokioIo::new(upgrade::on(answer).await?)));
    }
    let status = answer.status();
    let body = Limited::new(answer.into_body(), MAX_REFUSAL).collect().await;
    let words = body.map(|body| String::from_utf8_lossy(&body.to_bytes()).into_owned()).unwrap_or_default();
    let words = words.trim().trim_end_matches('.').to_owned();
    let words = if words.is_empty() { format!("the answer is {status}") } else { words };
    Err(OpenError::Refused { status: status.as_u16(), words })
}

fn is_switch(headers: &HeaderMap) -> bool {
    let names = |name| headers.get(name).and_then(|value: &HeaderValue| value.to_str().ok()).unwrap_or_default();
    let connection = names(header::CONNECTION).split(',').any(|word| word.trim().eq_ignore_ascii_case("upgrade"));
    connection && headers.get(header::UPGRADE) == Some(&PROTOCOL)
}
