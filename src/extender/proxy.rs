//! Forwards kube-scheduler's calls to the leader, so that each kube-scheduler can call the extender on its own machine.
//!
//! What must never happen here: a call is forwarded twice (the leader's TLS port forwards no call); a call waits longer
//! than kube-scheduler does.

use super::authority_keeper::AuthorityKeeper;
use super::measures::Verb;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Bytes;
use hyper::client::conn::http2::{Builder, SendRequest};
use hyper::header::{self, HeaderValue};
use hyper::{Request, StatusCode};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use stream::leader_connection::{self, AlpnProtocol};
use tokio::sync::Mutex;
use tokio::time::timeout;

/// Time limit for the leader's answer: kube-scheduler's own limit, less half a second for the network.
const WITHIN: Duration = Duration::from_millis(4500);
/// Maximum size of an answer in bytes. An answer with a reason for each of 15,000 nodes has 2 MiB.
const MAX_ANSWER: usize = 16 << 20;
/// Time between two pings, and time limit for the answer to a ping.
const PING: Duration = Duration::from_secs(5);

/// The connections to the leader.
#[derive(Debug)]
pub(super) struct LeaderProxy {
    authority: Arc<AuthorityKeeper>,
    token_file: PathBuf,
    /// The connection for bindings: each may wait for seconds, and a connection takes a limited number of requests at
    /// once.
    bindings: Mutex<Option<LeaderConnection>>,
    /// The connection for all other calls.
    questions: Mutex<Option<LeaderConnection>>,
}

/// The leader's address, and a way to send it requests.
type LeaderConnection = (Arc<str>, SendRequest<Full<Bytes>>);

/// The leader's answer: status, media type and body.
pub(super) type PassedAnswer = (StatusCode, HeaderValue, Bytes);

impl LeaderProxy {
    pub(super) fn new(authority: Arc<AuthorityKeeper>, token_file: PathBuf) -> LeaderProxy {
        LeaderProxy { authority, token_file, bindings: Mutex::default(), questions: Mutex::default() }
    }

    /// Sends a call to the leader at this address.
    ///
    /// # Errors
    /// Why there is no answer.
    pub(super) async fn ask(&self, leader: &Arc<str>, verb: Verb, question: Bytes) -> Result<PassedAnswer, String> {
        let connection = if verb == Verb::Bind { &self.bindings } else { &self.questions };
        match timeout(WITHIN, self.asked(leader, (verb, connection), question)).await {
            Ok(answer) => answer.map_err(|why| format!("the leader at {leader} cannot be asked: {why}")),
            Err(_) => {
                // Do not use a connection again that hangs. If another call holds the lock, that call is opening a new
                // connection, and this call does not wait for it.
                if let Ok(mut kept) = connection.try_lock()
                    && kept.as_ref().is_some_and(|(to, _)| to == leader)
                {
                    *kept = None;
                }
                Err(format!("the leader at {leader} has not answered within {} s", WITHIN.as_secs_f32()))
            }
        }
    }

    async fn asked(
        &self,
        leader: &Arc<str>,
        (verb, connection): (Verb, &Mutex<Option<LeaderConnection>>),
        question: Bytes,
    ) -> Result<PassedAnswer, String> {
        let text = |why: &dyn std::fmt::Display| why.to_string();
        let token = tokio::fs::read_to_string(&self.token_file)
            .await
            .map_err(|why| format!("own token {}: {why}", self.token_file.display()))?;
        let request = Request::post(format!("https://{}/{}", stream::SERVER_NAME, verb.word()))
            .header(header::CONTENT_TYPE, "application/json")
            .header(header::AUTHORIZATION, format!("Bearer {}", token.trim()))
            .body(Full::new(question))
            .map_err(|why| text(&why))?;
        let mut sender = self.connected(leader, connection).await?;
        let answer = sender.send_request(request).await.map_err(|why| text(&why))?;
        let status = answer.status();
        let json = || HeaderValue::from_static("application/json");
        let content = answer.headers().get(header::CONTENT_TYPE).cloned().unwrap_or_else(json);
        let body = Limited::new(answer.into_body(), MAX_ANSWER).collect().await.map_err(|why| text(&why))?;
        Ok((status, content, body.to_bytes()))
    }

    /// The connection to this leader; opens it if there is none.
    async fn connected(
        &self,
        leader: &Arc<str>,
        connection: &Mutex<Option<LeaderConnection>>,
    ) -> Result<SendRequest<Full<Bytes>>, String> {
        let mut connection = connection.lock().await;
        if let Some((to, sender)) = connection.as_ref().filter(|(to, sender)| to == leader && !sender.is_closed()) {
            tracing::trace!(%to, "the connection to the leader is used again");
            return Ok(sender.clone());
        }
        let trusted = self.authority.trusted();
        let stream = leader_connection::connect(leader, trusted.as_bytes(), AlpnProtocol::Http2).await;
        let stream = stream.map_err(|why| why.to_string())?;
        let (sender, driver) = Builder::new(TokioExecutor::new())
            .timer(TokioTimer::new())
            .keep_alive_interval(PING)
            .keep_alive_timeout(PING)
            .handshake(TokioIo::new(stream))
            .await
            .map_err(|why| why.to_string())?;
        tokio::spawn(driver);
        *connection = Some((Arc::clone(leader), sender.clone()));
        Ok(sender)
    }
}
