//! Reloads rules when their files change.
//!
//! A saved file takes effect within a second. The operating system reports changes (`notify`), but not all of them (a
//! Kubernetes `ConfigMap` swaps symbolic links, and network file systems report nothing), so the contents are also
//! checked twice a second. In both cases, only a change of the contents counts. A file is loaded once it has not
//! changed for a moment, so that a partly written file is not loaded. A broken file changes nothing.

use std::path::PathBuf;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::Duration;

use notify::event::{AccessKind, AccessMode};
use notify::{Event, EventKind, RecommendedWatcher, RecursiveMode, Watcher};
use tidegate_rules::{Diagnostics, FilesHash, Loaded, load};

/// Interval between checks of the contents.
const POLL_INTERVAL: Duration = Duration::from_millis(500);
/// Time without changes before a file is loaded.
const SETTLED_AFTER: Duration = Duration::from_millis(50);

/// Number of checks after which a file that keeps changing is loaded anyway.
const MOST_POLLS: usize = 8;

/// Follows files until dropped.
pub struct Watch {
    wake: Sender<Wake>,
    thread: Option<JoinHandle<()>>,
}

enum Wake {
    Poll,
    Reload,
    Stop,
}

/// Error of starting the watcher.
#[derive(Debug, thiserror::Error)]
#[error("the rules files cannot be watched: {0}")]
pub struct WatchError(#[from] std::io::Error);

impl Watch {
    /// Watches the files and folders at `paths`, of which `files` with these `contents` were read ([`Loaded::files`],
    /// [`Loaded::contents`]). On each change since then, loads them and calls `tell` with the result, on a separate
    /// thread.
    ///
    /// # Errors
    /// If the thread cannot be started.
    pub fn start(
        paths: Vec<PathBuf>,
        files: Vec<PathBuf>,
        contents: FilesHash,
        tell: impl FnMut(Result<Loaded, Diagnostics>) + Send + 'static,
    ) -> Result<Watch, WatchError> {
        let (wake, wakes) = mpsc::channel();
        let watched = WatchedFiles { paths, files, contents };
        let says = wake.clone();
        // Without notifications from the system, polling still works.
        let watcher = notify::recommended_watcher(move |event: notify::Result<Event>| {
            if event.as_ref().map_or(true, is_change) {
                let _ = says.send(Wake::Poll);
            }
        });
        let mut watcher = watcher.ok();
        watched.subscribe(watcher.as_mut());
        let thread = std::thread::Builder::new()
            .name("tidegate-watch".to_owned())
            .spawn(move || watched.follow(&wakes, watcher, tell))?;
        Ok(Watch { wake, thread: Some(thread) })
    }

    /// Loads the files immediately, changed or not.
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

/// Whether a file may have changed. Read events are ignored: checking reads the files, and would trigger itself
/// forever.
fn is_change(event: &Event) -> bool {
    match event.kind {
        EventKind::Access(access) => access == AccessKind::Close(AccessMode::Write),
        _ => true,
    }
}

struct WatchedFiles {
    /// Configured files and folders.
    paths: Vec<PathBuf>,
    /// Files read at the last load, including included ones.
    files: Vec<PathBuf>,
    /// Contents that the last load has read.
    contents: FilesHash,
}

impl WatchedFiles {
    /// Contents of the files as they are now.
    fn present_contents(&self) -> FilesHash {
        FilesHash::now(&self.paths, &self.files)
    }

    fn subscribe(&self, watcher: Option<&mut RecommendedWatcher>) {
        let Some(watcher) = watcher else { return };
        // Folders rather than files, because editors save by replacing a file with a new one.
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
            let mut asked = match wakes.recv_timeout(POLL_INTERVAL) {
                Ok(Wake::Stop) | Err(RecvTimeoutError::Disconnected) => return,
                Ok(Wake::Reload) => true,
                Ok(Wake::Poll) => {
                    // Busy folders cause many events: one check covers all of them.
                    std::thread::sleep(SETTLED_AFTER);
                    false
                }
                Err(RecvTimeoutError::Timeout) => false,
            };
            for wake in wakes.try_iter() {
                match wake {
                    Wake::Stop => return,
                    Wake::Reload => asked = true,
                    Wake::Poll => {}
                }
            }
            if !asked && self.present_contents() == self.contents {
                continue;
            }
            let settled = self.settled();
            let result = load(&self.paths);
            // A failed load does not state what it has read, so files that have changed since they settled are loaded
            // again.
            self.contents = result.as_ref().map_or(settled, |loaded| loaded.contents);
            if let Ok(loaded) = &result {
                self.files.clone_from(&loaded.files);
                self.subscribe(watcher.as_mut());
            }
            tell(result);
        }
    }

    /// Contents of the files once two consecutive checks find the same, or after a bounded time.
    fn settled(&self) -> FilesHash {
        let mut before = self.present_contents();
        for _ in 0..MOST_POLLS {
            std::thread::sleep(SETTLED_AFTER);
            let now = self.present_contents();
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
    fn reading_a_file_is_not_a_change() {
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
        // Events are ordered, so an event from the read would have come first.
        let first = changes.recv().unwrap();
        assert_eq!(first.paths, [last], "{first:?}");
    }
}
