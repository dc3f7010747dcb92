//! Causes of the gateway's own errors.

/// Cause for which the gateway answered a request itself, or cut off the response of an upstream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    /// 404: no route takes the request.
    NoRoute,
    /// 405: the method is CONNECT.
    ConnectMethod,
    /// 400: the host is missing or malformed.
    BadHost,
    /// 400: the request can be read in two ways.
    AmbiguousRequest,
    /// 400: the path can be read in two ways.
    RefusedPath,
    /// 401: the token is missing or invalid.
    InvalidToken,
    /// 503: there are no keys that verify tokens.
    NoTokenKeys,
    /// 408: the client sent its body too slowly.
    RequestTimeout,
    /// 502: no connection to the upstream could be made.
    ConnectFailed,
    /// 504: connecting to the upstream took too long.
    ConnectTimeout,
    /// 503: no address of the upstream is healthy.
    NoHealthyUpstream,
    /// 503: the adaptive limit on requests in flight is reached.
    Overloaded,
    /// 503: load is shed, and the request is among the least important ones.
    Shed,
    /// 502: the upstream broke off before its response, or sent something else than HTTP.
    UpstreamReset,
    /// 504: the upstream did not begin its response in time.
    ResponseTimeout,
    /// 502: the upstream switched protocols unasked.
    UnexpectedUpgrade,
    /// The upstream broke off in the middle of its response.
    ResponseReset,
    /// The upstream's response made no progress for too long.
    ResponseStalled,
}

impl Cause {
    pub(super) const ALL: [Cause; 18] = [
        Cause::NoRoute,
        Cause::ConnectMethod,
        Cause::BadHost,
        Cause::AmbiguousRequest,
        Cause::RefusedPath,
        Cause::InvalidToken,
        Cause::NoTokenKeys,
        Cause::RequestTimeout,
        Cause::ConnectFailed,
        Cause::ConnectTimeout,
        Cause::NoHealthyUpstream,
        Cause::Overloaded,
        Cause::Shed,
        Cause::UpstreamReset,
        Cause::ResponseTimeout,
        Cause::UnexpectedUpgrade,
        Cause::ResponseReset,
        Cause::ResponseStalled,
    ];

    /// Its name in metrics and in the access log.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Cause::NoRoute => "no_route",
            Cause::ConnectMethod => "connect_method",
            Cause::BadHost => "bad_host",
            Cause::AmbiguousRequest => "ambiguous_request",
            Cause::RefusedPath => "refused_path",
            Cause::InvalidToken => "invalid_token",
            Cause::NoTokenKeys => "no_token_keys",
            Cause::RequestTimeout => "request_timeout",
            Cause::ConnectFailed => "connect_failed",
            Cause::ConnectTimeout => "connect_timeout",
            Cause::NoHealthyUpstream => "no_healthy_upstream",
            Cause::Overloaded => "overloaded",
            Cause::Shed => "shed",
            Cause::UpstreamReset => "upstream_reset",
            Cause::ResponseTimeout => "response_timeout",
            Cause::UnexpectedUpgrade => "unexpected_upgrade",
            Cause::ResponseReset => "response_reset",
            Cause::ResponseStalled => "response_stalled",
        }
    }
}
