//! The login of a connection.

use std::fmt;

/// User, password and database.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Login {
    /// The user; without one, servers use `default`.
    pub user: Option<String>,
    /// The password.
    pub password: Option<String>,
    /// The number of the database. A cluster has only number 0.
    pub database: u32,
}

impl fmt::Debug for Login {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let password = self.password.as_ref().map(|_| "…");
        f.debug_struct("Login")
            .field("user", &self.user)
            .field("password", &password)
            .field("database", &self.database)
            .finish()
    }
}
