//! The JSON Schema of the rules file, for editors.
//!
//! These types only describe the file. It is read by `read`, which can say more when something is wrong; tests hold the
//! two against each other. Comments on the fields are what an editor shows.
#![expect(dead_code, reason = "described, never built")]

mod limit;
mod value;

use std::collections::BTreeMap;

use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, Schema};

use self::limit::{Adapt, Cost, Lease, Limits, Shed, WriteBehind};
use self::value::{Fact, Id, Key, Match, OneOrMany, Span, Text};

/// The JSON Schema (draft 7, which editors know best) of a rules file.
#[must_use]
pub fn schema() -> Schema {
    SchemaSettings::draft07().into_generator().into_root_schema_for::<File>()
}

/// In these maps nothing is needed but what their own `required` says.
fn optional(schema: &mut Schema) {
    schema.remove("required");
}

/// The requests that are limited, their key, and their limits.
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
    /// The source of a request's tier: a caller that has verified it, the API key, a fact of the request, or else the default.
    tiers: Tiers,
    /// The shares of all limits that regions own, each with a Redis of its own.
    regions: Regions,
    /// The rules. Every rule that matches a request must admit it.
    rules: Option<Vec<Rule>>,
}

#[derive(JsonSchema)]
#[schemars(deny_unknown_fields, transform = optional)]
struct Tiers {
    /// The fact that names the tier, such as `header:X-Tier`, or `store`: the tier of the API key in Redis. Tiers that no rule
    /// mentions are ignored.
    from: TierSource,
    /// The tiers of API keys.
    api_keys: BTreeMap<String, Text>,
    /// The tier of all others.
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
    /// The shares in the beginning, by region.
    shares: BTreeMap<String, Share>,
    /// The share below which no region sinks. 5%, if left out.
    floor: Share,
    /// Whether shares can be moved while the regions run. `allowed`, if left out.
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
    /// Not at all: the shares of the rules apply.
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
    /// The rule's name. Counts belong to it: keep it when the rule changes.
    id: Id,
    /// Key, limit and failure policy of a well-known case. The rule's own fields take precedence.
    preset: Preset,
    /// Conditions that a request must meet for the rule to apply, all of them. Every request, if left out.
    r#match: Match,
    /// The key to charge: one part, or several together. All requests share one key if left out.
    key: Key,
    /// The action for a request that lacks a part of the key.
    on_missing_key: OnMissingKey,
    /// The action for a request that has a part of the key more than once, as two headers of one name do.
    on_repeated_key: OnRepeatedKey,
    /// The limit, such as `20/s burst 50`.
    limit: Limits,
    /// Several limits, all of which must admit.
    limits: Limits,
    /// A rate that follows the service behind the gateway or the middleware: it falls on signals of overload, and rises otherwise.
    adapt: Adapt,
    /// Slots for requests in flight that priorities share, each up to its part: under overload, the least important requests
    /// are refused first.
    shed: Shed,
    /// Limits by tier. Tiers that are not named get `limit`.
    tiers: BTreeMap<String, Limits>,
    /// Limits of single keys, by value. Parts of a key are joined by commas.
    overrides: BTreeMap<String, Limits>,
    /// The cost of a request. One, if left out.
    cost: Cost,
    /// The mode of the rule: it denies, only reports, or does nothing.
    mode: Mode,
    /// The policy when the store cannot decide.
    on_store_failure: OnStoreFailure,
    /// The longest time that a request waits for the store, from `1ms` to `10s`. The store's own setting, if left out.
    store_deadline: Span,
    /// Whether the nodes of a fleet lease the rule's limits. `auto`, if left out.
    lease: Lease,
    /// Lets nodes decide the rule's limits by their own copies, within a bound, without waiting for the store.
    write_behind: WriteBehind,
    /// The number of parts of which each node charges one. Only for shapers and logs, which cannot be leased.
    #[schemars(range(min = 2, max = 64))]
    split: u8,
    /// The shares of the rule's limits that regions own. `off` if each region has the whole limit; those of the file, if left out.
    regions: RuleRegions,
    /// The priority of the requests when not all can be served.
    priority: Priority,
    /// Rules that do not apply where this one does.
    replaces: OneOrMany<Id>,
    /// Whether rules after this one are left out where it matches.
    stop: bool,
    /// Whether clients see the rule's limits in headers and in the bodies of denials. Operators always do.
    show: bool,
    /// The kind of denial that clients are told.
    problem: Problem,
    /// The HTTP status of a denial. 429, if left out.
    #[schemars(range(min = 400, max = 599))]
    status: u16,
}

#[derive(JsonSchema)]
#[schemars(rename_all = "kebab-case")]
enum Problem {
    /// The client has used up its quota. The default.
    QuotaExceeded,
    /// The client behaves in a way that suggests a mistake or an attack.
    AbnormalUsage,
    /// There is too little capacity for all requests. The default with `shed`.
    TemporaryReducedCapacity,
}

#[derive(JsonSchema)]
#[schemars(rename_all = "snake_case")]
enum Preset {
    /// 5 a minute from one address, exactly; denied while the store is unavailable.
    Login,
    /// 300 in three hours by one user.
    Posts,
    /// 300 a minute by one user, in bursts if they like.
    Reads,
    /// 5 a day by one user.
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
    /// Make one key of all values, in their order.
    Join,
}

#[derive(JsonSchema)]
#[schemars(rename_all = "snake_case")]
enum Mode {
    /// Deny. The default.
    Enforce,
    /// Count and report what would have been done; never deny.
    Shadow,
    /// Do nothing.
    Off,
}

#[derive(JsonSchema)]
#[schemars(rename_all = "snake_case")]
enum Priority {
    /// Served as long as anything is.
    Critical,
    /// Served before most.
    High,
    /// As most. The default.
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
    /// Let requests through. The default.
    Allow,
    /// Deny them.
    Deny,
    /// Decide by this process alone.
    Local,
}

#[derive(JsonSchema)]
#[schemars(deny_unknown_fields, transform = optional, extend("minProperties" = 1, "maxProperties" = 1))]
struct BoundedPolicy {
    /// Let requests through for so long, such as `30s`, and then deny.
    allow_for: Span,
    /// Decide by this process alone, with this share of the limit, in percent.
    #[schemars(range(min = 1, max = 100))]
    local_percent: u8,
}

#[cfg(test)]
mod tests;
