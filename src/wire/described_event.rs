//! Events as `doctor` shows them, in both forms of the API: `v1` (`message`, `source.component`) and `events.k8s.io/v1` (`note`,
//! `reportingController`).

use crate::decode_error::DecodeError;
use crate::object_list::ObjectList;
use crate::pod::OrNull;
use crate::timestamp;
use model::time::WallTime;
use serde::{Deserialize, Serialize, Serializer};

/// Maximum number of characters of a text that is kept. The API server accepts 1,024 bytes as the note of an event.
const MAX_TEXT: usize = 2048;

/// An event.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct DescribedEvent {
    /// One word: `FilteringFailed`.
    pub reason: String,
    /// The sentence.
    pub note: String,
    /// Whether the event is a warning.
    pub warning: bool,
    /// The program that wrote the event.
    pub from: String,
    /// When the event was last seen; `None` if it has no time that can be read.
    #[serde(serialize_with = "time")]
    pub at: Option<WallTime>,
    /// How often the event was seen.
    pub count: u32,
    /// The object that the event is about: `Pod ml/train-0`.
    pub about: String,
}

/// One page of a list of events.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DescribedEvents {
    /// The events of this page, the newest first. The API server orders pages by name, not by time.
    pub events: Vec<DescribedEvent>,
    /// The `continue` token for the next page; empty on the last page.
    pub more: String,
}

fn time<S: Serializer>(at: &Option<WallTime>, serializer: S) -> Result<S::Ok, S::Error> {
    at.map(timestamp::to_rfc3339).serialize(serializer)
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Object {
    reason: OrNull<String>,
    #[serde(alias = "note")]
    message: OrNull<String>,
    #[serde(rename = "type")]
    kind: OrNull<String>,
    #[serde(alias = "reportingController")]
    reporting_component: OrNull<String>,
    #[serde(alias = "deprecatedSource")]
    source: OrNull<Source>,
    #[serde(alias = "deprecatedCount")]
    count: OrNull<u32>,
    #[serde(alias = "deprecatedLastTimestamp")]
    last_timestamp: OrNull<String>,
    event_time: OrNull<String>,
    series: OrNull<Series>,
    #[serde(alias = "regarding")]
    involved_object: OrNull<Regarding>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Source {
    component: OrNull<String>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Series {
    count: OrNull<u32>,
    last_observed_time: OrNull<String>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Regarding {
    kind: OrNull<String>,
    namespace: OrNull<String>,
    name: OrNull<String>,
}

impl From<Object> for DescribedEvent {
    fn from(object: Object) -> DescribedEvent {
        let Object {
            reason,
            message,
            kind,
            reporting_component,
            source,
            count,
            last_timestamp,
            event_time,
            series,
            involved_object,
        } = object;
        let Regarding { kind: about, namespace, name } = involved_object.0;
        let series = series.0;
        let times = [series.last_observed_time, last_timestamp, event_time];
        let from = [source.0.component.0, reporting_component.0].into_iter().find(|from| !from.is_empty());
        let place = if namespace.0.is_empty() { String::new() } else { format!("{}/", namespace.0) };
        DescribedEvent {
            reason: cut(&reason.0),
            note: cut(&message.0),
            warning: kind.0 == "Warning",
            from: cut(&from.unwrap_or_default()),
            at: times.into_iter().filter_map(|text| timestamp::rfc3339(&text.0)).max(),
            count: count.0.max(series.count.0).max(1),
            about: cut(format!("{} {place}{}", about.0, name.0).trim()),
        }
    }
}

/// Reads a page of a list of events.
///
/// # Errors
/// [`DecodeError`] if the text is not a list of events.
pub fn decode_list(json: &[u8]) -> Result<DescribedEvents, DecodeError> {
    let list: ObjectList<Object> =
        serde_json::from_slice(json).map_err(|error| DecodeError::json("list of events", json, &error))?;
    let (events, more) = list.into_parts();
    let mut events: Vec<DescribedEvent> = events.into_iter().map(DescribedEvent::from).collect();
    events.sort_by_key(|event| std::cmp::Reverse(event.at));
    Ok(DescribedEvents { events, more })
}

/// The text, cut if it is too long.
#[must_use]
pub fn cut(text: &str) -> String {
    match text.char_indices().nth(MAX_TEXT) {
        Some((end, _)) => format!("{}…", text.get(..end).unwrap_or_default()),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    #[test]
    fn both_forms_of_an_event_are_read_and_the_newest_comes_first() {
        let list = json!({ "metadata": { "continue": "next" }, "items": [
            {
                "reason": "FilteringFailed", "message": "no node fits", "type": "Warning", "count": 3, "firstTimestamp": null,
                "lastTimestamp": "2026-11-21T10:00:00Z", "eventTime": null, "source": { "component": "hami-scheduler" },
                "involvedObject": { "kind": "Pod", "namespace": "ml", "name": "train-0" },
            },
            {
                "reason": "GPUsClosed", "note": "closed", "type": "Normal", "eventTime": "2026-11-21T10:00:01.000000Z",
                "reportingController": "gpu-steward", "regarding": { "kind": "Node", "name": "n1" },
                "series": { "count": 5, "lastObservedTime": "2026-11-21T10:00:09.000000Z" },
            },
            {},
        ] });
        let DescribedEvents { events, more } = decode_list(list.to_string().as_bytes()).unwrap();
        assert_eq!(more, "next");
        let shown = |event: &DescribedEvent| {
            let at = event.at.map(timestamp::to_rfc3339).unwrap_or_default();
            format!(
                "{at} {} {} {} x{} {}: {}",
                event.about, event.from, event.warning, event.count, event.reason, event.note
            )
        };
        assert_eq!(
            events.iter().map(shown).collect::<Vec<_>>(),
            [
                "2026-11-21T10:00:09Z Node n1 gpu-steward false x5 GPUsClosed: closed",
                "2026-11-21T10:00:00Z Pod ml/train-0 hami-scheduler true x3 FilteringFailed: no node fits",
                "   false x1 : ",
            ]
        );
        assert!(decode_list(b"7").is_err());
    }

    #[test]
    fn a_text_is_cut() {
        assert_eq!(cut(&"ä".repeat(MAX_TEXT)).chars().count(), MAX_TEXT);
        assert_eq!(cut(&"ä".repeat(MAX_TEXT + 5)).chars().count(), MAX_TEXT + 1);
    }

    proptest! {
        #[test]
        fn no_bytes_cause_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = decode_list(&bytes);
        }

        #[test]
        fn no_similar_text_causes_a_panic(inner in "[\\[\\]{}:,\"a-z0-9. ]{0,120}") {
            let _ = decode_list(format!(r#"{{"items":[{{"series":{inner}}}]}}"#).as_bytes());
        }
    }
}
