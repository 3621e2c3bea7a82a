//! To be filled: api.
