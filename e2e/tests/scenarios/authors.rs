//! Users who may write runs but have fewer rights than a run could give them.

use dalsegno_crds::{AgentDefinition, AgentRun};
use dalsegno_e2e::objects::{self, merge, refusal};
use dalsegno_e2e::{Agent, Definition, Result, Rights, TestContext};
use serde_json::{Value, json};

/// A run with an inline template.
fn inline_run() -> Value {
    Agent::new(json!({ "turns": 1 })).manifest("run", "http://ledger")
}

/// The user may write AgentRuns and AgentDefinitions, and nothing else.
#[tokio::test(flavor = "multi_thread")]
async fn a_user_who_may_not_create_pods_may_use_a_definition_but_not_write_a_template() -> Result {
    let ctx = TestContext::new("author").await?;
    ctx.grant(
        "alice",
        Rights { group: "dalsegno.dev", resources: &["agentruns", "agentdefinitions"], verbs: &["*"] },
    )
    .await?;
    ctx.create_definition("agent", &Definition::new()).await?;
    let alice = ctx.as_user("alice").await?;
    let create = async |manifest| objects::create::<AgentRun>(&alice, &ctx.namespace, manifest).await;

    let message = refusal(create(inline_run()).await)?;
    assert!(message.contains("create") && message.contains("pods"), "{message}");
    let manifest = Definition::new().manifest("hers");
    let message = refusal(objects::create::<AgentDefinition>(&alice, &ctx.namespace, manifest).await)?;
    assert!(message.contains("create") && message.contains("pods"), "{message}");

    let chosen = Agent::from_definition("agent", json!({ "turns": 1 })).manifest("chosen", &ctx.ledger.url());
    create(chosen).await?;
    ctx.run("chosen").wait_for_success().await?;
    ctx.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_user_who_may_not_change_a_template_may_cancel_the_run() -> Result {
    let ctx = TestContext::new("editor").await?;
    ctx.grant("alice", Rights { group: "dalsegno.dev", resources: &["agentruns"], verbs: &["*"] }).await?;
    let alice = ctx.as_user("alice").await?;
    let run = ctx.start("run", &Agent::new(json!({ "turns": 200, "turnSeconds": 0.3 }))).await?;
    let edit = async |change: Value| {
        objects::patch::<AgentRun>(&alice, &ctx.namespace, &run.name, &json!({ "spec": change })).await
    };
    let message =
        refusal(edit(json!({ "agent": { "template": { "spec": { "hostNetwork": true } } } })).await)?;
    assert!(message.contains("create") && message.contains("pods"), "{message}");
    edit(json!({ "operatingMode": "Cancelled" })).await?;
    run.wait_for(dalsegno_crds::Summary::Cancelled, dalsegno_e2e::wait::secs(30)).await?;
    ctx.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_user_who_may_not_get_a_secret_may_not_use_it_as_the_input_of_a_run() -> Result {
    let ctx = TestContext::new("secret").await?;
    ctx.grant("bob", Rights { group: "dalsegno.dev", resources: &["agentruns"], verbs: &["*"] }).await?;
    ctx.grant("bob", Rights { group: "", resources: &["pods"], verbs: &["create"] }).await?;
    let bob = ctx.as_user("bob").await?;
    let secret = json!({ "metadata": { "name": "plan" }, "stringData": {
        "input": json!({ "turns": 2, "turnSeconds": 0.1, "ledger": ctx.ledger.url() }).to_string(),
    } });
    objects::create::<k8s_openapi::api::core::v1::Secret>(&ctx.client, &ctx.namespace, secret).await?;
    let mut from_secret = inline_run();
    let key = json!({ "name": "plan", "key": "input" });
    merge(&mut from_secret, &json!({ "spec": { "input": null, "inputFrom": { "secretKeyRef": key } } }));

    let created = objects::create::<AgentRun>(&bob, &ctx.namespace, from_secret.clone()).await;
    let message = refusal(created)?;
    assert!(message.contains("plan") || message.contains("get"), "{message}");
    ctx.grant("bob", Rights { group: "", resources: &["secrets"], verbs: &["get"] }).await?;
    dalsegno_e2e::wait::eventually(
        "the new right to take effect",
        dalsegno_e2e::wait::secs(10),
        async || {
            let created = objects::create::<AgentRun>(&bob, &ctx.namespace, from_secret.clone()).await;
            Ok(created.is_ok().then_some(()))
        },
    )
    .await?;
    ctx.run("run").wait_for_success().await?;
    ctx.run("run").expect_nothing_lost_or_repeated(2).await?;
    ctx.end().await
}
