//! How badly the network and the API servers behave at this moment. Nothing here breaks the contract of Kubernetes' API.

use super::random::Random;

/// A millisecond of simulated time, which is counted in nanoseconds.
pub(super) const MS: u64 = 1_000_000;
/// A second.
pub(super) const SECOND: u64 = 1000 * MS;

/// Each number says in how many of a thousand cases something happens.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Weather {
    /// A request is not carried out.
    pub(super) lost_request: u64,
    /// A request is carried out, and its answer is lost.
    pub(super) lost_answer: u64,
    /// A request is carried out long after the client has given up.
    pub(super) late: u64,
    /// A binding is carried out long after the client has given up.
    pub(super) late_binding: u64,
    /// A request is refused with 429, 500 or 503.
    pub(super) refused: u64,
    /// A request is carried out, and the answer is 500 or 504.
    pub(super) denied: u64,
    /// A delivery takes seconds.
    pub(super) slow: u64,
    /// A cache of an API server stands still for seconds.
    pub(super) stale: u64,
    /// A watch breaks at a delivery.
    pub(super) broken_watch: u64,
    /// Events of a watch are sent again when it begins.
    pub(super) repeated: u64,
    /// kube-scheduler filters a pod for one likely node before all others.
    pub(super) hints: u64,
    /// A Permit plugin of kube-scheduler holds a pod between filter and bind.
    pub(super) permits: u64,
}

impl Weather {
    /// Weather of one kind for a whole run: most runs have few kinds of trouble and much of each.
    pub(super) fn of(random: &mut Random) -> Weather {
        let mut often = |most: u64| if random.chance(400) { random.below(most) } else { 0 };
        Weather {
            lost_request: often(40),
            lost_answer: often(60),
            late: often(40),
            late_binding: often(400),
            refused: often(60),
            denied: often(40),
            slow: often(60),
            stale: often(60),
            broken_watch: often(30),
            repeated: often(500),
            hints: often(500),
            permits: often(900),
        }
    }

    /// How long one way through the network takes.
    pub(super) fn way(&self, random: &mut Random) -> u64 {
        match random.below(100) {
            _ if random.chance(self.slow) => random.between(SECOND / 2, 8 * SECOND),
            0..90 => random.between(MS / 2, 6 * MS),
            _ => random.between(10 * MS, 300 * MS),
        }
    }
}

/// What becomes of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    Answered,
    /// Not carried out; the connection breaks.
    LostRequest,
    /// Not carried out; no answer comes.
    NoAnswer,
    /// Carried out; the connection breaks.
    LostAnswer,
    /// Carried out, maybe much later; no answer comes.
    Late,
    /// Not carried out, and refused with this code.
    Refused(u16),
    /// Carried out, and answered with this code.
    Denied(u16),
}

impl Fate {
    pub(super) fn of(weather: &Weather, binding: bool, random: &mut Random) -> Fate {
        if binding && random.chance(weather.late_binding) {
            return Fate::Late;
        }
        if random.chance(weather.lost_request) {
            return random.one_of(&[Fate::LostRequest, Fate::NoAnswer]);
        }
        if random.chance(weather.lost_answer) {
            return Fate::LostAnswer;
        }
        if random.chance(weather.late) {
            return Fate::Late;
        }
        if random.chance(weather.refused) {
            return Fate::Refused(random.one_of(&[429, 429, 500, 503]));
        }
        if random.chance(weather.denied) {
            return Fate::Denied(random.one_of(&[500, 504]));
        }
        Fate::Answered
    }
}
