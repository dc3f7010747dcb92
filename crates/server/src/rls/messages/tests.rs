//! The messages against those of `envoy-types`, which are generated from Envoy's proto files.

use proptest::collection::{hash_map, vec};
use proptest::option;
use proptest::prelude::*;
use prost::encoding::{WireType, encode_key, encode_varint};

use super::*;

mod theirs {
    pub(super) use envoy_types::pb::envoy::config::core::v3::HeaderValue;
    pub(super) use envoy_types::pb::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
    pub(super) use envoy_types::pb::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::{
        Entry, RateLimitOverride,
    };
    pub(super) use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::quota::ExpirationSpecifier;
    pub(super) use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::rate_limit::Unit;
    pub(super) use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::{
        Code, DescriptorStatus, Quota, RateLimit,
    };
    pub(super) use envoy_types::pb::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
    pub(super) use envoy_types::pb::envoy::r#type::v3::RateLimitUnit;
    pub(super) use envoy_types::pb::google::protobuf::value::Kind;
    pub(super) use envoy_types::pb::google::protobuf::{Duration, ListValue, Struct, Timestamp, UInt64Value, Value};
}

fn text() -> impl Strategy<Value = String> {
    "[a-zß☃]{0,4}"
}

fn bytes() -> impl Strategy<Value = Vec<u8>> {
    vec(any::<u8>(), 0..4)
}

/// A number that is often 0, which the wire leaves out.
fn number<N: Arbitrary + Clone + From<bool>>() -> impl Strategy<Value = N> {
    prop_oneof![Just(N::from(false)), any::<N>()]
}

/// The number of an enum, with and without a name.
fn named() -> impl Strategy<Value = i32> {
    prop_oneof![4 => 0..9, 1 => any::<i32>()]
}

prop_compose! {
    fn their_entry()(key in text(), value in text()) -> theirs::Entry {
        theirs::Entry { key, value }
    }
}

prop_compose! {
    fn their_override()(requests_per_unit in number(), unit in named()) -> theirs::RateLimitOverride {
        theirs::RateLimitOverride { requests_per_unit, unit }
    }
}

prop_compose! {
    fn their_descriptor()(
        entries in vec(their_entry(), 0..3),
        limit in option::of(their_override()),
        hits in option::of(number()),
        is_negative_hits in any::<bool>(),
    ) -> theirs::RateLimitDescriptor {
        let hits_addend = hits.map(|value| theirs::UInt64Value { value });
        theirs::RateLimitDescriptor { entries, limit, hits_addend, is_negative_hits }
    }
}

prop_compose! {
    fn their_request()(
        domain in text(),
        descriptors in vec(their_descriptor(), 0..3),
        hits_addend in number(),
    ) -> theirs::RateLimitRequest {
        theirs::RateLimitRequest { domain, descriptors, hits_addend }
    }
}

prop_compose! {
    fn their_limit()(requests_per_unit in number(), unit in named(), name in text()) -> theirs::RateLimit {
        theirs::RateLimit { name, requests_per_unit, unit }
    }
}

prop_compose! {
    fn their_duration()(seconds in number(), nanos in number()) -> theirs::Duration {
        theirs::Duration { seconds, nanos }
    }
}

prop_compose! {
    fn their_status()(
        code in named(),
        current_limit in option::of(their_limit()),
        limit_remaining in number(),
        duration_until_reset in option::of(their_duration()),
    ) -> theirs::DescriptorStatus {
        let quota = None;
        theirs::DescriptorStatus { code, current_limit, limit_remaining, duration_until_reset, quota }
    }
}

prop_compose! {
    fn their_header()(key in text(), value in text(), raw_value in bytes()) -> theirs::HeaderValue {
        theirs::HeaderValue { key, value, raw_value }
    }
}

fn their_value() -> impl Strategy<Value = theirs::Value> {
    let value = |kind| theirs::Value { kind };
    let single = prop_oneof![
        Just(None),
        number().prop_map(|number| Some(theirs::Kind::NullValue(number))),
        any::<f64>().prop_map(|number| Some(theirs::Kind::NumberValue(number))),
        text().prop_map(|text| Some(theirs::Kind::StringValue(text))),
        any::<bool>().prop_map(|flag| Some(theirs::Kind::BoolValue(flag))),
    ];
    single.prop_map(value).prop_recursive(3, 12, 3, move |inner| {
        let list = vec(inner.clone(), 0..3).prop_map(|values| theirs::ListValue { values });
        prop_oneof![
            their_struct(inner).prop_map(move |fields| value(Some(theirs::Kind::StructValue(fields)))),
            list.prop_map(move |list| value(Some(theirs::Kind::ListValue(list)))),
        ]
    })
}

fn their_struct(of: impl Strategy<Value = theirs::Value>) -> impl Strategy<Value = theirs::Struct> {
    hash_map(text(), of, 0..3).prop_map(|fields| theirs::Struct { fields })
}

prop_compose! {
    fn their_response()(
        overall_code in named(),
        statuses in vec(their_status(), 0..3),
        response_headers_to_add in vec(their_header(), 0..3),
        request_headers_to_add in vec(their_header(), 0..3),
        raw_body in bytes(),
        dynamic_metadata in option::of(their_struct(their_value())),
    ) -> theirs::RateLimitResponse {
        theirs::RateLimitResponse {
            overall_code,
            statuses,
            response_headers_to_add,
            request_headers_to_add,
            raw_body,
            dynamic_metadata,
            quota: None,
        }
    }
}

/// The same request, field by field.
fn our_request(of: theirs::RateLimitRequest) -> RateLimitRequest {
    let entry = |of: theirs::Entry| Entry { key: of.key, value: of.value };
    let limit =
        |of: theirs::RateLimitOverride| RateLimitOverride { requests_per_unit: of.requests_per_unit, unit: of.unit };
    let descriptor = |of: theirs::RateLimitDescriptor| RateLimitDescriptor {
        entries: of.entries.into_iter().map(entry).collect(),
        limit: of.limit.map(limit),
        hits_addend: of.hits_addend.map(|hits| hits.value),
        is_negative_hits: of.is_negative_hits,
    };
    RateLimitRequest {
        domain: of.domain,
        descriptors: of.descriptors.into_iter().map(descriptor).collect(),
        hits_addend: of.hits_addend,
    }
}

/// The same response, field by field.
fn our_response(of: theirs::RateLimitResponse) -> RateLimitResponse {
    let limit =
        |of: theirs::RateLimit| RateLimit { requests_per_unit: of.requests_per_unit, unit: of.unit, name: of.name };
    let status = |of: theirs::DescriptorStatus| DescriptorStatus {
        code: of.code,
        current_limit: of.current_limit.map(limit),
        limit_remaining: of.limit_remaining,
        duration_until_reset: of.duration_until_reset.map(|of| Duration { seconds: of.seconds, nanos: of.nanos }),
    };
    let headers = |of: Vec<theirs::HeaderValue>| -> Vec<HeaderValue> {
        of.into_iter().map(|of| HeaderValue { key: of.key, value: of.value, raw_value: of.raw_value }).collect()
    };
    RateLimitResponse {
        overall_code: of.overall_code,
        statuses: of.statuses.into_iter().map(status).collect(),
        response_headers_to_add: headers(of.response_headers_to_add),
        request_headers_to_add: headers(of.request_headers_to_add),
        raw_body: of.raw_body,
        dynamic_metadata: of.dynamic_metadata.map(our_struct),
    }
}

fn our_struct(of: theirs::Struct) -> Struct {
    Struct { fields: of.fields.into_iter().map(|(name, of)| (name, our_value(of))).collect() }
}

fn our_value(of: theirs::Value) -> Value {
    let kind = |of| match of {
        theirs::Kind::NullValue(number) => Kind::Null(number),
        theirs::Kind::NumberValue(number) => Kind::Number(number),
        theirs::Kind::StringValue(text) => Kind::String(text),
        theirs::Kind::BoolValue(flag) => Kind::Bool(flag),
        theirs::Kind::StructValue(of) => Kind::Struct(our_struct(of)),
        theirs::Kind::ListValue(of) => Kind::List(ListValue { values: of.values.into_iter().map(our_value).collect() }),
    };
    Value { kind: of.kind.map(kind) }
}

proptest! {
    #[test]
    fn requests_have_the_bytes_of_envoy(request in their_request()) {
        let bytes = request.encode_to_vec();
        let ours = RateLimitRequest::decode(&bytes[..])?;
        prop_assert_eq!(ours.encode_to_vec(), bytes);
        prop_assert_eq!(ours, our_request(request));
    }

    #[test]
    fn responses_have_the_bytes_of_envoy(response in their_response()) {
        let bytes = response.encode_to_vec();
        let ours = our_response(response.clone());
        let our_bytes = ours.encode_to_vec();
        prop_assert_eq!(theirs::RateLimitResponse::decode(&our_bytes[..])?, response.clone());
        prop_assert_eq!(RateLimitResponse::decode(&bytes[..])?, ours);
        // The order of a map's entries is free.
        prop_assert_eq!(our_bytes.len(), bytes.len());
        if response.dynamic_metadata.is_none() {
            prop_assert_eq!(our_bytes, bytes);
        }
    }

    #[test]
    fn a_request_of_a_later_version_is_read(request in their_request()) {
        let mut bytes = Vec::new();
        for descriptor in &request.descriptors {
            let descriptor = with_later_fields(descriptor.encode_to_vec());
            encode_key(2, WireType::LengthDelimited, &mut bytes);
            encode_varint(descriptor.len() as u64, &mut bytes);
            bytes.extend(descriptor);
        }
        let others = theirs::RateLimitRequest { descriptors: Vec::new(), ..request.clone() };
        bytes.extend(with_later_fields(others.encode_to_vec()));
        prop_assert_eq!(RateLimitRequest::decode(&bytes[..])?, our_request(request));
    }
}

/// A message and fields of every wire type that it does not have.
fn with_later_fields(mut message: Vec<u8>) -> Vec<u8> {
    encode_key(100, WireType::Varint, &mut message);
    encode_varint(300, &mut message);
    encode_key(101, WireType::SixtyFourBit, &mut message);
    message.extend([1; 8]);
    encode_key(102, WireType::LengthDelimited, &mut message);
    encode_varint(3, &mut message);
    message.extend([2; 3]);
    encode_key(103, WireType::StartGroup, &mut message);
    encode_key(1, WireType::Varint, &mut message);
    encode_varint(1, &mut message);
    encode_key(103, WireType::EndGroup, &mut message);
    encode_key(104, WireType::ThirtyTwoBit, &mut message);
    message.extend([3; 4]);
    message
}

#[test]
fn quotas_of_a_response_are_skipped() {
    let expiration_specifier =
        Some(theirs::ExpirationSpecifier::ValidUntil(theirs::Timestamp { seconds: 1, nanos: 2 }));
    let quota = Some(theirs::Quota { requests: 3, id: "q".to_owned(), expiration_specifier });
    let status = theirs::DescriptorStatus { code: 1, limit_remaining: 4, quota, ..Default::default() };
    let quota = status.quota.clone();
    let response = theirs::RateLimitResponse { overall_code: 1, statuses: vec![status], quota, ..Default::default() };
    let ours = RateLimitResponse::decode(&response.encode_to_vec()[..]).unwrap();
    assert_eq!(ours, our_response(response));
}

#[test]
fn no_hits_differ_from_0_hits() {
    for (hits_addend, bytes) in [(None, &[][..]), (Some(0), &[0x1a, 0]), (Some(1), &[0x1a, 2, 8, 1])] {
        let descriptor = RateLimitDescriptor { hits_addend, ..RateLimitDescriptor::default() };
        assert_eq!(descriptor.encode_to_vec(), bytes);
        assert_eq!(RateLimitDescriptor::decode(bytes).unwrap(), descriptor);
        let theirs = theirs::RateLimitDescriptor::decode(bytes).unwrap();
        assert_eq!(theirs.hits_addend.map(|hits| hits.value), hits_addend);
    }
}

#[test]
fn enums_have_the_names_of_envoy() {
    for number in -1..10 {
        let ours = RateLimitUnit::try_from(number).ok();
        let theirs = theirs::RateLimitUnit::try_from(number).ok();
        let name = theirs.map(|unit| unit.as_str_name());
        assert_eq!(ours.map(RateLimitUnit::as_str_name), name);
        assert_eq!(name.and_then(RateLimitUnit::from_str_name), ours);

        let theirs = theirs::Unit::try_from(number).ok();
        assert_eq!(Unit::try_from(number).ok().map(Unit::as_str_name), theirs.map(|unit| unit.as_str_name()));

        let theirs = theirs::Code::try_from(number).ok();
        assert_eq!(Code::try_from(number).ok().map(Code::as_str_name), theirs.map(|code| code.as_str_name()));
    }
    assert_eq!(RateLimitUnit::from_str_name("WEEK"), None);
}
