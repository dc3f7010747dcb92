//! Listeners of a server, as named in metrics.

/// Kind of listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ListenerKind {
    /// HTTP API: decisions and forward-auth.
    Api,
    /// Envoy's rate-limit service.
    Rls,
    /// The Redis protocol.
    Resp,
    /// Admin API.
    Admin,
    /// The gateway.
    Gateway,
}

impl ListenerKind {
    /// All listeners.
    pub const ALL: [ListenerKind; 5] =
        [ListenerKind::Api, ListenerKind::Rls, ListenerKind::Resp, ListenerKind::Admin, ListenerKind::Gateway];

    /// Name in metrics and in the log, equal to the section in the settings.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            ListenerKind::Api => "api",
            ListenerKind::Rls => "rls",
            ListenerKind::Resp => "resp",
            ListenerKind::Admin => "admin",
            ListenerKind::Gateway => "gateway",
        }
    }
}
