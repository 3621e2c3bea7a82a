//! To be filled: cgroup_file.
