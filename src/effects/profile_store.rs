//! The file of histories in the state directory: an SQLite database with the minutes of a day and the quarters of an hour of 35 days.
//!
//! ```text
//!   series   id, subject, quantity
//!   history  (tier, block, series) ──▶ one row of `wire::profile_row`: an hour of minutes, or a day of quarters
//!   clock    the boot of the machine, and the pair of times from which all times of that boot follow
//! ```
//!
//! The rows of one block of all series are neighbours, because a write changes the newest block of each: thirty pages for 100 pods.
//! A read of one series takes one row of each block. A step that is in the file is never changed.
//!
//! What must never happen here: a file above [`MAX_BYTES`]; a file of another program or a later release that is changed; a symbolic
//! link that is followed; a row that makes the agent panic.

mod open;
#[cfg(test)]
mod tests;

pub use open::OpenedStore;

use model::id::BootId;
use model::stored_history::{HistoryKey, HistoryStep, StepValue, StoredTier, UnwrittenSteps};
use model::time::{Monotonic, Now, WallTime};
use rusqlite::{Connection, ErrorCode, OptionalExtension, Statement, Transaction, TransactionBehavior};
use std::ops::Range;
use std::path::{Path, PathBuf};
use wire::profile_row;

/// Name of the file in the state directory.
pub const FILE: &str = "profile.db";
/// Upper bound on the file and its write-ahead log.
pub const MAX_BYTES: u64 = 64 << 20;
/// Pages of the file, of 4 KiB each: SQLite refuses to write more. The rest of [`MAX_BYTES`] is for the log.
const MAX_PAGES: u64 = (56 << 20) / 4096;
/// Above this number of pages the oldest day is removed. 8 GPUs and 100 pods need about 9 MiB; pods that come and go need more.
const KEPT_PAGES: u64 = (48 << 20) / 4096;
/// How often a write is tried when the file is full. Each time the oldest day is removed, which is about what a day needs.
const TRIES: usize = 3;
/// The file counts as full below its bound by this number of pages, because a write needs new pages.
const NEAR_BOUND: u64 = 256;
/// Days that one write may remove for their size: more than there are.
const MAX_REMOVED: usize = 64;

/// Why the file cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// It is damaged, or it is not a file of histories that this release can read.
    #[error("{0}")]
    Unreadable(String),
    /// Another process uses it, such as the previous agent during an upgrade.
    #[error("another process has locked it")]
    Locked,
    /// The disk, or the bound of the file.
    #[error("the disk is full")]
    Full,
    /// Any other error.
    #[error("{0}")]
    Failed(String),
}

/// The pair of times that is kept with the histories.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeptClock {
    /// The boot to which the monotonic clock belongs.
    pub boot: BootId,
    /// The pair.
    pub pair: Now,
}

/// The open file. No other process can use it meanwhile.
#[derive(Debug)]
pub struct ProfileStore {
    connection: Connection,
    path: PathBuf,
}

impl ProfileStore {
    /// The file's path.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The pair of times of this boot, if it was kept.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn clock(&self, boot: &BootId) -> Result<Option<Now>, StoreError> {
        let row = self.connection.query_row("SELECT boot, monotonic, wall FROM clock WHERE id = 0", [], |row| {
            Ok((row.get::<_, String>(0)?, row.get::<_, i64>(1)?, row.get::<_, i64>(2)?))
        });
        let kept = row.optional()?.filter(|(of, ..)| of == boot.as_str());
        Ok(kept.and_then(|(_, monotonic, wall)| {
            let (monotonic, wall) = (u64::try_from(monotonic).ok()?, u64::try_from(wall).ok()?);
            Some(Now { monotonic: Monotonic(monotonic), wall: WallTime(wall) })
        }))
    }

    /// Writes steps in one transaction, and removes what is older than its tier keeps. `steps` is called again if the file is full.
    ///
    /// # Errors
    /// If they cannot be written: then none of them is.
    pub fn write<I: Iterator<Item = UnwrittenSteps>>(
        &mut self,
        steps: impl Fn() -> I,
        clock: &KeptClock,
        now: WallTime,
    ) -> Result<(), StoreError> {
        let mut written = Err(StoreError::Full);
        for _ in 0..TRIES {
            written = write_all(&mut self.connection, steps(), clock, now).map_err(StoreError::from);
            // A full disk is no reason to remove histories.
            if written != Err(StoreError::Full) || !self.is_at_bound()? {
                break;
            }
            remove_oldest(&self.connection)?;
        }
        written?;
        self.shrink(KEPT_PAGES)
    }

    /// Removes the oldest days until the file uses at most this number of pages.
    fn shrink(&self, most: u64) -> Result<(), StoreError> {
        for _ in 0..MAX_REMOVED {
            if self.used_pages()? <= most || remove_oldest(&self.connection)? == 0 {
                break;
            }
        }
        Ok(())
    }

    /// The steps of a series in this range, oldest first. A row that cannot be decoded has no steps.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn read(&self, key: &HistoryKey, tier: StoredTier, range: Range<u64>) -> Result<Vec<HistoryStep>, StoreError> {
        let mut rows = Rows::prepare(&self.connection)?;
        let Some(series) = rows.find(key)? else { return Ok(Vec::new()) };
        let size = tier.block_steps();
        let blocks = range.start / size..=range.end.saturating_sub(1) / size;
        let mut steps = Vec::new();
        // No tier has more blocks.
        for block in blocks.take(block_length(tier)) {
            let kept = rows.steps((tier, block, series))?;
            let numbered = (block * size..).zip(kept).filter(|(index, _)| range.contains(index));
            steps.extend(numbered.filter_map(|(index, value)| Some(HistoryStep { index, value: value? })));
        }
        Ok(steps)
    }

    /// Bytes of the file and its write-ahead log.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        let log = self.path.with_file_name(format!("{FILE}-wal"));
        [&self.path, &log].into_iter().filter_map(|path| std::fs::metadata(path).ok()).map(|file| file.len()).sum()
    }

    fn used_pages(&self) -> Result<u64, StoreError> {
        Ok(self.pragma("page_count")?.saturating_sub(self.pragma("freelist_count")?))
    }

    fn is_at_bound(&self) -> Result<bool, StoreError> {
        Ok(self.pragma("page_count")? + NEAR_BOUND >= self.pragma("max_page_count")?)
    }

    fn pragma(&self, name: &str) -> Result<u64, StoreError> {
        let value = self.connection.pragma_query_value(None, name, |row| row.get::<_, i64>(0))?;
        Ok(u64::try_from(value).unwrap_or(0))
    }
}

impl From<rusqlite::Error> for StoreError {
    fn from(error: rusqlite::Error) -> StoreError {
        match error.sqlite_error_code() {
            Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => StoreError::Unreadable(error.to_string()),
            Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => StoreError::Locked,
            Some(ErrorCode::DiskFull) => StoreError::Full,
            Some(_) => StoreError::Failed(error.to_string()),
            // A value of another type than this release writes.
            None => StoreError::Unreadable(error.to_string()),
        }
    }
}

/// The prepared statements for rows.
struct Rows<'c> {
    find: Statement<'c>,
    begin: Statement<'c>,
    read: Statement<'c>,
    put: Statement<'c>,
}

/// The place of a row: its tier, its block, and its series.
type RowPlace = (StoredTier, u64, i64);

impl<'c> Rows<'c> {
    fn prepare(connection: &'c Connection) -> rusqlite::Result<Rows<'c>> {
        Ok(Rows {
            find: connection.prepare("SELECT id FROM series WHERE subject = ?1 AND quantity = ?2")?,
            begin: connection.prepare("INSERT INTO series (subject, quantity) VALUES (?1, ?2)")?,
            read: connection.prepare("SELECT steps FROM history WHERE tier = ?1 AND block = ?2 AND series = ?3")?,
            put: connection
                .prepare("INSERT OR REPLACE INTO history (tier, block, series, steps) VALUES (?1, ?2, ?3, ?4)")?,
        })
    }

    fn find(&mut self, key: &HistoryKey) -> rusqlite::Result<Option<i64>> {
        self.find.query_row((profile_row::subject(key), key.quantity.code()), |row| row.get(0)).optional()
    }

    /// The steps of a row; all are `None` if there is no row that can be decoded.
    fn steps(&mut self, (tier, block, series): RowPlace) -> rusqlite::Result<Vec<Option<StepValue>>> {
        let place = (number(tier), signed(block), series);
        let row = self.read.query_row(place, |row| row.get::<_, Vec<u8>>(0)).optional()?;
        let length = block_length(tier);
        let decoded = row.and_then(|row| profile_row::decode(&row, length).ok());
        Ok(decoded.unwrap_or_else(|| vec![None; length]))
    }

    /// Adds steps to their rows. A step that is there already stays.
    fn add(&mut self, UnwrittenSteps { key, tier, steps }: &UnwrittenSteps) -> rusqlite::Result<()> {
        let series = match self.find(key)? {
            Some(series) => series,
            None => self.begin.insert((profile_row::subject(key), key.quantity.code()))?,
        };
        let size = tier.block_steps();
        for part in steps.chunk_by(|one, next| one.index / size == next.index / size) {
            let Some(block) = part.first().map(|step| step.index / size) else { continue };
            let mut kept = self.steps((*tier, block, series))?;
            for step in part {
                let place = usize::try_from(step.index % size).unwrap_or(usize::MAX);
                if let Some(slot) = kept.get_mut(place) {
                    slot.get_or_insert(step.value);
                }
            }
            if let Some(row) = profile_row::encode(&kept) {
                self.put.execute((number(*tier), signed(block), series, row))?;
            }
        }
        Ok(())
    }
}

fn write_all(
    connection: &mut Connection,
    mut steps: impl Iterator<Item = UnwrittenSteps>,
    clock: &KeptClock,
    now: WallTime,
) -> rusqlite::Result<()> {
    let change = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    {
        let mut rows = Rows::prepare(&change)?;
        steps.try_for_each(|unwritten| rows.add(&unwritten))?;
    }
    change.execute(
        "INSERT OR REPLACE INTO clock (id, boot, monotonic, wall) VALUES (0, ?1, ?2, ?3)",
        (clock.boot.as_str(), signed(clock.pair.monotonic.0), signed(clock.pair.wall.0)),
    )?;
    remove_old(&change, now)?;
    change.commit()
}

/// Removes the oldest block of each tier, if it is older than the tier keeps. One block for each write is enough, and a wall clock
/// that is wrong after a boot does not cost all histories at once.
fn remove_old(change: &Transaction<'_>, now: WallTime) -> rusqlite::Result<()> {
    for tier in StoredTier::ALL {
        let oldest = tier.index_of(now).saturating_sub(tier.kept_steps()) / tier.block_steps();
        let removed = change.execute(
            "DELETE FROM history WHERE tier = ?1 AND block < ?2
             AND block = (SELECT min(block) FROM history WHERE tier = ?1)",
            (number(tier), signed(oldest)),
        )?;
        if removed > 0 && tier == StoredTier::Quarter {
            remove_empty_series(change)?;
        }
    }
    Ok(())
}

/// Removes the series of which no history is left: pods that come and go would fill the file with their names.
fn remove_empty_series(connection: &Connection) -> rusqlite::Result<usize> {
    connection.execute("DELETE FROM series WHERE id NOT IN (SELECT series FROM history)", [])
}

/// Removes the oldest day, or the oldest hour if there is no day, and the series that it leaves empty. Returns the number of rows
/// that were removed.
fn remove_oldest(connection: &Connection) -> rusqlite::Result<usize> {
    for tier in [StoredTier::Quarter, StoredTier::Minute] {
        let removed = connection.execute(
            "DELETE FROM history WHERE tier = ?1 AND block = (SELECT min(block) FROM history WHERE tier = ?1)",
            [number(tier)],
        )?;
        if removed > 0 {
            return Ok(removed + remove_empty_series(connection)?);
        }
    }
    remove_empty_series(connection)
}

/// The number of a tier in the file.
fn number(tier: StoredTier) -> i64 {
    match tier {
        StoredTier::Minute => 1,
        StoredTier::Quarter => 2,
    }
}

fn block_length(tier: StoredTier) -> usize {
    usize::try_from(tier.block_steps()).unwrap_or(usize::MAX)
}

/// SQLite has signed numbers only.
fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}
