//! The options of the command, and a CSV file: text, separator, table, columns, number and time of each cell, and every form of the
//! answer.
#![no_main]

use libfuzzer_sys::fuzz_target;
use profile::{Choices, Look};
use std::time::Duration;

/// The options `--time`, `--group`, `--step`, `--horizon` and `--plot`, from four bytes.
fn choices([time, group, step, horizon]: [u8; 4]) -> Choices {
    let column = |byte: u8| match byte {
        0..128 => None,
        128..192 => Some("none".to_owned()),
        192.. => Some((byte % 4 + 1).to_string()),
    };
    // From a millisecond to the longest time that the command takes.
    let span = |byte: u8| Duration::from_millis(1 << (byte % 64));
    Choices {
        value: None,
        time: column(time),
        group: column(group),
        step: (step >= 128).then(|| span(step)),
        horizons: if horizon >= 128 { vec![span(horizon), span(horizon / 2)] } else { Vec::new() },
        picture: horizon % 4 == 1,
    }
}

fuzz_target!(|bytes: &[u8]| {
    let Some((head, file)) = bytes.split_first_chunk::<4>() else { return };
    let choices = choices(*head);
    if let Ok(profile) = profile::csv(file, &choices) {
        assert!(!profile.answers.is_empty());
        let _ = (profile::json(&profile), profile::people(&profile, Look { colour: true, plain: str::to_owned }));
        let svg = profile::svg(&profile);
        if let (true, Ok(svg)) = (choices.picture, svg) {
            assert!(profile::png(&svg).is_ok());
        }
    }
});
