//! `ShouldRateLimit` as JSON over plain HTTP, for clients without gRPC.
//!
//! Messages follow the JSON mapping of protobuf: names in camel case (requests may also use the names in the `.proto`),
//! and durations such as `"1.5s"`. 64-bit numbers may be strings; empty fields are omitted.

use std::fmt::Write;

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderName, HeaderValue, Request, Response, StatusCode};
use http_body::Body;
use serde::{Deserialize, Deserializer, de};
use serde_json::{Map, Number, Value as Json, json};

use super::messages::{
    Code, DescriptorStatus, Duration, Entry, HeaderValue as AddedHeader, Kind, RateLimit, RateLimitDescriptor,
    RateLimitOverride, RateLimitRequest, RateLimitResponse, RateLimitUnit, Struct, Value,
};
use super::{AnswerBody, RlsServer, Settings};
use crate::cross_site::check_json;
use crate::whole_body::{BodyError, WholeBody};

pub(super) const PATH: &str = "/json";

/// Answers a request: 200 within the limit, 429 over it, 400, 408, 413, 415 or 421 for an invalid request.
pub(super) async fn call<B: Body<Data = Bytes> + Unpin>(
    server: &RlsServer,
    request: Request<B>,
) -> Response<AnswerBody> {
    let (most_bytes, arrival) = {
        let Settings { most_bytes, arrival, hosts, .. } = &**server.0.settings.load();
        if let Err(misdirected) = hosts.check(request.uri(), request.headers()) {
            return plain_text(StatusCode::MISDIRECTED_REQUEST, &misdirected.to_string());
        }
        (*most_bytes, *arrival)
    };
    if let Err(not_json) = check_json(request.headers()) {
        return plain_text(StatusCode::UNSUPPORTED_MEDIA_TYPE, &not_json.to_string());
    }
    let body = match WholeBody::new(request.into_body(), most_bytes, arrival).await {
        Ok(body) => body,
        Err(error @ BodyError::TooLarge { .. }) => {
            return plain_text(StatusCode::PAYLOAD_TOO_LARGE, &error.to_string());
        }
        Err(error @ BodyError::TooSlow { .. }) => return plain_text(StatusCode::REQUEST_TIMEOUT, &error.to_string()),
        Err(error @ BodyError::Broken) => return plain_text(StatusCode::BAD_REQUEST, &error.to_string()),
    };
    let message = match serde_json::from_slice::<JsonRequest>(&body) {
        Ok(request) => RateLimitRequest::from(request),
        Err(error) => return plain_text(StatusCode::BAD_REQUEST, &format!("not a RateLimitRequest: {error}")),
    };
    match server.decide(&message).await {
        Ok(answer) => respond(&answer),
        Err(error) => plain_text(StatusCode::BAD_REQUEST, &error.to_string()),
    }
}

/// A line of text.
pub(super) fn plain_text(status: StatusCode, reason: &str) -> Response<AnswerBody> {
    let mut response = Response::new(AnswerBody::Whole(format!("{reason}\n").into()));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    response
}

fn respond(answer: &RateLimitResponse) -> Response<AnswerBody> {
    let mut response = Response::new(AnswerBody::Whole(written(answer).to_string().into()));
    *response.status_mut() = match answer.overall_code() {
        Code::Ok => StatusCode::OK,
        Code::OverLimit => StatusCode::TOO_MANY_REQUESTS,
        Code::Unknown => StatusCode::INTERNAL_SERVER_ERROR,
    };
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    for AddedHeader { key, value, .. } in &answer.response_headers_to_add {
        if let (Ok(name), Ok(value)) = (HeaderName::try_from(key), HeaderValue::try_from(value)) {
            headers.insert(name, value);
        }
    }
    response
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
#[derive(Default)]
struct JsonRequest {
    domain: String,
    descriptors: Vec<JsonDescriptor>,
    #[serde(alias = "hits_addend")]
    hits_addend: Whole,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct JsonDescriptor {
    entries: Vec<JsonEntry>,
    limit: Option<JsonLimit>,
    #[serde(alias = "hits_addend")]
    hits_addend: Option<Whole>,
    #[serde(alias = "is_negative_hits")]
    is_negative_hits: bool,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct JsonEntry {
    key: String,
    value: String,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct JsonLimit {
    #[serde(alias = "requests_per_unit")]
    requests_per_unit: Whole,
    unit: JsonUnit,
}

/// A whole number, as a JSON number or a string.
#[derive(Clone, Copy, Default)]
struct Whole(u64);

impl<'de> Deserialize<'de> for Whole {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Whole, D::Error> {
        let number = match Json::deserialize(deserializer)? {
            Json::Number(number) => number.as_u64(),
            Json::String(text) => text.parse().ok(),
            _ => None,
        };
        number.map(Whole).ok_or_else(|| de::Error::custom("a number is not an integer, or is negative"))
    }
}

impl Whole {
    fn small(self) -> u32 {
        u32::try_from(self.0).unwrap_or(u32::MAX)
    }
}

/// A unit, by name or number.
#[derive(Default)]
struct JsonUnit(i32);

impl<'de> Deserialize<'de> for JsonUnit {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<JsonUnit, D::Error> {
        let unit = match Json::deserialize(deserializer)? {
            Json::String(name) => RateLimitUnit::from_str_name(&name).map(i32::from),
            Json::Number(number) => number.as_i64().and_then(|number| i32::try_from(number).ok()),
            _ => None,
        };
        unit.map(JsonUnit).ok_or_else(|| de::Error::custom("the unit is unknown: send SECOND to YEAR"))
    }
}

impl From<JsonRequest> for RateLimitRequest {
    fn from(json: JsonRequest) -> RateLimitRequest {
        RateLimitRequest {
            domain: json.domain,
            descriptors: json.descriptors.into_iter().map(RateLimitDescriptor::from).collect(),
            hits_addend: json.hits_addend.small(),
        }
    }
}

impl From<JsonDescriptor> for RateLimitDescriptor {
    fn from(json: JsonDescriptor) -> RateLimitDescriptor {
        let limit = |limit: JsonLimit| RateLimitOverride {
            requests_per_unit: limit.requests_per_unit.small(),
            unit: limit.unit.0,
        };
        RateLimitDescriptor {
            entries: json.entries.into_iter().map(|JsonEntry { key, value }| Entry { key, value }).collect(),
            limit: json.limit.map(limit),
            hits_addend: json.hits_addend.map(|hits| hits.0),
            is_negative_hits: json.is_negative_hits,
        }
    }
}

fn written(answer: &RateLimitResponse) -> Json {
    let mut fields = Map::new();
    fields.insert("overallCode".to_owned(), answer.overall_code().as_str_name().into());
    fields.insert("statuses".to_owned(), answer.statuses.iter().map(status).collect());
    if !answer.response_headers_to_add.is_empty() {
        let header = |added: &AddedHeader| json!({ "key": added.key, "value": added.value });
        fields.insert("responseHeadersToAdd".to_owned(), answer.response_headers_to_add.iter().map(header).collect());
    }
    if let Some(metadata) = &answer.dynamic_metadata {
        fields.insert("dynamicMetadata".to_owned(), object(metadata));
    }
    Json::Object(fields)
}

fn status(status: &DescriptorStatus) -> Json {
    let mut fields = Map::new();
    fields.insert("code".to_owned(), status.code().as_str_name().into());
    if let Some(limit) = &status.current_limit {
        fields.insert("currentLimit".to_owned(), current(limit));
    }
    if status.limit_remaining != 0 {
        fields.insert("limitRemaining".to_owned(), status.limit_remaining.into());
    }
    if let Some(reset) = &status.duration_until_reset {
        fields.insert("durationUntilReset".to_owned(), span(reset).into());
    }
    Json::Object(fields)
}

fn current(limit: &RateLimit) -> Json {
    let mut fields = Map::new();
    if !limit.name.is_empty() {
        fields.insert("name".to_owned(), limit.name.as_str().into());
    }
    if limit.requests_per_unit != 0 {
        fields.insert("requestsPerUnit".to_owned(), limit.requests_per_unit.into());
    }
    if limit.unit != 0 {
        fields.insert("unit".to_owned(), limit.unit().as_str_name().into());
    }
    Json::Object(fields)
}

/// Formats a duration in seconds, with as many groups of three decimals as needed.
fn span(span: &Duration) -> String {
    let mut text = span.seconds.to_string();
    let _ = match span.nanos {
        0 => Ok(()),
        nanos if nanos % 1_000_000 == 0 => write!(text, ".{:03}", nanos / 1_000_000),
        nanos if nanos % 1_000 == 0 => write!(text, ".{:06}", nanos / 1_000),
        nanos => write!(text, ".{nanos:09}"),
    };
    text.push('s');
    text
}

fn object(of: &Struct) -> Json {
    Json::Object(of.fields.iter().map(|(name, of)| (name.clone(), value(of))).collect())
}

fn value(of: &Value) -> Json {
    match &of.kind {
        None | Some(Kind::Null(_)) => Json::Null,
        Some(Kind::Bool(flag)) => Json::Bool(*flag),
        Some(Kind::Number(number)) => whole_or_not(*number),
        Some(Kind::String(text)) => Json::String(text.clone()),
        Some(Kind::List(list)) => list.values.iter().map(value).collect(),
        Some(Kind::Struct(of)) => object(of),
    }
}

/// Formats a number without a decimal point if it is whole.
#[expect(clippy::cast_possible_truncation, reason = "it was seen to be a small whole number")]
fn whole_or_not(number: f64) -> Json {
    if number.fract() == 0.0 && number.abs() < 9e15 {
        return Json::from(number as i64);
    }
    Number::from_f64(number).map_or(Json::Null, Json::Number)
}
