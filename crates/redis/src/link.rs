//! Getting frames to a server and replies back.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, ErrorKind, RedisError, ServerErrorKind};
use tidegate_core::{Clock, StoreError};

use crate::frame::Frame;
use crate::script::{self, SCRIPT};

/// A connection to one server.
#[derive(Clone)]
pub struct Link {
    connection: MultiplexedConnection,
    clock: Option<Arc<dyn Clock>>,
}

/// Why there is no reply.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LinkError {
    /// The request did not reach the server. Nothing was done.
    #[error("the server is out of reach: {0}")]
    Unreachable(Arc<str>),
    /// The server refused the request. Nothing was done.
    #[error("{0}")]
    Refused(Arc<str>),
    /// The request was sent and the reply did not come: it may have been done.
    #[error("no reply: {0}")]
    Lost(Arc<str>),
}

impl From<LinkError> for StoreError {
    fn from(error: LinkError) -> StoreError {
        match error {
            LinkError::Unreachable(reason) => StoreError::Unreachable { reason },
            LinkError::Refused(reason) => StoreError::Failed { reason },
            LinkError::Lost(reason) => StoreError::AnswerLost { reason },
        }
    }
}

impl Link {
    /// Connects to the server at `url`.
    ///
    /// # Errors
    /// If there is no such server.
    pub async fn connect(url: &str) -> Result<Link, LinkError> {
        let unreachable = |error: RedisError| LinkError::Unreachable(error.to_string().into());
        let client = Client::open(url).map_err(unreachable)?;
        let config = AsyncConnectionConfig::new().set_response_timeout(None);
        let connection = client.get_multiplexed_async_connection_with_config(&config).await.map_err(unreachable)?;
        Ok(Link { connection, clock: None })
    }

    /// The same link, deciding at the instants of `clock` instead of the server's.
    #[must_use]
    pub fn with_clock(self, clock: impl Clock + 'static) -> Link {
        Link { clock: Some(Arc::new(clock)), ..self }
    }

    /// Sends one frame and waits for its reply, but no longer than `deadline`.
    ///
    /// # Errors
    /// Says whether the request may have been done.
    pub async fn call(&self, frame: Frame, deadline: Duration) -> Result<Vec<u8>, LinkError> {
        let now = self.clock.as_ref().map_or(String::new(), |clock| clock.now().as_micros().to_string());
        let send = async {
            let mut connection = self.connection.clone();
            let command = script::command(&[frame], &now);
            match command.query_async(&mut connection).await {
                Err(error) if error.kind() == ErrorKind::Server(ServerErrorKind::NoScript) => {
                    SCRIPT.load_async(&mut connection).await?;
                    command.query_async(&mut connection).await
                }
                other => other,
            }
        };
        match tokio::time::timeout(deadline, send).await {
            Ok(Ok(replies)) => only(replies),
            Ok(Err(error)) => Err(match error.kind() {
                ErrorKind::Io => LinkError::Lost(error.to_string().into()),
                _ => LinkError::Refused(error.to_string().into()),
            }),
            Err(_elapsed) => Err(LinkError::Lost("the deadline has passed".into())),
        }
    }
}

fn only(mut replies: Vec<Vec<u8>>) -> Result<Vec<u8>, LinkError> {
    replies.pop().ok_or_else(|| LinkError::Lost("the script returned nothing".into()))
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Link").finish_non_exhaustive()
    }
}
