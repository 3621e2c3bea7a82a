//! Ends a profile before its time.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Cancels the profile that was started with this flag: it ends within 100 ms after [`CancelFlag::cancel`]. Clones
/// share one flag.
#[derive(Clone, Debug, Default)]
pub struct CancelFlag(Arc<AtomicBool>);

impl CancelFlag {
    /// Ends the profile. This cannot be taken back.
    pub fn cancel(&self) {
        self.0.store(true, Ordering::Release);
    }

    /// Whether the profile should end.
    pub(crate) fn is_cancelled(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}
