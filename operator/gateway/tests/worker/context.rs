//! The test context: a gateway, a real store (in memory unless given), a run with its first pod, and an authenticator.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use axum::body::{Body, to_bytes};
use axum::http::{HeaderMap, Request};
use dalsegno_gateway::{
    Access, AuthError, Authenticator, Config, Gateway, PodIdentity, RunName, User, Verb, router,
};
use dalsegno_model::{
    Cause, Class, Created, Deadlines, Ending, Identity, LookUp, NewRun, NextStep, OnPrior, Operator as _,
    PodRecord, Read as _, RunId, RunRecord, Store, Verdict,
};
use serde_json::{Value, json};
use tower::ServiceExt;
use uuid::Uuid;

use crate::faulty_store::FaultyStore;
use crate::observability::capture_log;

/// Instance of the first attempt's worker.
pub const INSTANCE: &str = "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA";
/// Instance of the second attempt's worker.
pub const SECOND: &str = "BBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBB";

/// What a test needs.
pub struct TestContext {
    pub store: Arc<FaultyStore>,
    pub gateway: Gateway,
    pub run: RunId,
}

/// A response with its complete body.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub headers: HeaderMap,
    pub text: String,
}

impl Answer {
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|error| panic!("{error}: {}", self.text))
    }

    /// The code of a problem document. Asserts that the document and the headers are well-formed.
    pub fn code(&self) -> String {
        let problem = self.json();
        assert_eq!(self.headers["content-type"], "application/problem+json", "{problem}");
        assert_eq!(problem["type"], "about:blank");
        assert_eq!(problem["status"], self.status);
        assert!(problem["detail"].as_str().unwrap().len() > 20, "{problem}");
        let retry_after = self.headers.get("retry-after").map(|value| value.to_str().unwrap());
        let seconds = if problem["code"] == "STORAGE_FULL" { "5" } else { "1" };
        assert_eq!(retry_after, matches!(self.status, 429 | 503).then_some(seconds), "{problem}");
        problem["code"].as_str().unwrap().to_owned()
    }

    pub fn detail(&self) -> String {
        self.json()["detail"].as_str().unwrap().to_owned()
    }

    /// The JSON of a `200`.
    #[track_caller]
    pub fn ok(&self) -> Value {
        assert_eq!(self.status, 200, "{}", self.text);
        assert_eq!(self.headers["content-type"], "application/json");
        self.json()
    }
}

/// Short intervals and time-outs; but the store and request bodies may take as long as on a busy machine.
pub fn test_config() -> Config {
    let long = Duration::from_secs(20);
    Config {
        store_timeout: long,
        pod_record_timeout: Duration::from_millis(150),
        version_verdict_timeout: Duration::from_millis(250),
        poll_interval: Duration::from_millis(10),
        body_read_timeout: long,
        gateway_heartbeat_interval: Duration::from_millis(20),
        shutdown_timeout: Duration::from_secs(2),
        stream_poll_interval: Duration::from_millis(10),
        stream_keepalive_interval: Duration::from_millis(50),
        reauthorize_interval: Duration::ZERO,
        refused_review_pause: Duration::from_millis(10),
        ..Config::default()
    }
}

/// Short time-outs for the store and for request bodies.
pub fn short_timeouts() -> Config {
    let soon = Duration::from_millis(300);
    Config { store_timeout: soon, body_read_timeout: soon, ..test_config() }
}

/// Long time-outs for the store and for request bodies, for tests with many bytes.
pub fn long_timeouts() -> Config {
    let long = Duration::from_secs(60);
    Config { store_timeout: long, body_read_timeout: long, ..Config::default() }
}

/// An attach waits for the operator longer than any test takes.
pub fn long_attach_timeouts() -> Config {
    Config {
        pod_record_timeout: Duration::from_secs(60),
        version_verdict_timeout: Duration::from_secs(60),
        ..test_config()
    }
}

impl TestContext {
    /// A run whose first pod, `pod-1`, is recorded and accepted.
    pub async fn new() -> Self {
        let ctx = Self::reserved(test_config()).await;
        ctx.record_pod(1, "pod-1", Some(accepted())).await;
        ctx
    }

    /// A run whose first attempt has no pod yet.
    pub async fn reserved(config: Config) -> Self {
        let sqlite = dalsegno_store::sqlite::Sqlite::memory().await.unwrap();
        Self::with_store(Arc::new(sqlite), config).await
    }

    /// As [`Self::reserved`], in this store.
    pub async fn with_store(store: Arc<dyn Store>, config: Config) -> Self {
        capture_log();
        let store = Arc::new(FaultyStore::new(store));
        let gateway = Gateway::new(store.clone(), Arc::new(TestAuthenticator), config);
        let run = create(&*store, "nightly").await;
        Self { store, gateway, run }
    }

    /// The same run behind a new gateway with this configuration.
    pub fn with_config(self, config: Config) -> Self {
        let gateway = Gateway::new(self.store.clone(), Arc::new(TestAuthenticator), config);
        Self { gateway, ..self }
    }

    /// The same run behind a second gateway of the same store.
    pub fn second_gateway(&self, config: Config) -> Self {
        Self { store: self.store.clone(), gateway: self.gateway.clone(), run: self.run }.with_config(config)
    }

    pub async fn record_pod(&self, attempt: i32, uid: &str, identity: Option<Identity>) {
        let (name, revision) = (format!("nightly-{attempt}"), "rev-1".to_owned());
        let pod = PodRecord { uid: uid.into(), name, revision, identity };
        self.store.record_pod(self.run, attempt, &pod).await.unwrap();
    }

    /// Ends this attempt as the operator does for a lost pod; the next attempt has the pod `pod-<attempt + 1>`.
    pub async fn lose_pod(&self, attempt: i32) {
        self.reserve_next(attempt).await;
        let next = attempt + 1;
        self.record_pod(next, &format!("pod-{next}"), Some(accepted())).await;
    }

    pub async fn reserve_next(&self, attempt: i32) {
        let (cause, message) = (Cause::Deleted, "deleted".into());
        let ending = Ending { attempt, cause, class: Class::Disruption, exit_code: None, message, ran: None };
        self.store.end_attempt(self.run, &ending, &NextStep::Reserve).await.unwrap();
    }

    pub async fn record(&self) -> RunRecord {
        match self.store.find_by_object("uid-nightly").await.unwrap() {
            LookUp::Found(record) => *record,
            LookUp::NotFound { .. } => panic!("the run is there"),
        }
    }

    /// `POST attach` of this pod.
    pub async fn attach(&self, pod: &str, instance: &str) -> Answer {
        self.post_as(&format!("token-of-{pod}"), "attach", json!({ "instance": instance }).to_string()).await
    }

    /// A run whose first worker has attached.
    pub async fn attached() -> Self {
        let ctx = Self::new().await;
        ctx.attach("pod-1", INSTANCE).await.ok();
        ctx
    }

    /// A run of another namespace behind the same gateway; its worker has attached with this instance.
    pub async fn other_run(&self, namespace: &str, instance: &str) -> Self {
        let run = create_in(&*self.store, namespace, "nightly").await;
        let ctx = Self { store: self.store.clone(), gateway: self.gateway.clone(), run };
        ctx.record_pod(1, &format!("pod-of-{namespace}"), Some(accepted())).await;
        let token = format!("token-of-pod-of-{namespace}-in-{namespace}");
        ctx.post_as(&token, "attach", json!({ "instance": instance }).to_string()).await.ok();
        ctx
    }

    /// The run's row in the store, without the fields that change with time alone.
    pub async fn stored_run(&self) -> Value {
        let mut record = serde_json::to_value(self.store.get_run(self.run).await.unwrap().unwrap()).unwrap();
        for time in ["now", "beat"] {
            record.as_object_mut().unwrap().remove(time);
        }
        record
    }

    /// `POST` by the first attempt's worker.
    pub async fn post(&self, path: &str, body: impl Into<Body>) -> Answer {
        self.post_as(INSTANCE, path, body).await
    }

    pub async fn post_as(&self, bearer: &str, path: &str, body: impl Into<Body>) -> Answer {
        self.send(self.request("POST", path).header("authorization", format!("Bearer {bearer}")), body).await
    }

    pub async fn get(&self, path: &str) -> Answer {
        self.get_as(INSTANCE, path).await
    }

    pub async fn get_as(&self, bearer: &str, path: &str) -> Answer {
        self.send(self.request("GET", path).header("authorization", format!("Bearer {bearer}")), "").await
    }

    pub fn request(&self, method: &str, path: &str) -> axum::http::request::Builder {
        Request::builder().method(method).uri(format!("/v1/runs/{}/{path}", self.run))
    }

    pub async fn send(&self, request: axum::http::request::Builder, body: impl Into<Body>) -> Answer {
        let request = request.body(body.into()).unwrap();
        let (head, body) = router(self.gateway.clone()).oneshot(request).await.unwrap().into_parts();
        let bytes = to_bytes(body, usize::MAX).await.unwrap();
        let text = String::from_utf8(bytes.into()).unwrap();
        Answer { status: head.status.as_u16(), headers: head.headers, text }
    }
}

/// Creates the run `shop/<name>`.
pub async fn create(store: &dyn Store, name: &str) -> RunId {
    create_as(store, "shop", name, format!("uid-{name}")).await
}

/// Creates a run in this namespace.
pub async fn create_in(store: &dyn Store, namespace: &str, name: &str) -> RunId {
    create_as(store, namespace, name, format!("uid-{namespace}-{name}")).await
}

async fn create_as(store: &dyn Store, namespace: &str, name: &str, object_uid: String) -> RunId {
    let new = NewRun {
        id: Uuid::now_v7(),
        tenant: format!("uid-{namespace}"),
        namespace: namespace.into(),
        name: name.into(),
        object_uid,
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
    match store.create_run(&new).await.unwrap() {
        Created::Run(record) => record.id,
        Created::Prior(prior) => panic!("{prior:?}"),
    }
}

pub fn identity(verdict: Verdict, remark: &str) -> Identity {
    let digest = format!("sha256:{}", "1".repeat(64));
    Identity {
        in_registry: Some(true),
        image_digest: digest,
        agent_version: "1.0".into(),
        verdict,
        remark: remark.into(),
    }
}

pub fn accepted() -> Identity {
    identity(Verdict::Accepted, "")
}

/// The body of a commit with this state.
pub fn commit(id: u128, state: &str) -> String {
    format!(r#"{{"commitId":"{}","state":{state}}}"#, Uuid::from_u128(id))
}

/// Accepts `token-of-<pod UID>` for namespace `shop` and `token-of-<pod UID>-in-<namespace>`; and `ada`, a user who may
/// read and write the runs of `shop`; `bob`, who may write them only; and `pod-<UID>`, a user whose token is bound to a pod.
pub struct TestAuthenticator;

#[async_trait]
impl Authenticator for TestAuthenticator {
    async fn review(&self, token: &str) -> Result<PodIdentity, AuthError> {
        if token == "review-fails" {
            return Err(AuthError::Unavailable("the API server is unavailable".into()));
        }
        if token == "for-another-audience" {
            return Err(AuthError::Refused("its audience is https://kubernetes.default.svc".into()));
        }
        let Some(pod) = token.strip_prefix("token-of-") else {
            return Err(AuthError::Refused("it is not genuine".into()));
        };
        let (uid, namespace) = pod.split_once("-in-").unwrap_or((pod, "shop"));
        Ok(PodIdentity {
            namespace: namespace.into(),
            pod_name: "nightly-1".into(),
            pod_uid: uid.into(),
            service_account: "default".into(),
        })
    }

    async fn authorize(&self, token: &str, run: &RunName, access: Access) -> Result<User, AuthError> {
        let user = |name: &str, tenant: Option<&str>, pod: Option<&str>| {
            Ok(User { name: name.into(), tenant: tenant.map(Into::into), pod_uid: pod.map(Into::into) })
        };
        let of = |tenant| user("ada", tenant, None);
        match token {
            "ada" if run.namespace == "shop" => of(Some("uid-shop")),
            "bob" if access.verb == Verb::Create => user("bob", Some("uid-shop"), None),
            "bob" => Err(AuthError::Denied(format!("bob may not get agentruns/{}", access.document))),
            "ada-after-recreation" => of(Some("uid-later")),
            "ada-after-deletion" => of(None),
            "ada" => Err(AuthError::Denied(format!(
                "ada may not read what runs of {} have committed",
                run.namespace
            ))),
            "review-fails" => Err(AuthError::Unavailable("the API server is unavailable".into())),
            _ if token.starts_with("pod-") => {
                user("system:serviceaccount:shop:default", Some("uid-shop"), token.strip_prefix("pod-"))
            }
            _ => Err(AuthError::Refused("it is not genuine".into())),
        }
    }

    async fn namespace_uid(&self, namespace: &str) -> Result<Option<String>, AuthError> {
        match namespace {
            "shop" | "bank" => Ok(Some(format!("uid-{namespace}"))),
            "unreadable" => Err(AuthError::Unavailable("the API server is unavailable".into())),
            _ => Ok(None),
        }
    }
}
