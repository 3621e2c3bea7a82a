//! Opens everything that sharing needs. If something cannot be used, the start fails and names the setting to change.

use super::calls::KubeletCalls;
use super::cdi_finder::CdiFinder;
use super::container_files::ContainerFiles;
use super::counts::Counts;
use super::holders::HolderSources;
use super::host::HostWatcher;
use super::listing::Listing;
use super::node_pods::NodePods;
use super::offer::{DeviceOffer, OfferSources};
use super::pod_status::PodStatusWriter;
use super::runtime_cdi::{CheckSources, RuntimeCdi};
use super::serving::{Run, Serving, owning, serving};
use super::sharing_task::Sharing;
use super::ticket_issuer::TicketIssuer;
use super::ticket_writer::Keeper;
use super::{devices, topology};
use crate::guarding::Guards;
use crate::settings::{AgentSettings, Gpus, Topology};
use apiserver::ApiConnection;
use decide::agent_report::SharingStages;
use decide::allocator::{NodeAllocator, WithoutClaim};
use decide::gone_pods::GonePods;
use effects::delivery::{DeviceDelivery, NodeEdits, StartedPodsFile, TicketFolders};
use effects::plugin::{self, PluginCallSender, TicketJournal};
use model::id::{GpuUuid, NodeName};
use model::plugin::RegistrationState;
use model::pod::PodList;
use model::view::NodeView;
use rustix::thread::CapabilitySet;
use sources::checkpoint::CheckpointReader;
use sources::report::Reporter;
use std::collections::BTreeSet;
use std::io;
use std::path::Path;
use std::sync::Arc;
use tokio::sync::watch;
use wire::device_config::DeviceConfig;

/// The folder of device plugins below the kubelet's root directory; the name is compiled into the kubelet.
const PLUGINS: &str = "device-plugins";
/// The folder of the kubelet's plugin watcher, in which an agent of an earlier release may have left a socket.
const REGISTRY: &str = "plugins_registry";
/// The file in the state directory that exists once a scheduler has placed pods here.
const SERVED: &str = "served-by-scheduler";

/// The parts of sharing: the sharing task, the host watcher, and the server that the kubelet calls.
pub(crate) struct Opened {
    /// The sharing task.
    pub owner: Sharing,
    finder: CdiFinder,
    watcher: HostWatcher,
    serving: Serving,
    /// Sends the sharing task the GPUs that an operator keeps from new containers.
    pub cordoned: watch::Sender<Arc<BTreeSet<GpuUuid>>>,
    /// Sends the sharing task the state of the chart's policies.
    pub guards: watch::Sender<Guards>,
}

impl Opened {
    /// The stages of the pods, for a stream to the extender. They are computed only while there is a receiver.
    pub(crate) fn stages(&self) -> watch::Receiver<SharingStages> {
        self.owner.counts.stages()
    }
}

/// Opens sharing for this node.
///
/// # Errors
/// A message that says what cannot be used, and which setting names it.
pub(crate) fn open(
    (settings, config): (&AgentSettings, DeviceConfig),
    node: &NodeName,
    (view, pods): (watch::Receiver<Arc<NodeView>>, watch::Receiver<Option<Arc<PodList>>>),
    (mut writer, reporter, connection): (PodStatusWriter, Reporter, ApiConnection),
) -> Result<Opened, String> {
    let sharing = &settings.sharing;
    let resource: Arc<str> = config.rules.names.count.as_str().into();
    let served = settings.state_dir.join(SERVED);
    let watcher = watcher(settings)?;
    let (calls, queue) = PluginCallSender::channel();
    let (list, listed) = watch::channel(Arc::from([]));
    let (registration, registration_seen) = watch::channel(RegistrationState::Waiting("a list of GPUs".into()));
    let (cordoned, named) = watch::channel(Arc::default());
    let (guards, guarded) = watch::channel(Guards::new());
    let sources = OfferSources { view: view.clone(), cordoned: named, host: watcher.host() };
    let seen = CheckSources { roots: settings.sources.roots.clone(), view, pods: pods.clone() };
    let rules = config.rules.clone();
    writer.switch_evictions(sharing.evict_over_use);
    let owner = Sharing {
        allocator: allocator(settings, &served),
        cdi: RuntimeCdi::new(seen, &settings.state_dir),
        holders: holders(settings, &resource, reporter.clone()),
        tickets: TicketIssuer::new(Keeper::start(
            TicketFolders::new(&settings.state_dir),
            TicketJournal::new(&settings.state_dir),
        )),
        files: files(settings, reporter.clone())?,
        calls: KubeletCalls::new(queue),
        pods: NodePods::new(pods, (rules, node.clone()), served),
        offer: DeviceOffer::new((config, sharing.split_counts.clone()), devices(settings), sources, list),
        gone: GonePods::default(),
        status: writer,
        counts: Counts::new(Arc::clone(&resource), Arc::clone(calls.meter()), (registration_seen, guarded), reporter),
    };
    let kubelet = (connection, node.clone());
    let finder = CdiFinder::new(kubelet.clone(), settings.names.cri_socket.clone(), registration.clone());
    let serving = Serving { settings: sockets(settings, resource), calls, list: listed, registration, kubelet };
    Ok(Opened { owner, finder, watcher, serving, cordoned, guards })
}

fn holders(settings: &AgentSettings, resource: &Arc<str>, reporter: Reporter) -> HolderSources {
    let plugins = settings.sharing.kubelet_root.join(PLUGINS);
    let checkpoint = CheckpointReader::new(&plugins, Arc::clone(resource));
    let listing = Listing::new(settings.names.pod_resources_socket.clone(), Arc::clone(resource));
    HolderSources::new(checkpoint, listing, reporter)
}

fn files(settings: &AgentSettings, reporter: Reporter) -> Result<ContainerFiles, String> {
    let state_dir = &settings.state_dir;
    let delivery = DeviceDelivery::new(state_dir, &settings.sharing.cdi_dir, NodeEdits::default())
        .map_err(|error| format!("{error}; see --state-dir and --cdi-dir"))?;
    let kept = (TicketFolders::new(state_dir), StartedPodsFile::new(state_dir));
    Ok(ContainerFiles::new(delivery, kept, settings.sharing.pod_files_limit, reporter))
}

fn devices(settings: &AgentSettings) -> devices::SharedDevices {
    let sharing = &settings.sharing;
    devices::SharedDevices::new(&sharing.dev_root, sharing.dev_root_mount.as_ref().unwrap_or(&sharing.dev_root))
}

fn sockets(settings: &AgentSettings, resource: Arc<str>) -> plugin::Settings {
    let sharing = &settings.sharing;
    let (registry, plugins) = (sharing.kubelet_root.join(REGISTRY), sharing.kubelet_root.join(PLUGINS));
    plugin::Settings { resource, registry, plugins }
}

fn allocator(settings: &AgentSettings, served: &Path) -> NodeAllocator {
    let sharing = &settings.sharing;
    let without_claim = match sharing.without_claim {
        // An extender places the pods of a node whose agent reports to it, also before the first one has come.
        WithoutClaim::Auto if settings.report.is_some() => WithoutClaim::Refuse,
        asked => asked,
    };
    let mut allocator = NodeAllocator::new(without_claim, served.exists());
    allocator.allow_same_gpu_twice(sharing.same_gpu_twice);
    // Closed until it is known that containers get their devices by CDI.
    allocator.close(true);
    allocator.follow_topology(topology::read(sharing.topology, &sharing.kubelet_root) == Topology::Aligned);
    allocator
}

/// Makes the host watcher. Simulated GPUs need nothing from the host or from its container runtime.
fn watcher(settings: &AgentSettings) -> Result<HostWatcher, String> {
    let sharing = &settings.sharing;
    let simulated = matches!(settings.sources.gpus, Gpus::Simulated { .. });
    let folders = if simulated { Vec::new() } else { sharing.host_cdi_dirs.clone() };
    let asked = (!simulated).then(|| settings.names.cri_socket.clone());
    let mut watcher = HostWatcher::new(folders, asked);
    if let Some(library) = &sharing.limiter_library {
        watcher.limit_by(library, &settings.state_dir).map_err(|why| format!("{why}; see --limiter-library"))?;
        warn_of_closed_folders();
    }
    Ok(watcher)
}

/// Warns when the agent lacks the capabilities to open every folder of containers. A user of a container can create a
/// folder that only this user may enter, and a container's root user can close a folder to all users.
fn warn_of_closed_folders() {
    let sets = rustix::thread::capabilities(None);
    // If the kernel does not report the capabilities, there is nothing to warn about.
    if sets.is_ok_and(|sets| !opens_all_folders(sets.effective)) {
        tracing::warn!(
            "with --limiter-library, containers write into folders on the node; without CAP_DAC_OVERRIDE and CAP_FOWNER, the agent \
             can neither count nor remove files in folders that a container closes: give the agent both (docs/capabilities.md)"
        );
    }
}

fn opens_all_folders(effective: CapabilitySet) -> bool {
    effective.contains(CapabilitySet::DAC_OVERRIDE | CapabilitySet::FOWNER)
}

impl Opened {
    /// The two tasks: the sharing task, and the server that registers with the kubelet and serves it.
    pub(crate) fn split(
        self,
        run: Run,
    ) -> (impl Future<Output = io::Result<()>>, impl Future<Output = io::Result<()>>) {
        let Opened { owner, finder, watcher, serving: served, .. } = self;
        let (enter, entered) = tokio::sync::oneshot::channel();
        let cdi = owner.cdi.watch();
        let owning =
            owning(owner, (finder, watcher), (served.kubelet.clone(), served.registration.clone()), enter, run.clone());
        (owning, serving(served, cdi, entered, run))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_of_the_two_capabilities_is_not_enough() {
        let (enters, owns) = (CapabilitySet::DAC_OVERRIDE, CapabilitySet::FOWNER);
        for (effective, enough) in
            [(CapabilitySet::empty(), false), (enters, false), (owns, false), (enters | owns, true)]
        {
            assert_eq!(opens_all_folders(effective | CapabilitySet::CHOWN), enough, "{effective:?}");
        }
    }
}
