//! Sums of counters over a changing set of members (disks, interfaces): a sum never decreases because a member was
//! removed. A new member is not counted while `bound` members are present.
//!
//! The counts of a removed member stay in the sum. Its last counters are kept, so that a member that returns with the
//! same counters (an interface that was moved into a container and back) is not counted twice. If a member returns with
//! lower counters, they have started again from zero, and the sum grows by all of them.

/// Counters of `N` kinds, summed over members.
#[derive(Clone, Debug)]
pub(crate) struct Carried<const N: usize> {
    members: Vec<Member<N>>,
    total: [u64; N],
    read: u64,
    bound: usize,
}

#[derive(Clone, Debug)]
struct Member<const N: usize> {
    name: Box<[u8]>,
    last: [u64; N],
    /// The last read in which the member was present.
    seen: u64,
}

impl<const N: usize> Carried<N> {
    /// A sum without members. It keeps the last counters of at most `bound` members, removed members included.
    pub(crate) fn new(bound: usize) -> Self {
        Carried { members: Vec::new(), total: [0; N], read: 0, bound }
    }

    /// Begins a read of all members that are present now.
    pub(crate) fn begin(&mut self) {
        self.read += 1;
    }

    /// Adds a member that is present.
    pub(crate) fn add(&mut self, name: &[u8], now: [u64; N]) {
        let read = self.read;
        let at = match self.members.iter().position(|member| *member.name == *name) {
            Some(at) => at,
            None => {
                if self.members.len() >= self.bound {
                    // A member that is gone is removed for the new member; a present member is not.
                    let Some(gone) = self.members.iter().position(|member| member.seen + 1 < read) else { return };
                    self.members.swap_remove(gone);
                }
                self.members.push(Member { name: name.into(), last: [0; N], seen: read });
                self.members.len() - 1
            }
        };
        let Some(member) = self.members.get_mut(at) else { return };
        for ((total, last), now) in self.total.iter_mut().zip(&mut member.last).zip(now) {
            // A counter that went backwards has started again.
            *total = total.saturating_add(now.checked_sub(*last).unwrap_or(now));
            *last = now;
        }
        member.seen = read;
    }

    /// The sums; `None` until there was a member.
    pub(crate) fn total(&self) -> Option<[u64; N]> {
        (!self.members.is_empty()).then_some(self.total)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(carried: &mut Carried<1>, present: &[(&str, u64)]) -> Option<u64> {
        carried.begin();
        present.iter().for_each(|(name, count)| carried.add(name.as_bytes(), [*count]));
        carried.total().map(|[total]| total)
    }

    #[test]
    fn a_sum_never_falls_and_nothing_is_counted_twice() {
        let mut carried = Carried::new(3);
        for (present, total, why) in [
            (&[][..], None, "nothing has been counted"),
            (&[("a", 1000), ("b", 4000)][..], Some(5000), "what they counted before the first read"),
            (&[("a", 1100)], Some(5100), "one is gone, and its count stays"),
            (&[("a", 1100), ("b", 4010)], Some(5110), "it returned and continued to count"),
            (&[("a", 1100), ("b", 30)], Some(5140), "its counter started again"),
            (&[], Some(5140), "all are gone"),
            (&[("c", 1), ("d", 2)], Some(5143), "a new member replaces one that is gone"),
            (&[("c", 1), ("d", 2), ("e", 3)], Some(5146), "and another one replaces the other"),
            (&[("c", 1), ("d", 2), ("e", 3), ("f", 9)], Some(5146), "beyond the bound"),
        ] {
            assert_eq!(read(&mut carried, present), total, "{why}");
        }
        assert_eq!(carried.members.len(), 3);
    }
}
