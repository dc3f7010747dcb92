//! The limits of each route, as far as answers have named them.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, LazyLock};

use http::Method;

use crate::limits::LimitId;

/// The most routes that are remembered of a host.
const MOST_ROUTES: usize = 4_096;

/// Random, so that no server can choose paths that collide.
static HASHES: LazyLock<RandomState> = LazyLock::new(RandomState::new);

/// A route: hashes of what tells routes apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Route {
    exact: u64,
    /// The routes that it probably shares its limits with.
    family: u64,
}

impl Route {
    /// The route of a method and a path. Paths that differ in the last segment are one family.
    pub(crate) fn of(method: &Method, path: &str) -> Route {
        let parent = path.rsplit_once('/').map_or("", |(parent, _)| parent);
        Route { exact: HASHES.hash_one((method, path)), family: HASHES.hash_one((method, parent)) }
    }

    /// A route by a name of the caller's.
    pub(crate) fn named(name: &str) -> Route {
        let hash = HASHES.hash_one(name);
        Route { exact: hash, family: hash }
    }

    /// The name of the limit that stands for denials of this route that no limit explains.
    pub(super) fn denied(self) -> LimitId {
        LimitId { name: "denied".into(), partition: self.exact.to_be_bytes().to_vec() }
    }
}

type Named = Arc<[LimitId]>;

#[derive(Debug, Default)]
pub(super) struct Routes {
    /// The limits that most routes of a family have.
    families: HashMap<u64, Named>,
    /// The limits of routes that differ from their family.
    exact: HashMap<u64, Named>,
    /// The limits that all families have.
    shared: Named,
}

impl Routes {
    /// The limits of a route: its own, those of its family, or those that all families share.
    pub(super) fn limits_of(&self, route: Route) -> &Named {
        self.exact.get(&route.exact).or_else(|| self.families.get(&route.family)).unwrap_or(&self.shared)
    }

    /// Learns that these are the limits of a route.
    pub(super) fn learn(&mut self, route: Route, named: Vec<LimitId>) {
        match self.families.get(&route.family) {
            Some(known) if **known == *named => {
                self.exact.remove(&route.exact);
            }
            Some(_) => self.learn_exact(route, named),
            None => {
                self.make_room();
                self.exact.remove(&route.exact);
                let named: Named = named.into();
                self.shared = match self.families.is_empty() {
                    true => Arc::clone(&named),
                    false => self.shared.iter().filter(|id| named.contains(id)).cloned().collect(),
                };
                self.families.insert(route.family, named);
            }
        }
    }

    /// Learns that these are the limits of a route, and nothing about its family.
    pub(super) fn learn_exact(&mut self, route: Route, named: Vec<LimitId>) {
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

    fn ids(names: &[&str]) -> Vec<LimitId> {
        names.iter().copied().map(LimitId::named).collect()
    }

    fn route(path: &str) -> Route {
        Route::of(&Method::GET, path)
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
    fn routes_are_bounded() {
        let mut routes = Routes::default();
        for number in 0..20_000 {
            routes.learn(route(&format!("/{number}/x")), ids(&["api"]));
            routes.learn(route(&format!("/{number}/y")), ids(&["other"]));
        }
        assert!(routes.families.len() + routes.exact.len() <= MOST_ROUTES);
    }
}
