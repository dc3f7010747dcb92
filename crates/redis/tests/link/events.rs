//! Log lines of the link.

use std::fmt::{self, Write};
use std::sync::{Arc, Mutex};

use tidegate_redis::link::{BreakerState, Link};
use tidegate_test_support::eventually;
use tidegate_test_support::redis::Server;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

use crate::link::counter_script::{DEADLINE, add, open_url, ready};

/// Keeps the messages of levels that are logged in production.
#[derive(Clone, Default)]
struct Listener(Arc<Mutex<Vec<String>>>);

struct Text(String);

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        write!(self.0, " {}={value:?}", field.name()).unwrap();
    }
}

impl Subscriber for Listener {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.level() <= &Level::INFO && metadata.target().starts_with("tidegate")
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut text = Text(event.metadata().level().to_string());
        event.record(&mut text);
        self.0.lock().unwrap().push(text.0);
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

async fn breaker(link: &Link, open: bool) {
    eventually("the breaker's other state", async || {
        let _ = add(link, "a", DEADLINE).await;
        let is_open = link.stats().servers[0].breaker != BreakerState::Closed;
        (is_open == open).then_some(())
    })
    .await;
}

// On one thread, because the listener is only installed there.
#[tokio::test]
async fn each_change_of_the_breaker_is_said_once() {
    // `tracing` remembers for each event whether anybody listens, and other threads reach these events too.
    tracing::subscriber::set_global_default(Listener::default()).unwrap();
    let listener = Listener::default();
    let _listening = tracing::subscriber::set_default(listener.clone());
    let mut server = Server::start();
    let link = open_url(&server.url());
    ready(&link).await;
    assert_eq!(listener.0.lock().unwrap().len(), 0);
    for _ in 0..2 {
        server.kill();
        breaker(&link, true).await;
        for _ in 0..100 {
            let _ = add(&link, "a", DEADLINE).await;
        }
        server.restart();
        breaker(&link, false).await;
    }
    let said = listener.0.lock().unwrap().clone();
    let [opens, closes, ..] = &said[..] else { panic!("{said:#?}") };
    assert!(opens.starts_with("WARN") && opens.contains("breaker opens"), "{opens}");
    assert!(opens.contains(&server.address()) && opens.contains("no connection"), "{opens}");
    assert!(closes.starts_with("INFO") && closes.contains("breaker closes"), "{closes}");
    assert_eq!(said.len(), 4, "{said:#?}");
}
