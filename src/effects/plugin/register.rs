//! Registers the agent with the kubelet as the device plugin of its resource, and registers again when the registration
//! is lost.
//!
//! *Watcher*: the agent's socket lies in the kubelet's registry folder, and the kubelet's plugin watcher dials it, also
//! after a restart of the kubelet.
//!
//! *Classic*: the agent's socket lies in the plugin folder and the agent calls `Register`. The kubelet deletes every
//! socket there when it starts, so the agent checks that its socket still exists.
//!
//! Only one of the two is open at a time: each way removes its socket and ends its server before the other begins.
//!
//! *After another agent* (an upgrade) the agent begins the classic way: it takes milliseconds, where the watcher takes
//! one to two seconds. The previous agent leaves its socket in the registry, because kubelets before 1.37 would drop
//! the new agent with it.
//!
//! *Beside another agent*, which ends when this agent is registered, so that the kubelet always has a plugin. Kubelets
//! before 1.37 remember one connection for a resource, and when any connection of the resource ends, they drop the one
//! that they remember:
//!
//! ```text
//!   remembered:  previous agent's ── Register ──▶ this agent's ── a Register that fails ──▶ none
//!                none ── the previous agent's ends: nothing is dropped ── Register ──▶ this agent's
//! ```
//!
//! The kubelet keeps a connection that it serves and does not remember. The last step is for the end of this agent,
//! which the kubelet would not notice otherwise (docs/decisions/0120).
//!
//! Both ways end in an open `ListAndWatch`. When the last one ends and the agent did not end it, the kubelet has lost
//! the registration (the kubelet restarted, or an older registration ended and took this one with it), and the agent
//! registers from the beginning.

use super::call::{PluginCallSender, PluginDevice};
use super::notice::{Notice, Progress};
use super::second_agent::{self, SecondAgent};
use super::service::{MAX_LIST, Service, Watches, encoded_len, options};
use super::settings::{RegistrationCourse, RegistrationMethod, RegistrationStart, Settings};
use super::site::{MAX_REQUEST, Site};
use super::socket_name;
use model::backoff::Backoff;
use model::plugin::{RegistrationState, SecondConnection};
use proto::device_plugin::RegisterRequest;
use proto::device_plugin::device_plugin_server::DevicePluginServer;
use proto::device_plugin::registration_client::RegistrationClient;
use proto::plugin_registration::registration_server::RegistrationServer;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::net::UnixStream;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;
use tonic::service::Routes;

/// The kubelet's plugin watcher asks a new socket about 0.8 s after it was made, and again with backoff. A kubelet that
/// has run for this long and has not asked has no plugin watcher.
const ASKED_WITHIN: Duration = Duration::from_secs(10);
/// The kubelet's `GetInfo` call times out after 1 s. If the agent has not received it by then, its HTTP/2 does not
/// understand it.
const HEARD_WITHIN: Duration = Duration::from_secs(2);
/// Once a second the kubelet checks whether a socket has left its registry. It then drops the plugin that serves the
/// resource of that socket, also one that has registered the other way meanwhile.
const FORGOTTEN_WITHIN: Duration = Duration::from_secs(3);
/// The kubelet calls `ListAndWatch` right after a registration; if it does not within this time, the registration is
/// lost.
const WATCHED_WITHIN: Duration = Duration::from_secs(15);
/// How often the agent checks its own socket: one `stat`.
const LOOK: Duration = Duration::from_secs(1);
/// The kubelet dials the agent inside `Register`, for at most 10 s.
const REGISTER_WITHIN: Duration = Duration::from_secs(15);
/// Pause between two tries: the kubelet's socket may appear a second or two after its Node is ready, or minutes later.
const BACKOFF: Backoff = Backoff::new(Duration::from_millis(500), Duration::from_secs(10));

/// Pause after a registration that was lost: the kubelet drops the plugin of a resource when an older connection of the
/// resource ends, and fails every pod that comes before the next registration.
const AT_ONCE: Duration = Duration::from_millis(50);
/// The number of short pauses until a registration has lasted [`STANDS_FOR`]: a kubelet that drops the agent again and
/// again has another reason.
const AT_ONCE_TIMES: u32 = 3;
const STANDS_FOR: Duration = Duration::from_secs(10);

/// Registers and serves the kubelet until `course.stop`. `state` shows the registration.
///
/// # Errors
/// If the list is longer than the kubelet can take: the configuration must change, a restart does not help. If another
/// agent listens on a socket of this one: the two would take the resource from each other.
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
    let desk = Desk { settings, endpoint, list, calls, state, course };
    let served = desk.serve().await;
    if !desk.course.followed.load(Ordering::Relaxed) {
        desk.settings.clear_left();
    }
    served
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Watcher,
    Classic,
}

impl Way {
    fn other(self) -> Way {
        match self {
            Way::Watcher => Way::Classic,
            Way::Classic => Way::Watcher,
        }
    }
}

/// The reason why one registration ended.
enum End {
    Stopped,
    /// The kubelet's plugin watcher did not ask.
    Unasked,
    /// The kubelet does not run.
    Away(String),
    /// The registration failed.
    Failed(String),
    /// The registration succeeded, and was lost later.
    Lost(String),
}

struct Desk {
    settings: Settings,
    /// The agent's socket in the plugin folder.
    endpoint: PathBuf,
    list: watch::Receiver<Arc<[PluginDevice]>>,
    calls: PluginCallSender,
    state: watch::Sender<RegistrationState>,
    course: RegistrationCourse,
}

impl Desk {
    /// Registers again and again until `course.stop`.
    async fn serve(&self) -> io::Result<()> {
        let following = self.course.entry != RegistrationStart::Fresh;
        let mut tries = Tries { way: self.first_way(), backoff: BACKOFF, short: false, at_once: AT_ONCE_TIMES };
        let by_classic_only = self.course.entry == RegistrationStart::Beside(SecondConnection::DroppedWithTheFirst);
        if tries.way == Way::Watcher && by_classic_only {
            tokio::select! {
                () = self.course.stop.cancelled() => return Ok(()),
                () = self.course.alone.cancelled() => {}
            }
        }
        if !following && self.settings.clear(tries.way == Way::Watcher) {
            sleep(FORGOTTEN_WITHIN).await;
        }
        let mut first = true;
        loop {
            // On the first try the previous agent may still listen.
            if !(first && following)
                && let Some(second) = self.second(following).await
            {
                return Err(second.into());
            }
            let began = Instant::now();
            let end = match tries.way {
                Way::Watcher => self.watcher().await,
                Way::Classic => self.classic(first && by_classic_only).await,
            };
            first = false;
            let Some(pause) = self.pause_after(end, began.elapsed(), &mut tries) else { return Ok(()) };
            tokio::select! {
                () = self.course.stop.cancelled() => return Ok(()),
                () = sleep(pause) => {}
            }
        }
    }

    fn first_way(&self) -> Way {
        match self.settings.registration {
            RegistrationMethod::Watcher => Way::Watcher,
            RegistrationMethod::Auto if self.course.entry == RegistrationStart::Fresh => Way::Watcher,
            RegistrationMethod::Auto | RegistrationMethod::Classic => Way::Classic,
        }
    }

    /// The pause until the next try, after a registration that began this long `ago`; also sets the way of the next
    /// try. `None` at the end.
    fn pause_after(&self, end: End, ago: Duration, tries: &mut Tries) -> Option<Duration> {
        let auto = self.settings.registration == RegistrationMethod::Auto;
        match end {
            End::Stopped => return None,
            // No pause: the kubelet has no registration that it could drop.
            End::Unasked if auto => {
                tracing::info!(
                    registry = %self.settings.registry.display(),
                    "kubelet's plugin watcher did not ask: registering the classic way"
                );
                tries.way = Way::Classic;
                return Some(Duration::ZERO);
            }
            End::Unasked => self.wait_for("kubelet's plugin watcher to ask"),
            End::Lost(why) => {
                tracing::warn!(reason = %why, "registration with kubelet lost: registering again");
                self.wait_for(&why);
                tries.lost(ago);
            }
            End::Away(why) => {
                self.wait_for(&why);
                if auto {
                    tries.way = Way::Watcher;
                }
            }
            End::Failed(why) => {
                self.wait_for(&why);
                if auto {
                    tries.way = tries.way.other();
                    tries.backoff.at_least(FORGOTTEN_WITHIN);
                }
            }
        }
        Some(tries.pause())
    }

    /// Another agent that listens on a socket of this one. A previous agent gets some time to close.
    async fn second(&self, following: bool) -> Option<SecondAgent> {
        let paths = self.settings.socket_paths();
        if following { second_agent::find_second(&paths).await } else { second_agent::listening(&paths).await }
    }

    /// Waits for `course.stop`, and then until the calls of the kubelet are answered.
    async fn is_to_end(&self) -> End {
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

    fn registered(&self, way: &'static str) {
        let devices = self.list.borrow().len();
        tracing::info!(resource = &*self.settings.resource, way, devices, "registered with kubelet");
        self.state.send_replace(RegistrationState::Registered(way));
    }

    /// A new service with its own end, which shares nothing with an earlier registration.
    fn service(&self) -> (Service, watch::Receiver<Watches>) {
        let (watched, seen) = watch::channel(Watches::default());
        let (calls, list) = (self.calls.clone(), self.list.clone());
        (Service { calls, list, watched, end: CancellationToken::new() }, seen)
    }

    async fn watcher(&self) -> End {
        let (service, watched) = self.service();
        let (progress, mut seen) = watch::channel(Progress::Unasked);
        let notice = Notice { resource: Arc::clone(&self.settings.resource), progress };
        let routes = Routes::new(RegistrationServer::new(notice)).add_service(plugin(&service));
        let path = self.settings.registry.join(socket_name::registry(&self.settings.resource));
        if !self.settings.registry.is_dir() {
            return End::Unasked;
        }
        let site = match Site::open(&path, service, routes) {
            Ok(site) => site,
            Err(error) => return End::Failed(error.to_string()),
        };
        let end = async {
            tokio::select! {
                asked = seen.wait_for(|progress| *progress != Progress::Unasked) => if asked.is_err() {
                    return End::Failed("the registration server ended".into());
                },
                () = self.unasked(&site) => return End::Unasked,
            }
            let taken = seen.wait_for(|progress| !matches!(progress, Progress::Unasked | Progress::Asked));
            match timeout(WATCHED_WITHIN, taken).await.map(|progress| progress.map(|progress| progress.clone())) {
                Ok(Ok(Progress::Refused(why))) => return End::Failed(format!("kubelet refused the plugin: {why}")),
                Ok(Ok(_)) => {}
                _ => return End::Failed("kubelet asked for the plugin and did not accept or refuse it".into()),
            }
            self.hold(&site, watched, "watcher").await
        };
        let end = tokio::select! { end = end => end, end = self.is_to_end() => end };
        site.close(self.course.followed.load(Ordering::Relaxed)).await;
        end
    }

    /// Returns when the kubelet could have asked and has not. While the kubelet does not run, the socket stays for it.
    async fn unasked(&self, site: &Site) {
        let kubelet = self.settings.kubelet();
        let mut lines = site.lines();
        let unheard = async {
            let called = lines.wait_for(|lines| lines.ever > 0).await.is_ok();
            sleep(if called { HEARD_WITHIN } else { ASKED_WITHIN }).await;
        };
        let unseen = async {
            while UnixStream::connect(&kubelet).await.is_err() {
                self.wait_for(&format!("kubelet, which does not listen on {}", kubelet.display()));
                sleep(LOOK).await;
            }
            sleep(ASKED_WITHIN).await;
        };
        tokio::select! { () = unheard => {}, () = unseen => {} }
    }

    /// `unremembered`: the previous agent is still registered, and the kubelet would drop this agent when that one
    /// ends.
    async fn classic(&self, unremembered: bool) -> End {
        let (service, watched) = self.service();
        let routes = Routes::new(plugin(&service));
        let kubelet = self.settings.kubelet();
        if UnixStream::connect(&kubelet).await.is_err() {
            return End::Away(format!("kubelet, which does not listen on {}", kubelet.display()));
        }
        // The agent listens before it calls `Register`, because the kubelet dials it inside that call.
        let site = match Site::open(&self.endpoint, service, routes) {
            Ok(site) => site,
            Err(error) => return End::Failed(error.to_string()),
        };
        let end = async {
            if let Err(why) = self.call_register(&kubelet, &self.endpoint).await {
                return End::Failed(why);
            }
            if unremembered {
                self.hold_unremembered(&kubelet, &site, watched).await
            } else {
                self.hold(&site, watched, "classic").await
            }
        };
        let end = tokio::select! { end = end => end, end = self.is_to_end() => end };
        site.close(false).await;
        end
    }

    /// Makes the kubelet forget the connections, waits for the end of the previous agent, and registers again so that
    /// the kubelet remembers this one.
    async fn hold_unremembered(&self, kubelet: &Path, site: &Site, watched: watch::Receiver<Watches>) -> End {
        if let Err(end) = is_watched(watched.clone(), 1).await {
            return end;
        }
        if let Err(why) = self.fail_to_register(kubelet).await {
            tracing::warn!(reason = %why, "kubelet will drop this agent together with the previous one");
        }
        self.registered("classic");
        let remembered = async {
            self.course.alone.cancelled().await;
            if let Err(why) = self.call_register(kubelet, &self.endpoint).await {
                return End::Lost(why);
            }
            match is_watched(watched.clone(), 2).await {
                Ok(()) => std::future::pending().await,
                Err(end) => end,
            }
        };
        // Both connections must stay: when one of them ends, the kubelet drops the one that it remembers.
        tokio::select! {
            end = self.stay(site, watched.clone(), |watches| watches.ended > 0) => end,
            end = remembered => end,
        }
    }

    /// Makes a registration that fails: the kubelet accepts it, gets no answer from the plugin, and forgets its
    /// remembered connection.
    async fn fail_to_register(&self, kubelet: &Path) -> Result<(), String> {
        let path = self.settings.unanswering();
        let (service, _watched) = self.service();
        let site = Site::open(&path, service, Routes::default()).map_err(|error| error.to_string())?;
        let registered = self.call_register(kubelet, &path).await;
        site.hang_up().await;
        match registered {
            Err(why) => {
                tracing::debug!(answer = %why, "kubelet has forgotten the connections of this resource");
                Ok(())
            }
            Ok(()) => Err("kubelet accepted a plugin that does not answer".into()),
        }
    }

    async fn call_register(&self, kubelet: &Path, endpoint: &Path) -> Result<(), String> {
        timeout(REGISTER_WITHIN, self.ask_to_register(kubelet, endpoint))
            .await
            .unwrap_or_else(|_| Err(format!("kubelet did not answer Register on {}", kubelet.display())))
    }

    async fn ask_to_register(&self, kubelet: &Path, endpoint: &Path) -> Result<(), String> {
        let told = |error: &dyn std::fmt::Display| format!("Register on {}: {error}", kubelet.display());
        let dialled = tonic::transport::Endpoint::try_from(format!("unix://{}", kubelet.display()))
            .map_err(|error| told(&error))?;
        let channel = dialled.connect().await.map_err(|error| told(&error))?;
        let request = RegisterRequest {
            version: "v1beta1".into(),
            endpoint: endpoint.file_name().unwrap_or_default().to_string_lossy().into_owned(),
            resource_name: self.settings.resource.to_string(),
            options: Some(options()),
        };
        RegistrationClient::new(channel).register(request).await.map_err(|status| told(&status.message())).map(drop)
    }

    /// Returns when the kubelet no longer watches the list, or the socket is not the agent's any more.
    async fn hold(&self, site: &Site, watched: watch::Receiver<Watches>, way: &'static str) -> End {
        if let Err(end) = is_watched(watched.clone(), 1).await {
            return end;
        }
        self.registered(way);
        self.stay(site, watched, |watches| watches.open == 0).await
    }

    /// Returns when the kubelet's watches are `lost`, or the socket is not the agent's any more.
    async fn stay(&self, site: &Site, mut watched: watch::Receiver<Watches>, lost: fn(&Watches) -> bool) -> End {
        loop {
            tokio::select! {
                ended = watched.wait_for(lost) => match ended {
                    Ok(_) => return End::Lost("kubelet ended ListAndWatch".into()),
                    Err(_) => return End::Lost("the agent's device plugin server ended".into()),
                },
                () = sleep(LOOK) => {
                    if !site.stands() {
                        return End::Lost(format!("{} was removed or replaced", site.path().display()));
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

/// The next try.
#[derive(Debug)]
struct Tries {
    way: Way,
    backoff: Backoff,
    /// Whether the next pause is a short one.
    short: bool,
    /// The number of short pauses that are left.
    at_once: u32,
}

impl Tries {
    /// Sets the pause after the loss of a registration that began this long `ago`.
    fn lost(&mut self, ago: Duration) {
        if ago >= STANDS_FOR {
            self.at_once = AT_ONCE_TIMES;
        }
        self.short = self.at_once > 0;
        self.backoff.reset();
        self.at_once = self.at_once.saturating_sub(1);
    }

    fn pause(&mut self) -> Duration {
        if std::mem::take(&mut self.short) { AT_ONCE } else { self.backoff.pause() }
    }
}

fn plugin(service: &Service) -> DevicePluginServer<Service> {
    DevicePluginServer::new(service.clone()).max_decoding_message_size(MAX_REQUEST)
}
