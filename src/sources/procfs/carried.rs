//! Sums of counters over members that come and go: a sum never falls because a member went away.
//!
//! The counts of a disk or interface that is removed stay in the sum. Its last counters are kept, so that one that
//! comes back unchanged (an interface that was lent to a container) is not counted twice; one that comes back with
//! lower counters has started again.

/// Counters of `N` kinds, summed over members.
#[derive(Clone, Debug)]
pub(crate) struct Carried<const N: usize> {
    members: Vec<Member<N>>,
    total: [u64; N],
    look: u64,
    bound: usize,
}

#[derive(Clone, Debug)]
struct Member<const N: usize> {
    name: Box<[u8]>,
    last: [u64; N],
    /// The last read in which it was present.
    seen: u64,
}

impl<const N: usize> Carried<N> {
    /// A sum without members. At most `bound` members are kept apart, including those that are gone.
    pub(crate) fn new(bound: usize) -> Self {
        Carried { members: Vec::new(), total: [0; N], look: 0, bound }
    }

    /// Begins a read of all members that are present now.
    pub(crate) fn begin(&mut self) {
        self.look += 1;
    }

    /// Adds a member that is present.
    pub(crate) fn add(&mut self, name: &[u8], now: [u64; N]) {
        let look = self.look;
        let at = match self.members.iter().position(|member| *member.name == *name) {
            Some(at) => at,
            None => {
                if self.members.len() >= self.bound {
                    // A member that is gone makes room for the new one; a present member does not.
                    let Some(gone) = self.members.iter().position(|member| member.seen + 1 < look) else { return };
                    self.members.swap_remove(gone);
                }
                self.members.push(Member { name: name.into(), last: [0; N], seen: look });
                self.members.len() - 1
            }
        };
        let Some(member) = self.members.get_mut(at) else { return };
        for ((total, last), now) in self.total.iter_mut().zip(&mut member.last).zip(now) {
            // A counter that went backwards has started again.
            *total = total.saturating_add(now.checked_sub(*last).unwrap_or(now));
            *last = now;
        }
        member.seen = look;
    }

    /// The sums; `None` while there was never a member.
    pub(crate) fn total(&self) -> Option<[u64; N]> {
        (!self.members.is_empty()).then_some(self.total)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn look(carried: &mut Carried<1>, there: &[(&str, u64)]) -> Option<u64> {
        carried.begin();
        there.iter().for_each(|(name, count)| carried.add(name.as_bytes(), [*count]));
        carried.total().map(|[total]| total)
    }

    #[test]
    fn a_sum_never_falls_and_nothing_is_counted_twice() {
        let mut carried = Carried::new(3);
        for (there, total, why) in [
            (&[][..], None, "nobody has counted anything"),
            (&[("a", 1000), ("b", 4000)][..], Some(5000), "what they counted before the first look"),
            (&[("a", 1100)], Some(5100), "one is gone, and what it counted stays"),
            (&[("a", 1100), ("b", 4010)], Some(5110), "it was away and has counted on"),
            (&[("a", 1100), ("b", 30)], Some(5140), "it began again"),
            (&[], Some(5140), "all are gone"),
            (&[("c", 1), ("d", 2)], Some(5143), "one of those that are gone makes room"),
            (&[("c", 1), ("d", 2), ("e", 3)], Some(5146), "and so does the other"),
            (&[("c", 1), ("d", 2), ("e", 3), ("f", 9)], Some(5146), "beyond the bound"),
        ] {
            assert_eq!(look(&mut carried, there), total, "{why}");
        }
        assert_eq!(carried.members.len(), 3);
    }
}
