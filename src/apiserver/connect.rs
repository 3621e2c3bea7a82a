//! Finds the API server and the credentials for it.
//!
//! The first of these that exists is used: `--kubeconfig`; the files that `KUBECONFIG` names; the pod's service
//! account; `~/.kube/config`. If it is invalid, the others are not tried.

use kube::config::{InClusterError, KubeConfigOptions, Kubeconfig, KubeconfigError};
use kube::{Client, Config};
use parking_lot::Mutex;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// Time limit for making a connection, TLS included.
const CONNECT: Duration = Duration::from_secs(10);
/// The variable that the kubelet sets in every container.
const IN_CLUSTER: &str = "KUBERNETES_SERVICE_HOST";
const VARIABLE: &str = "KUBECONFIG";
const USER_AGENT: &str = concat!("gpu-steward/", env!("CARGO_PKG_VERSION"));

/// A connection to the API server. No request has been sent yet.
///
/// Connections can die silently: a load balancer forgets them, or the machine of the server is gone. A request on such a
/// connection gets no answer, nor do later requests, because the connections of one pool died together. So after a call
/// without an answer, the next call gets a new client, whose pool is empty.
#[derive(Clone)]
pub struct ApiConnection {
    /// The client with its generation; clones are cheap and share its connections.
    client: Arc<Mutex<(u64, Client)>>,
    /// Makes another client; `None` if no other client can be made.
    config: Option<Arc<Config>>,
    /// The server's address, for log lines.
    pub server: Arc<str>,
    /// Where address and credentials come from, for log lines.
    pub from: Arc<str>,
}

impl fmt::Debug for ApiConnection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ApiConnection").field("server", &self.server).field("from", &self.from).finish_non_exhaustive()
    }
}

impl ApiConnection {
    /// Connections of this client, which is never replaced.
    #[must_use]
    pub fn of(client: Client, server: Arc<str>, from: Arc<str>) -> ApiConnection {
        ApiConnection { client: Arc::new(Mutex::new((0, client))), config: None, server, from }
    }

    /// The client for the next call.
    pub(crate) fn client(&self) -> Client {
        self.client.lock().1.clone()
    }

    /// The generation of this client.
    pub(crate) fn generation(&self) -> u64 {
        self.client.lock().0
    }

    /// A call of a client of this generation has got no answer. Calls that are in progress keep their connections.
    pub(crate) fn is_silent(&self, generation: u64) {
        let Some(config) = self.config.as_deref().filter(|_| self.generation() == generation) else { return };
        // Making a client may read files or run a program for credentials, so this does not hold the lock.
        match Client::try_from(config.clone()) {
            Ok(new) => {
                let mut client = self.client.lock();
                if client.0 == generation {
                    *client = (generation + 1, new);
                }
            }
            Err(error) => tracing::warn!(%error, "cannot make new connections to the API server"),
        }
    }
}

/// Why there is no connection: what was tried, where, and what to change.
#[derive(Debug, thiserror::Error)]
pub enum NotConnected {
    /// No setting or file names an API server.
    #[error(
        "found no Kubernetes API server: --kubeconfig is not given, {VARIABLE} is not set, this is not a pod \
         ({IN_CLUSTER} is not set) and there is no {home}; give --kubeconfig PATH"
    )]
    Nowhere {
        /// `~/.kube/config`.
        home: String,
    },
    /// The file cannot be used.
    #[error("cannot use the kubeconfig {from}: {why}; correct it, or name another with --kubeconfig")]
    Kubeconfig {
        /// The file or files.
        from: String,
        /// The reason.
        why: Box<KubeconfigError>,
    },
    /// The pod has no service account.
    #[error(
        "cannot use the pod's service account: {0}; mount its token (automountServiceAccountToken: true), or give \
         --kubeconfig PATH"
    )]
    ServiceAccount(Box<InClusterError>),
    /// Certificates, keys or tokens are invalid.
    #[error("cannot make a client of {from}: {why}; check its certificates, keys and token")]
    Client {
        /// Where the configuration comes from.
        from: String,
        /// The reason.
        why: Box<kube::Error>,
    },
}

/// Finds the API server; `kubeconfig` is the path that the user gave. Must be called inside the async runtime.
///
/// # Errors
/// [`NotConnected`], with a sentence for people.
pub async fn connect(kubeconfig: Option<&Path>) -> Result<ApiConnection, NotConnected> {
    let (from, mut config) = find(kubeconfig).await?;
    config.connect_timeout = Some(CONNECT);
    // The callers count failures and back off; retries inside the client would hide failures from them.
    config.default_retry = false;
    // Lets audit logs and priority levels of the API server distinguish this program from others with the same account.
    config.headers.push((http::header::USER_AGENT, http::HeaderValue::from_static(USER_AGENT)));
    let server = config.cluster_url.to_string();
    let client =
        Client::try_from(config.clone()).map_err(|why| NotConnected::Client { from: from.clone(), why: why.into() })?;
    let connection = ApiConnection::of(client, server.into(), from.into());
    Ok(ApiConnection { config: Some(Arc::new(config)), ..connection })
}

async fn find(given: Option<&Path>) -> Result<(String, Config), NotConnected> {
    if let Some(path) = given {
        return of_file(path).await;
    }
    if let Some(named) = std::env::var_os(VARIABLE).filter(|value| !value.is_empty()) {
        let from = format!("{} ({VARIABLE})", named.to_string_lossy());
        let read = Kubeconfig::from_env().and_then(|read| read.ok_or(KubeconfigError::FindPath));
        return of_kubeconfig(from, read).await;
    }
    if std::env::var_os(IN_CLUSTER).is_some() {
        let config = Config::incluster().map_err(|why| NotConnected::ServiceAccount(why.into()))?;
        return Ok(("the pod's service account".to_owned(), config));
    }
    let home =
        std::env::var_os("HOME").filter(|home| !home.is_empty()).map(|home| PathBuf::from(home).join(".kube/config"));
    match home {
        Some(path) if path.exists() => of_file(&path).await,
        path => Err(NotConnected::Nowhere {
            home: path.map_or_else(|| "~/.kube/config".to_owned(), |path| path.display().to_string()),
        }),
    }
}

async fn of_file(path: &Path) -> Result<(String, Config), NotConnected> {
    of_kubeconfig(path.display().to_string(), Kubeconfig::read_from(path)).await
}

async fn of_kubeconfig(
    from: String,
    read: Result<Kubeconfig, KubeconfigError>,
) -> Result<(String, Config), NotConnected> {
    let config = match read {
        Ok(kubeconfig) => Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await,
        Err(why) => Err(why),
    };
    match config {
        Ok(config) => Ok((from, config)),
        Err(why) => Err(NotConnected::Kubeconfig { from, why: why.into() }),
    }
}
