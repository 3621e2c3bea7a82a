//! What a diagnosis says: findings, each with its evidence and what to do, and the verdict over all of them.

use serde::Serialize;
use serve::exit::Exit;

/// Maximum lines of evidence of one finding; a person reads no more. Further lines are only counted.
pub(crate) const MAX_EVIDENCE: usize = 20;

/// How a finding counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Verdict {
    /// All is well.
    Well,
    /// Something to know that changes no verdict.
    Note,
    /// Something could not be looked at, so the answer is not complete.
    Unknown,
    /// Something is wrong.
    Wrong,
}

impl Verdict {
    /// The verdict's place in a report.
    fn place(self) -> u8 {
        match self {
            Verdict::Wrong => 0,
            Verdict::Unknown => 1,
            Verdict::Well => 2,
            Verdict::Note => 3,
        }
    }

    /// The word before a finding.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Verdict::Well => "ok",
            Verdict::Note => "note",
            Verdict::Unknown => "unknown",
            Verdict::Wrong => "wrong",
        }
    }
}

/// One finding.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Finding {
    /// A stable word in CamelCase. For a refusal it is the reason code of the event.
    pub(crate) code: &'static str,
    pub(crate) verdict: Verdict,
    /// A sentence.
    pub(crate) what: String,
    /// The facts that show the finding.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) evidence: Vec<String>,
    /// What to do, one step in each line.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) advice: Vec<String>,
}

impl Finding {
    pub(crate) fn new(verdict: Verdict, code: &'static str, what: impl Into<String>) -> Finding {
        Finding { code, verdict, what: what.into(), evidence: Vec::new(), advice: Vec::new() }
    }

    pub(crate) fn wrong(code: &'static str, what: impl Into<String>) -> Finding {
        Finding::new(Verdict::Wrong, code, what)
    }

    pub(crate) fn well(code: &'static str, what: impl Into<String>) -> Finding {
        Finding::new(Verdict::Well, code, what)
    }

    pub(crate) fn note(code: &'static str, what: impl Into<String>) -> Finding {
        Finding::new(Verdict::Note, code, what)
    }

    pub(crate) fn unknown(code: &'static str, what: impl Into<String>) -> Finding {
        Finding::new(Verdict::Unknown, code, what)
    }

    /// The finding with this evidence, up to [`MAX_EVIDENCE`] lines.
    pub(crate) fn because(mut self, evidence: impl IntoIterator<Item = String>) -> Finding {
        let mut evidence = evidence.into_iter();
        self.evidence.extend(evidence.by_ref().take(MAX_EVIDENCE));
        let more = evidence.count();
        if more > 0 {
            self.evidence.push(format!("and {more} more"));
        }
        self
    }

    /// The finding with these steps.
    pub(crate) fn advise<S: Into<String>>(mut self, steps: impl IntoIterator<Item = S>) -> Finding {
        self.advice.extend(steps.into_iter().map(Into::into));
        self
    }
}

/// Something that could not be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what}: {why}")]
pub(crate) struct Unread {
    /// What was to be read.
    pub(crate) what: String,
    /// Why the read failed. A refusal of the API server names the right that is missing.
    pub(crate) why: String,
}

impl Unread {
    pub(crate) fn new(what: impl Into<String>, why: impl ToString) -> Unread {
        Unread { what: what.into(), why: why.to_string() }
    }
}

/// Something that was looked at, or the reason why this failed.
pub(crate) type Seen<T> = Result<T, Unread>;

/// Findings about one thing.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Report<R = ()> {
    /// `doctor pod`, `doctor nodes`, …
    pub(crate) command: &'static str,
    /// What the report is about: `pod ml/train-0`.
    pub(crate) about: String,
    pub(crate) verdict: Verdict,
    pub(crate) findings: Vec<Finding>,
    /// The rows of a table.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) rows: Vec<R>,
}

impl<R> Report<R> {
    /// Sorts findings: wrong first, then unknown, well, and notes. Otherwise findings keep their order.
    pub(crate) fn new(
        command: &'static str,
        about: impl Into<String>,
        mut findings: Vec<Finding>,
        rows: Vec<R>,
    ) -> Report<R> {
        findings.sort_by_key(|finding| finding.verdict.place());
        let worst = findings.iter().map(|finding| finding.verdict).max().unwrap_or(Verdict::Well);
        let verdict = if worst == Verdict::Note { Verdict::Well } else { worst };
        Report { command, about: about.into(), verdict, findings, rows }
    }

    /// 0 if all is well, 1 if something is wrong, 2 if that could not be found out.
    pub(crate) fn exit(&self) -> Exit {
        match self.verdict {
            Verdict::Well | Verdict::Note => Exit::Ok,
            Verdict::Wrong => Exit::Failure,
            Verdict::Unknown => Exit::NotSeen,
        }
    }

    /// The steps of all findings, each once, the steps of the worst findings first.
    pub(crate) fn steps(&self) -> Vec<&str> {
        let mut steps: Vec<&str> = Vec::new();
        for step in self.findings.iter().flat_map(|finding| &finding.advice) {
            if !steps.contains(&step.as_str()) {
                steps.push(step);
            }
        }
        steps
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exit(findings: Vec<Finding>) -> u8 {
        Report::<()>::new("doctor", "x", findings, Vec::new()).exit().code()
    }

    #[test]
    fn the_worst_finding_decides_the_exit_code() {
        let (well, note) = (Finding::well("A", "a"), Finding::note("B", "b"));
        let (unknown, wrong) = (Finding::unknown("C", "c"), Finding::wrong("D", "d"));
        assert_eq!(exit(vec![]), 0);
        assert_eq!(exit(vec![well.clone(), note.clone()]), 0);
        assert_eq!(exit(vec![note.clone(), unknown.clone()]), 2);
        assert_eq!(exit(vec![unknown.clone(), wrong.clone(), well.clone()]), 1);
        let report = Report::<()>::new("doctor", "x", vec![well, note, unknown, wrong], Vec::new());
        assert_eq!(report.findings.iter().map(|finding| finding.code).collect::<String>(), "DCAB");
    }

    #[test]
    fn evidence_is_bounded_and_each_step_is_named_once() {
        let lines = (0..MAX_EVIDENCE + 3).map(|n| n.to_string());
        let first = Finding::note("A", "a").because(lines).advise(["one", "two"]);
        assert_eq!((first.evidence.len(), &**first.evidence.last().unwrap()), (MAX_EVIDENCE + 1, "and 3 more"));
        let second = Finding::wrong("B", "b").advise(["three", "one"]);
        let report = Report::<()>::new("doctor", "x", vec![first, second], Vec::new());
        assert_eq!(report.steps(), ["three", "one", "two"]);
    }
}
