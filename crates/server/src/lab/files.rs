//! Files of the lab's page.

use axum::extract::Path;
use axum::response::{IntoResponse, Response};
use http::StatusCode;
use http::header::{CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS};
use tidegate_lab::page;

use crate::problem::Problem;

/// The page may send requests only to its own server.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
    img-src 'self' data: blob:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

pub(super) async fn page() -> Response {
    answer("")
}

pub(super) async fn file(Path(name): Path<String>) -> Response {
    answer(&name)
}

fn answer(name: &str) -> Response {
    let Some(file) = page::file(name) else {
        let detail = format!("The lab's page has no file `{name}`.");
        return Problem::new(StatusCode::NOT_FOUND, detail).into_response();
    };
    let headers = [
        (CONTENT_TYPE, file.media_type),
        // Files must be revalidated, because another version of the program may have other ones.
        (CACHE_CONTROL, "no-cache"),
        (CONTENT_SECURITY_POLICY, POLICY),
        (REFERRER_POLICY, "no-referrer"),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
    ];
    (headers, file.text).into_response()
}
