//! The context of unit tests: a fake API server, stores, and runs in them.
#![allow(clippy::unwrap_used, reason = "a panic fails the test")]

use std::convert::Infallible;
use std::future::pending;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::http::{Method, Request, Response};
use dalsegno_core::CliLocation;
use dalsegno_model::{
    Attached, Commit, Committed, Created, Deadlines, Identity, NewRun, OnPrior, PodRecord, RunId, Store,
    Verdict,
};
use dalsegno_protocol::{Boundary, Usage};
use kube::Client;
use kube::client::Body;
use kube::runtime::events::Reporter;
use kube::runtime::reflector;
use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;
use serde_json::{Value, json};
use sqlx::{Connection as _, SqliteConnection};
use tempfile::TempDir;

use crate::cache::raw_object::RawDefinition;
use crate::certificates::bundle::GatewayTrust;
use crate::controller::context::Context;
use crate::controller::failpoint::Failpoint;
use crate::controller::policies::Policies;
use crate::kube_client::with_timeout;
use crate::metrics::Metrics;

/// Timeout of its responses.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(1);

/// Requests to the API server, in order: method, path and body.
pub type Requests = Arc<Mutex<Vec<(Method, String, Value)>>>;

/// A fault of the API server: requests with this method and this end of their path get this status code, or no response.
pub type Fault = Arc<Mutex<Option<(Method, &'static str, Option<u16>)>>>;

/// The context of reconciles, with a fake API server.
pub struct TestContext {
    pub ctx: Arc<Context>,
    /// The requests to the API server.
    pub requests: Requests,
}

impl TestContext {
    /// With this store, and an API server that has these objects.
    pub fn new(store: Arc<dyn Store>, objects: Vec<Value>) -> Self {
        Self::with_fault(store, objects, Fault::default())
    }

    /// With this store, and an API server that has these objects and may have a fault.
    pub fn with_fault(store: Arc<dyn Store>, objects: Vec<Value>, fault: Fault) -> Self {
        let requests = Requests::default();
        let client = with_timeout(api_server(objects, fault, requests.clone()), RESPONSE_TIMEOUT);
        let (definitions, _) = reflector::store::<RawDefinition>();
        let (queue, _) = tokio::sync::mpsc::unbounded_channel();
        let ctx = Context {
            snapshot_every: None,
            reporter: Reporter { controller: "test".into(), instance: None },
            store,
            gateway: GatewayTrust::new("http://gateway"),
            cli: CliLocation::Pod { namespace: "dalsegno-system".into() },
            pods: Default::default(),
            nodes: Default::default(),
            definitions,
            approvals: Default::default(),
            policies: Policies::new(Vec::new()),
            invalid_objects: Default::default(),
            api: Default::default(),
            refusals: Default::default(),
            quotas: Default::default(),
            run_queues: Default::default(),
            heads: Default::default(),
            state_reads: dalsegno_gateway::StateReadBudget::new(0),
            failures: Default::default(),
            write_conflicts: Default::default(),
            panics: Default::default(),
            queue_health: Default::default(),
            queue,
            metrics: Metrics::default(),
            failpoint: Failpoint::default(),
            client,
        };
        Self { ctx: Arc::new(ctx), requests }
    }
}

/// A client of an API server that has a few objects, accepts every write, and records its requests.
fn api_server(objects: Vec<Value>, fault: Fault, requests: Requests) -> Client {
    let service = tower::service_fn(move |request: Request<Body>| {
        let (requests, objects) = (requests.clone(), objects.clone());
        let fault = fault.lock().unwrap().clone();
        async move {
            let (head, body) = request.into_parts();
            let body = body.collect_bytes().await.unwrap();
            let body = serde_json::from_slice(&body).unwrap_or(Value::Null);
            let mut response = respond(&head.method, head.uri.path(), &body, &objects);
            let is_strict = head.uri.query().is_some_and(|it| it.contains("fieldValidation=Strict"));
            if head.method == Method::POST && head.uri.path().ends_with("/pods") && !is_strict {
                response = json!({ "kind": "Status", "status": "Failure", "code": 400, "reason": "BadRequest",
                                   "message": "unknown fields of a pod would be dropped" });
            }
            if let Some((method, end, code)) = fault
                && method == head.method
                && head.uri.path().ends_with(end)
            {
                let Some(code) = code else { return pending().await };
                // kube tells these errors apart by the reason alone.
                let reason = match code {
                    404 => "NotFound",
                    409 => "Conflict",
                    _ => "",
                };
                response = json!({ "kind": "Status", "status": "Failure", "message": "it is broken", "code": code,
                                   "reason": reason });
            }
            requests.lock().unwrap().push((head.method, head.uri.path().to_owned(), body));
            let code = response["code"].as_u64().map_or(200, |code| code.try_into().unwrap());
            let body = Body::from(response.to_string().into_bytes());
            Ok::<_, Infallible>(Response::builder().status(code).body(body).unwrap())
        }
    });
    Client::new(service, "shop")
}

/// A read returns the object, or NotFound. A write returns what was written, with a UID. If the objects contain a `Status`,
/// it is the response to every creation of the kind in its details. A pod whose name another pod has is not created.
fn respond(method: &Method, path: &str, body: &Value, objects: &[Value]) -> Value {
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
    let has_name = |it: &&Value| it["kind"] == "Pod" && it["metadata"]["name"] == body["metadata"]["name"];
    if method == Method::POST && last == Some("pods") && objects.iter().any(|it| has_name(&it)) {
        return json!({ "kind": "Status", "status": "Failure", "reason": "AlreadyExists", "code": 409,
                       "message": "it exists" });
    }
    let mut written = if body.is_object() { body.clone() } else { json!({}) };
    if written["metadata"]["uid"].is_null() {
        written["metadata"]["uid"] = format!("uid of {}", written["metadata"]["name"]).into();
    }
    written
}

/// The response of an API server that has one Lease once it is created, and accepts every write to it.
pub async fn lease_response(lease: &Mutex<Value>, request: Request<Body>) -> Response<Body> {
    let (head, body) = request.into_parts();
    let body = serde_json::from_slice(&body.collect_bytes().await.unwrap()).unwrap_or(Value::Null);
    let mut lease = lease.lock().unwrap();
    if head.method == Method::POST {
        *lease = body;
    } else if let Some(spec) = body["spec"].as_object().filter(|_| !lease.is_null()) {
        spec.iter().for_each(|(field, value)| lease["spec"][field] = value.clone());
    }
    let absent = json!({ "kind": "Status", "status": "Failure", "reason": "NotFound", "code": 404 });
    let (code, response) = if lease.is_null() { (404, &absent) } else { (200, &*lease) };
    Response::builder().status(code).body(Body::from(response.to_string().into_bytes())).unwrap()
}

/// A store in a file, on a disk that can be full: then it can be read, and no attempt can be reserved.
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

    pub async fn free_space(&self) {
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

/// Creates a run. Its first attempt is reserved; the UID of its AgentRun is its name.
pub async fn create_run(store: &dyn Store, name: &str) -> RunId {
    let new = NewRun {
        id: RunId::now_v7(),
        tenant: "tenant-1".into(),
        namespace: "shop".into(),
        name: name.into(),
        object_uid: name.into(),
        reset_generation: 0,
        rewind_generation: 0,
        is_fork: false,
        is_external: false,
        deadlines: Deadlines {
            heartbeat_ms: 60_000,
            start_ms: 60_000,
            progress_ms: 60_000,
            suspend_ms: 60_000,
        },
        on_prior: OnPrior::Ignore,
    };
    let Created::Run(run) = store.create_run(&new).await.unwrap() else { panic!("the name {name} is taken") };
    run.id
}

/// Creates a run whose worker has committed so many turns.
pub async fn create_worked_run(store: &dyn Store, name: &str, turns: i32) -> RunId {
    let run = create_run(store, name).await;
    let digest = format!("sha256:{}", "1".repeat(64));
    let verdict = Verdict::Accepted;
    let identity = Identity {
        in_registry: Some(true),
        image_digest: digest.clone(),
        agent_version: digest,
        verdict,
        remark: String::new(),
    };
    let pod_name = format!("{name}-1");
    let pod = PodRecord {
        uid: format!("pod of {name}"),
        name: pod_name,
        revision: "1".into(),
        identity: Some(identity),
    };
    store.record_pod(run, 1, &pod).await.unwrap();
    commit_turns(store, run, &pod.uid, turns).await;
    run
}

/// Attaches as the worker in the pod with this UID, and commits so many turns: each appends an item to one list.
pub async fn commit_turns(store: &dyn Store, run: RunId, pod: &str, turns: i32) {
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
            open_calls: Vec::new(),
            records: Vec::new(),
            inbox: Vec::new(),
            usage: Usage::default(),
            trigger: None,
            finish: None,
            park: None,
        };
        assert!(matches!(store.commit(&commit).await.unwrap(), Committed::Ok(_)));
    }
}

/// The operator's metrics as text.
pub fn render_metrics(metrics: &Metrics) -> String {
    let (mut registry, mut text) = (Registry::default(), String::new());
    metrics.register(&mut registry);
    encode(&mut text, &registry).unwrap();
    text
}
