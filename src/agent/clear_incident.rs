//! `DELETE /incidents/<UUID|all>`: an operator clears the incidents of a GPU after a repair.

use axum::Router;
use axum::extract::Path;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::delete;
use model::id::GpuUuid;
use model::incident::GpuCondition;
use std::fmt::Write;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

/// How long a request waits for the node task, which answers within milliseconds.
const ANSWERS_WITHIN: Duration = Duration::from_secs(5);
/// The last part of the path, if the request is about every GPU.
pub(super) const ALL: &str = "all";
/// Length of the queue to the node task.
pub(super) const QUEUE: usize = 4;

/// A request to the node task to clear incidents.
#[derive(Debug)]
pub(super) struct ClearIncident {
    /// The GPU; `None` for all GPUs.
    pub gpu: Option<GpuUuid>,
    /// Receives each GPU of which incidents were cleared, and the GPU's condition afterwards.
    pub answer: oneshot::Sender<Vec<(GpuUuid, GpuCondition)>>,
}

/// The route, under `/incidents`.
pub(super) fn router(owner: mpsc::Sender<ClearIncident>) -> Router {
    let clear = async move |Path(which): Path<String>| {
        let gpu = match which.as_str() {
            ALL => None,
            name => match GpuUuid::parse(name) {
                Ok(gpu) => Some(gpu),
                Err(error) => return (StatusCode::BAD_REQUEST, format!("{error}; or use {ALL}\n")).into_response(),
            },
        };
        let (answer, answered) = oneshot::channel();
        if owner.try_send(ClearIncident { gpu, answer }).is_err() {
            return unanswered();
        }
        match timeout(ANSWERS_WITHIN, answered).await {
            Ok(Ok(cleared)) => cleared_text(&which, &cleared),
            _ => unanswered(),
        }
    };
    Router::new().route("/{which}", delete(clear))
}

fn unanswered() -> Response {
    (StatusCode::SERVICE_UNAVAILABLE, "the agent is busy or shuts down; try again\n").into_response()
}

fn cleared_text(which: &str, cleared: &[(GpuUuid, GpuCondition)]) -> Response {
    if cleared.is_empty() {
        return (StatusCode::NOT_FOUND, format!("no incident to clear ({which})\n")).into_response();
    }
    let mut text = String::new();
    for (gpu, left) in cleared {
        let not_cleared: Vec<String> = left.incidents.iter().map(|(incident, _)| incident.to_string()).collect();
        let not_cleared =
            if not_cleared.is_empty() { String::new() } else { format!("; not cleared: {}", not_cleared.join(", ")) };
        let _ = writeln!(text, "{gpu}: cleared{not_cleared}");
    }
    text.into_response()
}
