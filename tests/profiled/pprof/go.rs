//! By the real client.
