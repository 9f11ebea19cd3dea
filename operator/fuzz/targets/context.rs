//! A gateway over an in-memory store, a run with an attached worker, and calls of that worker.

use std::cell::RefCell;
use std::sync::Arc;

use async_trait::async_trait;
use axum::body::{to_bytes, Body};
use axum::http::{Method, Request};
use dalsegno_gateway::{router, AuthError, Authenticator, Config, Gateway, PodIdentity};
use dalsegno_model::{Deadlines, Identity, NewRun, OnPrior, Operator as _, PodRecord, RunId, Verdict};
use dalsegno_store::sqlite::Sqlite;
use tokio::runtime::Runtime;
use tower::ServiceExt;
use uuid::Uuid;

const INSTANCE: &str = "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA";

pub struct Context {
    runtime: Runtime,
    store: Arc<Sqlite>,
    gateway: Gateway,
    run: RunId,
}

thread_local!(static CONTEXT: RefCell<Option<Context>> = const { RefCell::new(None) });

/// Runs `work` in the context of this thread; `prepare` runs first if the context is new.
pub fn inside(prepare: fn(&Context), work: impl FnOnce(&mut Context)) {
    CONTEXT.with_borrow_mut(|slot| {
        work(slot.get_or_insert_with(|| {
            let cx = Context::new();
            prepare(&cx);
            cx
        }));
    });
}

impl Context {
    fn new() -> Self {
        let runtime = Runtime::new().unwrap();
        let store = Arc::new(runtime.block_on(Sqlite::memory()).unwrap());
        let gateway = {
            let _guard = runtime.enter();
            Gateway::new(store.clone(), Arc::new(AcceptAll), Config::default())
        };
        let mut cx = Self { runtime, store, gateway, run: Uuid::nil() };
        cx.begin();
        cx
    }

    /// Starts a new run with an attached worker.
    pub fn begin(&mut self) {
        self.run = Uuid::now_v7();
        let new = NewRun {
            id: self.run,
            tenant: "tenant".into(),
            namespace: "agents".into(),
            name: self.run.to_string(),
            object_uid: self.run.to_string(),
            reset_generation: 0,
            rewind_generation: 0,
            is_fork: false,
            is_external: false,
            deadlines: Deadlines { heartbeat_ms: 15_000, start_ms: 600_000, progress_ms: 1_800_000, suspend_ms: 300_000 },
            on_prior: OnPrior::Hold,
        };
        let identity = Identity {
            in_registry: Some(true),
            image_digest: "sha256:1".into(),
            agent_version: "v1".into(),
            verdict: Verdict::Accepted,
            remark: String::new(),
        };
        let pod = PodRecord {
            uid: self.run.to_string(),
            name: "pod".into(),
            revision: "r".into(),
            identity: Some(identity),
        };
        self.runtime.block_on(async {
            self.store.create_run(&new).await.unwrap();
            self.store.record_pod(self.run, 1, &pod).await.unwrap();
        });
        let body = format!(r#"{{"instance":"{INSTANCE}"}}"#);
        let token = self.run.to_string();
        let (status, text) = self.call_as(&token, Method::POST, "attach", body.as_bytes()).unwrap();
        assert_eq!(status, 200, "{text}");
    }

    /// Sends a call with a body. Returns the answer's status and text; `None` if the path is not a valid URI.
    pub fn post(&self, path: &str, body: &[u8]) -> Option<(u16, String)> {
        self.call_as(INSTANCE, Method::POST, path, body)
    }

    /// Sends a call without a body.
    #[allow(dead_code, reason = "not every target reads")]
    pub fn get(&self, path: &str) -> Option<(u16, String)> {
        self.call_as(INSTANCE, Method::GET, path, &[])
    }

    fn call_as(&self, bearer: &str, method: Method, path: &str, body: &[u8]) -> Option<(u16, String)> {
        let request = Request::builder()
            .method(method)
            .uri(format!("/v1/runs/{}/{path}", self.run))
            .header("authorization", format!("Bearer {bearer}"))
            .body(Body::from(body.to_vec()))
            .ok()?;
        self.runtime.block_on(async {
            let answer = router(self.gateway.clone()).oneshot(request).await.unwrap();
            let status = answer.status().as_u16();
            let bytes = to_bytes(answer.into_body(), usize::MAX).await.unwrap();
            Some((status, String::from_utf8(bytes.into()).unwrap()))
        })
    }
}

/// Accepts every token as that of the pod with this UID.
struct AcceptAll;

#[async_trait]
impl Authenticator for AcceptAll {
    async fn review(&self, token: &str) -> Result<PodIdentity, AuthError> {
        if token == INSTANCE {
            return Err(AuthError::Refused("it is a capability".into()));
        }
        Ok(PodIdentity {
            namespace: "agents".into(),
            pod_name: "pod".into(),
            pod_uid: token.into(),
            service_account: "default".into(),
        })
    }
}
