//! To be filled: health.
