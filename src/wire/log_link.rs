//! To be filled: log_link.
