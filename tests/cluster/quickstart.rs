//! Runs docs/quickstart.md, command by command as printed, and compares the output with the page.

use crate::built::binary;
use lab::cluster::{Cluster, ClusterOptions};
use std::path::Path;
use std::process::Command;

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

/// A block of commands, and the output that the page shows for it.
struct Step {
    commands: String,
    shown: Option<String>,
}

fn steps(page: &str) -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    let mut lines = page.lines();
    while let Some(line) = lines.next() {
        let block = |lines: &mut std::str::Lines<'_>| -> String {
            lines.take_while(|line| *line != "```").map(|line| format!("{line}\n")).collect()
        };
        match line {
            "```sh" => steps.push(Step { commands: block(&mut lines), shown: None }),
            // A block of text before the first command shows no output.
            "```text" => {
                let shown = block(&mut lines);
                if let Some(step) = steps.last_mut() {
                    step.shown = Some(shown);
                }
            }
            _ => {}
        }
    }
    steps
}

/// The commands of a page, without comments.
pub(crate) fn commands(page: &str) -> Vec<String> {
    let steps = steps(page);
    let lines = steps.iter().flat_map(|step| step.commands.lines());
    let bare = lines.map(|line| line.split_once("  #").map_or(line, |(command, _)| command).trim());
    bare.filter(|line| !line.is_empty() && !line.starts_with('#')).map(str::to_owned).collect()
}

/// Replaces identities, which differ from run to run. The rest of a line does not differ.
fn shape(text: &str) -> String {
    let mut out = String::new();
    for word in text.split_inclusive(|c: char| !c.is_ascii_alphanumeric() && c != '-') {
        let bare = word.trim_end_matches(|c: char| !c.is_ascii_alphanumeric());
        let hexadecimal = bare.trim_start_matches("GPU-").bytes().all(|b| b.is_ascii_hexdigit() || b == b'-');
        if bare.len() >= 32 && hexadecimal {
            out += "ID";
            out += &word[bare.len()..];
        } else {
            out += word;
        }
    }
    out
}

#[test]
#[ignore = "needs cluster alone: tests/run"]
fn the_quickstart_page_prints_what_it_shows() {
    // This holds the lock, and the page's own commands find the cluster already up.
    let cluster = Cluster::up(&ClusterOptions::nodes(1));
    for left in [
        &["delete", "namespace", "gpu-steward", "--ignore-not-found"][..],
        &["delete", "pods", "--all", "-n", "default", "--now"],
    ] {
        let _ = cluster.admin().run(left).ok();
    }
    let page = std::fs::read_to_string(Path::new(ROOT).join("docs/quickstart.md")).expect("the page");
    let steps = steps(&page);
    assert!(
        steps.len() >= 8 && steps.iter().filter(|step| step.shown.is_some()).count() >= 5,
        "the page has too few blocks"
    );
    // One shell runs all blocks, as for a reader, and a mark ends the output of each block. The program under test is
    // already built.
    let mark = "--- end of a block";
    let mut script = String::from("set -euo pipefail\n");
    for step in &steps {
        script += &step
            .commands
            .replace("cargo build --release --bin gpu-steward\n", "")
            .replace("target/release/gpu-steward", &binary());
        script += &format!("echo; echo '{mark}'\n");
    }
    let shell =
        Command::new("bash").args(["-c", &script]).current_dir(ROOT).env("GPU_STEWARD_CLUSTER_HELD", "1").output();
    let shell = shell.expect("bash can be run");
    let printed = String::from_utf8_lossy(&shell.stdout).into_owned();
    assert!(shell.status.success(), "{printed}{}", String::from_utf8_lossy(&shell.stderr));
    let blocks: Vec<&str> = printed.split(mark).collect();
    for (step, block) in steps.iter().zip(blocks) {
        if let Some(shown) = &step.shown {
            assert_eq!(shape(block.trim()), shape(shown.trim()), "{}", step.commands);
        }
    }
}
