//! Keeps HAMi-core's library for containers under names made from its content, so that a new version on the host
//! changes nothing for a running container.
//!
//! ```text
//!   the host's libvgpu.so ──copy──▶ <state>/limiter/libvgpu.so.<hash> ◀── current
//!                                          │ hard link, made when a container starts
//!                                          ▼
//!                                   <state>/pods/<uid>/<container>/libvgpu.so   mounted read-only
//! ```
//!
//! The hard link records that a container uses the version: the link is removed with the pod. A version that has no
//! link and is not the newest is removed. The paths in the container and the owners of the files are the same as in
//! HAMi, because the paths are built into the library.
//!
//! A container can write to two folders: `vgpu` and `lock`. Each container has its own folders, so that no container
//! can block or read another (decision 0110).
//!
//! What must never happen here: a library is changed or removed under a name that a container may still open; an
//! incomplete file gets a name.

use super::file::{DeliveryError, failed, make_folder, put};
use std::fs;
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use wire::cdi::{CdiEdits, CdiMount};

/// HAMi-core's directory in containers, writable: processes of one container share a file in it.
const CACHE: &str = "/usr/local/vgpu";
/// The library in that directory. This path is built into the library, and the library opens itself again by it.
pub(super) const LIBRARY: &str = "/usr/local/vgpu/libvgpu.so";
/// Names the library to the dynamic linker of every program.
const PRELOAD: &str = "/etc/ld.so.preload";
/// The library sets the variables of its process from this file, so that a program cannot change a limit through its
/// environment.
const OVERRIDE: &str = "/overrideEnv";
/// The folder of a lock that older versions of the library take while they find out their process id on the host.
const LOCK: &str = "/tmp/vgpulock";
/// Every user of a container may write there; no user can remove a file of another user.
const SHARED_MODE: u32 = 0o1777;
/// Every user of a container opens the file.
const CACHE_MODE: u32 = 0o666;
/// The folders of a container that the container can write to.
pub(super) const WRITABLE: [&str; 2] = ["vgpu", "lock"];
/// Maximum size in bytes: HAMi-core's library is smaller than 1 MiB, and a much larger file is a mistake.
const MAX_BYTES: u64 = 64 << 20;
/// Maximum number of versions in one sweep.
const MAX_VERSIONS: usize = 1024;

/// One version of the library, and the preload file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimiterLibrary {
    library: PathBuf,
    preload: PathBuf,
}

impl LimiterLibrary {
    /// Keeps the file at `library` as the newest version. A second call with the same content changes nothing.
    ///
    /// # Errors
    /// If the file is not a shared library, or cannot be read or kept.
    pub fn keep(state: &Path, library: &Path) -> Result<LimiterLibrary, DeliveryError> {
        let folder = folder(state);
        let bytes = read(library).map_err(failed("read the limiter's library", library))?;
        make_folder(&folder)?;
        let preload = folder.join("ld.so.preload");
        put(&preload, format!("{LIBRARY}\n").as_bytes())?;
        let kept = folder.join(format!("libvgpu.so.{:032x}", digest(&bytes)));
        // The link comes first: a sweep never removes the file that the link names.
        let current = folder.join("current");
        let next = folder.join(".current.new");
        let _ = fs::remove_file(&next);
        let name = kept.file_name().unwrap_or_default();
        std::os::unix::fs::symlink(name, &next).map_err(failed("link", &next))?;
        fs::rename(&next, &current).map_err(failed("put in place", &current))?;
        if fs::read(&kept).ok().as_ref() != Some(&bytes) {
            put(&kept, &bytes)?;
        }
        Ok(LimiterLibrary { library: kept, preload })
    }

    /// The path of this version's file.
    #[must_use]
    pub fn library(&self) -> &Path {
        &self.library
    }

    /// Writes the limiter's files of one container into its folder. `variables` sets the limits; `name` is the name of
    /// the container's cache file.
    pub(super) fn fill(&self, folder: &Path, variables: &[String], name: &str) -> Result<(), DeliveryError> {
        for writable in WRITABLE.map(|writable| folder.join(writable)) {
            make_folder(&writable)?;
            // After making the folder, because the umask of the process would cut the mode.
            let open = fs::set_permissions(&writable, fs::Permissions::from_mode(SHARED_MODE));
            open.map_err(failed("open to all", &writable))?;
        }
        let cache = folder.join(WRITABLE[0]).join(format!("{name}.cache"));
        make_cache(&cache).map_err(failed("make", &cache))?;
        let (library, hidden) = (folder.join("libvgpu.so"), folder.join(".libvgpu.so.new"));
        let _ = fs::remove_file(&hidden);
        fs::hard_link(&self.library, &hidden).map_err(failed("link the limiter's library to", &hidden))?;
        fs::rename(&hidden, &library).map_err(failed("put in place", &library))?;
        // If both names are the same file, a rename leaves both.
        let _ = fs::remove_file(&hidden);
        // The cache file's name is also in this file. Otherwise a process could set another name, would be counted
        // separately, and would get the whole limit again.
        let shared = shared_cache(name);
        let text: String = variables.iter().chain([&shared]).flat_map(|variable| [variable, "\n"]).collect();
        put(&folder.join("overrideEnv"), text.as_bytes())
    }

    /// The CDI edits for the limiter.
    pub(super) fn edits(&self, folder: &Path, name: &str) -> CdiEdits {
        let path = |path: &Path| path.display().to_string();
        let writable = |host: &Path, container: &str| CdiMount {
            options: ["rw", "nosuid", "nodev", "noexec", "bind"].map(str::to_owned).into(),
            ..CdiMount::read_only(&path(host), container)
        };
        CdiEdits {
            env: vec![shared_cache(name)],
            mounts: vec![
                writable(&folder.join(WRITABLE[0]), CACHE),
                CdiMount::read_only(&path(&folder.join("libvgpu.so")), LIBRARY),
                CdiMount::read_only(&path(&self.preload), PRELOAD),
                CdiMount::read_only(&path(&folder.join("overrideEnv")), OVERRIDE),
                writable(&folder.join(WRITABLE[1]), LOCK),
            ],
            ..CdiEdits::default()
        }
    }
}

/// The variable with the path of the file that the processes of a container share.
fn shared_cache(name: &str) -> String {
    format!("CUDA_DEVICE_MEMORY_SHARED_CACHE={CACHE}/{name}.cache")
}

/// Makes the file that the processes of a container share, if it is missing. Otherwise the first process would make it,
/// and on kernels that protect files in sticky folders (`fs.protected_regular`), processes of other users could not
/// open it.
fn make_cache(path: &Path) -> io::Result<()> {
    // `create_new` never follows a link that the container has put there.
    let made = fs::OpenOptions::new().write(true).create_new(true).mode(CACHE_MODE).open(path);
    match made {
        Ok(file) => file.set_permissions(fs::Permissions::from_mode(CACHE_MODE)),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(error) => Err(error),
    }
}

/// Removes versions that no container uses and that are not the newest. Returns their number.
pub(super) fn sweep(state: &Path) -> usize {
    let folder = folder(state);
    let Ok(current) = fs::read_link(folder.join("current")) else { return 0 };
    let unused = |entry: &fs::DirEntry| {
        let version = entry.file_name().to_str().is_some_and(|name| name.starts_with("libvgpu.so."));
        version && entry.file_name() != current && entry.metadata().is_ok_and(|metadata| metadata.nlink() == 1)
    };
    let entries = fs::read_dir(&folder).into_iter().flatten().take(MAX_VERSIONS).flatten();
    entries.filter(unused).filter(|entry| fs::remove_file(entry.path()).is_ok()).count()
}

fn folder(state: &Path) -> PathBuf {
    state.join("limiter")
}

fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let file = fs::File::open(path)?;
    let metadata = file.metadata()?;
    if !metadata.is_file() || metadata.len() > MAX_BYTES {
        return Err(io::Error::other(format!("it is not a file of at most {MAX_BYTES} bytes")));
    }
    file.take(MAX_BYTES).read_to_end(&mut bytes)?;
    if bytes.starts_with(b"\x7fELF") { Ok(bytes) } else { Err(io::Error::other("it is not a shared library (ELF)")) }
}

/// FNV-1a. The digest is part of the file name. [`LimiterLibrary::keep`] compares the content before it uses an
/// existing file of this name.
fn digest(bytes: &[u8]) -> u128 {
    bytes.iter().fold(0x6c62_272e_07bb_0142_62b8_2175_6295_c58d, |hash, byte| {
        (hash ^ u128::from(*byte)).wrapping_mul(0x0100_0000_0000_0000_0000_013b)
    })
}
