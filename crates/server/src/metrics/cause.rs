//! Causes of the gateway's own errors.

/// Reason why the gateway answered a request itself, or aborted the response of an upstream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FailureCause {
    /// 404: no route matches the request.
    NoRoute,
    /// 405: the method is CONNECT.
    ConnectMethod,
    /// 400: the host is missing or malformed.
    BadHost,
    /// 400: the request is ambiguous.
    AmbiguousRequest,
    /// 400: the path is ambiguous.
    RefusedPath,
    /// 401: the token is missing or invalid.
    InvalidToken,
    /// 503: no keys are available to verify tokens.
    NoTokenKeys,
    /// 408: the client sent its body too slowly.
    RequestTimeout,
    /// 502: the connection to the upstream failed.
    ConnectFailed,
    /// 504: connecting to the upstream took too long.
    ConnectTimeout,
    /// 503: no address of the upstream is healthy.
    NoHealthyUpstream,
    /// 503: the adaptive limit on requests in flight is reached.
    Overloaded,
    /// 503: load is shed, and the request is among the least important ones.
    Shed,
    /// 502: the upstream closed the connection before its response, or sent something other than HTTP.
    UpstreamReset,
    /// 504: the upstream did not begin its response in time.
    ResponseTimeout,
    /// 502: the upstream switched protocols without being asked.
    UnexpectedUpgrade,
    /// The upstream closed the connection in the middle of its response.
    ResponseReset,
    /// The upstream's response made no progress for too long.
    ResponseStalled,
}

impl FailureCause {
    pub(super) const ALL: [FailureCause; 18] = [
        FailureCause::NoRoute,
        FailureCause::ConnectMethod,
        FailureCause::BadHost,
        FailureCause::AmbiguousRequest,
        FailureCause::RefusedPath,
        FailureCause::InvalidToken,
        FailureCause::NoTokenKeys,
        FailureCause::RequestTimeout,
        FailureCause::ConnectFailed,
        FailureCause::ConnectTimeout,
        FailureCause::NoHealthyUpstream,
        FailureCause::Overloaded,
        FailureCause::Shed,
        FailureCause::UpstreamReset,
        FailureCause::ResponseTimeout,
        FailureCause::UnexpectedUpgrade,
        FailureCause::ResponseReset,
        FailureCause::ResponseStalled,
    ];

    /// Name in metrics and in the access log.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            FailureCause::NoRoute => "no_route",
            FailureCause::ConnectMethod => "connect_method",
            FailureCause::BadHost => "bad_host",
            FailureCause::AmbiguousRequest => "ambiguous_request",
            FailureCause::RefusedPath => "refused_path",
            FailureCause::InvalidToken => "invalid_token",
            FailureCause::NoTokenKeys => "no_token_keys",
            FailureCause::RequestTimeout => "request_timeout",
            FailureCause::ConnectFailed => "connect_failed",
            FailureCause::ConnectTimeout => "connect_timeout",
            FailureCause::NoHealthyUpstream => "no_healthy_upstream",
            FailureCause::Overloaded => "overloaded",
            FailureCause::Shed => "shed",
            FailureCause::UpstreamReset => "upstream_reset",
            FailureCause::ResponseTimeout => "response_timeout",
            FailureCause::UnexpectedUpgrade => "unexpected_upgrade",
            FailureCause::ResponseReset => "response_reset",
            FailureCause::ResponseStalled => "response_stalled",
        }
    }
}
