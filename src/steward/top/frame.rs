//! One frame as plain text, for a pipe, a log or a terminal without cursor control.

use crate::top::draw::{draw, notes, whole_height};
use crate::top::look::Look;
use crate::top::state::State;
use ratatui::Terminal;
use ratatui::backend::TestBackend;

/// Maximum number of notes that are printed; further notes are only counted. Even a hundred rows have only a few
/// different reasons.
const MAX_NOTES: usize = 20;

/// The whole frame, `width` columns wide and high enough to show everything.
pub(crate) fn plain(state: &State, width: u16) -> String {
    let lines = painted(state, width, whole_height(state, width));
    // The last line lists keys, and the line above it describes the selection; a pipe has no keys and no selection.
    let body = lines.len().saturating_sub(2);
    let mut text: Vec<String> = lines.into_iter().take(body).collect();
    while text.last().is_some_and(String::is_empty) {
        text.pop();
    }
    let notes = notes(state, width);
    text.extend(notes.iter().take(MAX_NOTES).cloned());
    if notes.len() > MAX_NOTES {
        text.push(format!("and {} more", notes.len() - MAX_NOTES));
    }
    text.join("\n") + "\n"
}

/// The lines of a screen of this size, without trailing blanks.
pub(crate) fn painted(state: &State, width: u16, height: u16) -> Vec<String> {
    // The backend is a buffer in memory, so this does not fail. If it failed, the frame would be empty.
    let Ok(mut terminal) = Terminal::new(TestBackend::new(width, height));
    let Ok(_) = terminal.draw(|frame| {
        draw(frame, state, Look { colour: false });
    });
    let buffer = terminal.backend().buffer();
    (0..height)
        .map(|y| {
            let line: String = (0..width).filter_map(|x| buffer.cell((x, y))).map(|cell| cell.symbol()).collect();
            line.trim_end().to_owned()
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::top::key::Key;
    use crate::top::pods;
    use crate::top::stage;
    use crate::top::state::Input;
    use proptest::prelude::*;
    use serde_json::Value;
    use std::path::Path;
    use std::sync::Arc;
    use std::time::Duration;
    use wire::api::Snapshot;

    /// Compares with a file under `tests/golden/top`; `UPDATE_GOLDEN=1` writes the file.
    fn golden(name: &str, text: &str) {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/top").join(name);
        if std::env::var_os("UPDATE_GOLDEN").is_some() {
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(&path, text).unwrap();
        }
        let expect = std::fs::read_to_string(&path).unwrap_or_default();
        assert_eq!(text, expect, "{name} differs; check the new text, and run with UPDATE_GOLDEN=1 if it is right");
    }

    fn shown(keys: &[Key], width: u16, height: u16) -> String {
        let mut state = stage::state();
        for key in keys {
            state.apply(Input::Key(*key), Duration::ZERO);
        }
        painted(&state, width, height).join("\n") + "\n"
    }

    #[test]
    fn each_view_fits_a_small_and_a_large_screen() {
        for (view, key) in [("overview", '1'), ("gpus", '2'), ("pods", '3'), ("processes", '4')] {
            for (width, height) in [(80, 24), (200, 60)] {
                golden(&format!("{view}-{width}x{height}.txt"), &shown(&[Key::Character(key)], width, height));
            }
        }
    }

    #[test]
    fn the_help_fits_a_small_screen_and_explains_each_column_of_a_pod() {
        let text = shown(&[Key::Character('?')], 80, 24);
        golden("help-80x24.txt", &text);
        assert!(text.contains("SIMULATED"), "the last line is there");
        for column in pods::COLUMNS.iter().filter(|column| column.title != "POD") {
            assert!(text.contains(column.title), "{}", column.title);
        }
    }

    #[test]
    fn simulated_gpus_a_silent_agent_and_old_values_are_marked() {
        let mut snapshot = stage::snapshot();
        snapshot.node.view.simulated = true;
        let mut state = State::new(Duration::from_secs(1));
        state.apply(Input::Snapshot(Arc::new(snapshot)), Duration::ZERO);
        state.apply(Input::Failed("no agent answers at http://127.0.0.1:9410".into()), Duration::from_secs(30));
        let text = painted(&state, 80, 24).join("\n") + "\n";
        golden("silent-80x24.txt", &text);
        for mark in ["SIMULATED GPUs", "SIMULATED GPU ", "30 s OLD", "no agent answers"] {
            assert!(text.contains(mark), "{mark}");
        }
    }

    #[test]
    fn a_plain_frame_leaves_nothing_out_and_says_why_values_are_absent() {
        let text = plain(&stage::state(), 100);
        golden("once-100.txt", &text);
        for word in ["coredns", "– temperature: GPU is lost", "– network: host network"] {
            assert!(text.contains(word), "{word}");
        }
        assert!(!text.contains("quit"), "a pipe has no keys");
    }

    /// The test node with `count` GPUs without MIG and `pods` pods of one container.
    fn node(count: usize, pods: usize) -> State {
        let mut snapshot = stage::snapshot();
        let gpu = snapshot.gpus.gpus[1].clone();
        let numbered = |n| wire::api::gpus::GpuJson { index: n, uuid: format!("GPU-{n}"), ..gpu.clone() };
        snapshot.gpus.gpus = (0..u32::try_from(count).unwrap()).map(numbered).collect();
        let pod = snapshot.pods.pods[0].clone();
        let named =
            |n| wire::api::pods::PodJson { uid: format!("uid-{n}"), name: Some(format!("pod-{n}")), ..pod.clone() };
        snapshot.pods.pods = (0..pods).map(named).collect();
        let mut state = State::new(Duration::from_secs(1));
        state.apply(Input::Snapshot(Arc::new(snapshot)), Duration::ZERO);
        state
    }

    /// Number of GPUs and pods that have a line.
    fn lines(text: &str) -> (usize, usize) {
        let gpu = |line: &&str| line.contains("H100 80GB") && line.starts_with(|c: char| c.is_ascii_digit());
        let pod = |line: &&str| line.trim_start().split('/').nth(1).is_some_and(|name| name.starts_with("pod-"));
        (text.lines().filter(gpu).count(), text.lines().filter(pod).count())
    }

    #[test]
    fn a_plain_frame_has_every_gpu_and_every_pod() {
        for (count, pods) in [(8, 0), (16, 0), (1, 200), (16, 200), (64, 1)] {
            let text = plain(&node(count, pods), 80);
            assert_eq!(lines(&text), (count, pods), "{text}");
            assert!(!text.contains("key 2"), "{text}");
        }
    }

    #[test]
    fn gpus_get_the_lines_that_pods_leave_free() {
        let live = |count, pods| painted(&node(count, pods), 80, 24).join("\n");
        for (count, pods, shown) in [(8, 0, 8), (16, 0, 16), (16, 1, 16), (17, 1, 17), (18, 0, 16), (16, 40, 9)] {
            let text = live(count, pods);
            assert_eq!(lines(&text).0, shown, "{count} GPUs, {pods} pods:\n{text}");
            assert_eq!(text.contains("more: key 2"), shown < count, "{count} GPUs, {pods} pods:\n{text}");
        }
        assert!(live(16, 40).contains("\n+7   more: key 2\n"), "{}", live(16, 40));
        assert!(lines(&live(16, 40)).1 > 5, "pods keep their half");
    }

    #[test]
    fn control_characters_do_not_reach_the_terminal() {
        let text = shown(&[Key::Character('4'), Key::Character('n')], 200, 60);
        assert!(text.contains("init") && !text.contains('\u{1b}'), "{text}");
    }

    #[test]
    fn a_screen_of_any_size_is_drawn() {
        for (width, height) in [(1, 1), (20, 3), (39, 24), (40, 8), (41, 9), (500, 8)] {
            for key in ['1', '2', '3', '4', '?'] {
                let _ = shown(&[Key::Character(key)], width, height);
            }
        }
    }

    #[test]
    fn without_gpus_the_reason_and_the_advice_are_shown() {
        let mut snapshot = stage::snapshot();
        snapshot.gpus.gpus.clear();
        snapshot.node.gpu_source.state = "missing".into();
        snapshot.node.gpu_source.reason = Some("NVML library not found".into());
        snapshot.node.gpu_source.advice = Some("install the driver, or name the library with --nvml-library".into());
        let mut state = State::new(Duration::from_secs(1));
        state.apply(Input::Snapshot(Arc::new(snapshot)), Duration::ZERO);
        let text = painted(&state, 80, 24).join("\n");
        assert!(text.contains("No GPUs: NVML library not found. install the driver"), "{text}");
    }

    #[test]
    fn a_gpu_that_could_not_be_identified_has_its_line() {
        let mut snapshot = stage::snapshot();
        snapshot.gpus.gpus.clear();
        snapshot.gpus.gpus_unidentified = vec![wire::api::gpus::UnidentifiedGpuJson {
            index: 3,
            pci_bus_id: wire::api::ReadingJson::Measured { value: "0000:65:00.0".into(), age_seconds: 1.0 },
            absent: "gpu_lost".into(),
            reason: "GPU is lost".into(),
        }];
        let mut state = State::new(Duration::from_secs(1));
        state.apply(Input::Snapshot(Arc::new(snapshot)), Duration::ZERO);
        let text = painted(&state, 80, 24).join("\n");
        assert!(text.contains("\n3    GPU is lost") && !text.contains("No GPUs"), "{text}");
        assert!(plain(&state, 80).contains("– GPU 3 could not be identified: GPU is lost"));
    }

    /// Replaces leaf number `left` of a document by `with`.
    fn replace(value: &mut Value, left: &mut usize, with: &Value) {
        match value {
            Value::Array(items) => items.iter_mut().for_each(|item| replace(item, left, with)),
            Value::Object(fields) => fields.values_mut().for_each(|field| replace(field, left, with)),
            leaf => {
                if *left == 0 {
                    leaf.clone_from(with);
                }
                *left = left.wrapping_sub(1);
            }
        }
    }

    fn strange() -> impl Strategy<Value = Value> {
        prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<u64>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<u32>().prop_map(Value::from),
            prop::num::f64::NORMAL.prop_map(Value::from),
            any::<String>().prop_map(Value::from),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// Promise 18 in docs/specification.md: one or several leaves of an agent's answer may have any value.
        #[test]
        fn every_answer_that_can_be_parsed_is_drawn(
            changes in prop::collection::vec((0_usize..900, strange()), 1..40), width in 1_u16..200, height in 1_u16..60,
        ) {
            let mut state = stage::state();
            let mut answer = serde_json::to_value(stage::snapshot()).unwrap();
            for (leaf, with) in changes {
                let before = answer.clone();
                replace(&mut answer, &mut leaf.clone(), &with);
                // A document with a leaf of a wrong type cannot be parsed and is not shown.
                let Ok(snapshot) = serde_json::from_value::<Snapshot>(answer.clone()) else {
                    answer = before;
                    continue;
                };
                state.apply(Input::Snapshot(Arc::new(snapshot)), Duration::ZERO);
            }
            for key in ['1', '2', '3', '4', 'c', 'm'] {
                state.apply(Input::Key(Key::Character(key)), Duration::ZERO);
                painted(&state, width, height);
            }
            plain(&state, width);
        }
    }
}
