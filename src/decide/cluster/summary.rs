//! One sentence about all nodes that do not fit a pod: how many nodes for each reason, and the nearest miss.

use super::filter::RefusedNode;
use crate::placement::{NearestMiss, RefusalReason};
use model::nvidia::MEMORY;
use model::request::MemoryRequest;
use std::fmt;

/// The reasons of all refused nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RefusalSummary {
    /// Number of nodes.
    pub nodes: usize,
    /// Each reason with the number of nodes and of GPUs, in the order of [`RefusalReason::ALL`].
    pub reasons: Vec<(RefusalReason, usize, usize)>,
    /// The nearest miss, with the name of its node.
    pub nearest: Option<(Box<str>, NearestMiss)>,
}

impl RefusalSummary {
    /// The summary of these nodes; `names` is the list of nodes in the call.
    #[must_use]
    pub fn of(refused: &[RefusedNode], names: &[&str]) -> RefusalSummary {
        let mut sums = [(0, 0); RefusalReason::ALL.len()];
        let mut nearest: Option<(usize, NearestMiss)> = None;
        for node in refused {
            for (reason, gpus) in node.why.reasons() {
                if let Some((nodes, all)) = sums.get_mut(reason as usize) {
                    *nodes += 1;
                    *all += if node.why.gpus == 0 || reason.is_of_node() { 0 } else { usize::from(gpus) };
                }
            }
            if let Some(miss) = node.why.nearest
                && nearest.is_none_or(|(_, other)| miss.is_nearer_than(other))
            {
                nearest = Some((node.place, miss));
            }
        }
        let reasons = RefusalReason::ALL.into_iter().zip(sums).filter(|(_, (nodes, _))| *nodes > 0);
        RefusalSummary {
            nodes: refused.len(),
            reasons: reasons.map(|(reason, (nodes, gpus))| (reason, nodes, gpus)).collect(),
            nearest: nearest.and_then(|(place, miss)| Some(((*names.get(place)?).into(), miss))),
        }
    }
}

impl fmt::Display for RefusalSummary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let many = |number: usize| if number == 1 { "" } else { "s" };
        write!(f, "{} node{} refused", self.nodes, many(self.nodes))?;
        for (number, (reason, nodes, gpus)) in self.reasons.iter().enumerate() {
            let (before, code) = (if number == 0 { ": " } else { ", " }, reason.text());
            match gpus {
                0 => write!(f, "{before}{code} on {nodes} node{}", many(*nodes))?,
                gpus => write!(f, "{before}{code} on {gpus} GPU{} of {nodes} node{}", many(*gpus), many(*nodes))?,
            }
        }
        match &self.nearest {
            Some((node, miss)) => write!(f, "; {}", NamedMiss(node, miss)),
            None => Ok(()),
        }
    }
}

/// A miss with the name of its node.
struct NamedMiss<'a>(&'a str, &'a NearestMiss);

impl fmt::Display for NamedMiss<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let NamedMiss(node, miss) = self;
        match miss {
            NearestMiss::Memory { asked, requested, free, really_free, total, index } => {
                let really_free = really_free.filter(|really| really < free).map(|really| really.0 >> 20);
                let (requested, free, total) = (requested.0.div_ceil(1 << 20), free.0 >> 20, total.0 >> 20);
                match asked {
                    Some(MemoryRequest::Amount(_)) => write!(f, "requests {requested} MiB")?,
                    Some(MemoryRequest::Percent(share)) => {
                        write!(f, "requests {share} % of the memory, {requested} MiB")?
                    }
                    None => write!(f, "requests all memory of a GPU, {requested} MiB, because it names no {MEMORY}")?,
                }
                match really_free {
                    None => write!(f, "; most free is {free} MiB on {node} GPU {index}")?,
                    Some(really) => write!(
                        f,
                        "; most free is {really} MiB on {node} GPU {index}: claims leave {free} MiB, but other memory is in use"
                    )?,
                }
                if requested > total { write!(f, ", which has {total} MiB in all") } else { Ok(()) }
            }
            NearestMiss::Cores { requested, free, index } => {
                write!(f, "requests {} % of SM time; most free is {} % on {node} GPU {index}", requested.0, free.0)
            }
            NearestMiss::Count { requested, fitting } => {
                write!(f, "requests {requested} GPUs; at most {fitting} fit together, on {node}")
            }
            NearestMiss::Devices { requested, there } => {
                write!(f, "requests {requested} GPUs of one node; the node with the most GPUs, {node}, has {there}")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::placement::NodeRefusal;
    use model::unit::{Bytes, Mib};

    fn refused(all: impl IntoIterator<Item = NodeRefusal>) -> Vec<RefusedNode> {
        all.into_iter().enumerate().map(|(place, why)| RefusedNode { place, why }).collect()
    }

    #[test]
    fn a_summary_counts_nodes_and_gpus_by_reason_and_names_the_nearest_miss() {
        let memory = |free: u64, index| {
            let mut why = NodeRefusal::of(2);
            why.count(RefusalReason::CardInsufficientMemory);
            why.count(RefusalReason::CardTimeSlicingExhausted);
            why.missed(miss(Some(MemoryRequest::Amount(Mib(8192))), 8192, free, index));
            why
        };
        let refused = refused([memory(4096, 1), memory(6144, 3), NodeRefusal::whole(RefusalReason::NodeUnregistered)]);
        let summary = RefusalSummary::of(&refused, &["node-1", "node-3", "node-4"]);
        assert_eq!(
            summary.to_string(),
            "3 nodes refused: CardTimeSlicingExhausted on 2 GPUs of 2 nodes, CardInsufficientMemory on 2 GPUs of 2 nodes, \
             NodeUnfitPod: NodeUnregistered on 1 node; requests 8192 MiB; most free is 6144 MiB on node-3 GPU 3"
        );
        assert_eq!(RefusalSummary::of(&[], &[]).to_string(), "0 nodes refused");
    }

    /// A GPU with 80 GiB.
    fn miss(asked: Option<MemoryRequest>, requested: u64, free: u64, index: u32) -> NearestMiss {
        let (requested, free) = (Bytes(requested << 20), Bytes(free << 20));
        NearestMiss::Memory { asked, requested, free, really_free: None, total: Bytes(80 << 30), index }
    }

    #[test]
    fn the_nearest_miss_speaks_the_units_of_the_request() {
        for (asked, requested, words) in [
            (Some(MemoryRequest::Amount(Mib(8192))), 8192, "requests 8192 MiB; most free is 6144 MiB on n GPU 3"),
            (
                Some(MemoryRequest::Amount(Mib(90_000))),
                90_000,
                "requests 90000 MiB; most free is 6144 MiB on n GPU 3, which has 81920 MiB in all",
            ),
            (
                Some(MemoryRequest::Percent(50)),
                40_960,
                "requests 50 % of the memory, 40960 MiB; most free is 6144 MiB on n GPU 3",
            ),
            (
                None,
                81_920,
                "requests all memory of a GPU, 81920 MiB, because it names no nvidia.com/gpumem; most free is 6144 MiB on n \
                 GPU 3",
            ),
        ] {
            let mut why = NodeRefusal::of(1);
            why.count(RefusalReason::CardInsufficientMemory);
            why.missed(miss(asked, requested, 6144, 3));
            let text = RefusalSummary::of(&refused([why]), &["n"]).to_string();
            assert_eq!(text, format!("1 node refused: CardInsufficientMemory on 1 GPU of 1 node; {words}"));
        }
    }

    #[test]
    fn the_nearest_miss_says_what_is_free_by_claims_and_what_really() {
        let text = |free: u64, really_free: u64| {
            let NearestMiss::Memory { asked, requested, total, index, .. } =
                miss(Some(MemoryRequest::Amount(Mib(8192))), 8192, 0, 3)
            else {
                panic!("it is memory")
            };
            let (free, really_free) = (Bytes(free << 20), Some(Bytes(really_free << 20)));
            let mut why = NodeRefusal::of(1);
            why.count(RefusalReason::CardInsufficientMemory);
            why.missed(NearestMiss::Memory { asked, requested, free, really_free, total, index });
            RefusalSummary::of(&refused([why]), &["n"]).to_string()
        };
        let begin = "1 node refused: CardInsufficientMemory on 1 GPU of 1 node; requests 8192 MiB; most free is ";
        let words = "2048 MiB on n GPU 3: claims leave 10240 MiB, but other memory is in use";
        assert_eq!(text(10_240, 2048), format!("{begin}{words}"));
        assert_eq!(text(4096, 4096), format!("{begin}4096 MiB on n GPU 3"));
    }

    #[test]
    fn a_reason_of_the_node_counts_no_gpu() {
        let mut few = NodeRefusal::of(2);
        few.count(RefusalReason::NodeInsufficientDevice);
        few.missed(NearestMiss::Devices { requested: 4, there: 2 });
        let text = RefusalSummary::of(&refused([few.clone()]), &["n"]).to_string();
        let words = "requests 4 GPUs of one node; the node with the most GPUs, n, has 2";
        assert_eq!(text, format!("1 node refused: NodeInsufficientDevice on 1 node; {words}"));
        // Missing memory may become free, so the summary names it rather than GPUs that do not exist.
        let mut full = NodeRefusal::of(4);
        full.count(RefusalReason::CardInsufficientMemory);
        full.missed(miss(None, 81_920, 0, 1));
        let text = RefusalSummary::of(&refused([few, full]), &["n", "m"]).to_string();
        assert!(text.ends_with("most free is 0 MiB on m GPU 1"), "{text}");
    }
}
