//! The head of every document.

use model::time::Now;
use model::view::NodeView;
use serde::{Deserialize, Serialize};

/// The node, and the number and age of the node view in the document.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ViewHeadJson {
    /// Name of the node.
    pub node: String,
    /// Number of the view; a larger number is newer. It starts again when the agent starts.
    pub sequence: u64,
    /// When the node state made the view, in seconds since 1970.
    pub time_seconds: f64,
    /// Age of the view at the time of this answer, in seconds.
    pub age_seconds: f64,
    /// Whether the GPUs are simulated (`--gpus simulated`).
    pub simulated: bool,
}

impl ViewHeadJson {
    /// The head for `view` in an answer at `now`.
    #[must_use]
    pub fn of(view: &NodeView, now: Now) -> ViewHeadJson {
        ViewHeadJson {
            node: view.name.to_string(),
            sequence: view.sequence,
            time_seconds: now.wall_of(view.now.monotonic).as_seconds(),
            age_seconds: super::reading::ReadingAges(now.monotonic).since(view.now.monotonic),
            simulated: view.gpu_source.simulated(),
        }
    }
}
