//! One HTTP request over a connection that is open.

use http_body_util::{BodyExt, Empty, Limited};
use hyper::body::Bytes;
use hyper::client::conn::http1::{self, SendRequest};
use hyper::{Method, Request, StatusCode, header};
use hyper_util::rt::TokioIo;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::task::JoinHandle;
use tokio::time::timeout;

/// Time limit for one answer. The leader answers from memory.
const WITHIN: Duration = Duration::from_secs(5);
/// Maximum size of an answer in bytes: what a leader believes of 15,000 nodes takes 5 MB, and 1,000 decisions as much.
const MAX_ANSWER: usize = 16 << 20;

/// A connection for requests, one after the other.
#[derive(Debug)]
pub(crate) struct HttpConnection {
    sender: SendRequest<Empty<Bytes>>,
    driver: JoinHandle<()>,
}

impl Drop for HttpConnection {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

impl HttpConnection {
    /// Begins HTTP on this stream. Must be called inside the async runtime.
    ///
    /// # Errors
    /// A sentence.
    pub(crate) async fn over(
        stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
    ) -> Result<HttpConnection, String> {
        let (sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(|error| error.to_string())?;
        // The end of the connection is seen by the request that uses it.
        let driver = tokio::spawn(async move { drop(connection.await) });
        Ok(HttpConnection { sender, driver })
    }

    /// The status and the body of an answer. `host` is the name that the server knows itself by.
    ///
    /// # Errors
    /// A sentence.
    pub(crate) async fn get(&mut self, host: &str, path: &str) -> Result<(StatusCode, Bytes), String> {
        let request = Request::builder().method(Method::GET).uri(path).header(header::HOST, host);
        let request = request.body(Empty::new()).map_err(|error| error.to_string())?;
        let answer = async {
            self.sender.ready().await.map_err(|error| error.to_string())?;
            let response = self.sender.send_request(request).await.map_err(|error| error.to_string())?;
            let status = response.status();
            let body = Limited::new(response.into_body(), MAX_ANSWER).collect().await;
            body.map(|body| (status, body.to_bytes())).map_err(|error| error.to_string())
        };
        timeout(WITHIN, answer).await.unwrap_or_else(|_| Err(format!("no answer within {} s", WITHIN.as_secs())))
    }
}
