//! A gateway without a free file descriptor.

use std::fs::File;
use std::process::Command;
use std::time::Duration;

use dalsegno_gateway::Config;
use tokio::net::{TcpSocket, TcpStream};

use crate::connections::{read_answer, send_heartbeat};
use crate::context::*;
use crate::server::{TestServer, start, until};

/// Set in the process with few file descriptors.
const FEW: &str = "DALSEGNO_TEST_FEW_DESCRIPTORS";

/// Runs the case of this name in a process that may have 100 files open.
fn with_few_descriptors(test: &str, case: impl Future<Output = ()>) {
    if std::env::var_os(FEW).is_some() {
        return tokio::runtime::Runtime::new().unwrap().block_on(case);
    }
    let mut command = Command::new("bash");
    command.args(["-c", "ulimit -n 100 && exec \"$0\" \"$@\""]).arg(std::env::current_exe().unwrap());
    let test = format!("accepting::{test}");
    let output = command.args(["--exact", &test, "--nocapture"]).env(FEW, "1").output().unwrap();
    let report =
        [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
    assert!(output.status.success() && report.contains("1 passed"), "{report}");
}

/// Opens files until there is no descriptor left.
fn all_descriptors() -> Vec<File> {
    std::iter::from_fn(|| File::open("/dev/null").ok()).collect()
}

/// A client's socket. It has its descriptor, and connects later.
fn socket() -> TcpSocket {
    TcpSocket::new_v4().unwrap()
}

/// A heartbeat of the run's worker on this connection.
async fn heartbeat(ctx: &TestContext, connection: &mut TcpStream) -> String {
    send_heartbeat(ctx, connection).await.unwrap();
    read_answer(connection).await
}

/// A run behind a gateway that must be restarted soon if it accepts nothing.
async fn serving() -> (TestContext, TestServer) {
    let accept_failure_limit = Duration::from_secs(4);
    let ctx = TestContext::attached().await.with_config(Config { accept_failure_limit, ..test_config() });
    let server = start(&ctx).await;
    until("it becomes ready", || ctx.gateway.is_ready()).await;
    (ctx, server)
}

#[test]
fn a_gateway_that_cannot_accept_connections_is_not_ready_and_then_must_be_restarted() {
    with_few_descriptors(
        "a_gateway_that_cannot_accept_connections_is_not_ready_and_then_must_be_restarted",
        run_out_of_descriptors(),
    );
}

async fn run_out_of_descriptors() {
    let (ctx, server) = serving().await;
    let client = socket();
    let files = all_descriptors();
    assert!(!files.is_empty() && files.len() < 100);
    let mut connection = client.connect(server.address).await.unwrap();
    until("it is not ready", || !ctx.gateway.is_ready()).await;
    let mut why = None;
    until("it must be restarted", || {
        why = ctx.gateway.failure();
        why.is_some()
    })
    .await;
    let why = why.unwrap();
    assert!(why.contains("Too many open files"), "{why}");
    drop(files);
    let answer = heartbeat(&ctx, &mut connection).await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    assert!(ctx.gateway.failure().is_none());
    until("it is ready again", || ctx.gateway.is_ready()).await;
    server.end().await;
}
