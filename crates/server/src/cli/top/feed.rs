//! Feed of live data from the server.

use std::time::Duration;

use http_body_util::BodyExt;
use tokio::sync::mpsc::Sender;
use tokio::time::{sleep, timeout};

use super::model::FeedEvent;
use crate::cli::admin_server::{AdminError, AdminServer, MOST_BYTES};
use crate::metrics::View;

/// Timeout for the next event. The server sends one every second.
const SILENCE: Duration = Duration::from_secs(5);
const TRY_AGAIN_AFTER: Duration = Duration::from_secs(1);

/// Follows a server until the receiver is dropped.
pub(super) struct Feed {
    server: AdminServer,
}

impl Feed {
    pub(super) const fn new(server: AdminServer) -> Feed {
        Feed { server }
    }

    /// Sends each view, and each loss of the connection, then reconnects.
    pub(super) async fn follow(self, news: Sender<FeedEvent>) {
        while !news.is_closed() {
            if let Err(error) = self.listen(&news).await
                && news.send(FeedEvent::Lost(format!("{}: {error}", self.server))).await.is_err()
            {
                return;
            }
            sleep(TRY_AGAIN_AFTER).await;
        }
    }

    async fn listen(&self, news: &Sender<FeedEvent>) -> Result<(), AdminError> {
        let mut answer = self.server.get("/v1/stream?most=100", "text/event-stream").await?;
        let mut events = Events::default();
        loop {
            let Some(frame) = timeout(SILENCE, answer.body.frame()).await? else { return Err(AdminError::Closed) };
            let Ok(data) = frame?.into_data() else { continue };
            events.push(&data)?;
            while let Some(view) = events.next() {
                if news.send(FeedEvent::View(Box::new(view?))).await.is_err() {
                    return Ok(());
                }
            }
        }
    }
}

/// Splits the received bytes into server-sent events.
#[derive(Debug, Default)]
struct Events(Vec<u8>);

impl Events {
    fn push(&mut self, data: &[u8]) -> Result<(), AdminError> {
        if self.0.len() + data.len() > MOST_BYTES {
            return Err(AdminError::Nonsense);
        }
        self.0.extend_from_slice(data);
        Ok(())
    }

    /// The view in the next complete event. Events without data are skipped.
    fn next(&mut self) -> Option<Result<View, AdminError>> {
        loop {
            let end = self.0.windows(2).position(|pair| pair == b"\n\n")?;
            let event: Vec<u8> = self.0.drain(..end + 2).collect();
            let mut lines = event.split(|byte| *byte == b'\n');
            if let Some(data) = lines.find_map(|line| line.strip_prefix(b"data:")) {
                return Some(serde_json::from_slice(data).map_err(|_| AdminError::Nonsense));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_come_in_any_pieces() {
        let view = View { generation: 7, ..View::default() };
        let text = format!(": hello\n\nevent: view\ndata: {}\n\n", serde_json::to_string(&view).unwrap());
        for piece in [1, 2, 7, text.len()] {
            let (mut events, mut seen) = (Events::default(), Vec::new());
            for _ in 0..3 {
                for data in text.as_bytes().chunks(piece) {
                    events.push(data).unwrap();
                    while let Some(view) = events.next() {
                        seen.push(view.unwrap().generation);
                    }
                }
            }
            assert_eq!(seen, [7, 7, 7]);
        }
    }

    #[test]
    fn endless_lines_and_other_documents_end_the_feed() {
        let mut events = Events::default();
        assert!(events.push(&vec![b'x'; MOST_BYTES]).is_ok());
        assert!(events.push(b"x").is_err());
        let mut events = Events::default();
        events.push(b"data: [1]\n\n").unwrap();
        assert!(matches!(events.next(), Some(Err(AdminError::Nonsense))));
    }
}
