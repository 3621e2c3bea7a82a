//! A connection to a port of a pod, which the API server and the kubelet carry over a WebSocket, as `kubectl port-forward` does. The
//! program in the pod sees a caller on its own loopback address.
//!
//! ```text
//!   caller ◀──DuplexStream──▶ task ◀──WebSocket: channel 0 data, channel 1 errors──▶ API server ──▶ kubelet ──▶ port
//! ```
//!
//! The first message of each channel has the number of the port. RBAC calls the right `pods/portforward`: `get` for a WebSocket, and
//! from Kubernetes 1.35 on also `create`.

use crate::chance;
use crate::client::{ApiClient, with_causes};
use crate::error::{ApiCall, ApiError, ApiFailure, ApiVerb};
use crate::resource::{ApiPath, ApiResource};
use http::{Method, Request, StatusCode, header};
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use kube::client::Body;
use model::id::PodRef;
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, ReadHalf, WriteHalf};
use tokio::task::JoinHandle;
use wire::websocket::{self, MAX_PAYLOAD, WebSocketOpcode};

/// Time limit for the API server and the kubelet to open the connection.
const WITHIN: Duration = Duration::from_secs(10);
/// The form of the messages: the first byte is the channel.
const PROTOCOL: &str = "v4.channel.k8s.io";
/// Maximum bytes that wait between the task and the caller, and maximum bytes of one read.
const BUFFER: usize = 32 << 10;
/// The characters of base64.
const BASE64: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
/// Maximum number of characters of an error text that are kept.
const MAX_ERROR: usize = 1024;

/// The channels of a connection's only port.
const DATA: u8 = 0;
const ERRORS: u8 = 1;

/// Carries a connection to a port of a pod. The connection ends when this is dropped.
#[derive(Debug)]
pub struct ForwardedPort {
    why: Arc<Mutex<Option<String>>>,
    task: JoinHandle<()>,
}

impl ForwardedPort {
    /// Why the connection has broken, as the kubelet or the protocol says; `None` if nothing was said.
    #[must_use]
    pub fn why(&self) -> Option<String> {
        self.why.lock().clone()
    }
}

impl Drop for ForwardedPort {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl ApiClient {
    /// Connects to a port of a pod. Must be called inside the async runtime.
    ///
    /// # Errors
    /// [`ApiError`]; code 403 if the identity may not forward ports of this pod, 404 if there is no such pod.
    pub async fn forward_port(&self, pod: &PodRef, port: u16) -> Result<(DuplexStream, ForwardedPort), ApiError> {
        let call = ApiCall::new(ApiVerb::Get, ApiResource::PodPortForwards, format!("port {port} of pod {pod}"));
        let path = ApiPath::pod(pod, &["portforward"]).with("ports", &port.to_string());
        let asked = call.clone();
        let upgraded = self.within(WITHIN, call, self.upgraded(asked, &path)).await?;
        let (stream, own) = tokio::io::duplex(BUFFER);
        let why = Arc::default();
        let carrier = Carrier::new(upgraded, own, Arc::clone(&why));
        Ok((stream, ForwardedPort { why, task: tokio::spawn(carrier.run()) }))
    }

    async fn upgraded(&self, call: ApiCall, path: &ApiPath) -> Result<Upgraded, ApiError> {
        let broken = |why: String| self.error(call.clone(), ApiFailure::Broken(why));
        let request = Request::builder()
            .method(Method::GET)
            .uri(path.as_str())
            .header(header::CONNECTION, "Upgrade")
            .header(header::UPGRADE, "websocket")
            .header(header::SEC_WEBSOCKET_VERSION, "13")
            .header(header::SEC_WEBSOCKET_KEY, nonce())
            .header(header::SEC_WEBSOCKET_PROTOCOL, PROTOCOL)
            .body(Body::empty())
            .map_err(|why| broken(with_causes(&why)))?;
        let response = self.connection().client().send(request).await.map_err(|why| broken(with_causes(&why)))?;
        if response.status() != StatusCode::SWITCHING_PROTOCOLS {
            let status = response.status();
            if status.is_success() {
                return Err(broken(format!("the server answered {status} instead of opening a WebSocket")));
            }
            return Err(self.refused(call.clone(), response).await);
        }
        if response.headers().get(header::SEC_WEBSOCKET_PROTOCOL).is_none_or(|chosen| chosen != PROTOCOL) {
            return Err(broken(format!("the server does not offer the protocol {PROTOCOL}")));
        }
        hyper::upgrade::on(response).await.map_err(|why| broken(with_causes(&why)))
    }
}

/// The key of a handshake: 16 random bytes in base64.
fn nonce() -> String {
    let one = |of: &[u8]| {
        let place = chance::below(u32::try_from(of.len()).unwrap_or(0));
        usize::try_from(place).ok().and_then(|place| of.get(place)).copied().unwrap_or(b'A')
    };
    let mut key: Vec<u8> = (0..21).map(|_| one(BASE64)).collect();
    // The last character has four bits that must be zero.
    key.extend([one(b"AQgw"), b'=', b'=']);
    key.into_iter().map(char::from).collect()
}

/// Carries bytes between the caller and the WebSocket.
struct Carrier {
    from: ReadHalf<TokioIo<Upgraded>>,
    to: WriteHalf<TokioIo<Upgraded>>,
    own: DuplexStream,
    why: Arc<Mutex<Option<String>>>,
    /// Bytes of a frame that is not complete.
    received: Vec<u8>,
    /// The message whose last frame has not arrived yet.
    message: Vec<u8>,
    /// Which channels have sent the number of their port.
    begun: [bool; 2],
}

/// Whether the connection goes on.
type GoesOn = bool;

impl Carrier {
    fn new(upgraded: Upgraded, own: DuplexStream, why: Arc<Mutex<Option<String>>>) -> Carrier {
        let (from, to) = tokio::io::split(TokioIo::new(upgraded));
        Carrier { from, to, own, why, received: Vec::new(), message: Vec::new(), begun: [false; 2] }
    }

    /// Runs until one end closes. Dropping the caller's half then shows the end to the caller.
    async fn run(mut self) {
        if let Err(why) = self.carry().await {
            self.failed(&why.to_string());
        }
        let _ = self.send(WebSocketOpcode::Close, &1000_u16.to_be_bytes()).await;
    }

    fn failed(&self, why: &str) {
        let why = why.chars().take(MAX_ERROR).collect();
        self.why.lock().get_or_insert(why);
    }

    async fn carry(&mut self) -> std::io::Result<()> {
        let (mut incoming, mut outgoing) = (vec![0; BUFFER], vec![0; BUFFER]);
        loop {
            tokio::select! {
                read = self.from.read(&mut incoming) => {
                    let read = read?;
                    self.received.extend_from_slice(incoming.get(..read).unwrap_or_default());
                    if read == 0 || !self.frames().await? {
                        return Ok(());
                    }
                }
                read = self.own.read(&mut outgoing) => {
                    let read = read?;
                    if read == 0 {
                        return Ok(());
                    }
                    let mut message = vec![DATA];
                    message.extend_from_slice(outgoing.get(..read).unwrap_or_default());
                    self.send(WebSocketOpcode::Data, &message).await?;
                }
            }
        }
    }

    /// Takes the complete frames from the received bytes.
    async fn frames(&mut self) -> std::io::Result<GoesOn> {
        loop {
            let received = std::mem::take(&mut self.received);
            let (opcode, ends, payload, length) = match websocket::decode(&received) {
                Ok(Some((frame, length))) => (frame.opcode, frame.ends, frame.payload.to_vec(), length),
                Ok(None) => {
                    self.received = received;
                    return Ok(true);
                }
                Err(why) => return Err(std::io::Error::other(why)),
            };
            self.received = received.get(length..).unwrap_or_default().to_vec();
            match opcode {
                WebSocketOpcode::Close => return Ok(false),
                WebSocketOpcode::Pong => {}
                WebSocketOpcode::Ping => self.send(WebSocketOpcode::Pong, &payload).await?,
                WebSocketOpcode::Data | WebSocketOpcode::Continuation => {
                    self.message.extend(payload);
                    if self.message.len() > MAX_PAYLOAD {
                        return Err(std::io::Error::other("a message of the API server is longer than 1 MiB"));
                    }
                    if ends && !self.message().await? {
                        return Ok(false);
                    }
                }
            }
        }
    }

    /// Takes a complete message.
    async fn message(&mut self) -> std::io::Result<GoesOn> {
        let message = std::mem::take(&mut self.message);
        let Some((channel, content)) = message.split_first() else { return Ok(true) };
        let Some(begun) = self.begun.get_mut(usize::from(*channel)) else { return Ok(true) };
        if !std::mem::replace(begun, true) {
            return Ok(true);
        }
        match *channel {
            ERRORS if content.is_empty() => Ok(true),
            ERRORS => {
                self.failed(String::from_utf8_lossy(content).trim());
                Ok(false)
            }
            _ => {
                // The caller reads no more: the connection is over.
                Ok(self.own.write_all(content).await.is_ok())
            }
        }
    }

    async fn send(&mut self, opcode: WebSocketOpcode, payload: &[u8]) -> std::io::Result<()> {
        let mask = chance::below(u32::MAX).to_be_bytes();
        self.to.write_all(&websocket::encode(opcode, payload, mask)).await?;
        self.to.flush().await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_key_of_a_handshake_is_base64_of_sixteen_bytes() {
        let key = nonce();
        assert!(key.len() == 24 && key.ends_with("==") && "AQgw".contains(key.as_bytes()[21] as char), "{key}");
        assert_ne!(key, nonce());
    }
}
