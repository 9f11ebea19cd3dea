//! People who may write runs, and not all that a run could get them.

use dalsegno_crds::{AgentDefinition, AgentRun};
use dalsegno_e2e::objects::{self, merge, refusal};
use dalsegno_e2e::{Agent, Definition, Result, World};
use serde_json::{Value, json};

/// A run that brings its own template.
fn inline() -> Value {
    Agent::new(json!({ "turns": 1 })).manifest("run", "http://ledger")
}

/// A person who may write AgentRuns and AgentDefinitions, and nothing else.
#[tokio::test(flavor = "multi_thread")]
async fn whoever_may_not_create_pods_may_not_write_a_template_and_may_choose_among_those_there() -> Result {
    let world = World::new("author").await?;
    world.grant("alice", "dalsegno.dev", &["agentruns", "agentdefinitions"], &["*"]).await?;
    world.define("agent", &Definition::new()).await?;
    let alice = world.as_user("alice").await?;
    let create = async |manifest| objects::create::<AgentRun>(&alice, &world.namespace, manifest).await;

    let said = refusal(create(inline()).await)?;
    assert!(said.contains("create") && said.contains("pods"), "{said}");
    let manifest = Definition::new().manifest("hers");
    let said = refusal(objects::create::<AgentDefinition>(&alice, &world.namespace, manifest).await)?;
    assert!(said.contains("create") && said.contains("pods"), "{said}");

    let chosen = Agent::of("agent", json!({ "turns": 1 })).manifest("chosen", &world.ledger.url());
    create(chosen).await?;
    world.run("chosen").succeeds().await?;
    world.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_may_not_update_a_template_may_still_cancel_the_run() -> Result {
    let world = World::new("editor").await?;
    world.grant("alice", "dalsegno.dev", &["agentruns"], &["*"]).await?;
    let alice = world.as_user("alice").await?;
    let run = world.start("run", &Agent::new(json!({ "turns": 200, "turnSeconds": 0.3 }))).await?;
    let edit = async |change: Value| {
        objects::patch::<AgentRun>(&alice, &world.namespace, &run.name, &json!({ "spec": change })).await
    };
    let said = refusal(edit(json!({ "agent": { "template": { "spec": { "hostNetwork": true } } } })).await)?;
    assert!(said.contains("create") && said.contains("pods"), "{said}");
    edit(json!({ "operatingMode": "Cancelled" })).await?;
    run.reaches(dalsegno_crds::Summary::Cancelled, dalsegno_e2e::wait::secs(30)).await?;
    world.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_may_not_get_a_secret_may_not_feed_it_to_a_run() -> Result {
    let world = World::new("secret").await?;
    world.grant("bob", "dalsegno.dev", &["agentruns"], &["*"]).await?;
    world.grant("bob", "", &["pods"], &["create"]).await?;
    let bob = world.as_user("bob").await?;
    let secret = json!({ "metadata": { "name": "plan" }, "stringData": {
        "input": json!({ "turns": 2, "turnSeconds": 0.1, "ledger": world.ledger.url() }).to_string(),
    } });
    objects::create::<k8s_openapi::api::core::v1::Secret>(&world.client, &world.namespace, secret).await?;
    let mut from_secret = inline();
    let key = json!({ "name": "plan", "key": "input" });
    merge(&mut from_secret, &json!({ "spec": { "input": null, "inputFrom": { "secretKeyRef": key } } }));

    let made = objects::create::<AgentRun>(&bob, &world.namespace, from_secret.clone()).await;
    let said = refusal(made)?;
    assert!(said.contains("plan") || said.contains("get"), "{said}");
    world.grant("bob", "", &["secrets"], &["get"]).await?;
    dalsegno_e2e::wait::until("the grant to be known", dalsegno_e2e::wait::secs(10), async || {
        let made = objects::create::<AgentRun>(&bob, &world.namespace, from_secret.clone()).await;
        Ok(made.is_ok().then_some(()))
    })
    .await?;
    world.run("run").succeeds().await?;
    world.run("run").expect_nothing_lost_or_repeated(2).await?;
    world.end().await
}
