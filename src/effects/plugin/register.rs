//! How kubelet comes to know us, and comes to know us again.
//!
//! *Watcher*: our socket lies in kubelet's registry folder and kubelet dials it, also after its own restart.
//! *Classic*: our socket lies in the plugin folder and we call `Register`; kubelet deletes every socket there when it
//! starts, so we look whether ours still stands.
//!
//! Only one of the two is ever open: each way takes its socket away and ends its server before the other begins.
//!
//! Both ways end in an open `ListAndWatch`. When the last one ends and we did not end it, kubelet has lost us (its restart,
//! or the end of an older registration that took ours with it), and the whole way is gone again.

use super::call::{Calls, Device};
use super::notice::{Notice, Progress};
use super::rival::{self, MAX_SOCKETS};
use super::service::{MAX_LIST, Service, encoded_len, options};
use super::site::{MAX_REQUEST, Site};
use super::socket_name;
use model::plugin::Standing;
use proto::device_plugin::RegisterRequest;
use proto::device_plugin::device_plugin_server::DevicePluginServer;
use proto::device_plugin::registration_client::RegistrationClient;
use proto::plugin_registration::registration_server::RegistrationServer;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::UnixStream;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};
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

/// Which way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Registration {
    /// The watcher, and the classic way where it comes to nothing.
    Auto,
    /// The watcher only.
    Watcher,
    /// `Register` only.
    Classic,
}

/// Where and as what.
#[derive(Clone, Debug)]
pub struct Settings {
    /// `nvidia.com/gpu`.
    pub resource: Arc<str>,
    /// Which way.
    pub registration: Registration,
    /// `/var/lib/kubelet/plugins_registry`.
    pub registry: PathBuf,
    /// `/var/lib/kubelet/device-plugins`.
    pub plugins: PathBuf,
}

impl Settings {
    /// The file names of our sockets: in the plugin folder, in the registry.
    #[must_use]
    pub fn sockets(&self) -> [String; 2] {
        [socket_name::plugin(&self.resource), socket_name::registry(&self.resource)]
    }

    /// The same with their folders.
    #[must_use]
    pub fn socket_paths(&self) -> [PathBuf; 2] {
        let [plugin, registry] = self.sockets();
        [self.plugins.join(plugin), self.registry.join(registry)]
    }

    /// Takes away what an agent that was killed has left. Says whether kubelet has lost a socket of its registry by it: it
    /// would drop us with that one, were we there already, and refuse pods until it knows us again.
    fn clear(&self, way: Way) -> bool {
        for folder in [&self.plugins, &self.registry] {
            clear_dead(folder, &self.sockets());
        }
        let [plugin, registry] = self.sockets();
        if way == Way::Watcher {
            let _ = std::fs::remove_file(self.plugins.join(plugin));
        }
        std::fs::remove_file(self.registry.join(registry)).is_ok()
    }

    fn kubelet(&self) -> PathBuf {
        self.plugins.join("kubelet.sock")
    }
}

/// Takes away the sockets of agents at which nobody listens, but for these: the resource may have had another name when the
/// agent was killed, and kubelet dials what lies in its registry again and again.
fn clear_dead(folder: &Path, but: &[String]) {
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten().take(MAX_SOCKETS) {
        let name = entry.file_name().to_string_lossy().into_owned();
        if but.contains(&name) || !socket_name::is_an_agents(&name) {
            continue;
        }
        let dialled = std::os::unix::net::UnixStream::connect(entry.path());
        if dialled.is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused) {
            let _ = std::fs::remove_file(entry.path());
        }
    }
}

/// Serves kubelet until `stop` is cancelled. `state` tells how it stands.
///
/// # Errors
/// When the list is longer than kubelet can take: no restart would help, the configuration must change. When another agent listens
/// where we are to: we would take the resource from each other.
pub async fn serve(
    settings: Settings,
    list: watch::Receiver<Arc<[Device]>>,
    calls: Calls,
    state: watch::Sender<Standing>,
    stop: CancellationToken,
) -> io::Result<()> {
    let len = encoded_len(&list.borrow());
    if len > MAX_LIST {
        return Err(io::Error::other(format!(
            "{} devices of {} are {len} bytes on the wire and kubelet takes 4 MiB: lower --split-count",
            list.borrow().len(),
            settings.resource
        )));
    }
    let desk = Desk { settings, list, calls, state, stop };
    let auto = desk.settings.registration == Registration::Auto;
    let mut way = if desk.settings.registration == Registration::Classic { Way::Classic } else { Way::Watcher };
    let mut pause = BACK_OFF.0;
    if desk.settings.clear(way) {
        sleep(FORGOTTEN_WITHIN).await;
    }
    loop {
        if let Some(second) = rival::listening(&desk.settings.socket_paths()).await {
            return Err(io::Error::other(second.to_string()));
        }
        let end = match way {
            Way::Watcher => desk.watcher().await,
            Way::Classic => desk.classic().await,
        };
        match end {
            End::Stopped => return Ok(()),
            // kubelet has nothing of ours that it could drop.
            End::Unasked if auto => {
                tracing::info!(
                    registry = %desk.settings.registry.display(),
                    "kubelet does not come to know us by its registry: registering the classic way"
                );
                way = Way::Classic;
                continue;
            }
            End::Unasked => desk.wait_for("kubelet to ask at its plugin registry"),
            End::Lost(why) => {
                tracing::warn!(reason = %why, "kubelet does not know us any more: registering again");
                desk.wait_for(&why);
                pause = BACK_OFF.0;
            }
            End::Failed(why) => {
                desk.wait_for(&why);
                if auto {
                    way = way.other();
                    pause = pause.max(FORGOTTEN_WITHIN);
                }
            }
        }
        tokio::select! {
            () = desk.stop.cancelled() => return Ok(()),
            () = sleep(pause) => {}
        }
        pause = (pause * 2).min(BACK_OFF.1);
    }
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
    /// It never came to be.
    Failed(String),
    /// It was, and is not any more.
    Lost(String),
}

struct Desk {
    settings: Settings,
    list: watch::Receiver<Arc<[Device]>>,
    calls: Calls,
    state: watch::Sender<Standing>,
    stop: CancellationToken,
}

impl Desk {
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
        let end = tokio::select! { end = end => end, () = self.stop.cancelled() => End::Stopped };
        site.close().await;
        end
    }

    /// Ends when kubelet could have asked and has not. While it does not run, the socket stays: it will look.
    async fn unasked(&self, site: &Site) {
        let kubelet = self.settings.kubelet();
        let mut callers = site.callers();
        let unheard = async {
            let called = callers.wait_for(|count| *count > 0).await.is_ok();
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
        let path = self.settings.plugins.join(socket_name::plugin(&self.settings.resource));
        let kubelet = self.settings.kubelet();
        if !kubelet.exists() {
            return End::Failed(format!("kubelet's socket {} is not there yet", kubelet.display()));
        }
        // Listening comes before `Register`: kubelet dials us inside that call.
        let site = match Site::open(&path, service, routes) {
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
        let end = tokio::select! { end = end => end, () = self.stop.cancelled() => End::Stopped };
        site.close().await;
        end
    }

    async fn call_register(&self, kubelet: &std::path::Path) -> Result<(), String> {
        let told = |error: &dyn std::fmt::Display| format!("Register on {}: {error}", kubelet.display());
        let endpoint = tonic::transport::Endpoint::try_from(format!("unix://{}", kubelet.display()))
            .map_err(|error| told(&error))?;
        let channel = endpoint.connect().await.map_err(|error| told(&error))?;
        let request = RegisterRequest {
            version: "v1beta1".into(),
            endpoint: socket_name::plugin(&self.settings.resource),
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

fn plugin(service: &Service) -> DevicePluginServer<Service> {
    DevicePluginServer::new(service.clone()).max_decoding_message_size(MAX_REQUEST)
}
