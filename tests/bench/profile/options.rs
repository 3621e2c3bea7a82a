//! What is to be run: size, seeds, parts and the folder of public data, from the environment.

use std::ops::Range;
use std::path::PathBuf;

/// How many series of each cell are made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Size {
    /// Plain `cargo test`: seconds.
    Quick,
    /// `PROFILE=check`: a minute, no public data but the cuts in the repository.
    Cut,
    /// `PROFILE=report`: the sizes and files of the marks.
    Full,
}

/// One series of a cell: its seed, and its number among the series of that seed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Draw {
    pub(crate) seed: u64,
    pub(crate) number: u64,
    /// Whether the other detectors are asked too. They are slow, and a tenth of the series shows what they do.
    pub(crate) beside: bool,
}

/// The options of a run.
#[derive(Debug, Clone)]
pub(crate) struct Options {
    pub(crate) size: Size,
    pub(crate) seeds: Range<u64>,
    /// Prints each wrong answer.
    pub(crate) show: bool,
    parts: Vec<String>,
    data: Option<PathBuf>,
    days: Option<f64>,
}

/// Series of a cell that the other detectors are asked about in a report.
const BESIDE: usize = 200;

impl Options {
    /// Options from variables, or what is wrong with a variable. Seeds 0 to 99 are for tuning; only a report uses 100 to 199.
    pub(crate) fn read(variable: impl Fn(&str) -> Option<String>) -> Result<Options, String> {
        let size = match variable("PROFILE").as_deref() {
            None | Some("") => Size::Quick,
            Some("check") => Size::Cut,
            Some("report") => Size::Full,
            Some(other) => return Err(format!("PROFILE is check or report, not {other:?}")),
        };
        let seeds = match variable("PROFILE_SEEDS") {
            Some(text) => range(&text).ok_or(format!("PROFILE_SEEDS is a range such as 0..100, not {text:?}"))?,
            None if size == Size::Full => 100..200,
            None => 0..100,
        };
        let days = match variable("PROFILE_DAYS") {
            Some(text) => Some(text.parse().map_err(|_| format!("PROFILE_DAYS is a number, not {text:?}"))?),
            None => None,
        };
        let parts = variable("PROFILE_PARTS").unwrap_or_default();
        Ok(Options {
            size,
            seeds,
            show: variable("PROFILE_SHOW").is_some(),
            parts: parts.split(',').map(str::trim).filter(|part| !part.is_empty()).map(str::to_owned).collect(),
            data: variable("PROFILE_DATA").map(PathBuf::from),
            days,
        })
    }

    /// Whether this part is to be run: all parts if none is named.
    pub(crate) fn wants(&self, part: &str) -> bool {
        self.parts.is_empty() || self.parts.iter().any(|wanted| wanted == part)
    }

    /// Whether the marks are compared with the confidence bounds that they name. Fewer series than the marks ask for have wide
    /// bounds; then a mark is missed only if the measured rate is worse for certain.
    pub(crate) fn is_strict(&self) -> bool {
        self.size == Size::Full
    }

    /// Scales a number of series of a report down to the size of this run.
    pub(crate) fn count(&self, full: usize) -> usize {
        match self.size {
            Size::Quick => full.div_ceil(100),
            Size::Cut => full.div_ceil(5),
            Size::Full => full,
        }
    }

    /// The series of a cell that has `full` series in a report, over all seeds in turn.
    pub(crate) fn draws(&self, full: usize) -> Vec<Draw> {
        let count = self.count(full);
        let beside = match self.size {
            Size::Quick => count.min(2),
            Size::Cut => count.min(40),
            Size::Full => count.min(BESIDE),
        };
        self.spread(count, beside)
    }

    /// This many series over all seeds in turn; the other detectors are asked about the first `beside` of them.
    pub(crate) fn spread(&self, count: usize, beside: usize) -> Vec<Draw> {
        let seeds = self.seeds.end - self.seeds.start;
        let draw = |(index, seed)| Draw { seed, number: index as u64 / seeds, beside: index < beside };
        self.seeds.clone().cycle().take(count).enumerate().map(draw).collect()
    }

    /// The folder of public data; only a report reads it.
    pub(crate) fn data(&self) -> Result<PathBuf, String> {
        match &self.data {
            Some(folder) if folder.is_dir() => Ok(folder.clone()),
            Some(folder) => Err(format!("PROFILE_DATA: {} is not a folder", folder.display())),
            None => Err("PROFILE_DATA must name the folder of the public recordings (docs/testing.md)".to_owned()),
        }
    }

    /// Stream-days of each family.
    pub(crate) fn days(&self, quick: f64, cut: f64, full: f64) -> f64 {
        self.days.unwrap_or(match self.size {
            Size::Quick => quick,
            Size::Cut => cut,
            Size::Full => full,
        })
    }
}

fn range(text: &str) -> Option<Range<u64>> {
    let (start, end) = text.split_once("..")?;
    let (start, end) = (start.trim().parse().ok()?, end.trim().parse().ok()?);
    (start < end).then_some(start..end)
}

#[test]
fn a_cell_has_its_series_spread_over_all_seeds() {
    let options =
        Options::read(|name| (name == "PROFILE").then(|| "report".to_owned())).expect("these options are valid");
    let draws = options.draws(250);
    assert_eq!((draws[0].seed, draws[0].number, draws[99].seed), (100, 0, 199));
    assert_eq!((draws[249].seed, draws[249].number, draws[249].beside), (149, 2, false));
}
