//! The outbox of a real store, and a receiver that speaks TLS.

#![allow(clippy::unwrap_used, reason = "a panic fails the test")]

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Mutex;
use std::time::Instant;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use dalsegno_model::{
    Cause, Class, Ending, HoldNotice, NewFinish, NextStep, NotificationDetail, ObjectHold, ObjectName, RunId,
    RunOutcome,
};
use dalsegno_store::sqlite::Sqlite;
use ring::hmac;
use rustls::ServerConfig;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

use super::sender::{AddressCheck, SendError};
use super::*;
use crate::test_context::{create_run, render_metrics};

const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

/// A request that the receiver got.
#[derive(Clone, Debug)]
struct Received {
    first_line: String,
    headers: HashMap<String, String>,
    body: String,
}

/// How the receiver behaves.
#[derive(Clone, Debug)]
enum Behavior {
    /// It answers with this, and closes the connection.
    Answer(&'static str),
    /// It answers with success, and then sends a body without an end.
    EndlessBody,
    /// It never answers.
    Silent,
}

/// A server for `localhost` with a certificate of its own.
struct ReceiverServer {
    address: SocketAddr,
    certificate: CertificateDer<'static>,
    received: Arc<Mutex<Vec<Received>>>,
}

impl ReceiverServer {
    /// Behaves in these ways, one for each connection; the last one again and again.
    async fn start(behaviors: &[Behavior]) -> Self {
        let rcgen::CertifiedKey { cert, signing_key } =
            rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
        let key = PrivateKeyDer::try_from(signing_key.serialize_der()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![cert.der().clone()], key)
            .unwrap();
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let received: Arc<Mutex<Vec<Received>>> = Arc::default();
        let (list, behaviors) = (received.clone(), behaviors.to_vec());
        tokio::spawn(async move {
            for number in 0.. {
                let (stream, _) = listener.accept().await.unwrap();
                let behavior = behaviors.get(number).or(behaviors.last()).unwrap().clone();
                let (acceptor, list) = (acceptor.clone(), list.clone());
                tokio::spawn(async move {
                    // A client that does not trust the certificate breaks off.
                    let Ok(mut stream) = acceptor.accept(stream).await else { return };
                    let Some(request) = read_request(&mut stream).await else { return };
                    list.lock().unwrap().push(request);
                    match behavior {
                        Behavior::Answer(head) => {
                            let answer = format!("HTTP/1.1 {head}\r\ncontent-length: 0\r\n\r\n");
                            let _ = stream.write_all(answer.as_bytes()).await;
                        }
                        Behavior::EndlessBody => {
                            let head = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n";
                            let _ = stream.write_all(head.as_bytes()).await;
                            while stream.write_all(b"5\r\nhello\r\n").await.is_ok() {}
                        }
                        Behavior::Silent => std::future::pending().await,
                    }
                });
            }
        });
        Self { address, certificate: cert.der().clone(), received }
    }

    fn received(&self) -> Vec<Received> {
        self.received.lock().unwrap().clone()
    }
}

async fn read_request(stream: &mut (impl tokio::io::AsyncRead + Unpin)) -> Option<Received> {
    let (mut bytes, mut part) = (Vec::new(), [0; 4096]);
    loop {
        let text = String::from_utf8_lossy(&bytes).into_owned();
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let mut lines = head.lines();
            let first_line = lines.next()?.to_owned();
            let headers: HashMap<_, _> = lines
                .filter_map(|line| line.split_once(": "))
                .map(|(n, v)| (n.to_lowercase(), v.to_owned()))
                .collect();
            let length: usize = headers.get("content-length")?.parse().ok()?;
            if body.len() >= length {
                return Some(Received { first_line, headers, body: body.to_owned() });
            }
        }
        match stream.read(&mut part).await.ok()? {
            0 => return None,
            read => bytes.extend_from_slice(&part[..read]),
        }
    }
}

/// An outbox whose notifications go to a receiver.
struct Context {
    outbox: Outbox,
    /// With the secret.
    _folder: tempfile::TempDir,
}

fn allow_all() -> AddressCheck {
    Box::new(|_| None)
}

impl Context {
    async fn new(server: &ReceiverServer, check: AddressCheck) -> Self {
        let mut roots = RootCertStore::empty();
        roots.add(server.certificate.clone()).unwrap();
        Self::with_roots(server, roots, check).await
    }

    async fn with_roots(server: &ReceiverServer, roots: RootCertStore, check: AddressCheck) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let secret = folder.path().join("secret");
        std::fs::write(&secret, format!("{SECRET}\n")).unwrap();
        let url = format!("https://localhost:{}/hooks?from=dalsegno", server.address.port());
        let sender = Sender::new(url.parse().unwrap(), secret, roots, check).unwrap();
        let receiver = Some(Receiver { sender, kinds: NotificationKind::ALL.to_vec(), api_server: None });
        let store = Arc::new(Sqlite::memory().await.unwrap());
        Self { outbox: Outbox { store, receiver, metrics: Metrics::default() }, _folder: folder }
    }

    async fn failed_run(&self, name: &str) -> RunId {
        let run = create_run(&*self.outbox.store, name).await;
        let finish = NewFinish {
            outcome: RunOutcome::Failed,
            reason: "TheReason".into(),
            message: "the message".into(),
            output: None,
        };
        let ending = Ending {
            attempt: 1,
            cause: Cause::Finished,
            class: Class::Neutral,
            exit_code: None,
            message: "the end".into(),
            ran: None,
        };
        self.outbox.store.end_attempt(run, &ending, &NextStep::Finish(finish)).await.unwrap();
        run
    }

    async fn waiting(&self) -> i64 {
        self.outbox.store.due_notifications(1).await.unwrap().waiting
    }

    fn counted(&self, kind: &str, outcome: &str) -> u64 {
        let series = format!("operator_notifications_total{{kind=\"{kind}\",outcome=\"{outcome}\"}} ");
        let text = render_metrics(&self.outbox.metrics);
        text.lines().find_map(|line| line.strip_prefix(&series)?.parse().ok()).unwrap()
    }
}

#[tokio::test]
async fn a_notification_is_delivered_once_signed_and_without_any_text_of_an_agent() {
    let server = ReceiverServer::start(&[Behavior::Answer("204 No Content")]).await;
    let cx = Context::new(&server, allow_all()).await;
    let run = cx.failed_run("nightly").await;
    assert_eq!(cx.waiting().await, 1);
    cx.outbox.drain().await.unwrap();
    cx.outbox.drain().await.unwrap();
    let [request] = &server.received()[..] else { panic!("{:?}", server.received()) };
    assert_eq!((cx.waiting().await, cx.counted("RunFailed", "delivered")), (0, 1));

    assert_eq!(request.first_line, "POST /hooks?from=dalsegno HTTP/1.1");
    let header = |name: &str| request.headers[name].as_str();
    assert_eq!(header("host"), format!("localhost:{}", server.address.port()));
    assert_eq!(header("content-type"), "application/cloudevents+json; charset=utf-8");
    let event: Value = serde_json::from_str(&request.body).unwrap();
    assert_eq!(event["id"], header("webhook-id"));
    assert_eq!(event["type"], "dev.dalsegno.run.failed");
    assert_eq!(
        (&event["subject"], &event["data"]["runID"]),
        (&"shop/nightly".into(), &run.to_string().into())
    );
    for text in ["TheReason", "the message", "the end"] {
        assert!(!request.body.contains(text), "{}", request.body);
    }

    // The receiver's side of Standard Webhooks.
    let key = hmac::Key::new(hmac::HMAC_SHA256, &STANDARD.decode(&SECRET["whsec_".len()..]).unwrap());
    let signed = format!("{}.{}.{}", header("webhook-id"), header("webhook-timestamp"), request.body);
    let signature = STANDARD.decode(header("webhook-signature").strip_prefix("v1,").unwrap()).unwrap();
    hmac::verify(&key, signed.as_bytes(), &signature).unwrap();
    let age = Timestamp::now().as_second() - header("webhook-timestamp").parse::<i64>().unwrap();
    assert!((0..60).contains(&age));
}

#[tokio::test]
async fn a_failed_notification_is_tried_again_under_the_same_id() {
    let server = ReceiverServer::start(&[Behavior::Answer("500 Oops"), Behavior::Answer("200 OK")]).await;
    let cx = Context::new(&server, allow_all()).await;
    cx.failed_run("nightly").await;
    cx.outbox.drain().await.unwrap();
    cx.outbox.drain().await.unwrap();
    assert_eq!((server.received().len(), cx.waiting().await), (1, 1), "the next try is a second later");
    tokio::time::sleep(Duration::from_millis(1_100)).await;
    cx.outbox.drain().await.unwrap();
    let ids: Vec<_> = server.received().iter().map(|it| it.headers["webhook-id"].clone()).collect();
    assert_eq!((ids.len(), &ids[0], cx.waiting().await), (2, &ids[1], 0));
    assert_eq!((cx.counted("RunFailed", "failed"), cx.counted("RunFailed", "delivered")), (1, 1));
}

#[tokio::test]
async fn a_redirect_is_a_failure_and_is_not_followed() {
    let redirect = Behavior::Answer("302 Found\r\nlocation: https://localhost/elsewhere");
    let server = ReceiverServer::start(&[redirect]).await;
    let cx = Context::new(&server, allow_all()).await;
    cx.failed_run("nightly").await;
    cx.outbox.drain().await.unwrap();
    assert_eq!((server.received().len(), cx.counted("RunFailed", "failed")), (1, 1));
}

#[tokio::test]
async fn the_body_of_an_answer_is_not_read() {
    let server = ReceiverServer::start(&[Behavior::EndlessBody]).await;
    let cx = Context::new(&server, allow_all()).await;
    cx.failed_run("nightly").await;
    let started = Instant::now();
    cx.outbox.drain().await.unwrap();
    assert!(started.elapsed() < Duration::from_secs(4));
    assert_eq!(cx.counted("RunFailed", "delivered"), 1);
}

#[tokio::test]
async fn a_receiver_that_does_not_answer_costs_5_seconds() {
    let server = ReceiverServer::start(&[Behavior::Silent]).await;
    let cx = Context::new(&server, allow_all()).await;
    cx.failed_run("one").await;
    cx.failed_run("two").await;
    let started = Instant::now();
    cx.outbox.drain().await.unwrap();
    let took = started.elapsed();
    assert!((Duration::from_secs(5)..Duration::from_secs(9)).contains(&took), "both at once: {took:?}");
    assert_eq!(cx.counted("RunFailed", "failed"), 2);
}

#[tokio::test]
async fn nothing_is_sent_to_a_refused_address() {
    let server = ReceiverServer::start(&[Behavior::Answer("200 OK")]).await;
    let cx = Context::new(&server, Box::new(|address| refusal(address, &[]))).await;
    let sender = &cx.outbox.receiver.as_ref().unwrap().sender;
    let refused = sender.send(RunId::nil(), 1, "{}".into()).await;
    assert!(
        matches!(refused, Err(SendError::Refused { address, .. }) if address.is_loopback()),
        "{refused:?}"
    );
    assert!(server.received().is_empty());
}

#[tokio::test]
async fn nothing_is_sent_to_a_server_whose_certificate_is_not_trusted() {
    let server = ReceiverServer::start(&[Behavior::Answer("200 OK")]).await;
    let other = ReceiverServer::start(&[Behavior::Answer("200 OK")]).await;
    let mut roots = RootCertStore::empty();
    roots.add(other.certificate.clone()).unwrap();
    let cx = Context::with_roots(&server, roots, allow_all()).await;
    cx.failed_run("nightly").await;
    cx.outbox.drain().await.unwrap();
    assert!(server.received().is_empty());
    assert_eq!(cx.counted("RunFailed", "failed"), 1);
}

#[tokio::test]
async fn a_kind_that_nobody_wants_is_deleted() {
    let server = ReceiverServer::start(&[Behavior::Answer("200 OK")]).await;
    let mut cx = Context::new(&server, allow_all()).await;
    cx.outbox.receiver.as_mut().unwrap().kinds = vec![NotificationKind::RunHeld];
    let run = create_run(&*cx.outbox.store, "held").await;
    let hold = HoldNotice { key: "LimitReached, epoch 1".into(), attempt: 1 };
    cx.outbox.store.announce(run, &hold).await.unwrap();
    cx.failed_run("failed").await;
    cx.outbox.drain().await.unwrap();
    let [request] = &server.received()[..] else { panic!("{:?}", server.received()) };
    assert!(request.body.contains("dev.dalsegno.run.held") && !request.body.contains("LimitReached"));
    assert_eq!((cx.waiting().await, cx.counted("RunFailed", "unwanted")), (0, 1));
}

#[tokio::test]
async fn without_a_receiver_notifications_are_deleted() {
    let server = ReceiverServer::start(&[Behavior::Answer("200 OK")]).await;
    let mut cx = Context::new(&server, allow_all()).await;
    cx.outbox.receiver = None;
    cx.failed_run("nightly").await;
    cx.outbox.drain().await.unwrap();
    assert_eq!((cx.waiting().await, server.received().len()), (0, 0));
}

#[tokio::test]
async fn a_hold_of_an_object_without_a_run_is_delivered() {
    let server = ReceiverServer::start(&[Behavior::Answer("204 No Content")]).await;
    let cx = Context::new(&server, allow_all()).await;
    let object = ObjectName { namespace: "shop".into(), name: "nightly".into(), uid: "0a1b".into() };
    let hold = ObjectHold { object, key: "StoreChanged".into() };
    cx.outbox.store.announce_object(&hold).await.unwrap();
    cx.outbox.drain().await.unwrap();
    let [request] = &server.received()[..] else { panic!("{:?}", server.received()) };
    let event: Value = serde_json::from_str(&request.body).unwrap();
    assert_eq!((&event["subject"], &event["data"]["uid"]), (&"shop/nightly".into(), &"0a1b".into()));
    assert_eq!((cx.waiting().await, cx.counted("RunHeld", "delivered")), (0, 1));
}

#[tokio::test]
async fn a_look_empties_an_outbox_of_more_than_a_batch() {
    let server = ReceiverServer::start(&[Behavior::Answer("200 OK")]).await;
    let mut cx = Context::new(&server, allow_all()).await;
    cx.outbox.receiver = None;
    for number in 0..200 {
        cx.failed_run(&format!("run-{number}")).await;
    }
    assert_eq!(cx.waiting().await, 200);
    cx.outbox.drain().await.unwrap();
    assert_eq!((cx.waiting().await, cx.counted("RunFailed", "unwanted")), (0, 200));
}

#[tokio::test]
async fn a_receiver_that_takes_nothing_is_tried_with_one_batch() {
    let server = ReceiverServer::start(&[Behavior::Answer("500 Oops")]).await;
    let cx = Context::new(&server, allow_all()).await;
    for number in 0..=BATCH {
        cx.failed_run(&format!("run-{number}")).await;
    }
    cx.outbox.drain().await.unwrap();
    assert_eq!(server.received().len(), BATCH as usize);
}

#[tokio::test]
async fn a_notification_is_given_up_three_days_after_its_fact() {
    let server = ReceiverServer::start(&[Behavior::Answer("410 Gone")]).await;
    let cx = Context::new(&server, allow_all()).await;
    let now = Timestamp::now();
    let notification = |hours| Notification {
        id: RunId::now_v7(),
        run: None,
        namespace: "shop".into(),
        name: "nightly".into(),
        object_uid: "uid".into(),
        kind: NotificationKind::LimitNear,
        detail: NotificationDetail::default(),
        created_at: now - SignedDuration::from_hours(hours),
        tries: 40,
    };
    let retry = cx.outbox.attempt(&notification(71), RunId::nil(), now).await;
    assert_eq!(retry, (NotificationOutcome::Failed, NotificationResult::Retry { after_ms: 3_600_000 }));
    let given_up = cx.outbox.attempt(&notification(72), RunId::nil(), now).await;
    assert_eq!(given_up, (NotificationOutcome::GivenUp, NotificationResult::Done));
}

#[test]
fn the_pause_doubles_from_a_second_to_an_hour() {
    let pauses: Vec<_> = [0, 1, 2, 11, 12, 1_000].map(pause_ms).into();
    assert_eq!(pauses, [1_000, 2_000, 4_000, 2_048_000, 3_600_000, 3_600_000]);
}
