//! The JSON Schema of the rules file, for editors.
//!
//! These types only describe the file. It is read by `read`, whose messages are more precise; tests compare the two.
//! Comments on the fields are shown by editors.
#![expect(dead_code, reason = "described, never built")]

mod limit;
mod value;

use std::collections::BTreeMap;

use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, Schema};

use self::limit::{Adapt, Cost, Lease, Limits, Shed, WriteBehind};
use self::value::{Fact, Id, Key, Match, OneOrMany, Span, Text};

/// The JSON Schema of a rules file. Draft 7 has the best support in editors.
#[must_use]
pub fn schema() -> Schema {
    SchemaSettings::draft07().into_generator().into_root_schema_for::<File>()
}

/// In these maps nothing is needed but what their own `required` says.
fn optional(schema: &mut Schema) {
    schema.remove("required");
}

/// Defines which requests are limited, by which key, and how much.
#[derive(JsonSchema)]
#[schemars(
    title = "Tidegate rules",
    deny_unknown_fields,
    transform = optional,
    extend("anyOf" = [{ "required": ["rules"] }, { "required": ["include"] }, { "required": ["tiers"] }, { "required": ["regions"] }])
)]
struct File {
    /// Other rules files to read, relative to this one.
    include: OneOrMany<String>,
    /// The source of a request's tier: a caller that has verified it, the API key, a fact of the request, or else
    /// the default.
    tiers: Tiers,
    /// The shares of all limits that regions own. Each region has its own Redis.
    regions: Regions,
    /// The rules. Every rule that matches a request must admit it.
    rules: Option<Vec<Rule>>,
}

#[derive(JsonSchema)]
#[schemars(deny_unknown_fields, transform = optional)]
struct Tiers {
    /// The fact that contains the tier, such as `header:X-Tier`, or `store`: the tier of the API key in Redis. Tiers that
    /// no rule mentions are ignored.
    from: TierSource,
    /// The tiers of API keys.
    api_keys: BTreeMap<String, Text>,
    /// The tier of all other requests.
    default: Text,
}

#[derive(JsonSchema)]
#[schemars(untagged)]
enum TierSource {
    Store(TierStore),
    Fact(Fact),
}

#[derive(JsonSchema)]
#[schemars(rename_all = "snake_case")]
enum TierStore {
    /// Tiers of API keys are looked up in Redis.
    Store,
}

/// Shares by region, such as `{ eu: 60%, us: 40% }`, at most 100% together.
#[derive(JsonSchema)]
#[schemars(untagged)]
enum Regions {
    Long(MovedRegions),
    Short(BTreeMap<String, Share>),
}

#[derive(JsonSchema)]
#[schemars(untagged)]
enum RuleRegions {
    Off(RegionsOff),
    Some(Regions),
}

#[derive(JsonSchema)]
#[schemars(rename_all = "snake_case")]
enum RegionsOff {
    /// Every region has the whole limit.
    Off,
}

#[derive(JsonSchema)]
#[schemars(deny_unknown_fields, transform = optional, extend("required" = ["shares"]))]
struct MovedRegions {
    /// The initial shares, by region.
    shares: BTreeMap<String, Share>,
    /// The minimum share of each region. 5% by default.
    floor: Share,
    /// Whether shares can be moved while the regions run. `allowed` by default.
    moves: Moves,
}

/// A share in percent, with up to four decimals.
#[derive(JsonSchema)]
#[schemars(untagged)]
enum Share {
    Text(#[schemars(regex(pattern = r"^ *(100(\.0{1,4})?|[0-9]{1,2}(\.[0-9]{1,4})?) *%? *$"))] String),
    Number(#[schemars(range(min = 0, max = 100))] f64),
}

#[derive(JsonSchema)]
#[schemars(rename_all = "snake_case")]
enum Moves {
    /// With `tidegate regions`.
    Allowed,
    /// Never: the shares of the rules apply.
    Never,
}

/// A rule: the requests that it governs, the key that it charges, and the limits that it enforces.
#[derive(JsonSchema)]
#[schemars(
    deny_unknown_fields,
    extend(
        "required" = ["id"],
        "anyOf" = [
            { "required": ["limit"] },
            { "required": ["limits"] },
            { "required": ["adapt"] },
            { "required": ["shed"] },
            { "required": ["tiers"] },
            { "required": ["overrides"] },
            { "required": ["preset"] }
        ],
        "not" = {
            "anyOf": [
                { "required": ["limit", "limits"] },
                { "required": ["adapt", "limits"] },
                { "required": ["adapt", "shed"] },
                { "required": ["adapt", "tiers"] },
                { "required": ["adapt", "overrides"] },
                { "required": ["adapt", "preset"] },
                { "required": ["shed", "limit"] },
                { "required": ["shed", "limits"] },
                { "required": ["shed", "tiers"] },
                { "required": ["shed", "overrides"] },
                { "required": ["shed", "preset"] },
                { "required": ["shed", "cost"] }
            ]
        }
    )
)]
struct Rule {
    /// The rule's id, to which its counters belong. Keep it when the rule changes.
    id: Id,
    /// Key, limit and failure policy of a common case. The rule's own fields take precedence.
    preset: Preset,
    /// Conditions for the rule to apply to a request, all of which must hold. Every request by default.
    r#match: Match,
    /// The key to charge: one part, or several parts together. By default, all requests share one key.
    key: Key,
    /// The treatment of a request that lacks a part of the key.
    on_missing_key: OnMissingKey,
    /// The treatment of a request with several values for a part of the key, such as two headers with one name.
    on_repeated_key: OnRepeatedKey,
    /// The limit, such as `20/s burst 50`.
    limit: Limits,
    /// Several limits, all of which must admit.
    limits: Limits,
    /// A rate that adapts to the service behind the gateway or the middleware: it falls on signals of overload, and rises
    /// otherwise.
    adapt: Adapt,
    /// Slots for requests in flight that priorities share, each up to its part. Under overload, the least important
    /// requests are refused first.
    shed: Shed,
    /// Limits by tier. Other tiers have `limit`.
    tiers: BTreeMap<String, Limits>,
    /// Limits of single keys, by value. Parts of a key are joined by commas.
    overrides: BTreeMap<String, Limits>,
    /// The cost of a request. 1 by default.
    cost: Cost,
    /// The mode of the rule: it denies, only reports, or does nothing.
    mode: Mode,
    /// The policy for requests that the store cannot decide.
    on_store_failure: OnStoreFailure,
    /// The longest time that a request waits for the store, from `1ms` to `10s`. The store's own setting by default.
    store_deadline: Span,
    /// Whether the nodes of a fleet lease the rule's limits. `auto` by default.
    lease: Lease,
    /// Lets nodes decide the rule's limits by their own copies, within a bound, without waiting for the store.
    write_behind: WriteBehind,
    /// The number of parts, of which each node charges one. Only for shapers and logs, which cannot be leased.
    #[schemars(range(min = 2, max = 64))]
    split: u8,
    /// The shares of the rule's limits that regions own. `off` if each region has the whole limit; those of the file by
    /// default.
    regions: RuleRegions,
    /// The priority of the requests when not all requests can be served.
    priority: Priority,
    /// Rules that do not apply to a request if this rule does.
    replaces: OneOrMany<Id>,
    /// Whether the rules after this one are skipped if it matches.
    stop: bool,
    /// Whether clients see the rule's limits in headers and in the bodies of denials. Operators always do.
    show: bool,
    /// The problem type of denials.
    problem: Problem,
    /// The HTTP status of a denial. 429 by default.
    #[schemars(range(min = 400, max = 599))]
    status: u16,
}

#[derive(JsonSchema)]
#[schemars(rename_all = "kebab-case")]
enum Problem {
    /// The client has used up its quota. The default.
    QuotaExceeded,
    /// The client's behaviour suggests a mistake or an attack.
    AbnormalUsage,
    /// There is not enough capacity for all requests. The default with `shed`.
    TemporaryReducedCapacity,
}

#[derive(JsonSchema)]
#[schemars(rename_all = "snake_case")]
enum Preset {
    /// 5 per minute from one address, exactly; denied while the store is unavailable.
    Login,
    /// 300 in three hours per user.
    Posts,
    /// 300 per minute per user, possibly in bursts.
    Reads,
    /// 5 per day per user.
    Messages,
}

#[derive(JsonSchema)]
#[schemars(rename_all = "snake_case")]
enum OnMissingKey {
    /// Charge one key that all such requests share. The default.
    Share,
    /// Do not apply the rule.
    Skip,
    /// Refuse the request.
    Refuse,
}

#[derive(JsonSchema)]
#[schemars(rename_all = "snake_case")]
enum OnRepeatedKey {
    /// Refuse the request. The default.
    Refuse,
    /// Make one key of all values, in order.
    Join,
}

#[derive(JsonSchema)]
#[schemars(rename_all = "snake_case")]
enum Mode {
    /// Deny. The default.
    Enforce,
    /// Count and report what would have been done, but never deny.
    Shadow,
    /// Do nothing.
    Off,
}

#[derive(JsonSchema)]
#[schemars(rename_all = "snake_case")]
enum Priority {
    /// Served as long as any request is served.
    Critical,
    /// Served before requests of normal priority.
    High,
    /// The usual priority. The default.
    Normal,
    /// Served last.
    Low,
}

#[derive(JsonSchema)]
#[schemars(untagged)]
enum OnStoreFailure {
    Word(FailurePolicy),
    More(BoundedPolicy),
}

#[derive(JsonSchema)]
#[schemars(rename_all = "snake_case")]
enum FailurePolicy {
    /// Let requests pass. The default.
    Allow,
    /// Deny them.
    Deny,
    /// Decide by this process alone.
    Local,
}

#[derive(JsonSchema)]
#[schemars(deny_unknown_fields, transform = optional, extend("minProperties" = 1, "maxProperties" = 1))]
struct BoundedPolicy {
    /// Let requests pass for this long, such as `30s`, and then deny.
    allow_for: Span,
    /// Decide by this process alone, with this share of the limit, in percent.
    #[schemars(range(min = 1, max = 100))]
    local_percent: u8,
}

#[cfg(test)]
mod tests;
