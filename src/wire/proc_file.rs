//! To be filled: proc_file.
