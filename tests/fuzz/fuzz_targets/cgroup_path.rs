//! Paths of cgroups: every path has a place, and only the end of a path is cut off.
#![no_main]

use libfuzzer_sys::fuzz_target;
use wire::cgroup_path::{CgroupPlace, place};

fuzz_target!(|path: &str| {
    if let CgroupPlace::Inside { path: cut, .. } = place(path) {
        assert!(path.starts_with(cut));
        assert_eq!(place(cut), place(path));
    }
});
