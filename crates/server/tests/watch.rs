//! Rules that change under a running limiter.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use tempfile::TempDir;
use tidegate::watch::Watch;
use tidegate_core::MemoryStore;
use tidegate_rules::{Diagnostics, FilesHash, Limiter, Loaded, Request, RuleSet, load};

/// Long enough for any machine; what is promised is a second.
const TIMEOUT: Duration = Duration::from_secs(30);
/// Twice the interval between checks: what was not loaded by then is not loaded.
const UNCHANGED: Duration = Duration::from_millis(1_200);

fn folder() -> TempDir {
    tempfile::tempdir().unwrap()
}

fn write(path: &Path, text: &str) {
    std::fs::write(path, text).unwrap();
}

/// Follows `path`, and forwards the results.
fn watch(path: &Path) -> (Watch, Receiver<Result<Loaded, Diagnostics>>) {
    watch_since(path, &load(&[path.to_owned()]).unwrap())
}

/// Follows `path`, from which these rules were loaded.
fn watch_since(path: &Path, loaded: &Loaded) -> (Watch, Receiver<Result<Loaded, Diagnostics>>) {
    let paths = vec![path.to_owned()];
    let (send, told) = channel();
    let tell = move |result| send.send(result).unwrap_or_default();
    (Watch::start(paths, loaded.files.clone(), loaded.contents, tell).unwrap(), told)
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
    assert!(told.recv_timeout(UNCHANGED).is_err());
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

#[test]
fn a_change_between_the_load_and_the_watch_is_loaded() {
    let folder = folder();
    let file = folder.path().join("rules.yaml");
    write(&file, &rule("first"));
    let loaded = load(std::slice::from_ref(&file)).unwrap();
    write(&file, &rule("second"));
    let (_watch, told) = watch_since(&file, &loaded);
    assert_eq!(ids(&told), ["second"]);
    let loaded = load(&[folder.path().to_owned()]).unwrap();
    write(&folder.path().join("third.yaml"), &rule("third"));
    let (_watch, told) = watch_since(folder.path(), &loaded);
    assert_eq!(ids(&told), ["second", "third"]);
}

/// However the files are found: through links, from one another, several times, or not at all.
#[cfg(unix)]
#[test]
fn files_have_the_contents_that_were_read_until_they_change() {
    use std::os::unix::fs::symlink;

    let (inside, empty) = (folder(), folder());
    let [file, copy, link, included] =
        ["rules.yaml", "copy", "link.yaml", "common"].map(|name| inside.path().join(name));
    let text = format!("include: [common, rules.yaml]\n{}", rule("own"));
    write(&included, &rule("common"));
    write(&file, &text);
    write(&copy, &text);
    symlink("rules.yaml", &link).unwrap();
    let all = [vec![inside.path().to_owned()], vec![file.clone(), link.clone()], vec![link.clone(), included.clone()]];
    let present = |paths: &Vec<PathBuf>, loaded: &Loaded| FilesHash::now(paths, &loaded.files);
    let loaded = all.each_ref().map(|paths| load(paths).unwrap());
    for (paths, loaded) in all.iter().zip(&loaded) {
        assert_eq!(present(paths, loaded), loaded.contents);
    }
    let nothing = RuleSet::parse("no rules", "rules: []").unwrap();
    assert_eq!(present(&vec![empty.path().to_owned()], &nothing), nothing.contents);

    let changes: [&dyn Fn(); 3] = [
        // A link leads to another file with the same text.
        &|| {
            std::fs::remove_file(&link).unwrap();
            symlink("copy", &link).unwrap();
        },
        &|| write(&included, &rule("changed")),
        &|| std::fs::remove_file(&included).unwrap(),
    ];
    let mut before = loaded.each_ref().map(|loaded| loaded.contents);
    for change in changes {
        change();
        for ((paths, loaded), before) in all.iter().zip(&loaded).zip(&mut before) {
            let now = present(paths, loaded);
            assert_ne!(now, *before);
            *before = now;
        }
    }
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
    let _watch = Watch::start(paths, loaded.files.clone(), loaded.contents, move |result| {
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
