//! A cluster for tests: an API server that has a few objects, takes whatever is written and notes what it was asked.
#![allow(clippy::unwrap_used, reason = "a case that cannot go on has failed")]

use std::convert::Infallible;
use std::future::pending;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::http::{Method, Request, Response};
use dalsegno_protocol::{Boundary, Usage};
use dalsegno_store::{
    Attached, Commit, Committed, Created, Deadlines, Identity, NewRun, OnPrior, PodRecord, RunId, Store,
    Verdict,
};
use kube::Client;
use kube::client::Body;
use kube::runtime::events::Reporter;
use kube::runtime::reflector;
use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;
use serde_json::{Value, json};
use sqlx::{Connection as _, SqliteConnection};
use tempfile::TempDir;

use crate::client::bounded;
use crate::context::Context;
use crate::crash::CrashPoint;
use crate::kept::Definition;
use crate::telemetry::Metrics;

/// How long its answers may take.
const PATIENCE: Duration = Duration::from_secs(1);

/// What was asked of the API server: method, path and body.
pub type Asked = Arc<Mutex<Vec<(Method, String, Value)>>>;

/// What is wrong with the API server: requests with this method and this end of their path get this status, or no answer.
pub type Fault = Arc<Mutex<Option<(Method, &'static str, Option<u16>)>>>;

/// With this store, and an API server that has these objects.
pub fn context(store: Arc<dyn Store>, objects: Vec<Value>) -> (Arc<Context>, Asked) {
    context_with(store, objects, Fault::default())
}

/// With this store, and an API server that has these objects and may have a fault.
pub fn context_with(store: Arc<dyn Store>, objects: Vec<Value>, fault: Fault) -> (Arc<Context>, Asked) {
    let asked = Asked::default();
    let seen = asked.clone();
    let service = tower::service_fn(move |request: Request<Body>| {
        let (seen, objects) = (seen.clone(), objects.clone());
        let fault = fault.lock().unwrap().clone();
        async move {
            let (head, body) = request.into_parts();
            let body = body.collect_bytes().await.unwrap();
            let body = serde_json::from_slice(&body).unwrap_or(Value::Null);
            let mut answer = answer(&head.method, head.uri.path(), &body, &objects);
            if let Some((method, end, code)) = fault
                && method == head.method
                && head.uri.path().ends_with(end)
            {
                let Some(code) = code else { return pending().await };
                // By its reason alone kube knows one from another.
                let reason = match code {
                    404 => "NotFound",
                    409 => "Conflict",
                    _ => "",
                };
                answer = json!({ "kind": "Status", "status": "Failure", "message": "it is broken", "code": code,
                                 "reason": reason });
            }
            seen.lock().unwrap().push((head.method, head.uri.path().to_owned(), body));
            let code = answer["code"].as_u64().map_or(200, |code| code.try_into().unwrap());
            let answer = Body::from(answer.to_string().into_bytes());
            Ok::<_, Infallible>(Response::builder().status(code).body(answer).unwrap())
        }
    });
    let client = bounded(Client::new(service, "shop"), PATIENCE);
    let (definitions, _) = reflector::store::<Definition>();
    let (wake, _) = tokio::sync::mpsc::unbounded_channel();
    let context = Context {
        reporter: Reporter { controller: "test".into(), instance: None },
        store,
        gateway_url: "http://gateway".into(),
        pods: Default::default(),
        nodes: Default::default(),
        definitions,
        unreadable: Default::default(),
        api: Default::default(),
        refusals: Default::default(),
        heads: Default::default(),
        resumes: Default::default(),
        failures: Default::default(),
        wake,
        metrics: Metrics::default(),
        crash: CrashPoint::default(),
        client,
    };
    (Arc::new(context), asked)
}

/// What is written is there as it was written, with a UID, and a patch made something; what is not among the objects is not
/// there. A refusal among them, a `Status`, is what is answered to whoever creates objects of the kind in its details.
fn answer(method: &Method, path: &str, body: &Value, objects: &[Value]) -> Value {
    let last = path.rsplit('/').next();
    if method == Method::GET {
        let found = objects.iter().find(|it| it["metadata"]["name"].as_str() == last);
        let not_found =
            || json!({ "kind": "Status", "status": "Failure", "reason": "NotFound", "code": 404 });
        return found.cloned().unwrap_or_else(not_found);
    }
    let refusal = objects.iter().find(|it| it["details"]["kind"].as_str() == last);
    if let Some(refusal) = refusal.filter(|_| method == Method::POST) {
        return refusal.clone();
    }
    let mut written = if body.is_object() { body.clone() } else { json!({}) };
    if written["metadata"]["uid"].is_null() {
        written["metadata"]["uid"] = format!("uid of {}", written["metadata"]["name"]).into();
    }
    written
}

/// What an API server answers that has this one Lease, once it is created, and takes whatever is written to it.
pub async fn lease(lease: &Mutex<Value>, request: Request<Body>) -> Response<Body> {
    let (head, body) = request.into_parts();
    let body = serde_json::from_slice(&body.collect_bytes().await.unwrap()).unwrap_or(Value::Null);
    let mut lease = lease.lock().unwrap();
    if head.method == Method::POST {
        *lease = body;
    } else if let Some(spec) = body["spec"].as_object().filter(|_| !lease.is_null()) {
        spec.iter().for_each(|(field, value)| lease["spec"][field] = value.clone());
    }
    let absent = json!({ "kind": "Status", "status": "Failure", "reason": "NotFound", "code": 404 });
    let (code, answer) = if lease.is_null() { (404, &absent) } else { (200, &*lease) };
    Response::builder().status(code).body(Body::from(answer.to_string().into_bytes())).unwrap()
}

/// A store in a file, on a disk that can be full: what is there is read, and no attempt is reserved.
pub struct Disk(TempDir);

impl Disk {
    pub fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    pub async fn store(&self) -> Arc<dyn Store> {
        dalsegno_store::migrate(&self.url()).await.unwrap();
        dalsegno_store::open(&self.url(), None).await.unwrap()
    }

    pub async fn fill(&self) {
        self.execute(
            "CREATE TRIGGER full BEFORE INSERT ON attempts \
             BEGIN SELECT RAISE(ABORT, 'full'); END",
        )
        .await;
    }

    pub async fn make_room(&self) {
        self.execute("DROP TRIGGER full").await;
    }

    pub async fn execute(&self, sql: &'static str) {
        let mut conn = SqliteConnection::connect(&self.url()).await.unwrap();
        sqlx::query(sql).execute(&mut conn).await.unwrap();
    }

    fn url(&self) -> String {
        format!("sqlite://{}", self.0.path().join("runs.db").display())
    }
}

/// A run whose first attempt is reserved, and whose object's UID is its name.
pub async fn begun(store: &dyn Store, name: &str) -> RunId {
    let new = NewRun {
        id: RunId::now_v7(),
        tenant: "tenant-1".into(),
        namespace: "shop".into(),
        name: name.into(),
        object_uid: name.into(),
        reset_generation: 0,
        deadlines: Deadlines { heartbeat_ms: 60_000, start_ms: 60_000, progress_ms: 60_000 },
        on_prior: OnPrior::Ignore,
    };
    let Created::Run(run) = store.create_run(&new).await.unwrap() else { panic!("{name} stands in the way") };
    run.id
}

/// A run of so many turns.
pub async fn worked(store: &dyn Store, name: &str, turns: i32) -> RunId {
    let run = begun(store, name).await;
    let digest = format!("sha256:{}", "1".repeat(64));
    let verdict = Verdict::Accepted;
    let identity =
        Identity { image_digest: digest.clone(), agent_version: digest, verdict, remark: String::new() };
    let pod_name = format!("{name}-1");
    let pod = PodRecord {
        uid: format!("pod of {name}"),
        name: pod_name,
        revision: "1".into(),
        identity: Some(identity),
    };
    store.record_pod(run, 1, &pod).await.unwrap();
    work(store, run, &pod.uid, turns).await;
    run
}

/// What a worker does in the pod with this UID: it attaches, and commits so many turns, each an item of one list.
pub async fn work(store: &dyn Store, run: RunId, pod: &str, turns: i32) {
    let capability = [1; 32];
    assert!(matches!(store.attach(run, pod, &capability).await.unwrap(), Attached::Ok(_)));
    for turn in 1..=turns {
        let commit = Commit {
            run,
            capability,
            turn,
            boundary: Boundary::Result,
            commit_id: RunId::now_v7(),
            digest: [2; 32],
            ops: Some(format!(r#"{{"append":{{"log":[{{"json":{turn}}}]}}}}"#).into()),
            full: false,
            size: 132,
            base: None,
            events: Vec::new(),
            calls: Vec::new(),
            records: Vec::new(),
            usage: Usage::default(),
            trigger: None,
            finish: None,
        };
        assert!(matches!(store.commit(&commit).await.unwrap(), Committed::Ok(_)));
    }
}

/// The operator's metrics, as they are served.
pub fn metrics(metrics: &Metrics) -> String {
    let (mut registry, mut text) = (Registry::default(), String::new());
    metrics.register(&mut registry);
    encode(&mut text, &registry).unwrap();
    text
}
