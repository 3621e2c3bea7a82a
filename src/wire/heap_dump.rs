//! To be filled: heap_dump.
