//! Which program puts GPUs into containers: the agent with its CDI edits, or NVIDIA's runtime, which reads
//! `NVIDIA_VISIBLE_DEVICES`.

/// How devices get into containers, as the operator sets it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceStrategy {
    /// The agent reads it from the container runtime.
    Auto,
    /// The agent uses CDI.
    Cdi,
    /// NVIDIA's runtime reads `NVIDIA_VISIBLE_DEVICES`.
    Envvar,
}

/// What is known of the container runtime, answer by answer.
#[derive(Clone, Debug)]
pub struct DeviceInjection {
    strategy: DeviceStrategy,
    last: Option<Result<bool, String>>,
}

impl DeviceInjection {
    /// Before the first answer.
    #[must_use]
    pub fn new(strategy: DeviceStrategy) -> DeviceInjection {
        DeviceInjection { strategy, last: None }
    }

    /// How devices get into containers, as the operator sets it.
    #[must_use]
    pub fn strategy(&self) -> DeviceStrategy {
        self.strategy
    }

    /// Whether the answer of the runtime counts.
    #[must_use]
    pub fn asks_the_runtime(&self) -> bool {
        self.strategy == DeviceStrategy::Auto
    }

    /// Takes in whether NVIDIA's runtime is the default handler of the container runtime: `Err` if the container
    /// runtime did not answer, `None` if there was no request. Returns whether NVIDIA's runtime puts devices into
    /// containers, if that has changed. While the container runtime does not answer, its last answer holds.
    pub fn answered(&mut self, answer: Result<Option<bool>, String>) -> Option<bool> {
        let injects = answer.map(|injects| injects.unwrap_or(self.strategy == DeviceStrategy::Envvar));
        if self.last.as_ref() == Some(&injects) || (self.last.is_some() && injects.is_err()) {
            return None;
        }
        let injected = *injects.as_ref().unwrap_or(&false);
        self.last = Some(injects);
        Some(injected)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fixed_strategy_ignores_the_runtime() {
        for (strategy, injects) in [(DeviceStrategy::Cdi, false), (DeviceStrategy::Envvar, true)] {
            let mut injection = DeviceInjection::new(strategy);
            assert!(!injection.asks_the_runtime());
            assert_eq!((injection.answered(Ok(None)), injection.answered(Ok(None))), (Some(injects), None));
        }
    }

    #[test]
    fn the_last_answer_holds_while_the_runtime_does_not_answer() {
        let mut injection = DeviceInjection::new(DeviceStrategy::Auto);
        assert!(injection.asks_the_runtime());
        let unanswered = || Err("no socket".to_owned());
        assert_eq!(
            injection.answered(unanswered()),
            Some(false),
            "the agent's edits, as long as nothing else is known"
        );
        assert_eq!(injection.answered(unanswered()), None);
        assert_eq!(injection.answered(Ok(Some(true))), Some(true));
        assert_eq!((injection.answered(unanswered()), injection.answered(Ok(Some(true)))), (None, None));
        assert_eq!(injection.answered(Ok(Some(false))), Some(false));
    }
}
