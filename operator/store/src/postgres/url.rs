//! What a database URL says.

use std::str::FromStr as _;

use sqlx::postgres::PgConnectOptions;
use sqlx::{ConnectOptions as _, PgConnection};

use crate::db_error::{DbError, DbResult};
use crate::{Error, Result};

/// The parameter by which a URL says that it leads to pgbouncer in transaction mode.
const PGBOUNCER: &str = "pgbouncer=true";

/// Where to connect, and how.
#[derive(Clone, Debug)]
pub(super) struct Target {
    pub options: PgConnectOptions,
    pub transaction_pooling: bool,
}

impl Target {
    /// Reads `postgres://user:password@host:port/database?…`, with libpq's parameters and `pgbouncer=true`: then
    /// nothing is kept in the session.
    pub fn parse(url: &str) -> Result<Self> {
        let (url, transaction_pooling) = split(url);
        // The URL may hold a password: it is not repeated.
        let options = PgConnectOptions::from_str(&url)
            .map_err(|error| Error::Unfit(format!("cannot read the database's URL: {error}")))?
            .application_name("dalsegno");
        Ok(Self { options, transaction_pooling })
    }

    /// The same of a URL that must lead to the server itself: [`Error::Unfit`] if it leads to pgbouncer.
    pub fn parse_direct(url: &str) -> Result<PgConnectOptions> {
        match Self::parse(url)? {
            Self { options, transaction_pooling: false } => Ok(options),
            Self { transaction_pooling: true, .. } => Err(Error::Unfit(
                "the URL leads to pgbouncer (pgbouncer=true), and tables are made, and rights granted, on the server itself: \
                 give a URL that leads there, of the role that owns the tables (in the chart: postgres.migrationSecret, with \
                 the other role as postgres.role)"
                    .into(),
            )),
        }
    }
}

/// Makes a connection.
pub(super) async fn connect(options: &PgConnectOptions) -> DbResult<PgConnection> {
    options.connect().await.map_err(|error| match distrusted(&error) {
        Some(why) => DbError::Unusable(format!(
            "the certificate of PostgreSQL's server is refused ({why}): it must be for the host that the URL names, and be \
             signed by a CA that is known here; a private one is made known by sslrootcert or PGSSLROOTCERT (in the chart: \
             postgres.caSecret)"
        )),
        None => error.into(),
    })
}

/// What is wrong with the server's certificate, where that is the error.
fn distrusted(error: &sqlx::Error) -> Option<&rustls::CertificateError> {
    let sqlx::Error::Io(error) = error else { return None };
    match error.get_ref()?.downcast_ref()? {
        rustls::Error::InvalidCertificate(why) => Some(why),
        _ => None,
    }
}

/// The URL without our own parameter, and whether it was there.
fn split(url: &str) -> (String, bool) {
    let Some((base, query)) = url.split_once('?') else {
        return (url.to_owned(), false);
    };
    let rest: Vec<_> = query.split('&').filter(|part| *part != PGBOUNCER).collect();
    let found = rest.len() < query.split('&').count();
    let url = if rest.is_empty() { base.to_owned() } else { format!("{base}?{}", rest.join("&")) };
    (url, found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parameter_for_pgbouncer_is_taken_out_of_the_url() {
        let cases = [
            ("postgres://h/d", "postgres://h/d", false),
            ("postgres://h/d?pgbouncer=true", "postgres://h/d", true),
            ("postgres://h/d?sslmode=require&pgbouncer=true", "postgres://h/d?sslmode=require", true),
            ("postgres://h/d?pgbouncer=false", "postgres://h/d?pgbouncer=false", false),
        ];
        for (url, rest, pooling) in cases {
            assert_eq!(split(url), (rest.to_owned(), pooling), "{url}");
        }
    }
}
