//! Rules that follow their files.
//!
//! A watched file takes effect within a second of being saved. The operating system says when something has changed
//! (`notify`); because it does not always (a Kubernetes `ConfigMap` swaps symbolic links, network file systems say
//! nothing), the contents are also looked at twice a second. Either way only a change of contents counts. A file is
//! loaded once it has been left alone for a moment, so that half a save is not taken for the whole, and a broken file
//! changes nothing.

use std::hash::{BuildHasher, RandomState};
use std::path::PathBuf;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::Duration;

use notify::event::{AccessKind, AccessMode};
use notify::{Event, EventKind, RecommendedWatcher, RecursiveMode, Watcher};
use tidegate_rules::{Diagnostics, Loaded, file_contents, load, rules_files};

/// How often the contents are looked at when nothing is said to have changed.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// How long a file must have been left alone.
const SETTLED_AFTER: Duration = Duration::from_millis(50);

/// A file that is never left alone is loaded all the same after this many looks.
const MOST_LOOKS: usize = 8;

/// Follows files until dropped.
pub struct Watch {
    wake: Sender<Wake>,
    thread: Option<JoinHandle<()>>,
}

enum Wake {
    Look,
    Reload,
    Stop,
}

/// Why the files cannot be followed.
#[derive(Debug, thiserror::Error)]
#[error("the rules files cannot be watched: {0}")]
pub struct WatchError(#[from] std::io::Error);

impl Watch {
    /// Follows the files and folders at `paths`, of which `files` were read ([`Loaded::files`]). Each time that their
    /// contents change they are loaded anew and `tell` is called with the result, on a thread of its own.
    ///
    /// # Errors
    /// If no thread can be had.
    pub fn start(
        paths: Vec<PathBuf>,
        files: Vec<PathBuf>,
        tell: impl FnMut(Result<Loaded, Diagnostics>) + Send + 'static,
    ) -> Result<Watch, WatchError> {
        let (wake, wakes) = mpsc::channel();
        let following = Following::new(paths, files);
        let says = wake.clone();
        // Where the system cannot say what has changed, looking twice a second is still good enough.
        let watcher = notify::recommended_watcher(move |event: notify::Result<Event>| {
            if event.as_ref().map_or(true, is_change) {
                let _ = says.send(Wake::Look);
            }
        });
        let mut watcher = watcher.ok();
        following.subscribe(watcher.as_mut());
        let thread = std::thread::Builder::new()
            .name("tidegate-watch".to_owned())
            .spawn(move || following.follow(&wakes, watcher, tell))?;
        Ok(Watch { wake, thread: Some(thread) })
    }

    /// Loads the files now, changed or not.
    pub fn reload(&self) {
        let _ = self.wake.send(Wake::Reload);
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let _ = self.wake.send(Wake::Stop);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Whether something may have changed. Reading a file is an event too, and looking reads: whoever looked because of that
/// would look for ever.
fn is_change(event: &Event) -> bool {
    match event.kind {
        EventKind::Access(access) => access == AccessKind::Close(AccessMode::Write),
        _ => true,
    }
}

struct Following {
    /// As they were given: files and folders.
    paths: Vec<PathBuf>,
    /// All that was read the last time, included files too.
    files: Vec<PathBuf>,
    hasher: RandomState,
    /// What the contents were the last time they were loaded.
    contents: u64,
}

impl Following {
    fn new(paths: Vec<PathBuf>, files: Vec<PathBuf>) -> Following {
        let mut following = Following { paths, files, hasher: RandomState::new(), contents: 0 };
        following.contents = following.look();
        following
    }

    /// A number that changes with the contents of any file that matters, or with which files there are.
    fn look(&self) -> u64 {
        let mut files = rules_files(&self.paths);
        files.extend(self.files.iter().cloned());
        files.sort();
        files.dedup();
        let contents: Vec<_> = files.into_iter().map(|file| (file_contents(&file).ok(), file)).collect();
        self.hasher.hash_one(contents)
    }

    fn subscribe(&self, watcher: Option<&mut RecommendedWatcher>) {
        let Some(watcher) = watcher else { return };
        // Folders rather than files: editors save by putting a new file in the old one's place.
        let folders = self.paths.iter().chain(&self.files).map(|path| match path.parent() {
            Some(folder) if !path.is_dir() => folder.to_owned(),
            _ => path.clone(),
        });
        for folder in folders {
            let folder = if folder.as_os_str().is_empty() { PathBuf::from(".") } else { folder };
            let _ = watcher.watch(&folder, RecursiveMode::NonRecursive);
        }
    }

    fn follow(
        mut self,
        wakes: &Receiver<Wake>,
        mut watcher: Option<RecommendedWatcher>,
        mut tell: impl FnMut(Result<Loaded, Diagnostics>),
    ) {
        loop {
            let mut asked = match wakes.recv_timeout(LOOK_EVERY) {
                Ok(Wake::Stop) | Err(RecvTimeoutError::Disconnected) => return,
                Ok(Wake::Reload) => true,
                Ok(Wake::Look) => {
                    // A folder in which much goes on says so often: one look answers all of it.
                    std::thread::sleep(SETTLED_AFTER);
                    false
                }
                Err(RecvTimeoutError::Timeout) => false,
            };
            for wake in wakes.try_iter() {
                match wake {
                    Wake::Stop => return,
                    Wake::Reload => asked = true,
                    Wake::Look => {}
                }
            }
            if !asked && self.look() == self.contents {
                continue;
            }
            self.contents = self.settled();
            let result = load(&self.paths);
            if let Ok(loaded) = &result {
                self.files.clone_from(&loaded.files);
                // What is included now may not have been before.
                self.contents = self.look();
                self.subscribe(watcher.as_mut());
            }
            tell(result);
        }
    }

    /// Waits until two looks a moment apart see the same, but not for ever.
    fn settled(&self) -> u64 {
        let mut before = self.look();
        for _ in 0..MOST_LOOKS {
            std::thread::sleep(SETTLED_AFTER);
            let now = self.look();
            if now == before {
                break;
            }
            before = now;
        }
        before
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reading_a_file_is_no_change_of_it() {
        let folder = tempfile::tempdir().unwrap();
        let (file, last) = (folder.path().join("rules.yaml"), folder.path().join("last"));
        std::fs::write(&file, "rules: []").unwrap();
        let (say, changes) = mpsc::channel();
        let mut watcher = notify::recommended_watcher(move |event: notify::Result<Event>| {
            let event = event.unwrap();
            if is_change(&event) {
                say.send(event).unwrap();
            }
        })
        .unwrap();
        watcher.watch(folder.path(), RecursiveMode::NonRecursive).unwrap();
        for _ in 0..100 {
            std::fs::read(&file).unwrap();
        }
        std::fs::write(&last, "").unwrap();
        // Events come in their order, so what came of reading came before this.
        let first = changes.recv().unwrap();
        assert_eq!(first.paths, [last], "{first:?}");
    }
}
