//! The life of a server.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tidegate_core::Limiter;
use tidegate_core::rules::{Diagnostics, Loaded, RuleSet, load};
use tidegate_redis::steering::{Event, Following, NoRuntime, Node, Steering};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::admin::{self, AdminState, Token, TokenError};
use crate::config::Configuration;
use crate::engine::Engine;
use crate::listen::{HandoverError, Inheritance, ListenError, Listener, Peer, Settings, Stream, Tls, hand_over};
use crate::metrics::Door;
use crate::watch::{Watch, WatchError};
use crate::{api, gateway, resp, rls};

/// The rules of a server that was given none.
pub const EXAMPLE_RULES: &str = include_str!("example/rules.yaml");

/// How often the store is told of what was admitted without it, certificates are looked at, and denials are logged.
const HOUSEKEEPING: Duration = Duration::from_secs(1);

/// Why a server does not start.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The rules cannot be used.
    #[error("{0}")]
    Rules(Diagnostics),
    /// The store cannot be opened.
    #[error("the store cannot be opened: {0}")]
    Store(#[from] tidegate_redis::SettingsError),
    /// A door cannot be opened.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// What is published for the fleet cannot be followed.
    #[error(transparent)]
    Follow(#[from] NoRuntime),
    /// The rules cannot be followed.
    #[error(transparent)]
    Watch(#[from] WatchError),
    /// There is a server whose place cannot be taken, or nobody could take this one's.
    #[error(transparent)]
    Handover(#[from] HandoverError),
    /// Operators could not come in.
    #[error(transparent)]
    Token(#[from] TokenError),
    /// Nobody could come in.
    #[error("all doors are off: set `api.listen`, `rls.listen`, `resp.listen` or `gateway.upstream`")]
    NoDoor,
}

/// A server that is up.
pub struct Server {
    /// What decides.
    pub engine: Arc<Engine>,
    /// Where the gateway listens, if it is open.
    pub gateway: Option<SocketAddr>,
    /// Where the HTTP door listens, if it is open.
    pub api: Option<SocketAddr>,
    /// Where the door for Envoy listens, if it is open.
    pub rls: Option<SocketAddr>,
    /// Where the Redis door listens, if it is open.
    pub resp: Option<SocketAddr>,
    /// Where the operators' door listens, if it is open.
    pub admin: Option<SocketAddr>,
    /// What operators have to know, if it was made up.
    pub made_up_token: Option<Token>,
    /// How many rules there were at the start.
    pub rules: usize,
    operators: AdminState,
    doors: Doors,
    stop: CancellationToken,
    watch: Option<Watch>,
    following: Option<Following>,
    envoy: Option<rls::Door>,
    certificates: Vec<Arc<Tls>>,
    /// Another server has taken this one's place.
    succeeded: CancellationToken,
}

impl Server {
    /// Opens the store and the doors. From then on it serves.
    ///
    /// # Errors
    /// If the rules, the store or an address cannot be used.
    pub async fn start(configuration: Configuration) -> Result<Server, ServeError> {
        let Configuration { rules: paths, store, api, http, rls, envoy, resp, redis_protocol, .. } = configuration;
        make_room_for_connections();
        let loaded = load_rules(&paths)?;
        let rules = loaded.rules.rules().len();
        for warning in &loaded.warnings.0 {
            tracing::warn!(place = %warning.place, "{}", warning.problem);
        }
        let (steering, store) = (store.steering()?, store.open()?);
        let engine = Arc::new(Engine::new(Limiter::new(loaded.rules, store)));
        let stop = CancellationToken::new();
        let handover = configuration.handover;
        let mut doors = Doors::new(Arc::clone(&engine), stop.clone());
        if let Some(path) = &handover {
            doors.inherited = Inheritance::take(path)?;
        }
        let gateway = match configuration.gateway {
            Some(settings) => {
                let door = gateway::Door::open(&engine, configuration.forwarding, &stop);
                let serve = move |stream, peer, _, stop| door.clone().serve(stream, peer, stop);
                Some(doors.open(settings, counted(Door::Gateway, serve))?)
            }
            None => None,
        };
        let api = match api {
            Some(settings) => {
                let door = api::door(http, Arc::clone(&engine), stop.clone());
                Some(doors.open(settings, counted(Door::Http, door))?)
            }
            None => None,
        };
        let envoy = if rls.is_some() { Some(rls::Door::open(Arc::clone(&engine), envoy).await) } else { None };
        let rls = match (rls, &envoy) {
            (Some(settings), Some(door)) => Some(doors.open(settings, counted(Door::Envoy, envoy_door(door.clone())))?),
            _ => None,
        };
        let resp = match resp {
            Some(settings) => Some(doors.open(settings, counted(Door::Resp, redis_door(&engine, redis_protocol)))?),
            None => None,
        };
        if api.is_none() && rls.is_none() && resp.is_none() && gateway.is_none() {
            return Err(ServeError::NoDoor);
        }
        let are_published = Arc::new(AtomicBool::new(false));
        let (token, made_up_token) = match configuration.admin_token {
            Some(token) => (token, None),
            None => {
                let token = Token::random()?;
                (token.clone(), Some(token))
            }
        };
        let operators = AdminState::new(
            Arc::clone(&engine),
            admin::Settings {
                open_metrics: configuration.open_metrics,
                rules: paths.clone(),
                are_published: Arc::clone(&are_published),
                configuration: configuration.shown,
                stop: stop.clone(),
                ..admin::Settings::new(token)
            },
        );
        let admin = match configuration.admin {
            Some(settings) => {
                let router = admin::router(operators.clone());
                let door = move |stream, _, _, stop| admin::serve_connection(stream, router.clone(), stop);
                Some(doors.open(settings, counted(Door::Admin, door))?)
            }
            None => None,
        };
        let following = match steering {
            Some(steering) => Some(follow_fleet(&steering, &engine, &are_published)?),
            None => None,
        };
        let watch =
            if paths.is_empty() { None } else { Some(follow_files(paths, loaded.files, &engine, are_published)?) };
        let certificates = configuration.certificates;
        let succeeded = CancellationToken::new();
        if let Some(path) = &handover {
            doors.take_over(path, succeeded.clone())?;
        }
        Ok(Server {
            engine,
            gateway,
            api,
            rls,
            resp,
            admin,
            made_up_token,
            rules,
            operators,
            doors,
            stop,
            watch,
            following,
            envoy,
            certificates,
            succeeded,
        })
    }

    /// Serves until a signal says to stop (SIGTERM, SIGINT), then finishes what is in flight. SIGHUP reads rules and
    /// certificates again. A second signal to stop cuts what is still open.
    pub async fn until_stopped(mut self, mut signals: Signals) {
        let mut housekeeping = tokio::time::interval(HOUSEKEEPING);
        housekeeping.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                biased;
                told = signals.next() => match told {
                    Told::Stop => break,
                    Told::Reload => self.reload(),
                },
                () = self.succeeded.cancelled() => break,
                _ = housekeeping.tick() => self.keep_house().await,
            }
        }
        tracing::info!("stopping: no new connections, those in flight are finished");
        if let Some(envoy) = &self.envoy {
            envoy.closing().await;
        }
        self.stop.cancel();
        tokio::select! {
            () = self.doors.closed() => {}
            () = signals.stop() => tracing::warn!("told twice to stop: connections are cut"),
        }
        if let Some(following) = self.following.take() {
            let _ = tokio::time::timeout(HOUSEKEEPING, following.stop()).await;
        }
        // What was admitted without the store is told to it, if it is there again.
        let _ = tokio::time::timeout(HOUSEKEEPING, self.engine.limiter().report_local()).await;
    }

    /// Reads rules and certificates again, changed or not.
    pub fn reload(&self) {
        tracing::info!("reloading");
        if let Some(watch) = &self.watch {
            watch.reload();
        }
        self.reload_certificates();
    }

    async fn keep_house(&self) {
        self.engine.limiter().report_local().await;
        self.reload_certificates();
        self.operators.beat();
    }

    fn reload_certificates(&self) {
        for tls in &self.certificates {
            match tls.reload() {
                Ok(true) => tracing::info!("new certificates are in use"),
                Ok(false) => {}
                Err(error) => tracing::error!(%error, "certificates cannot be used: those in use stay"),
            }
        }
    }
}

fn load_rules(paths: &[PathBuf]) -> Result<Loaded, ServeError> {
    if paths.is_empty() {
        return RuleSet::parse("the example", EXAMPLE_RULES).map_err(ServeError::Rules);
    }
    load(paths).map_err(ServeError::Rules)
}

/// The door for Envoy.
fn envoy_door(
    door: rls::Door,
) -> impl Fn(Stream, Peer, Arc<Engine>, CancellationToken) -> api::Serving + Send + Sync + 'static {
    move |stream, _, _, stop| Box::pin(door.clone().serve_connection(stream, stop))
}

/// The door for clients of Redis.
fn redis_door(
    engine: &Arc<Engine>,
    settings: resp::Settings,
) -> impl Fn(Stream, Peer, Arc<Engine>, CancellationToken) -> api::Serving + Send + Sync + 'static {
    let door = Arc::new(resp::Door::new(Arc::clone(engine), settings));
    move |stream, peer, _, stop| {
        let door = Arc::clone(&door);
        Box::pin(async move { door.serve(stream, peer.address, stop).await })
    }
}

/// Follows what is published for the fleet, and notes whether the rules in force are such.
fn follow_fleet(steering: &Steering, engine: &Engine, are_published: &Arc<AtomicBool>) -> Result<Following, NoRuntime> {
    let are_published = Arc::clone(are_published);
    steering.follow(engine.shared_limiter(), Node::here(), move |event| match event {
        Event::Applied { version, rules, generation, unknown } => {
            are_published.store(rules > 0, Ordering::Relaxed);
            tracing::info!(version, generation, "what is published for the fleet is in force");
            if !unknown.is_empty() {
                tracing::warn!(rules = unknown.join(", "), "rules are switched that are not here");
            }
        }
        Event::Refused { version, reason } => {
            tracing::error!(version, "what is published for the fleet cannot be used: {reason}");
        }
        Event::Lost { reason } => tracing::warn!(reason, "what is published for the fleet cannot be seen"),
        Event::Unreported { reason } => tracing::warn!(reason, "the fleet is not told of this node"),
        event => tracing::debug!(?event, "the fleet"),
    })
}

/// Follows the rules files. A broken file changes nothing, nor does any while published rules are in force.
fn follow_files(
    paths: Vec<PathBuf>,
    files: Vec<PathBuf>,
    engine: &Arc<Engine>,
    are_published: Arc<AtomicBool>,
) -> Result<Watch, WatchError> {
    let engine = Arc::clone(engine);
    Watch::start(paths, files, move |result| {
        engine.metrics().reloaded(result.is_ok());
        match result {
            Ok(_) if are_published.load(Ordering::Relaxed) => {
                tracing::warn!("the rules files are left alone: rules that are published for the fleet are in force");
            }
            Ok(loaded) => {
                let rules = loaded.rules.rules().len();
                let generation = engine.limiter().replace(loaded.rules);
                tracing::info!(generation, rules, "new rules are in force");
            }
            Err(findings) => {
                let errors = findings.errors();
                tracing::error!(errors, "the rules cannot be used: those in force stay\n{findings}");
            }
        }
    })
}

/// A connection that is being served.
type Serving = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Counts the connections of a door while they are served.
fn counted<F>(
    door: Door,
    serve: impl Fn(Stream, Peer, Arc<Engine>, CancellationToken) -> F + Send + Sync + 'static,
) -> impl Fn(Stream, Peer, Arc<Engine>, CancellationToken) -> Serving + Send + Sync + 'static
where
    F: Future<Output = ()> + Send + 'static,
{
    move |stream, peer, engine, stop| {
        let open = engine.metrics().connection(door);
        let serving = serve(stream, peer, engine, stop);
        Box::pin(async move {
            serving.await;
            drop(open);
        })
    }
}

/// As many files as the system lets us have: connections are files.
fn make_room_for_connections() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    if limit.current < limit.maximum {
        limit.current = limit.maximum;
        if let Err(error) = setrlimit(Resource::Nofile, limit) {
            tracing::warn!(%error, "the limit on open files cannot be raised");
        }
    }
}

/// What a process may be told from outside.
pub struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hangup: Signal,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Told {
    Stop,
    Reload,
}

impl Signals {
    /// Receives signals from now on: they no longer end the process by themselves.
    ///
    /// # Errors
    /// If the system does not let it.
    pub fn receive() -> io::Result<Signals> {
        Ok(Signals {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hangup: signal(SignalKind::hangup())?,
        })
    }

    async fn next(&mut self) -> Told {
        tokio::select! {
            biased;
            _ = self.terminate.recv() => Told::Stop,
            _ = self.interrupt.recv() => Told::Stop,
            _ = self.hangup.recv() => Told::Reload,
        }
    }

    async fn stop(&mut self) {
        while self.next().await != Told::Stop {}
    }
}

/// Doors that are open to one engine. They close when told to.
pub struct Doors {
    engine: Arc<Engine>,
    stop: CancellationToken,
    open: JoinSet<()>,
    /// What the server before this one listened at.
    inherited: Inheritance,
    /// What the one after it will.
    shared: Vec<OwnedFd>,
}

impl Doors {
    /// Doors to `engine`: none yet. They close on `stop`.
    #[must_use]
    pub fn new(engine: Arc<Engine>, stop: CancellationToken) -> Doors {
        Doors { engine, stop, open: JoinSet::new(), inherited: Inheritance::none(), shared: Vec::new() }
    }

    /// Opens a door: `serve_connection` is given every connection, with the engine, and should end what is idle when it
    /// is told to stop. Says where it listens.
    ///
    /// # Errors
    /// If the address cannot be had.
    pub fn open<F>(
        &mut self,
        settings: Settings,
        serve_connection: impl Fn(Stream, Peer, Arc<Engine>, CancellationToken) -> F + Send + Sync + 'static,
    ) -> Result<SocketAddr, ListenError>
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let listener = match self.inherited.listener(settings.address) {
            Some(socket) => Listener::adopt(socket, settings)?,
            None => Listener::bind(settings)?,
        };
        match listener.share() {
            Ok(socket) => self.shared.push(socket),
            Err(error) => tracing::warn!(%error, "a door cannot be handed over"),
        }
        let address = listener.address();
        let (engine, stop) = (Arc::clone(&self.engine), self.stop.clone());
        let serve = move |stream, peer| serve_connection(stream, peer, Arc::clone(&engine), stop.clone());
        self.open.spawn(listener.serve(self.stop.clone(), serve));
        Ok(address)
    }

    /// Stands in for the server before this one, if there was any, and hands its own place to the next.
    fn take_over(&mut self, path: &Path, succeeded: CancellationToken) -> Result<(), HandoverError> {
        if std::mem::replace(&mut self.inherited, Inheritance::none()).accept() {
            tracing::info!("took over from another server");
        }
        hand_over(path, std::mem::take(&mut self.shared), succeeded)
    }

    /// Waits until all doors are closed, which begins when they are told to stop.
    pub async fn closed(&mut self) {
        while self.open.join_next().await.is_some() {}
    }
}
