//! To be filled: exposition.
