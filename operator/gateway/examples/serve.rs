//! A gateway with a SQLite file, for test suites that use HTTP without a cluster: `serve DATABASE`.
//!
//! It creates one run, whose pod has its UID as its token, and prints the run's URL and the token as one line of JSON.
//! For each line that it reads, it ends the attempt as the operator does for a lost pod, and prints the next one. It
//! exits at the end of its input.

use std::error::Error;
use std::io::Write as _;
use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;
use dalsegno_gateway::{AuthError, Authenticator, Config, Gateway, Listener, PodIdentity, serve};
use dalsegno_model::{
    Cause, Class, Created, Deadlines, Ending, Identity, NewRun, NextStep, OnPrior, PodRecord, RunId, Store,
    Verdict,
};
use dalsegno_store::sqlite::Sqlite;
use tokio::net::TcpListener;
use tokio::task::spawn_blocking;
use uuid::Uuid;

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

/// Accepts every token as that of the pod with this UID.
struct TrustAll;

#[async_trait]
impl Authenticator for TrustAll {
    async fn review(&self, token: &str) -> Result<PodIdentity, AuthError> {
        Ok(PodIdentity {
            namespace: "shop".into(),
            pod_name: token.into(),
            pod_uid: token.into(),
            service_account: "default".into(),
        })
    }
}

#[tokio::main]
async fn main() -> Outcome<()> {
    let database = std::env::args().nth(1).ok_or("usage: serve DATABASE")?;
    Sqlite::migrate(Path::new(&database)).await?;
    let store = Arc::new(Sqlite::open(Path::new(&database)).await?);
    let gateway = Gateway::new(store.clone(), Arc::new(TrustAll), Config::default());
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let run = create_run(&*store).await?;
    let url = format!("http://{}/v1/runs/{run}", listener.local_addr()?);
    let operator = async move {
        for attempt in 1.. {
            let pod = record_pod(&*store, run, attempt).await?;
            println!("{}", serde_json::json!({ "url": url, "token": pod }));
            std::io::stdout().flush()?;
            if !spawn_blocking(read_line).await?? {
                break;
            }
            end_attempt(&*store, run, attempt).await?;
        }
        Outcome::Ok(())
    };
    tokio::select! {
        operated = operator => operated,
        served = serve(vec![Listener::plain(listener, &gateway)], gateway.clone(), std::future::pending()) => Ok(served?),
    }
}

/// Waits for a line; `false` at the end of the input.
fn read_line() -> std::io::Result<bool> {
    Ok(std::io::stdin().read_line(&mut String::new())? > 0)
}

async fn create_run(store: &dyn Store) -> Outcome<RunId> {
    let id = Uuid::now_v7();
    let new = NewRun {
        id,
        tenant: "uid-shop".into(),
        namespace: "shop".into(),
        name: format!("run-{id}"),
        object_uid: id.to_string(),
        reset_generation: 0,
        rewind_generation: 0,
        is_fork: false,
        is_external: false,
        deadlines: Deadlines {
            heartbeat_ms: 15_000,
            start_ms: 600_000,
            progress_ms: 1_800_000,
            suspend_ms: 300_000,
        },
        on_prior: OnPrior::Hold,
    };
    match store.create_run(&new).await? {
        Created::Run(record) => Ok(record.id),
        Created::Prior(_) => Err("the run exists already".into()),
    }
}

/// Records the attempt's pod with an accepted version; returns its UID.
async fn record_pod(store: &dyn Store, run: RunId, attempt: i32) -> Outcome<String> {
    let identity = Identity {
        in_registry: Some(true),
        image_digest: format!("sha256:{}", "1".repeat(64)),
        agent_version: "1".into(),
        verdict: Verdict::Accepted,
        remark: String::new(),
    };
    let uid = format!("pod-{attempt}");
    let (name, revision) = (uid.clone(), "1".into());
    let pod = PodRecord { uid: uid.clone(), name, revision, identity: Some(identity) };
    store.record_pod(run, attempt, &pod).await?;
    Ok(uid)
}

/// Ends the attempt as lost and reserves the next one.
async fn end_attempt(store: &dyn Store, run: RunId, attempt: i32) -> Outcome<()> {
    let (cause, message) = (Cause::Deleted, String::new());
    let ending = Ending { attempt, cause, class: Class::Disruption, exit_code: None, message, ran: None };
    store.end_attempt(run, &ending, &NextStep::Reserve).await?;
    Ok(())
}
