//! Opens the file of histories: makes it, recognises it, and puts aside what is not such a file.

use super::{FILE, MAX_PAGES, ProfileStore, Rows, StoreError};
use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags};
use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::time::Duration;

/// An unreadable file is renamed to this, and replaces an older file of this name.
const UNREADABLE: &str = "profile.db.unreadable";
/// What SQLite appends to the name of a database for its log.
const LOGS: [&str; 2] = ["-wal", "-shm"];
/// Only the user that runs the agent can read and write the file. SQLite gives its log the same mode.
const MODE: u32 = 0o600;
/// If the agent makes the state directory, no other user of the host may enter it.
const FOLDER_MODE: u32 = 0o700;
/// SQLite's field for the program to which a database belongs: "gpuS".
const APPLICATION: i64 = 0x6770_7553;
/// The version of the schema.
const VERSION: i64 = 1;

/// Settings of the connection. In this locking mode no other process can use the file, and SQLite maps no memory for its log.
const SESSION: &str = "
PRAGMA locking_mode = EXCLUSIVE;
PRAGMA cache_size = -256;
PRAGMA temp_store = MEMORY;
PRAGMA mmap_size = 0;
PRAGMA cell_size_check = ON;
";
const SCHEMA: &str = "
BEGIN IMMEDIATE;
CREATE TABLE series (id INTEGER PRIMARY KEY, subject TEXT NOT NULL, quantity TEXT NOT NULL, UNIQUE (subject, quantity)) STRICT;
CREATE TABLE history (
    tier INTEGER NOT NULL, block INTEGER NOT NULL, series INTEGER NOT NULL, steps BLOB NOT NULL,
    PRIMARY KEY (tier, block, series)
) STRICT, WITHOUT ROWID;
CREATE TABLE clock (
    id INTEGER PRIMARY KEY CHECK (id = 0), boot TEXT NOT NULL, monotonic INTEGER NOT NULL, wall INTEGER NOT NULL
) STRICT;
";

/// The open file, and what was put aside for it.
#[derive(Debug)]
pub struct OpenedStore {
    /// The file.
    pub store: ProfileStore,
    /// A sentence about the file that was there before and cannot be read.
    pub put_aside: Option<String>,
}

impl ProfileStore {
    /// Opens the file in this state directory, and makes it if it is missing. A file that cannot be read is renamed.
    ///
    /// # Errors
    /// If another process uses the file, or it cannot be made, opened or renamed.
    pub fn open(state_dir: &Path) -> Result<OpenedStore, StoreError> {
        fs::DirBuilder::new().recursive(true).mode(FOLDER_MODE).create(state_dir).map_err(failed)?;
        // SQLite refuses a link anywhere in the path. The operator may link the directory; nobody may link the file.
        let path = fs::canonicalize(state_dir).map_err(failed)?.join(FILE);
        match open(&path) {
            Ok(store) => Ok(OpenedStore { store, put_aside: None }),
            Err(StoreError::Unreadable(why)) => {
                let renamed = put_aside(&path)?;
                let put_aside = Some(format!("{}: {why}; it is put aside as {renamed}", path.display()));
                Ok(OpenedStore { store: open(&path)?, put_aside })
            }
            Err(error) => Err(error),
        }
    }
}

fn open(path: &Path) -> Result<ProfileStore, StoreError> {
    prepare(path)?;
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX | OpenFlags::SQLITE_OPEN_NOFOLLOW;
    let connection = Connection::open_with_flags(path, flags)?;
    // A lock of another process is reported at once: the thread must not wait for it.
    connection.busy_timeout(Duration::ZERO)?;
    for (config, on) in [
        (DbConfig::SQLITE_DBCONFIG_DEFENSIVE, true),
        (DbConfig::SQLITE_DBCONFIG_TRUSTED_SCHEMA, false),
        (DbConfig::SQLITE_DBCONFIG_ENABLE_TRIGGER, false),
        (DbConfig::SQLITE_DBCONFIG_ENABLE_VIEW, false),
    ] {
        connection.set_db_config(config, on)?;
    }
    connection.execute_batch(SESSION)?;
    let is_new = is_new(&connection)?;
    let mode: String = connection.pragma_update_and_check(None, "journal_mode", "WAL", |row| row.get(0))?;
    if mode != "wal" {
        return Err(StoreError::Failed(format!("SQLite offers no write-ahead log here, only {mode}")));
    }
    connection.execute_batch(&format!(
        "PRAGMA synchronous = NORMAL; PRAGMA wal_autocheckpoint = 256; PRAGMA journal_size_limit = {}; PRAGMA max_page_count = {MAX_PAGES};",
        2 << 20,
    ))?;
    if is_new {
        let identity = format!("PRAGMA application_id = {APPLICATION}; PRAGMA user_version = {VERSION}; COMMIT;");
        connection.execute_batch(&format!("{SCHEMA}{identity}"))?;
    }
    // A file that has our number and other tables.
    drop(Rows::prepare(&connection).map_err(|error| StoreError::Unreadable(error.to_string()))?);
    Ok(ProfileStore { connection, path: path.to_owned() })
}

/// Makes the file with its mode, if it is missing. What is there must be a file, not a link.
fn prepare(path: &Path) -> Result<(), StoreError> {
    match fs::symlink_metadata(path) {
        Ok(file) if !file.is_file() => Err(StoreError::Unreadable("it is not a regular file".to_owned())),
        Ok(file) if file.permissions().mode() & 0o777 == MODE => Ok(()),
        Ok(_) => fs::set_permissions(path, fs::Permissions::from_mode(MODE)).map_err(failed),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            fs::OpenOptions::new().write(true).create_new(true).mode(MODE).open(path).map(drop).map_err(failed)
        }
        Err(error) => Err(failed(error)),
    }
}

/// Whether the file is empty. A file of another program, of a later release, or with damaged pages is an error.
fn is_new(connection: &Connection) -> Result<bool, StoreError> {
    let pragma = |name: &str| connection.pragma_query_value(None, name, |row| row.get::<_, i64>(0));
    let (application, version) = (pragma("application_id")?, pragma("user_version")?);
    let tables: i64 = connection.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0))?;
    match (application, version) {
        (0, 0) if tables == 0 => return Ok(true),
        (APPLICATION, VERSION) => {}
        (APPLICATION, later) if later > VERSION => {
            return Err(StoreError::Unreadable(format!(
                "it has version {later}, of a later release; this release reads version {VERSION}"
            )));
        }
        _ => return Err(StoreError::Unreadable("it is a database of another program".to_owned())),
    }
    let found: String = connection.query_row("PRAGMA quick_check(1)", [], |row| row.get(0))?;
    if found == "ok" { Ok(false) } else { Err(StoreError::Unreadable(found)) }
}

/// Renames the file and its logs. Returns the new name.
fn put_aside(path: &Path) -> Result<String, StoreError> {
    let aside = path.with_file_name(UNREADABLE);
    for log in LOGS {
        let (from, to) = (format!("{FILE}{log}"), format!("{UNREADABLE}{log}"));
        let moved = fs::rename(path.with_file_name(from), path.with_file_name(&to));
        // A log of an older file must not stand beside this one.
        if moved.is_err() {
            let _ = fs::remove_file(path.with_file_name(to));
        }
    }
    match fs::rename(path, &aside) {
        Ok(()) => Ok(aside.display().to_string()),
        Err(error) => Err(StoreError::Failed(format!("it is unreadable and cannot be put aside: {error}"))),
    }
}

fn failed(error: io::Error) -> StoreError {
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => StoreError::Full,
        _ => StoreError::Failed(error.to_string()),
    }
}
