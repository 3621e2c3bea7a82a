//! The task that writes on the agent's own Node: the register, the handshake and the labels.
//!
//! ```text
//!   view ──GPUs──▶ register annotation ─┐
//!   Node, read every 10 s ──────────────┴─▶ decide::announce ──▶ one PATCH, when it is due
//!                         ├─ cordoned GPUs ──▶ the sharing task
//!                         ├─ decide::link_scores ──▶ one PATCH, when the Node says something else
//!                         └─ decide::labels ──▶ one PATCH, when the labels do not fit the GPUs
//! ```

use super::clean::{self, Ours};
use super::settings::RegisterFormat;
use super::sharing::devices;
use apiserver::own_node::OwnNodeReader;
use apiserver::writes::ApiServer;
use decide::allocator::SharedDevice;
use decide::announce::{AnnouncedState, AnnouncementWrite, Announcer, GpusGone, HandshakeRequest, next_read};
use decide::labels::{self, Labelling};
use decide::link_scores::link_scores;
use model::id::GpuUuid;
use model::observation::GpuSourceState;
use model::reading::Absence;
use model::registered::RegisteredGpu;
use model::unit::{CorePercent, Mib};
use model::view::NodeView;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use wire::device_config::DeviceConfig;
use wire::handshake::{self, Handshake};
use wire::node::NodeObject;
use wire::{annotation_keys, cordon, register};

/// The task, with its settings, inputs and outputs.
#[derive(Debug)]
pub(crate) struct Announcing {
    /// The device configuration: slots and scaling of GPUs.
    pub config: DeviceConfig,
    /// The number of slots for GPUs of certain models.
    pub split_counts: Vec<(String, u32)>,
    /// The format of the register annotation.
    pub format: RegisterFormat,
    /// Whether the handshake is written.
    pub handshakes: bool,
    /// Whether labels are written.
    pub labelling: Labelling,
    /// How long the node must be without a GPU before the agent removes what it wrote about GPUs.
    pub quiet: Duration,
    /// The newest view of the node.
    pub view: watch::Receiver<Arc<NodeView>>,
    /// Reads the agent's Node from the API server.
    pub node: OwnNodeReader,
    /// Writes on the Node.
    pub api: ApiServer,
    /// The cordoned GPUs, for the sharing task.
    pub cordoned: watch::Sender<Arc<BTreeSet<GpuUuid>>>,
}

impl Announcing {
    /// Runs until `stop` is cancelled.
    pub(crate) async fn run(mut self, stop: CancellationToken) {
        let mut announce = Announcer::new(self.handshakes);
        let mut gpus_gone = GpusGone::after(self.quiet);
        let (mut refused, mut label_failed, mut links_failed) = (false, false, false);
        let mut cordon = Cordon::default();
        let work = async {
            loop {
                let view = Arc::clone(&self.view.borrow_and_update());
                let offered = known_devices(&view, &self.config, &self.split_counts);
                let known = offered.is_some();
                let are_gone = gpus_gone.is(none_left(&view), clock::monotonic());
                if are_gone {
                    // A GPU that appears later is announced in the same way as after a start of the agent.
                    announce = Announcer::new(self.handshakes);
                } else {
                    announce.set_register(offered.and_then(|devices| self.register(&view, devices)));
                }
                match self.node.read().await {
                    Ok(seen) => {
                        if let Some(cordoned) = cordon.changed(seen.annotation(annotation_keys::CORDON)) {
                            self.cordoned.send_replace(Arc::new(cordoned));
                        }
                        if are_gone {
                            self.clean(&seen, &mut refused).await;
                        } else {
                            self.write(&mut announce, &seen, &mut refused).await;
                            self.label(&seen, &mut label_failed).await;
                            if known {
                                self.connect(&seen, &mut links_failed).await;
                            }
                        }
                    }
                    Err(error) => tracing::debug!(%error, "cannot read this node's Node"),
                }
                tokio::select! {
                    () = tokio::time::sleep(next_read(fraction())) => {}
                    // After the start, announce the GPUs as soon as they are known: schedulers wait for this. A wait that ends while
                    // they are not known would read the Node again and again without a pause.
                    Ok(_) = self.view.wait_for(|view| known_devices(view, &self.config, &self.split_counts).is_some()), if !known => {}
                }
            }
        };
        tokio::select! { () = stop.cancelled() => {}, () = work => {} }
    }

    async fn write(&self, announce: &mut Announcer, seen: &NodeObject, refused: &mut bool) {
        let state = announced_state(seen);
        let Some(write) = announce.due(&state, clock::now(), fraction()) else { return };
        let handshake_text = write.handshake.map(handshake::encode);
        let mut annotations = Vec::new();
        if let Some(text) = &write.register {
            annotations.push((annotation_keys::REGISTER, Some(&**text)));
        }
        if handshake_text.is_some() || write.removes_handshake {
            annotations.push((annotation_keys::HANDSHAKE, handshake_text.as_deref()));
        }
        match self.api.annotate_node(&annotations).await {
            Ok(()) => {
                log_written(&write, refused);
                announce.written(&write, clock::now());
            }
            Err(error) => {
                // Log only the first failure. The next success is logged too.
                if !std::mem::replace(refused, true) {
                    tracing::warn!(%error, "cannot write on this node's Node: schedulers do not see its GPUs");
                }
                announce.failed(clock::now());
            }
        }
    }

    /// Removes what the agent wrote on its Node, because no GPU is left. Retries at the next reading of the Node.
    async fn clean(&self, seen: &NodeObject, refused: &mut bool) {
        let ours = Ours::on(seen);
        if ours.is_empty() {
            return;
        }
        match ours.remove(&self.api, seen).await {
            Ok(()) => {
                *refused = false;
                tracing::info!(
                    "no GPU is left on this node: its labels and the list of GPUs are removed from its Node"
                );
            }
            Err(error) if error.code() == Some(409) => {}
            Err(error) if !std::mem::replace(refused, true) => {
                tracing::warn!(%error, "cannot write on this node's Node: it still lists GPUs that are gone");
            }
            Err(_) => {}
        }
    }

    /// Writes the labels that do not match the GPUs. Retries at the next reading of the Node.
    async fn label(&self, seen: &NodeObject, label_failed: &mut bool) {
        let desired = {
            let view = self.view.borrow();
            let slots = |device: SharedDevice| u32::from(device.slots);
            let replicas = devices::of(&view, &self.config, &self.split_counts).into_iter().map(slots).max();
            wire::labels::of(&view, replicas.unwrap_or(1), |gpu| devices::offers(gpu, &self.config))
        };
        let present = clean::present_labels(seen);
        let discovery = seen.label(annotation_keys::DISCOVERY).is_some();
        let due = labels::due(self.labelling, desired.as_ref(), &present, (discovery, annotation_keys::LABEL_PRESENT));
        if due.is_empty() {
            return;
        }
        let pairs: Vec<(&str, Option<&str>)> = due.iter().map(|(key, value)| (*key, value.as_deref())).collect();
        match self.api.label_node(&pairs).await {
            Ok(()) => {
                *label_failed = false;
                tracing::info!(labels = pairs.len(), "labels written on this node's Node");
            }
            Err(error) if !std::mem::replace(label_failed, true) => {
                tracing::warn!(%error, "cannot write labels on this node's Node: pods cannot select it by its GPUs");
            }
            Err(_) => {}
        }
    }

    /// Writes how well the GPUs are connected, if the Node shows something else. Retries at the next reading of the Node. This is a
    /// separate write: policies of an earlier release refuse it, and must not prevent the write of the register.
    async fn connect(&self, seen: &NodeObject, links_failed: &mut bool) {
        let scores = link_scores(&self.view.borrow().gpus);
        if scores.is_empty() {
            return;
        }
        let text = wire::links::encode(&scores);
        if seen.annotation(annotation_keys::NODE_LINKS) == Some(&text) {
            return;
        }
        match self.api.annotate_node(&[(annotation_keys::NODE_LINKS, Some(&text))]).await {
            Ok(()) => {
                *links_failed = false;
                tracing::info!(bytes = text.len(), "the connections between GPUs are written on this node's Node");
            }
            Err(error) if !std::mem::replace(links_failed, true) => {
                tracing::warn!(
                    %error,
                    "cannot write {} on this node's Node: the GPU policy topology-aware does not know its connections",
                    annotation_keys::NODE_LINKS
                );
            }
            Err(_) => {}
        }
    }

    /// The register annotation.
    fn register(&self, view: &NodeView, offered: Vec<SharedDevice>) -> Option<Arc<str>> {
        // Schedulers must not place pods on a GPU that another owner holds.
        let slots = view.plugin.iter().flat_map(|plugin| plugin.slots.iter());
        let taken: BTreeSet<&GpuUuid> = slots.filter(|slots| slots.taken).map(|slots| &slots.device).collect();
        let gpus: Vec<RegisteredGpu> = offered
            .into_iter()
            .map(|device| RegisteredGpu {
                healthy: device.healthy && !taken.contains(&device.device),
                ..registered(device)
            })
            .collect();
        let text = match self.format {
            RegisterFormat::Json => register::encode(&gpus),
            RegisterFormat::Colon => register::encode_colons(&gpus),
        };
        text.map(Arc::from).inspect_err(|fault| tracing::error!(%fault, "cannot encode the register of this node")).ok()
    }
}

/// The devices that the register names. `None` before the first answer about GPUs, because it is not known whether the node has GPUs,
/// and before this agent's plugin has slots.
fn known_devices(view: &NodeView, config: &DeviceConfig, split_counts: &[(String, u32)]) -> Option<Vec<SharedDevice>> {
    if !matches!(view.gpu_source, GpuSourceState::Working { .. }) && view.gpus.is_empty() {
        return None;
    }
    let offered = devices::of(view, config, split_counts);
    // Until this agent serves the kubelet, it does not know which GPUs other owners hold. The previous agent may know, so the
    // register that it wrote must stay.
    let without_slots = view.plugin.as_ref().is_some_and(|plugin| plugin.slots.is_empty());
    (!without_slots || offered.is_empty()).then_some(offered)
}

/// Whether the driver reports no GPU, or there is no driver and this agent has seen no GPU since its start.
fn none_left(view: &NodeView) -> bool {
    let known = match &view.gpu_source {
        GpuSourceState::Working { .. } => true,
        GpuSourceState::Missing { why, .. } => matches!(why, Absence::DriverNotLoaded | Absence::LibraryNotFound),
        GpuSourceState::Starting
        | GpuSourceState::Hanging
        | GpuSourceState::Released { .. }
        | GpuSourceState::SwitchedOff => false,
    };
    known && view.gpus.is_empty() && view.gpus_unidentified.is_empty()
}

/// The last text of the cordon annotation.
#[derive(Debug, Default)]
struct Cordon {
    text: Option<String>,
}

impl Cordon {
    /// The cordoned GPUs, if the annotation has changed. A text that cannot be parsed changes nothing: a typing error
    /// must not give containers a GPU that an operator keeps free.
    fn changed(&mut self, text: Option<&str>) -> Option<BTreeSet<GpuUuid>> {
        if self.text.as_deref() == text {
            return None;
        }
        self.text = text.map(str::to_owned);
        match cordon::decode(text.unwrap_or_default()) {
            Ok(cordoned) => {
                let gpus: Vec<&str> = cordoned.iter().map(GpuUuid::as_str).collect();
                tracing::info!(?gpus, "the list of cordoned GPUs ({}) has changed", annotation_keys::CORDON);
                Some(cordoned)
            }
            Err(fault) => {
                tracing::warn!(%fault, "cannot read which GPUs are cordoned; the last valid list stays in force");
                None
            }
        }
    }
}

fn registered(device: SharedDevice) -> RegisteredGpu {
    RegisteredGpu {
        uuid: device.device,
        index: device.index,
        slots: u32::from(device.slots),
        memory: Mib::within(device.memory),
        cores: CorePercent(device.cores),
        product: device.model,
        numa: device.numa.unwrap_or(0),
        mode: "hami-core".into(),
        healthy: device.healthy,
        mig_profiles: Vec::new(),
    }
}

fn announced_state(seen: &NodeObject) -> AnnouncedState {
    let handshake = seen.annotation(annotation_keys::HANDSHAKE).map(handshake::decode);
    let request = match handshake {
        Some(Handshake::Requesting { stated }) => HandshakeRequest::Requested(stated),
        _ => HandshakeRequest::None,
    };
    let heartbeat = matches!(handshake, Some(Handshake::At(_)));
    AnnouncedState { register: seen.annotation(annotation_keys::REGISTER).map(Arc::from), request, heartbeat }
}

fn log_written(write: &AnnouncementWrite, refused: &mut bool) {
    if std::mem::take(refused) {
        tracing::info!("writing on this node's Node works again");
    }
    if let Some(text) = &write.register {
        tracing::info!(bytes = text.len(), "register written on this node's Node");
    }
    if write.removes_handshake {
        tracing::info!("the handshake of an earlier agent is removed from this node's Node: this agent writes none");
    }
    if write.handshake.is_some() {
        tracing::debug!("handshake written on this node's Node");
    }
}

/// A random number between 0 and 1.
fn fraction() -> f64 {
    let mut bytes = [0; 4];
    // Without random bytes all nodes write at the same time, which is acceptable.
    let _ = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty());
    f64::from(u32::from_ne_bytes(bytes)) / f64::from(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cordon_that_cannot_be_parsed_keeps_the_last_valid_list() {
        let gpu = |name: &str| GpuUuid::parse(name).unwrap();
        let mut cordon = Cordon::default();
        assert_eq!(cordon.changed(None), None, "there was no annotation, and there is none");
        assert_eq!(cordon.changed(Some("GPU-a, GPU-b")), Some([gpu("GPU-a"), gpu("GPU-b")].into()));
        assert_eq!(cordon.changed(Some("GPU-a, GPU-b")), None, "reported once");
        assert_eq!(cordon.changed(Some("GPU a")), None);
        assert_eq!(cordon.changed(Some("GPU-a")), Some([gpu("GPU-a")].into()));
        assert_eq!(cordon.changed(None), Some(BTreeSet::new()), "removed");
    }
}
