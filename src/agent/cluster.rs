//! Starts the tasks that run only in a cluster: they follow the pods of the node, share GPUs through the kubelet, and
//! write the agent's data on its Node.

use super::departure::{Departure, departure};
use super::guarding::Guarding;
use super::leader_stream::LeaderStream;
use super::node_writer::Announcing;
use super::profile_annotations::ProfileAnnotations;
use super::readiness::Progress;
use super::settings::{AgentSettings, ReportSettings};
use super::sharing;
use apiserver::ApiConnection;
use apiserver::kind::PodsOfNode;
use apiserver::own_node::OwnNodeReader;
use apiserver::writes::ApiServer;
use decide::agent_report::SharingStages;
use model::id::NodeName;
use model::pod::PodList;
use model::view::NodeView;
use model::workload_profile::WorkloadProfiles;
use serve::lifecycle::{DrainFirst, Lifecycle, StartError};
use sources::report::Reporter;
use std::sync::Arc;
use tokio::sync::watch;
use wire::device_config::DeviceConfig;

/// The parts of the agent that these tasks use.
pub(super) struct Cluster<'a> {
    pub lifecycle: &'a mut Lifecycle,
    pub reporter: &'a Reporter,
    pub view: &'a watch::Receiver<Arc<NodeView>>,
    /// The newest profiles; `None` with `--workload-profiles=off`.
    pub profiles: Option<watch::Receiver<Arc<WorkloadProfiles>>>,
    pub pods: &'a watch::Receiver<Option<Arc<PodList>>>,
    pub progress: &'a watch::Sender<Progress>,
}

impl Cluster<'_> {
    /// Starts the list and watch of this node's pods at the API server.
    pub(super) fn follow_pods(&mut self, connection: ApiConnection, pods: PodsOfNode) {
        let (reporter, ended) = (self.reporter.clone(), self.lifecycle.stop());
        self.lifecycle.must_run("pods", sources::kubernetes::follow_pods(connection, pods, reporter, ended));
    }

    /// Starts the tasks that share this node's GPUs through the kubelet, the tasks that write on its Node, and the
    /// stream to the extender, if an extender is configured.
    pub(super) fn share(
        &mut self,
        connection: ApiConnection,
        node: &NodeName,
        (settings, config): (&AgentSettings, DeviceConfig),
    ) -> Result<Option<Departure>, StartError> {
        let api = ApiServer::new(connection.clone(), node.clone());
        let own = OwnNodeReader::new(connection.clone(), node.clone());
        let writer = sharing::PodStatusWriter::new(api.clone(), own.clone(), node.clone());
        let out = (writer, self.reporter.clone(), connection);
        let opened = sharing::open((settings, config), node, (self.view.clone(), self.pods.clone()), out)
            .map_err(StartError::unavailable)?;
        let (form, profiles) = (settings.sharing.profile_annotations, self.profiles.clone());
        let announcing = Announcing {
            config: opened.owner.config().clone(),
            split_counts: settings.sharing.split_counts.clone(),
            format: settings.sharing.register_format,
            handshakes: settings.sharing.handshakes,
            labelling: settings.sharing.labelling,
            profiles: ProfileAnnotations::new(form, profiles, clock::monotonic()),
            quiet: settings.health.quiet,
            view: self.view.clone(),
            node: own,
            api,
            reporter: self.reporter.clone(),
            cordoned: opened.cordoned.clone(),
        };
        let (pods, evicts) = (self.pods.clone(), settings.sharing.evict_over_use);
        let guarding = Guarding { api: announcing.api.clone(), pods, evicts, results: opened.guards.clone() };
        let leaves = settings.report.as_ref().map(|report| self.report(report, opened.stages()));
        let run = sharing::Run::new(self.lifecycle.stop(), self.progress.clone());
        self.lifecycle.drain_first(DrainFirst { closing: run.closing.clone(), closed: run.closed.clone() });
        let (owning, serving) = opened.split(run);
        let stop = self.lifecycle.stop();
        self.lifecycle.must_not_end("sharing", owning);
        self.lifecycle.must_not_end("plugin", serving);
        self.lifecycle.must_run("guarding", guarding.run(stop.clone()));
        self.lifecycle.must_run("announcing", announcing.run(stop));
        Ok(leaves)
    }

    /// Starts the stream to the extender.
    fn report(&mut self, settings: &ReportSettings, stages: watch::Receiver<SharingStages>) -> Departure {
        let (departure, seen) = departure();
        let stream = LeaderStream {
            settings: settings.clone(),
            view: self.view.clone(),
            stages,
            progress: self.progress.subscribe(),
            departure: seen,
        };
        self.lifecycle.must_run("stream", stream.run(self.lifecycle.stop()));
        departure
    }
}
