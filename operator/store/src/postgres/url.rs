//! Database URLs, and connections to the database of a URL.

use std::str::FromStr as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use sqlx::postgres::PgConnectOptions;
use sqlx::{ConnectOptions as _, PgConnection};
use tokio::time::timeout;

use super::server_settings::{self, Access, Backend};
use crate::db_error::{DbError, DbResult};
use dalsegno_model::{Error, Result};

/// The URL parameter that says that the server is pgbouncer in transaction mode.
const PGBOUNCER_PARAMETER: &str = "pgbouncer=true";

/// Settings of the sessions of a pool, besides the statement timeout. No statement runs long enough for JIT compilation to pay off. The server closes
/// the connection of a client that is lost after a minute instead of two hours.
const SESSION_SETTINGS: [(&str, &str); 4] = [
    ("jit", "off"),
    ("tcp_keepalives_idle", "30"),
    ("tcp_keepalives_interval", "10"),
    ("tcp_keepalives_count", "3"),
];

/// Longest time to open a connection to one of several servers. Then the next one is tried.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// The servers of a URL, and how to connect to them.
#[derive(Clone, Debug)]
pub(super) struct Target {
    /// At least one.
    servers: Vec<PgConnectOptions>,
    /// The server that is tried first: the one that was fit the last time.
    first: Arc<AtomicUsize>,
    /// Whether the server is a pooler that may use another connection for each transaction.
    pub transaction_pooling: bool,
    access: Access,
}

impl Target {
    /// Parses `postgres://user:password@host:port/database?…`, with libpq's parameters and `pgbouncer=true`. Of several
    /// servers (`host1:port1,host2:port2`) the first that is fit is used.
    pub fn parse(url: &str, access: Access) -> Result<Self> {
        let (url, transaction_pooling) = split_pgbouncer(url);
        let url = without_session_attrs(&url)?;
        let servers = one_url_per_server(&url).iter().map(|url| parse_options(url)).collect::<Result<_>>()?;
        Ok(Self { servers, first: Arc::default(), transaction_pooling, access })
    }

    /// The same servers, with the settings of the sessions of a pool. A pooler refuses settings: each transaction sets
    /// its own.
    pub fn with_session_settings(&self, statement_timeout: Duration) -> Self {
        let timeout = format!("{}ms", statement_timeout.as_millis());
        self.map_servers(|server| {
            if self.transaction_pooling {
                return server.statement_cache_capacity(0).extra_float_digits(None);
            }
            let server = server.options(SESSION_SETTINGS).options([("statement_timeout", timeout.as_str())]);
            match self.access {
                Access::ReadWrite => server,
                Access::ReadOnly => server.options([("default_transaction_read_only", "on")]),
            }
        })
    }

    /// The same servers, which show this name for the connections.
    pub fn with_application_name(&self, name: &str) -> Self {
        self.map_servers(|server| server.application_name(name))
    }

    fn map_servers(&self, change: impl Fn(PgConnectOptions) -> PgConnectOptions) -> Self {
        Self { servers: self.servers.iter().cloned().map(change).collect(), ..self.clone() }
    }

    /// Parses a URL that must lead to the server itself. [`Error::Unusable`] if it leads to pgbouncer.
    pub fn parse_direct(url: &str) -> Result<Self> {
        match Self::parse(url, Access::ReadWrite)? {
            Self { transaction_pooling: true, .. } => Err(Error::Unusable(
                "the URL leads to pgbouncer (pgbouncer=true), but migrations and grants need the server itself: use a \
                 URL of the server, with the role that owns the tables (in the chart: postgres.migrationSecret, with \
                 the other role as postgres.role)"
                    .into(),
            )),
            direct => Ok(direct),
        }
    }

    /// Opens a connection to a server that is fit for this access.
    pub async fn connect(&self) -> DbResult<(PgConnection, Backend)> {
        if let [server] = &self.servers[..] {
            return connect(server, self.access).await;
        }
        let first = self.first.load(Ordering::Relaxed);
        let mut failed = Vec::new();
        for number in (0..self.servers.len()).map(|next| (first + next) % self.servers.len()) {
            let connected = timeout(CONNECT_TIMEOUT, connect(&self.servers[number], self.access)).await;
            match connected.unwrap_or_else(|elapsed| Err(DbError::unavailable(elapsed))) {
                Ok(connected) => {
                    self.first.store(number, Ordering::Relaxed);
                    return Ok(connected);
                }
                Err(fault) => failed.push(fault),
            }
        }
        // What only an administrator can repair says more than that a server is away.
        let unusable = failed.iter().position(|fault| matches!(fault, DbError::Unusable(_)));
        Err(failed.swap_remove(unusable.unwrap_or_default()))
    }
}

fn parse_options(url: &str) -> Result<PgConnectOptions> {
    // The error must not contain the URL, which may contain a password.
    let options = PgConnectOptions::from_str(url)
        .map_err(|error| Error::Unusable(format!("the database URL is not valid: {error}")))?;
    Ok(options.application_name("dalsegno"))
}

async fn connect(server: &PgConnectOptions, access: Access) -> DbResult<(PgConnection, Backend)> {
    let mut conn = server.connect().await.map_err(|error| match certificate_error(&error) {
        Some(why) => DbError::Unusable(format!(
            "the certificate of the PostgreSQL server is refused ({why}): it must be for the host in the URL and \
             signed by a trusted CA; trust a private CA with sslrootcert or PGSSLROOTCERT (in the chart: \
             postgres.caSecret)"
        )),
        None => error.into(),
    })?;
    let backend = server_settings::check_settings(&mut conn, access).await?;
    Ok((conn, backend))
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

/// The URL without the parameter that says which of several servers libpq takes. A process that writes takes the one that
/// accepts writes in any case.
fn without_session_attrs(url: &str) -> Result<String> {
    let Some((base, query)) = url.split_once('?') else {
        return Ok(url.to_owned());
    };
    let mut rest = Vec::new();
    for part in query.split('&') {
        match part.strip_prefix("target_session_attrs=") {
            None => rest.push(part),
            Some("any" | "read-write" | "primary") => {}
            Some(other) => {
                return Err(Error::Unusable(format!(
                    "the database URL has target_session_attrs={other}: leave it out. Operator and gateway use the server \
                     that accepts writes, and commands that only read use the first server that responds"
                )));
            }
        }
    }
    Ok(if rest.is_empty() { base.to_owned() } else { format!("{base}?{}", rest.join("&")) })
}

/// A URL for each server of a URL that names several, separated by commas.
fn one_url_per_server(url: &str) -> Vec<String> {
    let Some((scheme, rest)) = url.split_once("://") else {
        return vec![url.to_owned()];
    };
    let (authority, path) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
    let (user, servers) = authority.rfind('@').map_or(("", authority), |at| authority.split_at(at + 1));
    servers.split(',').map(|server| format!("{scheme}://{user}{server}{path}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_may_name_several_servers() {
        assert_eq!(
            one_url_per_server("postgres://u:p@a:5433,b,[::1]:5432/d?sslmode=require"),
            [
                "postgres://u:p@a:5433/d?sslmode=require",
                "postgres://u:p@b/d?sslmode=require",
                "postgres://u:p@[::1]:5432/d?sslmode=require",
            ]
        );
        assert_eq!(one_url_per_server("postgres://a,b"), ["postgres://a", "postgres://b"]);
        assert_eq!(one_url_per_server("postgres:///d?host=/run"), ["postgres:///d?host=/run"]);
    }

    #[test]
    fn which_of_several_servers_is_taken_is_no_choice() {
        let url = "postgres://a,b/d?target_session_attrs=read-write&sslmode=require";
        assert_eq!(without_session_attrs(url).unwrap(), "postgres://a,b/d?sslmode=require");
        assert_eq!(
            without_session_attrs("postgres://a/d?target_session_attrs=any").unwrap(),
            "postgres://a/d"
        );
        let error =
            without_session_attrs("postgres://u:secret@a/d?target_session_attrs=standby").unwrap_err();
        assert!(
            error.to_string().contains("leave it out") && !error.to_string().contains("secret"),
            "{error}"
        );
    }

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
