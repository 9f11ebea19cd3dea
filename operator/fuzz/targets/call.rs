//! A worker's call: the first line is its path below the run, the rest its body. Whatever comes, the answer is no defect of
//! ours.

#![no_main]

use std::cell::RefCell;
use std::sync::Arc;

use async_trait::async_trait;
use axum::body::{to_bytes, Body};
use axum::http::Request;
use dalsegno_gateway::{router, AuthError, Authenticator, Config, Gateway, PodIdentity};
use dalsegno_store::sqlite::Sqlite;
use dalsegno_store::{Deadlines, Identity, NewRun, OnPrior, PodRecord, RunId, Store, Verdict};
use libfuzzer_sys::fuzz_target;
use tokio::runtime::Runtime;
use tower::ServiceExt;
use uuid::Uuid;

const INSTANCE: &str = "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA";

struct World {
    runtime: Runtime,
    store: Arc<Sqlite>,
    gateway: Gateway,
    run: RunId,
}

thread_local!(static WORLD: RefCell<Option<World>> = const { RefCell::new(None) });

fuzz_target!(|data: &[u8]| {
    let Some(end) = data.iter().position(|byte| *byte == b'\n') else { return };
    let Ok(path) = std::str::from_utf8(&data[..end]) else { return };
    WORLD.with_borrow_mut(|world| {
        let world = world.get_or_insert_with(World::new);
        let Some((status, text)) = world.post(path, &data[end + 1..]) else { return };
        let answer: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert!(status < 500, "{status}: {text}");
        // Another run, once this one takes no more calls.
        if let Some("FINISHED" | "FENCED") = answer["code"].as_str() {
            world.begin();
        }
    });
});

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
    fn begin(&mut self) {
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
        let (status, text) = self.post_as(&token, "attach", body.as_bytes()).unwrap();
        assert_eq!(status, 200, "{text}");
    }

    fn post(&self, path: &str, body: &[u8]) -> Option<(u16, String)> {
        self.post_as(INSTANCE, path, body)
    }

    /// Nothing where the path is none.
    fn post_as(&self, bearer: &str, path: &str, body: &[u8]) -> Option<(u16, String)> {
        let request = Request::post(format!("/v1/runs/{}/{path}", self.run))
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
