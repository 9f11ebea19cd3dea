//! A gateway over a store in memory, a run in it whose worker has attached, and calls of that worker.

use std::cell::RefCell;
use std::sync::Arc;

use async_trait::async_trait;
use axum::body::{to_bytes, Body};
use axum::http::{Method, Request};
use dalsegno_gateway::{router, AuthError, Authenticator, Config, Gateway, PodIdentity};
use dalsegno_store::sqlite::Sqlite;
use dalsegno_store::{
    Deadlines, Identity, NewRun, OnPrior, Operator as _, PodRecord, RunId, Verdict,
};
use tokio::runtime::Runtime;
use tower::ServiceExt;
use uuid::Uuid;

const INSTANCE: &str = "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA";

pub struct World {
    runtime: Runtime,
    store: Arc<Sqlite>,
    gateway: Gateway,
    run: RunId,
}

thread_local!(static WORLD: RefCell<Option<World>> = const { RefCell::new(None) });

/// In the one world of the process; `prepare` is asked when it is new.
pub fn inside(prepare: fn(&World), work: impl FnOnce(&mut World)) {
    WORLD.with_borrow_mut(|world| {
        work(world.get_or_insert_with(|| {
            let world = World::new();
            prepare(&world);
            world
        }));
    });
}

impl World {
    fn new() -> Self {
        let runtime = Runtime::new().unwrap();
        let store = Arc::new(runtime.block_on(Sqlite::memory()).unwrap());
        let gateway = {
            let _inside = runtime.enter();
            Gateway::new(store.clone(), Arc::new(Anybody), Config::default())
        };
        let mut world = Self { runtime, store, gateway, run: Uuid::nil() };
        world.begin();
        world
    }

    /// A run whose worker has attached.
    pub fn begin(&mut self) {
        self.run = Uuid::now_v7();
        let new = NewRun {
            id: self.run,
            tenant: "tenant".into(),
            namespace: "agents".into(),
            name: self.run.to_string(),
            object_uid: self.run.to_string(),
            reset_generation: 0,
            deadlines: Deadlines { heartbeat_ms: 15_000, start_ms: 600_000, progress_ms: 1_800_000 },
            on_prior: OnPrior::Hold,
        };
        let identity = Identity {
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

    /// A call with a body; the answer's status and text. Nothing where the path is none.
    pub fn post(&self, path: &str, body: &[u8]) -> Option<(u16, String)> {
        self.call_as(INSTANCE, Method::POST, path, body)
    }

    /// The same without a body.
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

/// Believes every token to be of the pod that it names.
struct Anybody;

#[async_trait]
impl Authenticator for Anybody {
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
