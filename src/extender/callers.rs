//! Checks who calls the TLS port. Agents and other extenders each send a token that is bound to their own pod.
//!
//! ```text
//!   Authorization: Bearer … ──▶ decode ──▶ signature, issuer, audience, time ──▶ account ──▶ Node, pod ──▶ Caller
//!                                              ▲ keys of the API server, read every ten minutes and for an unknown key
//! ```
//!
//! What must never happen here: a caller acts for a Node other than the Node of its token; a token counts although its
//! pod is gone; each invalid token causes a call to the API server.

use super::live_callers::{LiveCallers, NotLive};
use super::settings::StreamSettings;
use super::stream_limit::MOST_STREAMS;
use apiserver::client::ApiClient;
use hyper::header::{self, HeaderMap};
use model::id::{NodeName, ObjectUid, PodUid};
use parking_lot::{Mutex, RwLock};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use stream::token_keys::{TokenKeys, TokenRefusal, ends_at};
use tokio::sync::Semaphore;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use wire::token::{self, TokenClaims};

/// How often the keys are read even if no token needs a new key. A cluster changes its keys at most every few days.
const REFRESH: Duration = Duration::from_secs(10 * 60);
/// Shortest time between two reads of the keys: a client that sends invalid tokens must not cause a read for each of
/// them.
const AGAIN: Duration = Duration::from_secs(10);
/// Maximum number of callers that wait for a read of the keys, which takes up to ten seconds. Each keeps the headers of
/// its request, at most 16 KiB, so all take 4 MiB. Over HTTP/2, one connection could otherwise make 64 of them wait.
const MOST_WAITING: usize = 256;

/// Upper bound for caching a token check. Real tokens expire within a day; the bound keeps a forged `exp` from
/// overflowing the clock.
const LONGEST: Duration = Duration::from_secs(30 * 24 * 3600);

/// The caller of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Caller {
    /// The agent of a Node.
    Agent(AgentIdentity),
    /// Another extender.
    Extender,
}

/// The agent of a Node, as its token identifies it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct AgentIdentity {
    /// The Node for which the agent speaks.
    pub(super) node: (NodeName, ObjectUid),
    /// The agent's pod; `None` for an agent outside a pod.
    pub(super) pod: Option<PodUid>,
    /// When the agent's token expires. This is on the monotonic clock, so that a change of the wall clock does not end streams.
    pub(super) until: Instant,
}

/// Why a caller is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum CallerRefusal {
    #[error("this port needs the header Authorization: Bearer <token of the service account>")]
    NoToken,
    #[error(transparent)]
    Token(#[from] TokenRefusal),
    #[error("the account of the token is none of those that may call (--stream-accounts)")]
    OtherAccount,
    #[error("the token names no Node: it must be bound to a pod")]
    NoNode,
    #[error(transparent)]
    Gone(#[from] NotLive),
    #[error("this Node has {MOST_STREAMS} streams that have not ended yet")]
    TooManyStreams,
}

impl CallerRefusal {
    /// All codes, in the order of their metrics.
    pub(super) const CODES: [&str; 13] = [
        "no_token",
        "unreadable",
        "unknown_key",
        "bad_signature",
        "other_issuer",
        "other_audience",
        "expired",
        "not_yet",
        "other_account",
        "no_node",
        "node_gone",
        "pod_gone",
        "too_many_streams",
    ];

    /// A stable short code.
    pub(super) fn code(self) -> &'static str {
        match self {
            CallerRefusal::NoToken => "no_token",
            CallerRefusal::Token(why) => why.code(),
            CallerRefusal::OtherAccount => "other_account",
            CallerRefusal::NoNode => "no_node",
            CallerRefusal::TooManyStreams => "too_many_streams",
            CallerRefusal::Gone(NotLive::Node) => "node_gone",
            CallerRefusal::Gone(NotLive::Pod) => "pod_gone",
        }
    }
}

/// Checks callers.
#[derive(Debug)]
pub(super) struct Callers {
    client: ApiClient,
    audience: String,
    /// The subjects of agents.
    agents: Vec<String>,
    /// This extender's token; the other extenders have the same account.
    token_file: Option<PathBuf>,
    pub(super) live: Arc<LiveCallers>,
    keys: RwLock<TokenKeys>,
    /// The account of the extenders.
    own: Mutex<Option<OwnAccount>>,
    /// When the last read of the keys has begun or ended. Locked during a read.
    asked: tokio::sync::Mutex<Option<Instant>>,
    /// The permits of callers that wait for a read.
    waiting: Semaphore,
    failures: Mutex<ReadFailures>,
}

/// The account of the extenders, from this extender's own token.
#[derive(Clone, Debug)]
struct OwnAccount {
    subject: Arc<str>,
    /// Whether this extender's own token is bound to a pod. Then a token of another extender must be bound to a pod
    /// too.
    in_pod: bool,
}

/// Why the last attempt to read each item failed; `None` if it succeeded.
#[derive(Debug, Default)]
struct ReadFailures {
    /// The keys with which the API server signs tokens.
    keys: Option<String>,
    /// This extender's own token.
    own: Option<String>,
}

impl Callers {
    pub(super) fn new(
        client: ApiClient,
        (audience, agents): (String, Vec<String>),
        token_file: Option<PathBuf>,
        live: Arc<LiveCallers>,
    ) -> Callers {
        let keys = RwLock::new(TokenKeys { issuer: "".into(), keys: Vec::new() });
        let (own, asked, failures) = (Mutex::new(None), tokio::sync::Mutex::new(None), Mutex::default());
        let waiting = Semaphore::new(MOST_WAITING);
        Callers { client, audience, agents, token_file, live, keys, own, asked, waiting, failures }
    }

    /// Sentences about what is missing before this extender can identify its callers, and other extenders can identify
    /// it. Each says what to do.
    pub(super) fn missing(&self) -> Vec<String> {
        let failures = self.failures.lock();
        let mut missing = Vec::new();
        if self.keys.read().keys.is_empty() {
            let why = failures.keys.as_deref().unwrap_or("they are not read yet");
            let advice = "let the extender's account get /openid/v1/jwks and /.well-known/openid-configuration";
            missing
                .push(format!("the keys that sign the tokens of agents and extenders are not known: {why}; {advice}"));
        }
        let unread = self.own.lock().is_none().then_some("it is not read yet");
        if let Some(path) = &self.token_file
            && let Some(why) = failures.own.as_deref().or(unread)
        {
            let advice = format!("put a token of the audience {} there (--stream-token-file)", self.audience);
            missing.push(format!("the own token {} cannot be read: {why}; {advice}", path.display()));
        }
        missing
    }

    /// Finds out who sends this request.
    pub(super) async fn check(&self, headers: &HeaderMap) -> Result<Caller, CallerRefusal> {
        let text = bearer(headers).ok_or(CallerRefusal::NoToken)?;
        let claims = match self.signed(text) {
            Err(TokenRefusal::UnknownKey) => {
                let Ok(_permit) = self.waiting.try_acquire() else { return Err(TokenRefusal::UnknownKey.into()) };
                self.read_keys(AGAIN).await;
                self.signed(text)?
            }
            checked => checked?,
        };
        self.identify(claims)
    }

    fn signed(&self, text: &str) -> Result<TokenClaims, TokenRefusal> {
        let token = token::decode(text).map_err(|_| TokenRefusal::Unreadable)?;
        self.keys.read().check(token, &self.audience, unix_seconds())
    }

    fn identify(&self, claims: TokenClaims) -> Result<Caller, CallerRefusal> {
        if self.agents.iter().any(|agent| **agent == *claims.subject) {
            let node = claims.node.clone().ok_or(CallerRefusal::NoNode)?;
            self.live.check(&node, claims.pod.as_ref())?;
            let left = Duration::from_secs(ends_at(&claims).saturating_sub(unix_seconds()));
            let until = Instant::now() + left.min(LONGEST);
            return Ok(Caller::Agent(AgentIdentity { node, pod: claims.pod, until }));
        }
        self.identify_extender(&claims)
    }

    /// Another extender may make the leader bind pods. So the pod of its token must exist; an API server would check
    /// the same.
    fn identify_extender(&self, claims: &TokenClaims) -> Result<Caller, CallerRefusal> {
        let own = self.own.lock().clone().filter(|own| own.subject == claims.subject);
        let own = own.ok_or(CallerRefusal::OtherAccount)?;
        match (&claims.node, &claims.pod) {
            (Some(node), pod) if pod.is_some() || !own.in_pod => self.live.check(node, pod.as_ref())?,
            // The other extender runs outside a pod, like this extender. Its token is valid until it expires.
            (None, None) if !own.in_pod => {}
            _ => return Err(CallerRefusal::NoNode),
        }
        Ok(Caller::Extender)
    }

    /// Keeps the keys fresh until `stop` is cancelled.
    pub(super) async fn keep_fresh(self: Arc<Self>, stop: CancellationToken) {
        loop {
            self.read_keys(Duration::ZERO).await;
            // Without the keys no agent can report, and without this extender's own token no call is forwarded, so try
            // again soon.
            let pause = if self.missing().is_empty() { REFRESH } else { AGAIN };
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(pause) => {}
            }
        }
    }

    /// Reads the keys, unless they were requested within the last `pause`. Callers that arrive during the request wait
    /// for its answer.
    async fn read_keys(&self, pause: Duration) {
        let mut asked = self.asked.lock().await;
        if asked.is_some_and(|asked| asked.elapsed() < pause) {
            return;
        }
        *asked = Some(Instant::now());
        let (keys, issuer) = tokio::join!(self.client.token_keys(), self.client.token_issuer());
        // A read without an answer takes longer than `pause`, and callers that have waited for it do not begin another
        // read.
        *asked = Some(Instant::now());
        let read = keys.map_err(|why| why.to_string()).and_then(|keys| {
            let issuer = issuer.map_err(|why| why.to_string())?;
            let keys = token::decode_keys(&keys).map_err(|why| why.to_string())?;
            if keys.is_empty() {
                return Err("the API server publishes no RSA or P-256 key".to_owned());
            }
            Ok(TokenKeys { issuer: token::decode_issuer(&issuer).map_err(|why| why.to_string())?, keys })
        });
        match read {
            Ok(keys) => {
                *self.keys.write() = keys;
                self.failures.lock().keys = None;
            }
            Err(why) => {
                tracing::warn!(why, "the keys of tokens cannot be read: {why}; those that are known stay");
                self.failures.lock().keys = Some(why);
            }
        }
        self.read_own();
    }

    /// Reads the account of the extenders from this extender's own token.
    fn read_own(&self) {
        let Some(path) = &self.token_file else { return };
        match read_token(path) {
            Ok(TokenClaims { subject, pod, .. }) => {
                *self.own.lock() = Some(OwnAccount { subject, in_pod: pod.is_some() });
                self.failures.lock().own = None;
            }
            Err(why) => {
                tracing::warn!(path = %path.display(), why, "the own token cannot be read: {why}");
                self.failures.lock().own = Some(why);
            }
        }
    }
}

/// The namespaces in which agents and extenders run: the namespaces of the agents' accounts, the namespaces in `own`,
/// and the namespace of the extenders' account, if this extender's token can already be read.
pub(super) fn namespaces(settings: &StreamSettings, own: impl Iterator<Item = Arc<str>>) -> BTreeSet<Arc<str>> {
    let extenders = settings.token_file.as_deref().and_then(|path| read_token(path).ok()).map(|claims| claims.subject);
    let accounts = settings.accounts.iter().map(String::as_str).chain(extenders.as_deref());
    accounts.filter_map(|account| account.split(':').nth(2)).map(Arc::<str>::from).chain(own).collect()
}

/// The claims of the token in this file.
fn read_token(path: &Path) -> Result<TokenClaims, String> {
    // The file is in memory: the kubelet mounts it as a tmpfs.
    let text = std::fs::read_to_string(path).map_err(|why| why.to_string())?;
    token::decode(text.trim()).map(|token| token.claims).map_err(|why| why.to_string())
}

fn unix_seconds() -> u64 {
    clock::now().wall.0 / 1_000_000
}

/// The token of a request.
fn bearer(headers: &HeaderMap) -> Option<&str> {
    let (scheme, token) = headers.get(header::AUTHORIZATION)?.to_str().ok()?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}

#[cfg(test)]
mod tests {
    use super::*;
    use apiserver::ApiConnection;
    use hyper::header::HeaderValue;
    use hyper::{Request, Response};
    use std::net::{Ipv4Addr, SocketAddr};
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[tokio::test(start_paused = true)]
    async fn callers_with_an_unknown_key_wait_for_one_read_and_those_beyond_the_bound_are_refused_at_once() {
        let requests = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&requests);
        // An API server that never answers.
        let service = tower::service_fn(move |_: Request<kube::client::Body>| {
            counted.fetch_add(1, Ordering::Relaxed);
            std::future::pending::<Result<Response<kube::client::Body>, std::io::Error>>()
        });
        let connection = ApiConnection::of(kube::Client::new(service, "default"), "test".into(), "test".into());
        let account = ("gpu-steward".to_owned(), Vec::new());
        let callers = Arc::new(Callers::new(ApiClient::new(connection), account, None, Arc::default()));
        // {"alg":"ES256","kid":"x"}, and {"iss":"i","aud":"a","exp":1,"sub":"system:serviceaccount:control:x"}.
        let token = "Bearer eyJhbGciOiJFUzI1NiIsImtpZCI6IngifQ.\
            eyJpc3MiOiJpIiwiYXVkIjoiYSIsImV4cCI6MSwic3ViIjoic3lzdGVtOnNlcnZpY2VhY2NvdW50OmNvbnRyb2w6eCJ9.AA";
        let headers = HeaderMap::from_iter([(header::AUTHORIZATION, HeaderValue::from_static(token))]);
        let begun = Instant::now();
        let check = |_| {
            let (callers, headers) = (Arc::clone(&callers), headers.clone());
            tokio::spawn(async move { (callers.check(&headers).await, begun.elapsed()) })
        };
        let checks: Vec<_> = (0..MOST_WAITING + 10).map(check).collect();
        let mut at_once = 0;
        for check in checks {
            let (checked, after) = check.await.unwrap();
            assert_eq!(checked, Err(CallerRefusal::Token(TokenRefusal::UnknownKey)));
            at_once += usize::from(after.is_zero());
        }
        // One read has two requests: for the keys and for their issuer.
        assert_eq!((at_once, requests.load(Ordering::Relaxed)), (10, 2));
    }

    #[test]
    fn the_pods_of_agents_and_of_extenders_are_kept() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("token");
        let settings = StreamSettings {
            listen: SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 0),
            address: None,
            accounts: ["agent", "service"].map(|name| format!("system:serviceaccount:gpu:{name}")).into(),
            audience: "gpu-steward".to_owned(),
            token_file: Some(file.clone()),
        };
        let kept = || namespaces(&settings, [Arc::from("own"), Arc::from("lease")].into_iter());
        assert_eq!(kept(), BTreeSet::from(["gpu", "lease", "own"].map(Arc::<str>::from)));
        // {"alg":"ES256"}, and {"iss":"i","aud":"a","exp":1,"sub":"system:serviceaccount:control:x"}.
        let claims = "eyJpc3MiOiJpIiwiYXVkIjoiYSIsImV4cCI6MSwic3ViIjoic3lzdGVtOnNlcnZpY2VhY2NvdW50OmNvbnRyb2w6eCJ9";
        std::fs::write(&file, format!("eyJhbGciOiJFUzI1NiJ9.{claims}.AA\n")).unwrap();
        assert_eq!(kept(), BTreeSet::from(["control", "gpu", "lease", "own"].map(Arc::<str>::from)));
    }
}
