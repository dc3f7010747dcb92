//! Test files: rules, requests and expected outcomes.

use std::net::IpAddr;
use std::path::{Path, PathBuf};

use tidegate_core::{Micros, RuleId};
use tidegate_rules::yaml::{Fields, Node, Reader, Source, Value, closest};
use tidegate_rules::{Diagnostic, Diagnostics, FieldPath, Place, Request, Rule, RuleSet, Severity};

use super::super::request::request_line;

/// A file of tests.
pub(super) struct TestFile {
    /// Rules under test, relative to the working directory.
    pub(super) rules: Vec<PathBuf>,
    pub(super) scenarios: Vec<Scenario>,
}

/// A test: consecutive steps.
pub(super) struct Scenario {
    pub(super) name: String,
    pub(super) place: Place,
    pub(super) steps: Vec<ScenarioStep>,
}

/// Requests at one instant.
pub(super) struct ScenarioStep {
    pub(super) place: Place,
    /// Time since the previous step.
    pub(super) after: Micros,
    pub(super) request: Request,
    /// Number of such requests.
    pub(super) times: u64,
    /// Whether the requests stay in flight until the test ends, and keep their slots.
    pub(super) hold: bool,
    pub(super) expected: ExpectedOutcome,
}

/// The outcome that a step expects of each of its requests.
pub(super) struct ExpectedOutcome {
    pub(super) allowed: bool,
    /// The rule or limit that denies.
    pub(super) by: Option<String>,
    /// Expected wait of a denial.
    pub(super) retry_after: Option<Micros>,
}

const FILE: [&str; 2] = ["rules", "tests"];
const SCENARIO: [&str; 2] = ["name", "steps"];
const STEP: [&str; 18] = [
    "after",
    "request",
    "times",
    "hold",
    "expect",
    "by",
    "retry_after",
    "address",
    "host",
    "user",
    "api_key",
    "tier",
    "headers",
    "cookies",
    "claims",
    "descriptor",
    "body",
    "hits",
];
/// Maximum number of requests in a step, so that a typo does not cause a test of hours.
const MOST_TIMES: u64 = 1_000_000;

impl TestFile {
    /// Reads a file.
    ///
    /// # Errors
    /// All problems in it.
    pub(super) fn read(path: &Path) -> Result<TestFile, Diagnostics> {
        let name = path.display().to_string();
        let bytes = std::fs::read(path).map_err(|error| {
            let place = Place { file: name.as_str().into(), line: 1, column: 1 };
            let problem = format!("the tests cannot be read: {error}");
            Diagnostics(vec![Diagnostic::bare(place, problem, "`tidegate test --help` shows a test file")])
        })?;
        let source = Source::new(&name, bytes).map_err(|finding| Diagnostics(vec![*finding]))?;
        let mut findings = Vec::new();
        let root = source.parse(&mut findings);
        let mut reader = Reader::new(&source);
        let folder = path.parent().unwrap_or(Path::new(""));
        let read = root.and_then(|root| file(&mut reader, &root, folder));
        findings.append(&mut reader.findings);
        let is_bad = findings.iter().any(|finding| finding.severity == Severity::Error);
        match read {
            Some(read) if !is_bad => Ok(read),
            Some(_) | None => Err(Diagnostics(findings)),
        }
    }
}

impl TestFile {
    /// Checks that the rules and limits named by tests exist in the rules under test.
    ///
    /// # Errors
    /// Every name that does not exist.
    pub(super) fn deniers_exist(&self, rules: &RuleSet) -> Result<(), Diagnostics> {
        let known: Vec<&str> =
            rules.rules().iter().map(Rule::id).chain(rules.limit_ids().map(RuleId::as_str)).collect();
        let steps = self.scenarios.iter().flat_map(|scenario| &scenario.steps);
        let unknown = steps.filter_map(|step| {
            let by = step.expected.by.as_deref().filter(|by| !known.contains(by))?;
            let help = match closest(by, known.iter().copied()) {
                Some(meant) => format!("did you mean `{meant}`?"),
                None => "name a rule, or a limit of a rule such as `model/tokens`".to_owned(),
            };
            Some(Diagnostic::bare(step.place.clone(), format!("there is no rule `{by}`"), &help))
        });
        let unknown: Vec<Diagnostic> = unknown.collect();
        if unknown.is_empty() { Ok(()) } else { Err(Diagnostics(unknown)) }
    }
}

fn file(reader: &mut Reader<'_>, root: &Node, folder: &Path) -> Option<TestFile> {
    let fields = reader.fields(root, "a test file", &FILE)?;
    let rules = required(reader, &fields, "a test file", "rules", "name the rules: `rules: rules.yaml`");
    let tests = required(reader, &fields, "a test file", "tests", "write `tests:` and a list of tests below it");
    if let Some(node) = rules.filter(|node| is_empty_list(node)) {
        reader.error(node.at, "`rules` names no file", "name the rules: `rules: rules.yaml`");
    }
    let rules = rules.into_iter().flat_map(|node| reader.each(node)).collect::<Vec<_>>();
    let rules = rules.into_iter().filter_map(|node| Some(folder.join(reader.text(node, "`rules`")?))).collect();
    let help = "write a test: `- { name: …, steps: [{ request: GET /, expect: allowed }] }`";
    let scenarios = tests.map_or(&[][..], |node| list(reader, node, "`tests`", help));
    let scenarios = scenarios.iter().filter_map(|node| scenario(reader, node)).collect();
    Some(TestFile { rules, scenarios })
}

/// The value of a required field. Reports it as missing, unless a misspelled field is probably meant.
fn required<'n>(reader: &mut Reader<'_>, fields: &Fields<'n>, what: &str, name: &str, help: &str) -> Option<&'n Node> {
    let found = fields.get(name);
    if found.is_none() && fields.understood {
        reader.error(fields.at, format_args!("{what} without `{name}`"), help);
    }
    found
}

fn is_empty_list(node: &Node) -> bool {
    matches!(&node.value, Value::List(items) if items.is_empty())
}

/// The entries of a list. An empty list tests nothing, so it is an error; `help` suggests what to write.
fn list<'n>(reader: &mut Reader<'_>, node: &'n Node, what: &str, help: &str) -> &'n [Node] {
    if is_empty_list(node) {
        reader.error(node.at, format_args!("{what} is an empty list, so nothing is tested"), help);
        return &[];
    }
    if let Value::List(items) = &node.value {
        return items;
    }
    reader.error(node.at, format_args!("{what} must be a list, found {}", node.kind()), "begin each entry with `- `");
    &[]
}

fn scenario(reader: &mut Reader<'_>, node: &Node) -> Option<Scenario> {
    let fields = reader.fields(node, "a test", &SCENARIO)?;
    let name = required(reader, &fields, "a test", "name", "describe in a few words what it tests: `name: …`");
    let name = name.and_then(|node| reader.text(node, "`name`"));
    let steps = required(reader, &fields, "a test", "steps", "write `steps:` and a list of requests below it")?;
    let help = "write a request and the expected decision: `- { request: GET /, expect: allowed }`";
    let steps = list(reader, steps, "`steps`", help).iter().filter_map(|node| step(reader, node)).collect();
    Some(Scenario { name: name?, place: reader.source.place(node.at), steps })
}

fn step(reader: &mut Reader<'_>, node: &Node) -> Option<ScenarioStep> {
    let fields = reader.fields(node, "a step", &STEP)?;
    let line = required(reader, &fields, "a step", "request", "write a method and a path: `request: GET /search`");
    let request = line.and_then(|line| request(reader, line, &fields));
    let allowed = required(reader, &fields, "a step", "expect", "write `expect: allowed` or `expect: denied`");
    let choices = [("allowed", true), ("denied", false)];
    let allowed = allowed.and_then(|node| reader.choice(node, "`expect`", &choices));
    let after = fields.get("after").map_or(Some(Micros::ZERO), |node| span(reader, node, "`after`"));
    let times = fields.get("times").map_or(Some(1), |node| times(reader, node));
    let hold = fields.get("hold").map_or(Some(false), |node| reader.flag(node, "`hold`"));
    let by = fields.get("by").and_then(|node| reader.text(node, "`by`"));
    let retry_after = fields.get("retry_after").and_then(|node| span(reader, node, "`retry_after`"));
    for name in ["by", "retry_after"] {
        if let (Some(node), Some(true)) = (fields.get(name), allowed) {
            let help = "leave it out, or write `expect: denied`";
            reader.error(node.at, format_args!("`{name}` describes a denial, but the step does not expect one"), help);
        }
    }
    Some(ScenarioStep {
        place: reader.source.place(node.at),
        after: after?,
        request: request?,
        times: times?,
        hold: hold?,
        expected: ExpectedOutcome { allowed: allowed?, by, retry_after },
    })
}

fn times(reader: &mut Reader<'_>, node: &Node) -> Option<u64> {
    let times = reader.count(node, "`times`")?;
    if (1..=MOST_TIMES).contains(&times) {
        return Some(times);
    }
    reader.error(node.at, format_args!("`times` cannot be {times}"), format!("write 1 to {MOST_TIMES}"));
    None
}

fn span(reader: &mut Reader<'_>, node: &Node, what: &str) -> Option<Micros> {
    let text = reader.text(node, what)?;
    match text.parse() {
        Ok(span) => Some(span),
        Err(_) => {
            reader.error(node.at, format_args!("{what} cannot be `{text}`"), "write a time such as 500ms, 30s or 1h");
            None
        }
    }
}

fn request(reader: &mut Reader<'_>, line: &Node, fields: &Fields<'_>) -> Option<Request> {
    let text = reader.text(line, "`request`")?;
    let line = match request_line(&text) {
        Ok(line) => line,
        Err(help) => {
            reader.error(line.at, format_args!("`{text}` is not a request"), help);
            return None;
        }
    };
    let mut request = Request::new(&line.method, &line.target);
    type Setter = fn(Request, &str) -> Request;
    let setters: [(&str, Setter); 4] = [
        ("host", |request, host| request.host(host)),
        ("user", |request, user| request.user(user)),
        ("api_key", |request, key| request.api_key(key)),
        ("tier", |request, tier| request.tier(tier)),
    ];
    for (name, set) in setters {
        if let Some(text) = fields.get(name).and_then(|node| reader.text(node, &format!("`{name}`"))) {
            request = set(request, &text);
        }
    }
    type Adder = fn(Request, &str, &str) -> Request;
    let adders: [(&str, Adder); 5] = [
        ("headers", |request, name, value| request.header(name, value)),
        ("cookies", |request, name, value| request.cookie(name, value)),
        ("claims", |request, name, value| request.claim(name, value)),
        ("descriptor", |request, name, value| request.descriptor(name, value)),
        ("body", |request, name, value| request.body(name, value)),
    ];
    for (name, add) in adders {
        for (name, value) in fields.get(name).map(|node| pairs(reader, node, name)).unwrap_or_default() {
            request = add(request, &name, &value);
        }
    }
    if let Some(node) = fields.get("address") {
        request = request.address(address(reader, node)?);
    }
    if let Some(node) = fields.get("hits") {
        request = request.hits(reader.count(node, "`hits`")?);
    }
    Some(request)
}

fn address(reader: &mut Reader<'_>, node: &Node) -> Option<IpAddr> {
    let text = reader.text(node, "`address`")?;
    match super::super::request::address(&text) {
        Ok(address) => Some(address),
        Err(help) => {
            reader.error(node.at, format_args!("`address` cannot be `{text}`"), help);
            None
        }
    }
}

/// A map of names to texts, such as headers.
fn pairs(reader: &mut Reader<'_>, node: &Node, what: &str) -> Vec<(String, String)> {
    let Value::Map(map) = &node.value else {
        let help = format!("write names and values: `{what}: {{ name: value }}`");
        reader.error(node.at, format_args!("`{what}` must be a map, found {}", node.kind()), help);
        return Vec::new();
    };
    let mut pairs = Vec::new();
    for (name, value) in map {
        if what == "body" && name.text.parse::<FieldPath>().is_err() {
            let help = "write the path to a number, such as `max_tokens` or `options.max`";
            reader.error(name.at, format_args!("`{}` is not a field of a body", name.text), help);
        }
        if let Some(value) = reader.text(value, &format!("`{}`", name.text)) {
            pairs.push((name.text.clone(), value));
        }
    }
    pairs
}
