//! Fresh.
