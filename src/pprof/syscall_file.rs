//! The file `/proc/self/task/ID/syscall`: in which system call a thread sleeps.
//!
//! ```text
//!   202 0x7f… 0x80 0x0 0x0 0x0 0x0 0x7ffd…10 0x7f99…   number, six arguments, stack pointer, program counter
//!   -1 0x7ffd…10 0x7f99…                               asleep outside a system call
//!   running
//! ```

/// The number of the system call; -1 outside a system call, and `None` for a running thread.
#[must_use]
pub(crate) fn number(text: &str) -> Option<i64> {
    text.split(' ').next()?.parse().ok()
}

/// Stack pointer and program counter, the last two numbers. `None` for a running thread, whose file has no numbers.
#[must_use]
pub(crate) fn registers(text: &str) -> Option<(u64, u64)> {
    let mut words = text.split_ascii_whitespace().rev();
    let mut number = || u64::from_str_radix(words.next()?.strip_prefix("0x")?, 16).ok();
    let pc = number()?;
    Some((number()?, pc))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_sleeping_thread_has_registers_and_a_running_thread_has_none() {
        let sleeping = "202 0x7f 0x80 0x0 0x0 0x0 0x0 0x7ffd10 0x7f99\n";
        for (text, call, expect) in [
            (sleeping, Some(202), Some((0x007f_fd10, 0x7f99))),
            ("-1 0x7ffd10 0x7f99\n", Some(-1), Some((0x007f_fd10, 0x7f99))),
            ("running\n", None, None),
            ("", None, None),
        ] {
            assert_eq!((number(text), registers(text)), (call, expect), "{text}");
        }
    }

    proptest! {
        #[test]
        fn no_text_causes_a_panic(text in "\\PC{0,120}") {
            let _ = (number(&text), registers(&text));
        }

        #[test]
        fn files_in_the_form_of_the_kernel_are_read(sp in any::<u64>(), call in 0_i64..500) {
            let text = format!("{call} 0x0 0x{sp:x} 0x7f");
            prop_assert_eq!((number(&text), registers(&text)), (Some(call), Some((sp, 0x7f))));
        }
    }
}
