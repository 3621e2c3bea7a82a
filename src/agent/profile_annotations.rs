//! What the agent's Node is to show of the load of its GPUs (`--profile-annotations`), compared with what it shows.
//!
//! ```text
//!   view, profiles ──decide::node_profile──▶ wanted texts ─┐
//!   annotations of the Node ───────────────────────────────┴─▶ the annotations that differ, and how much
//! ```
//!
//! `decide::announce` decides when they are written. Without profiles or with `--profile-annotations=off` all annotations that an
//! agent wrote are removed. Those of other programs stay; one under a key of the agent is overwritten.
//!
//! What must never happen here: an annotation of an earlier agent is removed because this one has not seen enough yet.

use apiserver::writes::ANNOTATOR;
use decide::node_profile::{self, ProfileDifference};
use decide::profile_writes::ProfileAge;
use model::node_profile::NodeProfile;
use model::time::{Monotonic, Now};
use model::view::NodeView;
use model::workload_profile::WorkloadProfiles;
use std::collections::BTreeMap;
use std::sync::Arc;
use tokio::sync::watch;
use wire::alnair::{self, LiteralForm};
use wire::decode_error::DecodeError;
use wire::gpu_profile;
use wire::node::NodeObject;
use wire::profile_keys::ProfileKey;

/// What the Node is to show.
#[derive(Debug)]
pub(super) struct ProfileAnnotations {
    /// The form of Alnair's annotations; `None`: the Node shows nothing.
    form: Option<LiteralForm>,
    /// The newest profiles; `None` if there are none.
    profiles: Option<watch::Receiver<Arc<WorkloadProfiles>>>,
    /// When the agent started.
    started: Monotonic,
}

/// The annotations that differ.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct ProfileChanges {
    /// The largest difference.
    pub difference: ProfileDifference,
    /// The keys with their values; a key without a value is removed.
    pub changes: Vec<(String, Option<String>)>,
}

/// The keys on this Node that an agent wrote about the load of its GPUs.
pub(super) fn ours(node: &NodeObject) -> impl Iterator<Item = ProfileKey> {
    let keys = node.annotations().filter_map(|(key, _)| Some((key, ProfileKey::parse(key)?)));
    keys.filter(move |(key, _)| node.annotated_by(key, ANNOTATOR)).map(|(_, key)| key)
}

impl ProfileAnnotations {
    /// For an agent that starts now.
    pub(super) fn new(
        form: Option<LiteralForm>,
        profiles: Option<watch::Receiver<Arc<WorkloadProfiles>>>,
        started: Monotonic,
    ) -> ProfileAnnotations {
        ProfileAnnotations { form, profiles, started }
    }

    /// The annotations of the Node that differ from what is known now.
    pub(super) fn changes(&self, view: &NodeView, seen: &NodeObject, now: Now) -> ProfileChanges {
        let mut found = ProfileChanges::default();
        let (Some(form), Some(profiles)) = (self.form, &self.profiles) else {
            ours(seen).for_each(|key| found.add(key, ProfileDifference::Changed, None));
            return found;
        };
        let age = ProfileAge::at(self.started, now.monotonic);
        let waits = !age.knows_jobs() && ours(seen).any(|key| key != ProfileKey::Static);
        // Without a GPU it is not known whether the node has one. If it has lost its last one, everything is removed together.
        if waits || view.gpus.is_empty() {
            return found;
        }
        let profiles = Arc::clone(&profiles.borrow());
        let wanted = texts(&node_profile::describe(view, &profiles, now), form);
        let gone = ours(seen).filter(|key| !wanted.contains_key(key) && may_go(*key, age));
        gone.for_each(|key| found.add(key, ProfileDifference::Changed, None));
        for (key, text) in wanted {
            let difference = match seen.annotation(&key.text()) {
                None => ProfileDifference::Changed,
                Some(shown) if shown == text => ProfileDifference::None,
                Some(shown) if !age.knows_verdicts() && loses_a_verdict(key, shown, &text) => ProfileDifference::None,
                Some(shown) => difference(key, shown, &text),
            };
            found.add(key, difference, Some(text));
        }
        found
    }
}

impl ProfileChanges {
    fn add(&mut self, key: ProfileKey, difference: ProfileDifference, value: Option<String>) {
        if difference != ProfileDifference::None {
            self.difference = self.difference.max(difference);
            self.changes.push((key.text(), value));
        }
    }
}

/// Whether a key that the agent has no value for is removed.
fn may_go(key: ProfileKey, age: ProfileAge) -> bool {
    match key {
        ProfileKey::Profile(_) => age.knows_verdicts(),
        ProfileKey::Static | ProfileKey::Snapshot(_) | ProfileKey::Job(_) | ProfileKey::CyclicMaximum(_) => true,
    }
}

/// The annotations of these profiles.
fn texts(node: &NodeProfile, form: LiteralForm) -> BTreeMap<ProfileKey, String> {
    let mut texts = BTreeMap::new();
    texts.extend(node.facts.as_ref().map(|facts| (ProfileKey::Static, alnair::encode_static(facts, form))));
    for gpu in &node.gpus {
        let index = gpu.index;
        let snapshot = gpu.snapshot.as_ref().map(|snapshot| alnair::encode_snapshot(snapshot, form));
        texts.extend(snapshot.map(|text| (ProfileKey::Snapshot(index), text)));
        texts.extend(gpu.job.map(|job| (ProfileKey::Job(index), job.code().to_owned())));
        let maximum = gpu.cyclic_maximum().map(alnair::encode_maximum);
        texts.extend(maximum.map(|text| (ProfileKey::CyclicMaximum(index), text)));
        texts.extend(gpu.profile.as_ref().map(|profile| (ProfileKey::Profile(index), gpu_profile::encode(profile))));
    }
    texts
}

/// How much two different texts of one annotation differ. Both are read: a text can say less than what was known.
fn difference(key: ProfileKey, shown: &str, wanted: &str) -> ProfileDifference {
    match key {
        ProfileKey::Static => {
            of_literals(alnair::decode_static(shown), alnair::decode_static(wanted), node_profile::facts_differ)
        }
        ProfileKey::Snapshot(_) => {
            let read = (alnair::decode_snapshot(shown), alnair::decode_snapshot(wanted));
            of_literals(read.0, read.1, node_profile::snapshot_differs)
        }
        ProfileKey::Job(_) => ProfileDifference::Changed,
        ProfileKey::CyclicMaximum(_) => match (alnair::decode_maximum(shown), alnair::decode_maximum(wanted)) {
            (Some(shown), Some(wanted)) => node_profile::maximum_differs(shown, wanted),
            _ => ProfileDifference::Changed,
        },
        ProfileKey::Profile(_) => match (gpu_profile::decode(shown), gpu_profile::decode(wanted)) {
            (Ok(shown), Ok(wanted)) => node_profile::profile_differs(&shown, &wanted),
            _ => ProfileDifference::Changed,
        },
    }
}

type ReadLiteral<T> = Result<(T, LiteralForm), DecodeError>;

fn of_literals<T>(
    shown: ReadLiteral<T>,
    wanted: ReadLiteral<T>,
    compare: impl FnOnce(&T, &T) -> ProfileDifference,
) -> ProfileDifference {
    match (shown, wanted) {
        (Ok((shown, one)), Ok((wanted, other))) if one == other => compare(&shown, &wanted),
        _ => ProfileDifference::Changed,
    }
}

/// Whether the wanted profile lacks a verdict that is shown.
fn loses_a_verdict(key: ProfileKey, shown: &str, wanted: &str) -> bool {
    let both = || Some((gpu_profile::decode(shown).ok()?, gpu_profile::decode(wanted).ok()?));
    matches!(key, ProfileKey::Profile(_))
        && both().is_some_and(|(shown, wanted)| !node_profile::covers(&wanted, &shown))
}

#[cfg(test)]
mod tests;
