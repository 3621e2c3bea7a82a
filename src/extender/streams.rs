//! Opens and runs the parts of the TLS port: its certificate, the check of callers' tokens, the streams of agents, and
//! the proxy to the leader.

use super::agent_streams::AgentStreams;
use super::authority_keeper::AuthorityKeeper;
use super::callers::Callers;
use super::leadership::Leadership;
use super::live_callers::LiveCallers;
use super::locked_cluster::LockedCluster;
use super::metrics::StreamScrape;
use super::port::{ExtenderPort, StreamReadiness};
use super::port_certificate::{PortCertificate, TlsPort};
use super::proxy::LeaderProxy;
use super::settings::StreamSettings;
use super::stream_counts::StreamCounts;
use super::stream_port::{CONNECTIONS, StreamPort};
use apiserver::ApiConnection;
use apiserver::client::ApiClient;
use apiserver::kept_object::KeptObject;
use serve::exit::Exit;
use serve::lifecycle::StartError;
use serve::server::certificate::HttpVersions;
use serve::server::{ConnectionCounts, HttpServer, bind};
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::sync::Arc;
use stream::SERVER_NAME;
use tokio_util::sync::CancellationToken;

/// Maximum number of requests at once on one connection. An extender forwards some tens of calls at once, and as many
/// bindings on another connection.
const VERSIONS: HttpVersions = HttpVersions::Http1AndHttp2 { streams: 64 };

/// The port after it is opened and before it is served.
#[derive(Debug)]
pub(super) struct OpenedStreams {
    listener: TcpListener,
    settings: StreamSettings,
    /// The address at which agents and the other extenders reach this extender.
    pub(super) address: Arc<str>,
}

/// The parts of the TLS port.
#[derive(Debug)]
pub(super) struct Streams {
    listener: TcpListener,
    certificate: Arc<PortCertificate>,
    pub(super) callers: Arc<Callers>,
    streams: Arc<AgentStreams>,
    proxy: Option<Arc<LeaderProxy>>,
    connections: Arc<ConnectionCounts>,
    /// Cancelled when the port closes.
    closing: CancellationToken,
}

/// The parts of the extender that the streams use.
#[derive(Debug)]
pub(super) struct StreamParts {
    pub(super) cluster: Arc<LockedCluster>,
    pub(super) leadership: Arc<Leadership>,
    pub(super) live: Arc<LiveCallers>,
}

/// Opens the port.
pub(super) fn open(settings: &StreamSettings) -> Result<OpenedStreams, StartError> {
    let listener = bind(settings.listen).map_err(|error| StartError {
        what: format!("cannot listen on {}: {error}; choose another address with --stream-listen", settings.listen),
        exit: Exit::from_io(&error),
    })?;
    let own = listener.local_addr().map_err(|error| StartError::io("find the address of --stream-listen", &error))?;
    let pod = std::env::var("POD_IP").ok().and_then(|text| text.parse::<IpAddr>().ok());
    let own = SocketAddr::new(pod.unwrap_or_else(|| own.ip()), own.port());
    let address = settings.address.clone().unwrap_or_else(|| own.to_string()).into();
    Ok(OpenedStreams { listener, settings: settings.clone(), address })
}

impl Streams {
    /// Makes the parts of the port; `place` is the namespace and the name of the Lease.
    pub(super) fn new(
        opened: OpenedStreams,
        (connection, place): (ApiConnection, &(Arc<str>, Arc<str>)),
        StreamParts { cluster, leadership, live }: StreamParts,
        closing: CancellationToken,
    ) -> Streams {
        let OpenedStreams { listener, settings, .. } = opened;
        let (namespace, name) = (Arc::clone(&place.0), Arc::<str>::from(format!("{}-ca", place.1)));
        let authority = Arc::new(AuthorityKeeper::new(
            KeptObject::secret(connection.clone(), Arc::clone(&namespace), Arc::clone(&name)),
            KeptObject::config_map(connection.clone(), namespace, name),
        ));
        let StreamSettings { accounts, audience, token_file, .. } = settings;
        let port = TlsPort {
            name: "TLS port (--stream-listen)",
            callers: "agents and other extenders",
            dns_names: vec![SERVER_NAME.to_owned()],
            versions: VERSIONS,
        };
        let certificate = Arc::new(PortCertificate::new(port, Arc::clone(&authority)));
        let proxy = token_file.clone().map(|file| Arc::new(LeaderProxy::new(authority, file)));
        let callers = Callers::new(ApiClient::new(connection), (audience, accounts), token_file, Arc::clone(&live));
        let streams = AgentStreams::new(cluster, leadership, live, closing.clone());
        let (callers, streams) = (Arc::new(callers), Arc::new(streams));
        Streams { listener, certificate, callers, streams, proxy, connections: Arc::default(), closing }
    }

    /// What `/metrics` shows of the port.
    pub(super) fn scrape(&self) -> StreamScrape {
        let (live, connections) = (Arc::clone(&self.streams.live), Arc::clone(&self.connections));
        StreamScrape { live, counts: self.counts(), connections }
    }

    /// What `/readyz` checks of the port.
    pub(super) fn readiness(&self) -> StreamReadiness {
        StreamReadiness { certificate: Arc::clone(&self.certificate), callers: Arc::clone(&self.callers) }
    }

    /// The proxy that forwards calls to the leader.
    pub(super) fn proxy(&self) -> Option<Arc<LeaderProxy>> {
        self.proxy.clone()
    }

    fn counts(&self) -> Arc<StreamCounts> {
        Arc::clone(&self.streams.counts)
    }

    /// Serves the port once there is a certificate, until `stop` is cancelled.
    pub(super) async fn run(self, verbs: Arc<ExtenderPort>, stop: CancellationToken) -> std::io::Result<()> {
        let certificates = tokio::select! {
            () = stop.cancelled() => return Ok(()),
            first = self.certificate.first() => first,
        };
        tracing::info!("agents and other extenders can connect");
        let counts = self.counts();
        let application = StreamPort::new(Arc::clone(&self.callers), counts, verbs, Arc::clone(&self.streams));
        let fresh = self.certificate.keep_fresh(Arc::clone(&certificates));
        let counts = Arc::clone(&self.connections);
        let server = HttpServer { application, limits: CONNECTIONS, certificates: Some(certificates), counts };
        let serving = server.serve(self.listener, self.closing.clone());
        let streams = self.streams;
        tokio::select! {
            served = serving => {
                served?;
                stop.cancelled().await;
                Ok(())
            }
            () = fresh => Ok(()),
            () = streams.watch_term() => Ok(()),
            () = stop.cancelled() => Ok(()),
        }
    }
}
