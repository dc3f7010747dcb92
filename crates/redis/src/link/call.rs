//! One call and its states: queued, sent, done.
//!
//! The caller and the sending task share a call, and either may finish first. The state answers one question: was the call
//! sent? A call that is abandoned while it is queued is never sent. A call that was sent may have run, even if it was
//! abandoned.

use std::sync::PoisonError;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tokio::time::Instant;

use super::error::{Cause, LinkError};
use super::server_error::ServerError;
use super::sync::{Arc, Mutex, MutexGuard};
use crate::frame::Frame;

/// The outcome of a call.
#[derive(Debug)]
pub(super) enum CallOutcome {
    Answered(Vec<u8>),
    Failed(LinkError),
    /// The call did not run: the cluster redirects it to another node.
    Redirected(ServerError, Frame),
}

/// The routing of a call in a cluster.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct SlotRoute {
    pub(super) slot: u16,
    /// Whether the slot is migrating to the node, so that `ASKING` must come first.
    pub(super) asking: bool,
    /// Whether the call must be alone in a call of the script. The keys of a migrating slot are on two nodes, and a node
    /// refuses a call whose keys are not all on one of them.
    pub(super) alone: bool,
}

/// The deadline of a call.
#[derive(Clone, Copy, Debug)]
pub(super) struct CallDeadline {
    pub(super) at: Instant,
    /// The total time allowed by the caller.
    pub(super) allowed: Duration,
}

impl CallDeadline {
    pub(super) fn after(allowed: Duration, now: Instant) -> CallDeadline {
        CallDeadline { at: now + allowed, allowed }
    }
}

/// The sending task's side of a call.
#[derive(Debug)]
pub(super) struct Call {
    pub(super) frame: Frame,
    pub(super) route: SlotRoute,
    pub(super) deadline: CallDeadline,
    /// The only generation of servers in which the call may be sent.
    pub(super) generation: Option<u64>,
    /// Whether the call was sent before, and certainly did not run.
    pub(super) resent: bool,
    /// The approximate size of the call, in bytes.
    pub(super) size: usize,
    cell: Arc<CallCell>,
}

/// The caller's side of a call. If it is dropped while the call is queued, the call is never sent.
#[derive(Debug)]
pub(super) struct PendingCall {
    cell: Arc<CallCell>,
}

#[derive(Debug)]
struct CallCell {
    state: Mutex<CallState>,
}

#[derive(Debug)]
enum CallState {
    Queued(Option<Waker>),
    Sent(Option<Waker>),
    Done(CallOutcome),
    /// The call was abandoned, or its outcome was taken.
    Over,
}

impl CallCell {
    fn state(&self) -> MutexGuard<'_, CallState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Call {
    pub(super) fn new(frame: Frame, route: SlotRoute, deadline: CallDeadline) -> (Call, PendingCall) {
        // The length prefix of a word takes about 12 bytes.
        let size = frame.body.len() + frame.keys.iter().map(|key| key.len() + 12).sum::<usize>() + 12;
        let cell = Arc::new(CallCell { state: Mutex::new(CallState::Queued(None)) });
        let call = Call { frame, route, deadline, generation: None, resent: false, size, cell: cell.clone() };
        (call, PendingCall { cell })
    }

    /// Whether the caller still waits, and the deadline is after `now`.
    pub(super) fn is_wanted_after(&self, now: Instant) -> bool {
        self.deadline.at > now && matches!(*self.cell.state(), CallState::Queued(_) | CallState::Sent(_))
    }

    /// Marks the call as sent. Returns `false` if it was abandoned; it must not be sent in that case.
    pub(super) fn send(&self) -> bool {
        let mut state = self.cell.state();
        match &mut *state {
            CallState::Queued(waker) => {
                *state = CallState::Sent(waker.take());
                true
            }
            CallState::Sent(_) => true,
            CallState::Done(_) | CallState::Over => false,
        }
    }

    /// Marks a call that was sent and certainly did not run as queued again. Returns whether its caller still waits.
    pub(super) fn unsend(&self) -> bool {
        let mut state = self.cell.state();
        match &mut *state {
            CallState::Sent(waker) => {
                *state = CallState::Queued(waker.take());
                true
            }
            CallState::Queued(_) => true,
            CallState::Done(_) | CallState::Over => false,
        }
    }

    pub(super) fn answer(self, answer: &[u8]) {
        self.finish(|_| CallOutcome::Answered(answer.to_vec()));
    }

    pub(super) fn fail(self, error: LinkError) {
        self.finish(|_| CallOutcome::Failed(error));
    }

    pub(super) fn not_run(self, cause: Cause) {
        self.fail(LinkError::NotRun(cause));
    }

    pub(super) fn redirect(self, fault: ServerError) {
        self.finish(|frame| CallOutcome::Redirected(fault, frame));
    }

    fn finish(mut self, outcome: impl FnOnce(Frame) -> CallOutcome) {
        let frame = std::mem::take(&mut self.frame);
        self.cell.finish(|_| outcome(frame));
    }
}

impl CallCell {
    /// Sets the outcome, which may depend on whether the call was sent. Does nothing if there is an outcome or the call was
    /// abandoned.
    fn finish(&self, outcome: impl FnOnce(bool) -> CallOutcome) {
        let mut state = self.state();
        let (sent, waker) = match &mut *state {
            CallState::Queued(waker) => (false, waker.take()),
            CallState::Sent(waker) => (true, waker.take()),
            CallState::Done(_) | CallState::Over => return,
        };
        *state = CallState::Done(outcome(sent));
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl Drop for Call {
    /// Fails a call that can no longer be sent or answered because the runtime has ended.
    fn drop(&mut self) {
        self.cell.finish(|sent| {
            let error = if sent { LinkError::Unknown } else { LinkError::NotRun };
            CallOutcome::Failed(error(Cause::Closed))
        });
    }
}

/// The state of a call at the moment when it was abandoned.
#[derive(Debug)]
pub(super) enum Abandoned {
    NotSent,
    Sent,
    /// The call was already done.
    Done(CallOutcome),
}

impl PendingCall {
    pub(super) fn poll(&self, cx: &mut Context<'_>) -> Poll<CallOutcome> {
        let mut state = self.cell.state();
        match &mut *state {
            CallState::Queued(waker) | CallState::Sent(waker) => {
                match waker {
                    Some(waker) => waker.clone_from(cx.waker()),
                    None => *waker = Some(cx.waker().clone()),
                }
                Poll::Pending
            }
            CallState::Done(_) => match std::mem::replace(&mut *state, CallState::Over) {
                CallState::Done(outcome) => Poll::Ready(outcome),
                // Unreachable: the state was matched above.
                CallState::Queued(_) | CallState::Sent(_) | CallState::Over => Poll::Pending,
            },
            CallState::Over => Poll::Pending,
        }
    }

    pub(super) fn abandon(&self) -> Abandoned {
        let mut state = self.cell.state();
        match std::mem::replace(&mut *state, CallState::Over) {
            CallState::Queued(_) => Abandoned::NotSent,
            CallState::Sent(_) => Abandoned::Sent,
            CallState::Done(outcome) => Abandoned::Done(outcome),
            CallState::Over => Abandoned::Sent,
        }
    }
}

impl Drop for PendingCall {
    fn drop(&mut self) {
        *self.cell.state() = CallState::Over;
    }
}

#[cfg(all(test, tidegate_loom))]
mod loom_tests;

#[cfg(all(test, not(tidegate_loom)))]
mod tests {
    use std::future::poll_fn;

    use super::*;

    fn call() -> (Call, PendingCall) {
        Call::new(Frame::default(), SlotRoute::default(), CallDeadline::after(Duration::from_secs(1), Instant::now()))
    }

    #[test]
    fn a_call_that_was_given_up_is_never_sent() {
        let (call, waiting) = call();
        assert!(matches!(waiting.abandon(), Abandoned::NotSent));
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
        assert!(matches!(waiting.abandon(), Abandoned::NotSent));

        let (call, waiting) = self::call();
        assert!(call.send());
        assert!(matches!(waiting.abandon(), Abandoned::Sent));
        assert!(!call.unsend());
        call.answer(b"too late");
    }

    #[test]
    fn an_answer_at_the_last_moment_counts() {
        let (call, waiting) = call();
        assert!(call.send());
        call.answer(b"yes");
        assert!(matches!(waiting.abandon(), Abandoned::Done(CallOutcome::Answered(answer)) if answer == b"yes"));
    }

    #[test]
    fn a_call_that_is_lost_fails() {
        let (call, waiting) = call();
        drop(call);
        assert!(matches!(waiting.abandon(), Abandoned::Done(CallOutcome::Failed(LinkError::NotRun(Cause::Closed)))));
        let (call, waiting) = self::call();
        assert!(call.send());
        drop(call);
        assert!(matches!(waiting.abandon(), Abandoned::Done(CallOutcome::Failed(LinkError::Unknown(Cause::Closed)))));
    }

    #[tokio::test]
    async fn an_answer_wakes_whoever_waits() {
        let (call, waiting) = call();
        let waits = tokio::spawn(async move { poll_fn(|cx| waiting.poll(cx)).await });
        tokio::task::yield_now().await;
        assert!(call.send());
        call.answer(b"yes");
        assert!(matches!(waits.await.unwrap(), CallOutcome::Answered(answer) if answer == b"yes"));
    }
}
