//! The task that writes on the agent's own Node: the register, the handshake, the profiles of the GPUs and the labels.
//!
//! ```text
//!   view ──GPUs──▶ register annotation ─┐
//!   profiles ──▶ profile_annotations ───┤
//!   Node, read every 10 s ──────────────┴─▶ decide::announce ──▶ one PATCH, when it is due
//!                         ├─ cordoned GPUs ──▶ the sharing task
//!                         ├─ decide::link_scores ──▶ one PATCH, when the Node says something else
//!                         └─ decide::labels ──▶ one PATCH, when the labels do not fit the GPUs
//! ```

use super::clean::{self, Ours};
use super::cordon::Cordon;
use super::node_register;
use super::profile_annotations::{ProfileAnnotations, ProfileChanges};
use super::settings::RegisterFormat;
use super::sharing::devices;
use apiserver::ApiError;
use apiserver::own_node::OwnNodeReader;
use apiserver::writes::ApiServer;
use decide::allocator::SharedDevice;
use decide::announce::{AnnouncedState, AnnouncementWrite, Announcer, GpusGone, HandshakeRequest, next_read};
use decide::labels::{self, Labelling};
use decide::link_scores::link_scores;
use model::id::GpuUuid;
use model::observation::ErrorCounter;
use model::view::NodeView;
use sources::report::Reporter;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use wire::annotation_keys;
use wire::device_config::DeviceConfig;
use wire::handshake::{self, Handshake};
use wire::node::NodeObject;

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
    /// What the Node shows of the load of the GPUs.
    pub profiles: ProfileAnnotations,
    /// How long the node must be without a GPU before the agent removes what it wrote about GPUs.
    pub quiet: Duration,
    /// The newest view of the node.
    pub view: watch::Receiver<Arc<NodeView>>,
    /// Reads the agent's Node from the API server.
    pub node: OwnNodeReader,
    /// Writes on the Node.
    pub api: ApiServer,
    /// Counts the changes of the profiles that had to wait.
    pub reporter: Reporter,
    /// The cordoned GPUs, for the sharing task.
    pub cordoned: watch::Sender<Arc<BTreeSet<GpuUuid>>>,
}

impl Announcing {
    /// Runs until `stop` is cancelled.
    pub(crate) async fn run(mut self, stop: CancellationToken) {
        let mut announce = Announcer::new(self.handshakes);
        let mut gpus_gone = GpusGone::after(self.quiet);
        let mut failures = WriteFailures::default();
        let mut cordon = Cordon::default();
        let work = async {
            loop {
                let view = Arc::clone(&self.view.borrow_and_update());
                let offered = node_register::known_devices(&view, &self.config, &self.split_counts);
                let known = offered.is_some();
                let are_gone = gpus_gone.is(node_register::none_left(&view), clock::monotonic());
                if are_gone {
                    // A GPU that appears later is announced in the same way as after a start of the agent.
                    announce = Announcer::new(self.handshakes);
                } else {
                    announce
                        .set_register(offered.and_then(|devices| node_register::encode(&view, devices, self.format)));
                }
                match self.node.read().await {
                    Ok(seen) => {
                        if let Some(cordoned) = cordon.changed(seen.annotation(annotation_keys::CORDON)) {
                            self.cordoned.send_replace(Arc::new(cordoned));
                        }
                        if are_gone {
                            self.clean(&seen, &mut failures.refused).await;
                        } else {
                            self.write(&mut announce, &seen, &mut failures).await;
                            self.label(&seen, &mut failures.labels).await;
                            if known {
                                self.connect(&seen, &mut failures.links).await;
                            }
                        }
                    }
                    Err(error) => tracing::debug!(%error, "cannot read this node's Node"),
                }
                tokio::select! {
                    () = tokio::time::sleep(next_read(fraction())) => {}
                    // After the start, announce the GPUs as soon as they are known: schedulers wait for this. A wait that ends while
                    // they are not known would read the Node again and again without a pause.
                    Ok(_) = self.view.wait_for(|view| node_register::known_devices(view, &self.config, &self.split_counts).is_some()), if !known => {}
                }
            }
        };
        tokio::select! { () = stop.cancelled() => {}, () = work => {} }
    }

    async fn write(&self, announce: &mut Announcer, seen: &NodeObject, failures: &mut WriteFailures) {
        let profiles = self.profiles.changes(&self.view.borrow(), seen, clock::now());
        let state = AnnouncedState { profiles: profiles.difference, ..announced_state(seen) };
        let delayed = announce.profiles_delayed();
        let due = announce.due(&state, clock::now(), fraction());
        if announce.profiles_delayed() > delayed {
            self.reporter.trouble(ErrorCounter::ProfileWriteDelayed);
        }
        let Some(mut write) = due else { return };
        let mut result = self.send(&write, &profiles).await;
        if let (true, Err(error)) = (write.profiles, &result)
            && matches!(error.code(), Some(403 | 422))
        {
            // Policies of an earlier release refuse the profiles. They must not prevent the write of the register.
            if !std::mem::replace(&mut failures.profiles, true) {
                tracing::warn!(%error, "cannot write on this node's Node what is known about the load of its GPUs");
            }
            announce.profiles_refused(clock::now());
            write.profiles = false;
            if write == AnnouncementWrite::default() {
                return;
            }
            result = self.send(&write, &profiles).await;
        }
        match result {
            Ok(()) => {
                failures.log_written(&write, &profiles);
                announce.written(&write, clock::now());
            }
            Err(error) => {
                // Log only the first failure. The next success is logged too.
                if !std::mem::replace(&mut failures.refused, true) {
                    tracing::warn!(%error, "cannot write on this node's Node: schedulers do not see its GPUs");
                }
                announce.failed(clock::now());
            }
        }
    }

    /// Sends one PATCH with all that is due.
    async fn send(&self, write: &AnnouncementWrite, profiles: &ProfileChanges) -> Result<(), ApiError> {
        let handshake_text = write.handshake.map(handshake::encode);
        let mut annotations = Vec::new();
        if let Some(text) = &write.register {
            annotations.push((annotation_keys::REGISTER, Some(&**text)));
        }
        if handshake_text.is_some() || write.removes_handshake {
            annotations.push((annotation_keys::HANDSHAKE, handshake_text.as_deref()));
        }
        if write.profiles {
            annotations.extend(profiles.changes.iter().map(|(key, value)| (key.as_str(), value.as_deref())));
        }
        self.api.annotate_node(&annotations).await
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
}

fn announced_state(seen: &NodeObject) -> AnnouncedState {
    let handshake = seen.annotation(annotation_keys::HANDSHAKE).map(handshake::decode);
    let request = match handshake {
        Some(Handshake::Requesting { stated }) => HandshakeRequest::Requested(stated),
        _ => HandshakeRequest::None,
    };
    let heartbeat = matches!(handshake, Some(Handshake::At(_)));
    let register = seen.annotation(annotation_keys::REGISTER).map(Arc::from);
    AnnouncedState { register, request, heartbeat, ..AnnouncedState::default() }
}

/// The writes whose failure was logged. The next success is logged too, and further failures are not.
#[derive(Debug, Default)]
struct WriteFailures {
    refused: bool,
    profiles: bool,
    labels: bool,
    links: bool,
}

impl WriteFailures {
    fn log_written(&mut self, write: &AnnouncementWrite, profiles: &ProfileChanges) {
        if std::mem::take(&mut self.refused) {
            tracing::info!("writing on this node's Node works again");
        }
        if let Some(text) = &write.register {
            tracing::info!(bytes = text.len(), "register written on this node's Node");
        }
        if write.removes_handshake {
            tracing::info!(
                "the handshake of an earlier agent is removed from this node's Node: this agent writes none"
            );
        }
        if write.handshake.is_some() {
            tracing::debug!("handshake written on this node's Node");
        }
        if write.profiles {
            self.profiles = false;
            tracing::debug!(annotations = profiles.changes.len(), "profiles of GPUs written on this node's Node");
        }
    }
}

/// A random number between 0 and 1.
fn fraction() -> f64 {
    let mut bytes = [0; 4];
    // Without random bytes all nodes write at the same time, which is acceptable.
    let _ = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty());
    f64::from(u32::from_ne_bytes(bytes)) / f64::from(u32::MAX)
}
