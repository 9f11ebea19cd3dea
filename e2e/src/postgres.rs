//! A PostgreSQL server on this machine, and Dal Segno installed on it instead of on its embedded store.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::Context;
use k8s_openapi::api::core::v1::Secret;
use kube::Client;
use serde_json::json;

use crate::operator::{NAMESPACE, RELEASE};
use crate::process::{self, UndoGuard};
use crate::test_context::config;
use crate::{Operator, Result, install, objects};

/// Where it listens; Debian's own servers are on other ports.
const PORT: &str = "15439";

/// Name of the Secret with its address and its CA.
const SECRET: &str = "e2e-postgres";

/// Name of the Secret with the key by which payloads are encrypted.
const KEYS: &str = "e2e-encryption-keys";

/// A key for these stories and nothing else.
const KEY: &str = "ZTJlIHN0b3JpZXMgYW5kIG5vdGhpbmcgZWxzZSAtLS0=";

/// A CA, and a certificate of it for the server's address.
const CERTIFY: &str = r#"
    set -eu
    cd "$1"
    host=$2
    set -- -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2
    openssl req -x509 "$@" -subj /CN=e2e -keyout ca.key -out ca.crt
    openssl req -x509 "$@" -subj /CN=postgres -CA ca.crt -CAkey ca.key -extensions usr_cert \
        -addext "subjectAltName=IP:$host" -keyout server.key -out server.crt
"#;

/// Name of the gateway's Deployment, which is one of its own where the store is PostgreSQL.
pub const GATEWAY: &str = "dalsegno-gateway";

/// Dal Segno on PostgreSQL. Removed or dropped, the embedded release comes back.
#[must_use = "dropping it brings the embedded release back at once"]
pub struct Postgres {
    client: Client,
    data: PathBuf,
    // Undone in this order.
    release: UndoGuard,
    server: UndoGuard,
    files: UndoGuard,
    _watcher: Child,
}

impl Postgres {
    /// Starts an empty server and moves the release onto it, with so many operators and the chart's gateways: there
    /// are two, so that what a worker sends goes now to one, now to the other.
    ///
    /// # Errors
    ///
    /// PostgreSQL is not installed, or the release does not become ready.
    pub async fn install(client: &Client, operators: u32) -> Result<Self> {
        let config = config().await?;
        // The machine's own address in the cluster's network: pods reach it as they reach the API server.
        let host = config.cluster_url.host().context("a cluster without an address")?;
        let data = std::env::temp_dir().join(format!("e2e-postgres-{}", uuid::Uuid::new_v4().simple()));
        let files = UndoGuard::by(["rm", "-rf", &data.display().to_string()]);
        let server = start(&data, host).await?;
        let watcher = watch(&data)?;
        let dsn = format!("postgres://postgres@{host}:{PORT}/postgres?sslmode=verify-full");
        let ca = std::fs::read_to_string(data.join("ca.crt"))?;
        put_secret(client, SECRET, json!({ "dsn": dsn, "ca.crt": ca })).await?;
        put_secret(client, KEYS, json!({ "k1": KEY })).await?;
        let mut values = install::values();
        let here = json!({
            "postgres": { "existingSecret": { "name": SECRET }, "caSecret": { "name": SECRET } },
            "encryption": { "existingSecret": KEYS },
            "operator": { "replicas": operators },
        });
        objects::merge(&mut values, &here);
        let release = UndoGuard::by(back_to_embedded());
        install::helm(client, &values).await?;
        Operator::named(client, GATEWAY).rolled_out().await?;
        Ok(Self { client: client.clone(), data, release, server, files, _watcher: watcher })
    }

    /// Stops the server as a loss of power would; undone, it recovers and serves again.
    ///
    /// # Errors
    ///
    /// It does not stop.
    pub async fn stop(&self) -> Result<UndoGuard> {
        let undo = UndoGuard::by(control(&self.data, &["start", "-w"]));
        UndoGuard::by(control(&self.data, &["stop", "-m", "immediate"])).now().await?;
        Ok(undo)
    }

    /// Carries out one statement as the owner of the tables.
    ///
    /// # Errors
    ///
    /// The server refuses it.
    pub async fn execute(&self, statement: &str) -> Result {
        let data = self.data.display().to_string();
        let psql = ["psql", "-qX", "-v", "ON_ERROR_STOP=1", "-h", &data, "-p", PORT, "-d", "postgres"];
        UndoGuard::by(as_postgres(&[&psql[..], &["-c", statement]].concat())).now().await
    }

    /// Moves the release back onto its embedded store and removes the server.
    ///
    /// # Errors
    ///
    /// The release does not become ready.
    pub async fn remove(self) -> Result {
        self.release.now().await?;
        Operator::new(&self.client).rolled_out().await?;
        self.server.now().await?;
        self.files.now().await
    }
}

/// A Secret of the release, new or in the place of an older one.
async fn put_secret(client: &Client, name: &str, data: serde_json::Value) -> Result {
    let secret = json!({ "metadata": { "name": name }, "stringData": data });
    match objects::create::<Secret>(client, NAMESPACE, secret.clone()).await {
        Err(kube::Error::Api(status)) if status.is_already_exists() => {
            objects::patch::<Secret>(client, NAMESPACE, name, &secret).await?;
        }
        answer => drop(answer?),
    }
    Ok(())
}

/// Helm makes the Deployments anew: one that changes its strategy in the middle of a rollout would stand still.
fn back_to_embedded() -> Vec<String> {
    let quoted: Vec<String> =
        install::helm_command(&install::values()).iter().map(|word| format!("'{word}'")).collect();
    let deployments = format!("{RELEASE} {GATEWAY}");
    let remove = format!("kubectl delete deployment -n {NAMESPACE} {deployments} --ignore-not-found --wait");
    ["sh".to_owned(), "-c".to_owned(), format!("{remove} && {}", quoted.join(" "))].into()
}

/// Makes a database cluster and starts its server, which is reached at this address by TLS alone.
async fn start(data: &Path, host: &str) -> Result<UndoGuard> {
    let shown = data.display().to_string();
    UndoGuard::by(as_postgres(&["initdb", "--auth=trust", "--username=postgres", "-D", &shown])).now().await?;
    UndoGuard::by(as_postgres(&["sh", "-c", CERTIFY, "sh", &shown, host])).now().await?;
    let access = data.join("pg_hba.conf");
    // Nodes and pods, and nobody else.
    let who =
        "local all all trust\nhostssl all all 172.30.0.0/24 trust\nhostssl all all 10.44.0.0/16 trust\n";
    std::fs::write(&access, who)?;
    let settings = format!(
        "listen_addresses = '{host}'\nport = {PORT}\nssl = on\nunix_socket_directories = '{shown}'\nmax_connections = 200\n"
    );
    std::fs::write(data.join("postgresql.auto.conf"), settings)?;
    let undo = UndoGuard::by(control(data, &["stop", "-m", "fast"]));
    UndoGuard::by(control(data, &["start", "-w"])).now().await?;
    Ok(undo)
}

/// Ends the server once this program has ended, however it did.
fn watch(data: &Path) -> Result<Child> {
    let child = Command::new("setsid")
        .args(["sh", "-c", r#"cat; "$@"; rm -rf "$0""#])
        .arg(data)
        .args(control(data, &["stop", "-m", "immediate"]))
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    child.context("starting setsid")
}

/// `pg_ctl` on this database cluster.
fn control(data: &Path, args: &[&str]) -> Vec<String> {
    let data = data.display().to_string();
    let log = format!("{data}/log");
    as_postgres(&[&["pg_ctl", "--silent", "-D", &data, "-l", &log], args].concat())
}

/// PostgreSQL refuses to run as root.
fn as_postgres(command: &[&str]) -> Vec<String> {
    let is_root = process::run_blocking("id", ["-u"]).is_ok_and(|id| id.trim() == "0");
    let other: &[&str] = if is_root { &["runuser", "-u", "postgres", "--"] } else { &[] };
    [other, command].concat().into_iter().map(str::to_owned).collect()
}
