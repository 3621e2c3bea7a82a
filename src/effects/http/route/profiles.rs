//! `/api/v1/profile` and `/api/v1/history`.
//!
//! What must never happen here: a request that waits for the thread of the histories while it holds a place in the queue of
//! large answers. A thread that stalls would then delay scrapes.

use super::{JSON, Routes, sentence, set, values};
use crate::api::history::{HistoryRefusal, query_of};
use crate::api::profile;
use hyper::body::Incoming;
use hyper::header;
use hyper::{Request, Response, StatusCode};
use model::time::WallTime;
use serve::answer_body::{AnswerBody, AnswerBuffer};
use serve::{negotiate, query};
use std::net::IpAddr;
use std::sync::Arc;
use wire::api::ViewHeadJson;
use wire::api::history::HistoryJson;
use wire::history_query::{HistoryQuestion, SubjectFilter};

/// The type of a history as CSV.
const CSV: &str = "text/csv; charset=utf-8";
/// What to do where profiles are off.
const OFF: &str = "workload profiles are off; start the agent with --workload-profiles=on to have /api/v1/profile and \
                   /api/v1/history.";

/// A request for a history.
struct Asked {
    question: HistoryQuestion,
    csv: bool,
}

impl Routes {
    /// The answer of `/api/v1/profile`.
    pub(super) async fn profile(&self, request: &Request<Incoming>, peer: IpAddr) -> Response<AnswerBody> {
        let Some(source) = &self.profiles else { return sentence(StatusCode::NOT_FOUND, OFF) };
        let filter = match filter(request.uri().query().unwrap_or_default()) {
            Ok(filter) => filter,
            Err(why) => return sentence(StatusCode::BAD_REQUEST, &why),
        };
        let (view, profiles) = (Arc::clone(&self.view.borrow()), source.newest());
        let Some(listing) = profile::listing(&filter, &view, &profiles, (self.settings.clock)()) else {
            return unknown_subject();
        };
        let Some(mut buffer) = self.buffer(peer).await else { return self.too_many() };
        match serde_json::to_writer(&mut buffer.bytes, &listing) {
            Ok(()) => self.ended(buffer, request),
            Err(error) => unwritable(&error),
        }
    }

    /// The answer of `/api/v1/history`.
    pub(super) async fn history(&self, request: &Request<Incoming>, peer: IpAddr) -> Response<AnswerBody> {
        let Some(source) = &self.profiles else { return sentence(StatusCode::NOT_FOUND, OFF) };
        let now = (self.settings.clock)();
        let asked = match Asked::of(request, now.wall) {
            Ok(asked) => asked,
            Err(why) => return sentence(StatusCode::BAD_REQUEST, &why),
        };
        let Ok(_permit) = self.questions.try_acquire() else { return refused(&HistoryRefusal::TooMany) };
        let view = Arc::clone(&self.view.borrow());
        let Some(query) = query_of(&asked.question, &view, &source.newest()) else { return unknown_subject() };
        let answer = match source.ask(query).await {
            Ok(answer) => answer,
            Err(refusal) => return refused(&refusal),
        };
        let Some(mut buffer) = self.buffer(peer).await else { return self.too_many() };
        let document = HistoryJson::of(ViewHeadJson::of(&view, now), &asked.question.series, &answer);
        if asked.csv {
            buffer.bytes.extend_from_slice(document.csv().as_bytes());
            return self.document(buffer, request.headers(), CSV);
        }
        match serde_json::to_writer(&mut buffer.bytes, &document) {
            Ok(()) => self.ended(buffer, request),
            Err(error) => unwritable(&error),
        }
    }

    /// The buffer as a JSON document with a line feed at its end.
    fn ended(&self, mut buffer: AnswerBuffer, request: &Request<Incoming>) -> Response<AnswerBody> {
        buffer.bytes.push(b'\n');
        self.document(buffer, request.headers(), JSON)
    }
}

impl Asked {
    /// Reads the query, and the header that asks for CSV. The error is a sentence for the caller.
    fn of(request: &Request<Incoming>, now: WallTime) -> Result<Asked, String> {
        let text = request.uri().query().unwrap_or_default();
        let keys = ["series", "from", "step", "format"];
        let [series, from, step, format] = query::values(text, keys).map_err(|bad| bad.to_string())?;
        let series = series.ok_or(
            "query key \"series\" is missing: name one, as in ?series=gpu/0/utilization; /api/v1/profile lists all",
        )?;
        let csv = match format.as_deref() {
            None => negotiate::csv(&values(request.headers(), header::ACCEPT)),
            Some("csv") => true,
            Some("json") => false,
            Some(_) => return Err("query key \"format\" must be json or csv".to_owned()),
        };
        let question = HistoryQuestion::parse(&series, from.as_deref(), step.as_deref(), now);
        Ok(Asked { question: question.map_err(|bad| bad.to_string())?, csv })
    }
}

/// The subjects that the query asks for.
fn filter(text: &str) -> Result<SubjectFilter, String> {
    let [subject] = query::values(text, ["subject"]).map_err(|bad| bad.to_string())?;
    SubjectFilter::parse(subject.as_deref()).map_err(|bad| bad.to_string())
}

fn unknown_subject() -> Response<AnswerBody> {
    let what = "this node has no such GPU or pod; /api/v1/gpus and /api/v1/pods list all.";
    sentence(StatusCode::NOT_FOUND, what)
}

fn refused(refusal: &HistoryRefusal) -> Response<AnswerBody> {
    let status = match refusal {
        HistoryRefusal::NotKept => StatusCode::NOT_FOUND,
        HistoryRefusal::Unreadable(_) | HistoryRefusal::TooMany | HistoryRefusal::NoAnswer => {
            StatusCode::SERVICE_UNAVAILABLE
        }
    };
    let mut response = sentence(status, &format!("{refusal}."));
    if status == StatusCode::SERVICE_UNAVAILABLE {
        set(&mut response, header::RETRY_AFTER, "5");
    }
    response
}

fn unwritable(error: &serde_json::Error) -> Response<AnswerBody> {
    sentence(StatusCode::INTERNAL_SERVER_ERROR, &format!("cannot write JSON: {error}"))
}
