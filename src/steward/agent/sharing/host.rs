//! What the host provides for containers with a GPU: the CDI spec of NVIDIA's container toolkit, the limiter, and
//! whether the container runtime puts GPUs into containers by itself. All of it is read regularly, because for example
//! a driver update rewrites the spec.

use crate::settings::value::Strategy;
use effects::delivery::LimiterLibrary;
use sources::names::CriSocket;
use std::fs;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::spawn_blocking;
use tokio_util::sync::CancellationToken;
use wire::cdi::{self, CdiSpec, host};
use wire::runtime_config::RuntimeConfig;

/// Pause between two looks at the files.
const LOOK: Duration = Duration::from_secs(5);
/// Looks between two questions to the runtime; its configuration changes only when it restarts.
const ASK_EVERY: u32 = 12;
/// The most entries of a folder of CDI specs that are looked at: more than there are tickets on the largest node.
const MAX_ENTRIES: usize = 65_536;
/// The most toolkit files that are read in one look; usually there is one.
const MAX_FILES: usize = 8;
/// The start of their names.
const PREFIX: &str = "nvidia";

/// What is known of the host.
#[derive(Clone, Debug, Default)]
pub(crate) struct HostFindings {
    /// The toolkit's CDI spec.
    pub spec: Option<Arc<Taken>>,
    /// Whether NVIDIA's runtime puts devices into containers, so that the agent gives none.
    pub runtime_injects: bool,
    /// The newest version of the limiter.
    pub limiter: Option<LimiterLibrary>,
}

impl HostFindings {
    /// Whether both are the same, with the same reading of the same file.
    pub(super) fn is_same(&self, other: &HostFindings) -> bool {
        let file = |host: &HostFindings| host.spec.as_ref().map(Arc::as_ptr);
        file(self) == file(other) && self.runtime_injects == other.runtime_injects && self.limiter == other.limiter
    }
}

/// A CDI spec that is used.
#[derive(Debug)]
pub(crate) struct Taken {
    /// The path of the file.
    pub path: PathBuf,
    /// Its content.
    pub spec: CdiSpec,
}

/// One state of one file: path, inode, size and time of the last change.
type Stamp = (PathBuf, u64, u64, i64, i64);

/// The limiter on the host, and where its versions are kept.
#[derive(Debug)]
pub(super) struct LimiterSetting {
    path: PathBuf,
    state: PathBuf,
    /// The file as it was when its last version was kept; `last` is the file at the last look.
    kept: Option<Stamp>,
    last: Option<Stamp>,
}

/// Watches the host.
#[derive(Debug)]
pub(super) struct HostWatcher {
    folders: Vec<PathBuf>,
    cri_socket: CriSocket,
    strategy: Strategy,
    host: watch::Sender<HostFindings>,
    library: Option<LimiterSetting>,
    /// The toolkit's files at the last look; `None` before the first.
    seen: Option<Vec<Stamp>>,
    said: Option<Result<bool, String>>,
}

impl HostWatcher {
    /// Watches the CDI specs in these folders; a later folder has priority over an earlier one.
    pub(super) fn new(folders: Vec<PathBuf>, cri_socket: CriSocket, strategy: Strategy) -> HostWatcher {
        let host = watch::channel(HostFindings::default()).0;
        HostWatcher { folders, cri_socket, strategy, host, library: None, seen: None, said: None }
    }

    /// Gives containers this limiter; its versions are kept under `state`.
    ///
    /// # Errors
    /// A sentence that says why it cannot be given.
    pub(super) fn limit_by(&mut self, path: &Path, state: &Path) -> Result<(), String> {
        let stamp = fs::metadata(path).ok().map(|about| stamp(path, &about));
        let limiter = LimiterLibrary::keep(state, path).map_err(|error| error.to_string())?;
        tracing::info!(library = %path.display(), version = %limiter.library().display(), "containers get the limiter's library");
        self.host.send_modify(|host| host.limiter = Some(limiter));
        self.library =
            Some(LimiterSetting { path: path.to_owned(), state: state.to_owned(), kept: stamp.clone(), last: stamp });
        Ok(())
    }

    /// The findings, always the newest.
    pub(super) fn host(&self) -> watch::Receiver<HostFindings> {
        self.host.subscribe()
    }

    /// Looks once, because what containers get must be known before the first one starts.
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

    /// Keeps a new version of the limiter once the file was the same at two looks; before that it may still be written.
    async fn look_at_library(&mut self) {
        let Some(library) = &mut self.library else { return };
        let path = library.path.clone();
        let looked = spawn_blocking(move || fs::metadata(&path).map(|about| stamp(&path, &about))).await;
        let now = match looked {
            Ok(Ok(now)) => now,
            Ok(Err(error)) => {
                if library.last.take().is_some() {
                    tracing::warn!(
                        library = %library.path.display(), %error,
                        "the limiter's library is gone: containers still get the version that was kept last"
                    );
                }
                return;
            }
            Err(_) => return,
        };
        let settled = library.last.as_ref() == Some(&now);
        library.last = Some(now.clone());
        if !settled || library.kept.as_ref() == Some(&now) {
            return;
        }
        library.kept = Some(now);
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
        let folders = self.folders.clone();
        let Ok(stamps) = spawn_blocking(move || stamps(&folders)).await else { return };
        if self.seen.as_ref() == Some(&stamps) {
            return;
        }
        let paths: Vec<PathBuf> = stamps.iter().map(|(path, ..)| path.clone()).collect();
        self.seen = Some(stamps);
        let Ok(taken) = spawn_blocking(move || first_sound(&paths)).await else { return };
        match &taken {
            Some(taken) => {
                let common = &taken.spec.container_edits;
                tracing::info!(
                    file = %taken.path.display(), version = %taken.spec.cdi_version, devices = taken.spec.devices.len(),
                    mounts = common.mounts.len(), hooks = common.hooks.len(),
                    "containers with a GPU get what the host's CDI spec gives"
                );
            }
            None if self.folders.is_empty() || self.host.borrow().runtime_injects => {}
            None => tracing::warn!(
                folders = ?self.folders,
                "no CDI spec of NVIDIA's container toolkit: containers get device nodes and not the driver's libraries, which \
                 must then be in their image; nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml makes one"
            ),
        }
        self.host.send_modify(|host| host.spec = taken.map(Arc::new));
    }

    /// Decides whether the agent or NVIDIA's runtime puts devices into containers, and logs the reason when that is
    /// new.
    async fn ask_runtime(&mut self) {
        let told = match self.strategy {
            Strategy::Cdi | Strategy::Envvar => Ok(None),
            Strategy::Auto => sources::names::runtime_config(self.cri_socket.clone()).await.map(Some),
        };
        let injects = match &told {
            Ok(None) => Ok(self.strategy == Strategy::Envvar),
            Ok(Some(config)) => Ok(config.nvidia_injects()),
            Err(why) => Err(why.clone()),
        };
        // While the runtime does not answer, its last answer holds.
        if self.said.as_ref() == Some(&injects) || (self.said.is_some() && injects.is_err()) {
            return;
        }
        say(self.strategy, &told);
        let injected = *injects.as_ref().unwrap_or(&false);
        self.said = Some(injects);
        self.host.send_if_modified(|host| std::mem::replace(&mut host.runtime_injects, injected) != injected);
    }
}

fn say(strategy: Strategy, told: &Result<Option<RuntimeConfig>, String>) {
    const WE: &str = "the agent's CDI edits put devices into containers";
    const RUNTIME: &str = "NVIDIA's runtime puts devices into containers; the agent only names them";
    match (strategy, told) {
        (Strategy::Envvar, _) => tracing::info!(because = "--device-strategy=envvar", "{RUNTIME}"),
        (Strategy::Cdi, _) | (_, Ok(None)) => tracing::info!(because = "--device-strategy=cdi", "{WE}"),
        (Strategy::Auto, Ok(Some(config))) => {
            let (handler, program) = (config.default_handler.as_deref(), config.default_program.as_deref());
            let what = if config.nvidia_injects() { RUNTIME } else { WE };
            tracing::info!(because = "the runtime's default handler", handler, program, "{what}");
        }
        (Strategy::Auto, Err(why)) => {
            tracing::info!(because = "the runtime does not say how it is set up", why, "{WE}");
        }
    }
}

/// The toolkit's files by priority: the last folder first, and by name within a folder.
fn stamps(folders: &[PathBuf]) -> Vec<Stamp> {
    let of_folder = |folder: &PathBuf| {
        let entries = fs::read_dir(folder).into_iter().flatten().take(MAX_ENTRIES).flatten();
        let mut found: Vec<Stamp> = entries
            .filter(|entry| entry.file_name().to_str().is_some_and(is_name))
            .filter_map(|entry| {
                let about = fs::metadata(entry.path()).ok().filter(fs::Metadata::is_file)?;
                Some(stamp(&entry.path(), &about))
            })
            .collect();
        found.sort();
        found
    };
    folders.iter().rev().flat_map(of_folder).take(MAX_FILES).collect()
}

fn stamp(path: &Path, about: &fs::Metadata) -> Stamp {
    (path.to_owned(), about.ino(), about.size(), about.mtime(), about.mtime_nsec())
}

fn is_name(name: &str) -> bool {
    let end = Path::new(name).extension().and_then(|end| end.to_str());
    name.starts_with(PREFIX) && matches!(end, Some("json" | "yaml"))
}

/// The first of these files that describes GPUs. Each file before it that cannot be used is logged.
fn first_sound(paths: &[PathBuf]) -> Option<Taken> {
    paths.iter().find_map(|path| match read(path) {
        Ok(spec) => spec.map(|spec| Taken { path: path.clone(), spec }),
        Err(why) => {
            tracing::warn!(
                file = %path.display(), why,
                "this CDI spec cannot be used: what it gives (libraries, hooks, nodes) is not given to containers"
            );
            None
        }
    })
}

/// Reads a CDI spec; `None` if it is of another kind of device.
fn read(path: &Path) -> Result<Option<CdiSpec>, String> {
    let mut bytes = Vec::new();
    let file = fs::File::open(path).map_err(|error| error.to_string())?;
    file.take(cdi::MAX_BYTES as u64 + 1).read_to_end(&mut bytes).map_err(|error| error.to_string())?;
    let spec = if path.extension().is_some_and(|end| end == "json") {
        cdi::decode(&bytes)
    } else {
        let text = std::str::from_utf8(&bytes).map_err(|error| error.to_string())?;
        if text.len() > cdi::MAX_BYTES {
            return Err(format!("is longer than {} bytes", cdi::MAX_BYTES));
        }
        cdi::of_value(serde_saphyr::from_str(text).map_err(|error| error.to_string())?)
    };
    let spec = spec.map_err(|fault| fault.to_string())?;
    if spec.kind != host::KIND {
        return Ok(None);
    }
    host::for_all(&spec)?;
    Ok(Some(spec))
}

#[cfg(test)]
mod tests {
    use super::*;

    const YAML: &str = include_str!("../../../../tests/golden/cdi/nvidia-ctk.yaml");

    fn found(folders: &[PathBuf]) -> Option<Taken> {
        let paths: Vec<PathBuf> = stamps(folders).into_iter().map(|(path, ..)| path).collect();
        first_sound(&paths)
    }

    #[test]
    fn the_file_of_the_later_folder_counts_and_a_broken_one_leaves_the_other() {
        let root = tempfile::tempdir().unwrap();
        let folders = [root.path().join("etc"), root.path().join("run"), root.path().join("none")];
        for folder in &folders[..2] {
            fs::create_dir(folder).unwrap();
        }
        assert!(found(&folders).is_none());
        fs::write(folders[0].join("nvidia.yaml"), YAML).unwrap();
        fs::write(folders[0].join("other.yaml"), YAML).unwrap();
        assert_eq!(found(&folders).unwrap().path, folders[0].join("nvidia.yaml"));
        fs::write(folders[1].join("nvidia.com-gpu.json"), "{").unwrap();
        fs::write(folders[1].join("nvidia-imex.yaml"), YAML.replace("kind: nvidia.com/gpu", "kind: nvidia.com/imex"))
            .unwrap();
        assert_eq!(found(&folders).unwrap().path, folders[0].join("nvidia.yaml"), "the broken one is passed over");
        fs::write(folders[1].join("nvidia.yaml"), YAML).unwrap();
        let taken = found(&folders).unwrap();
        assert_eq!(taken.path, folders[1].join("nvidia.yaml"));
        assert!(!taken.spec.container_edits.mounts.is_empty());
    }

    #[test]
    fn what_cannot_be_used_says_why() {
        let root = tempfile::tempdir().unwrap();
        let loose = r#"{"cdiVersion":"0.5.0","kind":"nvidia.com/gpu","containerEdits":{"deviceNodes":[{"path":"/dev/nvidia0"}]},"devices":[{"name":"0","containerEdits":{"env":["A=b"]}}]}"#;
        for (name, text, word) in [
            ("nvidia.json", "{", "JSON"),
            ("nvidia.yaml", "cdiVersion: 0.5.0\nkind: nvidia.com/gpu\n", "0 devices"),
            ("nvidia-1.yaml", "\u{0}", ""),
            ("nvidia-2.json", loose, "to every container"),
            ("nvidia-3.yaml", &"#".repeat(cdi::MAX_BYTES + 1), "longer than"),
        ] {
            let path = root.path().join(name);
            fs::write(&path, text).unwrap();
            let why = read(&path).unwrap_err();
            assert!(why.contains(word), "{name}: {why}");
        }
    }

    #[tokio::test]
    async fn a_file_that_is_written_anew_is_read_anew() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("nvidia.yaml");
        let mut eye = HostWatcher::new(vec![root.path().to_owned()], CriSocket::Auto, Strategy::Cdi);
        let host = eye.host();
        eye.first().await;
        assert!(host.borrow().spec.is_none() && !host.borrow().runtime_injects);
        for version in ["550.54.15", "570.00.00"] {
            fs::write(&path, YAML.replace("550.54.15", version)).unwrap();
            eye.look_at_files().await;
            let taken = host.borrow().spec.clone().unwrap();
            let named = taken.spec.container_edits.mounts.iter().any(|mount| mount.host_path.contains(version));
            assert!(named, "{version}");
        }
        fs::remove_file(&path).unwrap();
        eye.look_at_files().await;
        assert!(host.borrow().spec.is_none());
    }
}
