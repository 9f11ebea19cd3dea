//! A gateway on a socket: its beat, its readiness, its last minutes.

use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use dalsegno_gateway::{Config, serve};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use uuid::Uuid;

use crate::faults::Fault;
use crate::world::*;

pub struct Serving {
    address: SocketAddr,
    stop: oneshot::Sender<()>,
    ended: JoinHandle<std::io::Result<()>>,
}

impl Serving {
    /// Stops it, and waits until it has ended.
    pub async fn end(self) {
        self.stop.send(()).unwrap();
        self.ended.await.unwrap().unwrap();
    }

    /// How it ends by itself.
    async fn ends(self) -> std::io::Result<()> {
        tokio::time::timeout(Duration::from_secs(10), self.ended).await.expect("it ends").unwrap()
    }
}

pub async fn start(world: &World) -> Serving {
    let socket = TcpSocket::new_v4().unwrap();
    // So that an answer that is not read soon finds no more room.
    socket.set_send_buffer_size(64 << 10).unwrap();
    socket.bind(([127, 0, 0, 1], 0).into()).unwrap();
    let listener = socket.listen(1_024).unwrap();
    let address = listener.local_addr().unwrap();
    let (stop, stopped) = oneshot::channel::<()>();
    let ended = tokio::spawn(serve(listener, world.gateway.clone(), async {
        stopped.await.unwrap();
    }));
    Serving { address, stop, ended }
}

async fn post(world: &World, address: SocketAddr, path: &str, body: &str) -> std::io::Result<String> {
    let mut connection = TcpStream::connect(address).await?;
    let request = format!(
        "POST /v1/runs/{}/{path} HTTP/1.1\r\nHost: gateway\r\nAuthorization: Bearer {INSTANCE}\r\n\
         Content-Length: {}\r\nConnection: close\r\n\r\n{body}",
        world.run,
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
        assert!(started.elapsed() < Duration::from_secs(10), "{what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn a_gateway_that_cannot_beat_any_more_ends() {
    let world = World::attached().await;
    let serving = start(&world).await;
    until("it becomes ready", || world.gateway.is_ready()).await;
    world.store.set(Fault::Panics);
    let ended = serving.ends().await.unwrap_err();
    assert!(ended.to_string().starts_with("the gateway heartbeat has stopped: "), "{ended}");
}

#[tokio::test]
async fn a_gateway_that_cannot_hear_heartbeats_any_more_ends() {
    let seldom = Config { gateway_heartbeat_interval: Duration::from_secs(60), ..quick() };
    let world = World::attached().await.with(seldom);
    let serving = start(&world).await;
    until("it has beaten", || world.gateway.is_ready()).await;
    world.store.set(Fault::Panics);
    let _ = post(&world, serving.address, "heartbeat", "").await;
    let ended = serving.ends().await.unwrap_err();
    assert!(ended.to_string().starts_with("the batching of heartbeats has stopped"), "{ended}");
}

#[tokio::test]
async fn a_gateway_is_ready_while_it_serves_and_the_store_answers_its_beat() {
    let world = World::attached().await;
    assert!(!world.gateway.is_ready(), "nobody serves yet");
    let serving = start(&world).await;
    until("it becomes ready", || world.gateway.is_ready()).await;
    until("it beats on", || world.store.beats.load(Ordering::SeqCst) > 3).await;
    world.store.set(Fault::Fails);
    until("the silent store is noticed", || !world.gateway.is_ready()).await;
    world.store.set(Fault::None);
    until("it becomes ready again", || world.gateway.is_ready()).await;
    serving.stop.send(()).unwrap();
    serving.ended.await.unwrap().unwrap();
    assert!(!world.gateway.is_ready(), "it serves no more");
    let beats = world.store.beats.load(Ordering::SeqCst);
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(world.store.beats.load(Ordering::SeqCst), beats, "and says so no more");
}

#[tokio::test]
async fn a_call_under_way_is_answered_before_the_gateway_stops() {
    let world = World::attached().await;
    let serving = start(&world).await;
    world.store.set(Fault::Hangs);
    let body = commit(1, "1");
    let (answer, ()) = tokio::join!(post(&world, serving.address, "turns/1", &body), async {
        until("the commit is under way", || world.store.waiting.load(Ordering::SeqCst) > 1).await;
        serving.stop.send(()).unwrap();
        tokio::time::sleep(Duration::from_millis(100)).await;
        assert!(!serving.ended.is_finished());
        assert!(post(&world, serving.address, "heartbeat", "").await.is_err(), "no new connections");
        world.store.set(Fault::None);
    });
    let answer = answer.unwrap();
    assert!(answer.starts_with("HTTP/1.1 200") && answer.contains(r#""result":"ok""#), "{answer}");
    serving.ended.await.unwrap().unwrap();
}

#[tokio::test]
async fn a_call_that_does_not_end_is_dropped_at_the_limit() {
    let limit = Duration::from_millis(200);
    let slow = Config { store_timeout: Duration::from_secs(60), shutdown_timeout: limit, ..quick() };
    let world = World::attached().await.with(slow);
    let serving = start(&world).await;
    world.store.set(Fault::Hangs);
    let body = commit(1, "1");
    let address = serving.address;
    let stopping = async {
        until("the commit is under way", || world.store.waiting.load(Ordering::SeqCst) > 1).await;
        let started = Instant::now();
        serving.stop.send(()).unwrap();
        serving.ended.await.unwrap().unwrap();
        started.elapsed()
    };
    let stopped = tokio::select! {
        stopped = stopping => stopped,
        answer = post(&world, address, "turns/1", &body) => panic!("it has ended: {answer:?}"),
    };
    assert!(stopped >= limit && stopped < Duration::from_secs(10), "{stopped:?}");
}

#[tokio::test]
async fn an_attach_that_waits_is_sent_elsewhere_when_the_gateway_stops() {
    let world = World::reserved(patient()).await;
    let serving = start(&world).await;
    let (answer, ()) = tokio::join!(world.attach("pod-1", INSTANCE), async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        serving.stop.send(()).unwrap();
    });
    assert_eq!(answer.code(), "UNAVAILABLE");
    assert!(answer.detail().contains("stopping"));
    serving.ended.await.unwrap().unwrap();
}

#[tokio::test]
async fn a_connection_that_sends_nothing_does_not_hold_the_gateway_up() {
    let world = World::attached().await;
    let serving = start(&world).await;
    let _idle = TcpStream::connect(serving.address).await.unwrap();
    tokio::time::sleep(Duration::from_millis(50)).await;
    serving.stop.send(()).unwrap();
    let started = Instant::now();
    serving.ended.await.unwrap().unwrap();
    assert!(started.elapsed() < quick().shutdown_timeout + Duration::from_secs(5));
}

#[tokio::test]
async fn a_sender_that_reads_nothing_until_it_has_written_all_hears_that_its_body_is_too_large() {
    let world = World::attached().await;
    let serving = start(&world).await;
    let answer = post(&world, serving.address, "turns/1", &"x".repeat(20 << 20)).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 413") && answer.contains("TOO_LARGE"), "{answer}");
    serving.stop.send(()).unwrap();
    serving.ended.await.unwrap().unwrap();
}

/// A proxy that fails half-way, or a network: the worker is not at fault, and must not give up.
#[tokio::test]
async fn a_sender_whose_body_breaks_off_on_the_way_hears_to_send_it_again() {
    let world = World::attached().await;
    let serving = start(&world).await;
    for (length, cut) in [
        ("Content-Length: 1000", r#"{"commitId":"#),
        ("Transfer-Encoding: chunked", "5\r\n{\"com\r\n"),
        ("Transfer-Encoding: chunked", "5\r\n{\"com\r\nno length\r\n"),
    ] {
        let mut connection = TcpStream::connect(serving.address).await.unwrap();
        let head = format!(
            "POST /v1/runs/{}/turns/1 HTTP/1.1\r\nHost: gateway\r\nAuthorization: Bearer {INSTANCE}\r\n{length}\r\n\r\n",
            world.run
        );
        connection.write_all(format!("{head}{cut}").as_bytes()).await.unwrap();
        connection.shutdown().await.unwrap();
        let mut answer = String::new();
        connection.read_to_string(&mut answer).await.unwrap();
        assert!(answer.starts_with("HTTP/1.1 503") && answer.contains("broke off"), "{cut}: {answer}");
    }
    assert!(
        post(&world, serving.address, "turns/1", &commit(1, "1")).await.unwrap().contains(r#""result":"ok""#)
    );
    serving.end().await;
}

/// Reads until the gateway closes the connection.
async fn closed(mut connection: TcpStream) {
    let mut said = Vec::new();
    let read = connection.read_to_end(&mut said);
    // A reset is an end, too.
    let _ = tokio::time::timeout(Duration::from_secs(10), read).await.expect("the gateway closes it");
}

#[tokio::test]
async fn a_head_that_does_not_come_whole_is_not_waited_for_and_others_are_served_meanwhile() {
    let header_read_timeout = Duration::from_secs(1);
    let world = World::attached().await.with(Config { header_read_timeout, ..quick() });
    let serving = start(&world).await;
    let started = Instant::now();
    let mut slow = TcpStream::connect(serving.address).await.unwrap();
    slow.write_all(b"POST /v1/runs/x/heartbeat HTTP/1.1\r\nHost: gate").await.unwrap();
    let (answer, ()) = tokio::join!(post(&world, serving.address, "heartbeat", ""), closed(slow));
    assert!(answer.unwrap().starts_with("HTTP/1.1 200"));
    assert!(started.elapsed() >= header_read_timeout / 2, "{:?}", started.elapsed());
    serving.stop.send(()).unwrap();
    serving.ended.await.unwrap().unwrap();
}

#[tokio::test]
async fn idle_connections_give_their_places_to_those_that_wait() {
    let header_read_timeout = Duration::from_secs(1);
    let world = World::attached().await.with(Config { header_read_timeout, max_connections: 2, ..quick() });
    let serving = start(&world).await;
    let started = Instant::now();
    let _idle = [
        TcpStream::connect(serving.address).await.unwrap(),
        TcpStream::connect(serving.address).await.unwrap(),
    ];
    let answer = post(&world, serving.address, "heartbeat", "").await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    assert!(
        started.elapsed() >= header_read_timeout / 2,
        "there was a place at once: {:?}",
        started.elapsed()
    );
    serving.stop.send(()).unwrap();
    serving.ended.await.unwrap().unwrap();
}

const PATIENT: Duration = Duration::from_secs(20);

/// Larger than what a connection takes before its peer reads.
const LARGE: usize = 3 << 20;

/// A worker that has committed a large state, before a gateway that has room for this one answer, and for one body.
async fn large(write_timeout: Duration, max_response_duration: Duration) -> World {
    let config = Config { write_timeout, max_response_duration, ..quick() };
    let world = World::attached().await.with(config.clone());
    let state = format!("\"{}\"", "x".repeat(LARGE));
    world.post("turns/1", commit(1, &state)).await.ok();
    // Events that need a place of their own.
    let events = json!({ "commitId": Uuid::from_u128(2), "events": ["x".repeat(1_000)] });
    world.post("turns/2", events.to_string()).await.ok();
    let max_response_bytes = world.get("state").await.text.len();
    world.with(Config { max_response_bytes, max_request_bytes: 2 * LARGE, ..config })
}

/// Asks for the state and reads nothing yet.
async fn ask_for_state(world: &World, address: SocketAddr) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4 << 10).unwrap();
    let mut connection = socket.connect(address).await.unwrap();
    let request = format!(
        "GET /v1/runs/{}/state HTTP/1.1\r\nHost: gateway\r\nAuthorization: Bearer {INSTANCE}\r\n\
         Connection: close\r\n\r\n",
        world.run
    );
    connection.write_all(request.as_bytes()).await.unwrap();
    connection
}

#[tokio::test]
async fn a_worker_that_does_not_read_its_answer_keeps_nobody_from_committing_and_is_not_waited_for() {
    let world = large(Duration::from_secs(2), PATIENT).await;
    let serving = start(&world).await;
    let unread = ask_for_state(&world, serving.address).await;
    let started = Instant::now();
    while world.get("events").await.status == 200 {
        assert!(started.elapsed() < Duration::from_secs(20), "it has no place");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    world.post("turns/3", commit(3, &format!("\"{}\"", "x".repeat(LARGE)))).await.ok();
    while world.get("events").await.status != 200 {
        assert!(started.elapsed() < Duration::from_secs(20), "it keeps its place");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    closed(unread).await;
    serving.end().await;
}

#[tokio::test]
async fn a_reader_that_takes_its_time_gets_all_of_its_answer() {
    let limit = Duration::from_millis(800);
    let world = large(limit, PATIENT).await;
    let serving = start(&world).await;
    let slow = ask_for_state(&world, serving.address).await;
    let (read, took) = read_slowly(slow, limit / 8).await;
    assert!(read >= LARGE && took > 2 * limit, "{read} bytes in {took:?}");
    serving.end().await;
}

#[tokio::test]
async fn no_reader_keeps_its_place_for_longer_than_a_stream_may_last() {
    let limit = Duration::from_millis(800);
    let world = large(limit, limit).await;
    let serving = start(&world).await;
    let slow = ask_for_state(&world, serving.address).await;
    let (read, took) = read_slowly(slow, limit / 8).await;
    assert!(read < LARGE && took > limit / 2, "{read} bytes in {took:?}");
    world.get("events").await.ok();
    serving.end().await;
}

/// Bytes that come, some of them at a time with a pause after each, and how long that took.
async fn read_slowly(mut connection: TcpStream, pause: Duration) -> (usize, Duration) {
    let (started, mut read, mut some) = (Instant::now(), 0, vec![0; 128 << 10]);
    while let Ok(bytes) = connection.read_exact(&mut some).await {
        read += bytes;
        tokio::time::sleep(pause).await;
    }
    (read, started.elapsed())
}
