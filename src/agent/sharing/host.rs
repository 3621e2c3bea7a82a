//! Watches what the host provides for containers with a GPU: the CDI spec of NVIDIA's container toolkit, the limiter, and
//! whether the container runtime itself puts GPUs into containers. All this is read regularly, because a driver update, for
//! example, rewrites the spec.

use decide::device_injection::DeviceInjection;
use decide::settled_file::SettledFile;
use effects::delivery::LimiterLibrary;
use sources::bounded_file;
use sources::names::CriSocket;
use sources::toolkit_spec::{ToolkitSpec, ToolkitSpecReader, ToolkitSpecUpdate};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::spawn_blocking;
use tokio_util::sync::CancellationToken;
use wire::runtime_config::RuntimeConfig;

/// Pause between two looks at the files.
const LOOK: Duration = Duration::from_secs(5);
/// The number of looks between two requests to the runtime, whose configuration changes only when it restarts.
const ASK_EVERY: u32 = 12;

/// What the agent knows about the host.
#[derive(Clone, Debug, Default)]
pub(crate) struct HostFindings {
    /// The toolkit's CDI spec.
    pub spec: Option<Arc<ToolkitSpec>>,
    /// Whether NVIDIA's runtime puts devices into containers, so that the agent adds no devices.
    pub runtime_injects: bool,
    /// The newest version of the limiter.
    pub limiter: Option<LimiterLibrary>,
    /// The container runtime that answered last (`containerd://2.1.4`).
    pub runtime: Option<Arc<str>>,
    /// The folders that were searched for a CDI spec of the toolkit, if no folder has such a spec.
    pub without_spec: Option<Arc<str>>,
}

impl HostFindings {
    /// What containers lack because there is no CDI spec, and what to do about it. NVIDIA's runtime needs no spec.
    pub(super) fn lacks(&self) -> Option<Arc<str>> {
        let folders = self.without_spec.as_ref().filter(|_| !self.runtime_injects)?;
        Some(
            format!(
                "no CDI spec of NVIDIA's container toolkit in {folders}: containers get device nodes but not the driver's libraries, \
                 which must then be in their image; nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml makes one"
            )
            .into(),
        )
    }

    /// Whether both findings are the same, with the spec from the same reading of the same file.
    pub(super) fn is_same(&self, other: &HostFindings) -> bool {
        let file = |host: &HostFindings| host.spec.as_ref().map(Arc::as_ptr);
        file(self) == file(other)
            && self.runtime_injects == other.runtime_injects
            && self.limiter == other.limiter
            && self.runtime == other.runtime
    }
}

/// The limiter on the host, and the folder that keeps its versions.
#[derive(Debug)]
pub(super) struct LimiterSetting {
    path: PathBuf,
    state: PathBuf,
    /// The file on the host. A new version is used once it is complete.
    file: SettledFile,
}

/// Watches the host.
#[derive(Debug)]
pub(super) struct HostWatcher {
    reader: ToolkitSpecReader,
    /// The socket of the container runtime; `None` if the runtime is not asked.
    cri_socket: Option<CriSocket>,
    injection: DeviceInjection,
    host: watch::Sender<HostFindings>,
    library: Option<LimiterSetting>,
}

impl HostWatcher {
    /// Watches the CDI specs in these folders; a later folder has priority over an earlier folder. Without a `cri_socket`
    /// the runtime is not asked.
    pub(super) fn new(folders: Vec<PathBuf>, cri_socket: Option<CriSocket>) -> HostWatcher {
        let host = watch::channel(HostFindings::default()).0;
        let (reader, injection) = (ToolkitSpecReader::new(folders), DeviceInjection::default());
        HostWatcher { reader, cri_socket, injection, host, library: None }
    }

    /// Makes containers get this limiter. Its versions are kept under `state`.
    ///
    /// # Errors
    /// A message that says why containers cannot get it.
    pub(super) fn limit_by(&mut self, path: &Path, state: &Path) -> Result<(), String> {
        let stamp = bounded_file::stamp(path).ok();
        let limiter = LimiterLibrary::keep(state, path).map_err(|error| error.to_string())?;
        tracing::info!(library = %path.display(), version = %limiter.library().display(), "containers get the limiter's library");
        self.host.send_modify(|host| host.limiter = Some(limiter));
        let file = SettledFile::used(stamp);
        self.library = Some(LimiterSetting { path: path.to_owned(), state: state.to_owned(), file });
        Ok(())
    }

    /// The newest findings.
    pub(super) fn host(&self) -> watch::Receiver<HostFindings> {
        self.host.subscribe()
    }

    /// Looks once, because the edits of containers must be known before the first container starts.
    pub(super) async fn first(&mut self) {
        self.ask_runtime().await;
        self.look_at_files().await;
    }

    /// Looks regularly until `stop` is cancelled.
    pub(super) async fn run(mut self, stop: CancellationToken) {
        let work = async {
            for count in 1_u32.. {
                tokio::time::sleep(LOOK).await;
                if count % ASK_EVERY == 0 {
                    self.ask_runtime().await;
                }
                self.look_at_files().await;
                self.look_at_library().await;
            }
        };
        tokio::select! { () = stop.cancelled() => {}, () = work => {} }
    }

    /// Keeps a new version of the limiter once the file was the same at two looks. A file that changes between two looks
    /// may still be being written.
    async fn look_at_library(&mut self) {
        let Some(library) = &mut self.library else { return };
        let path = library.path.clone();
        let looked = spawn_blocking(move || bounded_file::stamp(&path)).await;
        let now = match looked {
            Ok(Ok(now)) => now,
            Ok(Err(error)) => {
                if library.file.is_gone() {
                    tracing::warn!(
                        library = %library.path.display(), %error,
                        "the limiter's library is gone: containers still get the version that was kept last"
                    );
                }
                return;
            }
            Err(_) => return,
        };
        if !library.file.is_new(now) {
            return;
        }
        let (path, state) = (library.path.clone(), library.state.clone());
        match spawn_blocking(move || LimiterLibrary::keep(&state, &path)).await {
            Ok(Ok(limiter)) => {
                let is_new = self.host.borrow().limiter.as_ref() != Some(&limiter);
                if is_new {
                    tracing::info!(
                        library = %library.path.display(), version = %limiter.library().display(),
                        "containers that start from now on get another version of the limiter's library"
                    );
                    self.host.send_modify(|host| host.limiter = Some(limiter));
                }
            }
            Ok(Err(error)) => {
                tracing::warn!(%error, "cannot keep the new limiter: containers still get the version kept last")
            }
            Err(_) => {}
        }
    }

    async fn look_at_files(&mut self) {
        let mut reader = self.reader.clone();
        let Ok((reader, update)) = spawn_blocking(move || {
            let update = reader.poll();
            (reader, update)
        })
        .await
        else {
            return;
        };
        self.reader = reader;
        let ToolkitSpecUpdate::Now(found) = update else { return };
        let folders: Vec<String> = self.reader.folders().iter().map(|folder| folder.display().to_string()).collect();
        let without_spec = (found.is_none() && !folders.is_empty()).then(|| Arc::from(folders.join(", ")));
        if let Some(found) = &found {
            let common = &found.spec.container_edits;
            tracing::info!(
                file = %found.path.display(), version = %found.spec.cdi_version, devices = found.spec.devices.len(),
                mounts = common.mounts.len(), hooks = common.hooks.len(),
                "containers with a GPU get the edits of the host's CDI spec"
            );
        }
        self.host.send_modify(|host| (host.spec, host.without_spec) = (found, without_spec));
        if let Some(lacks) = self.host.borrow().lacks() {
            tracing::warn!("{lacks}");
        }
    }

    /// Finds out whether the agent or NVIDIA's runtime puts devices into containers, and logs the reason when this changes.
    async fn ask_runtime(&mut self) {
        let Some(cri_socket) = &self.cri_socket else { return };
        let config = sources::names::runtime_config(cri_socket.clone()).await;
        if let Ok((runtime, _)) = &config {
            self.host.send_if_modified(|host| {
                let changed = host.runtime.as_deref() != Some(&**runtime);
                host.runtime = Some(runtime.as_str().into());
                changed
            });
        }
        let config = config.map(|(_, config)| config);
        let answer = config.as_ref().map(RuntimeConfig::nvidia_injects).map_err(String::clone);
        let Some(injected) = self.injection.answered(answer) else { return };
        log_injection(&config);
        self.host.send_if_modified(|host| std::mem::replace(&mut host.runtime_injects, injected) != injected);
    }
}

fn log_injection(config: &Result<RuntimeConfig, String>) {
    const WE: &str = "the agent's CDI edits put devices into containers";
    const RUNTIME: &str = "NVIDIA's runtime puts devices into containers; the agent only names them";
    match config {
        Ok(config) => {
            let (handler, program) = (config.default_handler.as_deref(), config.default_program.as_deref());
            let what = if config.nvidia_injects() { RUNTIME } else { WE };
            tracing::info!(because = "the runtime's default handler", handler, program, "{what}");
        }
        Err(why) => tracing::info!(because = "the runtime does not report its configuration", why, "{WE}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    const YAML: &str = include_str!("../../../tests/golden/cdi/nvidia-ctk.yaml");

    #[tokio::test]
    async fn a_spec_that_changes_is_read_again() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("nvidia.yaml");
        let mut watcher = HostWatcher::new(vec![root.path().to_owned()], None);
        let host = watcher.host();
        watcher.first().await;
        assert!(host.borrow().spec.is_none() && !host.borrow().runtime_injects);
        for version in ["550.54.15", "570.00.00"] {
            fs::write(&path, YAML.replace("550.54.15", version)).unwrap();
            watcher.look_at_files().await;
            let spec = host.borrow().spec.clone().unwrap();
            let named = spec.spec.container_edits.mounts.iter().any(|mount| mount.host_path.contains(version));
            assert!(named, "{version}");
        }
        fs::remove_file(&path).unwrap();
        watcher.look_at_files().await;
        assert!(host.borrow().spec.is_none());
        let lacks = host.borrow().lacks().unwrap();
        assert!(
            lacks.contains(&root.path().display().to_string()) && lacks.contains("nvidia-ctk cdi generate"),
            "{lacks}"
        );
        let injects = HostFindings { runtime_injects: true, ..host.borrow().clone() };
        assert_eq!(injects.lacks(), None, "NVIDIA's runtime mounts the libraries");
    }
}
