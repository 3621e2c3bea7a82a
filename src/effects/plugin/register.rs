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
//! Both ways end in an open `ListAndWatch`. When the last one ends and we did not end it, kubelet has lost us (its restart,
//! or the end of an older registration that took ours with it), and the whole way is gone again.

use super::call::{Calls, Device};
use super::notice::{Notice, Progress};
use super::rival;
use super::service::{MAX_LIST, Service, encoded_len, options};
use super::settings::{Course, Entry, Registration, Settings};
use super::site::{MAX_REQUEST, Site};
use super::socket_name;
use model::plugin::Standing;
use proto::device_plugin::RegisterRequest;
use proto::device_plugin::device_plugin_server::DevicePluginServer;
use proto::device_plugin::registration_client::RegistrationClient;
use proto::plugin_registration::registration_server::RegistrationServer;
use std::io;
use std::path::PathBuf;
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
    list: watch::Receiver<Arc<[Device]>>,
    calls: Calls,
    state: watch::Sender<Standing>,
    course: Course,
) -> io::Result<()> {
    let len = encoded_len(&list.borrow());
    if len > MAX_LIST {
        return Err(io::Error::other(format!(
            "{} devices of {} are {len} bytes on the wire and kubelet takes 4 MiB: lower --split-count",
            list.borrow().len(),
            settings.resource
        )));
    }
    let following = course.entry == Entry::Following;
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
    list: watch::Receiver<Arc<[Device]>>,
    calls: Calls,
    state: watch::Sender<Standing>,
    course: Course,
}

impl Desk {
    /// Registers again and again, until the end.
    async fn serve(&self) -> io::Result<()> {
        let auto = self.settings.registration == Registration::Auto;
        let following = self.course.entry == Entry::Following;
        let mut way = match self.settings.registration {
            Registration::Watcher => Way::Watcher,
            Registration::Auto if !following => Way::Watcher,
            Registration::Auto | Registration::Classic => Way::Classic,
        };
        let mut pauses = Pauses { next: BACK_OFF.0, at_once: AT_ONCE_TIMES };
        if !following && self.settings.clear(way == Way::Watcher) {
            sleep(FORGOTTEN_WITHIN).await;
        }
        // The one before us may still listen when we begin.
        let mut expected = following;
        loop {
            if !std::mem::take(&mut expected)
                && let Some(second) = self.second(following).await
            {
                return Err(second.into());
            }
            let began = Instant::now();
            let end = match way {
                Way::Watcher => self.watcher().await,
                Way::Classic => self.classic().await,
            };
            match end {
                End::Stopped => return Ok(()),
                // kubelet has nothing of ours that it could drop.
                End::Unasked if auto => {
                    tracing::info!(
                        registry = %self.settings.registry.display(),
                        "kubelet does not come to know us by its registry: registering the classic way"
                    );
                    way = Way::Classic;
                    continue;
                }
                End::Unasked => self.wait_for("kubelet to ask at its plugin registry"),
                End::Lost(why) => {
                    tracing::warn!(reason = %why, "kubelet does not know us any more: registering again");
                    self.wait_for(&why);
                    pauses.lost(began.elapsed());
                }
                End::Away(why) => {
                    self.wait_for(&why);
                    if auto {
                        way = Way::Watcher;
                    }
                }
                End::Failed(why) => {
                    self.wait_for(&why);
                    if auto {
                        way = way.other();
                        pauses.next = pauses.next.max(FORGOTTEN_WITHIN);
                    }
                }
            }
            tokio::select! {
                () = self.course.stop.cancelled() => return Ok(()),
                () = sleep(pauses.take()) => {}
            }
        }
    }

    /// Another agent where we are to listen. One that we follow has some time to close.
    async fn second(&self, following: bool) -> Option<rival::Second> {
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
            let new = Standing::Waiting(what.into());
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
        self.state.send_replace(Standing::Registered(way));
    }

    /// A fresh service with its own end: nothing of an earlier registration is shared.
    fn service(&self) -> (Service, watch::Receiver<usize>) {
        let (watched, seen) = watch::channel(0);
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

    async fn classic(&self) -> End {
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
            match timeout(REGISTER_WITHIN, self.call_register(&kubelet)).await {
                Ok(Ok(())) => self.hold(&site, watched, "classic").await,
                Ok(Err(why)) => End::Failed(why),
                Err(_) => End::Failed(format!("kubelet did not answer Register on {}", kubelet.display())),
            }
        };
        let end = tokio::select! { end = end => end, end = self.is_to_end() => end };
        site.close(false).await;
        end
    }

    async fn call_register(&self, kubelet: &std::path::Path) -> Result<(), String> {
        let told = |error: &dyn std::fmt::Display| format!("Register on {}: {error}", kubelet.display());
        let endpoint = tonic::transport::Endpoint::try_from(format!("unix://{}", kubelet.display()))
            .map_err(|error| told(&error))?;
        let channel = endpoint.connect().await.map_err(|error| told(&error))?;
        let request = RegisterRequest {
            version: "v1beta1".into(),
            endpoint: self.endpoint.file_name().unwrap_or_default().to_string_lossy().into_owned(),
            resource_name: self.settings.resource.to_string(),
            options: Some(options()),
        };
        RegistrationClient::new(channel).register(request).await.map_err(|status| told(&status.message())).map(drop)
    }

    /// Stays while kubelet watches the list and the socket is ours.
    async fn hold(&self, site: &Site, mut watched: watch::Receiver<usize>, way: &'static str) -> End {
        match timeout(WATCHED_WITHIN, watched.wait_for(|count| *count > 0)).await {
            Ok(Ok(_)) => {}
            _ => return End::Failed("kubelet took us and never asked for the list".into()),
        }
        self.registered(way);
        loop {
            tokio::select! {
                ended = watched.wait_for(|count| *count == 0) => match ended {
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

/// Between two tries.
#[derive(Debug)]
struct Pauses {
    next: Duration,
    at_once: u32,
}

impl Pauses {
    /// A registration was lost that had begun so long ago.
    fn lost(&mut self, ago: Duration) {
        if ago >= STANDS_FOR {
            self.at_once = AT_ONCE_TIMES;
        }
        self.next = if self.at_once > 0 { AT_ONCE } else { BACK_OFF.0 };
        self.at_once = self.at_once.saturating_sub(1);
    }

    fn take(&mut self) -> Duration {
        let pause = self.next;
        self.next = (pause * 2).clamp(BACK_OFF.0, BACK_OFF.1);
        pause
    }
}

fn plugin(service: &Service) -> DevicePluginServer<Service> {
    DevicePluginServer::new(service.clone()).max_decoding_message_size(MAX_REQUEST)
}
