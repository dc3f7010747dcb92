//! Nodes that follow, each with its own limiter.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tidegate_core::MemoryStore;
use tidegate_redis::fleet::{Event, FleetControl, Following, NodeIdentity};
use tidegate_redis::link::Settings;
use tidegate_rules::{Limiter, Mode, Request, RuleSet};
use tidegate_test_support::eventually;

pub(crate) fn fleet_control(url: &str) -> FleetControl {
    let mut settings = Settings::standalone(url).unwrap();
    settings.connect_timeout = Duration::from_secs(2);
    FleetControl::new(&settings).unwrap()
}

/// Rules with one rule, which admits one request.
pub(crate) fn one_rule(id: &str) -> String {
    format!("rules:\n- {{ id: {id}, limit: fixed 1/366d }}\n")
}

pub(crate) struct Follower {
    pub(crate) limiter: Arc<Limiter<MemoryStore>>,
    events: Arc<Mutex<Vec<Event>>>,
    pub(crate) following: Following,
}

impl Follower {
    /// A node that begins with a rule called `own`.
    pub(crate) fn start(control: &FleetControl, id: &str) -> Follower {
        let own = RuleSet::parse("own", &one_rule("own")).unwrap();
        Follower::start_with(control, id, Arc::new(Limiter::new(own.rules, MemoryStore::new())))
    }

    pub(crate) fn start_with(control: &FleetControl, id: &str, limiter: Arc<Limiter<MemoryStore>>) -> Follower {
        let events = Arc::new(Mutex::new(Vec::new()));
        let written = Arc::clone(&events);
        let node = NodeIdentity::new(id, "test-host").unwrap();
        let following =
            control.follow(Arc::clone(&limiter), node, move |event| written.lock().unwrap().push(event)).unwrap();
        Follower { limiter, events, following }
    }

    pub(crate) fn events(&self) -> Vec<Event> {
        self.events.lock().unwrap().clone()
    }

    /// Waits for an event of this kind, and removes it and all earlier events.
    pub(crate) async fn next(&self, what: &str, wanted: impl Fn(&Event) -> bool) -> Event {
        eventually(what, async || {
            let mut events = self.events.lock().unwrap();
            let found = events.iter().position(&wanted)?;
            events.drain(..=found).next_back()
        })
        .await
    }

    /// Waits until the published version with this number is in force.
    pub(crate) async fn applied(&self, wanted: u64) -> Event {
        let is = |event: &Event| matches!(event, Event::Applied { version, .. } if *version == wanted);
        self.next(&format!("version {wanted} in force"), is).await
    }

    pub(crate) async fn refused(&self) -> String {
        let refused = self.next("a refusal", |event| matches!(event, Event::Refused { .. })).await;
        match refused {
            Event::Refused { reason, .. } => reason,
            other => panic!("{other:?}"),
        }
    }

    pub(crate) async fn found(&self) {
        self.next("Redis", |event| *event == Event::Found).await;
    }

    pub(crate) async fn lost(&self) {
        self.next("no Redis", |event| matches!(event, Event::Lost { .. })).await;
    }

    pub(crate) fn rules(&self) -> Vec<String> {
        self.limiter.rules().rules.rules().iter().map(|rule| rule.id().to_owned()).collect()
    }

    pub(crate) fn mode(&self, rule: &str) -> Option<Mode> {
        self.limiter.rules().rules.mode_of(rule)
    }

    pub(crate) fn allows(&self) -> bool {
        self.limiter.check_now(&Request::new("GET", "/")).is_allowed()
    }
}
