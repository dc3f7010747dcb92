//! Routes: choose the upstreams of a request by its host and the prefix of its path.

use std::cmp::Reverse;
use std::fmt;
use std::str::FromStr;

use tidegate_rules::yaml::closest;
use tidegate_rules::{PathPolicy, normalize};

use super::address::{AddressError, UpstreamAddress};
use super::upgrades::Upgrades;

/// Requests by host and path prefix, and their upstreams.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    pub(super) host: HostPattern,
    /// Path prefix without a trailing slash; empty for every path.
    pub(super) prefix: String,
    pub(super) upstreams: Vec<UpstreamAddress>,
    /// Allowed upgrade protocols; `None` for those of the gateway.
    pub(super) upgrades: Option<Upgrades>,
    /// Policy for ambiguous paths; `None` for that of the gateway.
    pub(super) paths: Option<PathPolicy>,
}

/// The hosts of a route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum HostPattern {
    Any,
    /// Exactly this host, in lower case.
    Exactly(String),
    /// Any subdomain: the host ends with this text, which begins with a dot.
    Under(String),
}

impl Route {
    /// A route for all requests that no other route matches.
    #[must_use]
    pub const fn of_everything(upstreams: Vec<UpstreamAddress>) -> Route {
        Route { host: HostPattern::Any, prefix: String::new(), upstreams, upgrades: None, paths: None }
    }

    /// More specific routes come first: an exact host, then the longer host suffix, then the longer path prefix.
    pub(super) fn precedence(&self) -> impl Ord + use<> {
        let host = match &self.host {
            HostPattern::Exactly(_) => (2, 0),
            HostPattern::Under(suffix) => (1, suffix.len()),
            HostPattern::Any => (0, 0),
        };
        Reverse((host, self.prefix.len()))
    }

    /// Whether the route matches a host, without a port, and a normalised path.
    fn takes(&self, host: &str, path: &str) -> bool {
        let host = host.strip_suffix('.').unwrap_or(host);
        let is_host = match &self.host {
            HostPattern::Any => true,
            HostPattern::Exactly(name) => host.eq_ignore_ascii_case(name),
            HostPattern::Under(suffix) => {
                let start = host.len().checked_sub(suffix.len()).filter(|start| *start > 0);
                start.and_then(|start| host.get(start..)).is_some_and(|end| end.eq_ignore_ascii_case(suffix))
            }
        };
        let rest = path.strip_prefix(self.prefix.as_str());
        is_host && rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    }
}

/// The matching requests, in the notation of settings: `api.example.com/v2`, or `/` for all.
impl fmt::Display for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.host {
            HostPattern::Any => {}
            HostPattern::Exactly(name) => f.write_str(name)?,
            HostPattern::Under(suffix) => write!(f, "*{suffix}")?,
        }
        f.write_str(if self.prefix.is_empty() { "/" } else { &self.prefix })
    }
}

/// Parses a route such as `api.example.com/v2 http://10.0.0.5:3000 http://10.0.0.6:3000 upgrades=off`.
impl FromStr for Route {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Route, AddressError> {
        const EXAMPLE: &str = "write one such as `api.example.com/v2 http://10.0.0.5:3000`";
        let mut words = text.split_whitespace();
        let Some(which) = words.next() else { return Err(AddressError::new("the route is empty", EXAMPLE)) };
        if which.contains("://") {
            let help = format!("write `/ {which}` for all paths, or set `gateway.upstream`");
            return Err(AddressError::new(format!("`{text}` has no host or path before the upstream"), help));
        }
        let (mut upstreams, mut options) = (Vec::<UpstreamAddress>::new(), Options::default());
        for word in words {
            match word.split_once('=') {
                Some((name, value)) if !name.contains("://") => options.set(name, value)?,
                _ => upstreams.push(word.parse()?),
            }
        }
        if upstreams.is_empty() {
            return Err(AddressError::new(format!("`{text}` names no upstream"), EXAMPLE));
        }
        let (host, path) = which.split_at(which.find('/').unwrap_or(which.len()));
        let host = host.to_ascii_lowercase();
        let host = match host.strip_prefix('*') {
            _ if host.is_empty() || host == "*" => HostPattern::Any,
            Some(suffix) if suffix.starts_with('.') && !suffix.contains('*') => HostPattern::Under(suffix.to_owned()),
            None if !host.contains(['*', ':']) => HostPattern::Exactly(host),
            _ => {
                let help = "write a name such as `api.example.com` without a port, or `*.example.com`";
                return Err(AddressError::new(format!("`{host}` is not a host"), help));
            }
        };
        let prefix = normalize(path);
        if path.contains(['?', '#', '*']) {
            let help = "write how paths begin, such as `/images`: what follows may be anything";
            return Err(AddressError::new(format!("`{path}` is not the beginning of a path"), help));
        }
        let prefix = if path.is_empty() { "" } else { prefix.strip_suffix('/').unwrap_or(&prefix) };
        let Options { upgrades, paths } = options;
        Ok(Route { host, prefix: prefix.to_owned(), upstreams, upgrades, paths })
    }
}

/// Options of a route.
#[derive(Default)]
struct Options {
    upgrades: Option<Upgrades>,
    paths: Option<PathPolicy>,
}

impl Options {
    /// Parses an option `name=value`.
    fn set(&mut self, name: &str, value: &str) -> Result<(), AddressError> {
        const NAMES: [&str; 2] = ["paths", "upgrades"];
        let is_set_twice = match name {
            "paths" => self.paths.replace(path_policy(value)?).is_some(),
            "upgrades" => self.upgrades.replace(value.parse()?).is_some(),
            _ => {
                let help = match closest(name, NAMES) {
                    Some(meant) => format!("did you mean `{meant}={value}`?"),
                    None => format!("write one of `{}=`, or the address of an upstream", NAMES.join("=`, `")),
                };
                return Err(AddressError::new(format!("`{name}` cannot be set for a route"), help));
            }
        };
        if is_set_twice {
            return Err(AddressError::new(format!("`{name}=` is set twice"), "write it once"));
        }
        Ok(())
    }
}

/// Values of `gateway.paths` and `auth.paths`.
pub(crate) const PATH_POLICIES: [(&str, PathPolicy); 3] =
    [("strict", PathPolicy::Strict), ("canonical", PathPolicy::Canonical), ("as-is", PathPolicy::AsIs)];

fn path_policy(value: &str) -> Result<PathPolicy, AddressError> {
    let found = PATH_POLICIES.iter().find(|(name, _)| *name == value).map(|(_, policy)| *policy);
    found.ok_or_else(|| {
        let names = PATH_POLICIES.map(|(name, _)| name);
        let help = match closest(value, names) {
            Some(meant) => format!("did you mean `paths={meant}`?"),
            None => format!("write one of `paths={}`", names.join("`, `paths=")),
        };
        AddressError::new(format!("`{value}` is not a path policy"), help)
    })
}

/// Index of the route for a request, among `routes` sorted by precedence. Paths are normalised as for rules, so that
/// no spelling selects another route.
pub(super) fn find(routes: &[Route], host: &str, path: &str) -> Option<usize> {
    if let [Route { host: HostPattern::Any, prefix, .. }] = routes
        && prefix.is_empty()
    {
        return Some(0);
    }
    let path = normalize(path);
    routes.iter().position(|route| route.takes(host, &path))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn routes(texts: &[&str]) -> Vec<Route> {
        let mut routes: Vec<Route> = texts.iter().map(|text| text.parse().unwrap()).collect();
        routes.sort_by_key(Route::precedence);
        routes
    }

    #[test]
    fn the_route_that_says_most_takes_a_request() {
        let routes = routes(&[
            "/ http://everything",
            "/images/ http://images http://images-too",
            "/images/raw http://raw",
            "API.example.com http://api",
            "api.example.com/v2 http://v2",
            "*.example.com http://any",
            "*.b.example.com http://b",
        ]);
        for (host, path, upstream) in [
            ("other", "/", "everything"),
            ("other", "/imagesque", "everything"),
            ("other", "/images", "images"),
            ("other", "//images/./x", "images"),
            ("other", "/%69mages/x", "images"),
            ("other", "/images%2fx", "everything"),
            ("other", "/images/raw/1", "raw"),
            ("api.example.com", "/images", "api"),
            ("API.EXAMPLE.com.", "/v2/x", "v2"),
            ("a.example.com", "/v2", "any"),
            ("a.b.example.com", "/", "b"),
            (".example.com", "/", "everything"),
            ("example.com", "/", "everything"),
            ("", "*", "everything"),
        ] {
            let found = find(&routes, host, path).map(|route| routes[route].upstreams[0].host.as_str());
            assert_eq!(found, Some(upstream), "{host}{path}");
        }
        assert_eq!(find(&routes[..1], "other", "/"), None);
    }

    #[test]
    fn errors_say_what_to_write() {
        for (text, help) in [
            ("http://a:1", "write `/ http://a:1` for all paths, or set `gateway.upstream`"),
            ("/images", "write one such as `api.example.com/v2 http://10.0.0.5:3000`"),
            ("/images a:1", "write `http://a:1`"),
            ("a*b/ http://a", "write a name such as `api.example.com` without a port, or `*.example.com`"),
            ("a:80/ http://a", "write a name such as `api.example.com` without a port, or `*.example.com`"),
            ("/x http://a upgrade=off", "did you mean `upgrades=off`?"),
            ("/x http://a colour=red", "write one of `paths=`, `upgrades=`, or the address of an upstream"),
            ("/x http://a upgrades=off upgrades=off", "write it once"),
            ("/x http://a paths=strikt", "did you mean `paths=strict`?"),
            ("/x http://a paths=", "write one of `paths=strict`, `paths=canonical`, `paths=as-is`"),
            ("/x upgrades=off", "write one such as `api.example.com/v2 http://10.0.0.5:3000`"),
            ("/x/* http://a", "write how paths begin, such as `/images`: what follows may be anything"),
        ] {
            assert_eq!(text.parse::<Route>().unwrap_err().help, help, "{text}");
        }
    }
}
