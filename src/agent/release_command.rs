//! `/nvml/release`: GET shows whether the agent holds the GPU driver, PUT releases the driver for a while, DELETE ends
//! the release early.

use super::driver_release::{DriverRelease, USUAL};
use axum::Router;
use axum::extract::RawQuery;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use model::driver_hold::DriverHold;
use std::time::Duration;
use tokio::time::timeout;

/// Longest release, in case an operator forgets to end it. A longer release needs another PUT.
pub(super) const LONGEST: Duration = Duration::from_secs(600);
/// How long a request waits for the release. A wait for NVML events ends within a second, an NVML call within a few
/// seconds.
const RELEASES_WITHIN: Duration = Duration::from_secs(10);

/// The route, under `/nvml`.
pub(super) fn router(driver: DriverRelease) -> Router {
    let (releasing, ended) = (driver.clone(), driver.clone());
    Router::new().route(
        "/release",
        get(async move || state_text(&driver, *driver.hold().borrow()))
            .put(async move |RawQuery(query): RawQuery| release(&releasing, query.as_deref()).await)
            .delete(async move || {
                ended.take_back();
                state_text(&ended, *ended.hold().borrow())
            }),
    )
}

async fn release(driver: &DriverRelease, query: Option<&str>) -> Response {
    let Some(span) = span(query.unwrap_or_default()) else {
        let most = LONGEST.as_secs();
        return (StatusCode::BAD_REQUEST, format!("?seconds= must be a number from 1 to {most}\n")).into_response();
    };
    let mut hold = driver.hold();
    driver.release(span);
    let settled = hold.wait_for(|hold| !matches!(hold, DriverHold::LettingGo { .. }));
    match timeout(RELEASES_WITHIN, settled).await {
        Ok(Ok(hold)) => {
            let hold = *hold;
            state_text(driver, hold)
        }
        // The thread that would close the driver hangs, or the program ends.
        _ => state_text(driver, *driver.hold().borrow()),
    }
}

/// Parses `seconds=60`; an empty query means [`USUAL`].
fn span(query: &str) -> Option<Duration> {
    if query.is_empty() {
        return Some(USUAL);
    }
    let digits = query.strip_prefix("seconds=")?;
    let seconds = digits.parse().ok().filter(|_| digits.bytes().all(|byte| byte.is_ascii_digit()))?;
    let span = Duration::from_secs(seconds);
    (span >= Duration::from_secs(1) && span <= LONGEST).then_some(span)
}

fn state_text(driver: &DriverRelease, hold: DriverHold) -> Response {
    let seconds = |until| driver.left(until).as_secs_f64().ceil();
    match hold {
        DriverHold::Held { refused: None } => "the agent holds the GPU driver\n".into_response(),
        DriverHold::Held { refused: Some(why) } => {
            (StatusCode::CONFLICT, format!("the agent holds the GPU driver and could not release it: {why}\n"))
                .into_response()
        }
        DriverHold::LettingGo { until } => {
            let left = seconds(until);
            let text = format!(
                "a call to the GPU driver has not returned; the agent releases the driver if the call returns within {left} s\n"
            );
            (StatusCode::SERVICE_UNAVAILABLE, text).into_response()
        }
        DriverHold::Released { until } => {
            let left = seconds(until);
            format!("the agent has released the GPU driver for {left} s; DELETE ends the release\n").into_response()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_length_of_a_release_is_bounded() {
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
