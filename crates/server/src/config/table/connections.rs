//! Settings of connections: TLS, and limits on clients.

use super::super::setting::Setting;

/// Settings of `tls`.
pub(super) fn tls() -> Vec<Setting> {
    vec![
        Setting::new("tls.certificate", &[], "Certificate chain, as PEM.").such_as("server.pem"),
        Setting::new("tls.key", &[], "Private key of the certificate, as PEM.").such_as("server-key.pem"),
        Setting::new("tls.client_ca", &[], "CA certificates for client certificates, as PEM.").such_as("clients.pem"),
    ]
}

/// Settings of `limits`.
pub(super) fn limits() -> Vec<Setting> {
    vec![
        Setting::new("limits.header_bytes", &["16384"], "Maximum size in bytes of a request's head."),
        Setting::new(
            "limits.header_time",
            &["20s"],
            "Timeout for receiving a request's head, and idle timeout of a connection.",
        ),
        Setting::new(
            "limits.body_bytes",
            &["1048576"],
            "Maximum size in bytes of a request body at the HTTP API. The gateway forwards bodies of any size.",
        ),
        Setting::new("limits.request_time", &["10s"], "Timeout for receiving a request body at the HTTP API."),
        Setting::new("limits.write_time", &["30s"], "Timeout for a client that does not read its response."),
        Setting::new(
            "limits.connections_per_address",
            &[],
            "Maximum number of connections from one address (IPv6: /64) to a listener, or off. Trusted proxies are \
             exempt. Default: a quarter of the listener's connections, but at least 64 and at most half.",
        )
        .such_as("2500"),
        Setting::new(
            "limits.handshake_time",
            &["10s"],
            "Timeout of the TLS handshake and of the PROXY protocol header.",
        ),
        Setting::new(
            "limits.keepalive_time",
            &["60s"],
            "Idle time before TCP keepalive probes a connection; 0s for never.",
        ),
        Setting::new("limits.streams", &["128"], "Maximum number of concurrent requests on one HTTP/2 connection."),
        Setting::new(
            "limits.stop_delay",
            &["0s"],
            "Time after a signal to stop in which the server reports that it is not ready, and still accepts connections.",
        ),
        Setting::new("limits.stop_time", &["10s"], "Time for requests in flight to finish when the server stops."),
    ]
}
