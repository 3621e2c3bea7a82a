//! One sentence about all nodes that do not fit a pod: how many nodes for each reason, and the nearest miss.

use super::filter::RefusedNode;
use crate::placement::{NearestMiss, RefusalReason};
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
                    // A reason of the node as a whole is counted once and names no GPU.
                    *all += if node.why.gpus == 0 { 0 } else { usize::from(gpus) };
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
            let (before, code) = (if number == 0 { ": " } else { ", " }, reason.code());
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
            NearestMiss::Memory { requested, free, index } => {
                let (requested, free) = (requested.0.div_ceil(1 << 20), free.0 >> 20);
                write!(f, "requests {requested} MiB; most free is {free} MiB on {node} GPU {index}")
            }
            NearestMiss::Cores { requested, free, index } => {
                write!(f, "requests {} % of SM time; most free is {} % on {node} GPU {index}", requested.0, free.0)
            }
            NearestMiss::Count { requested, fitting } => {
                write!(f, "requests {requested} GPUs; at most {fitting} fit together, on {node}")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::placement::NodeRefusal;
    use model::unit::Bytes;

    #[test]
    fn a_summary_counts_nodes_and_gpus_by_reason_and_names_the_nearest_miss() {
        let memory = |free: u64, index| {
            let mut why = NodeRefusal::of(2);
            why.count(RefusalReason::CardInsufficientMemory);
            why.count(RefusalReason::CardTimeSlicingExhausted);
            why.missed(NearestMiss::Memory { requested: Bytes(8192 << 20), free: Bytes(free << 20), index });
            why
        };
        let refused = [memory(4096, 1), memory(6144, 3), NodeRefusal::whole(RefusalReason::NodeUnregistered)];
        let refused: Vec<RefusedNode> =
            refused.into_iter().enumerate().map(|(place, why)| RefusedNode { place, why }).collect();
        let summary = RefusalSummary::of(&refused, &["node-1", "node-3", "node-4"]);
        assert_eq!(
            summary.to_string(),
            "3 nodes refused: CardTimeSlicingExhausted on 2 GPUs of 2 nodes, CardInsufficientMemory on 2 GPUs of 2 nodes, \
             NodeUnregistered on 1 node; requests 8192 MiB; most free is 6144 MiB on node-3 GPU 3"
        );
        assert_eq!(RefusalSummary::of(&[], &[]).to_string(), "0 nodes refused");
    }
}
