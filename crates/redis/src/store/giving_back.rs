//! Giving back what a request took in some slots of a cluster, when it was not admitted in others.
//!
//! Whoever gives something back does not wait for longer than it may, and may be gone before it has arrived; so this is
//! done by tasks, and tried again until the server has confirmed it. Giving back twice is harmless: what was taken lies
//! under an id, and is gone once it was given back.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use tidegate_core::Micros;
use tokio::runtime::Handle;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

use crate::frame::Frame;
use crate::link::Link;
use crate::reply;

/// For how long what was taken can be given back, and is tried to be. What was not by then stays taken.
pub(super) const OPEN_FOR: Micros = Micros::from_secs(10);
const GIVE_UP_AFTER: Duration = Duration::from_secs(10);

/// How long one attempt may take. Nobody waits for it.
const ATTEMPT: Duration = Duration::from_millis(250);
const FIRST_WAIT: Duration = Duration::from_millis(10);
const LONGEST_WAIT: Duration = Duration::from_secs(1);

/// For how long a request whose answer was lost may still arrive, once the server answers others.
const OVERTAKEN_FOR: Duration = Duration::from_secs(1);

/// Past so many that wait, each is only attempted once: a server that is away must not fill this process.
const MOST_WAITING: usize = 4_096;

/// What became of requests whose charges lie in several slots of a cluster, and which were charged in some of them and
/// not admitted in others. Counted slot by slot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GivenBack {
    /// Given back, as a server has confirmed.
    pub given_back: u64,
    /// On its way, or tried again and again.
    pub waiting: usize,
    /// Not given back within ten seconds, or not accepted. It stays spent, and comes back as all that is spent does.
    pub lost: u64,
}

/// Something to be given back in one slot.
#[derive(Debug)]
pub(super) struct Return {
    /// Settles it at nothing.
    pub(super) settle: Frame,
    /// How many things that is.
    pub(super) things: usize,
    /// Asks what is left afterwards.
    pub(super) look: Option<Frame>,
    /// Whether it was taken for sure. If not, the request that takes it may still be on its way, on a connection that was
    /// given up: the server is asked again for a moment, until there was something to give back.
    pub(super) is_certain: bool,
}

/// What came of giving something back.
#[derive(Debug, Default)]
pub(super) struct Returned {
    pub(super) is_confirmed: bool,
    /// What the server said is left, if it was asked.
    pub(super) left: Option<Vec<u8>>,
}

#[derive(Debug)]
pub(super) struct GivingBack {
    link: Arc<Link>,
    runtime: Handle,
    given_back: AtomicU64,
    waiting: AtomicUsize,
    lost: AtomicU64,
    /// Whether the last one was lost.
    is_losing: AtomicBool,
}

impl GivingBack {
    pub(super) fn over(link: Arc<Link>, runtime: Handle) -> GivingBack {
        GivingBack {
            link,
            runtime,
            given_back: AtomicU64::new(0),
            waiting: AtomicUsize::new(0),
            lost: AtomicU64::new(0),
            is_losing: AtomicBool::new(false),
        }
    }

    pub(super) fn counts(&self) -> GivenBack {
        GivenBack {
            given_back: self.given_back.load(Ordering::Relaxed),
            waiting: self.waiting.load(Ordering::Relaxed),
            lost: self.lost.load(Ordering::Relaxed),
        }
    }

    /// Begins to give back. It is done whether or not anybody waits for what comes of it.
    pub(super) fn begin(self: &Arc<Self>, what: Return) -> JoinHandle<Returned> {
        let waiting = Waiting::one_of(self);
        self.runtime.spawn(async move { waiting.at.give_back(what).await })
    }

    async fn give_back(&self, Return { settle, things, mut look, is_certain }: Return) -> Returned {
        let began = Instant::now();
        let mut nothing_since = None;
        let mut wait = FIRST_WAIT;
        loop {
            let settling = self.link.call(settle.clone(), ATTEMPT);
            let (settled, left) = match look.take() {
                // Calls of one slot are answered in the order in which they are made.
                Some(look) => tokio::join!(settling, self.link.call(look, ATTEMPT)),
                None => (settling.await, Ok(Vec::new())),
            };
            let is_too_late = began.elapsed() + wait > GIVE_UP_AFTER || self.is_crowded();
            match settled.map(|reply| reply::any_settled(&reply, things)) {
                Ok(Ok(found)) if found || is_certain => {
                    self.confirm();
                    return Returned { is_confirmed: true, left: left.ok().filter(|reply| !reply.is_empty()) };
                }
                Ok(Ok(_)) => {
                    let since = *nothing_since.get_or_insert_with(|| {
                        wait = FIRST_WAIT;
                        Instant::now()
                    });
                    if is_too_late || since.elapsed() > OVERTAKEN_FOR {
                        // It was never taken.
                        return Returned::default();
                    }
                }
                // Somebody else's data lies there by now: there is nothing to give back to.
                Ok(Err(error)) => {
                    self.lose(&error);
                    return Returned::default();
                }
                Err(error) if is_too_late => {
                    self.lose(&error);
                    return Returned::default();
                }
                Err(_) => {}
            }
            sleep(wait).await;
            wait = (wait * 2).min(LONGEST_WAIT);
        }
    }

    fn is_crowded(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) > MOST_WAITING
    }

    fn confirm(&self) {
        self.given_back.fetch_add(1, Ordering::Relaxed);
        self.is_losing.store(false, Ordering::Relaxed);
    }

    fn lose(&self, reason: &dyn std::error::Error) {
        self.lost.fetch_add(1, Ordering::Relaxed);
        if !self.is_losing.swap(true, Ordering::Relaxed) {
            tracing::warn!(%reason, "what requests over several slots have taken cannot be given back, and stays spent");
        }
    }
}

/// One that waits to be given back, for as long as its task lives.
struct Waiting {
    at: Arc<GivingBack>,
}

impl Waiting {
    fn one_of(at: &Arc<GivingBack>) -> Waiting {
        at.waiting.fetch_add(1, Ordering::Relaxed);
        Waiting { at: at.clone() }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.at.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}
