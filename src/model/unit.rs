//! Units are types. The inner number is public: a newtype only labels the unit, it does not protect the value.

use std::fmt;
use std::time::Duration;

macro_rules! unit {
    ($(#[$attribute:meta])* $name:ident($inner:ty)) => {
        $(#[$attribute])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, PartialOrd)]
        pub struct $name(pub $inner);
    };
}

unit!(
    /// Bytes.
    Bytes(u64)
);
unit!(
    /// Whole MiB, the unit in which GPU memory is requested and claimed.
    #[derive(Eq, Ord)]
    Mib(u64)
);
unit!(
    /// Percent of a GPU's SM time, as pods request and claim it: 100 is a whole GPU. More than 100 is possible only if
    /// the node scales SM time.
    CorePercent(u32)
);
unit!(
    /// Percent of a whole, as NVML reports it: 0 to 100.
    Percent(f64)
);
unit!(
    /// A share of a whole: 0.0 to 1.0.
    Ratio(f64)
);
unit!(
    /// Watts.
    Watts(f64)
);
unit!(
    /// Millijoules, NVML's unit of energy.
    Millijoules(u64)
);
unit!(
    /// Megahertz.
    Megahertz(u32)
);
unit!(
    /// Degrees Celsius.
    Celsius(i32)
);
unit!(
    /// Bytes per second.
    BytesPerSecond(f64)
);
unit!(
    /// CPU cores in use: 1.5 is one and a half cores busy all the time.
    Cores(f64)
);
unit!(
    /// A number of things: packets, tasks, kills, rows.
    Count(u64)
);
unit!(
    /// Nanoseconds of CPU time or waiting time.
    Nanos(u64)
);

impl Eq for Bytes {}
impl Eq for CorePercent {}
impl Eq for Count {}
impl Eq for Nanos {}

impl Bytes {
    /// One MiB.
    pub const MIB: u64 = 1 << 20;

    /// As MiB with decimals.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "exact below 8 PiB")]
    pub fn mib(self) -> f64 {
        self.0 as f64 / Self::MIB as f64
    }

    /// `self - other`, or zero if that is negative.
    #[must_use]
    pub fn less(self, other: Bytes) -> Bytes {
        Bytes(self.0.saturating_sub(other.0))
    }

    /// `self + other`, saturating.
    #[must_use]
    pub fn plus(self, other: Bytes) -> Bytes {
        Bytes(self.0.saturating_add(other.0))
    }
}

impl Mib {
    /// As bytes, saturating.
    #[must_use]
    pub fn bytes(self) -> Bytes {
        Bytes(self.0.saturating_mul(Bytes::MIB))
    }

    /// The whole MiB in `bytes`, rounded down.
    #[must_use]
    pub fn within(bytes: Bytes) -> Mib {
        Mib(bytes.0 / Bytes::MIB)
    }
}

impl Nanos {
    /// As seconds.
    #[must_use]
    pub fn as_seconds(self) -> f64 {
        Duration::from_nanos(self.0).as_secs_f64()
    }
}

impl Millijoules {
    /// As joules.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "exact below 2^53 mJ, which a 1 kW GPU reaches after 285 years")]
    pub fn joules(self) -> f64 {
        self.0 as f64 / 1e3
    }
}

impl Percent {
    /// As a ratio, 0.0 to 1.0.
    #[must_use]
    pub fn ratio(self) -> Ratio {
        Ratio(self.0 / 100.0)
    }
}

/// Bytes for people: `1.5 GiB`. Binary prefixes, at most one decimal.
impl fmt::Display for Bytes {
    #[expect(clippy::cast_precision_loss, reason = "one decimal is shown")]
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const STEPS: [&str; 6] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
        let mut value = self.0 as f64;
        let mut step = 0;
        while value >= 1024.0 && step + 1 < STEPS.len() {
            value /= 1024.0;
            step += 1;
        }
        if step == 0 || value >= 100.0 {
            write!(f, "{value:.0} {}", STEPS[step])
        } else {
            write!(f, "{value:.1} {}", STEPS[step])
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_shown_with_binary_prefixes() {
        for (bytes, text) in
            [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (85_899_345_920, "80.0 GiB"), (u64::MAX, "16384 PiB")]
        {
            assert_eq!(Bytes(bytes).to_string(), text);
        }
    }

    #[test]
    fn mib_are_rounded_down() {
        assert_eq!(Mib::within(Bytes(3 * Bytes::MIB - 1)), Mib(2));
        assert_eq!(Mib(2).bytes(), Bytes(2 * Bytes::MIB));
        assert_eq!(Mib(u64::MAX).bytes(), Bytes(u64::MAX));
    }

    #[test]
    fn sums_and_differences_of_bytes_saturate() {
        assert_eq!(Bytes(1).less(Bytes(2)), Bytes(0));
        assert_eq!(Bytes(u64::MAX).plus(Bytes(2)), Bytes(u64::MAX));
    }
}
