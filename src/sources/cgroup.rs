//! To be filled: cgroup.
