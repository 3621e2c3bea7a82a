//! Paths of cgroups: whatever the bytes, a path is placed, and what was cut off was its end.
#![no_main]

use libfuzzer_sys::fuzz_target;
use wire::cgroup_path::{CgroupPlace, place, slurm};

fuzz_target!(|path: &str| {
    let _ = slurm(path);
    if let CgroupPlace::Inside { path: cut, .. } = place(path) {
        assert!(path.starts_with(cut));
        assert_eq!(place(cut), place(path));
    }
});
