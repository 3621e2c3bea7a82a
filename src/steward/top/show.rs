//! Formats numbers and readings for the few characters of a cell.

use wire::api::ReadingJson;

/// The text for a value that could not be read.
pub(crate) const ABSENT: &str = "–";
/// A reading older than this many seconds gets a mark. The longest of the agent's periods is 5 s.
pub(crate) const OLD: f64 = 10.0;
/// The mark of an old reading.
pub(crate) const OLD_MARK: char = '*';

/// Cells of one row, and notes about them.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Cells {
    /// In the order of the view's columns.
    pub(crate) texts: Vec<String>,
    /// Notes such as `power: not supported by this device`, each with the number of its column.
    pub(crate) notes: Vec<(usize, String)>,
}

// === impl Cells ===

impl Cells {
    /// A plain text.
    pub(crate) fn text(&mut self, text: impl Into<String>) -> &mut Self {
        self.texts.push(text.into());
        self
    }

    /// An empty cell, because there is nothing to measure.
    pub(crate) fn blank(&mut self) -> &mut Self {
        self.text("")
    }

    /// A cell with the reading called `name`.
    pub(crate) fn reading<T>(
        &mut self,
        name: &str,
        reading: &ReadingJson<T>,
        show: impl FnOnce(&T) -> String,
    ) -> &mut Self {
        let text = self.note(name, reading, show);
        self.text(text)
    }

    /// A note about the next cell.
    pub(crate) fn remark(&mut self, words: String) {
        self.notes.push((self.texts.len(), words));
    }

    /// Like [`Cells::note`], for a property of the hardware or a configured value. Such a value rarely changes and is
    /// read rarely, so its age has no meaning and gets no mark.
    pub(crate) fn fact<T>(&mut self, name: &str, fact: &ReadingJson<T>, show: impl FnOnce(&T) -> String) -> String {
        match fact {
            ReadingJson::Measured { value, .. } => show(value),
            ReadingJson::Absent { .. } => self.note(name, fact, show),
        }
    }

    /// The text of a reading that is part of a cell. Adds a note if the reading is absent or old.
    pub(crate) fn note<T>(&mut self, name: &str, reading: &ReadingJson<T>, show: impl FnOnce(&T) -> String) -> String {
        match reading {
            ReadingJson::Measured { value, age_seconds } if *age_seconds > OLD => {
                self.remark(format!("{name} was read {} ago", duration(*age_seconds)));
                format!("{}{OLD_MARK}", show(value))
            }
            ReadingJson::Measured { value, .. } => show(value),
            ReadingJson::Absent { reason, .. } => {
                self.remark(format!("{name}: {reason}"));
                ABSENT.to_owned()
            }
        }
    }
}

/// `812`, `1.5K`, `80.0G`: at most six characters.
#[expect(clippy::cast_precision_loss, reason = "three digits are shown")]
pub(crate) fn bytes(bytes: u64) -> String {
    scaled(bytes as f64)
}

/// The same format for a rate.
pub(crate) fn rate(bytes_per_second: &f64) -> String {
    scaled(*bytes_per_second)
}

fn scaled(value: f64) -> String {
    const STEPS: [&str; 7] = ["", "K", "M", "G", "T", "P", "E"];
    let (mut value, mut step) = (value.max(0.0), 0);
    // Step up at 999.95: with the limit 1024, a value such as 1023.95 K would be shown as `1024.0K`, which is too long.
    while value >= 999.95 && step + 1 < STEPS.len() {
        value /= 1024.0;
        step += 1;
    }
    match step {
        0 => format!("{value:.0}"),
        _ => format!("{value:.1}{}", STEPS[step]),
    }
}

/// `42%`.
pub(crate) fn percent(ratio: &f64) -> String {
    format!("{:.0}%", ratio * 100.0)
}

/// `0.25`, `12.3`, `128`: processor cores.
pub(crate) fn cores(cores: &f64) -> String {
    match *cores {
        cores if cores < 9.995 => format!("{cores:.2}"),
        cores if cores < 99.95 => format!("{cores:.1}"),
        cores => format!("{cores:.0}"),
    }
}

/// `4 s`, `2 min`, `3 h`.
pub(crate) fn duration(seconds: f64) -> String {
    match seconds {
        s if s < 9.95 => format!("{s:.1} s"),
        s if s < 120.0 => format!("{s:.0} s"),
        s if s < 7200.0 => format!("{:.0} min", s / 60.0),
        s => format!("{:.0} h", s / 3600.0),
    }
}

/// `[||||    ]`, `width` characters including its brackets. The characters exist in every terminal.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "rounded, between 0 and a terminal's width"
)]
pub(crate) fn bar(ratio: Option<f64>, width: u16) -> String {
    let inside = usize::from(width.saturating_sub(2));
    let share = ratio.unwrap_or(0.0).clamp(0.0, 1.0);
    let full = (share * f64::from(width.saturating_sub(2))).round() as usize;
    format!("[{}{}]", "|".repeat(full.min(inside)), " ".repeat(inside.saturating_sub(full)))
}

/// `used` as a share of `total`, if both are known and `total` is not 0.
#[expect(clippy::cast_precision_loss, reason = "a share for a bar of at most 40 signs")]
pub(crate) fn share(used: &ReadingJson<u64>, total: &ReadingJson<u64>) -> Option<f64> {
    let total = total.value().copied().filter(|total| *total > 0)?;
    Some(*used.value()? as f64 / total as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_fit_six_characters() {
        for (value, text) in [
            (0, "0"),
            (999, "999"),
            (1000, "1.0K"),
            (1536, "1.5K"),
            (1_048_575, "1.0M"),
            (85_899_345_920, "80.0G"),
            (u64::MAX, "16.0E"),
        ] {
            assert_eq!(bytes(value), text);
        }
        assert!((0..64).map(|bit| bytes(1 << bit).len()).all(|length| length <= 6));
    }

    #[test]
    fn a_bar_never_leaves_its_brackets() {
        for (ratio, text) in [
            (None, "[    ]"),
            (Some(0.0), "[    ]"),
            (Some(0.5), "[||  ]"),
            (Some(7.0), "[||||]"),
            (Some(-1.0), "[    ]"),
            (Some(f64::NAN), "[    ]"),
        ] {
            assert_eq!(bar(ratio, 6), text);
        }
        assert_eq!(bar(Some(1.0), 0), "[]");
    }

    #[test]
    fn cores_and_durations_are_short() {
        let texts: Vec<_> = [0.0, 0.254, 9.994, 12.34, 127.96].iter().map(cores).collect();
        assert_eq!(texts, ["0.00", "0.25", "9.99", "12.3", "128"]);
        let texts: Vec<_> = [0.25, 34.0, 600.0, 90_000.0].into_iter().map(duration).collect();
        assert_eq!(texts, ["0.2 s", "34 s", "10 min", "25 h"]);
    }

    #[test]
    fn an_absent_reading_says_why_and_an_old_one_how_old() {
        let mut cells = Cells::default();
        cells
            .reading("power", &ReadingJson::<f64>::Absent { absent: "x".into(), reason: "call hangs".into() }, percent)
            .reading("use", &ReadingJson::Measured { value: 0.5, age_seconds: 34.0 }, percent)
            .reading("use", &ReadingJson::Measured { value: 0.5, age_seconds: 0.4 }, percent);
        assert_eq!(cells.texts, ["–", "50%*", "50%"]);
        let notes = [(0, "power: call hangs".to_owned()), (1, "use was read 34 s ago".to_owned())];
        assert_eq!(cells.notes, notes);
    }
}
