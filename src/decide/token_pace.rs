//! When an agent checks for a newer token, so that it renews its stream before the old token expires.
//!
//! ```text
//!   a token for an hour         checks once a minute; the kubelet replaces it after 48 minutes, when 12 are left
//!   a token that expires soon   checks more often, in the end once a second
//! ```

use std::time::Duration;

/// Longest pause: the stream uses a replaced token for at most this long.
const LONGEST: Duration = Duration::from_secs(60);
/// Shortest pause: each check reads a small file.
const SHORTEST: Duration = Duration::from_secs(1);

/// The pause until the next check; `left` is how long the current token is still valid, `None` if that is not known.
#[must_use]
pub fn pause(left: Option<Duration>) -> Duration {
    left.map_or(LONGEST, |left| (left / 10).clamp(SHORTEST, LONGEST))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_agent_looks_more_often_when_its_token_ends_soon() {
        let seconds = Duration::from_secs;
        for (left, expected) in [
            (None, 60),
            (Some(seconds(86_400)), 60),
            (Some(seconds(600)), 60),
            // The shortest token that an API server issues lasts ten minutes, and is replaced when two are left.
            (Some(seconds(120)), 12),
            (Some(seconds(10)), 1),
            (Some(seconds(3)), 1),
            (Some(seconds(0)), 1),
        ] {
            assert_eq!(pause(left), seconds(expected), "{left:?}");
        }
    }
}
