//! Runs that the API server accepts but that cannot start: the status gives the reason, nothing is charged, and no
//! other run is delayed.

use std::time::Duration;

use dalsegno_crds::{AgentDefinition, Cause, ConditionType, Reason, Summary, find_condition};
use dalsegno_e2e::StatusExt;
use dalsegno_e2e::objects::{self, merge};
use dalsegno_e2e::wait::{consistently, eventually, secs};
use dalsegno_e2e::{Agent, Definition, Result, TestContext};
use k8s_openapi::api::core::v1::{Namespace, ResourceQuota};
use kube::api::{Api, Patch, PatchParams};
use serde_json::{Value, json};

/// Limit for the reason to appear in the status.
const LIMIT: Duration = secs(45);

fn short_run() -> Value {
    json!({ "turns": 2, "turnSeconds": 0.1 })
}

/// Waits until the definition's condition Ready has this reason, and returns the condition's message.
async fn wait_for_ready_reason(
    ctx: &TestContext,
    name: &str,
    reason: Reason,
    limit: Duration,
) -> Result<String> {
    let api = ctx.api::<AgentDefinition>();
    eventually(format!("definition {name} to have the reason {reason}"), limit, async || {
        let conditions = api.get(name).await?.status.unwrap_or_default().conditions;
        let ready =
            find_condition(&conditions, ConditionType::Ready).filter(|it| it.reason == reason.as_str());
        Ok(ready.map(|ready| ready.message.clone()))
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_of_a_missing_definition_is_held_and_starts_when_the_definition_is_created() -> Result {
    let ctx = TestContext::new("unknown-agent").await?;
    let run = ctx.start("run", &Agent::from_definition("agent", short_run())).await?;
    let status = run.wait_for(Summary::Held, LIMIT).await?;
    assert_eq!(status.reason, Some(Reason::AgentNotFound));
    let (_, message) = status.reason_and_message(ConditionType::Held);
    assert!(message.contains("agent"), "{message}");

    ctx.create_definition("agent", &Definition::new()).await?;
    assert_eq!(run.wait_for_success().await?.attempt().number, 1);
    ctx.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_template_that_the_api_server_refuses_is_reported_by_its_definition_and_its_runs() -> Result {
    let ctx = TestContext::new("bad-template").await?;
    let mount = json!({ "volumeMounts": [{ "name": "nowhere", "mountPath": "/data" }] });
    let definition = Definition::new().container(mount);
    ctx.create_definition("agent", &definition).await?;
    let message = wait_for_ready_reason(&ctx, "agent", Reason::TemplateInvalid, LIMIT).await?;
    assert!(message.contains("nowhere"), "the message should contain the API server's message: {message}");

    let run = ctx.start("run", &Agent::from_definition("agent", short_run())).await?;
    let status = run.wait_for(Summary::Held, LIMIT).await?;
    assert_eq!(status.reason, Some(Reason::TemplateInvalid));
    ctx.audit.expect_pods(&run.name, [])?;

    let volumes = json!({ "volumes": [{ "name": "nowhere", "emptyDir": {} }] });
    ctx.update_definition("agent", &definition.pod(volumes)).await?;
    assert_eq!(
        run.wait_for_success().await?.attempt().number,
        1,
        "the run should start after the correction"
    );
    wait_for_ready_reason(&ctx, "agent", Reason::Accepted, LIMIT).await?;

    let clash = json!({ "volumes": [{ "name": "dalsegno", "emptyDir": {} }] });
    ctx.create_definition("clash", &Definition::new().pod(clash)).await?;
    let message = wait_for_ready_reason(&ctx, "clash", Reason::TemplateInvalid, LIMIT).await?;
    assert!(
        message.contains("Duplicate value"),
        "the dry run should include the operator's own volume: {message}"
    );
    ctx.end().await
}

/// No watch event reports the change of the namespace's labels.
#[tokio::test(flavor = "multi_thread")]
async fn an_accepted_definition_reports_when_its_namespace_begins_to_refuse_its_pods() -> Result {
    let ctx = TestContext::new("pod-security").await?;
    ctx.create_definition("agent", &Definition::new()).await?;
    wait_for_ready_reason(&ctx, "agent", Reason::Accepted, LIMIT).await?;
    let restricted =
        json!({ "metadata": { "labels": { "pod-security.kubernetes.io/enforce": "restricted" } } });
    Api::<Namespace>::all(ctx.client.clone())
        .patch(&ctx.namespace, &PatchParams::default(), &Patch::Merge(&restricted))
        .await?;
    let message = wait_for_ready_reason(&ctx, "agent", Reason::NotChecked, secs(90)).await?;
    assert!(message.contains("violates PodSecurity"), "{message}");

    let mut writes = ctx.audit.entries()?;
    writes.retain(|entry| entry.resource == "agentdefinitions" && entry.verb != "create");
    assert!(writes.len() <= 2, "one write per result: {writes:#?}");
    ctx.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn an_image_that_cannot_be_pulled_is_reported_and_the_start_is_not_charged() -> Result {
    let ctx = TestContext::new("no-image").await?;
    let agent = Agent::new(short_run())
        .with_definition(|it| it.image("registry.dalsegno.test/no-such-image:1"))
        .spec(json!({ "liveness": { "startDeadlineSeconds": 8 } }));
    let run = ctx.start("run", &agent).await?;
    let pull_failed = |status: &dalsegno_crds::AgentRunStatus| {
        status.reason_and_message(ConditionType::WorkerReady).0 == Reason::ImagePullFailed.as_str()
    };
    let status = run.wait_until("to report that its image cannot be pulled", LIMIT, pull_failed).await?;
    let (_, message) = status.reason_and_message(ConditionType::WorkerReady);
    assert!(message.contains("no-such-image"), "{message}");

    let status =
        run.wait_until("to take its second attempt", secs(30), |status| status.attempt().number >= 2).await?;
    let end = status.attempt_end(1)?;
    assert!(matches!(end.cause, Cause::StartDeadline | Cause::ImageUnavailable), "{end:?}");
    assert!(!end.charged);
    run.delete(secs(30)).await?;
    ctx.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_corrected_definition_frees_a_run_whose_image_cannot_be_pulled() -> Result {
    let ctx = TestContext::new("corrected-image").await?;
    let wrong = Definition::new().image("registry.dalsegno.test/no-such-image:1");
    ctx.create_definition("agent", &wrong).await?;
    let run = ctx.start("run", &Agent::from_definition("agent", short_run())).await?;
    let pull_failed = |status: &dalsegno_crds::AgentRunStatus| {
        status.reason_and_message(ConditionType::WorkerReady).0 == Reason::ImagePullFailed.as_str()
    };
    run.wait_until("to report that its image cannot be pulled", LIMIT, pull_failed).await?;
    ctx.update_definition("agent", &Definition::new()).await?;
    let status = run.wait_for_success().await?;
    let end = status.attempt_end(1)?;
    assert_eq!((end.cause, end.charged), (Cause::TemplateChanged, false));
    ctx.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_above_the_quota_retries_the_same_attempt_and_starts_when_the_quota_allows() -> Result {
    let ctx = TestContext::new("quota").await?;
    let none = json!({ "metadata": { "name": "none" }, "spec": { "hard": { "pods": "0" } } });
    objects::create::<ResourceQuota>(&ctx.client, &ctx.namespace, none).await?;
    let is_enforced = async || {
        let quota = ctx.api::<ResourceQuota>().get("none").await?;
        Ok(quota.status.and_then(|status| status.hard).map(drop))
    };
    eventually("the quota to be in force", LIMIT, is_enforced).await?;
    let run = ctx.start("run", &Agent::new(short_run())).await?;
    let deleted = ctx.start("deleted", &Agent::new(short_run())).await?;
    let refused = |status: &dalsegno_crds::AgentRunStatus| {
        status.reason_and_message(ConditionType::WorkerReady).0 == Reason::QuotaExceeded.as_str()
    };
    let status = run.wait_until("to report that the quota is exceeded", LIMIT, refused).await?;
    assert_eq!(status.summary, Some(Summary::Pending));
    consistently("attempt 1", secs(4), async || {
        anyhow::ensure!(run.status().await?.attempt().number <= 1, "it took another attempt");
        Ok(())
    })
    .await?;
    deleted.delete(secs(60)).await?;

    let raised = json!({ "spec": { "hard": { "pods": "5" } } });
    objects::patch::<ResourceQuota>(&ctx.client, &ctx.namespace, "none", &raised).await?;
    let status = run.wait_for_success().await?;
    assert_eq!((status.attempt().number, status.recovery().recovery_attempts), (1, 0));
    run.expect_nothing_lost_or_repeated(2).await?;
    ctx.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn an_input_over_the_limit_is_held_before_any_pod() -> Result {
    let ctx = TestContext::new("large-input").await?;
    let mut input = short_run();
    merge(&mut input, &json!({ "padding": "x".repeat(33 << 10) }));
    let run = ctx.start("run", &Agent::new(input)).await?;
    let status = run.wait_for(Summary::Held, LIMIT).await?;
    assert_eq!(status.reason, Some(Reason::InputTooLarge));
    let (_, message) = status.reason_and_message(ConditionType::Held);
    assert!(message.contains("inputFrom"), "the message should name the remedy: {message}");
    consistently("no pod", secs(2), async || ctx.audit.expect_pods(&run.name, [])).await?;
    ctx.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_foreign_pod_with_the_attempts_name_is_left_alone_and_the_run_takes_the_next_attempt() -> Result {
    let ctx = TestContext::new("name-taken").await?;
    let image = dalsegno_e2e::agent::IMAGE;
    let foreign = json!({
        "metadata": { "name": "run-1" },
        "spec": { "containers": [{ "name": "other", "image": image, "command": ["/no-such-program"] }] },
    });
    objects::create::<k8s_openapi::api::core::v1::Pod>(&ctx.client, &ctx.namespace, foreign).await?;
    let run = ctx.start("run", &Agent::new(short_run())).await?;
    let status = run.wait_for_success().await?;
    assert_eq!(status.attempt().number, 2);
    let end = status.attempt_end(1)?;
    assert_eq!((end.cause, end.charged), (Cause::NameTaken, false));
    assert!(ctx.api::<k8s_openapi::api::core::v1::Pod>().get_opt("run-1").await?.is_some());
    ctx.end().await
}

/// The schema allows any pod field, so only the operator finds these errors.
#[tokio::test(flavor = "multi_thread")]
async fn invalid_runs_do_not_delay_a_valid_one() -> Result {
    let ctx = TestContext::new("invalid-runs").await?;
    for n in 0..10 {
        let invalid = json!({ "volumes": "none", "terminationGracePeriodSeconds": "soon" });
        ctx.start(&format!("invalid-{n}"), &Agent::new(short_run()).pod(invalid)).await?;
    }
    let valid = ctx.start("valid", &Agent::new(short_run())).await?;
    valid.wait_for(Summary::Succeeded, secs(60)).await?;
    for n in 0..10 {
        let status = ctx.run(&format!("invalid-{n}")).wait_for(Summary::Held, LIMIT).await?;
        assert_eq!(status.reason, Some(Reason::TemplateInvalid));
    }
    ctx.end().await
}
