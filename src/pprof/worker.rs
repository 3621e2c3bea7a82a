//! The parent's side of the child process: starts it, sends orders, waits for the answer with a limit, and never leaves
//! it running.

use crate::cancel::CancelFlag;
use crate::error::Error;
use crate::module;
use crate::order::{self, Module, Modules, OrderBegin, OrderEnd, OrderStep, SUBCOMMAND};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::{Duration, Instant};

/// Time limit without any progress of the child: reading the line tables of an unoptimised build took 6 s on a two-core
/// machine that was busy building.
const PROGRESS_WITHIN: Duration = Duration::from_secs(60);

/// Maximum size of an answer in bytes; a profile of 50,000 stacks has about 3 MiB.
const MAX_ANSWER: usize = 64 << 20;

/// A running child. Dropping it kills the child.
#[derive(Debug)]
pub(crate) struct SymbolizeWorker {
    child: Child,
    input: Option<ChildStdin>,
    sent_modules: Vec<Module>,
    cancel: CancelFlag,
}

impl SymbolizeWorker {
    /// Starts a child and sends `begin` and the loaded files.
    ///
    /// # Errors
    /// If the child does not start, or does not accept an order.
    pub(crate) fn start(begin: OrderBegin, cancel: CancelFlag) -> Result<Self, Error> {
        let mut child = Command::new("/proc/self/exe")
            .arg(SUBCOMMAND)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(Error::Start)?;
        let input = child.stdin.take();
        let mut worker = SymbolizeWorker { child, input, sent_modules: Vec::new(), cancel };
        worker.make_nonblocking().map_err(|source| Error::Child { what: "preparing its pipes", source })?;
        worker.order(OrderStep::Begin(begin))?;
        worker.send_modules()?;
        Ok(worker)
    }

    fn make_nonblocking(&self) -> io::Result<()> {
        if let Some(input) = &self.input {
            fcntl_setfl(input, fcntl_getfl(input)? | OFlags::NONBLOCK)?;
        }
        if let Some(output) = &self.child.stdout {
            fcntl_setfl(output, fcntl_getfl(output)? | OFlags::NONBLOCK)?;
        }
        Ok(())
    }

    /// Sends the list of loaded files, if it has changed.
    ///
    /// # Errors
    /// If the child does not accept the order.
    pub(crate) fn send_modules(&mut self) -> Result<(), Error> {
        let modules = module::loaded();
        if modules != self.sent_modules {
            self.sent_modules.clone_from(&modules);
            self.order(OrderStep::Modules(Modules { modules }))?;
        }
        Ok(())
    }

    /// Sends one order.
    ///
    /// # Errors
    /// If the child does not accept the order, or the request is cancelled.
    pub(crate) fn order(&mut self, step: OrderStep) -> Result<(), Error> {
        let bytes = order::encode(step);
        let failed = |source| Error::Child { what: "giving it an order", source };
        let Some(input) = &mut self.input else { return Err(Error::NoAnswer) };
        let mut rest = bytes.as_slice();
        let mut deadline = Instant::now() + PROGRESS_WITHIN;
        while !rest.is_empty() {
            match input.write(rest) {
                Ok(0) => return Err(Error::NoAnswer),
                Ok(written) => {
                    rest = &rest[written..];
                    deadline = Instant::now() + PROGRESS_WITHIN;
                }
                Err(error) if is_transient(&error) => {
                    wait(&*input, PollFlags::OUT, deadline, &self.cancel).map_err(failed)?;
                }
                Err(error) => return Err(failed(error)),
            }
            if self.cancel.is_cancelled() {
                return Err(Error::Cancelled);
            }
        }
        Ok(())
    }

    /// Sends the last order and waits for the answer.
    ///
    /// # Errors
    /// If there is no answer, or the request is cancelled.
    pub(crate) fn finish(mut self, end: OrderEnd) -> Result<Vec<u8>, Error> {
        self.send_modules()?;
        self.order(OrderStep::End(end))?;
        self.input = None;
        let failed = |source| Error::Child { what: "reading its answer", source };
        let Some(mut output) = self.child.stdout.take() else { return Err(Error::NoAnswer) };
        let mut answer = Vec::new();
        let mut piece = vec![0_u8; 64 << 10];
        let mut deadline = Instant::now() + PROGRESS_WITHIN;
        loop {
            if self.cancel.is_cancelled() {
                return Err(Error::Cancelled);
            }
            match output.read(&mut piece) {
                Ok(0) => break,
                Ok(read) if answer.len() + read > MAX_ANSWER => return Err(Error::NoAnswer),
                Ok(read) => {
                    answer.extend_from_slice(&piece[..read]);
                    deadline = Instant::now() + PROGRESS_WITHIN;
                }
                Err(error) if is_transient(&error) => {
                    wait(&output, PollFlags::IN, deadline, &self.cancel).map_err(failed)?;
                }
                Err(error) => return Err(failed(error)),
            }
        }
        let status = self.child.wait().map_err(failed)?;
        if status.success() { Ok(answer) } else { Err(Error::NoAnswer) }
    }
}

impl Drop for SymbolizeWorker {
    fn drop(&mut self) {
        // Both fail only if the child has been waited for already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn is_transient(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}

/// Waits until the pipe is ready, the request is cancelled, or the deadline has passed (an error).
fn wait(pipe: &impl AsFd, ready: PollFlags, deadline: Instant, cancel: &CancelFlag) -> io::Result<()> {
    let step = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
    while !cancel.is_cancelled() {
        if Instant::now() >= deadline {
            return Err(io::Error::new(
                io::ErrorKind::TimedOut,
                format!("nothing for {} s", PROGRESS_WITHIN.as_secs()),
            ));
        }
        match poll(&mut [PollFd::new(pipe, ready)], Some(&step)) {
            Ok(0) | Err(rustix::io::Errno::INTR) => {}
            Ok(_) => return Ok(()),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}
