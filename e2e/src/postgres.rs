//! A PostgreSQL server on this machine, and Dal Segno installed with it instead of with the embedded store.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::Context;
use k8s_openapi::api::core::v1::Secret;
use kube::Client;
use serde_json::json;

use crate::install::Version;
use crate::operator::{NAMESPACE, RELEASE};
use crate::process::{self, UndoGuard};
use crate::test_context::config;
use crate::{Operator, Result, install, objects};

/// The server's port. Debian's own servers use other ports.
const PORT: &str = "15439";

/// The Secret with the server's address and CA.
const SECRET: &str = "e2e-postgres";

/// The Secret with the key that encrypts payloads.
const KEYS: &str = "e2e-encryption-keys";

/// A key for these tests only.
const KEY: &str = "ZTJlIHN0b3JpZXMgYW5kIG5vdGhpbmcgZWxzZSAtLS0=";

/// A script that creates a CA and a certificate for the server's address.
const CREATE_CERTIFICATES: &str = r#"
    set -eu
    cd "$1"
    host=$2
    set -- -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2
    openssl req -x509 "$@" -subj /CN=e2e -keyout ca.key -out ca.crt
    openssl req -x509 "$@" -subj /CN=postgres -CA ca.crt -CAkey ca.key -extensions usr_cert \
        -addext "subjectAltName=IP:$host" -keyout server.key -out server.crt
"#;

/// The gateway's Deployment. With PostgreSQL the gateway has its own.
pub const GATEWAY: &str = "dalsegno-gateway";

/// A script that creates a certificate of the same CA for a name.
const CREATE_CERTIFICATE: &str = r#"
    set -eu
    cd "$1"
    openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=receiver \
        -CA ca.crt -CAkey ca.key -extensions usr_cert -addext "subjectAltName=DNS:$2" \
        -keyout other.key -out other.crt
"#;

/// A PostgreSQL server on this machine. Removing or dropping it stops it and deletes its data.
#[must_use = "dropping it stops the server at once"]
pub struct Server {
    data: PathBuf,
    /// Its address in the cluster's network.
    host: String,
    // Guards, undone in this order.
    server: UndoGuard,
    files: UndoGuard,
    _watcher: Child,
}

impl Server {
    /// Starts an empty server that nodes and pods can reach by TLS.
    pub async fn start() -> Result<Self> {
        let config = config().await?;
        // The machine's address in the cluster's network, at which pods also reach the API server.
        let host = config.cluster_url.host().context("a cluster without an address")?.to_owned();
        let data = std::env::temp_dir().join(format!("e2e-postgres-{}", uuid::Uuid::new_v4().simple()));
        let files = UndoGuard::new(["rm", "-rf", &data.display().to_string()]);
        let server = start_server(&data, &host).await?;
        let watcher = stop_server_on_exit(&data)?;
        Ok(Self { data, host, server, files, _watcher: watcher })
    }

    /// The URL of a database of this server. The certificate is verified with this `sslmode`.
    pub fn url(&self, database: &str, sslmode: &str) -> String {
        format!("postgres://postgres@{}:{PORT}/{database}?sslmode={sslmode}", self.host)
    }

    /// Stops the server and deletes its data.
    pub async fn remove(self) -> Result {
        self.server.undo().await?;
        self.files.undo().await
    }
}

/// Dal Segno on PostgreSQL. Removing or dropping it installs the release with the embedded store again.
#[must_use = "dropping it installs the release with the embedded store at once"]
pub struct Postgres {
    client: Client,
    // The release goes before its server.
    release: UndoGuard,
    server: Server,
}

impl Postgres {
    /// Starts an empty server and installs the release with it, with this number of operators and the chart's two
    /// gateways, so that the requests of a worker may go to either of them.
    pub async fn install(client: &Client, operators: u32) -> Result<Self> {
        Self::install_version(client, &Version::current(), &values(operators)).await
    }

    /// Like [`Self::install`], with a version and with values that extend [`values`].
    pub async fn install_version(
        client: &Client,
        version: &Version,
        values: &serde_json::Value,
    ) -> Result<Self> {
        let server = Server::start().await?;
        let dsn = server.url("postgres", "verify-full");
        let ca = std::fs::read_to_string(server.data.join("ca.crt"))?;
        put_secret(client, SECRET, json!({ "dsn": dsn, "ca.crt": ca })).await?;
        put_secret(client, KEYS, json!({ "k1": KEY })).await?;
        let release = UndoGuard::new(reinstall_embedded_command());
        version.install(client, values).await?;
        Operator::named(client, GATEWAY).wait_for_rollout().await?;
        Ok(Self { client: client.clone(), release, server })
    }

    /// Stops the server at once, as a power loss would. The guard starts it again, and it recovers.
    pub async fn stop(&self) -> Result<UndoGuard> {
        let undo = UndoGuard::new(pg_ctl(&self.server.data, &["start", "-w"]));
        process::run_command(&pg_ctl(&self.server.data, &["stop", "-m", "immediate"])).await?;
        Ok(undo)
    }

    /// Executes one statement as the owner of the tables.
    pub async fn execute(&self, statement: &str) -> Result {
        let data = self.server.data.display().to_string();
        let psql = ["psql", "-qX", "-v", "ON_ERROR_STOP=1", "-h", &data, "-p", PORT, "-d", "postgres"];
        process::run_command(&as_postgres(&[&psql[..], &["-c", statement]].concat())).await.map(drop)
    }

    /// A certificate for this name and its key, in PEM. The release trusts its CA, which is the server's.
    pub async fn certificate_for(&self, name: &str) -> Result<(String, String)> {
        let data = self.server.data.display().to_string();
        process::run_command(&as_postgres(&["sh", "-c", CREATE_CERTIFICATE, "sh", &data, name])).await?;
        let read = |file: &str| std::fs::read_to_string(self.server.data.join(file));
        Ok((read("other.crt")?, read("other.key")?))
    }

    /// Installs the release with the embedded store again, and removes the server.
    pub async fn remove(self) -> Result {
        self.release.undo().await?;
        Operator::new(&self.client).wait_for_rollout().await?;
        self.server.remove().await
    }
}

/// The values of a release with the server and this number of operators.
pub fn values(operators: u32) -> serde_json::Value {
    let mut values = install::values();
    let postgres_values = json!({
        "postgres": { "existingSecret": { "name": SECRET }, "caSecret": { "name": SECRET } },
        "encryption": { "existingSecret": KEYS },
        "operator": { "replicas": operators },
    });
    objects::merge(&mut values, &postgres_values);
    values
}

/// Creates or replaces a Secret in the release's namespace.
pub async fn put_secret(client: &Client, name: &str, data: serde_json::Value) -> Result {
    let secret = json!({ "metadata": { "name": name }, "stringData": data });
    match objects::create::<Secret>(client, NAMESPACE, secret.clone()).await {
        Err(kube::Error::Api(status)) if status.is_already_exists() => {
            objects::patch::<Secret>(client, NAMESPACE, name, &secret).await?;
        }
        answer => drop(answer?),
    }
    Ok(())
}

/// The command that installs the release with the embedded store. It deletes the Deployments first, because a
/// Deployment that changes its strategy in the middle of a rollout gets stuck.
fn reinstall_embedded_command() -> Vec<String> {
    let quoted: Vec<String> =
        Version::current().helm_command(&install::values()).iter().map(|word| format!("'{word}'")).collect();
    let deployments = format!("{RELEASE} {GATEWAY}");
    let remove = format!("kubectl delete deployment -n {NAMESPACE} {deployments} --ignore-not-found --wait");
    ["sh".to_owned(), "-c".to_owned(), format!("{remove} && {}", quoted.join(" "))].into()
}

/// Creates a database cluster and starts its server, which accepts only TLS connections at this address.
async fn start_server(data: &Path, host: &str) -> Result<UndoGuard> {
    let shown = data.display().to_string();
    process::run_command(&as_postgres(&["initdb", "--auth=trust", "--username=postgres", "-D", &shown]))
        .await?;
    process::run_command(&as_postgres(&["sh", "-c", CREATE_CERTIFICATES, "sh", &shown, host])).await?;
    let access = data.join("pg_hba.conf");
    // Only nodes and pods may connect.
    let rules =
        "local all all trust\nhostssl all all 172.30.0.0/24 trust\nhostssl all all 10.44.0.0/16 trust\n";
    std::fs::write(&access, rules)?;
    let settings = format!(
        "listen_addresses = '{host}'\nport = {PORT}\nssl = on\nunix_socket_directories = '{shown}'\nmax_connections = 200\n"
    );
    std::fs::write(data.join("postgresql.auto.conf"), settings)?;
    let undo = UndoGuard::new(pg_ctl(data, &["stop", "-m", "fast"]));
    process::run_command(&pg_ctl(data, &["start", "-w"])).await?;
    Ok(undo)
}

/// Starts a process that stops the server when this process ends for any reason. It notices the end of its stdin.
fn stop_server_on_exit(data: &Path) -> Result<Child> {
    let child = Command::new("setsid")
        .args(["sh", "-c", r#"cat; "$@"; rm -rf "$0""#])
        .arg(data)
        .args(pg_ctl(data, &["stop", "-m", "immediate"]))
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    child.context("starting setsid")
}

/// The command line of `pg_ctl` for this database cluster.
fn pg_ctl(data: &Path, args: &[&str]) -> Vec<String> {
    let data = data.display().to_string();
    let log = format!("{data}/log");
    as_postgres(&[&["pg_ctl", "--silent", "-D", &data, "-l", &log], args].concat())
}

/// The command line, run as the user `postgres` if this process is root. PostgreSQL refuses to run as root.
fn as_postgres(command: &[&str]) -> Vec<String> {
    let is_root = process::run_blocking("id", ["-u"]).is_ok_and(|id| id.trim() == "0");
    let prefix: &[&str] = if is_root { &["runuser", "-u", "postgres", "--"] } else { &[] };
    [prefix, command].concat().into_iter().map(str::to_owned).collect()
}
