//! The stores with which traces are compared: on a real server, and on the server in this process.

use std::cell::RefCell;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tidegate_core::{Clock, ManualClock, StoreError, Timestamp};
use tidegate_redis::{RedisStore, Settings};
use tokio::runtime::{Builder, Runtime};
use tokio::time::sleep;

use crate::store::redis_in_process::{ScriptedServer, SimulatedNetwork};
use crate::store::server;

/// An empty store with a clock of the test.
pub(crate) enum Remote {
    Server(RedisStore),
    InProcess(Box<InProcess>),
}

/// A store on the server in this process, over a network in virtual time.
pub(crate) struct InProcess {
    store: RedisStore,
    network: SimulatedNetwork,
    server: RefCell<ScriptedServer>,
    // Last field, so that it is dropped last: the link's task ends with it.
    runtime: Runtime,
}

impl Remote {
    pub(crate) fn on_a_server(clock: impl Clock + 'static) -> Remote {
        Remote::Server(server::store(&server::prefix(), clock))
    }

    pub(crate) fn in_this_process(clock: impl Clock + 'static) -> Remote {
        let runtime = Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        // The server's own clock only expires keys, which must not depend on the clock of the test.
        let server = ScriptedServer::new(Arc::new(ManualClock::at(Timestamp::from_secs(1_700_000_000))));
        let network = SimulatedNetwork::new(1, 0);
        let mut settings = Settings::standalone("redis://simulated").unwrap();
        settings.deadline = Duration::from_secs(10);
        settings.dialer = Some(network.dialer(0));
        let store = {
            let _context = runtime.enter();
            RedisStore::open_with_clock(settings, clock).unwrap()
        };
        Remote::InProcess(Box::new(InProcess { store, network, server: RefCell::new(server), runtime }))
    }

    pub(crate) const fn store(&self) -> &RedisStore {
        match self {
            Remote::Server(store) => store,
            Remote::InProcess(in_process) => &in_process.store,
        }
    }

    /// Waits for the answer of the store.
    pub(crate) fn ask<T>(&self, answer: impl Future<Output = Result<T, StoreError>>) -> T {
        let answer = match self {
            Remote::Server(_) => server::runtime().block_on(answer),
            Remote::InProcess(in_process) => in_process.wait_for(answer),
        };
        answer.unwrap_or_else(|error| panic!("the store failed: {error}"))
    }
}

impl InProcess {
    fn wait_for<T>(&self, answer: impl Future<Output = T>) -> T {
        self.runtime.block_on(async {
            let mut answer = pin!(answer);
            loop {
                tokio::select! {
                    biased;
                    answer = &mut answer => return answer,
                    () = sleep(Duration::from_millis(1)) => self.network.tick(&mut self.server.borrow_mut()),
                }
            }
        })
    }
}
