//! What every answer begins with.

use model::time::Now;
use model::view::NodeView;
use serde::{Deserialize, Serialize};

/// Which view was shown, of which node, and how old it was.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ViewHeadJson {
    /// The node.
    pub node: String,
    /// Number of the view; a larger one is newer. Starts again with the program.
    pub sequence: u64,
    /// When the view was made, in seconds since 1970.
    pub time_seconds: f64,
    /// How long before this answer it was made.
    pub age_seconds: f64,
    /// Whether the GPUs are made up (`--gpus simulated`).
    pub simulated: bool,
}

impl ViewHeadJson {
    /// Of `view`, told at `now`.
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
