//! Profiles that the program takes itself, without a server.

use super::program::Opened;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

fn printed(work: &[&str], profile: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_profiled"));
    command.args(work).args(["--print", profile]).output().unwrap()
}

fn opened(work: &[&str], profile: &str) -> Opened {
    let output = printed(work, profile);
    assert!(output.status.success(), "{profile}: {}", String::from_utf8_lossy(&output.stderr));
    Opened::new(&output.stdout)
}

#[test]
fn a_program_takes_its_profiles_without_a_server() {
    assert!(opened(&["burn"], "cpu").sum("cpu", "work::mid") > 0);
    assert!(opened(&["hold"], "heap").sum("inuse_space", "work::keep_blocks") > 48 << 20);
    assert_eq!(opened(&["hold"], "threads").sum("goroutine", "work::hold"), 1);
}

#[test]
fn a_cancelled_profile_ends_early_and_says_so() {
    let begun = Instant::now();
    let output = printed(&["burn"], "cancelled");
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && text.contains("Cancelled"), "{text}");
    assert!(begun.elapsed() < Duration::from_secs(100), "not after the 300 s of the profile: {:?}", begun.elapsed());
}
