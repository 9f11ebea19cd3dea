//! The server: connections, readiness, the gateway heartbeat and shutdown.

use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use dalsegno_gateway::{Config, Listener, serve};
use dalsegno_protocol::{CONTRACT, FIRST_CONTRACT};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use uuid::Uuid;

use crate::context::*;
use crate::faulty_store::Fault;

pub struct TestServer {
    pub address: SocketAddr,
    stop: oneshot::Sender<()>,
    ended: JoinHandle<std::io::Result<()>>,
}

impl TestServer {
    /// Stops the gateway and waits until it has ended.
    pub async fn end(self) {
        self.stop.send(()).unwrap();
        self.ended.await.unwrap().unwrap();
    }

    /// Waits until the gateway ends by itself.
    async fn ended(self) -> std::io::Result<()> {
        tokio::time::timeout(Duration::from_secs(60), self.ended)
            .await
            .expect("the gateway has not stopped")
            .unwrap()
    }
}

pub async fn start(ctx: &TestContext) -> TestServer {
    let socket = TcpSocket::new_v4().unwrap();
    // A small buffer, so that writes block soon if the client does not read.
    socket.set_send_buffer_size(64 << 10).unwrap();
    socket.bind(([127, 0, 0, 1], 0).into()).unwrap();
    let listener = socket.listen(1_024).unwrap();
    let address = listener.local_addr().unwrap();
    let (stop, stopped) = oneshot::channel::<()>();
    let listener = Listener::plain(listener, &ctx.gateway);
    let ended = tokio::spawn(serve(vec![listener], ctx.gateway.clone(), async {
        stopped.await.unwrap();
    }));
    TestServer { address, stop, ended }
}

async fn post(ctx: &TestContext, address: SocketAddr, path: &str, body: &str) -> std::io::Result<String> {
    let mut connection = TcpStream::connect(address).await?;
    let request = format!(
        "POST /v1/runs/{}/{path} HTTP/1.1\r\nHost: gateway\r\nAuthorization: Bearer {INSTANCE}\r\n\
         Content-Length: {}\r\nConnection: close\r\n\r\n{body}",
        ctx.run,
        body.len()
    );
    connection.write_all(request.as_bytes()).await?;
    let mut answer = String::new();
    connection.read_to_string(&mut answer).await?;
    Ok(answer)
}

pub async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let started = Instant::now();
    while !holds() {
        assert!(started.elapsed() < Duration::from_secs(60), "{what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn an_attach_says_the_lowest_contract_of_the_gateways_as_the_store_has_said() {
    let ctx = TestContext::attached().await;
    let contract = async || {
        let answer = ctx.attach("pod-1", INSTANCE).await.ok();
        answer["contract"].as_i64().unwrap()
    };
    assert_eq!(contract().await, i64::from(FIRST_CONTRACT), "the store has said nothing yet");
    let server = start(&ctx).await;
    until("it becomes ready", || ctx.gateway.is_ready()).await;
    assert_eq!(contract().await, i64::from(CONTRACT));
    server.end().await;
}

#[tokio::test]
async fn a_gateway_whose_heartbeat_task_dies_stops() {
    let ctx = TestContext::attached().await;
    let server = start(&ctx).await;
    until("it becomes ready", || ctx.gateway.is_ready()).await;
    ctx.store.set(Fault::Panics);
    let ended = server.ended().await.unwrap_err();
    assert!(ended.to_string().starts_with("the gateway heartbeat has stopped: "), "{ended}");
}

#[tokio::test]
async fn a_gateway_whose_heartbeat_batcher_dies_stops() {
    let config = Config { gateway_heartbeat_interval: Duration::from_secs(60), ..test_config() };
    let ctx = TestContext::attached().await.with_config(config);
    let server = start(&ctx).await;
    until("a heartbeat was sent", || ctx.gateway.is_ready()).await;
    ctx.store.set(Fault::Panics);
    let _ = post(&ctx, server.address, "heartbeat", "").await;
    let ended = server.ended().await.unwrap_err();
    assert!(ended.to_string().starts_with("the batching of heartbeats has stopped"), "{ended}");
}

#[tokio::test]
async fn a_gateway_is_ready_while_it_serves_and_the_store_answers_its_heartbeat() {
    let ctx = TestContext::attached().await;
    assert!(!ctx.gateway.is_ready(), "not serving yet");
    let server = start(&ctx).await;
    until("it becomes ready", || ctx.gateway.is_ready()).await;
    until("further heartbeats are sent", || ctx.store.gateway_heartbeats.load(Ordering::SeqCst) > 3).await;
    ctx.store.set(Fault::Fails);
    until("the failure is noticed", || !ctx.gateway.is_ready()).await;
    ctx.store.set(Fault::None);
    until("it becomes ready again", || ctx.gateway.is_ready()).await;
    server.stop.send(()).unwrap();
    server.ended.await.unwrap().unwrap();
    assert!(!ctx.gateway.is_ready(), "not serving any more");
    let heartbeats = ctx.store.gateway_heartbeats.load(Ordering::SeqCst);
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(ctx.store.gateway_heartbeats.load(Ordering::SeqCst), heartbeats, "no heartbeat after the end");
}

#[tokio::test]
async fn a_call_under_way_is_answered_before_the_gateway_stops() {
    let ctx = TestContext::attached().await;
    let server = start(&ctx).await;
    ctx.store.set(Fault::Hangs);
    let body = commit(1, "1");
    let (answer, ()) = tokio::join!(post(&ctx, server.address, "turns/1", &body), async {
        until("the commit is under way", || ctx.store.waiting.load(Ordering::SeqCst) > 1).await;
        server.stop.send(()).unwrap();
        tokio::time::sleep(Duration::from_millis(100)).await;
        assert!(!server.ended.is_finished());
        assert!(post(&ctx, server.address, "heartbeat", "").await.is_err(), "no new connections");
        ctx.store.set(Fault::None);
    });
    let answer = answer.unwrap();
    assert!(answer.starts_with("HTTP/1.1 200") && answer.contains(r#""result":"ok""#), "{answer}");
    server.ended.await.unwrap().unwrap();
}

#[tokio::test]
async fn a_call_that_does_not_end_is_dropped_at_the_shutdown_timeout() {
    let limit = Duration::from_millis(200);
    let slow = Config { store_timeout: Duration::from_secs(60), shutdown_timeout: limit, ..test_config() };
    let ctx = TestContext::attached().await.with_config(slow);
    let server = start(&ctx).await;
    ctx.store.set(Fault::Hangs);
    let body = commit(1, "1");
    let address = server.address;
    let stopping = async {
        until("the commit is under way", || ctx.store.waiting.load(Ordering::SeqCst) > 1).await;
        let started = Instant::now();
        server.stop.send(()).unwrap();
        server.ended.await.unwrap().unwrap();
        started.elapsed()
    };
    let stopped = tokio::select! {
        stopped = stopping => stopped,
        answer = post(&ctx, address, "turns/1", &body) => panic!("the call has ended: {answer:?}"),
    };
    assert!(stopped >= limit && stopped < Duration::from_secs(10), "{stopped:?}");
}

#[tokio::test]
async fn a_waiting_attach_is_refused_when_the_gateway_stops() {
    let ctx = TestContext::reserved(long_attach_timeouts()).await;
    let server = start(&ctx).await;
    let (answer, ()) = tokio::join!(ctx.attach("pod-1", INSTANCE), async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        server.stop.send(()).unwrap();
    });
    assert_eq!(answer.code(), "UNAVAILABLE");
    assert!(answer.detail().contains("stopping"));
    server.ended.await.unwrap().unwrap();
}

#[tokio::test]
async fn an_idle_connection_does_not_delay_the_shutdown() {
    let ctx = TestContext::attached().await;
    let server = start(&ctx).await;
    let _idle = TcpStream::connect(server.address).await.unwrap();
    tokio::time::sleep(Duration::from_millis(50)).await;
    server.stop.send(()).unwrap();
    let started = Instant::now();
    server.ended.await.unwrap().unwrap();
    assert!(started.elapsed() < test_config().shutdown_timeout + Duration::from_secs(5));
}

#[tokio::test]
async fn a_client_that_writes_an_oversized_body_to_its_end_gets_too_large() {
    let ctx = TestContext::attached().await;
    let server = start(&ctx).await;
    let answer = post(&ctx, server.address, "turns/1", &"x".repeat(20 << 20)).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 413") && answer.contains("TOO_LARGE"), "{answer}");
    server.stop.send(()).unwrap();
    server.ended.await.unwrap().unwrap();
}

/// A proxy or a network may fail while the body is sent. The problem must ask for a retry.
#[tokio::test]
async fn a_body_that_breaks_off_on_the_network_may_be_retried() {
    let ctx = TestContext::attached().await;
    let server = start(&ctx).await;
    for (length, cut) in [
        ("Content-Length: 1000", r#"{"commitId":"#),
        ("Transfer-Encoding: chunked", "5\r\n{\"com\r\n"),
        ("Transfer-Encoding: chunked", "5\r\n{\"com\r\nno length\r\n"),
    ] {
        let mut connection = TcpStream::connect(server.address).await.unwrap();
        let head = format!(
            "POST /v1/runs/{}/turns/1 HTTP/1.1\r\nHost: gateway\r\nAuthorization: Bearer {INSTANCE}\r\n{length}\r\n\r\n",
            ctx.run
        );
        connection.write_all(format!("{head}{cut}").as_bytes()).await.unwrap();
        connection.shutdown().await.unwrap();
        let mut answer = String::new();
        connection.read_to_string(&mut answer).await.unwrap();
        assert!(answer.starts_with("HTTP/1.1 503") && answer.contains("broke off"), "{cut}: {answer}");
    }
    assert!(
        post(&ctx, server.address, "turns/1", &commit(1, "1")).await.unwrap().contains(r#""result":"ok""#)
    );
    server.end().await;
}

/// Waits until the gateway closes the connection.
async fn closed(mut connection: TcpStream) {
    let mut received = Vec::new();
    let read = connection.read_to_end(&mut received);
    // A reset also closes it.
    let _ = tokio::time::timeout(Duration::from_secs(30), read)
        .await
        .expect("the gateway has not closed the connection");
}

#[tokio::test]
async fn an_incomplete_request_head_times_out_while_others_are_served() {
    let header_read_timeout = Duration::from_secs(1);
    let ctx = TestContext::attached().await.with_config(Config { header_read_timeout, ..test_config() });
    let server = start(&ctx).await;
    let started = Instant::now();
    let mut slow = TcpStream::connect(server.address).await.unwrap();
    slow.write_all(b"POST /v1/runs/x/heartbeat HTTP/1.1\r\nHost: gate").await.unwrap();
    let (answer, ()) = tokio::join!(post(&ctx, server.address, "heartbeat", ""), closed(slow));
    assert!(answer.unwrap().starts_with("HTTP/1.1 200"));
    assert!(started.elapsed() >= header_read_timeout / 2, "{:?}", started.elapsed());
    server.stop.send(()).unwrap();
    server.ended.await.unwrap().unwrap();
}

/// Longer than any of these tests takes.
const LONG: Duration = Duration::from_secs(120);

/// Bytes that do not fit into the buffers of a connection whose client does not read.
const LARGE: usize = 3 << 20;

/// A run with a large state, behind a gateway that may hold one response of that size and one request body.
async fn with_large_state(write_timeout: Duration, max_response_duration: Duration) -> TestContext {
    let config = Config { write_timeout, max_response_duration, ..test_config() };
    let ctx = TestContext::attached().await.with_config(config.clone());
    let state = format!("\"{}\"", "x".repeat(LARGE));
    ctx.post("turns/1", commit(1, &state)).await.ok();
    // Large enough to be charged to the response bytes.
    let events = json!({ "commitId": Uuid::from_u128(2), "events": ["x".repeat(1_000)] });
    ctx.post("turns/2", events.to_string()).await.ok();
    let max_response_bytes = ctx.get("state").await.text.len();
    ctx.with_config(Config { max_response_bytes, max_request_bytes: 2 * LARGE, ..config })
}

/// Requests the state without reading the response.
async fn request_state(ctx: &TestContext, address: SocketAddr) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4 << 10).unwrap();
    let mut connection = socket.connect(address).await.unwrap();
    let request = format!(
        "GET /v1/runs/{}/state HTTP/1.1\r\nHost: gateway\r\nAuthorization: Bearer {INSTANCE}\r\n\
         Connection: close\r\n\r\n",
        ctx.run
    );
    connection.write_all(request.as_bytes()).await.unwrap();
    connection
}

#[tokio::test]
async fn an_unread_response_blocks_no_commit_and_its_connection_is_closed() {
    let ctx = with_large_state(Duration::from_secs(5), LONG).await;
    let server = start(&ctx).await;
    let unread = request_state(&ctx, server.address).await;
    let started = Instant::now();
    while ctx.get("events").await.status == 200 {
        assert!(started.elapsed() < Duration::from_secs(20), "the response is not charged");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    ctx.post("turns/3", commit(3, &format!("\"{}\"", "x".repeat(LARGE)))).await.ok();
    while ctx.get("events").await.status != 200 {
        assert!(started.elapsed() < Duration::from_secs(20), "the response stays charged");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    closed(unread).await;
    server.end().await;
}

#[tokio::test]
async fn a_slow_reader_gets_its_whole_response() {
    // The limit starts anew after two reads or three, so each part has far more time than it needs.
    let limit = Duration::from_secs(5);
    let ctx = with_large_state(limit, LONG).await;
    let server = start(&ctx).await;
    let slow = request_state(&ctx, server.address).await;
    let (read, took) = read_slowly(slow, limit / 16).await;
    assert!(read >= LARGE && took > limit + limit / 4, "{read} bytes in {took:?}");
    server.end().await;
}

#[tokio::test]
async fn a_slow_response_is_cut_off_at_the_time_limit() {
    let limit = Duration::from_millis(800);
    let ctx = with_large_state(limit, limit).await;
    let server = start(&ctx).await;
    let slow = request_state(&ctx, server.address).await;
    let (read, took) = read_slowly(slow, limit / 8).await;
    assert!(read < LARGE && took > limit / 2, "{read} bytes in {took:?}");
    ctx.get("events").await.ok();
    server.end().await;
}

/// Reads with a pause after every 128 KiB. Returns the bytes read and the time it took.
async fn read_slowly(mut connection: TcpStream, pause: Duration) -> (usize, Duration) {
    let (started, mut read, mut some) = (Instant::now(), 0, vec![0; 128 << 10]);
    while let Ok(bytes) = connection.read_exact(&mut some).await {
        read += bytes;
        tokio::time::sleep(pause).await;
    }
    (read, started.elapsed())
}
