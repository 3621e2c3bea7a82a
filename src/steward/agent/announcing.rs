//! The task that writes on our own Node: what this node has, and that it lives.
//!
//! ```text
//!   view ──cards──▶ register annotation ─┐
//!   Node, looked at every 10 s ──────────┴─▶ decide::announce ──▶ one PATCH, when it is due
//!                              ├─ GPUs that are cordoned ──▶ who shares them
//!                              └─ decide::labels ──▶ one PATCH, when the GPUs are others than the labels say
//! ```

use super::clean::{self, Ours};
use super::sharing::devices;
use crate::settings::value::RegisterFormat;
use decide::announce::{AnnouncedState, AnnouncementWrite, Announcer, GpusGone, HandshakeQuestion, next_look};
use decide::labels::{self, Labelling};
use effects::apiserver::{ApiServer, NotWritten};
use model::id::GpuUuid;
use model::observation::GpuSourceState;
use model::reading::Absence;
use model::registered::RegisteredGpu;
use model::unit::{CorePercent, Mib};
use model::view::NodeView;
use sources::kubernetes::own_node::OwnNodeReader;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use wire::device_config::DeviceConfig;
use wire::handshake::{self, Handshake};
use wire::node::NodeObject;
use wire::{cordon, key, register};

/// What it needs.
#[derive(Debug)]
pub(crate) struct Announcing {
    /// How GPUs are cut.
    pub config: DeviceConfig,
    /// Another number of slots for models of these names.
    pub split_counts: Vec<(String, u32)>,
    /// In which form.
    pub format: RegisterFormat,
    /// Whether the handshake is written.
    pub handshakes: bool,
    /// Whether labels are.
    pub labelling: Labelling,
    /// How long there must be no GPU before what was written about them is taken away.
    pub quiet: Duration,
    /// What is seen of the node.
    pub view: watch::Receiver<Arc<NodeView>>,
    /// Our Node, as the API server has it.
    pub node: OwnNodeReader,
    /// Who writes.
    pub api: ApiServer,
    /// To who shares the GPUs: those that an operator keeps from new containers.
    pub cordoned: watch::Sender<Arc<BTreeSet<GpuUuid>>>,
}

impl Announcing {
    /// Runs until `stop` is cancelled.
    pub(crate) async fn run(mut self, stop: CancellationToken) {
        let mut announce = Announcer::new(self.handshakes);
        let mut bare = GpusGone::after(self.quiet);
        let (mut refused, mut unlabelled) = (false, false);
        let mut cordon = Cordon::default();
        let work = async {
            loop {
                let register = self.register();
                let known = register.is_some();
                let is_bare = bare.is(none_left(&self.view.borrow()), sources::clock::monotonic());
                if is_bare {
                    // A GPU that comes is announced as in a new life.
                    announce = Announcer::new(self.handshakes);
                } else {
                    announce.register_is(register);
                }
                match self.node.look().await {
                    Ok(seen) => {
                        if let Some(cordoned) = cordon.said(seen.annotation(key::CORDON)) {
                            self.cordoned.send_replace(Arc::new(cordoned));
                        }
                        if is_bare {
                            self.clean(&seen, &mut refused).await;
                        } else {
                            self.write(&mut announce, &seen, &mut refused).await;
                            self.label(&seen, &mut unlabelled).await;
                        }
                    }
                    Err(why) => tracing::debug!(why, "our Node cannot be looked at"),
                }
                tokio::select! {
                    () = tokio::time::sleep(next_look(fraction())) => {}
                    // Who has just started has its first answer a moment later, and schedulers are not to wait for it.
                    Ok(_) = self.view.wait_for(answered), if !known => {}
                }
            }
        };
        tokio::select! { () = stop.cancelled() => {}, () = work => {} }
    }

    async fn write(&self, announce: &mut Announcer, seen: &NodeObject, refused: &mut bool) {
        let said = said(seen);
        let Some(write) = announce.due(&said, sources::clock::now(), fraction()) else { return };
        let shake = write.handshake.map(handshake::encode);
        let mut annotations = Vec::new();
        if let Some(text) = &write.register {
            annotations.push((key::REGISTER, Some(&**text)));
        }
        if let Some(text) = &shake {
            annotations.push((key::HANDSHAKE, Some(text.as_str())));
        }
        match self.api.annotate_node(&annotations).await {
            Ok(()) => {
                told(&write, refused);
                announce.written(&write, sources::clock::now());
            }
            Err(error) => {
                // Once; the next success says that it is over.
                if !std::mem::replace(refused, true) {
                    tracing::warn!(%error, "cannot write on our Node: schedulers do not learn what this node has");
                }
                announce.failed(sources::clock::now());
            }
        }
    }

    /// No GPU is left: nothing on our Node is to say that there is one. Another try is made at the next look.
    async fn clean(&self, seen: &NodeObject, refused: &mut bool) {
        let ours = Ours::on(seen);
        if ours.is_empty() {
            return;
        }
        match ours.remove(&self.api, seen).await {
            Ok(()) => {
                *refused = false;
                tracing::info!(
                    "no GPU is left on this node: its labels and the list of GPUs are taken away from its Node"
                );
            }
            Err(NotWritten::Refused { code: 409, .. }) => {}
            Err(error) if !std::mem::replace(refused, true) => {
                tracing::warn!(%error, "cannot write on our Node: it still tells of GPUs that are gone");
            }
            Err(_) => {}
        }
    }

    /// Labels that are not as they should be; another try is made at the next look.
    async fn label(&self, seen: &NodeObject, unlabelled: &mut bool) {
        let wanted = {
            let view = self.view.borrow();
            let slots = |card: decide::allocator::SharedDevice| u32::from(card.slots);
            let replicas = devices::of(&view, &self.config, &self.split_counts).into_iter().map(slots).max();
            wire::labels::of(&view, replicas.unwrap_or(1))
        };
        let standing = clean::standing(seen);
        let discovery = seen.label(key::DISCOVERY).is_some();
        let due = labels::due(self.labelling, wanted.as_ref(), &standing, (discovery, key::LABEL_PRESENT));
        if due.is_empty() {
            return;
        }
        let pairs: Vec<(&str, Option<&str>)> = due.iter().map(|(key, value)| (*key, value.as_deref())).collect();
        match self.api.label_node(&pairs).await {
            Ok(()) => {
                *unlabelled = false;
                tracing::info!(labels = pairs.len(), "labels of our Node are written anew");
            }
            Err(error) if !std::mem::replace(unlabelled, true) => {
                tracing::warn!(%error, "cannot write labels of our Node: nobody can select it by its GPUs");
            }
            Err(_) => {}
        }
    }

    /// What this node has, as text. `None` before the first answer about GPUs: nothing known is not nothing there.
    fn register(&mut self) -> Option<Arc<str>> {
        let view = Arc::clone(&self.view.borrow_and_update());
        if !answered(&view) {
            return None;
        }
        let gpus: Vec<RegisteredGpu> =
            devices::of(&view, &self.config, &self.split_counts).into_iter().map(registered).collect();
        let text = match self.format {
            RegisterFormat::Json => register::encode(&gpus),
            RegisterFormat::Colon => register::encode_colons(&gpus),
        };
        text.map(Arc::from).inspect_err(|fault| tracing::error!(%fault, "this node's GPUs cannot be written down")).ok()
    }
}

/// Whether it is known what GPUs there are, or were.
fn answered(view: &Arc<NodeView>) -> bool {
    matches!(view.gpu_source, GpuSourceState::Working { .. }) || !view.gpus.is_empty()
}

/// Whether the driver says that there is none, or there is no driver and none was seen in this life.
fn none_left(view: &NodeView) -> bool {
    let told = match &view.gpu_source {
        GpuSourceState::Working { .. } => true,
        GpuSourceState::Missing { why, .. } => matches!(why, Absence::DriverNotLoaded | Absence::LibraryNotFound),
        GpuSourceState::Starting
        | GpuSourceState::Hanging
        | GpuSourceState::Released { .. }
        | GpuSourceState::SwitchedOff => false,
    };
    told && view.gpus.is_empty() && view.gpus_unidentified.is_empty()
}

/// What an operator wrote last, and whether it could be read.
#[derive(Debug, Default)]
struct Cordon {
    text: Option<String>,
}

impl Cordon {
    /// The GPUs that are cordoned now, if the annotation has changed. One that cannot be read changes nothing: a GPU that
    /// somebody keeps free must not be given away by a typing error.
    fn said(&mut self, text: Option<&str>) -> Option<BTreeSet<GpuUuid>> {
        if self.text.as_deref() == text {
            return None;
        }
        self.text = text.map(str::to_owned);
        match cordon::decode(text.unwrap_or_default()) {
            Ok(cordoned) => {
                let gpus: Vec<&str> = cordoned.iter().map(GpuUuid::as_str).collect();
                tracing::info!(?gpus, "GPUs that get no new containers ({}) are these", key::CORDON);
                Some(cordoned)
            }
            Err(fault) => {
                tracing::warn!(%fault, "cannot read which GPUs are cordoned; what was read last holds on");
                None
            }
        }
    }
}

fn registered(card: decide::allocator::SharedDevice) -> RegisteredGpu {
    RegisteredGpu {
        uuid: card.device,
        index: card.index,
        slots: u32::from(card.slots),
        memory: Mib::within(card.memory),
        cores: CorePercent(card.cores),
        product: card.model,
        numa: card.numa.unwrap_or(0),
        mode: "hami-core".into(),
        healthy: card.healthy,
        mig_profiles: Vec::new(),
    }
}

fn said(seen: &NodeObject) -> AnnouncedState {
    let question = match seen.annotation(key::HANDSHAKE).map(handshake::decode) {
        Some(Handshake::Requesting { stated }) => HandshakeQuestion::Asked(stated),
        _ => HandshakeQuestion::None,
    };
    AnnouncedState { register: seen.annotation(key::REGISTER).map(Arc::from), question }
}

fn told(write: &AnnouncementWrite, refused: &mut bool) {
    if std::mem::take(refused) {
        tracing::info!("our Node can be written on again");
    }
    if let Some(text) = &write.register {
        tracing::info!(bytes = text.len(), "what this node has is written on its Node");
    }
    if write.handshake.is_some() {
        tracing::debug!("a handshake is written on our Node");
    }
}

/// A number between 0 and 1 that differs from node to node and from call to call.
fn fraction() -> f64 {
    let mut bytes = [0; 4];
    // Without random bytes the nodes write in step, which is no error.
    let _ = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty());
    f64::from(u32::from_ne_bytes(bytes)) / f64::from(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cordon_that_cannot_be_read_keeps_the_last_that_could() {
        let gpu = |name: &str| GpuUuid::parse(name).unwrap();
        let mut cordon = Cordon::default();
        assert_eq!(cordon.said(None), None, "nothing was there and nothing is");
        assert_eq!(cordon.said(Some("GPU-a, GPU-b")), Some([gpu("GPU-a"), gpu("GPU-b")].into()));
        assert_eq!(cordon.said(Some("GPU-a, GPU-b")), None, "told once");
        assert_eq!(cordon.said(Some("GPU a")), None);
        assert_eq!(cordon.said(Some("GPU-a")), Some([gpu("GPU-a")].into()));
        assert_eq!(cordon.said(None), Some(BTreeSet::new()), "taken away");
    }
}
