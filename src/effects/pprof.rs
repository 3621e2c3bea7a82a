//! To be filled: pprof.
