//! `/nvml/release`: GET shows whether the agent holds the GPU driver, PUT lets go of it for a while, DELETE takes it back.

use axum::Router;
use axum::extract::RawQuery;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use model::driver_hold::DriverHold;
use model::time::Monotonic;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::timeout;

/// For how long where the caller names no time: a reset of one GPU takes some seconds.
pub const USUAL: Duration = Duration::from_secs(60);
/// For how long at most: who needs longer asks again, and one who forgets it is forgotten.
pub const LONGEST: Duration = Duration::from_secs(600);
/// How long a caller waits for it: a wait for events ends within a second, a call within some.
const PATIENCE: Duration = Duration::from_secs(10);

/// The driver, as the admin port needs it; the front door implements it.
pub trait DriverControl: Send + Sync {
    /// Asks for it to be let go of, for so long.
    fn release(&self, span: Duration);
    /// Lets it be opened again.
    fn take_back(&self);
    /// How it stands, and every change of that.
    fn hold(&self) -> watch::Receiver<DriverHold>;
    /// How long it is until then.
    fn left(&self, until: Monotonic) -> Duration;
}

/// The route.
pub fn router(driver: Arc<dyn DriverControl>) -> Router {
    let (asked, ended) = (Arc::clone(&driver), Arc::clone(&driver));
    Router::new().route(
        "/nvml/release",
        get(async move || told(driver.as_ref(), *driver.hold().borrow()))
            .put(async move |RawQuery(query): RawQuery| release(asked.as_ref(), query.as_deref()).await)
            .delete(async move || {
                ended.take_back();
                told(ended.as_ref(), *ended.hold().borrow())
            }),
    )
}

async fn release(driver: &dyn DriverControl, query: Option<&str>) -> Response {
    let Some(span) = span(query.unwrap_or_default()) else {
        let most = LONGEST.as_secs();
        return (StatusCode::BAD_REQUEST, format!("?seconds= is a number from 1 to {most}\n")).into_response();
    };
    let mut hold = driver.hold();
    driver.release(span);
    let settled = hold.wait_for(|hold| !matches!(hold, DriverHold::LettingGo { .. }));
    match timeout(PATIENCE, settled).await {
        Ok(Ok(hold)) => {
            let hold = *hold;
            told(driver, hold)
        }
        // The thread that would let go hangs, or the program ends.
        _ => told(driver, *driver.hold().borrow()),
    }
}

/// `seconds=60`; nothing is the usual time.
fn span(query: &str) -> Option<Duration> {
    if query.is_empty() {
        return Some(USUAL);
    }
    let digits = query.strip_prefix("seconds=")?;
    let seconds = digits.parse().ok().filter(|_| digits.bytes().all(|byte| byte.is_ascii_digit()))?;
    let span = Duration::from_secs(seconds);
    (span >= Duration::from_secs(1) && span <= LONGEST).then_some(span)
}

fn told(driver: &dyn DriverControl, hold: DriverHold) -> Response {
    let seconds = |until| driver.left(until).as_secs_f64().ceil();
    match hold {
        DriverHold::Held { refused: None } => "the agent holds the GPU driver\n".into_response(),
        DriverHold::Held { refused: Some(why) } => {
            (StatusCode::CONFLICT, format!("the agent holds the GPU driver and could not let go: {why}\n"))
                .into_response()
        }
        DriverHold::LettingGo { until } => {
            let left = seconds(until);
            let text = format!(
                "a call to the GPU driver has not returned; the agent lets go when it does, unless that is in more than {left} s\n"
            );
            (StatusCode::SERVICE_UNAVAILABLE, text).into_response()
        }
        DriverHold::Released { until } => {
            let left = seconds(until);
            format!("the agent has let go of the GPU driver for {left} s; DELETE takes it back\n").into_response()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_is_bounded() {
        for (query, expected) in [
            ("", Some(60)),
            ("seconds=1", Some(1)),
            ("seconds=600", Some(600)),
            ("seconds=0", None),
            ("seconds=601", None),
            ("seconds=-1", None),
            ("seconds=+1", None),
            ("seconds=", None),
            ("seconds=99999999999999999999", None),
            ("minutes=1", None),
        ] {
            assert_eq!(span(query).map(|span| span.as_secs()), expected, "{query}");
        }
    }
}
