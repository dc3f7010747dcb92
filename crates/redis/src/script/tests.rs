//! Many requests in one call of the script.

#[path = "../../tests/support/server.rs"]
#[allow(dead_code, reason = "the tests of the store use all of it")]
mod server;

use std::collections::BTreeMap;
use std::sync::LazyLock;

use redis::Connection;
use tidegate_core::contract::seed::seeds;
use tidegate_core::lease::{EPOCH, LeaseGeneration, LeaseRequest, Renewal};
use tidegate_core::limit::ChargeMark;
use tidegate_core::receipt::{Held, ReceiptId};
use tidegate_core::store::Adjustment;
use tidegate_core::{Charge, Key, Limit, Micros, Receipt, RuleId};

use super::SOURCE;
use crate::frame::{self, Frame};
use crate::limits::Kind;
use crate::names::Names;
use crate::reply;

static SCRIPT: LazyLock<redis::Script> = LazyLock::new(|| redis::Script::new(SOURCE));

/// The time of all calls, in microseconds.
const NOW: u64 = 1_794_700_800_123_456;

/// One call of the script for all `frames`, at the time `now` in microseconds.
fn command(frames: &[Frame], now: &str) -> redis::Cmd {
    let mut command = redis::cmd("EVALSHA");
    command.arg(SCRIPT.get_hash()).arg(frames.iter().map(|frame| frame.keys.len()).sum::<usize>());
    for key in frames.iter().flat_map(|frame| &frame.keys) {
        command.arg(&key[..]);
    }
    command.arg(now);
    for frame in frames {
        command.arg(&frame.body[..]);
    }
    command
}

/// A few keys under a rule for each limit, so that requests share keys.
struct World {
    limits: Vec<Limit>,
    rules: Vec<RuleId>,
    keys: Vec<Key<'static>>,
    dice: fastrand::Rng,
}

impl World {
    fn new(seed: u64) -> World {
        let limits = [
            "5/s burst 30",
            "gcra 3/s burst 30",
            "meter 7/s burst 30",
            "shaper 11/s queue 30",
            "fixed 30/min",
            "fixed 30/month calendar",
            "sliding 30/min",
            "sliding 30/min parts 6",
            "log 30/min",
            "concurrent 30 ttl 30s",
        ];
        World {
            limits: limits.map(|text| text.parse().unwrap()).to_vec(),
            // Limits share a few rules, so that the limits of some keys change.
            rules: (0..limits.len()).map(|index| RuleId::new(&format!("rule {}", index % 7))).collect(),
            keys: vec![Key::from("alice").owned(), Key::of(["acme", "bob"])],
            dice: fastrand::Rng::with_seed(seed),
        }
    }

    fn charges(&mut self) -> Vec<(usize, usize, u64, bool)> {
        let count = self.dice.usize(1..4);
        let World { dice, limits, keys, .. } = self;
        let mut charge = || (dice.usize(..limits.len()), dice.usize(..keys.len()), dice.u64(..5), dice.bool());
        (0..count).map(|_| charge()).collect()
    }

    fn charge(&self, (limit, key, cost, reserved): (usize, usize, u64, bool)) -> Charge<'_> {
        let charge = Charge::new(&self.rules[limit], &self.keys[key], &self.limits[limit]).cost(cost);
        if reserved { charge.reserve(Micros::from_secs(60)) } else { charge }
    }

    /// A request of any kind, encoded with the names of each of two stores.
    fn request(&mut self, names: [&Names; 2], receipts: &[Receipt]) -> [Frame; 2] {
        let id = ReceiptId::new(self.dice.u128(..));
        let (kind, asked) = (self.dice.u32(..12), self.charges());
        let (which, actual) = (self.dice.usize(..), [self.dice.u64(..6), self.dice.u64(..6)]);
        let reported = self.dice.bool().then_some(self.dice.u64(..4));
        let charges: Vec<Charge<'_>> = asked.iter().map(|&asked| self.charge(asked)).collect();
        let leases: Vec<LeaseRequest<'_>> = charges.iter().map(|charge| renewed(charge, reported)).collect();
        names.map(|names| {
            match kind {
                7 | 8 => frame::lease(names, leases.iter()),
                0 => frame::peek(names, &charges),
                1 => frame::adjust(names, &charges[0], Adjustment::Penalty),
                2 => frame::adjust(names, &charges[0], Adjustment::Credit),
                3 => frame::reset(names, charges[0].rule, charges[0].key),
                4 | 5 if !receipts.is_empty() => frame::settle(names, &receipts[which % receipts.len()], &actual),
                6 if !receipts.is_empty() => frame::renew(names, &receipts[which % receipts.len()]),
                _ => frame::decide(names, &charges, id),
            }
            .unwrap()
        })
    }

    /// Makes a reservation in each of two stores, to be settled later.
    fn hold(&mut self, names: [&Names; 2], connection: &mut Connection) -> Option<Receipt> {
        let id = ReceiptId::new(self.dice.u128(..));
        let asked = self.charges();
        let charges: Vec<Charge<'_>> = asked.iter().map(|&asked| self.charge(asked)).collect();
        let replies = names.map(|names| call(&[frame::decide(names, &charges, id).unwrap()], connection));
        assert_eq!(replies[0], replies[1]);
        let (_, marks) = reply::decisions_and_marks(&replies[0][0], &charges).unwrap();
        let held = charges.iter().filter(|charge| charge.is_held()).zip(marks);
        let held: Vec<Held> = held.map(|(charge, mark)| held_by(charge, mark)).collect();
        (!held.is_empty()).then_some(Receipt { id, held })
    }
}

/// A renewal of a lease of the present epoch. Reports this many tokens of each kind if there is anything to report.
fn renewed<'a>(charge: &Charge<'a>, reported: Option<u64>) -> LeaseRequest<'a> {
    let generation = LeaseGeneration { epoch: NOW / EPOCH.get(), part: None };
    let tokens = reported.unwrap_or_default();
    let renewal = Renewal {
        generation: reported.map(|_| generation),
        used: tokens,
        kept: tokens,
        returned: tokens,
        wanted: 4 * charge.cost,
        demand: charge.cost,
        ..Renewal::default()
    };
    LeaseRequest { rule: charge.rule, key: charge.key, limit: charge.limit, renewal }
}

fn held_by(charge: &Charge<'_>, mark: ChargeMark) -> Held {
    let (rule, key) = (charge.rule.clone(), charge.key.owned());
    Held { rule, key, limit: *charge.limit, taken: charge.cost, mark }
}

fn call(frames: &[Frame], connection: &mut Connection) -> Vec<Vec<u8>> {
    command(frames, &NOW.to_string()).query(connection).unwrap()
}

/// All keys and values under a prefix. The names do not include the prefix.
fn image(prefix: &str, connection: &mut Connection) -> BTreeMap<String, Vec<u8>> {
    let names: Vec<String> = redis::cmd("KEYS").arg(format!("{prefix}:*")).query(connection).unwrap();
    let strip = |name: &String| name.strip_prefix(prefix).unwrap().to_owned();
    names.iter().map(|name| (strip(name), content(name, connection))).collect()
}

/// The value of a key, without the spare lifetime at the end of a bucket, which does not affect its debt.
fn content(name: &str, connection: &mut Connection) -> Vec<u8> {
    let kind: String = redis::cmd("TYPE").arg(name).query(connection).unwrap();
    if kind != "string" {
        return redis::cmd("DUMP").arg(name).query(connection).unwrap();
    }
    let mut state: Vec<u8> = redis::cmd("GET").arg(name).query(connection).unwrap();
    if state[0] <= Kind::Shaper as u8 {
        assert_eq!(state.len(), 24);
        state.truncate(22);
    }
    state
}

/// Any number of requests in a call are decided one after the other, even if they share keys.
#[test]
fn requests_in_one_call_are_decided_as_if_each_had_its_own() {
    let mut connection = server::connection();
    SCRIPT.load(&mut connection).unwrap();
    for seed in seeds(0..200) {
        let mut world = World::new(seed);
        let prefixes = [server::prefix(), server::prefix()];
        let names = prefixes.each_ref().map(|prefix| Names::new(prefix).unwrap());
        let names = [&names[0], &names[1]];
        let receipts: Vec<Receipt> = (0..4).filter_map(|_| world.hold(names, &mut connection)).collect();
        let requests: Vec<[Frame; 2]> = (0..world.dice.usize(1..60)).map(|_| world.request(names, &receipts)).collect();
        let [apart, together] =
            [0, 1].map(|side| requests.iter().map(|frames| frames[side].clone()).collect::<Vec<_>>());
        let one_by_one: Vec<Vec<u8>> =
            apart.iter().flat_map(|frame| call(std::slice::from_ref(frame), &mut connection)).collect();
        assert_eq!(call(&together, &mut connection), one_by_one, "seed {seed}");
        assert_eq!(image(&prefixes[0], &mut connection), image(&prefixes[1], &mut connection), "seed {seed}");
    }
}
