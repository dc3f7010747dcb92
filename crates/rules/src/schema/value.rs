//! Values, keys and conditions.

use std::borrow::Cow;
use std::collections::BTreeMap;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};

use super::optional;

/// Scalars with a form that a type of Rust does not have.
macro_rules! scalars {
    ($($(#[doc = $doc:literal])* $name:ident: $schema:tt;)*) => {$(
        $(#[doc = $doc])*
        pub(super) struct $name;

        impl JsonSchema for $name {
            fn schema_name() -> Cow<'static, str> {
                stringify!($name).into()
            }

            fn inline_schema() -> bool {
                true
            }

            fn json_schema(_: &mut SchemaGenerator) -> Schema {
                json_schema!($schema)
            }
        }
    )*};
}

scalars! {
    /// Text. Numbers and booleans are accepted in their usual notation.
    Text: { "type": ["string", "number", "boolean"] };
    /// The id of a rule.
    Id: { "type": ["string", "integer"], "pattern": "^[A-Za-z0-9._:-]{1,100}$" };
    /// A span of time.
    Span: { "type": "string", "pattern": "^\\s*[0-9_]*[A-Za-zµ]+\\s*$", "examples": ["30s", "5min", "1h"] };
    /// A percentage.
    Percent: { "type": "string", "pattern": "^\\s*([0-9]{1,2}|100)\\s*%\\s*$", "examples": ["80%"] };
    /// An integer.
    Count: { "type": ["integer", "string"], "minimum": 0, "pattern": "^\\s*[0-9_]+\\s*$" };
    /// A named fact of a request.
    Fact: {
        "type": "string",
        "pattern": "^(header|query|cookie|claim|descriptor):.*\\S.*$",
        "examples": ["header:X-Tier", "claim:plan"]
    };
    /// A named part of a key.
    NamedPart: {
        "type": "string",
        "pattern": "^(header|query|cookie|claim|descriptor|path):.*\\S.*$",
        "examples": ["header:X-Tenant", "claim:sub", "path:id"]
    };
    /// The source of a cost.
    CostFact: {
        "description": "`hits` (the count in the protocol's own request), a fact such as `header:X-Cost`, or a field of the JSON body such as `body:max_tokens`.",
        "type": "string",
        "pattern": "^(hits|(header|query|cookie|claim|descriptor|body):.*\\S.*)$",
        "examples": ["hits", "header:X-Cost", "query:limit", "body:max_tokens"]
    };
    /// One of several sources of a cost.
    CostSaid: {
        "description": "A fact such as `header:X-Cost`, or a field of the JSON body such as `body:max_tokens`.",
        "type": "string",
        "pattern": "^(header|query|cookie|claim|descriptor|body):.*\\S.*$",
        "examples": ["body:max_completion_tokens", "body:max_tokens"]
    };
    /// The place of a request's actual cost in its response.
    SettleFact: {
        "description": "A field of a JSON body or of the events of a stream, or a header.",
        "type": "string",
        "pattern": "^(body|header):.*\\S.*$",
        "examples": ["body:usage.total_tokens", "header:X-Tokens-Used"]
    };
    /// A limit in its short notation.
    Notation: {
        "description": "A count, a slash and a period, with the algorithm before them and options behind; or `unlimited`.",
        "type": "string",
        "examples": [
            "20/s burst 50", "300/3h", "gcra 100/min burst 10", "meter 10/s burst 20", "shaper 10/s queue 50",
            "fixed 1000/day", "fixed 1000/month calendar", "sliding 300/min parts 6", "log 5/min",
            "concurrent 10 ttl 30s", "unlimited"
        ]
    };
    /// A path pattern.
    Path: { "type": "string", "pattern": "^/", "examples": ["/login", "/users/{id}", "/files/**", "/*.png"] };
    /// An address or a network.
    Network: { "type": "string", "examples": ["10.0.0.0/8", "192.0.2.7", "2001:db8::/32"] };
}

#[derive(JsonSchema)]
#[schemars(untagged, inline)]
pub(super) enum OneOrMany<T> {
    One(T),
    Many(Vec<T>),
}

#[derive(JsonSchema)]
#[schemars(deny_unknown_fields, transform = optional)]
pub(super) struct Match {
    /// The method, in any case.
    method: Value,
    /// The path: `*` and `{name}` stand for one segment, `**` for any number. Paths are normalised before they are matched.
    path: Listed<Path>,
    /// The host, without a port.
    host: Value,
    /// Headers, by their names in any case.
    header: BTreeMap<String, Value>,
    /// Query parameters.
    query: BTreeMap<String, Value>,
    /// Cookies.
    cookie: BTreeMap<String, Value>,
    /// Claims of a verified token.
    claim: BTreeMap<String, Value>,
    /// The tier.
    tier: Value,
    /// The verified user.
    user: Value,
    /// The API key.
    api_key: Value,
    /// The client's address.
    address: Listed<Network>,
    /// Entries of an Envoy rate-limit descriptor.
    descriptor: BTreeMap<String, Value>,
}

/// A value: text in which `*` stands for any characters, a list of which one must match, or a map.
#[derive(JsonSchema)]
#[schemars(untagged)]
enum Value {
    One(Text),
    Any(#[schemars(length(min = 1))] Vec<Value>),
    Said(Box<Pattern>),
}

#[derive(JsonSchema)]
#[schemars(deny_unknown_fields, transform = optional, extend("minProperties" = 1, "maxProperties" = 1))]
struct Pattern {
    /// Exactly this text.
    exact: OneOrMany<Text>,
    /// Text in which `*` stands for any characters.
    glob: OneOrMany<Text>,
    /// A regular expression that the whole value must match.
    regex: OneOrMany<Text>,
    /// Any other value. A missing value also matches.
    not: Value,
    /// Whether a value must be present, or absent.
    present: bool,
}

#[derive(JsonSchema)]
#[schemars(untagged, inline)]
enum Listed<T> {
    One(T),
    Any(#[schemars(length(min = 1))] Vec<T>),
    Not(AllBut<T>),
}

#[derive(JsonSchema)]
#[schemars(deny_unknown_fields, rename = "AllBut{T}")]
struct AllBut<T> {
    /// None of these.
    not: OneOrMany<T>,
}

#[derive(JsonSchema)]
#[schemars(untagged)]
pub(super) enum Key {
    Nothing(Global),
    One(KeyPart),
    Several(Vec<KeyPart>),
}

#[derive(JsonSchema)]
#[schemars(rename_all = "snake_case")]
pub(super) enum Global {
    /// All requests share one key.
    Global,
}

#[derive(JsonSchema)]
#[schemars(untagged)]
pub(super) enum KeyPart {
    Word(KeyWord),
    Named(NamedPart),
    Network(AddressPart),
}

#[derive(JsonSchema)]
#[schemars(rename_all = "snake_case")]
pub(super) enum KeyWord {
    /// The client's address; for IPv6, its /64 network.
    Address,
    /// The API key.
    ApiKey,
    /// The verified user.
    User,
    /// The tier.
    Tier,
    /// The method.
    Method,
    /// The host.
    Host,
    /// The path pattern that matched.
    Route,
}

#[derive(JsonSchema)]
#[schemars(deny_unknown_fields)]
pub(super) struct AddressPart {
    /// The network that contains the client's address.
    address: NetworkSizes,
}

#[derive(JsonSchema)]
#[schemars(deny_unknown_fields, transform = optional)]
struct NetworkSizes {
    /// The number of significant leading bits of an IPv4 address. 32 by default.
    #[schemars(range(max = 32))]
    ipv4: u8,
    /// The number of significant leading bits of an IPv6 address. 64 by default.
    #[schemars(range(max = 128))]
    ipv6: u8,
}
