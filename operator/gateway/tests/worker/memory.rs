//! The memory that a gateway really takes, held against what its limits allow for. Each case has a process of its own.

use std::fs;
use std::sync::Arc;
use std::time::Duration;

use dalsegno_gateway::Config;
use dalsegno_model::Store;
use dalsegno_protocol::Limits;
use dalsegno_store::postgres::Postgres;
use dalsegno_store::sqlite::Sqlite;
use futures::future::join_all;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use uuid::Uuid;

use crate::alone::within;
use crate::connections::{connect_from, read_answer, send_heartbeat};
use crate::context::*;
use crate::pg::Server;
use crate::server::{TestServer, start};

/// Connections of each kind. The client's ends are in the same process, and 1,024 files are allowed everywhere.
pub const CONNECTIONS: usize = 400;

/// What a case may take beside that: buffers of the client, the database's pages, tasks.
const SMALL: usize = 12 << 20;

/// Bytes that are sent at a time.
const CHUNK: usize = 64 << 10;

/// Runs a case in a process of its own, whose figures are printed.
fn alone(test: &str, case: impl Future<Output = ()>) {
    let work = || tokio::runtime::Runtime::new().unwrap().block_on(case);
    within(2 << 30, Duration::from_secs(600), &format!("memory::{test}"), work);
}

/// A value of /proc/self/status, in bytes.
fn status(name: &str) -> usize {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).unwrap();
    line.trim().strip_suffix(" kB").unwrap().parse::<usize>().unwrap() * 1_024
}

/// Runs `work` and returns how far the process's memory grew meanwhile, at its peak.
pub async fn growth<T>(what: &str, work: impl Future<Output = T>) -> (usize, T) {
    // The kernel then counts the peak anew.
    fs::write("/proc/self/clear_refs", "5").unwrap();
    let before = status("VmRSS");
    let result = work.await;
    let (after, peak) = (status("VmRSS"), status("VmHWM"));
    let growth = peak.saturating_sub(before);
    let mib = |bytes: usize| bytes as f64 / f64::from(1 << 20);
    println!("{what}: {:.1} MiB before, {:.1} after, {:.1} at the peak", mib(before), mib(after), mib(peak));
    (growth, result)
}

/// Opens the connections and sends this on each of them. The gateway may close them before all is sent.
async fn flood(server: &TestServer, bytes: &[u8]) -> Vec<TcpStream> {
    let open = (0..CONNECTIONS).map(|_| async {
        let mut connection = connect_from(2, server).await;
        let _ = tokio::time::timeout(Duration::from_secs(2), connection.write_all(bytes)).await;
        connection
    });
    let open = join_all(open).await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    open
}

#[test]
fn connections_of_strangers_take_no_more_memory_than_each_is_allowed() {
    alone("connections_of_strangers_take_no_more_memory_than_each_is_allowed", flood_with_heads());
}

async fn flood_with_heads() {
    let timeout = Duration::from_secs(25);
    let ctx = TestContext::attached().await.with_config(Config {
        first_byte_timeout: timeout,
        header_read_timeout: timeout,
        ..test_config()
    });
    let server = start(&ctx).await;
    let begin = format!("POST /v1/runs/{}/turns/1 HTTP/1.1\r\nHost: gateway\r\n", ctx.run);
    let endless = format!("{begin}X-A: {}", "a".repeat(400_000));
    let incomplete = format!("{begin}X-A: {}", "a".repeat(15_000));
    let authorized = format!("{begin}Authorization: Bearer {SECOND}\r\n");
    let body = format!("{authorized}Content-Length: 400000\r\n\r\n{{{}", " ".repeat(100_000));
    for (kind, bytes) in [
        ("silent", ""),
        ("endless head", &endless),
        ("incomplete head", &incomplete),
        ("body without a right", &body),
    ] {
        let (grown, open) = growth(kind, flood(&server, bytes.as_bytes())).await;
        println!("{kind}: {} bytes for each of {} connections", grown / CONNECTIONS, open.len());
        assert!(grown <= CONNECTIONS * Config::CONNECTION_BYTES, "{kind}: {grown} bytes");
    }
    // Workers that have sent large bodies and keep their connections. The first of them fill the caches of the store.
    let send = async |turn: usize| {
        let body = commit(turn as u128, &format!("\"{}\"", "x".repeat(200_000)));
        let head = format!(
            "POST /v1/runs/{}/turns/{turn} HTTP/1.1\r\nHost: gateway\r\nAuthorization: Bearer {INSTANCE}\r\n\
             Content-Length: {}\r\n\r\n{body}",
            ctx.run,
            body.len()
        );
        let mut connection = connect_from(3, &server).await;
        connection.write_all(head.as_bytes()).await.unwrap();
        assert!(read_answer(&mut connection).await.starts_with("HTTP/1.1 200"));
        connection
    };
    for turn in 1..=100 {
        drop(send(turn).await);
    }
    let (grown, open) = growth("used for large bodies", async {
        let mut open = Vec::new();
        for turn in 101..=100 + CONNECTIONS {
            open.push(send(turn).await);
        }
        open
    })
    .await;
    println!("used for large bodies: {} bytes for each of {} connections", grown / CONNECTIONS, open.len());
    assert!(grown <= CONNECTIONS * Config::CONNECTION_BYTES + SMALL, "{grown} bytes");
    drop(open);
    let (grown, open) = growth("used and idle", async {
        let mut open = Vec::new();
        for _ in 0..CONNECTIONS {
            let mut connection = connect_from(3, &server).await;
            send_heartbeat(&ctx, &mut connection).await.unwrap();
            assert!(read_answer(&mut connection).await.starts_with("HTTP/1.1 200"));
            open.push(connection);
        }
        open
    })
    .await;
    println!("used and idle: {} bytes for each of {} connections", grown / CONNECTIONS, open.len());
    assert!(grown <= CONNECTIONS * Config::CONNECTION_BYTES, "{grown} bytes");
    server.end().await;
}

/// A store whose data is not in the memory of this process.
enum Database {
    Sqlite(tempfile::TempDir),
    Postgres(Server),
}

impl Database {
    fn sqlite() -> Self {
        Self::Sqlite(tempfile::tempdir().unwrap())
    }

    fn postgres() -> Self {
        Self::Postgres(Server::start(&[]))
    }

    /// A gateway in front of it, which remembers no states, and a run whose worker has attached.
    async fn attached(&self) -> TestContext {
        let store: Arc<dyn Store> = match self {
            Self::Sqlite(folder) => {
                let file = folder.path().join("store.db");
                Sqlite::migrate(&file).await.unwrap();
                Arc::new(Sqlite::open(&file).await.unwrap())
            }
            Self::Postgres(server) => Arc::new(Postgres::connect(&server.database().await).await.unwrap()),
        };
        let ctx = TestContext::with_store(store, Config { max_delta_base_bytes: 0, ..defaults() }).await;
        ctx.record_pod(1, "pod-1", Some(accepted())).await;
        ctx.attach("pod-1", INSTANCE).await.ok();
        ctx
    }
}

/// The configuration of a gateway in production; only the store may take as long as on a busy machine.
fn defaults() -> Config {
    let long = Duration::from_secs(300);
    Config { store_timeout: long, body_read_timeout: long, ..Config::default() }
}

/// Text of the alphabet of base64 that hardly compresses. Each seed makes another one.
fn noise(seed: u64, bytes: usize) -> Vec<u8> {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+-";
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        ALPHABET[(state >> 58) as usize]
    };
    std::iter::repeat_with(next).take(bytes).collect()
}

/// A boundary that sets one channel to a text of this many bytes.
struct Boundary {
    bearer: String,
    turn: u64,
    channel: &'static str,
    bytes: usize,
}

/// Commits the boundary over HTTP, made chunk by chunk so that the client takes next to no memory.
async fn commit_streamed(ctx: &TestContext, server: &TestServer, boundary: Boundary) -> String {
    let Boundary { bearer, turn, channel, bytes } = boundary;
    let id = Uuid::from_u128(turn.into());
    let begin = format!(r#"{{"commitId":"{id}","channels":{{"set":{{"{channel}":{{"json":""#);
    let end = r#""}}}}"#;
    let head = format!(
        "POST /v1/runs/{}/turns/{turn} HTTP/1.1\r\nHost: gateway\r\nAuthorization: Bearer {bearer}\r\n\
         Content-Length: {}\r\nConnection: close\r\n\r\n{begin}",
        ctx.run,
        begin.len() + bytes + end.len()
    );
    let mut connection = connect_from(1, server).await;
    connection.write_all(head.as_bytes()).await.unwrap();
    let seed = u64::from(bearer.as_bytes()[0]) << 32 | turn << 16;
    for (number, sent) in (0..bytes).step_by(CHUNK).enumerate() {
        connection.write_all(&noise(seed + number as u64, CHUNK.min(bytes - sent))).await.unwrap();
    }
    connection.write_all(end.as_bytes()).await.unwrap();
    let mut answer = String::new();
    connection.read_to_string(&mut answer).await.unwrap();
    answer
}

/// Reads a whole response without keeping it; returns its length.
async fn read_discarding(ctx: &TestContext, server: &TestServer, path: &str) -> usize {
    let mut connection = connect_from(1, server).await;
    let head = format!(
        "GET /v1/runs/{}/{path} HTTP/1.1\r\nHost: gateway\r\nAuthorization: Bearer {INSTANCE}\r\n\
         Connection: close\r\n\r\n",
        ctx.run
    );
    connection.write_all(head.as_bytes()).await.unwrap();
    let (mut length, mut some) = (0, vec![0; CHUNK]);
    loop {
        match connection.read(&mut some).await.unwrap() {
            0 => return length,
            bytes => length += bytes,
        }
    }
}

#[test]
fn request_bodies_take_the_memory_that_is_planned_for_them_with_sqlite() {
    let test = "request_bodies_take_the_memory_that_is_planned_for_them_with_sqlite";
    alone(test, async { commit_at_once(Database::sqlite()).await });
}

#[test]
fn request_bodies_take_the_memory_that_is_planned_for_them_with_postgres() {
    let test = "request_bodies_take_the_memory_that_is_planned_for_them_with_postgres";
    alone(test, async { commit_at_once(Database::postgres()).await });
}

/// As many of the largest bodies as the limit allows, at once.
async fn commit_at_once(database: Database) {
    let ctx = database.attached().await;
    let server = start(&ctx).await;
    let runs = defaults().max_request_bytes / Limits::BODY_BYTES;
    let mut workers = Vec::new();
    for number in 0..runs {
        let bearer = char::from(b'C' + number as u8).to_string().repeat(43);
        workers.push((ctx.other_run(&format!("tenant-{number}"), &bearer).await, bearer));
    }
    let bytes = Limits::BODY_BYTES - 1_000;
    let commits = workers.iter().map(|(ctx, bearer)| {
        let boundary = Boundary { bearer: bearer.clone(), turn: 1, channel: "text", bytes };
        commit_streamed(ctx, &server, boundary)
    });
    let (grown, answers) = growth("commits", join_all(commits)).await;
    assert!(answers.iter().all(|answer| answer.starts_with("HTTP/1.1 200")), "{answers:?}");
    let planned = Config::REQUEST_FACTOR * runs * Limits::BODY_BYTES;
    println!("commits: {grown} bytes for {runs} bodies of {bytes} bytes; {planned} are planned");
    assert!(grown <= planned, "{grown} bytes, {planned} are planned");
    server.end().await;
}

#[test]
fn reading_the_largest_state_takes_the_memory_that_is_planned_for_it_with_sqlite() {
    let test = "reading_the_largest_state_takes_the_memory_that_is_planned_for_it_with_sqlite";
    alone(test, async { read_largest(Database::sqlite()).await });
}

#[test]
fn reading_the_largest_state_takes_the_memory_that_is_planned_for_it_with_postgres() {
    let test = "reading_the_largest_state_takes_the_memory_that_is_planned_for_it_with_postgres";
    alone(test, async { read_largest(Database::postgres()).await });
}

async fn read_largest(database: Database) {
    const CHANNELS: [&str; 4] = ["a", "b", "c", "d"];
    let ctx = database.attached().await;
    let server = start(&ctx).await;
    let bytes = Limits::STATE_BYTES / CHANNELS.len() - 1_000;
    for (turn, channel) in (1..).zip(CHANNELS) {
        let boundary = Boundary { bearer: INSTANCE.into(), turn, channel, bytes };
        let (grown, answer) = growth("a commit", commit_streamed(&ctx, &server, boundary)).await;
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        println!("a commit of {bytes} bytes: {grown} bytes");
        assert!(grown <= Config::REQUEST_FACTOR * Limits::BODY_BYTES + SMALL, "{grown} bytes");
    }
    for path in ["state", "state?turn=4", "memory-delta?from=3&to=4", "checkpoint"] {
        let (grown, length) = growth(path, read_discarding(&ctx, &server, path)).await;
        // A comparison of the largest states has the whole budget, and other reads have its part for large states.
        let states = if path.starts_with("memory-delta") {
            defaults().max_inspection_bytes
        } else {
            Limits::STATE_BYTES
        };
        let planned = Config::STATE_FACTOR * states + length + SMALL;
        println!("{path}: {grown} bytes for an answer of {length}; {planned} are planned");
        assert!(grown <= planned, "{path}: {grown} bytes, {planned} are planned");
    }
    server.end().await;
}
