//! Suppresses repeated lines: the log shows the same warning or error once a minute. When the minute is over, one line
//! says how often it was repeated.

use parking_lot::Mutex;
use std::collections::HashMap;
use std::collections::hash_map::{DefaultHasher, Entry};
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tracing::callsite::Identifier;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;

/// The time within which a line counts as repeated.
const WINDOW: Duration = Duration::from_secs(60);
/// Maximum number of different texts from one place in the code in one window; further texts are only counted. A node
/// has at most 16 GPUs, so a warning for each of them still fits.
const DISTINCT: usize = 20;
/// The target of the line with the count, which must not be counted itself.
const TARGET: &str = "gpu_steward::repeats";

/// The recent warnings and errors. At most one entry for each place in the code that warns (some fifty), each with at
/// most `DISTINCT` texts.
#[derive(Clone, Debug, Default)]
pub struct Repeats {
    places: Arc<Mutex<HashMap<Identifier, Place>>>,
}

/// One place in the code within one window.
#[derive(Debug)]
struct Place {
    since: Instant,
    hashes: Vec<u64>,
    repeated: u64,
    message: String,
}

impl Repeats {
    /// Whether to write this line.
    fn allow(&self, place: Identifier, text: EventText, now: Instant) -> bool {
        let mut places = self.places.lock();
        let hash = text.hash.finish();
        let place = match places.entry(place) {
            Entry::Vacant(free) => {
                free.insert(Place { since: now, hashes: vec![hash], repeated: 0, message: text.message });
                return true;
            }
            Entry::Occupied(place) => place.into_mut(),
        };
        if place.hashes.contains(&hash) || place.hashes.len() >= DISTINCT {
            place.repeated += 1;
            return false;
        }
        place.hashes.push(hash);
        true
    }

    /// Ends the windows that are over and logs their counts. The node task calls this regularly.
    pub fn log_counts(&self, now: Instant) {
        let over: Vec<Place> = {
            let mut places = self.places.lock();
            places.extract_if(|_, place| now.saturating_duration_since(place.since) >= WINDOW).map(|(_, p)| p).collect()
        };
        for place in over.into_iter().filter(|place| place.repeated > 0) {
            tracing::warn!(target: TARGET, times = place.repeated, what = place.message, "repeated in the last minute");
        }
    }
}

impl<S: Subscriber> Layer<S> for Repeats {
    fn event_enabled(&self, event: &Event<'_>, _: Context<'_, S>) -> bool {
        let data = event.metadata();
        if *data.level() > Level::WARN || data.target() == TARGET {
            return true;
        }
        let mut text = EventText::default();
        event.record(&mut text);
        self.allow(data.callsite(), text, Instant::now())
    }
}

/// A hash over the fields of one event, and its message.
#[derive(Default)]
struct EventText {
    hash: DefaultHasher,
    message: String,
}

impl Visit for EventText {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let text = format!("{value:?}");
        (field.name(), &text).hash(&mut self.hash);
        if field.name() == "message" {
            self.message = text;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tracing_subscriber::layer::SubscriberExt;

    /// Collects the messages that pass the filter.
    #[derive(Clone, Default)]
    struct Written(Arc<Mutex<Vec<String>>>);

    impl<S: Subscriber> Layer<S> for Written {
        fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
            let mut text = EventText::default();
            event.record(&mut text);
            self.0.lock().push(text.message);
        }
    }

    #[test]
    fn the_same_warning_is_written_once_and_its_repeats_are_counted_after_a_minute() {
        let (repeats, written) = (Repeats::default(), Written::default());
        let subscriber = tracing_subscriber::registry().with(repeats.clone()).with(written.clone());
        tracing::subscriber::with_default(subscriber, || {
            for _ in 0..1000 {
                tracing::warn!(gpu_uuid = "GPU-1", "is unhealthy");
            }
            tracing::warn!("something else");
            tracing::info!("hello");
            tracing::info!("hello");
            repeats.log_counts(Instant::now());
            repeats.log_counts(Instant::now() + WINDOW);
        });
        let written = written.0.lock().clone();
        assert_eq!(written, ["is unhealthy", "something else", "hello", "hello", "repeated in the last minute"]);
        assert!(repeats.places.lock().is_empty());
    }

    #[test]
    fn one_place_in_the_code_writes_at_most_twenty_different_lines_a_minute() {
        let (repeats, written) = (Repeats::default(), Written::default());
        let subscriber = tracing_subscriber::registry().with(repeats.clone()).with(written.clone());
        tracing::subscriber::with_default(subscriber, || {
            for pod in 0..1000 {
                tracing::warn!(pod, "vanished");
            }
        });
        assert_eq!(written.0.lock().len(), DISTINCT);
    }
}
