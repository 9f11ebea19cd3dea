//! The certificate from nothing through a change of the CA, at an API server that keeps what is written, and whose answers
//! can be lost.

#![allow(clippy::unwrap_used, reason = "a panic fails the test")]

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Mutex;

use axum::http::{Method, Request, Response};
use dalsegno_store::sqlite::Sqlite;
use futures::stream;
use k8s_openapi::api::core::v1::Secret;
use kube::Client;
use kube::client::Body;
use kube::runtime::watcher;
use serde_json::{Value, json};

use super::*;
use crate::cache::pods;
use crate::certificates::objects;
use crate::test_context::{TestContext, render_metrics};

/// The objects by the path of their URL, and how many writes there were.
#[derive(Default)]
struct ApiServer {
    objects: BTreeMap<String, Value>,
    writes: u64,
    /// The answer to the write with this number is lost; the write is done.
    lost_answer: Option<u64>,
}

impl ApiServer {
    /// The status and the body of an answer.
    fn respond(&mut self, method: &Method, path: &str, body: &Value) -> (u16, Value) {
        if path.contains("/events") {
            return (201, body.clone());
        }
        if method == Method::GET {
            return self.objects.get(path).map_or_else(|| problem(404, "NotFound"), |it| (200, it.clone()));
        }
        let name = body["metadata"]["name"].as_str().unwrap_or_default();
        let path = if method == Method::POST { format!("{path}/{name}") } else { path.to_owned() };
        let found = self.objects.get(&path);
        let is_current =
            found.is_some_and(|it| it["metadata"]["resourceVersion"] == body["metadata"]["resourceVersion"]);
        match *method {
            Method::POST if found.is_some() => return problem(409, "AlreadyExists"),
            Method::PUT if !is_current => return problem(409, "Conflict"),
            _ => {}
        }
        self.writes += 1;
        let mut written = if method == Method::PATCH { merged(found, body) } else { body.clone() };
        written["metadata"]["resourceVersion"] = self.writes.to_string().into();
        self.objects.insert(path, written.clone());
        if self.lost_answer == Some(self.writes) { problem(500, "InternalError") } else { (200, written) }
    }

    fn secret(&self, name: &str) -> Secret {
        serde_json::from_value(self.objects[&format!("{SECRETS}/{name}")].clone()).unwrap()
    }

    /// The ids of the CAs in a bundle, of the CA of the served certificate, and of the CA's Secret.
    fn ids(&self) -> [Vec<String>; 3] {
        let map = &self.objects["/api/v1/namespaces/ns/configmaps/dalsegno-ca"];
        let pem = map["data"]["ca.crt"].as_str().unwrap();
        let served = objects::content(&self.secret("dalsegno-tls")).unwrap().authorities;
        let ca = self.secret("dalsegno-ca").data.unwrap();
        let ids = |pem: &[u8]| by_id(pem).unwrap().into_keys().collect::<Vec<_>>();
        [ids(pem.as_bytes()), ids(served.as_bytes()), ids(&ca["ca.crt"].0)]
    }
}

const SECRETS: &str = "/api/v1/namespaces/ns/secrets";

fn problem(code: u16, reason: &str) -> (u16, Value) {
    (code, json!({ "kind": "Status", "status": "Failure", "reason": reason, "code": code }))
}

fn merged(found: Option<&Value>, patch: &Value) -> Value {
    let mut object = found.cloned().unwrap_or_default();
    for (key, value) in patch["metadata"]["annotations"].as_object().into_iter().flatten() {
        object["metadata"]["annotations"][key] = value.clone();
    }
    object
}

/// The task, its API server, and a pod of a worker.
struct Fixture {
    server: Arc<Mutex<ApiServer>>,
    certificates: Certificates,
}

impl Fixture {
    async fn new(tls: TlsArgs) -> Self {
        let server = Arc::new(Mutex::new(ApiServer::default()));
        let store = Arc::new(Sqlite::memory().await.unwrap());
        let mut ctx = TestContext::new(store, vec![]).ctx;
        Arc::get_mut(&mut ctx).unwrap().client = client(server.clone());
        Self { server, certificates: Certificates::new(ctx, tls, "ns") }
    }

    /// The operator ends, and another one begins with what the API server has.
    fn restart(&mut self) {
        let Certificates { ctx, tls, .. } = &self.certificates;
        self.certificates = Certificates::new(ctx.clone(), tls.clone(), "ns");
    }

    /// The watch shows this pod.
    async fn show(&self, pod: Value) {
        let pod: Pod = serde_json::from_value(pod).unwrap();
        let events = stream::iter([Ok(watcher::Event::Apply(pod))]);
        pods::watch(self.certificates.ctx.pods.clone(), events).collect::<Vec<_>>().await;
    }

    fn writes(&self) -> u64 {
        self.server.lock().unwrap().writes
    }

    fn has_certificate(&self) -> bool {
        self.server.lock().unwrap().objects.contains_key(&format!("{SECRETS}/dalsegno-tls"))
    }

    /// One round, after which the watch shows the pods. Returns the pause after it.
    async fn round(&mut self) -> Duration {
        let pause = self.certificates.round().await.unwrap();
        let pods: Vec<Value> = {
            let server = self.server.lock().unwrap();
            server
                .objects
                .iter()
                .filter(|(path, _)| path.contains("/pods/"))
                .map(|(_, it)| it.clone())
                .collect()
        };
        for pod in pods {
            self.show(pod).await;
        }
        // The deadlines of these tests are milliseconds.
        tokio::time::sleep(Duration::from_millis(5)).await;
        pause
    }

    /// Rounds until nothing is due.
    async fn settle(&mut self) {
        for _ in 0..40 {
            if self.round().await == LONGEST_PAUSE {
                return;
            }
        }
        panic!("there is always something to do");
    }

    fn annotate(&self, path: &str, key: &str) {
        self.server.lock().unwrap().objects.get_mut(path).unwrap()["metadata"]["annotations"][key] =
            "now".into();
    }
}

fn client(server: Arc<Mutex<ApiServer>>) -> Client {
    let service = tower::service_fn(move |request: Request<Body>| {
        let server = server.clone();
        async move {
            let (head, body) = request.into_parts();
            let body = serde_json::from_slice(&body.collect_bytes().await.unwrap()).unwrap_or(Value::Null);
            let (code, answer) = server.lock().unwrap().respond(&head.method, head.uri.path(), &body);
            let answer = Body::from(answer.to_string().into_bytes());
            Ok::<_, Infallible>(Response::builder().status(code).body(answer).unwrap())
        }
    });
    Client::new(service, "ns")
}

/// TLS with a CA of the operator, whose deadlines are milliseconds.
fn tls() -> TlsArgs {
    let short = Duration::from_millis(1);
    TlsArgs { gateway_tls: TlsMode::Operator, ca_settle: short, ca_keep: short, ..TlsArgs::off() }
}

fn pod(authorities: &[String]) -> Value {
    let labels = json!({ names::LABEL_RUN: "nightly", names::LABEL_RUN_UID: "run-1" });
    let annotations = json!({ names::ANNOTATION_CA_IDS: authorities.join(",") });
    let metadata = json!({
        "name": "nightly-1", "namespace": "shop", "uid": "pod-1", "labels": labels, "annotations": annotations,
    });
    json!({ "apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": { "containers": [] } })
}

const POD: &str = "/api/v1/namespaces/shop/pods/nightly-1";

/// Makes the first certificate, starts a worker, and asks for another CA.
async fn begin_rotation(fixture: &mut Fixture) -> String {
    fixture.settle().await;
    let [bundle, served, ca] = fixture.server.lock().unwrap().ids();
    assert!(bundle == served && served == ca && ca.len() == 1, "{bundle:?} {served:?} {ca:?}");
    let address = fixture.certificates.ctx.gateway.address();
    assert_eq!(address.ca.unwrap().ids, ca[0], "a worker that is started now trusts it");
    let pod = pod(&ca);
    fixture.show(pod.clone()).await;
    fixture.server.lock().unwrap().objects.insert(POD.to_owned(), pod);
    fixture.annotate(&format!("{SECRETS}/dalsegno-ca"), "dalsegno.dev/rotate");
    ca[0].clone()
}

/// The certificate is of another CA, and the worker trusts that one alone.
fn assert_rotated(fixture: &Fixture, old: &str) {
    let server = fixture.server.lock().unwrap();
    let [bundle, served, ca] = server.ids();
    assert!(
        bundle == served && served == ca && ca.len() == 1 && ca[0] != old,
        "{bundle:?} {served:?} {ca:?}"
    );
    let annotations = &server.objects[POD]["metadata"]["annotations"];
    assert_eq!(annotations[names::ANNOTATION_CA_IDS], ca[0].as_str());
    assert!(annotations[names::ANNOTATION_CA_SINCE].is_string());
    let pem = annotations[names::ANNOTATION_CA].as_str().unwrap();
    assert_eq!(by_id(pem.as_bytes()).unwrap().into_keys().collect::<Vec<_>>(), ca);
    let secret = server.secret("dalsegno-ca");
    assert!(!secret.data.unwrap().contains_key("previous.key"), "the old key is deleted");
    assert!(secret.metadata.annotations.unwrap_or_default().is_empty(), "the request is done");
    assert_eq!(objects::plain_open(&server.secret("dalsegno-tls")), Some(false));
}

#[tokio::test]
async fn a_ca_is_made_and_replaced_under_a_live_pod() {
    let mut fixture = Fixture::new(tls()).await;
    let old = begin_rotation(&mut fixture).await;
    fixture.settle().await;
    assert_rotated(&fixture, &old);
    let metrics = render_metrics(&fixture.certificates.ctx.metrics);
    for line in
        ["operator_ca_waiting_pods 0", "operator_plain_workers 0", "operator_ca_expiry_timestamp_seconds "]
    {
        assert!(metrics.contains(line), "{line} is missing in {metrics}");
    }
}

#[tokio::test]
async fn a_crash_after_any_write_goes_on_with_the_next_operator() {
    for lost_answer in 1.. {
        let mut fixture = Fixture::new(tls()).await;
        fixture.server.lock().unwrap().lost_answer = Some(lost_answer);
        // The operator that loses the answer ends before its next look.
        while fixture.writes() < lost_answer && !fixture.has_certificate() {
            fixture.certificates.round().await.unwrap();
        }
        fixture.restart();
        let old = begin_rotation(&mut fixture).await;
        while fixture.writes() < lost_answer {
            let writes = fixture.writes();
            let pause = fixture.round().await;
            if fixture.writes() == writes && pause == LONGEST_PAUSE {
                assert_rotated(&fixture, &old);
                assert!(lost_answer > 10, "only {lost_answer} writes");
                return;
            }
        }
        fixture.restart();
        fixture.settle().await;
        assert_rotated(&fixture, &old);
    }
}

#[tokio::test]
async fn a_certificate_of_ones_own_is_copied_and_a_worker_without_tls_keeps_the_old_port_open() {
    let tls = TlsArgs { gateway_tls: TlsMode::Secret, gateway_tls_secret: Some("own".into()), ..tls() };
    let mut fixture = Fixture::new(tls).await;
    let now = Timestamp::now();
    let ca = issue::authority(now, jiff::SignedDuration::from_hours(24)).unwrap();
    let leaf = issue::leaf(&ca, &["gateway".into()], now, jiff::SignedDuration::from_hours(1)).unwrap();
    let mut old = pod(&[]);
    old["metadata"]["annotations"] = json!({});
    fixture.show(old).await;
    let data = |text: &str| json!(k8s_openapi::ByteString(text.as_bytes().to_vec()));
    let own = json!({
        "metadata": { "name": "own", "resourceVersion": "1" }, "type": "kubernetes.io/tls",
        "data": { "tls.crt": data(&leaf.certificate), "tls.key": data(&leaf.key), "ca.crt": data(&ca.certificate) },
    });
    fixture.server.lock().unwrap().objects.insert(format!("{SECRETS}/own"), own);
    fixture.settle().await;
    let server = fixture.server.lock().unwrap();
    let served = server.secret("dalsegno-tls");
    assert_eq!(objects::content(&served).unwrap().keyed.certificate, leaf.certificate);
    assert_eq!(objects::plain_open(&served), Some(true));
    assert!(!server.objects.contains_key(&format!("{SECRETS}/dalsegno-ca")), "no CA of the operator's own");
    assert!(render_metrics(&fixture.certificates.ctx.metrics).contains("operator_plain_workers 1"));
}
