//! Settings of responses: headers, bodies of denials, CORS.

use super::super::setting::{Setting, SettingKind};

/// Settings of `headers`, `denial` and `cors`.
pub(super) fn responses() -> Vec<Setting> {
    vec![
        Setting::new(
            "headers.x_ratelimit",
            &["delta"],
            "X-RateLimit-Limit, -Remaining and -Reset: delta (reset in seconds from now), epoch (reset as Unix time) \
             or off.",
        ),
        Setting::new(
            "headers.ietf",
            &["draft-11"],
            "RateLimit and RateLimit-Policy, by the version of the IETF draft: draft-11, or off.",
        ),
        Setting::new(
            "headers.partition_key",
            &["false"],
            "Add the partition key (pk) to RateLimit, as a hash of the key.",
        ),
        Setting::new(
            "headers.too_large_status",
            &["413"],
            "Status of a request that costs more than a limit can ever hold: 413, 429, 400 or 422.",
        ),
        Setting::new("headers.bucket", &["false"], "X-RateLimit-Bucket: the name of the limit."),
        Setting::new(
            "headers.reset_after",
            &["false"],
            "X-RateLimit-Reset-After: seconds, with milliseconds as decimals.",
        ),
        Setting::new("headers.on_allowed", &["true"], "Add the headers to allowed requests as well."),
        Setting::new(
            "headers.audience",
            &["everyone"],
            "Recipients of the headers: everyone, or authenticated callers only.",
        ),
        Setting::new("headers.jitter", &["0s"], "Maximum random time added to Retry-After and resets."),
        Setting::new("denial.html", &["true"], "Send an HTML page to browsers. Other clients always get JSON."),
        Setting::new(
            "denial.html_template",
            &[],
            "File with your own HTML page. Placeholders: {{rule}}, {{retry_after}}, {{status}}, {{reason}}, {{type}}, \
             {{title}}, {{detail}}, {{request_id}}.",
        )
        .such_as("denied.html"),
        Setting::new("denial.json_template", &[], "File with your own JSON body, with the same placeholders.")
            .such_as("denied.json"),
        Setting::new(
            "denial.json_type",
            &["application/problem+json"],
            "Media type of JSON bodies: application/problem+json or application/json.",
        ),
        Setting::new(
            "denial.request_id_header",
            &["X-Request-Id"],
            "Request header that fills {{request_id}} in templates.",
        ),
        Setting::new(
            "cors.origins",
            &[],
            "Origins whose scripts may read these responses; https://*.example.com for all subdomains, * for any \
             origin.",
        )
        .of(SettingKind::Many)
        .such_as("https://app.example.com"),
        Setting::new("cors.credentials", &["false"], "Let these scripts also read responses to requests with cookies."),
        Setting::new(
            "cors.limit_preflights",
            &["false"],
            "Apply the rules to preflight requests (OPTIONS) of these origins. Otherwise preflights pass uncounted.",
        ),
    ]
}
