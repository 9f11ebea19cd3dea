//! The example on DBOS, whose own engine keeps the checkpoints: its workflow, in a PostgreSQL of the test's.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::Secret;
use kube::ResourceExt;
use serde_json::json;

use crate::postgres::Server;
use crate::{Agent, Result, Run, TestContext, objects};

/// The image of `deploy/examples/dbos`.
const IMAGE: &str = "registry.dalsegno.test/dalsegno-example-dbos:dev";

/// The example's agent: this number of pages, each of two steps.
pub fn workflow(pages: i32) -> Agent {
    let run_uid = json!({ "fieldRef": { "fieldPath": "metadata.labels['dalsegno.dev/run-uid']" } });
    let url = json!({ "secretKeyRef": { "name": "dbos", "key": "url" } });
    Agent::new(json!({ "pages": pages, "pageSeconds": 1 })).with_definition(|it| {
        it.spec(json!({ "checkpointing": "External" })).image(IMAGE).container(json!({
            "env": [{ "name": "DBOS__VMID", "valueFrom": run_uid }, { "name": "DATABASE_URL", "valueFrom": url }],
            "resources": { "limits": { "memory": "256Mi" } },
        }))
    })
}

/// Starts the agents' database, and tells them where it is.
pub async fn start_database(ctx: &TestContext) -> Result<Server> {
    let server = Server::start().await?;
    let secret =
        json!({ "metadata": { "name": "dbos" }, "stringData": { "url": server.url("steps", "require") } });
    objects::create::<Secret>(&ctx.client, &ctx.namespace, secret).await?;
    Ok(server)
}

/// Each page was written once, under keys that begin with the run's UID: DBOS__VMID was the same in each pod.
pub async fn expect_each_page_once(ctx: &TestContext, run: &Run<'_>, pages: i32) -> Result {
    ctx.ledger.expect_turns(&run.key(), pages).await?;
    let uid = run.object().await?.uid().unwrap_or_default();
    let entries = ctx.ledger.entries(&run.key()).await?;
    for entry in &entries {
        assert_eq!(entry.key, format!("{uid}/{}", entry.turn));
    }
    let first_attempts: Vec<i32> = entries.iter().map(|it| it.attempt).collect();
    assert!(first_attempts.is_sorted(), "an earlier pod wrote a later page: {first_attempts:?}");
    let of_two = entries.iter().filter(|it| it.attempts.len() > 1).count();
    let attempts: BTreeSet<i32> = first_attempts.into_iter().collect();
    assert!(of_two < attempts.len(), "at most the page that an attempt died in is sent again: {entries:?}");
    Ok(())
}
