//! To be filled: attribute.
