//! `/api/v1/history`: the question to the thread that keeps the histories, and its answer.
//!
//! ```text
//!   text ──wire::history_query──▶ HistoryQuestion ──query_of──▶ HistoryQuery ──HistorySource::ask──▶ thread `profile`
//!   HistoryJson ◀──wire::api::history── HistoryAnswer ◀──────────────────────────────────────────────────┘
//! ```
//!
//! What must never happen here: a wait without a limit; more questions under way than [`MAX_QUESTIONS`].

use super::subject::subject_of;
use model::view::NodeView;
use model::workload_profile::{HistoryAnswer, HistoryQuery, WorkloadProfiles};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::timeout;
use wire::history_query::HistoryQuestion;

/// Upper bound on the questions under way. One person asks one at a time. An answer has at most 128 KiB, so eight take 1 MiB.
pub const MAX_QUESTIONS: usize = 8;
/// How long a question waits for its answer. The thread answers in milliseconds. If a full disk stops it, the client learns
/// this before `gpu-steward profile history` gives up after 5 s.
const ANSWERED_WITHIN: Duration = Duration::from_secs(3);

/// A question to the thread that keeps the histories.
#[derive(Debug)]
pub struct HistoryRequest {
    /// The question.
    pub query: HistoryQuery,
    /// Takes the answer. The receiver is gone if the client has stopped to wait.
    pub answer: oneshot::Sender<Result<HistoryAnswer, HistoryRefusal>>,
}

/// The reason why a question has no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HistoryRefusal {
    /// No history of the series is kept.
    #[error("no history of this series is kept; /api/v1/profile lists the series")]
    NotKept,
    /// The file of histories cannot be read. The text is the reason.
    #[error("the file of histories cannot be read: {0}")]
    Unreadable(Arc<str>),
    /// [`MAX_QUESTIONS`] other questions wait.
    #[error("too many questions about histories are in progress; try again in 5 seconds")]
    TooMany,
    /// The thread did not answer in time, or it has ended.
    #[error("the thread that keeps the histories did not answer within {} s", ANSWERED_WITHIN.as_secs())]
    NoAnswer,
}

/// The profiles of the node and the way to its histories.
#[derive(Clone, Debug)]
pub struct ProfileSource {
    /// The newest profiles.
    pub profiles: watch::Receiver<Arc<WorkloadProfiles>>,
    /// The queue of the thread that keeps the histories. It has room for [`MAX_QUESTIONS`].
    pub history: mpsc::Sender<HistoryRequest>,
}

impl ProfileSource {
    /// The newest profiles.
    #[must_use]
    pub fn newest(&self) -> Arc<WorkloadProfiles> {
        Arc::clone(&self.profiles.borrow())
    }

    /// Asks the thread, and waits for its answer.
    ///
    /// # Errors
    /// [`HistoryRefusal`].
    pub async fn ask(&self, query: HistoryQuery) -> Result<HistoryAnswer, HistoryRefusal> {
        let (answer, answered) = oneshot::channel();
        self.history.try_send(HistoryRequest { query, answer }).map_err(|error| match error {
            mpsc::error::TrySendError::Full(_) => HistoryRefusal::TooMany,
            mpsc::error::TrySendError::Closed(_) => HistoryRefusal::NoAnswer,
        })?;
        match timeout(ANSWERED_WITHIN, answered).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(_)) | Err(_) => Err(HistoryRefusal::NoAnswer),
        }
    }
}

/// The question with the identity of its subject; `None` if this node has no such subject.
#[must_use]
pub fn query_of(question: &HistoryQuestion, view: &NodeView, profiles: &WorkloadProfiles) -> Option<HistoryQuery> {
    Some(HistoryQuery {
        subject: subject_of(&question.series.subject, view, profiles)?,
        quantity: question.series.quantity,
        from: question.from,
        step: question.step,
    })
}
