//! Counts the streams of agents, their ends, and the callers that are refused, for `/metrics`.

use super::callers::CallerRefusal;
use std::sync::atomic::{AtomicU64, Ordering};

/// Why a stream has ended or was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StreamEnd {
    /// The agent or the network has closed it.
    Closed,
    /// A message was not acceptable, or the first message did not arrive in time.
    BadMessage,
    /// The agent sent a report about a node other than the node of its token.
    OtherNode,
    /// The agent sent too many messages, or opened too many streams one after the other.
    TooFast,
    /// The agent did not read its answers.
    Slow,
    /// The agent was silent for three of its beats.
    Silent,
    /// A newer stream of the node has begun.
    Replaced,
    /// The pod or the Node of the token is gone.
    CallerGone,
    /// The token has expired, and the agent has not connected with a newer token.
    TokenExpired,
    /// This extender does not lead.
    NotLeading,
    /// This extender is stopping.
    Stopping,
}

impl StreamEnd {
    /// All reasons, in the order of their metrics.
    pub(super) const ALL: [StreamEnd; 11] = [
        StreamEnd::Closed,
        StreamEnd::BadMessage,
        StreamEnd::OtherNode,
        StreamEnd::TooFast,
        StreamEnd::Slow,
        StreamEnd::Silent,
        StreamEnd::Replaced,
        StreamEnd::CallerGone,
        StreamEnd::TokenExpired,
        StreamEnd::NotLeading,
        StreamEnd::Stopping,
    ];

    /// A stable short code.
    pub(super) fn code(self) -> &'static str {
        match self {
            StreamEnd::Closed => "closed",
            StreamEnd::BadMessage => "bad_message",
            StreamEnd::OtherNode => "other_node",
            StreamEnd::TooFast => "too_fast",
            StreamEnd::Slow => "slow",
            StreamEnd::Silent => "silent",
            StreamEnd::Replaced => "replaced",
            StreamEnd::CallerGone => "caller_gone",
            StreamEnd::TokenExpired => "token_expired",
            StreamEnd::NotLeading => "not_leading",
            StreamEnd::Stopping => "stopping",
        }
    }
}

/// The counts since the start.
#[derive(Debug, Default)]
pub(super) struct StreamCounts {
    opened: AtomicU64,
    messages: AtomicU64,
    passed_on: AtomicU64,
    ends: [AtomicU64; StreamEnd::ALL.len()],
    refused: [AtomicU64; CallerRefusal::CODES.len()],
}

/// The counts of one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct StreamTotals {
    /// Streams that were opened.
    pub(super) opened: u64,
    /// Messages that were received.
    pub(super) messages: u64,
    /// Calls that were forwarded to the leader and answered by it.
    pub(super) passed_on: u64,
    /// Ends by reason.
    pub(super) ends: Vec<(&'static str, u64)>,
    /// Refused callers by reason.
    pub(super) refused: Vec<(&'static str, u64)>,
}

impl StreamCounts {
    pub(super) fn opened(&self) {
        self.opened.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn message(&self) {
        self.messages.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn passed_on(&self) {
        self.passed_on.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn ended(&self, end: StreamEnd) {
        if let Some(count) = self.ends.get(end as usize) {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(super) fn refused(&self, why: CallerRefusal) {
        let place = CallerRefusal::CODES.iter().position(|code| *code == why.code());
        if let Some(count) = place.and_then(|place| self.refused.get(place)) {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(super) fn totals(&self) -> StreamTotals {
        let value = |count: &AtomicU64| count.load(Ordering::Relaxed);
        StreamTotals {
            opened: value(&self.opened),
            messages: value(&self.messages),
            passed_on: value(&self.passed_on),
            ends: StreamEnd::ALL.iter().zip(&self.ends).map(|(end, count)| (end.code(), value(count))).collect(),
            refused: CallerRefusal::CODES
                .iter()
                .zip(&self.refused)
                .map(|(code, count)| (*code, value(count)))
                .collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::live_callers::NotLive;
    use super::*;
    use stream::token_keys::TokenRefusal;

    #[test]
    fn each_reason_is_counted_under_its_own_word() {
        let counts = StreamCounts::default();
        let tokens = [
            TokenRefusal::Unreadable,
            TokenRefusal::UnknownKey,
            TokenRefusal::BadSignature,
            TokenRefusal::OtherIssuer,
            TokenRefusal::OtherAudience,
            TokenRefusal::Expired,
            TokenRefusal::NotYet,
        ];
        let mut all: Vec<CallerRefusal> = tokens.map(CallerRefusal::Token).to_vec();
        all.extend([CallerRefusal::NoToken, CallerRefusal::OtherAccount, CallerRefusal::NoNode]);
        all.push(CallerRefusal::TooManyStreams);
        all.extend([NotLive::Node, NotLive::Pod].map(CallerRefusal::Gone));
        all.iter().for_each(|why| counts.refused(*why));
        StreamEnd::ALL.iter().for_each(|end| counts.ended(*end));
        counts.opened();
        counts.message();
        let totals = counts.totals();
        assert_eq!((totals.opened, totals.messages), (1, 1));
        assert!(totals.refused.iter().chain(&totals.ends).all(|(_, count)| *count == 1), "{totals:?}");
    }
}
