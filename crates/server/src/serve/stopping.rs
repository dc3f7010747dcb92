//! The steps from a signal to stop, or the start of a successor, to the end of the server.

use tokio::time::MissedTickBehavior;

use super::{HOUSEKEEPING, Server, Signals};
use crate::service_manager::ServiceState;

impl Server {
    /// Ends the server, after a signal to stop (`has_signal`) or because a successor has taken over.
    pub(super) async fn shut_down(mut self, mut signals: Signals, has_signal: bool) {
        if !self.succeeded.is_cancelled() {
            self.manager.notify(ServiceState::Stopping);
        }
        self.stopping.cancel();
        if let Some(rls) = &self.rls {
            rls.service.closing().await;
        }
        if has_signal {
            self.delay_stop(&mut signals).await;
        }
        tracing::info!("stopping: no new connections, requests in flight are finished");
        let mut saver = self.saver.take();
        if self.succeeded.is_cancelled()
            && let Some(saver) = saver.take()
        {
            // The file now belongs to the successor.
            saver.stop().await;
        }
        self.listeners.withdraw();
        self.stop.cancel();
        let second_stop = async {
            if !has_signal {
                // No signal has stopped this process yet. systemd sends one to all processes of the service.
                signals.stop().await;
            }
            signals.stop().await;
        };
        tokio::select! {
            () = self.listeners.closed() => {}
            () = second_stop => tracing::warn!("second signal to stop: connections are closed"),
        }
        if let Some(following) = self.following.take() {
            let _ = tokio::time::timeout(HOUSEKEEPING, following.stop()).await;
        }
        // Returns leases immediately, so that other nodes can use them.
        let _ = tokio::time::timeout(HOUSEKEEPING, self.engine.limiter().store().return_leases()).await;
        if let Some(saver) = saver {
            saver.finish().await;
        }
        // Reports admissions during an outage to the store, if it is available again.
        let _ = tokio::time::timeout(HOUSEKEEPING, self.engine.limiter().report_local()).await;
        let (traces, access_log) = (self.engine.traces().clone(), self.access_log.take());
        let finish = move || {
            traces.close();
            if let Some(log) = access_log {
                log.flush();
            }
        };
        let _ = tokio::task::spawn_blocking(finish).await;
    }

    /// Goes on serving for the stop delay, for clients that do not know yet that the server stops. A second signal to
    /// stop and a successor end the delay.
    async fn delay_stop(&mut self, signals: &mut Signals) {
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
