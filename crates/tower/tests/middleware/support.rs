//! Limiters with visible state, and bodies under the control of a test.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body::{Body, Frame};
use tidegate_core::{Charge, Decision, Key, ManualClock, MemoryStore, RuleId, Timestamp};
use tidegate_rules::{Limiter, RuleSet};
use tokio::sync::mpsc;

pub(crate) const START: Timestamp = Timestamp::from_secs(1_767_225_600);

pub(crate) type TestLimiter = Limiter<MemoryStore<ManualClock>, ManualClock>;

pub(crate) fn rules(text: &str) -> RuleSet {
    RuleSet::parse("rules.yaml", text).unwrap_or_else(|findings| panic!("{findings}")).rules
}

/// A limiter with a manual clock.
pub(crate) fn limiter(text: &str) -> Arc<TestLimiter> {
    let clock = ManualClock::at(START);
    Arc::new(Limiter::with_clock(rules(text), MemoryStore::with_clock(clock.clone()), clock))
}

/// The state of the global key under a limit.
pub(crate) fn peek(store: &MemoryStore<ManualClock>, rule: &str, limit: &str) -> Decision {
    let (rule, limit) = (RuleId::new(rule), limit.parse().unwrap());
    store.peek(&[Charge::new(&rule, &Key::GLOBAL, &limit).cost(0)])[0]
}

pub(crate) fn left(store: &MemoryStore<ManualClock>, rule: &str, limit: &str) -> u64 {
    peek(store, rule, limit).remaining
}

pub(crate) fn request() -> Request<()> {
    Request::new(())
}

/// Sends pieces to a [`ChannelBody`].
pub(crate) type BodySender = mpsc::UnboundedSender<Result<Bytes, &'static str>>;

/// A body of the pieces that are sent to it.
pub(crate) struct ChannelBody(mpsc::UnboundedReceiver<Result<Bytes, &'static str>>);

pub(crate) fn channel_body() -> (BodySender, ChannelBody) {
    let (tell, told) = mpsc::unbounded_channel();
    (tell, ChannelBody(told))
}

impl Body for ChannelBody {
    type Data = Bytes;
    type Error = &'static str;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, &'static str>>> {
        self.0.poll_recv(cx).map(|said| said.map(|said| said.map(Frame::data)))
    }
}

pub(crate) async fn empty(_: Request<()>) -> Result<Response<http_body_util::Empty<Bytes>>, Infallible> {
    Ok(Response::new(http_body_util::Empty::new()))
}

/// Waits until a condition holds, with a timeout that is long enough for a busy machine.
pub(crate) async fn until(what: &str, is_so: impl Fn() -> bool) {
    let waiting = async {
        while !is_so() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    assert!(tokio::time::timeout(Duration::from_secs(30), waiting).await.is_ok(), "{what} never came");
}

/// Whether a future is pending when it is polled once.
pub(crate) async fn is_pending(future: &mut (impl Future + Unpin)) -> bool {
    std::future::poll_fn(|cx| Poll::Ready(Pin::new(&mut *future).poll(cx).is_pending())).await
}
