//! Connections for those who speak to the server in words of their own.

use std::time::Duration;

use super::address::Address;
use super::dialogue::Connector;
use super::error::Unreachable;
use super::sentinel::primary_of;
use super::settings::{Login, Servers, Settings, SettingsError};
use super::stream::Stream;

/// Knows where to knock, and as whom.
#[derive(Clone)]
pub(crate) struct Door {
    servers: Servers,
    login: Login,
    connector: Connector,
}

impl Door {
    pub(crate) fn new(settings: &Settings) -> Result<Door, SettingsError> {
        settings.check()?;
        let connector = Connector::new(settings)?;
        Ok(Door { servers: settings.servers.clone(), login: settings.login.clone(), connector })
    }

    /// Where to begin: at any of these. The node of a cluster that answers may say to go on elsewhere.
    pub(crate) async fn addresses(&self) -> Result<Vec<Address>, Unreachable> {
        match &self.servers {
            Servers::Standalone(address) => Ok(vec![address.clone()]),
            Servers::Cluster(nodes) => Ok(nodes.clone()),
            Servers::Sentinel { primary, sentinels, login } => {
                Ok(vec![primary_of(primary, sentinels, &self.connector, login).await?])
            }
        }
    }

    /// A connection on which nothing was said yet.
    pub(crate) async fn knock(&self, address: &Address) -> Result<Stream, Unreachable> {
        let connect = async { Ok(Stream::connect(address, self.connector.tls.as_ref()).await?) };
        self.connector.in_time(connect).await
    }

    pub(crate) const fn login(&self) -> &Login {
        &self.login
    }

    /// How long connecting may take.
    pub(crate) const fn timeout(&self) -> Duration {
        self.connector.timeout
    }
}
