//! Which store a URL names. `keys`: what wraps the data keys of its runs; without them nothing is sealed, and what is sealed
//! cannot be read.

use std::path::Path;
use std::sync::Arc;

use crate::keys::KeyProvider;
use crate::{Error, Result, Store};

/// What a URL names.
#[derive(Debug, PartialEq, Eq)]
enum Place<'a> {
    /// A PostgreSQL database, by the whole URL.
    Postgres(&'a str),
    /// A SQLite file.
    File(&'a Path),
    /// SQLite in memory.
    Memory,
}

/// Opens the store that `url` names: `postgres://…`, `sqlite:///path/to/file.db`, or `sqlite::memory:`. Refuses a
/// schema newer than this binary, and one that is not migrated. A SQLite file is locked: one process writes.
pub async fn open(url: &str, keys: Option<Arc<dyn KeyProvider>>) -> Result<Arc<dyn Store>> {
    match place(url)? {
        #[cfg(feature = "postgres")]
        Place::Postgres(url) => Ok(Arc::new(crate::postgres::Postgres::connect(url).await?.sealed_by(keys))),
        #[cfg(feature = "sqlite")]
        Place::File(path) => Ok(Arc::new(crate::sqlite::Sqlite::open(path).await?.sealed_by(keys))),
        #[cfg(feature = "sqlite")]
        Place::Memory => Ok(Arc::new(crate::sqlite::Sqlite::memory().await?.sealed_by(keys))),
        #[cfg(not(all(feature = "postgres", feature = "sqlite")))]
        other => Err(not_built_in(&other)),
    }
}

/// Opens the store that `url` names for a look: a SQLite file also while another process writes to it, and there what
/// writes is refused.
pub async fn open_read_only(url: &str, keys: Option<Arc<dyn KeyProvider>>) -> Result<Arc<dyn Store>> {
    match place(url)? {
        #[cfg(feature = "postgres")]
        Place::Postgres(url) => Ok(Arc::new(crate::postgres::Postgres::connect(url).await?.sealed_by(keys))),
        #[cfg(feature = "sqlite")]
        Place::File(path) => Ok(Arc::new(crate::sqlite::Sqlite::open_read_only(path).await?.sealed_by(keys))),
        Place::Memory => Err(Error::Unfit("a store in memory has nothing to look at".into())),
        #[cfg(not(all(feature = "postgres", feature = "sqlite")))]
        other => Err(not_built_in(&other)),
    }
}

/// Opens the store that `url` names for one person's short write, also while another process works on it.
pub async fn open_beside(url: &str, keys: Option<Arc<dyn KeyProvider>>) -> Result<Arc<dyn Store>> {
    match place(url)? {
        #[cfg(feature = "sqlite")]
        Place::File(path) => Ok(Arc::new(crate::sqlite::Sqlite::open_beside(path).await?.sealed_by(keys))),
        _ => open(url, keys).await,
    }
}

/// Brings the schema of the store that `url` names up to this binary's. A store in memory is always up to date.
pub async fn migrate(url: &str) -> Result<()> {
    match place(url)? {
        #[cfg(feature = "postgres")]
        Place::Postgres(url) => crate::postgres::Postgres::migrate(url).await,
        #[cfg(feature = "sqlite")]
        Place::File(path) => crate::sqlite::Sqlite::migrate(path).await,
        #[cfg(feature = "sqlite")]
        Place::Memory => Ok(()),
        #[cfg(not(all(feature = "postgres", feature = "sqlite")))]
        other => Err(not_built_in(&other)),
    }
}

/// Gives a role of PostgreSQL the least rights that operator and gateway need; `url` must connect as the role that
/// migrated. SQLite has no roles: refused.
pub async fn grant(url: &str, role: &str) -> Result<()> {
    match place(url)? {
        #[cfg(feature = "postgres")]
        Place::Postgres(url) => crate::postgres::Postgres::grant(url, role).await,
        _ => Err(Error::Unfit(format!("only PostgreSQL has roles to grant {role:?} rights among"))),
    }
}

fn place(url: &str) -> Result<Place<'_>> {
    if url.starts_with("postgres://") || url.starts_with("postgresql://") {
        return Ok(Place::Postgres(url));
    }
    match url.strip_prefix("sqlite:") {
        Some(":memory:") => Ok(Place::Memory),
        Some(rest) => match rest.strip_prefix("//") {
            Some(path) if path.starts_with('/') && path.len() > 1 => Ok(Place::File(Path::new(path))),
            _ => Err(Error::Unfit(format!("{url:?} names no file: write sqlite:///path/to/file.db"))),
        },
        // The URL itself may hold a password.
        None => Err(Error::Unfit(
            "the URL names no store: write postgres://…, sqlite:///path/to/file.db or sqlite::memory:".into(),
        )),
    }
}

#[cfg(not(all(feature = "postgres", feature = "sqlite")))]
fn not_built_in(place: &Place<'_>) -> Error {
    let kind = match place {
        Place::Postgres(_) => "PostgreSQL",
        Place::File(_) | Place::Memory => "SQLite",
    };
    Error::Unfit(format!("this binary is built without {kind}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_names_its_store() {
        assert_eq!(place("postgres://u:p@h/db").unwrap(), Place::Postgres("postgres://u:p@h/db"));
        assert_eq!(place("postgresql://h/db").unwrap(), Place::Postgres("postgresql://h/db"));
        assert_eq!(place("sqlite:///var/lib/runs.db").unwrap(), Place::File(Path::new("/var/lib/runs.db")));
        assert_eq!(place("sqlite::memory:").unwrap(), Place::Memory);
        for wrong in
            ["", "sqlite:", "sqlite://", "sqlite:///", "sqlite:runs.db", "sqlite://runs.db", "mysql://h/db"]
        {
            assert!(place(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn an_error_never_shows_a_password() {
        let error = place("mysql://user:secret@host/db").unwrap_err().to_string();
        assert!(!error.contains("secret"), "{error}");
    }
}
