//! The limits of each route, as far as answers have named them.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock};

use ahash::RandomState;
use http::Method;

use crate::limits::LimitId;

/// The most routes that are remembered of a host.
const MOST_ROUTES: usize = 4_096;

/// Random, so that no server can choose paths that collide.
static HASHES: LazyLock<RandomState> = LazyLock::new(RandomState::new);

/// A route of a partition: hashes of what tells routes apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Route {
    exact: u64,
    /// The routes that it probably shares its limits with.
    family: u64,
    partition: u64,
}

impl Route {
    /// The route of a method and a path. Paths that differ in the last segment are one family.
    pub(crate) fn of(method: &Method, path: &str, partition: Option<&str>) -> Route {
        let parent = path.rsplit_once('/').map_or("", |(parent, _)| parent);
        Route {
            exact: HASHES.hash_one((method, path, partition)),
            family: HASHES.hash_one((method, parent, partition)),
            partition: hash_of(partition),
        }
    }

    /// A route by a name of the caller's.
    pub(crate) fn named(name: &str, partition: Option<&str>) -> Route {
        let hash = HASHES.hash_one((name, partition));
        Route { exact: hash, family: hash, partition: hash_of(partition) }
    }

    /// The key of denials of this route that no limit explains.
    pub(super) const fn denied(self) -> LimitKey {
        LimitKey::RouteDenied(self.exact)
    }

    /// The key of denials of all routes of its partition.
    pub(super) const fn host_denied(self) -> LimitKey {
        LimitKey::HostDenied(self.partition)
    }
}

fn hash_of(partition: Option<&str>) -> u64 {
    partition.map_or(0, |partition| HASHES.hash_one(partition))
}

/// The identity of a limit that requests are held back by.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum LimitKey {
    /// A limit that answers name.
    Stated(LimitId),
    /// Denials of a route that no limit explains.
    RouteDenied(u64),
    /// Denials of all routes of a partition.
    HostDenied(u64),
}

pub(super) type Named = Arc<[LimitKey]>;

#[derive(Debug, Default)]
pub(super) struct Routes {
    /// The limits that most routes of a family have.
    families: HashMap<u64, Named>,
    /// The limits of routes that differ from their family.
    exact: HashMap<u64, Named>,
    /// The limits that all families of a partition have.
    shared: HashMap<u64, Named>,
    none: Named,
}

impl Routes {
    /// The limits of a route: its own, those of its family, or those that all families of its partition share.
    pub(super) fn limits_of(&self, route: Route) -> &Named {
        let learned = self.exact.get(&route.exact).or_else(|| self.families.get(&route.family));
        learned.or_else(|| self.shared.get(&route.partition)).unwrap_or(&self.none)
    }

    /// The limits of a route of which nothing is known.
    pub(super) fn unlimited(&self) -> Named {
        Arc::clone(&self.none)
    }

    /// Learns that these are the limits of a route.
    pub(super) fn learn(&mut self, route: Route, named: Vec<LimitKey>) {
        match self.families.get(&route.family) {
            Some(known) if **known == *named => {
                self.exact.remove(&route.exact);
            }
            Some(_) => self.learn_exact(route, named),
            None => {
                self.make_room();
                self.exact.remove(&route.exact);
                let named: Named = named.into();
                let shared = match self.shared.get(&route.partition) {
                    None => Arc::clone(&named),
                    Some(shared) => shared.iter().filter(|key| named.contains(key)).cloned().collect(),
                };
                self.shared.insert(route.partition, shared);
                self.families.insert(route.family, named);
            }
        }
    }

    /// Learns that these are the limits of a route, and nothing about its family.
    pub(super) fn learn_exact(&mut self, route: Route, named: Vec<LimitKey>) {
        if self.exact.get(&route.exact).is_none_or(|known| **known != *named) {
            self.make_room();
            self.exact.insert(route.exact, named.into());
        }
    }

    /// Forgets all routes if there are too many. They are learned again from the next answers.
    fn make_room(&mut self) {
        if self.families.len() + self.exact.len() >= MOST_ROUTES {
            *self = Routes::default();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids(names: &[&str]) -> Vec<LimitKey> {
        names.iter().map(|name| LimitKey::Stated(LimitId::named(*name))).collect()
    }

    fn route(path: &str) -> Route {
        Route::of(&Method::GET, path, None)
    }

    #[test]
    fn a_new_route_has_the_limits_of_its_family() {
        let mut routes = Routes::default();
        routes.learn(route("/users/1"), ids(&["api", "users"]));
        assert_eq!(**routes.limits_of(route("/users/2")), ids(&["api", "users"]));
        routes.learn(route("/users/2"), ids(&["api"]));
        assert_eq!(**routes.limits_of(route("/users/2")), ids(&["api"]));
        assert_eq!(**routes.limits_of(route("/users/3")), ids(&["api", "users"]));
    }

    #[test]
    fn a_new_family_has_the_limits_that_all_share() {
        let mut routes = Routes::default();
        assert!(routes.limits_of(route("/users/1")).is_empty());
        routes.learn(route("/users/1"), ids(&["api", "users"]));
        routes.learn(route("/search/1"), ids(&["search", "api"]));
        assert_eq!(**routes.limits_of(route("/orders/1")), ids(&["api"]));
    }

    #[test]
    fn partitions_have_their_own_limits() {
        let mut routes = Routes::default();
        let of = |partition| Route::of(&Method::GET, "/users/1", Some(partition));
        routes.learn(of("one"), ids(&["api"]));
        assert!(routes.limits_of(of("two")).is_empty());
        assert_eq!(**routes.limits_of(Route::of(&Method::GET, "/orders/1", Some("one"))), ids(&["api"]));
    }

    #[test]
    fn routes_are_bounded() {
        let mut routes = Routes::default();
        for number in 0..20_000 {
            routes.learn(route(&format!("/{number}/x")), ids(&["api"]));
            routes.learn(route(&format!("/{number}/y")), ids(&["other"]));
        }
        assert!(routes.families.len() + routes.exact.len() <= MOST_ROUTES);
    }
}
