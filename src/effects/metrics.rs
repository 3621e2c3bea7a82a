//! To be filled: metrics.
