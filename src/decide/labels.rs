//! Which labels of our own Node to write: those that describe its GPUs, unless GPU feature discovery does.
//!
//! What must never happen here: a label that another program wrote is taken away, or written to and fro with it.

use std::collections::BTreeMap;

/// Whether labels are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Labelling {
    /// Unless somebody else writes them.
    Auto,
    /// Whoever else writes them.
    On,
    /// Not at all; those of an earlier life are taken away.
    Off,
}

/// A label that stands on the Node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PresentLabel {
    /// Its value.
    pub value: String,
    /// Whether we wrote it.
    pub ours: bool,
    /// Whether somebody else did; both where two wrote the same.
    pub others: bool,
}

/// What to write: a label without a value is taken away. Empty where nothing has to change.
///
/// `wanted` is `None` while it is not known what the node has; `standing` holds those of the labels that we might write and
/// that stand there; `discovery` is whether GPU feature discovery has left its mark. `presence` is a label that others write for
/// reasons of their own, which does not make them a discovery.
#[must_use]
pub fn due<'k>(
    labelling: Labelling,
    wanted: Option<&BTreeMap<&'k str, String>>,
    standing: &BTreeMap<&'k str, PresentLabel>,
    (discovery, presence): (bool, &str),
) -> BTreeMap<&'k str, Option<String>> {
    let foreign = |(key, label): (&&str, &PresentLabel)| **key != *presence && label.others && !label.ours;
    let give_way = discovery || standing.iter().any(foreign);
    let write = match labelling {
        Labelling::On => true,
        Labelling::Off => false,
        Labelling::Auto => !give_way,
    };
    let none = BTreeMap::new();
    let wanted = match (write, wanted) {
        (true, None) => return BTreeMap::new(),
        (true, Some(wanted)) => wanted,
        (false, _) => &none,
    };
    let mut due = BTreeMap::new();
    for (key, value) in wanted {
        let label = standing.get(key);
        let theirs = labelling == Labelling::Auto && label.is_some_and(|label| label.others && !label.ours);
        if !theirs && label.is_none_or(|label| label.value != *value) {
            due.insert(*key, Some(value.clone()));
        }
    }
    for (key, label) in standing {
        if label.ours && !label.others && !wanted.contains_key(key) {
            due.insert(*key, None);
        }
    }
    due
}

#[cfg(test)]
mod tests {
    use super::*;

    type Due = BTreeMap<&'static str, Option<String>>;

    fn wanted() -> BTreeMap<&'static str, String> {
        [("count", "2".to_owned()), ("present", "true".to_owned())].into()
    }

    fn label(value: &str, ours: bool, others: bool) -> PresentLabel {
        PresentLabel { value: value.into(), ours, others }
    }

    fn due_for(labelling: Labelling, standing: &[(&'static str, PresentLabel)], discovery: bool) -> Due {
        due(labelling, Some(&wanted()), &standing.iter().cloned().collect(), (discovery, "present"))
    }

    fn all() -> Due {
        wanted().into_iter().map(|(key, value)| (key, Some(value))).collect()
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
            "not known is not nothing"
        );
    }

    #[test]
    fn where_somebody_else_labels_we_take_ours_away_and_leave_theirs() {
        let shared = [("count", label("2", true, true)), ("gone", label("x", true, false))];
        assert_eq!(due_for(Labelling::Auto, &shared, true), [("gone", None)].into());
        let theirs = [("count", label("8", false, true))];
        assert_eq!(due_for(Labelling::Auto, &theirs, false), Due::new());
        assert_eq!(due_for(Labelling::On, &theirs, true), all(), "because somebody said so");
        assert_eq!(due_for(Labelling::Off, &theirs, false), Due::new());
        let ours = [("count", label("2", true, false))];
        assert_eq!(due_for(Labelling::Off, &ours, false), [("count", None)].into());
    }

    #[test]
    fn the_mark_of_the_operator_is_no_discovery() {
        let marked = [("present", label("false", false, true))];
        assert_eq!(
            due_for(Labelling::Auto, &marked, false),
            [("count", Some("2".into()))].into(),
            "and it is left alone"
        );
    }
}
