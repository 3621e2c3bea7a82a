//! `/loglevel`: GET shows the log level, PUT sets it.

use axum::Router;
use axum::body::Bytes;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use std::sync::Arc;

/// Maximum size of a level text in bytes. A usual text is `5`.
const MAX_LEVEL: usize = 256;

/// The log level, as the admin port needs it; `steward` implements it.
pub trait LogLevel: Send + Sync {
    /// The current level, as text for people.
    fn show(&self) -> String;
    /// Sets the level from the text that the caller sent.
    ///
    /// # Errors
    /// A sentence that names what is accepted.
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
        _ => return (StatusCode::BAD_REQUEST, "the log level has at most 256 bytes of UTF-8\n").into_response(),
    };
    match level.set(text) {
        Ok(()) => format!("{}\n", level.show()).into_response(),
        Err(why) => (StatusCode::BAD_REQUEST, format!("{why}\n")).into_response(),
    }
}
