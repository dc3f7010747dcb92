//! The log of one test's thread.
//!
//! Call sites cache whether a subscriber is interested. A single subscriber for the whole process, installed before the
//! first line is logged, prevents a test without one from disabling a call site for other tests.

use std::cell::RefCell;
use std::sync::Once;

use tracing::field::{Field, Visit};
use tracing::{Event, Metadata, Subscriber, span};

thread_local! {
    static LINES: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

/// Starts recording logged lines.
pub(crate) fn listen() {
    static LISTENING: Once = Once::new();
    LISTENING.call_once(|| tracing::subscriber::set_global_default(Log).unwrap());
}

/// The lines that this thread logs during `work`, each with its level.
pub(crate) fn logged(work: impl FnOnce()) -> Vec<String> {
    listen();
    LINES.take();
    work();
    LINES.take()
}

struct Log;

struct Message(String);

impl Visit for Message {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        if field.name() == "message" {
            self.0 = format!("{value:?}");
        }
    }
}

impl Subscriber for Log {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut message = Message(String::new());
        event.record(&mut message);
        LINES.with_borrow_mut(|lines| lines.push(format!("{}: {}", event.metadata().level(), message.0)));
    }

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}
