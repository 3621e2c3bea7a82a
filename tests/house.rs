//! House.
