//! Settings of the Redis-protocol listener.

use std::fmt;
use std::time::Duration;

use subtle::{Choice, ConstantTimeEq};
use tidegate_rules::OnStoreFailure;

use super::request::RequestBounds;
use super::transaction::TransactionBounds;

/// Settings of the Redis-protocol listener. The default requires no password, and bounds the resources of a connection.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Users and their passwords.
    pub users: Users,
    /// Failure policy of `CL.THROTTLE`. Rules have their own policies.
    pub on_store_failure: OnStoreFailure,
    /// Deadline of `CL.THROTTLE` for a remote store; `None` for the store's default.
    pub store_deadline: Option<Duration>,
    /// Maximum size of a request.
    pub bounds: RequestBounds,
    /// Maximum size of a transaction.
    pub transaction: TransactionBounds,
    /// Maximum number of a connection's commands that wait for the store.
    pub most_waiting: usize,
    /// Maximum number of unsent bytes of replies. Above it, no further requests are read from the client.
    pub most_unsent: usize,
    /// Idle timeout of a connection; `None` for none. Incomplete requests do not count as activity.
    pub idle: Option<Duration>,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            users: Users::default(),
            on_store_failure: OnStoreFailure::default(),
            store_deadline: None,
            bounds: RequestBounds { words: 1_024, bytes: 64 * 1_024 },
            transaction: TransactionBounds { commands: 10_000, bytes: 1024 * 1_024 },
            most_waiting: 1_024,
            most_unsent: 1024 * 1_024,
            idle: Some(Duration::from_secs(300)),
        }
    }
}

/// Maximum size of a request before authentication.
pub(super) const UNAUTHENTICATED_BOUNDS: RequestBounds = RequestBounds { words: 10, bytes: 16 * 1_024 };

/// Users and their passwords. If empty, authentication is off.
#[derive(Clone, Default)]
pub struct Users(Vec<User>);

#[derive(Clone)]
struct User {
    name: String,
    password: String,
}

/// User for `AUTH` without a user name.
pub(crate) const DEFAULT_USER: &str = "default";

impl Users {
    /// One password for the default user, like Redis' `requirepass`.
    #[must_use]
    pub fn password(password: impl Into<String>) -> Users {
        Users::default().and(DEFAULT_USER, password)
    }

    /// Adds a user. A user added twice can use either password.
    #[must_use]
    pub fn and(mut self, name: impl Into<String>, password: impl Into<String>) -> Users {
        self.0.push(User { name: name.into(), password: password.into() });
        self
    }

    /// Whether authentication is off.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// A user for examples: the default user if it exists, else the first.
    #[must_use]
    pub fn first(&self) -> Option<&str> {
        let names = || self.0.iter().map(|user| user.name.as_str());
        names().find(|name| *name == DEFAULT_USER).or_else(|| names().next())
    }

    /// Whether the user has this password. The time taken does not reveal whether the name or the password is wrong.
    pub(super) fn know(&self, name: &[u8], password: &[u8]) -> bool {
        let is = |user: &User| user.name.as_bytes().ct_eq(name) & user.password.as_bytes().ct_eq(password);
        self.0.iter().map(is).fold(Choice::from(0), |known, is| known | is).into()
    }
}

/// Omits the passwords.
impl fmt::Debug for Users {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.0.iter().map(|user| &user.name)).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_and_its_password_open() {
        let users = Users::password("s3cret").and("ann", "tea").and("ann", "coffee");
        for (name, password, opens) in [
            ("default", "s3cret", true),
            ("ann", "tea", true),
            ("ann", "coffee", true),
            ("ann", "s3cret", false),
            ("default", "tea", false),
            ("default", "", false),
            ("default", "s3cre", false),
            ("", "s3cret", false),
        ] {
            assert_eq!(users.know(name.as_bytes(), password.as_bytes()), opens, "{name} {password}");
        }
        assert!(!Users::default().know(b"default", b""));
        assert_eq!(format!("{users:?}"), r#"["default", "ann", "ann"]"#);
    }
}
