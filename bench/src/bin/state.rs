//! Snapshots of a store in memory: the longest check while they are written, the time that writing and reading take, and
//! the size of the file.
//!
//! One thread writes snapshots to a file without a break, as a server does every few seconds, synchronisation with the
//! disk included. The other checks random keys, and times every check, until three snapshots were written. Every check is
//! allowed, and so takes the lock of its shard: a snapshot holds that lock while it copies the shard.
//!
//! The aim is that no check waits for more than 1 ms. A pause caused by the snapshot recurs in every run, while those of
//! the machine occur at random, so the row compares the longest check of the best run. The same checks without snapshots,
//! and a loop that only reads the timer, show the machine's part.

#![allow(missing_docs, reason = "a program has no users of its items")]

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use tidegate::state_file::{self, StateFile, StateFileSettings};
use tidegate::state_file_lock::StateFileLock;
use tidegate_bench::keys::{Order, for_each_key};
use tidegate_bench::report::{Report, Row, lowest};
use tidegate_bench::sample::quiet_rounds;
use tidegate_bench::stopwatch::{Pauses, Stopwatch, control};
use tidegate_bench::threads::together;
use tidegate_core::{Gate, Limit, MemoryStore, SystemClock};

const RUNS: usize = 3;
/// Snapshots that are written while checks are timed.
const SNAPSHOTS: usize = 3;
const MOST_CHECKS: u64 = 1 << 26;
/// Keys that are checked, in random order, again and again.
const DRAWN: usize = 1 << 20;
const AIM: Duration = Duration::from_millis(1);

/// The contents of a store. No check of it is denied, and no key recovers.
struct Content {
    what: &'static str,
    keys: u64,
    limit: &'static str,
    /// Checks of each key before the measurement.
    checks: usize,
}

impl Content {
    /// Twice as much as is needed: a log takes up several units.
    const fn room(&self) -> usize {
        2 * self.keys as usize * self.checks
    }
}

const BUCKETS: [Content; 2] = [
    Content { what: "1 M buckets", keys: 1_000_000, limit: "1/h burst 1000", checks: 1 },
    Content { what: "10 M buckets", keys: 10_000_000, limit: "1/h burst 1000", checks: 1 },
];
const LOGS: Content = Content { what: "400 k logs of 60", keys: 400_000, limit: "log 1000/day", checks: 60 };

fn main() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/bench/state");
    std::fs::create_dir_all(&folder).expect("the folder can be made");
    let path = folder.join("snapshot");
    let mut report = Report::default();
    let measured: Vec<[Vec<Row>; 2]> = BUCKETS.iter().map(|content| measure(content, &path)).collect();
    let (pauses, costs): (Vec<_>, Vec<_>) = measured.into_iter().map(|[pauses, costs]| (pauses, costs)).unzip();
    report.section("Longest check while snapshots are written", lowest_against_aim("state/pause", pauses.concat()));
    let [pauses, log_costs] = measure(&LOGS, &path);
    report.section("Longest check of a long log", lowest_against_aim("state/pause-logs", pauses));
    report.section("Snapshots", [costs.concat(), log_costs].concat());
    report.write("state");
    std::fs::remove_dir_all(&folder).expect("the folder can be removed");
}

/// The id belongs to the worst row that is compared with the aim.
fn lowest_against_aim(id: &str, rows: Vec<Row>) -> Vec<Row> {
    let (aims, others): (Vec<_>, Vec<_>) = rows.into_iter().partition(|row| row.peer == "aim");
    [lowest(id, aims), others].concat()
}

/// Rows about pauses, and rows about the time and the size of snapshots.
fn measure(content: &Content, path: &Path) -> [Vec<Row>; 2] {
    let store = Arc::new(MemoryStore::with_clock_and_cap(SystemClock::new(), content.room()));
    let limit: Limit = content.limit.parse().expect("a limit");
    let gate = Gate::in_store(Arc::clone(&store), "gate", limit);
    for _ in 0..content.checks {
        for_each_key(0..content.keys, |key| assert!(gate.check(key.as_str()).is_allowed()));
    }
    let settings = StateFileSettings { path: path.to_owned(), every: Duration::from_secs(5) };
    let file = StateFile::new(settings, StateFileLock::default(), Vec::new());
    let began = Instant::now();
    let saving = quiet_rounds(RUNS, |run| checks_while(content, &gate, run, || save(&file, &store, content.keys)));
    let took = began.elapsed() / RUNS as u32;
    let stats = file.stats();
    // As long as a snapshot, without one.
    let span = Duration::from_micros(stats.took);
    let idle = quiet_rounds(RUNS, |run| checks_while(content, &gate, run, || std::thread::sleep(span)));
    let timer = control(took);

    let what = |which: &str| format!("{}, {which}", content.what);
    let micros = |pause: Duration| pause.as_secs_f64() * 1e6;
    let best = |of: &[Pauses], which: fn(&Pauses) -> Duration| of.iter().map(which).min().unwrap_or_default();
    let row = |which: &str, ours: Duration, peer: &str, theirs: Duration| {
        Row::smaller_is_better(what(which), micros(ours), peer, micros(theirs), "µs")
    };
    let longest = best(&saving, |run| run.worst);
    let rare = best(&saving, |run| run.rare);
    let pauses = vec![
        row("longest check", longest, "aim", AIM),
        row("longest check", longest, "no snapshots", best(&idle, |run| run.worst)),
        row("longest check", longest, "reading the timer", timer.worst),
        row("all but 1 in 10 000", rare, "no snapshots", best(&idle, |run| run.rare)),
    ];
    [pauses, costs(content, path, stats.bytes, span, what)]
}

fn save(file: &StateFile, store: &MemoryStore, keys: u64) {
    let saved = file.save(store).expect("the snapshot can be written").expect("the file is this program's");
    assert_eq!(saved.keys, keys, "every key owes something");
}

/// Times checks on one thread while another one works [`SNAPSHOTS`] times.
fn checks_while(content: &Content, gate: &Gate, run: usize, work: impl Fn() + Sync) -> Pauses {
    let mut order = Order::of_length(DRAWN);
    order.draw(content.keys, run as u64);
    let done = AtomicUsize::new(0);
    let timed = together(2, |thread| {
        if thread == 1 {
            for _ in 0..SNAPSHOTS {
                work();
                done.fetch_add(1, Ordering::Relaxed);
            }
            return None;
        }
        let mut stopwatch = Stopwatch::new(MOST_CHECKS);
        let mut keys = order.keys().iter().cycle();
        while done.load(Ordering::Relaxed) < SNAPSHOTS && (stopwatch.checks() as u64) < MOST_CHECKS {
            let key = keys.next().expect("a cycle has no end");
            stopwatch.time(|| assert!(gate.check(key.as_str()).is_allowed(), "no key is at its limit"));
        }
        Some(stopwatch.pauses())
    });
    timed.results.into_iter().flatten().next().expect("the first thread timed its checks")
}

/// The time of writing and reading beside that of the bare bytes, and the size of the file.
fn costs(content: &Content, path: &Path, bytes: u64, writing: Duration, what: impl Fn(&str) -> String) -> Vec<Row> {
    let restored = timed(|| state_file::read(path, content.room()));
    let read = restored.1.expect("the snapshot can be read").expect("there is one");
    assert_eq!((read.counts.keys, read.dropped), (content.keys, 0));
    drop(read);
    let bare_read = timed(|| std::fs::read(path));
    let contents = bare_read.1.expect("the file can be read");
    let beside = PathBuf::from(path).with_extension("bare");
    let bare_write = timed(|| {
        std::fs::write(&beside, &contents)?;
        std::fs::File::open(&beside)?.sync_all()
    });
    bare_write.1.expect("the bytes can be written");
    let row = |which: &str, ours: Duration, peer: &str, theirs: Duration| {
        Row::smaller_is_better(what(which), ours.as_secs_f64(), peer, theirs.as_secs_f64(), "s")
    };
    let each = bytes as f64 / content.keys as f64;
    // A bucket has a hash of 8 bytes, and a state of 8.
    let least = 16.0 * content.checks as f64;
    vec![
        row("writing, under load", writing, "the bare bytes", bare_write.0),
        row("reading", restored.0, "the bare bytes", bare_read.0),
        Row::smaller_is_better(what("size"), each, "hash and state", least, "bytes a key"),
    ]
}

fn timed<T>(work: impl FnOnce() -> T) -> (Duration, T) {
    let began = Instant::now();
    let result = work();
    (began.elapsed(), result)
}
