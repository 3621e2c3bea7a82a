//! To be filled: cgroup_path.
