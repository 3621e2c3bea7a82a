//! The real-time check of memory: whether it is made for a pod on a node, and what follows if it fails.
//!
//! ```text
//!   agent: variables  ──▶ NodeCheck ──┐
//!   extender: flags   ──▶ CheckRules ─┼──▶ the check for this pod on this node: strict, warning, or none
//!   pod: annotation   ──▶ bool ───────┘
//! ```

use crate::unit::Bytes;

/// What follows if the memory that is really free does not suffice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum CheckMode {
    /// The GPU is refused.
    #[default]
    Strict,
    /// The GPU is used only if no other GPU fits.
    Warning,
    /// Nothing is checked.
    Disabled,
}

impl CheckMode {
    /// Every mode.
    pub const ALL: [CheckMode; 3] = [CheckMode::Strict, CheckMode::Warning, CheckMode::Disabled];

    /// The word in settings, variables and reports.
    #[must_use]
    pub fn code(self) -> &'static str {
        match self {
            CheckMode::Strict => "strict",
            CheckMode::Warning => "warning",
            CheckMode::Disabled => "disabled",
        }
    }

    /// The mode of this word.
    #[must_use]
    pub fn parse(word: &str) -> Option<CheckMode> {
        CheckMode::ALL.into_iter().find(|mode| mode.code() == word)
    }
}

/// What an agent says about the check on its node; `None` if its settings say nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NodeCheck {
    /// Whether the check is made. `false` counts for every pod.
    pub enabled: Option<bool>,
    /// The mode on this node.
    pub mode: Option<CheckMode>,
}

/// The extender's settings of the check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CheckRules {
    /// Whether pods without the annotation are checked.
    pub enabled: bool,
    /// The mode on nodes whose agents name none.
    pub mode: CheckMode,
    /// If strangers use at most this much memory, it does not count. If they use more, this amount counts in addition.
    pub margin: Bytes,
    /// Whether a pod can only switch the check on, and not off.
    pub only_on: bool,
}

impl Default for CheckRules {
    fn default() -> Self {
        CheckRules { enabled: true, mode: CheckMode::Strict, margin: Bytes(100 << 20), only_on: false }
    }
}

impl CheckRules {
    /// How a pod is checked on a node; `None` if it is not checked. `pod` is the pod's own wish.
    #[must_use]
    pub fn mode(&self, node: NodeCheck, pod: Option<bool>) -> Option<CheckMode> {
        let off = node.enabled == Some(false) || self.mode == CheckMode::Disabled;
        let wish = pod.filter(|on| *on || !self.only_on);
        let mode = node.mode.unwrap_or(self.mode);
        (!off && wish.unwrap_or(self.enabled)).then_some(mode).filter(|mode| *mode != CheckMode::Disabled)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_decides_whether_a_pod_is_checked() {
        use CheckMode::{Disabled, Strict, Warning};
        let rules = CheckRules::default();
        let off = CheckRules { enabled: false, ..rules };
        let node = |enabled, mode| NodeCheck { enabled, mode };
        let silent = NodeCheck::default();
        for (rules, node, pod, expected) in [
            (rules, silent, None, Some(Strict)),
            (rules, silent, Some(false), None),
            (off, silent, None, None),
            (off, silent, Some(true), Some(Strict)),
            (rules, node(None, Some(Warning)), None, Some(Warning)),
            (rules, node(Some(true), None), Some(false), None),
            // These are final.
            (rules, node(Some(false), None), Some(true), None),
            (rules, node(None, Some(Disabled)), Some(true), None),
            (CheckRules { mode: Disabled, ..rules }, node(Some(true), Some(Strict)), Some(true), None),
            // An agent that switches the check on does not overrule the extender.
            (off, node(Some(true), Some(Strict)), None, None),
            (CheckRules { only_on: true, ..rules }, silent, Some(false), Some(Strict)),
            (CheckRules { only_on: true, ..off }, silent, Some(true), Some(Strict)),
        ] {
            assert_eq!(rules.mode(node, pod), expected, "{rules:?} {node:?} {pod:?}");
        }
    }

    #[test]
    fn each_mode_has_a_word() {
        for mode in CheckMode::ALL {
            assert_eq!(CheckMode::parse(mode.code()), Some(mode));
        }
        assert_eq!(CheckMode::parse("Strict"), None);
    }
}
