//! Which labels the agent writes on its own Node: labels about its GPUs, unless GPU feature discovery writes them.
//!
//! What must never happen here: the agent removes a label that another program wrote, or two programs overwrite each
//! other's value again and again.

use std::collections::BTreeMap;

/// Whether the agent writes labels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Labelling {
    /// Unless another program writes them.
    Auto,
    /// Always, even if another program writes them.
    On,
    /// Never; labels that the agent wrote earlier are removed.
    Off,
}

/// A label on the Node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PresentLabel {
    /// The label's value.
    pub value: String,
    /// Whether this agent wrote the label.
    pub ours: bool,
    /// Whether another program wrote the label. If both wrote the same value, `ours` is true too.
    pub others: bool,
}

/// The changes to write; a label without a value is removed. Empty if nothing changes.
///
/// `desired` is `None` while the agent does not know the node's GPUs. `present` has the labels on the Node that the
/// agent may write. `discovery` says whether the Node has a mark of GPU feature discovery. Other programs write the
/// label `presence` too, so it is no sign of feature discovery.
#[must_use]
pub fn due<'k>(
    labelling: Labelling,
    desired: Option<&BTreeMap<&'k str, String>>,
    present: &BTreeMap<&'k str, PresentLabel>,
    (discovery, presence): (bool, &str),
) -> BTreeMap<&'k str, Option<String>> {
    let foreign = |(key, label): (&&str, &PresentLabel)| **key != *presence && label.others && !label.ours;
    let others_write = discovery || present.iter().any(foreign);
    let write = match labelling {
        Labelling::On => true,
        Labelling::Off => false,
        Labelling::Auto => !others_write,
    };
    let none = BTreeMap::new();
    let desired = match (write, desired) {
        (true, None) => return BTreeMap::new(),
        (true, Some(desired)) => desired,
        (false, _) => &none,
    };
    let mut due = BTreeMap::new();
    for (key, value) in desired {
        let label = present.get(key);
        let theirs = labelling == Labelling::Auto && label.is_some_and(|label| label.others && !label.ours);
        if !theirs && label.is_none_or(|label| label.value != *value) {
            due.insert(*key, Some(value.clone()));
        }
    }
    for (key, label) in present {
        if label.ours && !label.others && !desired.contains_key(key) {
            due.insert(*key, None);
        }
    }
    due
}

#[cfg(test)]
mod tests {
    use super::*;

    type Due = BTreeMap<&'static str, Option<String>>;

    fn desired() -> BTreeMap<&'static str, String> {
        [("count", "2".to_owned()), ("present", "true".to_owned())].into()
    }

    fn label(value: &str, ours: bool, others: bool) -> PresentLabel {
        PresentLabel { value: value.into(), ours, others }
    }

    fn due_for(labelling: Labelling, present: &[(&'static str, PresentLabel)], discovery: bool) -> Due {
        due(labelling, Some(&desired()), &present.iter().cloned().collect(), (discovery, "present"))
    }

    fn all() -> Due {
        desired().into_iter().map(|(key, value)| (key, Some(value))).collect()
    }

    #[test]
    fn labels_are_written_when_they_change_and_only_then() {
        for labelling in [Labelling::Auto, Labelling::On] {
            assert_eq!(due_for(labelling, &[], false), all());
            let both = [("count", label("2", true, false)), ("present", label("true", true, false))];
            assert_eq!(due_for(labelling, &both, false), Due::new());
            let old = [("count", label("1", true, false)), both[1].clone(), ("gone", label("x", true, false))];
            let expected: Due = [("count", Some("2".into())), ("gone", None)].into();
            assert_eq!(due_for(labelling, &old, false), expected);
        }
        assert_eq!(
            due(Labelling::On, None, &BTreeMap::new(), (false, "present")),
            Due::new(),
            "unknown labels are not removed"
        );
    }

    #[test]
    fn if_another_program_labels_the_node_only_our_labels_are_removed() {
        let shared = [("count", label("2", true, true)), ("gone", label("x", true, false))];
        assert_eq!(due_for(Labelling::Auto, &shared, true), [("gone", None)].into());
        let theirs = [("count", label("8", false, true))];
        assert_eq!(due_for(Labelling::Auto, &theirs, false), Due::new());
        assert_eq!(due_for(Labelling::On, &theirs, true), all(), "the operator has switched labels on");
        assert_eq!(due_for(Labelling::Off, &theirs, false), Due::new());
        let ours = [("count", label("2", true, false))];
        assert_eq!(due_for(Labelling::Off, &ours, false), [("count", None)].into());
    }

    #[test]
    fn the_presence_label_of_the_gpu_operator_does_not_count_as_feature_discovery() {
        let marked = [("present", label("false", false, true))];
        assert_eq!(
            due_for(Labelling::Auto, &marked, false),
            [("count", Some("2".into()))].into(),
            "the label of the other program stays"
        );
    }
}
