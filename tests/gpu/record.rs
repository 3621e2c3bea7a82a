//! The record: one text file for each kind of GPU and driver. Each line is in the file before the next check begins.

use crate::Outcome;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

/// A record that is being written.
#[derive(Debug)]
pub(crate) struct Record {
    file: File,
    path: PathBuf,
    checks: usize,
    differences: usize,
}

impl Record {
    /// Makes the file, with GPU and driver in its name.
    pub(crate) fn create(folder: &Path, gpu: &str, driver: &str) -> Outcome<Record> {
        std::fs::create_dir_all(folder)?;
        let path = folder.join(format!("{}-{driver}.txt", gpu.replace([' ', '/'], "-")));
        let file = File::create(&path)?;
        Ok(Record { file, path, checks: 0, differences: 0 })
    }

    /// Begins a part.
    pub(crate) fn part(&mut self, title: &str) {
        self.line(&format!("\n== {title}"));
    }

    /// Writes a line that is no check.
    pub(crate) fn line(&mut self, text: &str) {
        println!("{text}");
        writeln!(self.file, "{text}").expect("the record is written");
    }

    /// Writes a check, whether it holds or not.
    pub(crate) fn check(&mut self, holds: bool, text: &str) {
        self.checks += 1;
        self.differences += usize::from(!holds);
        self.line(&format!("{}  {text}", if holds { "ok     " } else { "DIFFERS" }));
    }

    /// Ends the record. Returns whether every check holds; a record without checks does not.
    pub(crate) fn verdict(mut self) -> bool {
        self.line(&format!("\n{} checks, {} differ", self.checks, self.differences));
        println!("record: {}", self.path.display());
        self.checks > 0 && self.differences == 0
    }
}
