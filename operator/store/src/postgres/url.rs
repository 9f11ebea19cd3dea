//! Database URLs, and connections to the database of a URL.

use std::str::FromStr as _;

use sqlx::postgres::PgConnectOptions;
use sqlx::{ConnectOptions as _, PgConnection};

use crate::db_error::{DbError, DbResult};
use dalsegno_model::{Error, Result};

/// The URL parameter that says that the server is pgbouncer in transaction mode.
const PGBOUNCER_PARAMETER: &str = "pgbouncer=true";

/// Settings of the sessions of a pool. No statement runs long enough for JIT compilation to pay off. The server closes
/// the connection of a client that is lost after a minute instead of two hours.
const SESSION_SETTINGS: [(&str, &str); 5] = [
    ("statement_timeout", "5s"),
    ("jit", "off"),
    ("tcp_keepalives_idle", "30"),
    ("tcp_keepalives_interval", "10"),
    ("tcp_keepalives_count", "3"),
];

/// The server of a URL, and how to connect to it.
#[derive(Clone, Debug)]
pub(super) struct Target {
    pub options: PgConnectOptions,
    /// Whether the server is a pooler that may use another connection for each transaction.
    pub transaction_pooling: bool,
}

impl Target {
    /// Parses `postgres://user:password@host:port/database?…`, with libpq's parameters and `pgbouncer=true`.
    pub fn parse(url: &str) -> Result<Self> {
        let (url, transaction_pooling) = split_pgbouncer(url);
        // The error must not contain the URL, which may contain a password.
        let options = PgConnectOptions::from_str(&url)
            .map_err(|error| Error::Unusable(format!("the database URL is not valid: {error}")))?
            .application_name("dalsegno");
        Ok(Self { options, transaction_pooling })
    }

    /// The same server, with the settings of the sessions of a pool. A pooler refuses settings: each transaction sets its
    /// own.
    pub fn with_session_settings(self) -> Self {
        let Self { options, transaction_pooling } = self;
        let options = if transaction_pooling {
            options.statement_cache_capacity(0).extra_float_digits(None)
        } else {
            options.options(SESSION_SETTINGS)
        };
        Self { options, transaction_pooling }
    }

    /// Parses a URL that must lead to the server itself. [`Error::Unusable`] if it leads to pgbouncer.
    pub fn parse_direct(url: &str) -> Result<PgConnectOptions> {
        match Self::parse(url)? {
            Self { options, transaction_pooling: false } => Ok(options),
            Self { transaction_pooling: true, .. } => Err(Error::Unusable(
                "the URL leads to pgbouncer (pgbouncer=true), but migrations and grants need the server itself: use a \
                 URL of the server, with the role that owns the tables (in the chart: postgres.migrationSecret, with \
                 the other role as postgres.role)"
                    .into(),
            )),
        }
    }
}

/// Opens a connection.
pub(super) async fn connect(options: &PgConnectOptions) -> DbResult<PgConnection> {
    options.connect().await.map_err(|error| match certificate_error(&error) {
        Some(why) => DbError::Unusable(format!(
            "the certificate of the PostgreSQL server is refused ({why}): it must be for the host in the URL and \
             signed by a trusted CA; trust a private CA with sslrootcert or PGSSLROOTCERT (in the chart: \
             postgres.caSecret)"
        )),
        None => error.into(),
    })
}

/// What is wrong with the server's certificate; `None` if the error is another one.
fn certificate_error(error: &sqlx::Error) -> Option<&rustls::CertificateError> {
    let sqlx::Error::Io(error) = error else { return None };
    match error.get_ref()?.downcast_ref()? {
        rustls::Error::InvalidCertificate(why) => Some(why),
        _ => None,
    }
}

/// The URL without the pgbouncer parameter, and whether it had it.
fn split_pgbouncer(url: &str) -> (String, bool) {
    let Some((base, query)) = url.split_once('?') else {
        return (url.to_owned(), false);
    };
    let rest: Vec<_> = query.split('&').filter(|part| *part != PGBOUNCER_PARAMETER).collect();
    let found = rest.len() < query.split('&').count();
    let url = if rest.is_empty() { base.to_owned() } else { format!("{base}?{}", rest.join("&")) };
    (url, found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pgbouncer_parameter_is_removed_from_the_url() {
        let cases = [
            ("postgres://h/d", "postgres://h/d", false),
            ("postgres://h/d?pgbouncer=true", "postgres://h/d", true),
            ("postgres://h/d?sslmode=require&pgbouncer=true", "postgres://h/d?sslmode=require", true),
            ("postgres://h/d?pgbouncer=false", "postgres://h/d?pgbouncer=false", false),
        ];
        for (url, rest, pooling) in cases {
            assert_eq!(split_pgbouncer(url), (rest.to_owned(), pooling), "{url}");
        }
    }
}
