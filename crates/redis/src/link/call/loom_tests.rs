//! Every order in which a caller and the task that sends its call may run.

use std::task::Wake;

use loom::sync::Condvar;
use loom::thread::{self, JoinHandle};

use super::*;

fn call() -> (Call, PendingCall) {
    Call::new(Frame::default(), SlotRoute::default(), CallDeadline::after(Duration::from_secs(1), Instant::now()))
}

/// A waker on which a thread can wait. loom fails a test in which a thread waits forever.
#[derive(Default)]
struct Alarm {
    has_rung: Mutex<bool>,
    changed: Condvar,
}

impl Wake for Alarm {
    fn wake(self: std::sync::Arc<Self>) {
        *self.has_rung.lock().unwrap() = true;
        self.changed.notify_one();
    }
}

impl Alarm {
    fn wait(&self) {
        let mut has_rung = self.has_rung.lock().unwrap();
        while !*has_rung {
            has_rung = self.changed.wait(has_rung).unwrap();
        }
        *has_rung = false;
    }

    fn poll(self: &std::sync::Arc<Self>, waiting: &PendingCall) -> Poll<CallOutcome> {
        waiting.poll(&mut Context::from_waker(&Waker::from(self.clone())))
    }

    /// Polls whenever woken, like a runtime.
    fn outcome(self: &std::sync::Arc<Self>, waiting: &PendingCall) -> CallOutcome {
        loop {
            match self.poll(waiting) {
                Poll::Ready(outcome) => return outcome,
                Poll::Pending => self.wait(),
            }
        }
    }
}

/// Sends a call and answers it, if it may be sent. Returns whether it was sent.
fn sender(call: Call) -> JoinHandle<bool> {
    thread::spawn(move || {
        let may_send = call.send();
        if may_send {
            call.answer(b"yes");
        }
        may_send
    })
}

#[test]
fn loom_a_call_is_sent_or_given_up_before_it_is_but_never_both() {
    loom::model(|| {
        let (call, waiting) = call();
        let sender = sender(call);
        let given_up = waiting.abandon();
        match (sender.join().unwrap(), given_up) {
            (false, Abandoned::NotSent) | (true, Abandoned::Sent | Abandoned::Done(CallOutcome::Answered(_))) => {}
            (sent, given_up) => panic!("sent: {sent}, {given_up:?}"),
        }
    });
}

#[test]
fn loom_a_call_whose_caller_goes_is_answered_to_nobody() {
    loom::model(|| {
        let (call, waiting) = call();
        let sender = sender(call);
        drop(waiting);
        sender.join().unwrap();
    });
}

#[test]
fn loom_an_answer_always_reaches_a_caller_that_waits() {
    loom::model(|| {
        let (call, waiting) = call();
        let sender = sender(call);
        assert!(
            matches!(std::sync::Arc::<Alarm>::default().outcome(&waiting), CallOutcome::Answered(answer) if answer == b"yes")
        );
        assert!(sender.join().unwrap());
    });
}

#[test]
fn loom_a_call_that_is_sent_again_keeps_its_caller() {
    loom::model(|| {
        let (call, waiting) = call();
        let sender = thread::spawn(move || {
            assert!(call.send() && call.unsend() && call.send());
            call.answer(b"yes");
        });
        assert!(matches!(std::sync::Arc::<Alarm>::default().outcome(&waiting), CallOutcome::Answered(_)));
        sender.join().unwrap();
    });
}

#[test]
fn loom_a_caller_that_moves_to_another_task_is_woken_there() {
    loom::model(|| {
        let (call, waiting) = call();
        let sender = sender(call);
        let outcome = match std::sync::Arc::<Alarm>::default().poll(&waiting) {
            Poll::Ready(outcome) => outcome,
            Poll::Pending => std::sync::Arc::<Alarm>::default().outcome(&waiting),
        };
        assert!(matches!(outcome, CallOutcome::Answered(_)));
        sender.join().unwrap();
    });
}

#[test]
fn loom_a_caller_learns_of_a_call_that_is_lost_and_whether_it_was_sent() {
    for is_sent in [false, true] {
        loom::model(move || {
            let (call, waiting) = call();
            let sender = thread::spawn(move || {
                assert!(!is_sent || call.send());
                drop(call);
            });
            match std::sync::Arc::<Alarm>::default().outcome(&waiting) {
                CallOutcome::Failed(LinkError::Unknown(Cause::Closed)) if is_sent => {}
                CallOutcome::Failed(LinkError::NotRun(Cause::Closed)) if !is_sent => {}
                outcome => panic!("sent: {is_sent}, {outcome:?}"),
            }
            sender.join().unwrap();
        });
    }
}
