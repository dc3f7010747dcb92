//! Queries about the topology: all sentinels or cluster nodes are asked concurrently.

use std::sync::Arc;

use tokio::task::JoinSet;

use super::address::Address;
use super::error::Unreachable;
use super::resp::RespReply;
use super::session::{Commands, Connector, Session};
use super::settings::Login;

/// A sentinel or cluster node that is queried repeatedly, on one connection as long as it lasts.
pub(super) struct TopologySource {
    pub(super) address: Address,
    /// The error of the last query.
    pub(super) last_failure: Option<Unreachable>,
    session: Option<Session>,
}

impl TopologySource {
    pub(super) const fn new(address: Address) -> TopologySource {
        TopologySource { address, last_failure: None, session: None }
    }

    async fn query<T>(
        &mut self,
        query: &TopologyQuery<T>,
        connector: &Connector,
        login: &Login,
    ) -> Result<T, Unreachable> {
        // The session is put back only after a complete exchange. After a failure, the next query connects again.
        let mut session = match self.session.take() {
            Some(session) => session,
            None => {
                let mut session = connector.connect(&self.address).await?;
                session.greet_for_commands(&Login { database: 0, ..login.clone() }).await?;
                session
            }
        };
        let read = |replies: &[RespReply<'_>]| (query.read)(&self.address, replies);
        let answer = session.exchange(&query.commands, read).await?;
        self.session = Some(session);
        answer
    }
}

/// Commands for several servers.
pub(super) struct TopologyQuery<T> {
    pub(super) commands: Commands,
    /// Parses the replies of the server at an address.
    pub(super) read: fn(&Address, &[RespReply<'_>]) -> Result<T, Unreachable>,
}

/// Queries all servers concurrently, and waits for the answers of a majority, but no longer than the connect timeout.
///
/// The answers of a majority include the latest state on which the servers agree by majority.
pub(super) async fn query_all<T: Send + 'static>(
    servers: &mut Vec<TopologySource>,
    query: &Arc<TopologyQuery<T>>,
    connector: &Connector,
    login: &Login,
) -> Vec<T> {
    let majority = servers.len() / 2 + 1;
    let mut queries = JoinSet::new();
    let mut silent: Vec<Address> = Vec::with_capacity(servers.len());
    for mut server in servers.drain(..) {
        silent.push(server.address.clone());
        let (query, connector, login) = (query.clone(), connector.clone(), login.clone());
        queries.spawn(async move {
            let answer = connector.in_time(server.query(&query, &connector, &login)).await;
            (server, answer)
        });
    }
    let mut answers = Vec::new();
    while let Some(joined) = queries.join_next().await {
        let Ok((mut server, answer)) = joined else { continue };
        silent.retain(|address| *address != server.address);
        match answer {
            Ok(answer) => {
                server.last_failure = None;
                answers.push(answer);
            }
            Err(error) => server.last_failure = Some(error),
        }
        servers.push(server);
        if answers.len() >= majority {
            break;
        }
    }
    servers.extend(silent.into_iter().map(TopologySource::new));
    answers
}
