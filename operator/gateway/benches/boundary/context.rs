//! The context of the benches: a store on disk, its gateways, and an authenticator.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use async_trait::async_trait;
use dalsegno_gateway::{AuthError, Authenticator, Config, Gateway, PodIdentity};
use dalsegno_model::{Created, Deadlines, Identity, NewRun, OnPrior, PodRecord, RunId, Store, Verdict};
use dalsegno_store::keys::{KeyProvider, MountedKeys};
use dalsegno_store::open;
use sqlx::{ConnectOptions as _, Connection as _};
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;
use uuid::Uuid;

use crate::floor::Floor;
use crate::langgraph::Saver;
use crate::payload;
use crate::pg::Server;
use crate::worker::Worker;

const NAMESPACE: &str = "bench";

/// Files of the stores in SQLite.
const PLAIN: &str = "runs.db";
const ENCRYPTED: &str = "encrypted.db";

/// Stored bytes of a run's states.
const OPS: &str = "SELECT coalesce(sum(length(ops)), 0) FROM boundaries WHERE run = $1";

/// Stored bytes of LangGraph's saver, payloads alone, as for our store.
const SAVED: &str = "SELECT (SELECT sum(octet_length(checkpoint::text) + octet_length(metadata::text)) FROM checkpoints) \
     + (SELECT sum(octet_length(blob)) FROM checkpoint_blobs) + (SELECT sum(octet_length(blob)) FROM checkpoint_writes)";

/// One store with its gateways.
pub struct BenchContext<'a> {
    /// Name of the store in tables.
    pub name: &'static str,
    /// Runs everything except the workers.
    pub runtime: &'a Runtime,
    store: Arc<dyn Store>,
    /// Two gateways with PostgreSQL; with SQLite twice the same.
    gateways: [SocketAddr; 2],
    /// A store with encryption, and its gateway.
    encrypted: (Arc<dyn Store>, SocketAddr),
    location: Location<'a>,
}

enum Location<'a> {
    Folder(TempDir),
    Database { server: &'a Server, url: String },
}

/// Logs at the level of an installation, and discards the output.
pub fn log_as_installed() {
    let json = tracing_subscriber::fmt::layer().json().with_writer(std::io::sink).flatten_event(true);
    tracing_subscriber::registry().with(LevelFilter::INFO).with(json).init();
}

impl<'a> BenchContext<'a> {
    /// SQLite in a new folder with one gateway.
    pub fn sqlite(runtime: &'a Runtime) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let ctx = runtime.block_on(async {
            let store = open_file(&folder, PLAIN, None).await;
            let gateway = serve(store.clone()).await;
            let encrypted = open_file(&folder, ENCRYPTED, keys()).await;
            let encrypted = (encrypted.clone(), serve(encrypted).await);
            let gateways = [gateway; 2];
            Self { name: "SQLite", runtime, store, gateways, encrypted, location: Location::Folder(folder) }
        });
        // Fill the WALs once, as the floor does.
        for mut worker in [ctx.worker("fill"), ctx.encrypted_worker("fill-encrypted")] {
            for round in 0..8 {
                worker.commit(&payload::commit(round, &payload::state(4 << 20, round)));
            }
        }
        ctx
    }

    /// PostgreSQL in a new database with two independent gateways.
    pub fn postgres(runtime: &'a Runtime, server: &'a Server) -> Self {
        runtime.block_on(async {
            let url = server.database().await;
            let store = open(&url, None).await.unwrap();
            let gateways = [serve(store.clone()).await, serve(open(&url, None).await.unwrap()).await];
            let encrypted = open(&url, keys()).await.unwrap();
            let encrypted = (encrypted.clone(), serve(encrypted).await);
            Self {
                name: "PostgreSQL",
                runtime,
                store,
                gateways,
                encrypted,
                location: Location::Database { server, url },
            }
        })
    }

    /// A new run and its worker, which has attached at the first gateway.
    pub fn worker(&self, name: &str) -> Worker {
        let [worker, _] = self.twins(name);
        worker
    }

    /// A new run and two connections of its worker, one to each gateway. The worker has attached.
    pub fn twins(&self, name: &str) -> [Worker; 2] {
        let run = self.runtime.block_on(create_run(&*self.store, name));
        let mut twins = self.gateways.map(|gateway| Worker::connect(gateway, run));
        twins[0].attach(&pod_of(name));
        twins
    }

    /// A new encrypted run and its worker, which has attached.
    pub fn encrypted_worker(&self, name: &str) -> Worker {
        let (store, gateway) = &self.encrypted;
        let run = self.runtime.block_on(create_run(&**store, name));
        let mut worker = Worker::connect(*gateway, run);
        worker.attach(&pod_of(name));
        worker
    }

    /// Stored bytes of this worker's states.
    pub fn kept(&self, worker: &Worker) -> usize {
        self.bytes(worker)[0]
    }

    /// The same for an encrypted run.
    pub fn kept_encrypted(&self, worker: &Worker) -> usize {
        self.numbers(ENCRYPTED, OPS, worker)[0] as usize
    }

    /// Stored bytes of this worker's run: boundaries, snapshots, and the chunks that they share.
    pub fn bytes(&self, worker: &Worker) -> [usize; 3] {
        [
            OPS,
            "SELECT coalesce(sum(length(document)), 0) FROM snapshots WHERE run = $1",
            "SELECT coalesce(sum(length(payload)), 0) FROM chunks WHERE run = $1",
        ]
        .map(|sum| self.numbers(PLAIN, sum, worker)[0] as usize)
    }

    /// The turns after which a snapshot was made.
    pub fn turns_with_snapshot(&self, worker: &Worker) -> Vec<i64> {
        let turns = "SELECT CAST(turn AS bigint) FROM snapshots WHERE run = $1 ORDER BY turn";
        self.numbers(PLAIN, turns, worker)
    }

    /// The numbers that a query returns for this worker's run. `file` selects the SQLite database.
    fn numbers(&self, file: &str, query: &'static str, worker: &Worker) -> Vec<i64> {
        self.runtime.block_on(async {
            match &self.location {
                Location::Folder(folder) => {
                    let file = folder.path().join(file);
                    let options = sqlx::sqlite::SqliteConnectOptions::new().filename(file).read_only(true);
                    let mut conn = options.connect().await.unwrap();
                    sqlx::query_scalar(query).bind(worker.run).fetch_all(&mut conn).await.unwrap()
                }
                Location::Database { url, .. } => {
                    let mut conn = sqlx::PgConnection::connect(url).await.unwrap();
                    sqlx::query_scalar(query).bind(worker.run).fetch_all(&mut conn).await.unwrap()
                }
            }
        })
    }

    /// A floor on the same disk or server as the store.
    pub fn floor(&self) -> Floor {
        self.runtime.block_on(async {
            match &self.location {
                Location::Folder(folder) => Floor::sqlite(&new_file(folder)).await,
                Location::Database { server, .. } => Floor::postgres(&server.empty_database().await).await,
            }
        })
    }

    /// LangGraph's saver on the same server as the store; `None` for SQLite.
    pub fn saver(&self) -> Option<Saver> {
        match &self.location {
            Location::Folder(_) => None,
            Location::Database { server, .. } => {
                Saver::start(&self.runtime.block_on(server.empty_database()))
            }
        }
    }

    /// Stored bytes of that saver.
    pub fn bytes_of_saver(&self, saver: &Saver) -> usize {
        let bytes: i64 = self.runtime.block_on(async {
            let mut conn = sqlx::PgConnection::connect(&saver.url).await.unwrap();
            sqlx::query_scalar(SAVED).fetch_one(&mut conn).await.unwrap()
        });
        bytes as usize
    }
}

/// A new store in this file.
async fn open_file(folder: &TempDir, file: &str, keys: Option<Arc<dyn KeyProvider>>) -> Arc<dyn Store> {
    let url = format!("sqlite://{}", folder.path().join(file).display());
    dalsegno_store::migrate(&url).await.unwrap();
    open(&url, keys).await.unwrap()
}

/// A key in a new folder. The folder is not removed.
fn keys() -> Option<Arc<dyn KeyProvider>> {
    let folder = tempfile::tempdir().unwrap().keep();
    std::fs::write(folder.join("k1"), "YSBrZXkgb2YgdGhlIGJlbmNoIGFuZCBubyBvdGhlciE=").unwrap();
    Some(Arc::new(MountedKeys::open(&folder).unwrap()))
}

fn new_file(folder: &TempDir) -> PathBuf {
    folder.path().join(format!("floor-{}.db", Uuid::new_v4()))
}

/// UID of the run's pod, which is also its token.
pub fn pod_of(run: &str) -> String {
    format!("pod-of-{run}")
}

async fn serve(store: Arc<dyn Store>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let gateway = Gateway::new(store, Arc::new(TrustAll), Config::default());
    let listener = dalsegno_gateway::Listener::plain(listener, &gateway);
    tokio::spawn(dalsegno_gateway::serve(vec![listener], gateway, std::future::pending()));
    address
}

/// Creates a run and records its pod, as the operator does before a worker can attach.
async fn create_run(store: &dyn Store, name: &str) -> RunId {
    let new = NewRun {
        id: Uuid::now_v7(),
        tenant: "uid-bench".into(),
        namespace: NAMESPACE.into(),
        name: name.into(),
        object_uid: format!("uid-{name}"),
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
    let Created::Run(record) = store.create_run(&new).await.unwrap() else {
        panic!("the store is new");
    };
    let identity = Identity {
        in_registry: Some(true),
        image_digest: format!("sha256:{}", "1".repeat(64)),
        agent_version: "1".into(),
        verdict: Verdict::Accepted,
        remark: String::new(),
    };
    let pod = PodRecord {
        uid: pod_of(name),
        name: format!("{name}-1"),
        revision: "1".into(),
        identity: Some(identity),
    };
    store.record_pod(record.id, 1, &pod).await.unwrap();
    record.id
}

/// Accepts every token as that of the pod with this UID.
struct TrustAll;

#[async_trait]
impl Authenticator for TrustAll {
    async fn review(&self, token: &str) -> Result<PodIdentity, AuthError> {
        Ok(PodIdentity {
            namespace: NAMESPACE.into(),
            pod_name: token.into(),
            pod_uid: token.into(),
            service_account: "default".into(),
        })
    }
}
