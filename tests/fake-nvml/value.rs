//! A number that changes with scenario time.

use crate::code::Code;
use crate::trace::Trace;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::sync::Arc;

/// How a number changes with time. In the file: a bare number, or an object with one key.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Value {
    /// A constant.
    Constant(f64),
    /// A number that changes.
    Program(Program),
}

/// A number that changes, or an error instead of one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Program {
    /// Calls for this number return the error.
    Error(Code),
    /// `high` for the first `duty` of each period, then `low`.
    Square {
        /// The value between bursts.
        low: f64,
        /// The value in a burst.
        high: f64,
        /// Seconds from burst to burst.
        period_s: f64,
        /// Share of the period that is high.
        #[serde(default = "half")]
        duty: f64,
        /// Seconds by which the wave is delayed.
        #[serde(default)]
        phase_s: f64,
    },
    /// A sine between `low` and `high`. At `phase_s` it is in the middle and rises.
    Sine {
        /// The least value.
        low: f64,
        /// The greatest value.
        high: f64,
        /// Seconds of a period.
        period_s: f64,
        /// Seconds by which the wave is delayed.
        #[serde(default)]
        phase_s: f64,
    },
    /// A straight line.
    Ramp {
        /// The value at the beginning.
        from: f64,
        /// The value after `over_s`.
        to: f64,
        /// Seconds from `from` to `to`.
        over_s: f64,
        /// The behaviour of the ramp afterwards.
        #[serde(default)]
        then: Then,
        /// Scenario second at which it begins.
        #[serde(default)]
        start_s: f64,
    },
    /// A column of a recording.
    Replay(Replay),
}

/// The behaviour of a ramp after its end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Then {
    /// Stays at its last value.
    #[default]
    Hold,
    /// Begins again, as a counter that resets.
    Repeat,
    /// Continues with the same slope, as a counter.
    Continue,
}

/// A column of a recording.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Replay {
    /// The CSV file, compressed or not; relative to the scenario file's directory.
    pub path: PathBuf,
    /// The name of the column.
    pub column: String,
    /// Uses only rows whose column (first) has this text (second).
    #[serde(default, rename = "where", skip_serializing_if = "Option::is_none")]
    pub filter: Option<(String, String)>,
    /// Seconds of the recording that pass in a scenario second.
    #[serde(default = "one")]
    pub speed: f64,
    /// The factor for each number.
    #[serde(default = "one")]
    pub scale: f64,
    /// Whether the recording starts again at its end; otherwise the last row stays.
    #[serde(default = "yes")]
    pub repeat: bool,
    /// The rows, once read.
    #[serde(skip)]
    pub trace: Arc<Trace>,
}

fn half() -> f64 {
    0.5
}

fn one() -> f64 {
    1.0
}

fn yes() -> bool {
    true
}

impl Replay {
    /// The column of this file at its own speed, repeated forever.
    #[must_use]
    pub fn of(path: impl Into<PathBuf>, column: &str) -> Self {
        Replay {
            path: path.into(),
            column: column.to_owned(),
            filter: None,
            speed: 1.0,
            scale: 1.0,
            repeat: true,
            trace: Arc::default(),
        }
    }

    fn at(&self, time: f64) -> Result<f64, Code> {
        let length = self.trace.length();
        let time = time * self.speed;
        let time = if self.repeat && length > 0.0 { time.rem_euclid(length) } else { time };
        self.trace.at(time).map(|number| number * self.scale)
    }
}

impl From<f64> for Value {
    fn from(number: f64) -> Self {
        Value::Constant(number)
    }
}

impl From<Program> for Value {
    fn from(program: Program) -> Self {
        Value::Program(program)
    }
}

impl Value {
    /// The number at a scenario second.
    ///
    /// # Errors
    /// The error that the scenario has instead of a number.
    pub fn at(&self, time: f64) -> Result<f64, Code> {
        let program = match self {
            Value::Constant(number) => return Ok(*number),
            Value::Program(program) => program,
        };
        match program {
            Program::Error(code) => Err(*code),
            Program::Square { low, high, period_s, duty, phase_s } => {
                let share = share_of(time - phase_s, *period_s);
                Ok(if share < *duty { *high } else { *low })
            }
            Program::Sine { low, high, period_s, phase_s } => {
                let angle = share_of(time - phase_s, *period_s) * std::f64::consts::TAU;
                Ok(f64::midpoint(*low, *high) + (high - low) / 2.0 * angle.sin())
            }
            Program::Ramp { from, to, over_s, then, start_s } => {
                let share = ((time - start_s) / over_s.max(f64::MIN_POSITIVE)).max(0.0);
                let share = match then {
                    Then::Hold => share.min(1.0),
                    Then::Repeat => share.fract(),
                    Then::Continue => share,
                };
                Ok(from + (to - from) * share)
            }
            Program::Replay(replay) => replay.at(time),
        }
    }
}

/// The position of a time in its period, 0 to 1.
fn share_of(time: f64, period: f64) -> f64 {
    if period > 0.0 { time.rem_euclid(period) / period } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_of_value_follows_its_curve() {
        let square = Program::Square { low: 5.0, high: 90.0, period_s: 10.0, duty: 0.3, phase_s: 0.0 };
        let sine = Program::Sine { low: 0.0, high: 100.0, period_s: 4.0, phase_s: 0.0 };
        let ramp = |then| Program::Ramp { from: 0.0, to: 10.0, over_s: 5.0, then, start_s: 0.0 };
        for (program, time, number) in [
            (square.clone(), 2.9, 90.0),
            (square.clone(), 3.0, 5.0),
            (square, 12.0, 90.0),
            (sine.clone(), 0.0, 50.0),
            (sine.clone(), 1.0, 100.0),
            (sine, 3.0, 0.0),
            (ramp(Then::Hold), 2.5, 5.0),
            (ramp(Then::Hold), 50.0, 10.0),
            (ramp(Then::Repeat), 7.5, 5.0),
            (ramp(Then::Continue), 50.0, 100.0),
        ] {
            let got = Value::Program(program.clone()).at(time).unwrap();
            assert!((got - number).abs() < 1e-9, "{program:?} at {time}: {got}");
        }
    }
}
