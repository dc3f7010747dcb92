//! Sentinel: the address of the present primary.
//!
//! A task queries all sentinels for the primary every second, and immediately when the connection to the primary has ended.
//! The answer with the highest epoch counts: every failover raises the epoch, so the answer of an isolated sentinel that
//! still names the old primary is ignored. The named server must also report the role of a primary.

use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::{Notify, watch};
use tokio::time::timeout;

use super::abort_on_drop::AbortOnDrop;
use super::address::Address;
use super::error::Unreachable;
use super::resp::{Bound, RespReply};
use super::server_error::ServerError;
use super::session::{Commands, Connector};
use super::settings::Login;
use super::topology::{TopologyQuery, TopologySource, query_all};

const ASK_EVERY: Duration = Duration::from_secs(1);

/// The sentinels of one primary.
pub(super) struct Sentinels {
    news: watch::Receiver<SentinelView>,
    ask: Arc<Notify>,
    _task: AbortOnDrop,
}

/// The last answer of the sentinels.
#[derive(Clone, Default)]
struct SentinelView {
    /// Number of queries so far.
    round: u64,
    primary: Option<Address>,
}

/// The answer of one sentinel.
struct NamedPrimary {
    epoch: i64,
    primary: Address,
}

impl Sentinels {
    pub(super) fn watch(
        runtime: &Handle,
        name: &str,
        sentinels: &[Address],
        connector: Connector,
        login: Login,
    ) -> Sentinels {
        let (tell, news) = watch::channel(SentinelView::default());
        let ask = Arc::new(Notify::new());
        let mut sources: Vec<TopologySource> = sentinels.iter().cloned().map(TopologySource::new).collect();
        let (query, again) = (Arc::new(primary_query(name)), ask.clone());
        let task = runtime.spawn(async move {
            loop {
                let answers = query_all(&mut sources, &query, &connector, &login).await;
                let latest = answers.into_iter().max_by_key(|named| named.epoch);
                tell.send_modify(|news| {
                    news.round += 1;
                    news.primary = latest.map(|named| named.primary);
                });
                let _ = timeout(ASK_EVERY, again.notified()).await;
            }
        });
        Sentinels { news, ask, _task: AbortOnDrop(task.abort_handle()) }
    }

    /// Queries the sentinels for the primary.
    pub(super) async fn find(&mut self) -> Result<Address, Unreachable> {
        let round = self.news.borrow().round;
        self.ask.notify_one();
        let news = self.news.wait_for(|news| news.round > round).await.map_err(|_| Unreachable::NoPrimary)?;
        news.primary.clone().ok_or(Unreachable::NoPrimary)
    }

    /// Waits until the sentinels name a primary other than `than`.
    pub(super) async fn named_another(&mut self, than: &Address) {
        let another = |news: &SentinelView| news.primary.as_ref().is_some_and(|primary| primary != than);
        if self.news.wait_for(another).await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

/// Queries the sentinels for the primary, once.
pub(super) async fn primary_of(
    name: &str,
    sentinels: &[Address],
    connector: &Connector,
    login: &Login,
) -> Result<Address, Unreachable> {
    let mut sources: Vec<TopologySource> = sentinels.iter().cloned().map(TopologySource::new).collect();
    let answers = query_all(&mut sources, &Arc::new(primary_query(name)), connector, login).await;
    let latest = answers.into_iter().max_by_key(|named| named.epoch);
    latest.map(|named| named.primary).ok_or(Unreachable::NoPrimary)
}

/// The query for the primary. During a failover, the first command already returns the new primary. The second command
/// returns the epoch.
fn primary_query(name: &str) -> TopologyQuery<NamedPrimary> {
    let name = name.as_bytes();
    let commands = Commands::new()
        .with(&[b"SENTINEL", b"GET-MASTER-ADDR-BY-NAME", name], Bound::SMALL)
        .with(&[b"SENTINEL", b"MASTER", name], Bound::SMALL);
    TopologyQuery { commands, read: |_, replies| named(replies) }
}

fn named(replies: &[RespReply<'_>]) -> Result<NamedPrimary, Unreachable> {
    let [address, about] = replies else { return Err(Unreachable::Malformed) };
    if let RespReply::Error(text) = about {
        return Err(Unreachable::Refused(ServerError::of(text)));
    }
    let text = |reply: &RespReply<'_>| reply.text().and_then(|text| String::from_utf8(text.to_vec()).ok());
    let primary = || {
        let [host, port] = address.items()? else { return None };
        Some(Address::tcp(&text(host)?, text(port)?.parse().ok()?))
    };
    let epoch = || {
        let mut fields = about.items()?.chunks_exact(2);
        let epoch = fields.find(|field| field[0].text() == Some(b"config-epoch"))?;
        text(&epoch[1])?.parse().ok()
    };
    Ok(NamedPrimary {
        epoch: epoch().ok_or(Unreachable::Malformed)?,
        primary: primary().ok_or(Unreachable::Malformed)?,
    })
}
