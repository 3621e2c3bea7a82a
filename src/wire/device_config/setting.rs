//! Types of settings that are more than a number, a word or a flag.

/// Maximum factor: a GPU that is offered more than 100 times is of no use.
const MAX_SCALING: f64 = 100.0;

/// The factor by which the memory or SM time that a GPU offers differs from what it really has.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub struct DeviceScaling(f64);

impl DeviceScaling {
    /// The GPU offers exactly what it has.
    pub const NONE: DeviceScaling = DeviceScaling(1.0);

    /// A factor above 0 and up to 100.
    #[must_use]
    pub fn new(factor: f64) -> Option<DeviceScaling> {
        if factor > 0.0 && factor <= MAX_SCALING { Some(DeviceScaling(factor)) } else { None }
    }

    /// The factor.
    #[must_use]
    pub fn factor(self) -> f64 {
        self.0
    }

    /// `whole` times the factor, rounded down.
    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "MiB and percents are exact far beyond any GPU, and a cast of a number that is not negative saturates"
    )]
    pub(super) fn of(self, whole: u64) -> u64 {
        if self == DeviceScaling::NONE { whole } else { (whole as f64 * self.0) as u64 }
    }
}

/// When the limiter enforces the limit of SM time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CorePolicy {
    /// Only while several containers use the GPU.
    #[default]
    Default,
    /// Always.
    Force,
    /// Never.
    Disable,
}

/// MIG profiles that may be created on some GPU models.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MigAllowance {
    /// Parts of product names.
    pub models: Vec<String>,
    /// The allowed MIG profiles.
    pub profiles: Vec<String>,
}
