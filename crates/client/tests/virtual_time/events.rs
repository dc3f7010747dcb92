//! Events of `tracing`.

use std::fmt::Debug;
use std::sync::{Arc, Mutex, Once};
use std::time::Duration;

use tidegate_client::ClientLayer;
use tower::ServiceExt;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::DefaultGuard;
use tracing::{Event, Metadata, Subscriber};

use crate::client;
use crate::virtual_time::server::{Server, get, reply};

/// The messages of events, in order.
#[derive(Clone, Default)]
struct Messages(Arc<Mutex<Vec<String>>>);

struct Message(String);

impl Visit for Message {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        if field.name() == "message" {
            self.0 = format!("{value:?}");
        }
    }
}

impl Subscriber for Messages {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("tidegate_client")
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut message = Message(String::new());
        event.record(&mut message);
        self.0.lock().unwrap().push(format!("{} {}", event.metadata().level(), message.0));
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// Collects the events of this thread until the guard is dropped.
fn listen() -> (Messages, DefaultGuard) {
    // `tracing` remembers for each event whether anybody listens. With a listener on a single thread, a thread without one that reaches
    // an event first would have it switched off for all.
    static ALL_THREADS: Once = Once::new();
    ALL_THREADS.call_once(|| tracing::subscriber::set_global_default(Messages::default()).unwrap());
    let messages = Messages::default();
    (messages.clone(), tracing::subscriber::set_default(messages))
}

#[tokio::test(start_paused = true)]
async fn retries_waits_and_refusals_are_events() {
    let (messages, _guard) = listen();
    let server = Server::new(|number, _| match number {
        0 | 1 => reply(200, &[]),
        2 => reply(503, &[]),
        3 => reply(200, &[("ratelimit", "\"api\";r=0;t=5")]),
        4 => reply(503, &[("retry-after", "3600")]),
        _ => reply(503, &[]),
    });
    let layer = ClientLayer::new().random(|| 0.0).budget(0.0, 1).longest_wait(Duration::from_secs(60));
    let client = client!(server, layer);
    let called = async |calls: usize| -> Vec<String> {
        for _ in 0..calls {
            let _ = client.clone().oneshot(get()).await;
        }
        std::mem::take(&mut *messages.0.lock().unwrap())
    };
    assert_eq!(called(2).await, [""; 0], "calls that are sent at once and succeed");
    assert_eq!(called(1).await, ["DEBUG retrying"]);
    assert_eq!(called(1).await, ["DEBUG sending after a wait for the pace", "DEBUG not retrying"]);
    assert_eq!(called(1).await, ["DEBUG not sending: the wait for the pace is too long"]);
}

#[tokio::test(start_paused = true)]
async fn a_spent_budget_is_a_warning() {
    let (messages, _guard) = listen();
    let server = Server::new(|_, _| reply(503, &[]));
    let layer = ClientLayer::new().budget(0.0, 0);
    client!(server, layer).oneshot(get()).await.unwrap();
    assert_eq!(*messages.0.lock().unwrap(), ["WARN not retrying: the budget is spent"]);
}
