//! The server described by the settings, for sessions outside a [`Link`](super::Link).

use std::time::Duration;

use super::address::Address;
use super::error::Unreachable;
use super::sentinel::primary_of;
use super::session::{Connector, Session, within};
use super::settings::{Login, Servers, Settings};
use super::settings_error::SettingsError;

/// Opens sessions with the servers of the settings, and logs in.
#[derive(Clone)]
pub(crate) struct Endpoint {
    servers: Servers,
    login: Login,
    connector: Connector,
}

/// Whether a session receives announcements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Announcements {
    /// The session can [subscribe](Session::subscribe).
    Wanted,
    /// The session only sends commands.
    Unwanted,
}

impl Endpoint {
    pub(crate) fn new(settings: &Settings) -> Result<Endpoint, SettingsError> {
        settings.check()?;
        let connector = Connector::new(settings)?;
        Ok(Endpoint { servers: settings.servers.clone(), login: settings.login.clone(), connector })
    }

    /// Whether keys are distributed over several primaries.
    pub(crate) const fn is_cluster(&self) -> bool {
        matches!(self.servers, Servers::Cluster(_))
    }

    /// The addresses to try in order. A cluster node may redirect to another one.
    pub(crate) async fn addresses(&self) -> Result<Vec<Address>, Unreachable> {
        match &self.servers {
            Servers::Standalone(address) => Ok(vec![address.clone()]),
            Servers::Cluster(nodes) => Ok(nodes.clone()),
            Servers::Sentinel { primary, sentinels, login } => {
                Ok(vec![primary_of(primary, sentinels, &self.connector, login).await?])
            }
        }
    }

    /// Connects within the connect timeout. Logs in within that timeout or `reply_timeout`, whichever is longer.
    pub(crate) async fn open(
        &self,
        address: &Address,
        announcements: Announcements,
        reply_timeout: Duration,
    ) -> Result<Session, Unreachable> {
        let mut session = self.connector.in_time(self.connector.connect(address)).await?;
        let greeting = async {
            match announcements {
                Announcements::Wanted => session.greet_for_announcements(&self.login).await,
                Announcements::Unwanted => session.greet_for_commands(&self.login).await,
            }
        };
        within(self.connector.timeout.max(reply_timeout), greeting).await?;
        Ok(session)
    }
}
