//! Commands in flight on one connection, and the handling of their replies.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::time::Instant;

use super::batch::BatchPart;
use super::breaker::Evidence;
use super::call::Call;
use super::error::{Cause, LinkError};
use super::resp::{Bound, MalformedReply, RespReply};
use super::server_error::{ErrorCode, ServerError};
use super::shared::Shared;

/// Minimum age of a connection before it is closed because the server is not the primary. Bounds the rate of reconnects if
/// no other server can be found.
const KEEP: Duration = Duration::from_secs(1);

/// The commands sent on one connection and not answered yet, oldest first.
pub(super) struct InFlight {
    sent: VecDeque<SentCommand>,
    batches: usize,
    /// Number of bytes that a reply may have in addition to those that depend on the size of its call.
    spare: usize,
    /// The smoothed round trip of a batch.
    usual: Duration,
    /// Whether the server has answered NOSCRIPT.
    script_lost: bool,
    /// Whether the server has answered that it is not the primary.
    elsewhere: bool,
    since: Instant,
    last_reply: Instant,
}

struct SentCommand {
    what: SentKind,
    /// The bound on the size of the reply.
    bound: Bound,
    /// The end of the command, counted in all bytes written.
    end: u64,
    at: Instant,
    /// The next deadline of the command's callers; `None` if all have passed and were counted.
    due: Option<Instant>,
    /// The last deadline of the command's callers.
    last_due: Instant,
    /// Whether this is the last command of its batch.
    last: bool,
}

enum SentKind {
    Part(BatchPart),
    /// One of a probe's two commands. The second one carries the error of the first.
    Probe {
        failed: Option<ServerError>,
    },
}

impl InFlight {
    pub(super) const fn new(spare: usize, now: Instant) -> InFlight {
        InFlight {
            sent: VecDeque::new(),
            batches: 0,
            spare,
            usual: Duration::ZERO,
            script_lost: false,
            elsewhere: false,
            since: now,
            last_reply: now,
        }
    }

    pub(super) const fn batches(&self) -> usize {
        self.batches
    }

    /// The smoothed round trip of a batch.
    pub(super) const fn usual(&self) -> Duration {
        self.usual
    }

    /// Whether the script must be loaded before the next batch. Resets the flag, so the caller must load the script.
    pub(super) const fn take_script_lost(&mut self) -> bool {
        std::mem::replace(&mut self.script_lost, false)
    }

    pub(super) const fn is_elsewhere(&self) -> bool {
        self.elsewhere
    }

    pub(super) fn is_empty(&self) -> bool {
        self.sent.is_empty()
    }

    /// Whether any reply was received.
    pub(super) fn was_of_use(&self) -> bool {
        self.last_reply > self.since
    }

    /// When the last reply was received.
    pub(super) const fn last_reply(&self) -> Instant {
        self.last_reply
    }

    /// When the oldest command was sent.
    pub(super) fn unanswered_since(&self) -> Option<Instant> {
        self.sent.front().map(|sent| sent.at)
    }

    /// Whether the oldest batch takes unusually long and all of its deadlines have passed. Probes do not count.
    pub(super) fn is_stuck(&self, now: Instant) -> bool {
        self.sent.front().is_some_and(|oldest| {
            let is_batch = matches!(oldest.what, SentKind::Part(_));
            is_batch && oldest.due.is_none() && now.duration_since(oldest.at) > 2 * self.usual
        })
    }

    /// The next deadline of all callers; `None` if all have passed.
    pub(super) fn next_due(&self) -> Option<Instant> {
        self.sent.iter().filter_map(|sent| sent.due).min()
    }

    /// The last deadline of all callers, in the future or the past.
    pub(super) fn last_due(&self) -> Option<Instant> {
        self.sent.iter().map(|sent| sent.last_due).max()
    }

    pub(super) fn batch(&mut self, parts: Vec<(BatchPart, u64)>, at: Instant) {
        let deadlines = parts.iter().flat_map(|(part, _)| part.calls()).map(|call| call.deadline.at);
        let last_due = deadlines.max().unwrap_or(at);
        let count = parts.len();
        self.batches += 1;
        for (place, (part, end)) in parts.into_iter().enumerate() {
            let last = place + 1 == count;
            let (due, bound) = (part.next_due(at).or(Some(last_due)), part.bound(self.spare));
            self.sent.push_back(SentCommand { what: SentKind::Part(part), bound, end, at, due, last_due, last });
        }
    }

    pub(super) fn probe(&mut self, end: u64, at: Instant, last_due: Instant) {
        self.batches += 1;
        for last in [false, true] {
            let what = SentKind::Probe { failed: None };
            self.sent.push_back(SentCommand {
                what,
                bound: Bound::SMALL,
                end,
                at,
                due: Some(last_due),
                last_due,
                last,
            });
        }
    }

    /// Counts calls whose deadlines have passed since the last call of this.
    pub(super) fn count_late(&mut self, now: Instant, shared: &Shared) {
        for sent in &mut self.sent {
            let Some(due) = sent.due.filter(|&due| due <= now) else { continue };
            sent.due = None;
            match &sent.what {
                SentKind::Part(part) => {
                    sent.due = part.next_due(now);
                    let late = part.calls().iter().map(|call| call.deadline);
                    let late = late.filter(|deadline| deadline.at >= due && deadline.at <= now);
                    let count = late.clone().count();
                    if let Some(allowed) = late.map(|deadline| deadline.allowed).min() {
                        shared.failed(count, Evidence::Slow(allowed), Cause::Deadline, now);
                    }
                }
                // The two commands of a probe count once.
                SentKind::Probe { .. } if sent.last => shared.probe_failed(Cause::Deadline, now),
                SentKind::Probe { .. } => {}
            }
        }
    }

    /// The bound on the next reply.
    pub(super) fn bound(&self) -> Bound {
        self.sent.front().map_or(Bound::SMALL, |sent| sent.bound)
    }

    /// Handles the reply to the oldest command.
    pub(super) fn on_reply(
        &mut self,
        reply: &RespReply<'_>,
        now: Instant,
        shared: &Shared,
    ) -> Result<(), MalformedReply> {
        let Some(sent) = self.sent.pop_front() else { return Err(MalformedReply::Protocol) };
        self.last_reply = now;
        if sent.last {
            self.batches -= 1;
            self.usual = (7 * self.usual + now.duration_since(sent.at)) / 8;
        }
        match sent.what {
            SentKind::Part(BatchPart::Load | BatchPart::Asking) => Ok(()),
            SentKind::Part(BatchPart::Calls(calls)) => self.on_calls_reply(calls, sent.at, reply, now, shared),
            SentKind::Probe { failed } => {
                self.on_probe_reply(failed, sent.last, sent.at, reply, now, shared);
                Ok(())
            }
        }
    }

    fn on_probe_reply(
        &mut self,
        failed: Option<ServerError>,
        last: bool,
        sent_at: Instant,
        reply: &RespReply<'_>,
        now: Instant,
        shared: &Shared,
    ) {
        let fault = match reply {
            RespReply::Error(text) => Some(ServerError::of(text)),
            _ => None,
        };
        self.script_lost |= fault.as_ref().is_some_and(|fault| fault.code == ErrorCode::NoScript);
        let failed = failed.or(fault.filter(|fault| !fault.code.means_alive()));
        match self.sent.front_mut() {
            Some(SentCommand { what: SentKind::Probe { failed: second }, .. }) if !last => *second = failed,
            _ => match failed {
                Some(fault) => shared.probe_failed(Cause::Refused(fault), now),
                None => shared.answers_probe(now.duration_since(sent_at), now),
            },
        }
    }

    fn on_calls_reply(
        &mut self,
        calls: Vec<Call>,
        sent_at: Instant,
        reply: &RespReply<'_>,
        now: Instant,
        shared: &Shared,
    ) -> Result<(), MalformedReply> {
        match reply {
            RespReply::Array(items) if items.len() == calls.len() => {
                let faults = calls.into_iter().zip(items).filter_map(|(call, item)| on_call_reply(call, item));
                // Errors about the server's own state are the same for all calls, so the last one is enough.
                let fault = faults.filter(|fault| fault.code.means_down() || fault.code.means_elsewhere()).last();
                self.conclude(fault.as_ref(), items.len(), sent_at, now, shared);
                Ok(())
            }
            RespReply::Error(text) => {
                self.refused(calls, sent_at, &ServerError::of(text), now, shared);
                Ok(())
            }
            _ => {
                for call in calls {
                    call.fail(LinkError::Unknown(Cause::Malformed));
                }
                Err(MalformedReply::Protocol)
            }
        }
    }

    /// Updates what is known of the server from its answer.
    fn conclude(&mut self, fault: Option<&ServerError>, calls: usize, sent_at: Instant, now: Instant, shared: &Shared) {
        match fault {
            Some(fault) if fault.code.means_down() => {
                shared.failed(calls, Evidence::Down, Cause::Refused(fault.clone()), now);
            }
            _ => shared.succeeded(now.duration_since(sent_at), now),
        }
        if fault.is_some_and(|fault| fault.code.means_elsewhere()) {
            shared.discover_topology();
            self.elsewhere |= now.duration_since(self.since) > KEEP;
        }
    }

    /// Handles an error for the whole batch: the script did not run, or not to its end.
    fn refused(&mut self, calls: Vec<Call>, sent_at: Instant, fault: &ServerError, now: Instant, shared: &Shared) {
        self.conclude(Some(fault), calls.len(), sent_at, now, shared);
        if fault.code == ErrorCode::NoScript {
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

    /// Concludes all calls in flight when the connection has ended. The socket had accepted `taken` bytes.
    pub(super) fn end(self, taken: u64, why: &Cause, now: Instant, shared: &Shared) {
        for sent in self.sent {
            let SentKind::Part(BatchPart::Calls(calls)) = sent.what else { continue };
            if sent.end > taken {
                // A server does not run a command until it has received the whole command.
                shared.send_again(calls, why, now);
                continue;
            }
            for call in calls {
                call.fail(LinkError::Unknown(why.clone()));
            }
        }
    }
}

/// Passes one item of the reply to its call. An error item means that this request was not carried out. Known errors come
/// from reads or from the first write, so nothing was written.
fn on_call_reply(call: Call, item: &RespReply<'_>) -> Option<ServerError> {
    match item {
        RespReply::Bulk(answer) => {
            call.answer(answer);
            None
        }
        RespReply::Error(text) => {
            let fault = ServerError::of(text);
            let error = if fault.code == ErrorCode::Other { LinkError::Unknown } else { LinkError::NotRun };
            call.fail(error(Cause::Refused(fault.clone())));
            Some(fault)
        }
        RespReply::Simple(_) | RespReply::Integer(_) | RespReply::Nil | RespReply::Array(_) | RespReply::Push(_) => {
            call.fail(LinkError::Unknown(Cause::Malformed));
            None
        }
    }
}

impl BatchPart {
    fn bound(&self, spare: usize) -> Bound {
        match self {
            BatchPart::Load | BatchPart::Asking => Bound::SMALL,
            BatchPart::Calls(calls) => Bound::of_calls(calls.len(), calls.iter().map(|call| call.size).sum(), spare),
        }
    }

    /// The next deadline of the command's callers.
    fn next_due(&self, now: Instant) -> Option<Instant> {
        self.calls().iter().map(|call| call.deadline.at).filter(|&at| at > now).min()
    }

    fn calls(&self) -> &[Call] {
        match self {
            BatchPart::Load | BatchPart::Asking => &[],
            BatchPart::Calls(calls) => calls,
        }
    }
}
