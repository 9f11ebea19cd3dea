//! People who may write runs, and not all that a run could get them.

use dalsegno_crds::{AgentDefinition, AgentRun};
use dalsegno_e2e::objects::{self, merge, refusal};
use dalsegno_e2e::{Agent, Definition, Result, TestContext};
use serde_json::{Value, json};

/// A run that brings its own template.
fn inline() -> Value {
    Agent::new(json!({ "turns": 1 })).manifest("run", "http://ledger")
}

/// A person who may write AgentRuns and AgentDefinitions, and nothing else.
#[tokio::test(flavor = "multi_thread")]
async fn whoever_may_not_create_pods_may_not_write_a_template_and_may_choose_among_those_there() -> Result {
    let ctx = TestContext::new("author").await?;
    ctx.grant("alice", "dalsegno.dev", &["agentruns", "agentdefinitions"], &["*"]).await?;
    ctx.create_definition("agent", &Definition::new()).await?;
    let alice = ctx.as_user("alice").await?;
    let create = async |manifest| objects::create::<AgentRun>(&alice, &ctx.namespace, manifest).await;

    let said = refusal(create(inline()).await)?;
    assert!(said.contains("create") && said.contains("pods"), "{said}");
    let manifest = Definition::new().manifest("hers");
    let said = refusal(objects::create::<AgentDefinition>(&alice, &ctx.namespace, manifest).await)?;
    assert!(said.contains("create") && said.contains("pods"), "{said}");

    let chosen = Agent::from_definition("agent", json!({ "turns": 1 })).manifest("chosen", &ctx.ledger.url());
    create(chosen).await?;
    ctx.run("chosen").wait_for_success().await?;
    ctx.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_may_not_update_a_template_may_still_cancel_the_run() -> Result {
    let ctx = TestContext::new("editor").await?;
    ctx.grant("alice", "dalsegno.dev", &["agentruns"], &["*"]).await?;
    let alice = ctx.as_user("alice").await?;
    let run = ctx.start("run", &Agent::new(json!({ "turns": 200, "turnSeconds": 0.3 }))).await?;
    let edit = async |change: Value| {
        objects::patch::<AgentRun>(&alice, &ctx.namespace, &run.name, &json!({ "spec": change })).await
    };
    let said = refusal(edit(json!({ "agent": { "template": { "spec": { "hostNetwork": true } } } })).await)?;
    assert!(said.contains("create") && said.contains("pods"), "{said}");
    edit(json!({ "operatingMode": "Cancelled" })).await?;
    run.wait_for(dalsegno_crds::Summary::Cancelled, dalsegno_e2e::wait::secs(30)).await?;
    ctx.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_may_not_get_a_secret_may_not_feed_it_to_a_run() -> Result {
    let ctx = TestContext::new("secret").await?;
    ctx.grant("bob", "dalsegno.dev", &["agentruns"], &["*"]).await?;
    ctx.grant("bob", "", &["pods"], &["create"]).await?;
    let bob = ctx.as_user("bob").await?;
    let secret = json!({ "metadata": { "name": "plan" }, "stringData": {
        "input": json!({ "turns": 2, "turnSeconds": 0.1, "ledger": ctx.ledger.url() }).to_string(),
    } });
    objects::create::<k8s_openapi::api::core::v1::Secret>(&ctx.client, &ctx.namespace, secret).await?;
    let mut from_secret = inline();
    let key = json!({ "name": "plan", "key": "input" });
    merge(&mut from_secret, &json!({ "spec": { "input": null, "inputFrom": { "secretKeyRef": key } } }));

    let made = objects::create::<AgentRun>(&bob, &ctx.namespace, from_secret.clone()).await;
    let said = refusal(made)?;
    assert!(said.contains("plan") || said.contains("get"), "{said}");
    ctx.grant("bob", "", &["secrets"], &["get"]).await?;
    dalsegno_e2e::wait::eventually("the grant to be known", dalsegno_e2e::wait::secs(10), async || {
        let made = objects::create::<AgentRun>(&bob, &ctx.namespace, from_secret.clone()).await;
        Ok(made.is_ok().then_some(()))
    })
    .await?;
    ctx.run("run").wait_for_success().await?;
    ctx.run("run").expect_nothing_lost_or_repeated(2).await?;
    ctx.end().await
}
