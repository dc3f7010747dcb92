//! The time between a signal to stop and the end of listening.

use tokio::time::MissedTickBehavior;

use super::{HOUSEKEEPING, Server, Signals};

impl Server {
    /// Goes on serving for the stop delay, for clients that do not know yet that the server stops. A second signal to
    /// stop and a successor end the delay.
    pub(super) async fn delay_stop(&mut self, signals: &mut Signals) {
        if self.stop_delay.is_zero() {
            return;
        }
        tracing::info!(delay = ?self.stop_delay, "stopping: not ready any more, connections are still accepted");
        let end = tokio::time::sleep(self.stop_delay);
        tokio::pin!(end);
        let mut housekeeping = tokio::time::interval(HOUSEKEEPING);
        housekeeping.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                biased;
                () = signals.stop() => break,
                () = self.succeeded.cancelled() => break,
                () = &mut end => break,
                _ = housekeeping.tick() => self.keep_house().await,
            }
        }
    }
}
