//! When the extenders' certificate authority is replaced, and when the certificates that it signs are replaced.
//!
//! ```text
//!   made ──────── a year ───────▶ the next one is published ── a day ──▶ the next one signs ──▶ …
//!                                 agents read the bundle again at each connection
//! ```
//!
//! What must never happen here: a certificate that is signed by an authority which an agent cannot trust yet.

use model::authority::AuthoritySet;
use std::time::Duration;

/// How long a certificate authority is valid: it still works if it is replaced a year late.
pub const AUTHORITY_VALID: Duration = Duration::from_secs(2 * 366 * DAY);
/// How long an authority signs before the next authority is made.
const AUTHORITY_SIGNS: Duration = Duration::from_secs(366 * DAY);
/// How long the next authority is published before it signs. The kubelet updates the files of a ConfigMap within
/// minutes, but a node may be offline for hours.
const PUBLISHED_FOR: Duration = Duration::from_secs(DAY);
/// How long the certificate of a port is valid.
pub const CERTIFICATE_VALID: Duration = Duration::from_secs(30 * DAY);
/// How long a certificate is used before a new certificate is made.
pub const CERTIFICATE_USED: Duration = Duration::from_secs(10 * DAY);

const DAY: u64 = 24 * 60 * 60;

/// What the leader does with the authority.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AuthorityStep {
    /// Nothing.
    Keep,
    /// The leader makes the next authority.
    MakeNext,
    /// The next authority signs from now on.
    UseNext,
}

/// The step that is due at `now`, in Unix seconds.
#[must_use]
pub fn authority_step(set: &AuthoritySet, now: u64) -> AuthorityStep {
    let since = |made: u64| Duration::from_secs(now.saturating_sub(made));
    match &set.next {
        Some(next) if since(next.made) >= PUBLISHED_FOR => AuthorityStep::UseNext,
        None if since(set.current.made) >= AUTHORITY_SIGNS => AuthorityStep::MakeNext,
        Some(_) | None => AuthorityStep::Keep,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::authority::CertificateAuthority;

    fn made(made: u64) -> CertificateAuthority {
        CertificateAuthority { certificate: "c".into(), key: "k".into(), made }
    }

    #[test]
    fn the_next_authority_is_published_a_day_before_it_signs_and_long_before_the_first_expires() {
        let mut set = AuthoritySet::of(made(1000));
        let year = 366 * DAY;
        assert_eq!(authority_step(&set, 0), AuthorityStep::Keep, "a clock that is behind");
        assert_eq!(authority_step(&set, 1000 + year - 1), AuthorityStep::Keep);
        assert_eq!(authority_step(&set, 1000 + year), AuthorityStep::MakeNext);
        set.next = Some(made(1000 + year));
        assert_eq!(authority_step(&set, 1000 + year + DAY - 1), AuthorityStep::Keep);
        assert_eq!(authority_step(&set, 1000 + year + DAY), AuthorityStep::UseNext);
        assert!(AUTHORITY_VALID > AUTHORITY_SIGNS + PUBLISHED_FOR + CERTIFICATE_VALID);
        assert!(CERTIFICATE_VALID > CERTIFICATE_USED * 2);
    }
}
