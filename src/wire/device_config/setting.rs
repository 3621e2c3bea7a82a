//! Settings that are more than a number, a word or a flag.

/// Nobody gains from lending a GPU more often than this.
const MAX_SCALING: f64 = 100.0;

/// How much more of a GPU is given away than there is.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub struct DeviceScaling(f64);

impl DeviceScaling {
    /// As much as there is.
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

    /// `whole` times the factor; what is broken is cut off.
    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "MiB and percents are exact far beyond any card, and a cast of a number that is not negative saturates"
    )]
    pub(super) fn of(self, whole: u64) -> u64 {
        if self == DeviceScaling::NONE { whole } else { (whole as f64 * self.0) as u64 }
    }
}

/// What the limiter does with the limit of cores.
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

/// MIG profiles that may be made on some models.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MigAllowance {
    /// Parts of products' names.
    pub models: Vec<String>,
    /// Profiles.
    pub profiles: Vec<String>,
}
