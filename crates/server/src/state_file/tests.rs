use std::os::unix::fs::PermissionsExt;

use tidegate_core::{Charge, Key, RuleId};

use super::*;

fn folder() -> PathBuf {
    let name = format!("tidegate-state-{}-{:?}", std::process::id(), std::thread::current().id());
    let folder = std::env::temp_dir().join(name.replace(['(', ')'], "-"));
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).unwrap();
    folder
}

#[test]
fn a_file_is_replaced_as_a_whole_and_only_its_owner_can_read_it() {
    let folder = folder();
    let path = folder.join("state");
    assert!(read(&path, 1_000).unwrap().is_none());
    let settings = StateFileSettings { path: path.clone(), every: Duration::from_secs(5) };
    let file = StateFile::new(settings, StateFileLock::default(), b"key".to_vec());
    let store = MemoryStore::with_clock_and_cap(SystemClock::new(), 1_000);
    let (rule, limit) = (RuleId::new("rule"), "fixed 10/year".parse().unwrap());
    for left in [9, 8] {
        store.decide(&[Charge::new(&rule, &Key::from("alice"), &limit)]).unwrap();
        assert_eq!(file.save(&store).unwrap().unwrap().keys, 1);
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let restored = read(&path, 1_000).unwrap().unwrap();
        assert_eq!(restored.note, b"key");
        let key = Key::from("alice");
        let charge = Charge::new(&rule, &key, &limit).cost(0);
        assert_eq!(restored.store.peek_one(&charge).remaining, left);
    }
    let stats = file.stats();
    assert_eq!((stats.saves, stats.failures), (2, 0));
    assert!(stats.saved_at > 1_600_000_000 && stats.bytes == fs::metadata(&path).unwrap().len());
    // The folder is gone, and so nothing can be written.
    fs::remove_dir_all(&folder).unwrap();
    assert!(file.save(&store).is_err());
    assert_eq!(file.stats().failures, 1);
}

fn names(folder: &Path) -> Vec<String> {
    let names = fs::read_dir(folder).unwrap().map(|found| found.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = names.collect();
    names.sort();
    names
}

fn state_file(path: &Path) -> StateFile {
    let settings = StateFileSettings { path: path.to_owned(), every: Duration::from_secs(5) };
    StateFile::new(settings, StateFileLock::default(), Vec::new())
}

#[test]
fn two_files_with_one_path_never_share_an_unfinished_snapshot() {
    let folder = folder();
    let path = folder.join("state");
    let store = MemoryStore::with_clock_and_cap(SystemClock::new(), 1_000);
    let (one, other) = (state_file(&path), state_file(&path));
    assert_ne!(one.unfinished, other.unfinished);
    // The other process is in the middle of its snapshot.
    let theirs = format!("state{}", other.unfinished);
    fs::write(folder.join(&theirs), "half").unwrap();
    one.save(&store).unwrap();
    assert_eq!(names(&folder), ["state", &theirs]);
    assert_eq!(fs::read(folder.join(&theirs)).unwrap(), b"half");
    assert!(read(&path, 1_000).unwrap().is_some());
    fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn unfinished_snapshots_of_killed_processes_are_removed_and_nothing_else() {
    let folder = folder();
    let others = ["other.0123456789abcdef.new", "state.lock", "state.new", "state.old.new", "state.tar.new"];
    for name in others.iter().chain(&["state.0123456789abcdef.new", "state.fedcba9876543210.new"]) {
        fs::write(folder.join(name), "half").unwrap();
    }
    let path = folder.join("state");
    let settings = StateFileSettings { path: path.clone(), every: Duration::from_secs(5) };
    StateFile::new(settings, StateFileLock::acquire(&path).unwrap(), Vec::new()).remove_unfinished();
    assert_eq!(names(&folder), others);
    fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn without_the_lock_no_unfinished_snapshot_is_removed() {
    let folder = folder();
    fs::write(folder.join("state.0123456789abcdef.new"), "half").unwrap();
    state_file(&folder.join("state")).remove_unfinished();
    assert_eq!(names(&folder), ["state.0123456789abcdef.new"]);
    fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn a_file_that_was_left_to_a_successor_stays_as_it_is() {
    let folder = folder();
    let path = folder.join("state");
    let store = MemoryStore::with_clock_and_cap(SystemClock::new(), 1_000);
    let file = state_file(&path);
    file.check_writable().unwrap();
    assert_eq!(names(&folder), Vec::<String>::new());
    assert!(file.save(&store).unwrap().is_some() && path.exists());
    file.leave();
    fs::write(&path, "the successor's").unwrap();
    assert!(file.save(&store).unwrap().is_none());
    assert_eq!((fs::read(&path).unwrap().as_slice(), file.stats().saves), (&b"the successor's"[..], 1));
    fs::remove_dir_all(&folder).unwrap();
    assert!(file.check_writable().is_err());
}

#[test]
fn the_first_of_several_failures_is_logged_and_the_success_after_them() {
    let folder = folder();
    let store = MemoryStore::with_clock_and_cap(SystemClock::new(), 1_000);
    let file = state_file(&folder.join("state"));
    let logged = Logged::default();
    let subscriber = tracing_subscriber::fmt().with_ansi(false).with_writer(logged.clone()).finish();
    tracing::subscriber::with_default(subscriber, || {
        file.save(&store).unwrap();
        fs::remove_dir_all(&folder).unwrap();
        for _ in 0..3 {
            assert!(file.save(&store).is_err());
        }
        fs::create_dir_all(&folder).unwrap();
        for _ in 0..3 {
            file.save(&store).unwrap();
        }
    });
    let text = String::from_utf8(logged.0.lock().unwrap().clone()).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines.len() == 2 && lines[0].contains("the state cannot be saved: a restart"), "{text}");
    assert!(lines[1].contains("the state can be saved again"), "{text}");
    assert_eq!((file.stats().saves, file.stats().failures), (4, 3));
    fs::remove_dir_all(&folder).unwrap();
}

/// Lines of the log.
#[derive(Clone, Default)]
struct Logged(std::sync::Arc<Mutex<Vec<u8>>>);

impl Write for Logged {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl tracing_subscriber::fmt::MakeWriter<'_> for Logged {
    type Writer = Logged;

    fn make_writer(&self) -> Logged {
        self.clone()
    }
}

#[test]
fn a_symbolic_link_stays_and_its_target_is_replaced() {
    let folder = folder();
    let (target, link) = (folder.join("elsewhere"), folder.join("state"));
    let store = MemoryStore::with_clock_and_cap(SystemClock::new(), 1_000);
    state_file(&target).save(&store).unwrap();
    std::os::unix::fs::symlink(&target, &link).unwrap();
    let rule = RuleId::new("rule");
    store.decide(&[Charge::new(&rule, &Key::from("alice"), &"fixed 10/year".parse().unwrap())]).unwrap();
    state_file(&link).save(&store).unwrap();
    assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
    assert_eq!(read(&target, 1_000).unwrap().unwrap().counts.keys, 1);
    fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn a_file_of_another_program_is_refused_with_what_to_do() {
    let folder = folder();
    let path = folder.join("state");
    fs::write(&path, "something else entirely").unwrap();
    let error = read(&path, 1_000).err().unwrap().to_string();
    let told = "cannot be used: it is not a snapshot of Tidegate's state. To start without its state, move it to another place";
    assert!(error.ends_with(told), "{error}");
    assert!(read(&folder, 1_000).err().unwrap().to_string().contains("it cannot be read"));
    assert!(read(Path::new("/dev/null"), 1_000).err().unwrap().to_string().contains("it is not a regular file"));
    fs::remove_dir_all(&folder).unwrap();
}
