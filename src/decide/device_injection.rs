//! Which program puts GPUs into containers: the agent with its CDI edits, or NVIDIA's runtime, which reads
//! `NVIDIA_VISIBLE_DEVICES`.

/// What the container runtime has answered so far.
#[derive(Clone, Debug, Default)]
pub struct DeviceInjection {
    last: Option<Result<bool, String>>,
}

impl DeviceInjection {
    /// Takes in whether NVIDIA's runtime is the default handler of the container runtime: `Err` if the container
    /// runtime did not answer. Returns whether NVIDIA's runtime puts devices into containers, if that has changed.
    /// While the container runtime does not answer, its last answer holds.
    pub fn answered(&mut self, answer: Result<bool, String>) -> Option<bool> {
        if self.last.as_ref() == Some(&answer) || (self.last.is_some() && answer.is_err()) {
            return None;
        }
        let injected = *answer.as_ref().unwrap_or(&false);
        self.last = Some(answer);
        Some(injected)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_answer_holds_while_the_runtime_does_not_answer() {
        let mut injection = DeviceInjection::default();
        let unanswered = || Err("no socket".to_owned());
        assert_eq!(injection.answered(unanswered()), Some(false), "the agent's edits, while nothing else is known");
        assert_eq!(injection.answered(unanswered()), None);
        assert_eq!(injection.answered(Ok(true)), Some(true));
        assert_eq!((injection.answered(unanswered()), injection.answered(Ok(true))), (None, None));
        assert_eq!(injection.answered(Ok(false)), Some(false));
    }
}
