//! Runs that the API server takes and that cannot run: each says why, is charged nothing, and delays nobody else.

use std::time::Duration;

use dalsegno_crds::{AgentDefinition, Cause, ConditionType, Reason, Summary, find_condition};
use dalsegno_e2e::StatusExt;
use dalsegno_e2e::objects::{self, merge};
use dalsegno_e2e::wait::{secs, throughout, until};
use dalsegno_e2e::{Agent, Definition, Result, World};
use k8s_openapi::api::core::v1::{Namespace, ResourceQuota};
use kube::api::{Api, Patch, PatchParams};
use serde_json::{Value, json};

/// How long a clear word may take: what is told of is seen at once, and all is judged again a minute later.
const SOON: Duration = secs(45);

fn short() -> Value {
    json!({ "turns": 2, "turnSeconds": 0.1 })
}

/// What the definition of this name says of itself, once it says this.
async fn says(world: &World, name: &str, reason: Reason, limit: Duration) -> Result<String> {
    let api = world.api::<AgentDefinition>();
    until(format!("definition {name} to say {reason}"), limit, async || {
        let conditions = api.get(name).await?.status.unwrap_or_default().conditions;
        let ready =
            find_condition(&conditions, ConditionType::Ready).filter(|it| it.reason == reason.as_str());
        Ok(ready.map(|ready| ready.message.clone()))
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_of_an_unknown_definition_is_held_and_starts_once_it_is_there() -> Result {
    let world = World::new("unknown-agent").await?;
    let run = world.start("run", &Agent::of("agent", short())).await?;
    let status = run.reaches(Summary::Held, SOON).await?;
    assert_eq!(status.reason, Some(Reason::AgentNotFound));
    let (_, message) = status.why(ConditionType::Held);
    assert!(message.contains("agent"), "{message}");

    world.define("agent", &Definition::new()).await?;
    assert_eq!(run.succeeds().await?.attempt().number, 1);
    world.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_template_that_the_api_server_refuses_is_named_by_its_definition_and_its_runs() -> Result {
    let world = World::new("bad-template").await?;
    let mount = json!({ "volumeMounts": [{ "name": "nowhere", "mountPath": "/data" }] });
    let definition = Definition::new().container(mount);
    world.define("agent", &definition).await?;
    let message = says(&world, "agent", Reason::TemplateInvalid, SOON).await?;
    assert!(message.contains("nowhere"), "it should tell what the API server said: {message}");

    let run = world.start("run", &Agent::of("agent", short())).await?;
    let status = run.reaches(Summary::Held, SOON).await?;
    assert_eq!(status.reason, Some(Reason::TemplateInvalid));
    world.audit.expect_pods(&run.name, [])?;

    let volumes = json!({ "volumes": [{ "name": "nowhere", "emptyDir": {} }] });
    world.redefine("agent", &definition.pod(volumes)).await?;
    assert_eq!(run.succeeds().await?.attempt().number, 1, "the correction is enough");
    says(&world, "agent", Reason::Accepted, SOON).await?;

    let ours = json!({ "volumes": [{ "name": "dalsegno", "emptyDir": {} }] });
    world.define("clash", &Definition::new().pod(ours)).await?;
    let message = says(&world, "clash", Reason::TemplateInvalid, SOON).await?;
    assert!(message.contains("Duplicate value"), "what is added to the template is tried too: {message}");
    world.end().await
}

/// Nothing tells the operator of it.
#[tokio::test(flavor = "multi_thread")]
async fn a_definition_that_was_accepted_says_when_its_namespace_refuses_it() -> Result {
    let world = World::new("pod-security").await?;
    world.define("agent", &Definition::new()).await?;
    says(&world, "agent", Reason::Accepted, SOON).await?;
    let restricted =
        json!({ "metadata": { "labels": { "pod-security.kubernetes.io/enforce": "restricted" } } });
    Api::<Namespace>::all(world.client.clone())
        .patch(&world.namespace, &PatchParams::default(), &Patch::Merge(&restricted))
        .await?;
    let message = says(&world, "agent", Reason::NotChecked, secs(90)).await?;
    assert!(message.contains("violates PodSecurity"), "{message}");

    let mut writes = world.audit.entries()?;
    writes.retain(|entry| entry.resource == "agentdefinitions" && entry.verb != "create");
    assert!(writes.len() <= 2, "one for each judgement: {writes:#?}");
    world.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn an_image_that_cannot_be_pulled_is_named_and_the_start_is_not_charged() -> Result {
    let world = World::new("no-image").await?;
    let agent = Agent::new(short())
        .with(|it| it.image("registry.dalsegno.test/no-such-image:1"))
        .spec(json!({ "liveness": { "startDeadlineSeconds": 8 } }));
    let run = world.start("run", &agent).await?;
    let pulling = |status: &dalsegno_crds::AgentRunStatus| {
        status.why(ConditionType::WorkerReady).0 == Reason::ImagePullFailed.as_str()
    };
    let status = run.wait("to say that its image cannot be pulled", SOON, pulling).await?;
    let (_, message) = status.why(ConditionType::WorkerReady);
    assert!(message.contains("no-such-image"), "{message}");

    let status = run.wait("to be tried again", secs(30), |status| status.attempt().number == 2).await?;
    let end = status.end_of(1)?;
    assert!(matches!(end.cause, Cause::StartDeadline | Cause::ImageUnavailable), "{end:?}");
    assert!(!end.charged);
    run.delete(secs(30)).await?;
    world.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_over_quota_tries_the_same_attempt_again_and_starts_once_there_is_room() -> Result {
    let world = World::new("quota").await?;
    let none = json!({ "metadata": { "name": "none" }, "spec": { "hard": { "pods": "0" } } });
    objects::create::<ResourceQuota>(&world.client, &world.namespace, none).await?;
    let full = async || {
        let quota = world.api::<ResourceQuota>().get("none").await?;
        Ok(quota.status.and_then(|status| status.hard).map(drop))
    };
    until("the quota to be in force", SOON, full).await?;
    let run = world.start("run", &Agent::new(short())).await?;
    let deleted = world.start("deleted", &Agent::new(short())).await?;
    let refused = |status: &dalsegno_crds::AgentRunStatus| {
        status.why(ConditionType::WorkerReady).0 == Reason::QuotaExceeded.as_str()
    };
    let status = run.wait("to say that the quota is exceeded", SOON, refused).await?;
    assert_eq!(status.summary, Some(Summary::Pending));
    throughout("attempt 1", secs(4), async || {
        anyhow::ensure!(run.status().await?.attempt().number <= 1, "it took another attempt");
        Ok(())
    })
    .await?;
    deleted.delete(secs(60)).await?;

    let room = json!({ "spec": { "hard": { "pods": "5" } } });
    objects::patch::<ResourceQuota>(&world.client, &world.namespace, "none", &room).await?;
    let status = run.succeeds().await?;
    assert_eq!((status.attempt().number, status.recovery().recovery_attempts), (1, 0));
    run.expect_nothing_lost_or_repeated(2).await?;
    world.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn an_input_over_the_limit_is_held_before_any_pod() -> Result {
    let world = World::new("large-input").await?;
    let mut input = short();
    merge(&mut input, &json!({ "padding": "x".repeat(33 << 10) }));
    let run = world.start("run", &Agent::new(input)).await?;
    let status = run.reaches(Summary::Held, SOON).await?;
    assert_eq!(status.reason, Some(Reason::InputTooLarge));
    let (_, message) = status.why(ConditionType::Held);
    assert!(message.contains("inputFrom"), "it should tell the way out: {message}");
    throughout("no pod", secs(2), async || world.audit.expect_pods(&run.name, [])).await?;
    world.end().await
}

/// Its pods' names are taken by somebody else's pods: the run goes round them, and they are left alone.
#[tokio::test(flavor = "multi_thread")]
async fn a_pod_of_somebody_else_with_the_attempts_name_is_left_alone_and_gone_round() -> Result {
    let world = World::new("name-taken").await?;
    let image = dalsegno_e2e::agent::IMAGE;
    let foreign = json!({
        "metadata": { "name": "run-1" },
        "spec": { "containers": [{ "name": "other", "image": image, "command": ["/no-such-program"] }] },
    });
    objects::create::<k8s_openapi::api::core::v1::Pod>(&world.client, &world.namespace, foreign).await?;
    let run = world.start("run", &Agent::new(short())).await?;
    let status = run.succeeds().await?;
    assert_eq!(status.attempt().number, 2);
    let end = status.end_of(1)?;
    assert_eq!((end.cause, end.charged), (Cause::NameTaken, false));
    assert!(world.api::<k8s_openapi::api::core::v1::Pod>().get_opt("run-1").await?.is_some());
    world.end().await
}

/// The schema lets any pod field through, so these are found out only by the operator.
#[tokio::test(flavor = "multi_thread")]
async fn one_malformed_run_delays_no_other() -> Result {
    let world = World::new("poisoned").await?;
    for n in 0..10 {
        let nonsense = json!({ "volumes": "none", "terminationGracePeriodSeconds": "soon" });
        world.start(&format!("bad-{n}"), &Agent::new(short()).pod(nonsense)).await?;
    }
    let good = world.start("good", &Agent::new(short())).await?;
    good.reaches(Summary::Succeeded, secs(20)).await?;
    for n in 0..10 {
        let status = world.run(&format!("bad-{n}")).reaches(Summary::Held, SOON).await?;
        assert_eq!(status.reason, Some(Reason::TemplateInvalid));
    }
    world.end().await
}
