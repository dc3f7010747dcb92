//! Settings that a connection takes when it opens.

use std::time::Duration;

use hyper::server::conn::{http1, http2};
use hyper_util::rt::TokioExecutor;
use tidegate_http::HeaderStyle;

use super::Settings;
use super::header_sanitizer::HeaderSanitizer;
use super::proxy_identity::IdentitySources;
use crate::listen::{Http2Limits, Lifetime, http1_builder, http2_builder};
use crate::local_replies::LocalReplies;

/// The time that shutdown waits for a client's last request, and for an idle client to learn that its connection
/// closes.
const LAST_REQUEST: Duration = Duration::from_secs(1);

/// Settings of one connection, which it keeps until it ends.
pub(super) struct ConnectionSettings {
    pub(super) http1: http1::Builder,
    pub(super) http2: http2::Builder<TokioExecutor>,
    pub(super) lifetime: Lifetime,
    /// Maximum time that an HTTP/2 client may leave a response unread.
    pub(super) write_time: Duration,
    pub(super) style: AnswerStyle,
    pub(super) sources: IdentitySources,
    pub(super) sanitizer: HeaderSanitizer,
}

/// Style of rate-limit headers, and of the gateway's own responses.
pub(super) struct AnswerStyle {
    pub(super) headers: HeaderStyle,
    pub(super) answers: LocalReplies,
}

impl ConnectionSettings {
    pub(super) fn of(settings: &Settings) -> ConnectionSettings {
        let Settings { header_bytes, header_time, streams, write_time, .. } = *settings;
        let limits = Http2Limits { streams, header_bytes, ping_after: header_time, ping_timeout: header_time };
        let mut http2 = http2_builder(TokioExecutor::new(), limits);
        http2.adaptive_window(true);
        let lifetime = Lifetime {
            idle: header_time,
            // Bodies and tunnels have time limits of their own.
            waits_for_requests: true,
            idle_drain: LAST_REQUEST,
            last_request: LAST_REQUEST,
            shutdown_drain: header_time,
            max_age: None,
        };
        ConnectionSettings {
            http1: http1_builder(header_bytes),
            http2,
            lifetime,
            write_time,
            style: AnswerStyle { headers: settings.style, answers: settings.answers.clone() },
            sources: IdentitySources::of(settings),
            sanitizer: HeaderSanitizer::new(settings),
        }
    }
}
