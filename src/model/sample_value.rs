//! The number of a value in base units: bytes, seconds, joules, hertz, ratios from 0 to 1. Metrics and JSON show it.
//!
//! ```text
//!   Reading<Watts> ──Reading::number──▶ Reading<SampleValue> ──▶ exposition, JSON
//! ```

use crate::reading::Reading;
use crate::recovery::RecoveryAction;
use crate::unit::{Bytes, BytesPerSecond, Celsius, Cores, Count, Megahertz, Millijoules, Nanos, Percent, Ratio, Watts};

/// The number of a sample.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum SampleValue {
    /// Written with all its digits.
    Whole(u64),
    /// Written with the digits that are needed to read the same number back.
    Real(f64),
}

/// A value with a number in base units.
pub trait BaseUnits {
    /// The number in base units.
    fn in_base_units(self) -> SampleValue;
}

macro_rules! base_units {
    ($($noun:ty => |$value:ident| $change:expr;)*) => {
        $(impl BaseUnits for $noun {
            fn in_base_units(self) -> SampleValue {
                let $value = self;
                $change
            }
        })*
    };
}

base_units! {
    Bytes => |it| SampleValue::Whole(it.0);
    Count => |it| SampleValue::Whole(it.0);
    Percent => |it| SampleValue::Real(it.ratio().0);
    Ratio => |it| SampleValue::Real(it.0);
    Watts => |it| SampleValue::Real(it.0);
    Cores => |it| SampleValue::Real(it.0);
    BytesPerSecond => |it| SampleValue::Real(it.0);
    Millijoules => |it| SampleValue::Real(it.joules());
    Megahertz => |it| SampleValue::Whole(u64::from(it.0) * 1_000_000);
    Celsius => |it| u64::try_from(it.0).map_or(SampleValue::Real(f64::from(it.0)), SampleValue::Whole);
    Nanos => |it| SampleValue::Real(it.as_seconds());
    u32 => |it| SampleValue::Whole(u64::from(it));
    u64 => |it| SampleValue::Whole(it);
    f64 => |it| SampleValue::Real(it);
    bool => |it| SampleValue::Whole(u64::from(it));
    RecoveryAction => |it| SampleValue::Whole(u64::from(it.number()));
}

impl<T: BaseUnits + Copy> Reading<T> {
    /// The reading as a number in base units.
    #[must_use]
    pub fn number(&self) -> Reading<SampleValue> {
        self.map(T::in_base_units)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_become_base_units() {
        for (number, expected) in [
            (Percent(50.0).in_base_units(), SampleValue::Real(0.5)),
            (Megahertz(1980).in_base_units(), SampleValue::Whole(1_980_000_000)),
            (Millijoules(1500).in_base_units(), SampleValue::Real(1.5)),
            (Nanos(1_500_000_000).in_base_units(), SampleValue::Real(1.5)),
            (Celsius(61).in_base_units(), SampleValue::Whole(61)),
            (Celsius(-5).in_base_units(), SampleValue::Real(-5.0)),
            (RecoveryAction::ResetGpu.in_base_units(), SampleValue::Whole(1)),
            (true.in_base_units(), SampleValue::Whole(1)),
        ] {
            assert_eq!(number, expected);
        }
    }
}
