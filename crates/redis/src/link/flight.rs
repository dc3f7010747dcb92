//! What is on its way to a server, and what its replies mean for it.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::time::Instant;

use super::batch::Part;
use super::breaker::Evidence;
use super::call::Call;
use super::error::{Cause, LinkError};
use super::fault::{Code, Fault};
use super::line::Shared;
use super::resp::{Bound, Malformed, Reply};

/// After a server has said that it is not the one to ask, the connection is kept for so long at least: where there is no
/// other server to find, connecting in a circle helps nobody.
const KEEP: Duration = Duration::from_secs(1);

/// What was sent on one connection and not yet answered, oldest first.
pub(super) struct Flight {
    sent: VecDeque<Sent>,
    batches: usize,
    /// How many bytes an answer may have beside what follows from the size of its call.
    spare: usize,
    /// How long a batch takes, smoothed.
    usual: Duration,
    /// Whether the server has said that it does not know the script.
    script_lost: bool,
    /// Whether the server has said that it is not the one to ask.
    elsewhere: bool,
    since: Instant,
    heard: Instant,
}

struct Sent {
    what: What,
    /// How large the reply can be.
    bound: Bound,
    /// Where in all that was ever written it ends.
    end: u64,
    at: Instant,
    /// When the next of its callers stops waiting; `None` if all have, and were counted.
    due: Option<Instant>,
    /// When the last of its callers stops waiting.
    overdue: Instant,
    /// Whether it is the last of its batch.
    last: bool,
}

enum What {
    Part(Part),
    /// The first of a probe's two commands, or the second, which knows how the first was answered.
    Probe {
        failed: Option<Fault>,
    },
}

impl Flight {
    pub(super) const fn new(spare: usize, now: Instant) -> Flight {
        Flight {
            sent: VecDeque::new(),
            batches: 0,
            spare,
            usual: Duration::ZERO,
            script_lost: false,
            elsewhere: false,
            since: now,
            heard: now,
        }
    }

    pub(super) const fn batches(&self) -> usize {
        self.batches
    }

    /// How long a batch takes, smoothed.
    pub(super) const fn usual(&self) -> Duration {
        self.usual
    }

    /// Whether the script has to be loaded before anything else. Asking is promising to do it.
    pub(super) const fn take_script_lost(&mut self) -> bool {
        std::mem::replace(&mut self.script_lost, false)
    }

    pub(super) const fn is_elsewhere(&self) -> bool {
        self.elsewhere
    }

    pub(super) fn is_empty(&self) -> bool {
        self.sent.is_empty()
    }

    /// Whether anything was ever heard.
    pub(super) fn was_of_use(&self) -> bool {
        self.heard > self.since
    }

    /// When something was last heard.
    pub(super) const fn heard(&self) -> Instant {
        self.heard
    }

    /// When the oldest was sent.
    pub(super) fn owed_since(&self) -> Option<Instant> {
        self.sent.front().map(|sent| sent.at)
    }

    /// Whether the oldest batch has taken unusually long, so that all of its callers have gone. A probe holds nobody up.
    pub(super) fn is_stuck(&self, now: Instant) -> bool {
        self.sent.front().is_some_and(|oldest| {
            let is_batch = matches!(oldest.what, What::Part(_));
            is_batch && oldest.due.is_none() && now.duration_since(oldest.at) > 2 * self.usual
        })
    }

    /// When the next caller stops waiting; `None` if nobody waits.
    pub(super) fn next_due(&self) -> Option<Instant> {
        self.sent.iter().filter_map(|sent| sent.due).min()
    }

    /// When the last caller of all that is on its way stops waiting, or stopped.
    pub(super) fn overdue(&self) -> Option<Instant> {
        self.sent.iter().map(|sent| sent.overdue).max()
    }

    pub(super) fn batch(&mut self, parts: Vec<(Part, u64)>, at: Instant) {
        let deadlines = parts.iter().flat_map(|(part, _)| part.calls()).map(|call| call.deadline.at);
        let overdue = deadlines.max().unwrap_or(at);
        let count = parts.len();
        self.batches += 1;
        for (place, (part, end)) in parts.into_iter().enumerate() {
            let last = place + 1 == count;
            let (due, bound) = (part.next_due(at).or(Some(overdue)), part.bound(self.spare));
            self.sent.push_back(Sent { what: What::Part(part), bound, end, at, due, overdue, last });
        }
    }

    pub(super) fn probe(&mut self, end: u64, at: Instant, overdue: Instant) {
        self.batches += 1;
        for last in [false, true] {
            let what = What::Probe { failed: None };
            self.sent.push_back(Sent { what, bound: Bound::SMALL, end, at, due: Some(overdue), overdue, last });
        }
    }

    /// Counts calls that have become late.
    pub(super) fn keep_time(&mut self, now: Instant, shared: &Shared) {
        for sent in &mut self.sent {
            let Some(due) = sent.due.filter(|&due| due <= now) else { continue };
            sent.due = None;
            match &sent.what {
                What::Part(part) => {
                    sent.due = part.next_due(now);
                    let late = part.calls().iter().map(|call| call.deadline);
                    let late = late.filter(|deadline| deadline.at >= due && deadline.at <= now);
                    let count = late.clone().count();
                    if let Some(allowed) = late.map(|deadline| deadline.allowed).min() {
                        shared.failed(count, Evidence::Slow(allowed), Cause::Deadline, now);
                    }
                }
                // Its two commands are late together, and count once.
                What::Probe { .. } if sent.last => shared.probe_failed(Cause::Deadline, now),
                What::Probe { .. } => {}
            }
        }
    }

    /// How large the next reply can be.
    pub(super) fn bound(&self) -> Bound {
        self.sent.front().map_or(Bound::SMALL, |sent| sent.bound)
    }

    /// Gives the reply to what it answers.
    pub(super) fn land(&mut self, reply: &Reply<'_>, now: Instant, shared: &Shared) -> Result<(), Malformed> {
        let Some(sent) = self.sent.pop_front() else { return Err(Malformed::Protocol) };
        self.heard = now;
        if sent.last {
            self.batches -= 1;
            self.usual = (7 * self.usual + now.duration_since(sent.at)) / 8;
        }
        match sent.what {
            What::Part(Part::Load | Part::Asking) => Ok(()),
            What::Part(Part::Calls(calls)) => self.land_calls(calls, sent.at, reply, now, shared),
            What::Probe { failed } => {
                self.land_probe(failed, sent.last, sent.at, reply, now, shared);
                Ok(())
            }
        }
    }

    fn land_probe(
        &mut self,
        failed: Option<Fault>,
        last: bool,
        sent_at: Instant,
        reply: &Reply<'_>,
        now: Instant,
        shared: &Shared,
    ) {
        let fault = match reply {
            Reply::Error(text) => Some(Fault::of(text)),
            _ => None,
        };
        self.script_lost |= fault.as_ref().is_some_and(|fault| fault.code == Code::NoScript);
        let failed = failed.or(fault.filter(|fault| !fault.code.means_alive()));
        match self.sent.front_mut() {
            Some(Sent { what: What::Probe { failed: second }, .. }) if !last => *second = failed,
            _ => match failed {
                Some(fault) => shared.probe_failed(Cause::Refused(fault), now),
                None => shared.answers_probe(now.duration_since(sent_at), now),
            },
        }
    }

    fn land_calls(
        &mut self,
        calls: Vec<Call>,
        sent_at: Instant,
        reply: &Reply<'_>,
        now: Instant,
        shared: &Shared,
    ) -> Result<(), Malformed> {
        match reply {
            Reply::Array(items) if items.len() == calls.len() => {
                let faults = calls.into_iter().zip(items).filter_map(|(call, item)| land_call(call, item));
                // Whatever the server says of itself it says to all, so the last one will do.
                let fault = faults.filter(|fault| fault.code.means_down() || fault.code.means_elsewhere()).last();
                self.heed(fault.as_ref(), items.len(), sent_at, now, shared);
                Ok(())
            }
            Reply::Error(text) => {
                self.refused(calls, sent_at, &Fault::of(text), now, shared);
                Ok(())
            }
            _ => {
                for call in calls {
                    call.fail(LinkError::Unknown(Cause::Malformed));
                }
                Err(Malformed::Protocol)
            }
        }
    }

    /// Draws the conclusions from an answer about the server that gave it.
    fn heed(&mut self, fault: Option<&Fault>, calls: usize, sent_at: Instant, now: Instant, shared: &Shared) {
        match fault {
            Some(fault) if fault.code.means_down() => {
                shared.failed(calls, Evidence::Down, Cause::Refused(fault.clone()), now);
            }
            _ => shared.succeeded(now.duration_since(sent_at), now),
        }
        if fault.is_some_and(|fault| fault.code.means_elsewhere()) {
            shared.look_around();
            self.elsewhere |= now.duration_since(self.since) > KEEP;
        }
    }

    /// The server did not run the script, or did not run it to its end.
    fn refused(&mut self, calls: Vec<Call>, sent_at: Instant, fault: &Fault, now: Instant, shared: &Shared) {
        self.heed(Some(fault), calls.len(), sent_at, now, shared);
        if fault.code == Code::NoScript {
            self.script_lost = true;
            shared.send_again(calls, &Cause::Refused(fault.clone()), now);
            return;
        }
        let redirected = shared.in_cluster() && fault.code.redirects();
        let error = if fault.code.may_have_run() { LinkError::Unknown } else { LinkError::NotRun };
        for call in calls {
            if redirected {
                call.redirect(fault.clone());
            } else {
                call.fail(error(Cause::Refused(fault.clone())));
            }
        }
    }

    /// The connection is gone, and of all that was ever written, the system had taken so much.
    pub(super) fn end(self, taken: u64, why: &Cause, now: Instant, shared: &Shared) {
        for sent in self.sent {
            let What::Part(Part::Calls(calls)) = sent.what else { continue };
            if sent.end > taken {
                // A server does nothing before it has seen the whole of a command.
                shared.send_again(calls, why, now);
                continue;
            }
            for call in calls {
                call.fail(LinkError::Unknown(why.clone()));
            }
        }
    }
}

/// An error in place of one item says that this one request was not carried out. Errors that have a name of their own come
/// from reading, or from the first write: nothing was written then.
fn land_call(call: Call, item: &Reply<'_>) -> Option<Fault> {
    match item {
        Reply::Bulk(answer) => {
            call.answer(answer);
            None
        }
        Reply::Error(text) => {
            let fault = Fault::of(text);
            let error = if fault.code == Code::Other { LinkError::Unknown } else { LinkError::NotRun };
            call.fail(error(Cause::Refused(fault.clone())));
            Some(fault)
        }
        Reply::Simple(_) | Reply::Integer(_) | Reply::Nil | Reply::Array(_) | Reply::Push(_) => {
            call.fail(LinkError::Unknown(Cause::Malformed));
            None
        }
    }
}

impl Part {
    fn bound(&self, spare: usize) -> Bound {
        match self {
            Part::Load | Part::Asking => Bound::SMALL,
            Part::Calls(calls) => Bound::of_calls(calls.len(), calls.iter().map(|call| call.size).sum(), spare),
        }
    }

    /// When the next of its callers stops waiting.
    fn next_due(&self, now: Instant) -> Option<Instant> {
        self.calls().iter().map(|call| call.deadline.at).filter(|&at| at > now).min()
    }

    fn calls(&self) -> &[Call] {
        match self {
            Part::Load | Part::Asking => &[],
            Part::Calls(calls) => calls,
        }
    }
}
