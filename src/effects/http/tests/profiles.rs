//! Tests of `/api/v1/profile` and `/api/v1/history` on a real socket.

use super::{Limits, Served, served, serving};
use crate::api::history::{HistoryRefusal, HistoryRequest, MAX_QUESTIONS, ProfileSource};
use crate::sample_view;
use model::time::WallTime;
use model::workload_profile::{HistoryAnswer, HistoryPoint, HistoryQuery, ProfiledQuantity};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, watch};

/// The answer to a question: the quantity decides which.
fn reply(query: &HistoryQuery) -> Result<HistoryAnswer, HistoryRefusal> {
    let point = |seconds: u64, mean| HistoryPoint { at: WallTime(seconds * 1_000_000), mean, maximum: 90.0 };
    match query.quantity {
        ProfiledQuantity::Utilization => Ok(HistoryAnswer {
            step: query.step.unwrap_or(Duration::from_secs(60)),
            points: vec![point(1_799_999_880, 25.0), point(1_799_999_940, 50.0)],
        }),
        ProfiledQuantity::GpuMemory => Err(HistoryRefusal::Unreadable("disk I/O error".into())),
        _ => Err(HistoryRefusal::NotKept),
    }
}

/// Profiles and a task that answers questions about histories. It drops questions about memory-copy utilisation, as a
/// thread that ends does.
pub(super) fn source(runtime: &tokio::runtime::Runtime) -> ProfileSource {
    let (history, mut questions) = mpsc::channel::<HistoryRequest>(MAX_QUESTIONS);
    let (sender, profiles) = watch::channel(Arc::new(sample_view::profiles::small()));
    runtime.spawn(async move {
        let _kept = sender;
        while let Some(HistoryRequest { query, answer }) = questions.recv().await {
            if query.quantity != ProfiledQuantity::MemoryCopy {
                let _ = answer.send(reply(&query));
            }
        }
    });
    ProfileSource { profiles, history }
}

fn node() -> Served {
    served(sample_view::small(), Limits::default())
}

#[test]
fn a_history_is_json_unless_the_client_asks_for_csv() {
    let served = node();
    let path = "/api/v1/history?series=gpu/0/utilization&from=-2h&step=1m";
    let json = served.get(path, "");
    assert!(json.head.contains("content-type: application/json"), "{}", json.head);
    let document: serde_json::Value = serde_json::from_slice(&json.body).unwrap();
    assert_eq!((&document["series"], &document["unit"]), (&"gpu/0/utilization".into(), &"ratio".into()));
    assert_eq!(document["step_seconds"], 60.0);
    assert_eq!(document["points"][1]["mean"], 0.5);
    let csv = "time,mean_ratio,maximum_ratio\n\
               2027-01-15T07:58:00.000000Z,0.25,0.9\n\
               2027-01-15T07:59:00.000000Z,0.5,0.9\n";
    for (path, header) in [(path.to_owned(), "Accept: text/csv\r\n"), (format!("{path}&format=csv"), "")] {
        let answer = served.get(&path, header);
        assert!(answer.head.contains("content-type: text/csv; charset=utf-8"), "{}", answer.head);
        assert_eq!(answer.text(), csv);
    }
    assert!(served.get(&format!("{path}&format=json"), "Accept: text/csv\r\n").text().starts_with('{'));
}

#[test]
fn a_question_that_cannot_be_answered_gets_a_sentence() {
    let served = node();
    for (query, status, words) in [
        ("history", 400, "query key \"series\" is missing"),
        ("history?series=gpu/0", 400, "names no GPU and no pod"),
        ("history?series=gpu/0/cpu", 400, "a GPU has no quantity \"cpu\""),
        ("history?series=gpu/0/power&from=1970-01-01T00:00:00Z", 400, "from is more than 36 days ago"),
        ("history?series=gpu/0/power&from=2999-01-01T00:00:00Z", 400, "from is in the future"),
        (
            "history?series=gpu/0/power&from=-35d&step=1ms",
            400,
            "an answer has at most 4096: name a step of at least 739s",
        ),
        ("history?series=gpu/0/power&step=0s", 400, "name a step above zero"),
        ("history?series=gpu/0/power&step=x", 400, "step is \"x\": expected a time"),
        ("history?series=gpu/0/power&format=xml", 400, "must be json or csv"),
        ("history?series=gpu/0/power&to=-1h", 400, "use series, from, step or format"),
        ("history?series=gpu/9/power", 404, "no such GPU or pod"),
        ("history?series=pod/ml/other/cpu", 404, "no such GPU or pod"),
        ("history?series=gpu/0/power", 404, "no history of this series is kept"),
        ("history?series=gpu/0/memory_copy", 503, "did not answer"),
        ("history?series=gpu/0/gpu_memory", 503, "the file of histories cannot be read: disk I/O error"),
        ("profile?subject=x", 400, "names no GPU and no pod"),
        ("profile?gpu=0", 400, "use subject"),
        ("profile?subject=gpu/9", 404, "no such GPU or pod"),
    ] {
        let answer = served.get(&format!("/api/v1/{query}"), "");
        assert_eq!(answer.status, status, "{query}: {}", answer.text());
        assert!(answer.text().contains(words), "{query}: {}", answer.text());
        assert_eq!(answer.head.contains("retry-after: 5"), status == 503, "{query}");
    }
}

#[test]
fn profiles_are_filtered_by_their_subject() {
    let served = node();
    let series = |path: &str| -> Vec<String> {
        let document: serde_json::Value = serde_json::from_slice(&served.get(path, "").body).unwrap();
        assert!(document["recorder"]["series"].is_u64(), "{document}");
        let profiles = document["profiles"].as_array().unwrap();
        profiles.iter().map(|profile| profile["series"].as_str().unwrap().to_owned()).collect()
    };
    assert!(series("/api/v1/profile?subject=gpu").iter().all(|series| series.starts_with("gpu/")));
    assert!(series("/api/v1/profile").iter().any(|series| series == "pod/ml/train-0/memory"));
    assert_eq!(series("/api/v1/profile?subject=gpu/1").len(), 1);
}

#[test]
fn where_profiles_are_off_the_answer_names_the_setting_and_metrics_have_no_profiles() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let served = serving(runtime, (sample_view::small(), None), Limits::default());
    for path in ["/api/v1/profile", "/api/v1/history?series=gpu/0/power"] {
        let answer = served.get(path, "");
        assert_eq!(answer.status, 404, "{path}");
        assert!(answer.text().contains("--workload-profiles=on"), "{}", answer.text());
    }
    let metrics = served.get("/metrics", "");
    assert!(!metrics.text().contains("gpu_steward_profile_") && !metrics.text().contains("_load_"));
}
