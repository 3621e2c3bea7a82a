//! To be filled: procfs.
