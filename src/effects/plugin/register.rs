//! Registers the agent with the kubelet as the device plugin of its resource, and registers again if the registration
//! is lost.
//!
//! The agent's socket is in the plugin folder, and the agent calls `Register`. The kubelet deletes every socket there
//! when it starts, so the agent checks that its socket still exists.
//!
//! *After another agent* (an upgrade): an agent of an earlier release may have registered through a socket in the
//! kubelet's plugin registry, and leaves that socket there. The socket stays until the kubelet restarts or the last
//! agent ends: kubelets before 1.37 would drop the new agent if the socket were removed earlier.
//!
//! *Beside another agent*: the previous agent ends only when this agent is registered, so that the kubelet always has a
//! plugin. Kubelets before 1.37 remember one connection for each resource. When any connection of the resource ends,
//! they drop the remembered connection. So they must remember no connection when the connection of the previous agent
//! ends:
//!
//! ```text
//!   remembered:  previous agent's ── Register ──▶ this agent's ── a Register that fails ──▶ none
//!                none ── the previous agent's ends: nothing is dropped ── Register ──▶ this agent's
//! ```
//!
//! The kubelet continues to use a connection that it does not remember, but does not notice when that connection ends.
//! The last `Register` makes the kubelet remember this agent's connection. In two cases the kubelet still remembers no
//! connection: this agent is stopped before the last `Register`, or a slow kubelet sees the end of the previous agent's
//! connection while it opens the new connection. So if no other agent takes over, an agent sends, before it ends, a
//! list in which all devices are unhealthy (docs/decisions/0120).
//!
//! A successful registration leads to an open `ListAndWatch`. When the last of these streams ends and the agent did
//! not end it, the kubelet has lost the registration: the kubelet restarted, or an older registration ended and the
//! kubelet dropped this agent with it. The agent then registers from the beginning.

use super::call::{PluginCallSender, PluginDevice};
use super::second_agent::{self, SecondAgent};
use super::served_socket::{MAX_REQUEST, ServedSocket};
use super::service::{MAX_LIST, Service, Watches, encoded_len};
use super::settings::{KubeletFile, RegistrationCourse, RegistrationStart, Settings};
use model::backoff::Backoff;
use model::plugin::{RegistrationState, SecondConnection};
use proto::device_plugin::RegisterRequest;
use proto::device_plugin::device_plugin_server::DevicePluginServer;
use proto::device_plugin::registration_client::RegistrationClient;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::UnixStream;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;
use tonic::service::Routes;

/// How long the agent waits when it has removed a socket from the kubelet's registry. About a second later, the kubelet
/// drops the plugin that serves the resource of that socket, even if that plugin has since registered by `Register`.
const FORGOTTEN_WITHIN: Duration = Duration::from_secs(3);
/// If the kubelet does not call `ListAndWatch` within this time after a registration, the registration is lost; it
/// usually calls at once.
const WATCHED_WITHIN: Duration = Duration::from_secs(15);
/// Time between two checks of the agent's own socket: one `stat`.
const CHECK_EVERY: Duration = Duration::from_secs(1);
/// Time limit for `Register`, in which the kubelet dials the agent for at most 10 s.
const REGISTER_WITHIN: Duration = Duration::from_secs(15);
/// Pause between the end of the previous agent and the last `Register`, so that a kubelet that is short of CPU time
/// sees that end before it opens the new connection.
pub(super) const REMEMBERED_AFTER: Duration = Duration::from_secs(2);
/// Pause between the last list and the end of the streams, so that the kubelet reads the last list on each stream. When
/// one connection ends, the kubelet also closes the connection that it remembers.
const LEAVES_WITHIN: Duration = Duration::from_millis(50);
/// Pause between two failed attempts while the kubelet runs.
const BACKOFF: Backoff = Backoff::new(Duration::from_millis(500), Duration::from_secs(10));

/// Time between two checks whether a stopped kubelet runs again; each check is one `connect`. It is short, because the
/// kubelet fails every pod that it admits before the agent has registered.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// Pause after a lost registration. It is short, because the kubelet drops the plugin of a resource when an older
/// connection of the resource ends, and fails every pod that arrives before the plugin has registered again.
const SHORT_PAUSE: Duration = Duration::from_millis(50);
/// The number of short pauses that are allowed; a registration that lasts [`STABLE_AFTER`] allows them again. If the
/// kubelet drops the agent more often, there is another cause, and the next pauses are longer.
const SHORT_PAUSES: u32 = 3;
const STABLE_AFTER: Duration = Duration::from_secs(10);

/// Registers and serves the kubelet until `course.stop`. `state` shows the registration.
///
/// # Errors
/// If the list is longer than the kubelet accepts: the configuration must change, because a restart does not help. If
/// another agent listens on one of this agent's sockets: the two agents would take the resource from each other.
pub async fn serve(
    settings: Settings,
    list: watch::Receiver<Arc<[PluginDevice]>>,
    calls: PluginCallSender,
    state: watch::Sender<RegistrationState>,
    course: RegistrationCourse,
) -> io::Result<()> {
    let len = encoded_len(&list.borrow());
    if len > MAX_LIST {
        return Err(io::Error::other(format!(
            "{} devices of {} are {len} bytes on the wire and kubelet takes 4 MiB: lower --split-count",
            list.borrow().len(),
            settings.resource
        )));
    }
    let following = course.entry != RegistrationStart::Fresh;
    let [plugin, beside, _] = settings.socket_paths();
    let endpoint = if following && UnixStream::connect(&plugin).await.is_ok() { beside } else { plugin };
    let kubelet_at_start = settings.kubelet_file();
    let registrar = Registrar { settings, endpoint, kubelet_at_start, list, calls, state, course };
    let served = registrar.serve().await;
    if !registrar.course.is_followed() {
        registrar.settings.clear_left();
    }
    served
}

/// The reason why one registration ended.
enum End {
    Stopped,
    /// The kubelet does not run.
    KubeletAbsent(String),
    /// The registration failed.
    Failed(String),
    /// The registration succeeded, and was lost later.
    Lost(String),
}

struct Registrar {
    settings: Settings,
    /// The agent's socket in the plugin folder.
    endpoint: PathBuf,
    /// The kubelet's socket when this agent started.
    kubelet_at_start: Option<KubeletFile>,
    list: watch::Receiver<Arc<[PluginDevice]>>,
    calls: PluginCallSender,
    state: watch::Sender<RegistrationState>,
    course: RegistrationCourse,
}

impl Registrar {
    /// Registers repeatedly until `course.stop`.
    async fn serve(&self) -> io::Result<()> {
        let following = self.course.entry != RegistrationStart::Fresh;
        let unremembered = self.course.entry == RegistrationStart::Beside(SecondConnection::DroppedWithTheFirst);
        let mut tries = Tries { backoff: BACKOFF, short: false, short_pauses_left: SHORT_PAUSES };
        if !following && self.settings.clear() {
            sleep(FORGOTTEN_WITHIN).await;
        }
        let mut first = true;
        loop {
            // On the first attempt the previous agent may still listen.
            if !(first && following)
                && let Some(other_agent) = self.other_agent(following).await
            {
                return Err(other_agent.into());
            }
            let began = Instant::now();
            let end = self.register(first && unremembered).await;
            first = false;
            let absent = matches!(end, End::KubeletAbsent(_));
            let Some(pause) = self.pause_after(end, began.elapsed(), &mut tries) else { return Ok(()) };
            let pause = async {
                sleep(pause).await;
                while absent && !self.kubelet_listens().await {
                    sleep(LOOK_EVERY).await;
                }
            };
            tokio::select! {
                () = self.course.stop.cancelled() => return Ok(()),
                () = pause => {}
            }
        }
    }

    /// The pause until the next registration, after a registration that `lasted` this long. `None` at the end.
    fn pause_after(&self, end: End, lasted: Duration, tries: &mut Tries) -> Option<Duration> {
        match end {
            End::Stopped => return None,
            End::Lost(why) => {
                tracing::warn!(reason = %why, "registration with kubelet lost: registering again");
                self.wait_for(&why);
                tries.lost(lasted);
            }
            End::KubeletAbsent(why) => {
                self.wait_for(&why);
                self.settings.clear_registry();
                return Some(LOOK_EVERY);
            }
            End::Failed(why) => self.wait_for(&why),
        }
        Some(tries.pause())
    }

    /// Another agent that listens on one of this agent's sockets. A previous agent gets some time to close.
    async fn other_agent(&self, following: bool) -> Option<SecondAgent> {
        let paths = self.settings.socket_paths();
        if following { second_agent::find_second(&paths).await } else { second_agent::listening(&paths).await }
    }

    /// Waits for `course.stop`, and then until the kubelet's calls are answered.
    async fn stopped(&self) -> End {
        self.course.stop.cancelled().await;
        if !self.calls.under_way().answered().await {
            tracing::warn!("agent ends before it answers an admission call of kubelet: the pod fails");
        }
        End::Stopped
    }

    fn wait_for(&self, what: &str) {
        let changed = self.state.send_if_modified(|state| {
            let new = RegistrationState::Waiting(what.into());
            let changed = *state != new;
            *state = new;
            changed
        });
        if changed {
            tracing::warn!(resource = &*self.settings.resource, waiting_for = what, "not registered with kubelet");
        }
    }

    fn registered(&self) {
        // The kubelet may have restarted so fast that no attempt found it absent.
        if self.settings.kubelet_file() != self.kubelet_at_start {
            self.settings.clear_registry();
        }
        let devices = self.list.borrow().len();
        tracing::info!(resource = &*self.settings.resource, devices, "registered with kubelet");
        self.state.send_replace(RegistrationState::Registered);
    }

    /// A new service with its own end signal, which shares nothing with an earlier registration.
    fn service(&self) -> (Service, watch::Receiver<Watches>) {
        let (watched, seen) = watch::channel(Watches::default());
        let (calls, list) = (self.calls.clone(), self.list.clone());
        (Service { calls, list, watched, leaves: CancellationToken::new(), end: CancellationToken::new() }, seen)
    }

    async fn kubelet_listens(&self) -> bool {
        UnixStream::connect(self.settings.kubelet()).await.is_ok()
    }

    /// `unremembered`: the previous agent is still registered, and the kubelet would drop this agent when the
    /// previous agent ends.
    async fn register(&self, unremembered: bool) -> End {
        let (service, watched) = self.service();
        let (routes, leaves) = (Routes::new(plugin(&service)), service.leaves.clone());
        let kubelet = self.settings.kubelet();
        if !self.kubelet_listens().await {
            return End::KubeletAbsent(format!("kubelet, which does not listen on {}", kubelet.display()));
        }
        // The agent listens before it calls `Register`, because the kubelet dials it inside that call.
        let socket = match ServedSocket::open(&self.endpoint, service, routes) {
            Ok(socket) => socket,
            Err(error) => return End::Failed(error.to_string()),
        };
        let end = async {
            if let Err(why) = self.call_register(&kubelet, &self.endpoint).await {
                return End::Failed(why);
            }
            if unremembered {
                self.hold_unremembered(&kubelet, &socket, watched).await
            } else {
                self.hold(&socket, watched).await
            }
        };
        let end = tokio::select! { end = end => end, end = self.stopped() => end };
        if self.may_be_forgotten(&end) {
            leaves.cancel();
            sleep(LEAVES_WITHIN).await;
        }
        socket.close().await;
        end
    }

    /// Whether the kubelet may remember no connection of this agent and no other agent takes over. Then the last list
    /// must say that the devices are unhealthy. If another agent takes over, that list would replace the next agent's
    /// list.
    fn may_be_forgotten(&self, end: &End) -> bool {
        let not_followed = match end {
            End::Stopped => self.course.followed.get() == Some(&false),
            _ => !self.course.closing.is_cancelled(),
        };
        self.course.entry == RegistrationStart::Beside(SecondConnection::DroppedWithTheFirst) && not_followed
    }

    /// Makes the kubelet forget the connections, waits for the end of the previous agent, and registers again so that
    /// the kubelet remembers this agent's connection.
    async fn hold_unremembered(&self, kubelet: &Path, socket: &ServedSocket, watched: watch::Receiver<Watches>) -> End {
        if let Err(end) = is_watched(watched.clone(), 1).await {
            return end;
        }
        if let Err(why) = self.fail_to_register(kubelet).await {
            tracing::warn!(reason = %why, "kubelet will drop this agent together with the previous one");
        }
        self.registered();
        let remembered = async {
            self.course.alone.cancelled().await;
            tokio::select! {
                biased;
                // The next agent may already register, and this registration would replace it.
                () = self.course.closing.cancelled() => std::future::pending().await,
                () = sleep(REMEMBERED_AFTER) => {}
            }
            if let Err(why) = self.call_register(kubelet, &self.endpoint).await {
                return End::Lost(why);
            }
            match is_watched(watched.clone(), 2).await {
                Ok(()) => std::future::pending().await,
                Err(end) => end,
            }
        };
        // Both connections must stay: when either connection ends, the kubelet drops the connection that it remembers.
        tokio::select! {
            end = self.stay(socket, watched.clone(), |watches| watches.ended > 0) => end,
            end = remembered => end,
        }
    }

    /// Makes a registration that fails: the kubelet accepts it, gets no answer from the plugin, and forgets the
    /// connection that it remembered.
    async fn fail_to_register(&self, kubelet: &Path) -> Result<(), String> {
        let path = self.settings.unanswering();
        let (service, _watched) = self.service();
        let socket = ServedSocket::open(&path, service, Routes::default()).map_err(|error| error.to_string())?;
        let registered = self.call_register(kubelet, &path).await;
        socket.close_at_once().await;
        match registered {
            Err(why) => {
                tracing::debug!(answer = %why, "kubelet has forgotten the connections of this resource");
                Ok(())
            }
            Ok(()) => Err("kubelet accepted a plugin that does not answer".into()),
        }
    }

    async fn call_register(&self, kubelet: &Path, endpoint: &Path) -> Result<(), String> {
        timeout(REGISTER_WITHIN, self.send_register(kubelet, endpoint))
            .await
            .unwrap_or_else(|_| Err(format!("kubelet did not answer Register on {}", kubelet.display())))
    }

    async fn send_register(&self, kubelet: &Path, endpoint: &Path) -> Result<(), String> {
        let error_text = |error: &dyn std::fmt::Display| format!("Register on {}: {error}", kubelet.display());
        let endpoint_of_kubelet = tonic::transport::Endpoint::try_from(format!("unix://{}", kubelet.display()))
            .map_err(|error| error_text(&error))?;
        let channel = endpoint_of_kubelet.connect().await.map_err(|error| error_text(&error))?;
        let request = RegisterRequest {
            version: "v1beta1".into(),
            endpoint: endpoint.file_name().unwrap_or_default().to_string_lossy().into_owned(),
            resource_name: self.settings.resource.to_string(),
            // The kubelet takes the options from `GetDevicePluginOptions`.
            options: None,
        };
        RegistrationClient::new(channel)
            .register(request)
            .await
            .map_err(|status| error_text(&status.message()))
            .map(drop)
    }

    /// Returns when the kubelet no longer watches the list, or the socket no longer belongs to the agent.
    async fn hold(&self, socket: &ServedSocket, watched: watch::Receiver<Watches>) -> End {
        if let Err(end) = is_watched(watched.clone(), 1).await {
            return end;
        }
        self.registered();
        self.stay(socket, watched, |watches| watches.open == 0).await
    }

    /// Returns when `lost` is true for the kubelet's streams, or the socket no longer belongs to the agent.
    async fn stay(
        &self,
        socket: &ServedSocket,
        mut watched: watch::Receiver<Watches>,
        lost: fn(&Watches) -> bool,
    ) -> End {
        loop {
            tokio::select! {
                ended = watched.wait_for(lost) => match ended {
                    Ok(_) => return End::Lost("kubelet ended ListAndWatch".into()),
                    Err(_) => return End::Lost("the agent's device plugin server ended".into()),
                },
                () = sleep(CHECK_EVERY) => {
                    if !socket.still_ours() {
                        // The kubelet removes the sockets in its plugin folder when it starts.
                        return End::Lost(format!("{} was removed or replaced", socket.path().display()));
                    }
                }
            }
        }
    }
}

/// Waits until the kubelet watches the list on this number of connections.
async fn is_watched(mut watched: watch::Receiver<Watches>, connections: usize) -> Result<(), End> {
    match timeout(WATCHED_WITHIN, watched.wait_for(|watches| watches.open >= connections)).await {
        Ok(Ok(_)) => Ok(()),
        _ => Err(End::Failed("kubelet accepted the plugin and did not call ListAndWatch".into())),
    }
}

/// How and when the agent registers next.
#[derive(Debug)]
struct Tries {
    backoff: Backoff,
    /// Whether the next pause is short.
    short: bool,
    /// The number of short pauses that are left.
    short_pauses_left: u32,
}

impl Tries {
    /// Sets the pause after the loss of a registration that `lasted` this long.
    fn lost(&mut self, lasted: Duration) {
        if lasted >= STABLE_AFTER {
            self.short_pauses_left = SHORT_PAUSES;
        }
        self.short = self.short_pauses_left > 0;
        self.backoff.reset();
        self.short_pauses_left = self.short_pauses_left.saturating_sub(1);
    }

    fn pause(&mut self) -> Duration {
        if std::mem::take(&mut self.short) { SHORT_PAUSE } else { self.backoff.pause() }
    }
}

fn plugin(service: &Service) -> DevicePluginServer<Service> {
    DevicePluginServer::new(service.clone()).max_decoding_message_size(MAX_REQUEST)
}
