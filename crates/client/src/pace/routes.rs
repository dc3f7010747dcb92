//! The limits of each route, as far as answers have named them.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock};

use ahash::RandomState;
use http::Method;

use super::common_limits::CommonLimits;
use super::limit_key::{LimitKey, Named};

/// Maximum number of routes that are remembered for a host.
const MOST_ROUTES: usize = 4_096;

/// Random, so that no server can choose paths whose hashes collide.
static HASHES: LazyLock<RandomState> = LazyLock::new(RandomState::new);

/// A route of a partition, identified by hashes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct RouteKey {
    exact: u64,
    /// The group of routes with which it probably shares its limits.
    family: u64,
    partition: u64,
}

impl RouteKey {
    /// The route of a method and a path. Paths that differ only in the last segment belong to one family.
    pub(crate) fn of(method: &Method, path: &str, partition: Option<&str>) -> RouteKey {
        let parent = path.rsplit_once('/').map_or("", |(parent, _)| parent);
        RouteKey {
            exact: HASHES.hash_one((method, path, partition)),
            family: HASHES.hash_one((method, parent, partition)),
            partition: hash_of(partition),
        }
    }

    /// A route with a name given by the caller.
    pub(crate) fn named(name: &str, partition: Option<&str>) -> RouteKey {
        let hash = HASHES.hash_one((name, partition));
        RouteKey { exact: hash, family: hash, partition: hash_of(partition) }
    }

    /// The key for denials of this route without a stated limit.
    pub(super) const fn denied(self) -> LimitKey {
        LimitKey::RouteDenied(self.exact)
    }

    /// The key for denials of all routes of the partition.
    pub(super) const fn host_denied(self) -> LimitKey {
        LimitKey::HostDenied(self.partition)
    }
}

fn hash_of(partition: Option<&str>) -> u64 {
    partition.map_or(0, |partition| HASHES.hash_one(partition))
}

#[derive(Debug, Default)]
pub(super) struct RouteLimits {
    /// The limits of most routes of a family.
    families: HashMap<u64, Named>,
    /// The limits of routes that differ from their family.
    exact: HashMap<u64, Named>,
    /// The limits that most families of a partition have.
    common: HashMap<u64, CommonLimits>,
    none: Named,
}

impl RouteLimits {
    /// The limits of a route: its own, those of its family, or those that most families of its partition state.
    pub(super) fn limits_of(&self, route: RouteKey) -> &Named {
        let learned = self.exact.get(&route.exact).or_else(|| self.families.get(&route.family));
        learned.or_else(|| self.common.get(&route.partition).map(CommonLimits::named)).unwrap_or(&self.none)
    }

    /// The limits of an unknown route.
    pub(super) fn unlimited(&self) -> Named {
        Arc::clone(&self.none)
    }

    /// Records that these are the limits of a route.
    pub(super) fn learn(&mut self, route: RouteKey, named: Vec<LimitKey>) {
        match self.families.get(&route.family) {
            Some(known) if **known == *named => {
                self.exact.remove(&route.exact);
            }
            // A route without limits says little about sibling routes, unlike one that has some.
            Some(known) if known.is_empty() => self.learn_family(route, named),
            Some(_) => self.learn_exact(route, named),
            None if named.is_empty() => {
                self.make_room();
                self.families.insert(route.family, self.unlimited());
                self.exact.insert(route.exact, self.unlimited());
            }
            None => {
                self.make_room();
                self.learn_family(route, named);
            }
        }
    }

    fn learn_family(&mut self, route: RouteKey, named: Vec<LimitKey>) {
        self.exact.remove(&route.exact);
        self.common.entry(route.partition).or_default().add(&named);
        self.families.insert(route.family, named.into());
    }

    /// Learns that these are the limits of a route, and nothing about its family.
    pub(super) fn learn_exact(&mut self, route: RouteKey, named: Vec<LimitKey>) {
        if self.exact.get(&route.exact).is_none_or(|known| **known != *named) {
            self.make_room();
            self.exact.insert(route.exact, named.into());
        }
    }

    /// Forgets all routes if there are too many. They are learned again from the next answers, and until then have the limits that
    /// most of them had.
    fn make_room(&mut self) {
        // A route may be learned together with its family.
        if self.families.len() + self.exact.len() + 2 <= MOST_ROUTES {
            return;
        }
        self.families.clear();
        self.exact.clear();
        if self.common.len() >= MOST_ROUTES {
            self.common.clear();
        }
        self.common.retain(|_, common| common.forget_families());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::LimitId;

    fn ids(names: &[&str]) -> Vec<LimitKey> {
        names.iter().map(|name| LimitKey::Stated(LimitId::named(*name))).collect()
    }

    fn route(path: &str) -> RouteKey {
        RouteKey::of(&Method::GET, path, None)
    }

    #[test]
    fn a_new_route_has_the_limits_of_its_family() {
        let mut routes = RouteLimits::default();
        routes.learn(route("/users/1"), ids(&["api", "users"]));
        assert_eq!(**routes.limits_of(route("/users/2")), ids(&["api", "users"]));
        routes.learn(route("/users/2"), ids(&["api"]));
        assert_eq!(**routes.limits_of(route("/users/2")), ids(&["api"]));
        assert_eq!(**routes.limits_of(route("/users/3")), ids(&["api", "users"]));
    }

    #[test]
    fn a_new_family_has_the_limits_that_all_share() {
        let mut routes = RouteLimits::default();
        assert!(routes.limits_of(route("/users/1")).is_empty());
        routes.learn(route("/users/1"), ids(&["api", "users"]));
        routes.learn(route("/search/1"), ids(&["search", "api"]));
        assert_eq!(**routes.limits_of(route("/orders/1")), ids(&["api"]));
    }

    #[test]
    fn a_family_without_limits_takes_none_from_the_others() {
        let mut routes = RouteLimits::default();
        routes.learn(route("/users/1"), ids(&["api", "users"]));
        routes.learn(route("/status/health"), Vec::new());
        assert!(routes.limits_of(route("/status/ready")).is_empty(), "it is known to have none");
        assert_eq!(**routes.limits_of(route("/orders/1")), ids(&["api", "users"]), "nothing is known of it");
        routes.learn(route("/orders/1"), ids(&["api"]));
        assert_eq!(**routes.limits_of(route("/users/9/orders")), ids(&["api"]));
    }

    #[test]
    fn a_family_that_began_without_limits_learns_them() {
        let mut routes = RouteLimits::default();
        routes.learn(route("/health"), Vec::new());
        routes.learn(route("/things"), ids(&["api"]));
        assert_eq!(**routes.limits_of(route("/orders")), ids(&["api"]));
        assert!(routes.limits_of(route("/health")).is_empty());
        assert_eq!(**routes.limits_of(route("/users/1")), ids(&["api"]));
    }

    #[test]
    fn limits_of_single_families_hold_for_no_other() {
        let mut routes = RouteLimits::default();
        for number in 0..9 {
            let (path, bucket) = (format!("/channels/{number}/messages"), format!("bucket {number}"));
            routes.learn(route(&path), ids(&[&bucket, "global"]));
        }
        assert_eq!(**routes.limits_of(route("/guilds/1/roles")), ids(&["global"]));
        routes.learn(route("/webhooks/1"), ids(&["hooks"]));
        assert_eq!(**routes.limits_of(route("/guilds/1/roles")), ids(&["global"]), "of nine families in ten");
    }

    #[test]
    fn common_limits_outlive_the_routes_that_stated_them() {
        let mut routes = RouteLimits::default();
        for number in 0..MOST_ROUTES {
            routes.learn(route(&format!("/users/{number}/orders")), ids(&["api", &number.to_string()]));
        }
        routes.learn(route("/one/more"), ids(&["api"]));
        assert!(routes.families.len() < 3);
        assert_eq!(**routes.limits_of(route("/users/7/orders")), ids(&["api"]));
    }

    #[test]
    fn partitions_have_their_own_limits() {
        let mut routes = RouteLimits::default();
        let of = |partition| RouteKey::of(&Method::GET, "/users/1", Some(partition));
        routes.learn(of("one"), ids(&["api"]));
        assert!(routes.limits_of(of("two")).is_empty());
        assert_eq!(**routes.limits_of(RouteKey::of(&Method::GET, "/orders/1", Some("one"))), ids(&["api"]));
    }

    #[test]
    fn routes_are_bounded() {
        let mut routes = RouteLimits::default();
        for number in 0..20_000 {
            routes.learn(route(&format!("/{number}/x")), ids(&["api"]));
            routes.learn(route(&format!("/{number}/y")), ids(&["other"]));
        }
        assert!(routes.families.len() + routes.exact.len() <= MOST_ROUTES);
    }
}
