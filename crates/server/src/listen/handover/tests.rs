use std::io::Write;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tidegate_core::{Charge, Key, MemoryStore, RuleId, SystemClock};
use tokio_util::sync::CancellationToken;

use super::inherited::ConfirmedHandover;
use super::*;

/// State with one key, and an open file as its lock.
struct State {
    store: MemoryStore,
    lock: std::fs::File,
    is_left: Arc<AtomicBool>,
}

impl HandedState for State {
    fn send(&self, mut out: &mut dyn Write) -> io::Result<SnapshotCounts> {
        self.store.save(&mut out, b"note")
    }

    fn lock(&self) -> Option<OwnedFd> {
        self.lock.try_clone().ok().map(OwnedFd::from)
    }

    fn leave(&self) {
        self.is_left.store(true, Ordering::SeqCst);
    }
}

/// A server that hands over one listener.
struct Predecessor {
    path: PathBuf,
    lock: PathBuf,
    is_left: Arc<AtomicBool>,
    succeeded: CancellationToken,
    offer: HandoverOffer,
    _folder: tempfile::TempDir,
}

impl Predecessor {
    fn start() -> Predecessor {
        let folder = tempfile::tempdir().unwrap();
        let (path, lock) = (folder.path().join("handover.sock"), folder.path().join("state.lock"));
        let store = MemoryStore::with_clock_and_cap(SystemClock::new(), 1_000);
        let charge = (RuleId::new("rule"), "fixed 10/year".parse().unwrap());
        store.decide(&[Charge::new(&charge.0, &Key::from("alice"), &charge.1)]).unwrap();
        let (is_left, succeeded) = (Arc::new(AtomicBool::new(false)), CancellationToken::new());
        let state = State { store, lock: std::fs::File::create(&lock).unwrap(), is_left: Arc::clone(&is_left) };
        let socket = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let offer = hand_over(&path, vec![socket.into()], Some(Box::new(state)), succeeded.clone()).unwrap();
        Predecessor { path, lock, is_left, succeeded, offer, _folder: folder }
    }

    fn goes_on(&self) -> bool {
        !self.succeeded.is_cancelled() && !self.is_left.load(Ordering::SeqCst)
    }

    /// A successor that has received everything.
    fn successor(&self) -> InheritedListeners {
        let mut successor = InheritedListeners::take(&self.path).unwrap();
        let state = successor.state(Some(1_000)).unwrap().unwrap();
        assert_eq!((state.counts.keys, state.note.as_slice()), (1, &b"note"[..]));
        successor
    }

    fn confirmed(&self) -> ConfirmedHandover {
        self.successor().confirm().unwrap().unwrap()
    }
}

#[test]
fn a_predecessor_goes_on_until_its_successor_has_taken_over() {
    let predecessor = Predecessor::start();
    // Each is killed later than the one before. The next one is served once the predecessor has noticed.
    drop(InheritedListeners::take(&predecessor.path).unwrap());
    drop(predecessor.successor());
    assert!(predecessor.goes_on());
    drop(predecessor.confirmed());
    let mut successor = predecessor.successor();
    assert!(predecessor.goes_on());
    let (handed, there) =
        (std::fs::File::from(successor.lock().unwrap()), std::fs::metadata(&predecessor.lock).unwrap());
    assert_eq!((handed.metadata().unwrap().dev(), handed.metadata().unwrap().ino()), (there.dev(), there.ino()));

    let confirmed = successor.confirm().unwrap().unwrap();
    assert_eq!(confirmed.predecessor(), Some(std::process::id()));
    assert!(predecessor.goes_on());
    confirmed.complete().unwrap();
    assert!(predecessor.succeeded.is_cancelled() && predecessor.is_left.load(Ordering::SeqCst));
    // The path is free for the offer of the successor.
    hand_over(&predecessor.path, Vec::new(), None, CancellationToken::new()).unwrap();
}

#[test]
fn a_successor_takes_over_from_a_predecessor_that_is_told_to_stop() {
    let predecessor = Predecessor::start();
    let successor = predecessor.successor();
    predecessor.offer.withdraw();
    assert!(successor.confirm().unwrap().is_none());
    assert!(predecessor.goes_on(), "it stops for another reason");

    let predecessor = Predecessor::start();
    let confirmed = predecessor.confirmed();
    predecessor.offer.withdraw();
    confirmed.complete().unwrap();
}

/// A predecessor that sends a listener and these messages, and then closes the connection.
fn told(listener: &UnixListener, path: &Path, messages: &[u8]) -> Result<Option<ConfirmedHandover>, HandoverError> {
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let (mut stream, _) = listener.accept().unwrap();
            let socket = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
            descriptors::send(&stream, &[socket.as_fd()], WITHOUT_STATE).unwrap();
            expect(&stream, READY).unwrap();
            stream.write_all(messages).unwrap();
        });
        InheritedListeners::take(path).unwrap().confirm()
    })
}

#[test]
fn a_successor_gives_up_if_its_predecessor_goes_on_and_takes_over_if_that_has_ended() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("handover.sock");
    let listener = UnixListener::bind(&path).unwrap();
    for messages in [&b""[..], b"x"] {
        let error = told(&listener, &path, messages).err().unwrap().to_string();
        assert!(error.ends_with("the server there has not confirmed the handover, and continues"), "{error}");
        // The successor has looked whether somebody listens.
        drop(listener.accept().unwrap());
    }
    let confirmed = told(&listener, &path, &[GRANTED]).unwrap().unwrap();
    assert!(confirmed.complete().is_err());
    drop(listener.accept().unwrap());
    let confirmed = told(&listener, &path, &[GRANTED]).unwrap().unwrap();
    drop(listener);
    confirmed.complete().unwrap();
}
