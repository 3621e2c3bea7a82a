//! To be filled: kernel_log.
