//! Runs that the API server takes and that cannot run: each says why, is charged nothing, and delays nobody else.

use std::time::Duration;

use dalsegno_crds::{AgentDefinition, Cause, ConditionType, Reason, Summary, find_condition};
use dalsegno_e2e::StatusExt;
use dalsegno_e2e::objects::{self, merge};
use dalsegno_e2e::wait::{consistently, eventually, secs};
use dalsegno_e2e::{Agent, Definition, Result, TestContext};
use k8s_openapi::api::core::v1::{Namespace, ResourceQuota};
use kube::api::{Api, Patch, PatchParams};
use serde_json::{Value, json};

/// How long a clear word may take: what is told of is seen at once, and all is judged again a minute later.
const SOON: Duration = secs(45);

fn short() -> Value {
    json!({ "turns": 2, "turnSeconds": 0.1 })
}

/// What the definition of this name says of itself, once it says this.
async fn says(ctx: &TestContext, name: &str, reason: Reason, limit: Duration) -> Result<String> {
    let api = ctx.api::<AgentDefinition>();
    eventually(format!("definition {name} to say {reason}"), limit, async || {
        let conditions = api.get(name).await?.status.unwrap_or_default().conditions;
        let ready =
            find_condition(&conditions, ConditionType::Ready).filter(|it| it.reason == reason.as_str());
        Ok(ready.map(|ready| ready.message.clone()))
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_of_an_unknown_definition_is_held_and_starts_once_it_is_there() -> Result {
    let ctx = TestContext::new("unknown-agent").await?;
    let run = ctx.start("run", &Agent::from_definition("agent", short())).await?;
    let status = run.wait_for(Summary::Held, SOON).await?;
    assert_eq!(status.reason, Some(Reason::AgentNotFound));
    let (_, message) = status.reason_and_message(ConditionType::Held);
    assert!(message.contains("agent"), "{message}");

    ctx.create_definition("agent", &Definition::new()).await?;
    assert_eq!(run.wait_for_success().await?.attempt().number, 1);
    ctx.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_template_that_the_api_server_refuses_is_named_by_its_definition_and_its_runs() -> Result {
    let ctx = TestContext::new("bad-template").await?;
    let mount = json!({ "volumeMounts": [{ "name": "nowhere", "mountPath": "/data" }] });
    let definition = Definition::new().container(mount);
    ctx.create_definition("agent", &definition).await?;
    let message = says(&ctx, "agent", Reason::TemplateInvalid, SOON).await?;
    assert!(message.contains("nowhere"), "it should tell what the API server said: {message}");

    let run = ctx.start("run", &Agent::from_definition("agent", short())).await?;
    let status = run.wait_for(Summary::Held, SOON).await?;
    assert_eq!(status.reason, Some(Reason::TemplateInvalid));
    ctx.audit.expect_pods(&run.name, [])?;

    let volumes = json!({ "volumes": [{ "name": "nowhere", "emptyDir": {} }] });
    ctx.update_definition("agent", &definition.pod(volumes)).await?;
    assert_eq!(run.wait_for_success().await?.attempt().number, 1, "the correction is enough");
    says(&ctx, "agent", Reason::Accepted, SOON).await?;

    let ours = json!({ "volumes": [{ "name": "dalsegno", "emptyDir": {} }] });
    ctx.create_definition("clash", &Definition::new().pod(ours)).await?;
    let message = says(&ctx, "clash", Reason::TemplateInvalid, SOON).await?;
    assert!(message.contains("Duplicate value"), "what is added to the template is tried too: {message}");
    ctx.end().await
}

/// Nothing tells the operator of it.
#[tokio::test(flavor = "multi_thread")]
async fn a_definition_that_was_accepted_says_when_its_namespace_refuses_it() -> Result {
    let ctx = TestContext::new("pod-security").await?;
    ctx.create_definition("agent", &Definition::new()).await?;
    says(&ctx, "agent", Reason::Accepted, SOON).await?;
    let restricted =
        json!({ "metadata": { "labels": { "pod-security.kubernetes.io/enforce": "restricted" } } });
    Api::<Namespace>::all(ctx.client.clone())
        .patch(&ctx.namespace, &PatchParams::default(), &Patch::Merge(&restricted))
        .await?;
    let message = says(&ctx, "agent", Reason::NotChecked, secs(90)).await?;
    assert!(message.contains("violates PodSecurity"), "{message}");

    let mut writes = ctx.audit.entries()?;
    writes.retain(|entry| entry.resource == "agentdefinitions" && entry.verb != "create");
    assert!(writes.len() <= 2, "one for each judgement: {writes:#?}");
    ctx.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn an_image_that_cannot_be_pulled_is_named_and_the_start_is_not_charged() -> Result {
    let ctx = TestContext::new("no-image").await?;
    let agent = Agent::new(short())
        .with_definition(|it| it.image("registry.dalsegno.test/no-such-image:1"))
        .spec(json!({ "liveness": { "startDeadlineSeconds": 8 } }));
    let run = ctx.start("run", &agent).await?;
    let pulling = |status: &dalsegno_crds::AgentRunStatus| {
        status.reason_and_message(ConditionType::WorkerReady).0 == Reason::ImagePullFailed.as_str()
    };
    let status = run.wait_until("to say that its image cannot be pulled", SOON, pulling).await?;
    let (_, message) = status.reason_and_message(ConditionType::WorkerReady);
    assert!(message.contains("no-such-image"), "{message}");

    let status = run.wait_until("to be tried again", secs(30), |status| status.attempt().number == 2).await?;
    let end = status.attempt_end(1)?;
    assert!(matches!(end.cause, Cause::StartDeadline | Cause::ImageUnavailable), "{end:?}");
    assert!(!end.charged);
    run.delete(secs(30)).await?;
    ctx.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_over_quota_tries_the_same_attempt_again_and_starts_once_there_is_room() -> Result {
    let ctx = TestContext::new("quota").await?;
    let none = json!({ "metadata": { "name": "none" }, "spec": { "hard": { "pods": "0" } } });
    objects::create::<ResourceQuota>(&ctx.client, &ctx.namespace, none).await?;
    let full = async || {
        let quota = ctx.api::<ResourceQuota>().get("none").await?;
        Ok(quota.status.and_then(|status| status.hard).map(drop))
    };
    eventually("the quota to be in force", SOON, full).await?;
    let run = ctx.start("run", &Agent::new(short())).await?;
    let deleted = ctx.start("deleted", &Agent::new(short())).await?;
    let refused = |status: &dalsegno_crds::AgentRunStatus| {
        status.reason_and_message(ConditionType::WorkerReady).0 == Reason::QuotaExceeded.as_str()
    };
    let status = run.wait_until("to say that the quota is exceeded", SOON, refused).await?;
    assert_eq!(status.summary, Some(Summary::Pending));
    consistently("attempt 1", secs(4), async || {
        anyhow::ensure!(run.status().await?.attempt().number <= 1, "it took another attempt");
        Ok(())
    })
    .await?;
    deleted.delete(secs(60)).await?;

    let room = json!({ "spec": { "hard": { "pods": "5" } } });
    objects::patch::<ResourceQuota>(&ctx.client, &ctx.namespace, "none", &room).await?;
    let status = run.wait_for_success().await?;
    assert_eq!((status.attempt().number, status.recovery().recovery_attempts), (1, 0));
    run.expect_nothing_lost_or_repeated(2).await?;
    ctx.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn an_input_over_the_limit_is_held_before_any_pod() -> Result {
    let ctx = TestContext::new("large-input").await?;
    let mut input = short();
    merge(&mut input, &json!({ "padding": "x".repeat(33 << 10) }));
    let run = ctx.start("run", &Agent::new(input)).await?;
    let status = run.wait_for(Summary::Held, SOON).await?;
    assert_eq!(status.reason, Some(Reason::InputTooLarge));
    let (_, message) = status.reason_and_message(ConditionType::Held);
    assert!(message.contains("inputFrom"), "it should tell the way out: {message}");
    consistently("no pod", secs(2), async || ctx.audit.expect_pods(&run.name, [])).await?;
    ctx.end().await
}

/// Its pods' names are taken by somebody else's pods: the run goes round them, and they are left alone.
#[tokio::test(flavor = "multi_thread")]
async fn a_pod_of_somebody_else_with_the_attempts_name_is_left_alone_and_gone_round() -> Result {
    let ctx = TestContext::new("name-taken").await?;
    let image = dalsegno_e2e::agent::IMAGE;
    let foreign = json!({
        "metadata": { "name": "run-1" },
        "spec": { "containers": [{ "name": "other", "image": image, "command": ["/no-such-program"] }] },
    });
    objects::create::<k8s_openapi::api::core::v1::Pod>(&ctx.client, &ctx.namespace, foreign).await?;
    let run = ctx.start("run", &Agent::new(short())).await?;
    let status = run.wait_for_success().await?;
    assert_eq!(status.attempt().number, 2);
    let end = status.attempt_end(1)?;
    assert_eq!((end.cause, end.charged), (Cause::NameTaken, false));
    assert!(ctx.api::<k8s_openapi::api::core::v1::Pod>().get_opt("run-1").await?.is_some());
    ctx.end().await
}

/// The schema lets any pod field through, so these are found out only by the operator.
#[tokio::test(flavor = "multi_thread")]
async fn one_malformed_run_delays_no_other() -> Result {
    let ctx = TestContext::new("poisoned").await?;
    for n in 0..10 {
        let nonsense = json!({ "volumes": "none", "terminationGracePeriodSeconds": "soon" });
        ctx.start(&format!("bad-{n}"), &Agent::new(short()).pod(nonsense)).await?;
    }
    let good = ctx.start("good", &Agent::new(short())).await?;
    good.wait_for(Summary::Succeeded, secs(20)).await?;
    for n in 0..10 {
        let status = ctx.run(&format!("bad-{n}")).wait_for(Summary::Held, SOON).await?;
        assert_eq!(status.reason, Some(Reason::TemplateInvalid));
    }
    ctx.end().await
}
