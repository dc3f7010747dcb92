//! One call: who waits for it, and what becomes of it.
//!
//! A call is shared by whoever waits for it and the task that sends it, and either may be first to be done with it. What
//! matters is a single question with a single answer: was it sent? A call that is given up while it waits for its turn is
//! never sent. One that was sent may have run, whatever its caller does.

use std::sync::PoisonError;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tokio::time::Instant;

use super::error::{Cause, LinkError};
use super::fault::Fault;
use super::sync::{Arc, Mutex, MutexGuard};
use crate::frame::Frame;

/// What became of a call.
#[derive(Debug)]
pub(super) enum Outcome {
    Answered(Vec<u8>),
    Failed(LinkError),
    /// It did not run here: the cluster says that it belongs elsewhere.
    Redirected(Fault, Frame),
}

/// Where a call belongs in a cluster.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Berth {
    pub(super) slot: u16,
    /// Whether the slot is only on its way to the node, which has to be told that we know.
    pub(super) asking: bool,
    /// Whether it must not share a script call with others. Keys of a slot that is on its way lie in two places, and a node
    /// refuses a call whose keys are not all here or all there.
    pub(super) alone: bool,
}

/// When a call must be answered.
#[derive(Clone, Copy, Debug)]
pub(super) struct Deadline {
    pub(super) at: Instant,
    /// How much time its caller gave it in all.
    pub(super) allowed: Duration,
}

impl Deadline {
    pub(super) fn after(allowed: Duration, now: Instant) -> Deadline {
        Deadline { at: now + allowed, allowed }
    }
}

/// A call as the sending side sees it.
#[derive(Debug)]
pub(super) struct Call {
    pub(super) frame: Frame,
    pub(super) berth: Berth,
    pub(super) deadline: Deadline,
    /// Whether it was sent before, and certainly did not run then.
    pub(super) resent: bool,
    /// About how many bytes it takes.
    pub(super) size: usize,
    wait: Arc<Wait>,
}

/// A call as its caller sees it. If this is dropped while the call waits for its turn, it is never sent.
#[derive(Debug)]
pub(super) struct Waiting {
    wait: Arc<Wait>,
}

#[derive(Debug)]
struct Wait {
    state: Mutex<State>,
}

#[derive(Debug)]
enum State {
    Queued(Option<Waker>),
    Sent(Option<Waker>),
    Done(Outcome),
    /// Nobody waits any more, or the outcome was taken.
    Over,
}

impl Wait {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Call {
    pub(super) fn new(frame: Frame, berth: Berth, deadline: Deadline) -> (Call, Waiting) {
        // Each word costs a handful of bytes more for its length.
        let size = frame.body.len() + frame.keys.iter().map(|key| key.len() + 12).sum::<usize>() + 12;
        let wait = Arc::new(Wait { state: Mutex::new(State::Queued(None)) });
        (Call { frame, berth, deadline, resent: false, size, wait: wait.clone() }, Waiting { wait })
    }

    /// Whether somebody still waits for it and may do so past that moment.
    pub(super) fn is_wanted_after(&self, now: Instant) -> bool {
        self.deadline.at > now && matches!(*self.wait.state(), State::Queued(_) | State::Sent(_))
    }

    /// Marks it as sent, unless it was given up: then it must not be.
    pub(super) fn send(&self) -> bool {
        let mut state = self.wait.state();
        match &mut *state {
            State::Queued(waker) => {
                *state = State::Sent(waker.take());
                true
            }
            State::Sent(_) => true,
            State::Done(_) | State::Over => false,
        }
    }

    /// It was sent, and certainly did not run. Says whether anybody still waits for it.
    pub(super) fn unsend(&self) -> bool {
        let mut state = self.wait.state();
        match &mut *state {
            State::Sent(waker) => {
                *state = State::Queued(waker.take());
                true
            }
            State::Queued(_) => true,
            State::Done(_) | State::Over => false,
        }
    }

    pub(super) fn answer(self, answer: &[u8]) {
        self.finish(|_| Outcome::Answered(answer.to_vec()));
    }

    pub(super) fn fail(self, error: LinkError) {
        self.finish(|_| Outcome::Failed(error));
    }

    pub(super) fn not_run(self, cause: Cause) {
        self.fail(LinkError::NotRun(cause));
    }

    pub(super) fn redirect(self, fault: Fault) {
        self.finish(|frame| Outcome::Redirected(fault, frame));
    }

    fn finish(mut self, outcome: impl FnOnce(Frame) -> Outcome) {
        let frame = std::mem::take(&mut self.frame);
        self.wait.finish(|_| outcome(frame));
    }
}

impl Wait {
    /// Says what became of the call, unless that is known or nobody wants to know. What becomes of it may depend on
    /// whether it was sent.
    fn finish(&self, outcome: impl FnOnce(bool) -> Outcome) {
        let mut state = self.state();
        let (sent, waker) = match &mut *state {
            State::Queued(waker) => (false, waker.take()),
            State::Sent(waker) => (true, waker.take()),
            State::Done(_) | State::Over => return,
        };
        *state = State::Done(outcome(sent));
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl Drop for Call {
    /// A call that nobody will send or hear of any more, because the runtime has ended.
    fn drop(&mut self) {
        self.wait.finish(|sent| {
            let error = if sent { LinkError::Unknown } else { LinkError::NotRun };
            Outcome::Failed(error(Cause::Closed))
        });
    }
}

/// How far a call had come when it was given up.
#[derive(Debug)]
pub(super) enum GivenUp {
    NotSent,
    Sent,
    /// It was done at that very moment.
    Done(Outcome),
}

impl Waiting {
    pub(super) fn poll(&self, cx: &mut Context<'_>) -> Poll<Outcome> {
        let mut state = self.wait.state();
        match &mut *state {
            State::Queued(waker) | State::Sent(waker) => {
                match waker {
                    Some(waker) => waker.clone_from(cx.waker()),
                    None => *waker = Some(cx.waker().clone()),
                }
                Poll::Pending
            }
            State::Done(_) => match std::mem::replace(&mut *state, State::Over) {
                State::Done(outcome) => Poll::Ready(outcome),
                // Only what was just seen can be there.
                State::Queued(_) | State::Sent(_) | State::Over => Poll::Pending,
            },
            State::Over => Poll::Pending,
        }
    }

    pub(super) fn give_up(&self) -> GivenUp {
        let mut state = self.wait.state();
        match std::mem::replace(&mut *state, State::Over) {
            State::Queued(_) => GivenUp::NotSent,
            State::Sent(_) => GivenUp::Sent,
            State::Done(outcome) => GivenUp::Done(outcome),
            State::Over => GivenUp::Sent,
        }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        *self.wait.state() = State::Over;
    }
}

#[cfg(all(test, tidegate_loom))]
mod loom_tests;

#[cfg(all(test, not(tidegate_loom)))]
mod tests {
    use std::future::poll_fn;

    use super::*;

    fn call() -> (Call, Waiting) {
        Call::new(Frame::default(), Berth::default(), Deadline::after(Duration::from_secs(1), Instant::now()))
    }

    #[test]
    fn a_call_that_was_given_up_is_never_sent() {
        let (call, waiting) = call();
        assert!(matches!(waiting.give_up(), GivenUp::NotSent));
        assert!(!call.send());
    }

    #[test]
    fn a_call_whose_caller_has_gone_is_never_sent() {
        let (call, waiting) = call();
        drop(waiting);
        assert!(!call.send());
    }

    #[test]
    fn a_call_that_was_sent_leaves_doubt_until_it_is_certain_that_it_did_not_run() {
        let (call, waiting) = call();
        assert!(call.send());
        assert!(call.unsend());
        assert!(matches!(waiting.give_up(), GivenUp::NotSent));

        let (call, waiting) = self::call();
        assert!(call.send());
        assert!(matches!(waiting.give_up(), GivenUp::Sent));
        assert!(!call.unsend());
        call.answer(b"too late");
    }

    #[test]
    fn an_answer_at_the_last_moment_counts() {
        let (call, waiting) = call();
        assert!(call.send());
        call.answer(b"yes");
        assert!(matches!(waiting.give_up(), GivenUp::Done(Outcome::Answered(answer)) if answer == b"yes"));
    }

    #[test]
    fn a_call_that_is_lost_fails() {
        let (call, waiting) = call();
        drop(call);
        assert!(matches!(waiting.give_up(), GivenUp::Done(Outcome::Failed(LinkError::NotRun(Cause::Closed)))));
        let (call, waiting) = self::call();
        assert!(call.send());
        drop(call);
        assert!(matches!(waiting.give_up(), GivenUp::Done(Outcome::Failed(LinkError::Unknown(Cause::Closed)))));
    }

    #[tokio::test]
    async fn an_answer_wakes_whoever_waits() {
        let (call, waiting) = call();
        let waits = tokio::spawn(async move { poll_fn(|cx| waiting.poll(cx)).await });
        tokio::task::yield_now().await;
        assert!(call.send());
        call.answer(b"yes");
        assert!(matches!(waits.await.unwrap(), Outcome::Answered(answer) if answer == b"yes"));
    }
}
