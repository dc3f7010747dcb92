//! Rules that change under a running limiter.

#![allow(clippy::unwrap_used, reason = "a test may fail")]

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use tempfile::TempDir;
use tidegate::watch::Watch;
use tidegate_core::MemoryStore;
use tidegate_rules::{Diagnostics, Limiter, Loaded, Request, load};

/// Long enough for any machine; what is promised is a second.
const TIMEOUT: Duration = Duration::from_secs(30);

fn folder() -> TempDir {
    tempfile::tempdir().unwrap()
}

fn write(path: &Path, text: &str) {
    std::fs::write(path, text).unwrap();
}

/// Follows `path`, and forwards the results.
fn watch(path: &Path) -> (Watch, Receiver<Result<Loaded, Diagnostics>>) {
    let paths = vec![path.to_owned()];
    let loaded = load(&paths).unwrap();
    let (send, told) = channel();
    let watch = Watch::start(paths, loaded.files.clone(), move |result| send.send(result).unwrap_or_default()).unwrap();
    (watch, told)
}

fn ids(told: &Receiver<Result<Loaded, Diagnostics>>) -> Vec<String> {
    let loaded = told.recv_timeout(TIMEOUT).unwrap().unwrap();
    loaded.rules.rules().iter().map(|rule| rule.id().to_owned()).collect()
}

fn rule(id: &str) -> String {
    format!("rules:\n- {{ id: {id}, limit: 10/s }}\n")
}

#[test]
fn a_saved_file_is_loaded() {
    let folder = folder();
    let file = folder.path().join("rules.yaml");
    write(&file, &rule("first"));
    let (_watch, told) = watch(&file);
    write(&file, &rule("second"));
    assert_eq!(ids(&told), ["second"]);
    let aside = folder.path().join("rules.yaml.tmp");
    write(&aside, &rule("third"));
    std::fs::rename(&aside, &file).unwrap();
    assert_eq!(ids(&told), ["third"]);
}

#[test]
fn a_broken_file_is_reported_once_and_a_mended_one_is_loaded() {
    let folder = folder();
    let file = folder.path().join("rules.yaml");
    write(&file, &rule("first"));
    let (_watch, told) = watch(&file);
    write(&file, "rules:\n- { id: broken, limit: 10/parsec }\n");
    let findings = told.recv_timeout(TIMEOUT).unwrap().unwrap_err();
    assert_eq!((findings.0[0].place.line, findings.errors()), (2, 1));
    // Twice the interval between checks, without a further result.
    assert!(told.recv_timeout(Duration::from_millis(1_200)).is_err());
    write(&file, &rule("mended"));
    assert_eq!(ids(&told), ["mended"]);
}

#[test]
fn files_that_come_and_go_in_a_folder_are_followed() {
    let folder = folder();
    write(&folder.path().join("a.yaml"), &rule("a"));
    let (_watch, told) = watch(folder.path());
    write(&folder.path().join("b.yaml"), &rule("b"));
    assert_eq!(ids(&told), ["a", "b"]);
    std::fs::remove_file(folder.path().join("a.yaml")).unwrap();
    assert_eq!(ids(&told), ["b"]);
}

#[test]
fn included_files_are_followed() {
    let folder = folder();
    let file = folder.path().join("rules.yaml");
    let elsewhere = tempfile::tempdir().unwrap();
    let included = elsewhere.path().join("common.yaml");
    write(&included, &rule("common"));
    write(&file, &format!("include: {}\n{}", included.display(), rule("own")));
    let (_watch, told) = watch(&file);
    write(&included, &rule("changed"));
    assert!(ids(&told).contains(&"changed".to_owned()));
}

/// Like Kubernetes: the file is a link into a folder that is itself a link, and only the latter changes.
#[cfg(unix)]
#[test]
fn a_config_map_that_swaps_its_links_is_followed() {
    use std::os::unix::fs::symlink;

    let folder = folder();
    let version = |name: &str, id: &str| {
        let version = folder.path().join(name);
        std::fs::create_dir(&version).unwrap();
        write(&version.join("rules.yaml"), &rule(id));
    };
    version("..1", "first");
    symlink("..1", folder.path().join("..data")).unwrap();
    symlink("..data/rules.yaml", folder.path().join("rules.yaml")).unwrap();
    let (_watch, told) = watch(folder.path());
    version("..2", "second");
    symlink("..2", folder.path().join("..data_tmp")).unwrap();
    std::fs::rename(folder.path().join("..data_tmp"), folder.path().join("..data")).unwrap();
    assert_eq!(ids(&told), ["second"]);
}

#[test]
fn a_reload_can_be_asked_for() {
    let folder = folder();
    let file = folder.path().join("rules.yaml");
    write(&file, &rule("first"));
    let (watch, told) = watch(&file);
    watch.reload();
    assert_eq!(ids(&told), ["first"]);
}

/// Ends the load, even if the test fails.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A hundred reloads that alternate between two limits, under continuous requests: each request is decided by one
/// generation, spent cost is kept, and no client gets more than the larger limit.
#[test]
fn reloads_under_load_lose_nothing() {
    const RELOADS: u64 = 100;
    const LARGER: u64 = 1_000_000;
    let folder = folder();
    let file: PathBuf = folder.path().join("rules.yaml");
    // The longest possible window, so that no window ends during the test.
    let text =
        |limit: u64, turn: u64| format!("# {turn}\nrules:\n- {{ id: api, key: user, limit: fixed {limit}/366d }}\n");
    write(&file, &text(LARGER, 0));
    let paths = vec![file.clone()];
    let loaded = load(&paths).unwrap();
    let limiter = Arc::new(Limiter::new(load(&paths).unwrap().rules, MemoryStore::new()));
    let (send, told) = channel();
    let follower = Arc::clone(&limiter);
    let _watch = Watch::start(paths, loaded.files.clone(), move |result| {
        // A file that was read while being written is rejected, and read again once complete.
        if let Ok(loaded) = result {
            send.send(follower.replace(loaded.rules)).unwrap_or_default();
        }
    })
    .unwrap();

    let stop = AtomicBool::new(false);
    let (asked, answered) = (AtomicU64::new(0), AtomicU64::new(0));
    let admitted = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let request = Request::new("GET", "/").user("alice");
                let mut least = LARGER;
                while !stop.load(Ordering::Relaxed) {
                    asked.fetch_add(1, Ordering::Relaxed);
                    let ruling = limiter.check_now(&request);
                    answered.fetch_add(1, Ordering::Relaxed);
                    assert_eq!(ruling.ruled.len(), 1);
                    admitted.fetch_add(u64::from(ruling.is_allowed()), Ordering::Relaxed);
                    // Under the larger limit, the remaining amount only ever decreases: no reload resets the counter.
                    if ruling.ruled[0].decision.limit == LARGER {
                        assert!(ruling.ruled[0].decision.remaining <= least, "the counter went back");
                        least = ruling.ruled[0].decision.remaining;
                    }
                }
            });
        }
        let _stop = Stop(&stop);
        for turn in 1..=RELOADS {
            write(&file, &text(if turn % 2 == 0 { LARGER } else { LARGER / 2 }, turn));
            assert_eq!(told.recv_timeout(TIMEOUT).unwrap(), turn + 1);
        }
    });
    assert_eq!(asked.load(Ordering::Relaxed), answered.load(Ordering::Relaxed));
    // Exactly the amount left after the reloads is available.
    let request = Request::new("GET", "/").user("alice");
    while limiter.check_now(&request).is_allowed() {
        admitted.fetch_add(1, Ordering::Relaxed);
    }
    assert_eq!(admitted.into_inner(), LARGER);
}
