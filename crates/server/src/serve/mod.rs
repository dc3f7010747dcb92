//! Starts, runs and stops a server.

mod error;
mod fallback;
mod hot_keys;
mod listeners;
mod memory_pressure;
mod open_files;
pub(crate) mod regions;
mod reload;
pub(crate) mod rule_sources;
mod saved_state;
mod signals;
mod stopping;
mod successor;

use std::net::SocketAddr;
use std::num::NonZero;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use std::{io, thread};

use tidegate_core::SystemClock;
use tidegate_redis::fleet::{Following, FollowingRegion, ServingTiers};
use tidegate_rules::{Limiter, RuleSet, TierDirectory};
use tokio::runtime::{Builder, Runtime};
use tokio_util::sync::CancellationToken;

pub use self::error::ServeError;
pub use self::fallback::StoreFallback;
use self::hot_keys::HotKeys;
pub use self::listeners::Listeners;
use self::listeners::OpenListener;
use self::memory_pressure::MemoryPressure;
use self::rule_sources::{follow_files, follow_fleet, load_rules, warn_of_built_in_key};
use self::saved_state::{OpenedStore, StateSaver};
use self::signals::SignalAction;
pub use self::signals::Signals;
use self::successor::SuccessorStarter;
use crate::access_log::AccessLog;
use crate::admin::{self, AdminState, Token};
use crate::config::{ConfigSource, Configuration, KnownFacts};
use crate::cross_site::AllowedHosts;
use crate::engine::Engine;
use crate::identity::TokenIdentity;
use crate::identity::jwt::{self, Verifier};
use crate::listen::{InheritedListeners, ListenerTls, Listening, Reloaded};
use crate::service_manager::{ServiceManager, ServiceState};
use crate::store::AnyStore;
use crate::traces::Traces;
use crate::watch::Watch;
use crate::{api, gateway, log, resp, rls};

/// Rules of a server without configured rules.
pub const EXAMPLE_RULES: &str = include_str!("../example/rules.yaml");

/// Interval of housekeeping: reports admissions to the store, checks certificates and memory, logs denials.
const HOUSEKEEPING: Duration = Duration::from_secs(1);

/// Maximum time that the banner waits for rules published for the fleet, and listeners for the share of the region.
const FIRST_POLL: Duration = Duration::from_secs(1);

/// Timeout for replies from the Redis of another region.
const REGIONS_TIMEOUT: Duration = Duration::from_secs(5);

/// Tokio runtime of a server: one worker for each available core.
///
/// # Errors
/// If it cannot be created.
pub fn runtime() -> io::Result<Runtime> {
    let cores = thread::available_parallelism().map_or(1, NonZero::get);
    // A single worker needs no work stealing.
    let mut builder = if cores == 1 { Builder::new_current_thread() } else { Builder::new_multi_thread() };
    builder.enable_all().build()
}

/// A running server.
pub struct Server {
    engine: Arc<Engine>,
    /// Saves the state in memory, if a file is configured.
    saver: Option<StateSaver>,
    gateway: Option<OpenListener<gateway::GatewayServer>>,
    api: Option<OpenListener<api::ApiServer>>,
    rls: Option<OpenListener<rls::RlsServer>>,
    resp: Option<OpenListener<resp::RespServer>>,
    admin: Option<Listening>,
    made_up_token: Option<Token>,
    source: ConfigSource,
    /// Paths of the rules.
    paths: Vec<PathBuf>,
    /// Whether each folder among them must contain a file.
    rules_required: bool,
    are_published: Arc<AtomicBool>,
    operators: AdminState,
    listeners: Listeners,
    /// Cancelled on a signal to stop: the server is no longer ready.
    stopping: CancellationToken,
    /// Cancelled when the listeners close.
    stop: CancellationToken,
    /// Time from `stopping` to `stop`.
    stop_delay: Duration,
    watch: Option<Watch>,
    following: Option<Following>,
    /// Follows the shares of the region until dropped.
    _region: Option<FollowingRegion>,
    /// Looks up tiers until dropped.
    _tiers: Option<ServingTiers>,
    access_log: Option<Arc<AccessLog>>,
    certificates: Vec<Arc<ListenerTls>>,
    /// Cancelled once another server has taken over.
    succeeded: CancellationToken,
    /// Starts the server that is to take this one's place. `None` without `handover`.
    successor: Option<SuccessorStarter>,
    manager: ServiceManager,
    pressure: MemoryPressure,
    hot_keys: HotKeys,
    /// Facts that the gateway can determine.
    known: Option<KnownFacts>,
    /// Verifier whose keys are reloaded when they change.
    verifier: Option<Arc<Verifier>>,
    /// Whether the recovery of the store is still to be logged.
    is_store_awaited: bool,
}

impl Server {
    /// Opens the store and the listeners, and starts serving.
    ///
    /// # Errors
    /// If the rules or the store are unusable, or an address cannot be bound.
    pub async fn start(mut configuration: Configuration) -> Result<Server, ServeError> {
        make_room_for_connections(&mut configuration);
        let known = KnownFacts::of(&configuration);
        let loaded = load_rules(&configuration.rules, known.is_some(), configuration.rules_required)
            .map_err(ServeError::Rules)?;
        if let Some(problem) =
            configuration.region.as_deref().and_then(|region| regions::unknown_region(&loaded.rules, region))
        {
            return Err(ServeError::Region(problem));
        }
        let mut inherited = match &configuration.handover {
            Some(path) => InheritedListeners::take(path)?,
            None => InheritedListeners::none(),
        };
        let mut opened = OpenedStore::open(&configuration, &mut inherited)?;
        let note = opened.take_note();
        let OpenedStore { store, secret, file: state_file, .. } = opened;
        let rules = loaded.rules.with_secret(secret);
        warn_of_built_in_key(&rules);
        if let Some(known) = known {
            known.warn(&rules);
        }
        let (fleet_control, tiers) = (configuration.store.fleet_control()?, configuration.store.tiers()?);
        let Configuration { rules: paths, handover, source, .. } = configuration;
        let tiers = match tiers {
            Some((control, settings, deadline)) => {
                Some(control.serve_tiers(Arc::new(TierDirectory::new(settings)), deadline)?)
            }
            None => None,
        };
        if tiers.is_none() && rules.are_tiers_stored() {
            tracing::warn!(
                "rules look tiers of API keys up in Redis, and state is in memory: the default tier applies"
            );
        }
        let rules = rules.with_tiers(tiers.as_ref().map(ServingTiers::directory).cloned());
        let traces = configuration.traces.as_ref().map(Traces::open).transpose()?.unwrap_or_default();
        let is_shared = !store.is_in_memory();
        let mut limiter = Limiter::new(rules, store);
        if is_shared {
            limiter = limiter.at_node(configuration.node.name());
        }
        limiter = limiter.in_region(configuration.region.as_deref());
        regions::warn_of_missing_share(&limiter);
        let engine = Arc::new(Engine::new(limiter).with_traces(traces));
        engine.metrics().set_node_name(configuration.node.name());
        let region = match (configuration.store.region()?, &configuration.region) {
            (Some(control), Some(name)) => {
                let following = regions::follow(&control, configuration.node.id(), name, &engine)?;
                engine.metrics().watch_demand(following.demand().clone());
                // No request is decided by the initial share, which may belong to other regions by now.
                let _ = tokio::time::timeout(FIRST_POLL, following.first_poll()).await;
                Some(following)
            }
            (Some(_) | None, _) => None,
        };
        let (stopping, stop) = (CancellationToken::new(), CancellationToken::new());
        let mut listeners = Listeners::new(Arc::clone(&engine), stop.clone());
        if handover.is_some() {
            listeners.inherit(inherited);
        }
        if let Some(file) = &state_file {
            engine.metrics().watch_state_file(Arc::clone(file));
        }
        let verifier = configuration.jwt.map(|settings| verify_tokens(settings, &engine, &stop));
        let tokens = verifier.clone().map(TokenIdentity::new);
        let access_log = configuration.access_log.as_ref();
        let access_log = access_log.filter(|_| configuration.gateway.is_some() || configuration.api.is_some());
        let access_log = access_log.map(AccessLog::open).transpose()?.map(Arc::new);
        if let Some(log) = &access_log {
            engine.metrics().watch_access_log(Arc::clone(log));
        }
        let gateway = match configuration.gateway {
            Some(at) => {
                configuration.forwarding.access_log.clone_from(&access_log);
                let service = gateway::GatewayServer::open(&engine, configuration.forwarding, tokens.clone(), &stop);
                Some(listeners.open_gateway(at, service)?)
            }
            None => None,
        };
        let api = match configuration.api {
            Some(at) => {
                configuration.http.hosts = AllowedHosts::of(at.address.ip(), configuration.hosts.api);
                let log = access_log.clone();
                let service =
                    api::ApiServer::new(Arc::clone(&engine), configuration.http, tokens, log, stopping.clone());
                Some(listeners.open_api(at, service)?)
            }
            None => None,
        };
        let rls = match configuration.rls {
            Some(at) => {
                configuration.envoy.hosts = AllowedHosts::of(at.address.ip(), configuration.hosts.rls);
                Some(listeners.open_rls(at, rls::RlsServer::open(Arc::clone(&engine), configuration.envoy).await)?)
            }
            None => None,
        };
        let resp = match configuration.resp {
            Some(at) => Some(
                listeners.open_resp(at, resp::RespServer::new(Arc::clone(&engine), configuration.redis_protocol))?,
            ),
            None => None,
        };
        if api.is_none() && rls.is_none() && resp.is_none() && gateway.is_none() {
            return Err(ServeError::NoListener);
        }
        let are_published = Arc::new(AtomicBool::new(false));
        let (token, made_up_token) = match configuration.admin_token {
            Some(token) => (token, None),
            None => {
                let token = Token::random()?;
                (token.clone(), Some(token))
            }
        };
        let admin_hosts = match &configuration.admin {
            Some(at) => AllowedHosts::of(at.address.ip(), configuration.hosts.admin),
            None => AllowedHosts::any(),
        };
        let regions = &configuration.regions;
        let regions = (!regions.is_empty()).then(|| regions.control(REGIONS_TIMEOUT)).transpose()?;
        let operators = AdminState::new(
            Arc::clone(&engine),
            admin::Settings {
                open_metrics: configuration.open_metrics,
                rules: paths.clone(),
                rules_required: configuration.rules_required,
                known,
                are_published: Arc::clone(&are_published),
                configuration: source.shown(),
                regions,
                stop: stop.clone(),
                hosts: admin_hosts,
                ..admin::Settings::new(token)
            },
        );
        let admin = match configuration.admin {
            Some(at) => Some(listeners.open_admin(at, &operators)?),
            None => None,
        };
        let following = match fleet_control {
            Some(control) => Some(follow_fleet(&control, configuration.node, &engine, &are_published, known)?),
            None => None,
        };
        if let Some(control) = configuration.store.region()? {
            regions::warn_of_merging_replication(control);
        }
        let watch = follow_files(&paths, loaded.files, loaded.contents, &engine, &are_published, known)?;
        let certificates = configuration.certificates;
        let succeeded = CancellationToken::new();
        let manager = ServiceManager::of_environment();
        if let Some(path) = &handover {
            let state = OpenedStore::for_successor(&engine, state_file.as_ref(), note);
            listeners.take_over(path, state, succeeded.clone(), &manager)?;
        }
        let saver = state_file.map(|file| StateSaver::start(file, Arc::clone(&engine)));
        Ok(Server {
            engine,
            saver,
            gateway,
            api,
            rls,
            resp,
            admin,
            made_up_token,
            source,
            paths,
            rules_required: configuration.rules_required,
            are_published,
            operators,
            listeners,
            stopping,
            stop,
            stop_delay: configuration.stop_delay,
            watch,
            following,
            _region: region,
            _tiers: tiers,
            access_log,
            certificates,
            succeeded,
            successor: handover.map(|_| SuccessorStarter::default()),
            manager,
            pressure: MemoryPressure::default(),
            hot_keys: HotKeys::default(),
            known,
            verifier,
            is_store_awaited: false,
        })
    }

    /// Address of the gateway, if enabled.
    #[must_use]
    pub fn gateway(&self) -> Option<SocketAddr> {
        self.gateway.as_ref().map(OpenListener::address)
    }

    /// Address of the HTTP API, if enabled.
    #[must_use]
    pub fn api(&self) -> Option<SocketAddr> {
        self.api.as_ref().map(OpenListener::address)
    }

    /// Address of the Envoy rate-limit service, if enabled.
    #[must_use]
    pub fn rls(&self) -> Option<SocketAddr> {
        self.rls.as_ref().map(OpenListener::address)
    }

    /// Address of the Redis-protocol listener, if enabled.
    #[must_use]
    pub fn resp(&self) -> Option<SocketAddr> {
        self.resp.as_ref().map(OpenListener::address)
    }

    /// Address of the admin listener, if enabled.
    #[must_use]
    pub fn admin(&self) -> Option<SocketAddr> {
        self.admin.as_ref().map(Listening::address)
    }

    /// Admin token, if the server generated it.
    #[must_use]
    pub const fn made_up_token(&self) -> Option<&Token> {
        self.made_up_token.as_ref()
    }

    /// Whether published rules are in force. Waits for a bounded time until they have been read once.
    pub async fn has_published_rules(&self) -> bool {
        if let Some(following) = &self.following {
            let _ = tokio::time::timeout(FIRST_POLL, following.first_poll()).await;
        }
        self.are_published.load(Ordering::Relaxed)
    }

    /// The rules in force.
    #[must_use]
    pub fn rules(&self) -> RuleSet {
        self.engine.limiter().rules().rules.clone()
    }

    /// Tells the service manager that the server is up.
    pub fn tell_ready(&self) {
        self.manager.notify(ServiceState::Ready);
    }

    /// Serves until SIGTERM or SIGINT. Then it is no longer ready, goes on serving for the stop delay, and finishes requests in
    /// flight. Each further stop signal ends the present one of these steps; the last closes all connections. SIGHUP
    /// [reloads](Server::reload). SIGUSR2 starts the program again, to take over.
    pub async fn until_stopped(mut self, mut signals: Signals) {
        let mut housekeeping = tokio::time::interval(HOUSEKEEPING);
        housekeeping.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let has_signal = loop {
            tokio::select! {
                biased;
                action = signals.next() => match action {
                    SignalAction::Stop => break true,
                    SignalAction::Reload => {
                        if let Some(log) = &self.access_log {
                            log.reopen();
                        }
                        self.manager.notify(ServiceState::Reloading);
                        self.reload().await;
                        self.manager.notify(ServiceState::Ready);
                    }
                    SignalAction::Succeed => match &self.successor {
                        Some(successor) => successor.start(),
                        None => tracing::error!("no successor can take over without `handover`: none is started"),
                    },
                },
                () = self.succeeded.cancelled() => break false,
                _ = housekeeping.tick() => self.keep_house().await,
            }
        };
        self.shut_down(signals, has_signal).await;
    }

    async fn keep_house(&mut self) {
        log::refill();
        self.engine.limiter().report_local().await;
        self.engine.limiter().adapt().await;
        match self.engine.limiter().store() {
            AnyStore::Memory(store) => self.pressure.check(store),
            AnyStore::Redis(tier) => self.hot_keys.check(tier.behind(), &self.engine.limiter().rules().rules),
        }
        self.reload_certificates();
        if let Some(verifier) = &self.verifier {
            let now = self.engine.metrics().now();
            verifier.reload_files(now);
            verifier.sweep(now);
        }
        if let Some(rls) = &self.rls {
            rls.service.report_health().await;
        }
        self.look_for_store();
        self.operators.tick();
    }

    fn reload_certificates(&self) {
        for tls in &self.certificates {
            match tls.reload() {
                Ok(Reloaded::Replaced) => tracing::info!("new certificates are in use"),
                Ok(Reloaded::ReadableAgain) => tracing::info!("certificates can be read again"),
                Ok(Reloaded::Unchanged) => {}
                Err(error) => tracing::error!(%error, "certificates cannot be used: the current ones stay in use"),
            }
        }
    }
}

/// Creates a verifier, and keeps its keys up to date until `stop`.
fn verify_tokens(settings: jwt::Settings, engine: &Engine, stop: &CancellationToken) -> Arc<Verifier> {
    let verifier = Arc::new(Verifier::new(settings));
    engine.metrics().watch_tokens(Arc::clone(&verifier));
    tokio::spawn(Arc::clone(&verifier).keep_current(SystemClock::new(), stop.clone()));
    verifier
}

/// Sets the maximum number of connections of each listener without a configured one.
fn make_room_for_connections(configuration: &mut Configuration) {
    let Configuration { gateway, api, rls, resp, admin, .. } = configuration;
    let files = open_files::most();
    // Each connection of the gateway may need another one to an upstream.
    let listeners =
        [(gateway.as_mut(), 2), (api.as_mut(), 1), (rls.as_mut(), 1), (resp.as_mut(), 1), (admin.as_mut(), 1)];
    if !open_files::share_out(listeners, files) {
        tracing::warn!(
            files,
            "the limit on open files is too low for the `connections` of all listeners: raise `ulimit -n`, or lower `connections`"
        );
    }
}
