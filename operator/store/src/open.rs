//! Opens and migrates the store that a URL names.
//!
//! The argument `keys` wraps the data keys of the store's runs. Without it nothing is sealed, and sealed payloads
//! cannot be read.

use std::path::Path;
use std::sync::Arc;

use crate::keys::KeyProvider;
use crate::options::ConnectionOptions;
use dalsegno_model::{Error, Result, Store};

/// A store's URL, parsed.
#[derive(Debug, PartialEq, Eq)]
enum StoreUrl<'a> {
    /// A PostgreSQL database, by the whole URL.
    Postgres(&'a str),
    /// A SQLite file.
    File(&'a Path),
    /// SQLite in memory.
    Memory,
}

/// Opens the store that `url` names: `postgres://…`, `sqlite:///path/to/file.db`, or `sqlite::memory:`. Error if the
/// schema is newer than this binary, or not migrated. A SQLite file is locked: only one process writes.
pub async fn open(url: &str, keys: Option<Arc<dyn KeyProvider>>) -> Result<Arc<dyn Store>> {
    open_with(url, keys, &ConnectionOptions::default()).await
}

/// As [`open`], with these options for PostgreSQL.
pub async fn open_with(
    url: &str,
    keys: Option<Arc<dyn KeyProvider>>,
    #[cfg_attr(not(feature = "postgres"), expect(unused_variables, reason = "only PostgreSQL has options"))]
    options: &ConnectionOptions,
) -> Result<Arc<dyn Store>> {
    match parse(url)? {
        #[cfg(feature = "postgres")]
        StoreUrl::Postgres(url) => {
            Ok(Arc::new(crate::postgres::Postgres::connect_with(url, options).await?.sealed_by(keys)))
        }
        #[cfg(feature = "sqlite")]
        StoreUrl::File(path) => Ok(Arc::new(crate::sqlite::Sqlite::open(path).await?.sealed_by(keys))),
        #[cfg(feature = "sqlite")]
        StoreUrl::Memory => Ok(Arc::new(crate::sqlite::Sqlite::memory().await?.sealed_by(keys))),
        #[cfg(not(all(feature = "postgres", feature = "sqlite")))]
        other => Err(not_built_in(&other)),
    }
}

/// A store that a server has opened.
#[cfg(feature = "sqlite")]
pub struct ServedStore {
    /// The store.
    pub store: Arc<dyn Store>,
    /// The volume of an embedded store.
    pub disk: Option<Arc<crate::sqlite::Disk>>,
}

/// Opens the store that `url` names for a server, as [`open`]. The server watches the volume of an embedded store.
#[cfg(feature = "sqlite")]
pub async fn open_to_serve(
    url: &str,
    keys: Option<Arc<dyn KeyProvider>>,
    options: &ConnectionOptions,
) -> Result<ServedStore> {
    let StoreUrl::File(path) = parse(url)? else {
        return Ok(ServedStore { store: open_with(url, keys, options).await?, disk: None });
    };
    let store = crate::sqlite::Sqlite::open(path).await?.sealed_by(keys);
    let disk = store.disk();
    Ok(ServedStore { store: Arc::new(store), disk })
}

/// Opens the store that `url` names for reading; writes are refused. A SQLite file can be opened while another process
/// writes to it. A PostgreSQL server may be a standby.
pub async fn open_read_only(url: &str, keys: Option<Arc<dyn KeyProvider>>) -> Result<Arc<dyn Store>> {
    match parse(url)? {
        #[cfg(feature = "postgres")]
        StoreUrl::Postgres(url) => {
            Ok(Arc::new(crate::postgres::Postgres::connect_read_only(url).await?.sealed_by(keys)))
        }
        #[cfg(feature = "sqlite")]
        StoreUrl::File(path) => {
            Ok(Arc::new(crate::sqlite::Sqlite::open_read_only(path).await?.sealed_by(keys)))
        }
        StoreUrl::Memory => {
            Err(Error::Unusable("a store in memory cannot be opened for reading: it is empty".into()))
        }
        #[cfg(not(all(feature = "postgres", feature = "sqlite")))]
        other => Err(not_built_in(&other)),
    }
}

/// Opens the store that `url` names for a short write of a command-line tool, also while another process serves it.
pub async fn open_beside(url: &str, keys: Option<Arc<dyn KeyProvider>>) -> Result<Arc<dyn Store>> {
    match parse(url)? {
        #[cfg(feature = "sqlite")]
        StoreUrl::File(path) => Ok(Arc::new(crate::sqlite::Sqlite::open_beside(path).await?.sealed_by(keys))),
        _ => open(url, keys).await,
    }
}

/// Migrates the schema of the store that `url` names to this binary's version. A store in memory is always up to date.
pub async fn migrate(url: &str) -> Result<()> {
    match parse(url)? {
        #[cfg(feature = "postgres")]
        StoreUrl::Postgres(url) => crate::postgres::Postgres::migrate(url).await,
        #[cfg(feature = "sqlite")]
        StoreUrl::File(path) => crate::sqlite::Sqlite::migrate(path).await,
        #[cfg(feature = "sqlite")]
        StoreUrl::Memory => Ok(()),
        #[cfg(not(all(feature = "postgres", feature = "sqlite")))]
        other => Err(not_built_in(&other)),
    }
}

/// Copies the embedded store that `url` names to the new file `to`, as of one moment, also while another process serves it.
/// Error for PostgreSQL, which has tools of its own.
pub async fn back_up(url: &str, to: &Path) -> Result<()> {
    match parse(url)? {
        #[cfg(feature = "sqlite")]
        StoreUrl::File(path) => crate::sqlite::back_up(path, to).await,
        StoreUrl::Memory => Err(Error::Unusable("a store in memory cannot be copied".into())),
        _ => Err(Error::Unusable(
            "only the embedded store is copied by this program: use `pg_dump --format custom` as the role that owns the \
             tables, or the point-in-time recovery of your database"
                .into(),
        )),
    }
}

/// Grants a PostgreSQL role the rights that operator and gateway need, and no others. `url` must connect as the role
/// that migrated the database. Error for SQLite, which has no roles.
pub async fn grant(url: &str, role: &str) -> Result<()> {
    match parse(url)? {
        #[cfg(feature = "postgres")]
        StoreUrl::Postgres(url) => crate::postgres::Postgres::grant(url, role).await,
        _ => Err(Error::Unusable(format!(
            "cannot grant rights to the role {role:?}: only PostgreSQL has roles"
        ))),
    }
}

fn parse(url: &str) -> Result<StoreUrl<'_>> {
    if url.starts_with("postgres://") || url.starts_with("postgresql://") {
        return Ok(StoreUrl::Postgres(url));
    }
    match url.strip_prefix("sqlite:") {
        Some(":memory:") => Ok(StoreUrl::Memory),
        Some(rest) => match rest.strip_prefix("//") {
            Some(path) if path.starts_with('/') && path.len() > 1 => Ok(StoreUrl::File(Path::new(path))),
            _ => Err(Error::Unusable(format!("{url:?} names no file: write sqlite:///path/to/file.db"))),
        },
        // The URL may contain a password, so the error does not show it.
        None => Err(Error::Unusable(
            "the URL names no store: write postgres://…, sqlite:///path/to/file.db or sqlite::memory:".into(),
        )),
    }
}

#[cfg(not(all(feature = "postgres", feature = "sqlite")))]
fn not_built_in(url: &StoreUrl<'_>) -> Error {
    let kind = match url {
        StoreUrl::Postgres(_) => "PostgreSQL",
        StoreUrl::File(_) | StoreUrl::Memory => "SQLite",
    };
    Error::Unusable(format!("this binary is built without {kind}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_names_its_store() {
        assert_eq!(parse("postgres://u:p@h/db").unwrap(), StoreUrl::Postgres("postgres://u:p@h/db"));
        assert_eq!(parse("postgresql://h/db").unwrap(), StoreUrl::Postgres("postgresql://h/db"));
        assert_eq!(
            parse("sqlite:///var/lib/runs.db").unwrap(),
            StoreUrl::File(Path::new("/var/lib/runs.db"))
        );
        assert_eq!(parse("sqlite::memory:").unwrap(), StoreUrl::Memory);
        for wrong in
            ["", "sqlite:", "sqlite://", "sqlite:///", "sqlite:runs.db", "sqlite://runs.db", "mysql://h/db"]
        {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn an_error_never_shows_a_password() {
        let error = parse("mysql://user:secret@host/db").unwrap_err().to_string();
        assert!(!error.contains("secret"), "{error}");
    }
}
