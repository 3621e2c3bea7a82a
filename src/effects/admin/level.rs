//! `/loglevel`: GET shows it, PUT sets it.

use axum::Router;
use axum::body::Bytes;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use std::sync::Arc;

/// Longest level accepted; `5` is the usual one.
const MAX_LEVEL: usize = 256;

/// The log level, as the admin port needs it; the front door implements it.
pub trait LogLevel: Send + Sync {
    /// The level now, for people.
    fn show(&self) -> String;
    /// Sets it from what the caller sent.
    ///
    /// # Errors
    /// A sentence that says what is accepted.
    fn set(&self, text: &str) -> Result<(), String>;
}

/// The route.
pub fn router(level: Arc<dyn LogLevel>) -> Router {
    let shown = Arc::clone(&level);
    Router::new().route(
        "/loglevel",
        get(async move || format!("{}\n", shown.show())).put(async move |body: Bytes| set(level.as_ref(), &body)),
    )
}

fn set(level: &dyn LogLevel, body: &[u8]) -> Response {
    let text = match std::str::from_utf8(body) {
        Ok(text) if text.len() <= MAX_LEVEL => text.trim(),
        _ => return (StatusCode::BAD_REQUEST, "the level is a short text\n").into_response(),
    };
    match level.set(text) {
        Ok(()) => format!("{}\n", level.show()).into_response(),
        Err(why) => (StatusCode::BAD_REQUEST, format!("{why}\n")).into_response(),
    }
}
