//! One list or watch request for pods at the API server, with limits in time and size.

use super::connect::ApiConnection;
use http_body_util::BodyExt;
use kube::api::{ListParams, VersionMatch, WatchParams};
use kube::client::Body;
use kube::core::Request;
use model::id::NodeName;
use model::pod::LabelKeys;
use std::error::Error;
use std::fmt::Write;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::timeout;
use wire::watch::{ApiRefusal, BadWatchAnswer, PodPage, page, refusal};

const PODS: &str = "/api/v1/pods";
/// A server that does not answer within this time hangs; one with ten thousand nodes takes seconds for a list from its
/// cache.
pub(super) const SILENCE: Duration = Duration::from_secs(30);
/// Largest list: 500 pods of 64 KiB, four times their usual size.
const MAX_LIST: usize = 32 << 20;
/// Largest text of a refusal that is read.
const MAX_REFUSAL: usize = 64 << 10;
/// Longest wait that the agent accepts from the server's `Retry-After`.
const MAX_WAIT: Duration = Duration::from_secs(60);

/// Why there is no answer; the texts name the request, the server and what to change.
#[derive(Debug, thiserror::Error)]
pub(super) enum Unanswered {
    /// The connection could not be made, or it broke.
    #[error("{call} at {server}: {why}")]
    Broken { call: &'static str, server: Arc<str>, why: String },
    /// No answer came in time.
    #[error("{call} at {server}: no answer within {} s", waited.as_secs())]
    Slow { call: &'static str, server: Arc<str>, waited: Duration },
    /// The server refused the request.
    #[error("{call} at {server}: {} {}{}", refusal.code, refusal.message, advice(refusal.code))]
    Refused { call: &'static str, server: Arc<str>, refusal: ApiRefusal, wait: Option<Duration> },
    /// The answer cannot be read.
    #[error("{call} at {server}: {why}")]
    Garbage { call: &'static str, server: Arc<str>, why: BadWatchAnswer },
    /// The answer is larger than its limit.
    #[error("{call} at {server}: the answer is larger than {most} MiB")]
    TooLarge { call: &'static str, server: Arc<str>, most: usize },
    /// The server ended a watch as soon as it had begun.
    #[error("{call} at {server}: it ended as soon as it had begun")]
    AtOnce { call: &'static str, server: Arc<str> },
}

fn advice(code: u16) -> &'static str {
    match code {
        401 => "; the credentials are not accepted: renew the token or certificate",
        403 => "; allow this identity to list and watch pods (ClusterRole)",
        _ => "",
    }
}

impl Unanswered {
    /// Whether the resource version of the request is of no more use.
    pub(super) fn outdated(&self) -> bool {
        match self {
            Unanswered::Refused { refusal, .. } => matches!(refusal.code, 400 | 404 | 410 | 422 | 504),
            Unanswered::Garbage { .. } | Unanswered::TooLarge { .. } => true,
            Unanswered::Broken { .. } | Unanswered::Slow { .. } | Unanswered::AtOnce { .. } => false,
        }
    }

    /// Whether the server's cache has not reached the resource version of the request.
    pub(super) fn behind(&self) -> bool {
        matches!(self, Unanswered::Refused { refusal, .. } if refusal.code == 504)
    }

    /// Whether the server no longer has the history after this resource version (410), which is no failure.
    pub(super) fn gone(&self) -> bool {
        matches!(self, Unanswered::Refused { refusal, .. } if refusal.code == 410)
    }

    /// How long the server asks the agent to wait.
    pub(super) fn wait(&self) -> Duration {
        match self {
            Unanswered::Refused { wait: Some(wait), .. } => MAX_WAIT.min(*wait),
            _ => Duration::ZERO,
        }
    }
}

/// Lists and watches the pods of one node at one server.
#[derive(Debug)]
pub struct PodsClient {
    connection: ApiConnection,
    selector: String,
    label_keys: LabelKeys,
}

/// How old a list may be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Age {
    /// As old as the answering server's cache. A list from etcd would make the server read every pod of the cluster.
    Any,
    /// At least as new as this version. A server whose cache does not reach it within seconds answers 504.
    NotOlderThan(String),
    /// From etcd.
    Newest,
    /// The next page of an earlier list.
    Continued(String),
}

/// An answer whose body is still being received.
#[derive(Debug)]
pub(super) struct Answer {
    call: &'static str,
    server: Arc<str>,
    body: Body,
}

// === impl PodsClient ===

impl PodsClient {
    /// For the pods of this node; only the labels with these keys are kept.
    #[must_use]
    pub fn of(connection: ApiConnection, node: &NodeName, label_keys: LabelKeys) -> PodsClient {
        PodsClient { connection, selector: format!("spec.nodeName={node}"), label_keys }
    }

    pub(super) fn label_keys(&self) -> LabelKeys {
        Arc::clone(&self.label_keys)
    }

    pub(super) fn connection(&self) -> &ApiConnection {
        &self.connection
    }

    /// Reads one page of the list.
    pub(super) async fn list(&self, age: &Age) -> Result<PodPage, Unanswered> {
        let params = ListParams::default().fields(&self.selector);
        let params = match age {
            Age::Any => params.match_any(),
            Age::NotOlderThan(version) => params.at(version).matching(VersionMatch::NotOlderThan),
            Age::Newest => params,
            Age::Continued(token) => ListParams { continue_token: Some(token.clone()), ..params },
        };
        let answer = self.ask("list of pods", Request::new(PODS).list(&params)).await?;
        let (call, server) = (answer.call, Arc::clone(&answer.server));
        page(&answer.whole(MAX_LIST).await?, &self.label_keys).map_err(|why| Unanswered::Garbage { call, server, why })
    }

    /// Watches for changes after `version`, for `seconds`.
    pub(super) async fn watch(&self, version: &str, seconds: u32) -> Result<Answer, Unanswered> {
        let params = WatchParams::default().fields(&self.selector).timeout(seconds);
        self.ask("watch of pods", Request::new(PODS).watch(&params, version)).await
    }

    async fn ask(
        &self,
        call: &'static str,
        request: Result<http::Request<Vec<u8>>, kube::core::request::Error>,
    ) -> Result<Answer, Unanswered> {
        let server = || Arc::clone(&self.connection.server);
        let broken = |why: &(dyn Error + 'static)| Unanswered::Broken { call, server: server(), why: told(why) };
        let request = request.map_err(|why| broken(&why))?.map(Body::from);
        let response = match timeout(SILENCE, self.connection.client.send(request)).await {
            Ok(Ok(response)) => response,
            Ok(Err(why)) => return Err(broken(&why)),
            Err(_) => return Err(Unanswered::Slow { call, server: server(), waited: SILENCE }),
        };
        let status = response.status();
        let wait =
            response.headers().get(http::header::RETRY_AFTER).and_then(|value| value.to_str().ok()?.parse().ok());
        let answer = Answer { call, server: server(), body: response.into_body() };
        if status.is_success() {
            return Ok(answer);
        }
        let text = answer.whole(MAX_REFUSAL).await.unwrap_or_default();
        let refusal = refusal(status.as_u16(), &text);
        Err(Unanswered::Refused { call, server: server(), refusal, wait: wait.map(Duration::from_secs) })
    }
}

// === impl Answer ===

impl Answer {
    /// The next part of the body; `None` at its end.
    pub(super) async fn piece(&mut self) -> Result<Option<impl AsRef<[u8]> + use<>>, Unanswered> {
        loop {
            match self.body.frame().await {
                None => return Ok(None),
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) => return Ok(Some(data)),
                    Err(_trailers) => {}
                },
                Some(Err(why)) => {
                    return Err(Unanswered::Broken {
                        call: self.call,
                        server: Arc::clone(&self.server),
                        why: told(&why),
                    });
                }
            }
        }
    }

    /// The whole body, if it is not larger than `most`.
    async fn whole(mut self, most: usize) -> Result<Vec<u8>, Unanswered> {
        let mut all = Vec::new();
        loop {
            let (call, server) = (self.call, Arc::clone(&self.server));
            match timeout(SILENCE, self.piece()).await {
                Ok(Ok(Some(piece))) if all.len() + piece.as_ref().len() <= most => {
                    all.extend_from_slice(piece.as_ref())
                }
                Ok(Ok(Some(_))) => return Err(Unanswered::TooLarge { call, server, most: most >> 20 }),
                Ok(Ok(None)) => return Ok(all),
                Ok(Err(why)) => return Err(why),
                Err(_) => return Err(Unanswered::Slow { call, server, waited: SILENCE }),
            }
        }
    }

    /// The error for a part that cannot be read.
    pub(super) fn garbage(&self, why: BadWatchAnswer) -> Unanswered {
        Unanswered::Garbage { call: self.call, server: Arc::clone(&self.server), why }
    }

    /// The error for a watch that the server ended with this refusal.
    pub(super) fn refused(&self, refusal: ApiRefusal) -> Unanswered {
        Unanswered::Refused { call: self.call, server: Arc::clone(&self.server), refusal, wait: None }
    }

    /// The error for a watch whose end does not come.
    pub(super) fn slow(&self, waited: Duration) -> Unanswered {
        Unanswered::Slow { call: self.call, server: Arc::clone(&self.server), waited }
    }

    /// The error for a watch that ended as soon as it had begun.
    pub(super) fn at_once(&self) -> Unanswered {
        Unanswered::AtOnce { call: self.call, server: Arc::clone(&self.server) }
    }
}

/// An error and its causes in one line: most of these errors say little without their causes.
fn told(error: &(dyn Error + 'static)) -> String {
    let mut text = String::new();
    let mut next = Some(error);
    while let Some(error) = next {
        let said = error.to_string();
        if !text.ends_with(&said) {
            let _ = write!(text, "{}{said}", if text.is_empty() { "" } else { ": " });
        }
        next = error.source();
    }
    text
}
