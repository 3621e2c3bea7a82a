//! How kubelet comes to know us, and comes to know us again.
//!
//! *Watcher*: our socket lies in kubelet's registry folder and kubelet dials it, also after its own restart.
//! *Classic*: our socket lies in the plugin folder and we call `Register`; kubelet deletes every socket there when it
//! starts, so we look whether ours still stands.
//!
//! Only one of the two is ever open: each way takes its socket away and ends its server before the other begins.
//!
//! *After another agent* (an upgrade) it is the classic way at first: it takes milliseconds, where the watcher takes one to two
//! seconds. The agent before leaves its socket in the registry, because kubelets before 1.37 would drop us with it.
//!
//! *Beside another agent*, which ends when we are registered, so that kubelet has a plugin at every moment. Kubelets before 1.37
//! remember one connection for a resource, and when any connection of it ends, they drop the one that they remember:
//!
//! ```text
//!   remembered:  theirs ── Register ──▶ ours ── a Register that fails ──▶ none ── theirs ends: none is dropped ── Register ──▶ ours
//! ```
//!
//! A connection that is served and not remembered stays. The last step is for our own end, which kubelet would not see otherwise
//! (docs/decisions/0120).
//!
//! Both ways end in an open `ListAndWatch`. When the last one ends and we did not end it, kubelet has lost us (its restart,
//! or the end of an older registration that took ours with it), and the whole way is gone again.

use super::call::{PluginCallSender, PluginDevice};
use super::notice::{Notice, Progress};
use super::rival;
use super::service::{MAX_LIST, Service, Watches, encoded_len, options};
use super::settings::{RegistrationCourse, RegistrationMethod, RegistrationStart, Settings};
use super::site::{MAX_REQUEST, Site};
use super::socket_name;
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

/// kubelet asks a new socket about 0.8 s after it was made, and again with back-off; one that has run for so long and has
/// not asked has no watcher.
const ASKED_WITHIN: Duration = Duration::from_secs(10);
/// kubelet gives its question a second; one that was not heard by then cannot be understood here.
const HEARD_WITHIN: Duration = Duration::from_secs(2);
/// kubelet looks once a second whether a socket has left its registry, and then drops whoever serves the socket's resource,
/// also one who has come by the other way meanwhile.
const FORGOTTEN_WITHIN: Duration = Duration::from_secs(3);
/// A list is watched right after a registration; kubelet that does not do so within this time has lost us.
const WATCHED_WITHIN: Duration = Duration::from_secs(15);
/// How often our own socket is looked at: one `stat`.
const LOOK: Duration = Duration::from_secs(1);
/// kubelet dials us inside `Register` for at most 10 s.
const REGISTER_WITHIN: Duration = Duration::from_secs(15);
/// Between two tries: a kubelet's socket may come a second or two after its Node is ready, or minutes later.
const BACK_OFF: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(10));

/// After a registration that was lost, because kubelet drops whoever serves a resource when an older connection of it ends: every
/// pod that comes meanwhile fails.
const AT_ONCE: Duration = Duration::from_millis(50);
/// So often, unless a registration has stood for so long: a kubelet that drops us again and again has another reason.
const AT_ONCE_TIMES: u32 = 3;
const STANDS_FOR: Duration = Duration::from_secs(10);

/// Serves kubelet until it is told to stop. `state` tells how it stands.
///
/// # Errors
/// When the list is longer than kubelet can take: no restart would help, the configuration must change. When another agent listens
/// where we are to: we would take the resource from each other.
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

/// How one registration ended.
enum End {
    Stopped,
    /// kubelet never asked.
    Unasked,
    /// kubelet does not run.
    Away(String),
    /// It never came to be.
    Failed(String),
    /// It was, and is not any more.
    Lost(String),
}

struct Desk {
    settings: Settings,
    /// Our socket in the plugin folder.
    endpoint: PathBuf,
    list: watch::Receiver<Arc<[PluginDevice]>>,
    calls: PluginCallSender,
    state: watch::Sender<RegistrationState>,
    course: RegistrationCourse,
}

impl Desk {
    /// Registers again and again, until the end.
    async fn serve(&self) -> io::Result<()> {
        let following = self.course.entry != RegistrationStart::Fresh;
        let mut tries = Tries { way: self.first_way(), next: BACK_OFF.0, at_once: AT_ONCE_TIMES };
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
            // The one before us may still listen when we begin.
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

    /// How long until the next try, and by which way, after a registration that was begun so long `ago`. `None` at the end.
    fn pause_after(&self, end: End, ago: Duration, tries: &mut Tries) -> Option<Duration> {
        let auto = self.settings.registration == RegistrationMethod::Auto;
        match end {
            End::Stopped => return None,
            // kubelet has nothing of ours that it could drop.
            End::Unasked if auto => {
                tracing::info!(
                    registry = %self.settings.registry.display(),
                    "kubelet does not come to know us by its registry: registering the classic way"
                );
                tries.way = Way::Classic;
                return Some(Duration::ZERO);
            }
            End::Unasked => self.wait_for("kubelet to ask at its plugin registry"),
            End::Lost(why) => {
                tracing::warn!(reason = %why, "kubelet does not know us any more: registering again");
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
                    tries.next = tries.next.max(FORGOTTEN_WITHIN);
                }
            }
        }
        Some(tries.pause())
    }

    /// Another agent where we are to listen. One that we follow has some time to close.
    async fn second(&self, following: bool) -> Option<rival::SecondAgent> {
        let paths = self.settings.socket_paths();
        if following { rival::find_second(&paths).await } else { rival::listening(&paths).await }
    }

    /// Told to end, and kubelet's calls are answered.
    async fn is_to_end(&self) -> End {
        self.course.stop.cancelled().await;
        if !self.calls.under_way().answered().await {
            tracing::warn!("kubelet waits for the answer to an admission at the end of this agent: its pod fails");
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

    /// A fresh service with its own end: nothing of an earlier registration is shared.
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
                Ok(Ok(Progress::Refused(why))) => return End::Failed(format!("kubelet refused us: {why}")),
                Ok(Ok(_)) => {}
                _ => return End::Failed("kubelet asked and never said whether it took us".into()),
            }
            self.hold(&site, watched, "watcher").await
        };
        let end = tokio::select! { end = end => end, end = self.is_to_end() => end };
        site.close(self.course.followed.load(Ordering::Relaxed)).await;
        end
    }

    /// Ends when kubelet could have asked and has not. While it does not run, the socket stays: it will look.
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

    /// `unremembered`: beside an agent whose end would take us with it.
    async fn classic(&self, unremembered: bool) -> End {
        let (service, watched) = self.service();
        let routes = Routes::new(plugin(&service));
        let kubelet = self.settings.kubelet();
        if UnixStream::connect(&kubelet).await.is_err() {
            return End::Away(format!("kubelet, which does not listen on {}", kubelet.display()));
        }
        // Listening comes before `Register`: kubelet dials us inside that call.
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

    /// Stays when the agent before us ends, and has kubelet remember us after that.
    async fn hold_unremembered(&self, kubelet: &Path, site: &Site, watched: watch::Receiver<Watches>) -> End {
        if let Err(end) = is_watched(watched.clone(), 1).await {
            return end;
        }
        if let Err(why) = self.fail_to_register(kubelet).await {
            tracing::warn!(reason = %why, "kubelet will drop us with the agent before us, and fail the pods that come meanwhile");
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
        // Both connections stay: the end of any is the end of the one that kubelet remembers.
        tokio::select! {
            end = self.stay(site, watched.clone(), |watches| watches.ended > 0) => end,
            end = remembered => end,
        }
    }

    /// A registration that kubelet accepts, and then gets no answer from the plugin: it forgets which connection it remembered.
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
            Ok(()) => Err("kubelet took a plugin that does not answer".into()),
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

    /// Stays while kubelet watches the list and the socket is ours.
    async fn hold(&self, site: &Site, watched: watch::Receiver<Watches>, way: &'static str) -> End {
        if let Err(end) = is_watched(watched.clone(), 1).await {
            return end;
        }
        self.registered(way);
        self.stay(site, watched, |watches| watches.open == 0).await
    }

    /// Stays until kubelet's watches are `lost` or the socket is not ours any more.
    async fn stay(&self, site: &Site, mut watched: watch::Receiver<Watches>, lost: fn(&Watches) -> bool) -> End {
        loop {
            tokio::select! {
                ended = watched.wait_for(lost) => match ended {
                    Ok(_) => return End::Lost("kubelet ended its watch of the list".into()),
                    Err(_) => return End::Lost("our server ended".into()),
                },
                () = sleep(LOOK) => {
                    if !site.stands() {
                        return End::Lost(format!("{} is not ours any more", site.path().display()));
                    }
                }
            }
        }
    }
}

/// kubelet watches the list on so many connections.
async fn is_watched(mut watched: watch::Receiver<Watches>, connections: usize) -> Result<(), End> {
    match timeout(WATCHED_WITHIN, watched.wait_for(|watches| watches.open >= connections)).await {
        Ok(Ok(_)) => Ok(()),
        _ => Err(End::Failed("kubelet took us and never asked for the list".into())),
    }
}

/// What the next try is.
#[derive(Debug)]
struct Tries {
    way: Way,
    /// The pause before it.
    next: Duration,
    /// So many more are made at once.
    at_once: u32,
}

impl Tries {
    /// A registration was lost that had begun so long ago.
    fn lost(&mut self, ago: Duration) {
        if ago >= STANDS_FOR {
            self.at_once = AT_ONCE_TIMES;
        }
        self.next = if self.at_once > 0 { AT_ONCE } else { BACK_OFF.0 };
        self.at_once = self.at_once.saturating_sub(1);
    }

    fn pause(&mut self) -> Duration {
        let pause = self.next;
        self.next = (pause * 2).clamp(BACK_OFF.0, BACK_OFF.1);
        pause
    }
}

fn plugin(service: &Service) -> DevicePluginServer<Service> {
    DevicePluginServer::new(service.clone()).max_decoding_message_size(MAX_REQUEST)
}
