//! Connections: their number, per address and in all, and what a connection may send before it is believed.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use dalsegno_gateway::Config;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};

use crate::context::*;
use crate::server::{TestServer, start, until};

/// A client's connection from this loopback address.
pub async fn connect_from(last_byte: u8, server: &TestServer) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind(SocketAddr::from(([127, 0, 0, last_byte], 0))).unwrap();
    socket.connect(server.address).await.unwrap()
}

pub async fn send_heartbeat(ctx: &TestContext, connection: &mut TcpStream) -> std::io::Result<()> {
    let head = format!(
        "POST /v1/runs/{}/heartbeat HTTP/1.1\r\nHost: gateway\r\nAuthorization: Bearer {INSTANCE}\r\n\
         Content-Length: 0\r\n\r\n",
        ctx.run
    );
    connection.write_all(head.as_bytes()).await
}

/// What the gateway sends, up to the end of the first body or of the connection.
pub async fn read_answer(connection: &mut TcpStream) -> String {
    let (mut answer, mut some) = (Vec::new(), [0; 4096]);
    let reading = async {
        loop {
            match connection.read(&mut some).await {
                Ok(0) | Err(_) => break,
                Ok(bytes) => answer.extend_from_slice(&some[..bytes]),
            }
            if answer.ends_with(b"}") {
                break;
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(10), reading).await.expect("no answer, and not closed");
    String::from_utf8(answer).unwrap()
}

/// Sends a heartbeat on a new connection from this address, which stays open.
async fn heartbeat_from(last_byte: u8, ctx: &TestContext, server: &TestServer) -> (TcpStream, String) {
    let mut connection = connect_from(last_byte, server).await;
    // A refused connection may be closed before the request is sent; its answer can be read all the same.
    let _ = send_heartbeat(ctx, &mut connection).await;
    let answer = read_answer(&mut connection).await;
    (connection, answer)
}

/// Connections whose body never comes, so that none of them is idle.
async fn busy_from(last_byte: u8, number: usize, ctx: &TestContext, server: &TestServer) -> Vec<TcpStream> {
    let mut busy = Vec::new();
    for _ in 0..number {
        let mut connection = connect_from(last_byte, server).await;
        let head = format!(
            "POST /v1/runs/{}/turns/1 HTTP/1.1\r\nHost: gateway\r\nAuthorization: Bearer {INSTANCE}\r\n\
             Content-Length: 1000\r\n\r\n{{",
            ctx.run
        );
        connection.write_all(head.as_bytes()).await.unwrap();
        busy.push(connection);
    }
    // The gateway reads them on other threads.
    tokio::time::sleep(Duration::from_millis(300)).await;
    busy
}

pub fn metric(ctx: &TestContext, line: &str) -> u64 {
    let mut registry = prometheus_client::registry::Registry::default();
    ctx.gateway.register(&mut registry);
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
    let value = text.lines().find_map(|it| it.strip_prefix(line)?.strip_prefix(' '));
    value.unwrap_or_else(|| panic!("{line} is missing in {text}")).parse().unwrap()
}

#[tokio::test]
async fn idle_connections_of_one_address_keep_nobody_out() {
    // Within the test no idle connection is closed for its silence.
    let first_byte_timeout = Duration::from_secs(60);
    let config = Config { max_connections: 64, first_byte_timeout, ..test_config() };
    let ctx = TestContext::attached().await.with_config(config);
    let server = start(&ctx).await;
    let mut idle = Vec::new();
    for _ in 0..100 {
        idle.push(connect_from(2, &server).await);
    }
    let started = Instant::now();
    let (_open, answer) = heartbeat_from(1, &ctx, &server).await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    assert!(started.elapsed() < first_byte_timeout / 2, "{:?}", started.elapsed());
    server.end().await;
}

/// Opens idle connections from this address for ever, as many as the gateway lets it have, and opens closed ones anew.
async fn flood_from(last_byte: u8, number: usize, server: &TestServer) {
    let connections = (0..number).map(|_| async {
        loop {
            let mut connection = connect_from(last_byte, server).await;
            // Ends when the gateway closes the connection.
            let _ = connection.read(&mut [0; 64]).await;
        }
    });
    futures::future::join_all(connections).await;
}

/// Commits turns of this run with its worker's instance, each on a new connection from this address.
async fn commit_turns(ctx: &TestContext, server: &TestServer, last_byte: u8, instance: &str) {
    for turn in 1..=10 {
        let mut connection = connect_from(last_byte, server).await;
        let body = commit(turn, "1");
        let request = format!(
            "POST /v1/runs/{}/turns/{turn} HTTP/1.1\r\nHost: gateway\r\nAuthorization: Bearer {instance}\r\n\
             Content-Length: {}\r\n\r\n{body}",
            ctx.run,
            body.len()
        );
        connection.write_all(request.as_bytes()).await.unwrap();
        let answer = read_answer(&mut connection).await;
        assert!(answer.starts_with("HTTP/1.1 200"), "turn {turn}: {answer}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn no_worker_is_refused_while_strangers_flood_the_gateway_with_idle_connections() {
    let config = Config { max_connections: 128, max_connections_per_peer: 96, ..test_config() };
    let ctx = TestContext::attached().await.with_config(config);
    let server = start(&ctx).await;
    let instances: Vec<_> = ('C'..='H').map(|letter| letter.to_string().repeat(43)).collect();
    let mut runs = Vec::new();
    for (number, instance) in instances.iter().enumerate() {
        runs.push(ctx.other_run(&format!("tenant-{number}"), instance).await);
    }
    let workers = runs
        .iter()
        .zip(&instances)
        .zip(10..)
        .map(|((ctx, instance), address)| commit_turns(ctx, &server, address, instance));
    let working = async {
        until("the gateway is full", || metric(&ctx, "gateway_open_connections") >= 128).await;
        futures::future::join_all(workers).await;
    };
    tokio::select! {
        ((), ()) = async { tokio::join!(flood_from(2, 150, &server), flood_from(3, 150, &server)) } => {}
        () = working => {}
    }
    let refused = |reason| metric(&ctx, &format!("gateway_refused_connections_total{{reason=\"{reason}\"}}"));
    println!(
        "displaced {}, refused at the share of their address {}",
        refused("displaced"),
        refused("peer-limit")
    );
    assert!(refused("displaced") > 0, "the gateway was full of strangers");
    assert_eq!(refused("total-limit"), 0, "idle connections keep nobody out");
    server.end().await;
}

#[tokio::test]
async fn busy_connections_of_one_address_take_only_its_share() {
    let config = Config { max_connections: 8, max_connections_per_peer: 4, ..test_config() };
    let ctx = TestContext::attached().await.with_config(config);
    let server = start(&ctx).await;
    let _busy = busy_from(2, 4, &ctx, &server).await;
    let (_refused, answer) = heartbeat_from(2, &ctx, &server).await;
    assert!(answer.starts_with("HTTP/1.1 503") && answer.contains("\"UNAVAILABLE\""), "{answer}");
    assert!(answer.to_lowercase().contains("retry-after: 1\r\n"), "{answer}");
    let (_open, answer) = heartbeat_from(1, &ctx, &server).await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    assert_eq!(metric(&ctx, "gateway_open_connections"), 5);
    assert_eq!(metric(&ctx, "gateway_refused_connections_total{reason=\"peer-limit\"}"), 1);
    server.end().await;
}

#[tokio::test]
async fn a_full_gateway_refuses_with_503_and_accepts_again_when_a_connection_ends() {
    let config = Config { max_connections: 2, max_connections_per_peer: 2, ..test_config() };
    let ctx = TestContext::attached().await.with_config(config);
    let server = start(&ctx).await;
    let busy = busy_from(2, 2, &ctx, &server).await;
    let (_refused, answer) = heartbeat_from(1, &ctx, &server).await;
    assert!(answer.starts_with("HTTP/1.1 503"), "{answer}");
    assert_eq!(metric(&ctx, "gateway_refused_connections_total{reason=\"total-limit\"}"), 1);
    drop(busy);
    until("the ended connections are counted", || metric(&ctx, "gateway_open_connections") == 0).await;
    let (_open, answer) = heartbeat_from(1, &ctx, &server).await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    server.end().await;
}

#[tokio::test]
async fn a_full_gateway_closes_the_idle_connection_of_the_address_with_most_connections() {
    let config = Config { max_connections: 4, max_connections_per_peer: 3, ..test_config() };
    let ctx = TestContext::attached().await.with_config(config);
    let server = start(&ctx).await;
    let (mut single, answer) = heartbeat_from(1, &ctx, &server).await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    let mut many = Vec::new();
    for _ in 0..3 {
        many.push(heartbeat_from(2, &ctx, &server).await.0);
    }
    let (_new, answer) = heartbeat_from(3, &ctx, &server).await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    send_heartbeat(&ctx, &mut single).await.unwrap();
    assert!(read_answer(&mut single).await.starts_with("HTTP/1.1 200"), "the older one of another address");
    assert_eq!(read_answer(&mut many[0]).await, "", "the one that was idle for longest is closed");
    server.end().await;
}

#[tokio::test]
async fn a_connection_that_sends_nothing_is_closed_soon() {
    let first_byte_timeout = Duration::from_millis(300);
    let ctx = TestContext::attached().await.with_config(Config { first_byte_timeout, ..test_config() });
    let server = start(&ctx).await;
    let (mut used, _) = heartbeat_from(1, &ctx, &server).await;
    let mut silent = connect_from(1, &server).await;
    let started = Instant::now();
    assert_eq!(read_answer(&mut silent).await, "");
    assert!(started.elapsed() >= first_byte_timeout / 2, "{:?}", started.elapsed());
    send_heartbeat(&ctx, &mut used).await.unwrap();
    assert!(
        read_answer(&mut used).await.starts_with("HTTP/1.1 200"),
        "a used connection may be idle for longer"
    );
    server.end().await;
}

#[tokio::test]
async fn an_endless_head_is_refused_before_it_fills_the_memory() {
    let ctx = TestContext::attached().await;
    let server = start(&ctx).await;
    for header in ["X-A: aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa".to_owned(), format!("X-A: {}", "a".repeat(30_000))]
    {
        let mut connection = connect_from(1, &server).await;
        let mut head = b"POST /v1/runs/x/heartbeat HTTP/1.1\r\nHost: gateway\r\n".to_vec();
        while head.len() < 40_000 {
            head.extend_from_slice(header.as_bytes());
            head.extend_from_slice(b"\r\n");
        }
        let _ = connection.write_all(&head).await;
        let answer = read_answer(&mut connection).await;
        // The gateway may close while the client still writes, and the answer is lost.
        assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 431"), "{answer}");
    }
    server.end().await;
}
