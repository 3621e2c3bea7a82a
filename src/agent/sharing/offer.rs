//! Makes the device list for the kubelet, which has the slots of the node's devices. Its inputs are the node view, the
//! device configuration, the GPUs that an operator keeps from new containers, and the findings about the host.

use super::devices::{self, ReadableEdits, SharedDevices};
use super::host::HostFindings;
use decide::allocator::{ListedSlot, NodeAllocator, SharedDevice};
use effects::plugin::PluginDevice;
use model::id::GpuUuid;
use model::observation::GpuSourceState;
use model::view::NodeView;
use model::withheld::WithheldDevice;
use std::collections::BTreeSet;
use std::future::pending;
use std::sync::Arc;
use tokio::sync::watch;
use wire::device_config::DeviceConfig;

/// The sources of the device list, and the list.
#[derive(Debug)]
pub(super) struct DeviceOffer {
    config: DeviceConfig,
    /// The numbers of slots of GPU models for which the configuration's number does not apply.
    split_counts: Vec<(String, u32)>,
    /// The folder of the device nodes.
    devices: SharedDevices,
    sources: OfferSources,
    list: watch::Sender<Arc<[PluginDevice]>>,
}

/// The inputs of the list.
#[derive(Debug)]
pub(super) struct OfferSources {
    /// The node view.
    pub view: watch::Receiver<Arc<NodeView>>,
    /// GPUs that an operator keeps from new containers.
    pub cordoned: watch::Receiver<Arc<BTreeSet<GpuUuid>>>,
    /// What the host provides: the toolkit's CDI spec, the setup of the container runtime, the limiter.
    pub host: watch::Receiver<HostFindings>,
}

/// The current devices.
#[derive(Debug)]
pub(super) struct Offered {
    /// The node view.
    pub view: Arc<NodeView>,
    /// The shared devices of the view.
    pub devices: Vec<SharedDevice>,
    /// The devices that an operator keeps from new containers.
    pub cordoned: BTreeSet<GpuUuid>,
    /// The devices that the driver lists and that are not offered.
    pub withheld: Vec<WithheldDevice>,
    /// The edits that containers get; `None` if they have not changed.
    pub node_edits: Option<ReadableEdits>,
    /// What containers lack on this host, and what to do about it.
    pub lacks: Option<Arc<str>>,
}

impl DeviceOffer {
    /// Makes an empty list.
    pub(super) fn new(
        (config, split_counts): (DeviceConfig, Vec<(String, u32)>),
        devices: SharedDevices,
        sources: OfferSources,
        list: watch::Sender<Arc<[PluginDevice]>>,
    ) -> DeviceOffer {
        DeviceOffer { config, split_counts, devices, sources, list }
    }

    /// The device configuration: how GPUs are divided.
    pub(super) fn config(&self) -> &DeviceConfig {
        &self.config
    }

    /// Waits for the driver's first answer. Then the view has the node's GPUs, or says why it has no GPUs.
    pub(super) async fn is_known(&self) {
        // The channel does not close before the owner ends.
        let mut view = self.sources.view.clone();
        let _ = view.wait_for(|view| view.gpu_source != GpuSourceState::Starting).await.is_ok();
    }

    /// Waits until a source has changed.
    pub(super) async fn changed(&mut self) {
        let OfferSources { view, cordoned, host } = &mut self.sources;
        tokio::select! {
            Ok(()) = view.changed() => {}
            Ok(()) = cordoned.changed() => {}
            Ok(()) = host.changed() => {}
            else => pending().await,
        }
    }

    /// The current devices. Marks the sources as unchanged. `runtime` is the container runtime of the kubelet.
    pub(super) fn take(&mut self, runtime: Option<Arc<str>>) -> Offered {
        let view = Arc::clone(&self.sources.view.borrow_and_update());
        let host = self.sources.host.borrow_and_update().clone();
        let cordoned = devices::cordoned(&view, &self.sources.cordoned.borrow_and_update());
        let devices = devices::of(&view, &self.config, &self.split_counts);
        let node_edits = self.devices.node_edits(&view, &self.config, (&host, runtime));
        let withheld = devices::withheld(&view, &self.config);
        Offered { view, devices, cordoned, withheld, node_edits, lacks: host.lacks() }
    }

    /// Gives the allocator the current devices. Does not mark the sources as unchanged.
    pub(super) fn preview(&self, allocator: &mut NodeAllocator) {
        let view = Arc::clone(&self.sources.view.borrow());
        allocator.is_without_records();
        allocator.whole_gpus_are(devices::whole(&view));
        allocator.set_devices(devices::of(&view, &self.config, &self.split_counts));
        allocator.set_cordoned(devices::cordoned(&view, &self.sources.cordoned.borrow()));
    }

    /// Sends the slots of the allocator to the kubelet, if they have changed.
    pub(super) fn publish(&self, allocator: &NodeAllocator) {
        let devices = slots(allocator);
        self.list.send_if_modified(|now| {
            let changed = *now != devices;
            *now = devices;
            changed
        });
    }

    /// Sends the slots of the allocator to the kubelet, even if they have not changed.
    pub(super) fn publish_again(&self, allocator: &NodeAllocator) {
        self.list.send_replace(slots(allocator));
    }
}

fn slots(allocator: &NodeAllocator) -> Arc<[PluginDevice]> {
    let device = |listed: ListedSlot| PluginDevice {
        id: listed.slot.to_string().into(),
        healthy: listed.healthy,
        numa: listed.numa,
    };
    allocator.list().into_iter().map(device).collect()
}
