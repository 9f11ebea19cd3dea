//! The deployed image compared with the version that wrote the checkpoint.

use dalsegno_crds::{AgentRunStatus, Cause, ConditionType, Reason, Summary};
use dalsegno_e2e::StatusExt;
use dalsegno_e2e::images::Image;
use dalsegno_e2e::wait::secs;
use dalsegno_e2e::{Agent, Definition, Result, Run, TestContext, objects};
use serde_json::{Value, json};

/// Pushes two images of one agent.
async fn push_two_images(ctx: &TestContext) -> Result<(Image, Image)> {
    Ok((ctx.push_image("old", "old").await?, ctx.push_image("new", "new").await?))
}

/// Turns of each run: enough to be evicted in the middle.
const TURNS: i32 = 16;

fn script() -> Value {
    json!({ "turns": TURNS, "turnSeconds": 0.3 })
}

fn policy(on_mismatch: &str) -> Value {
    json!({ "versionPolicy": { "onMismatch": on_mismatch } })
}

fn old_definition(image: &str) -> Definition {
    Definition::new().image(image).container(json!({ "env": [{ "name": "GENERATION", "value": "old" }] }))
}

fn new_definition(image: &str) -> Definition {
    Definition::new().image(image).container(json!({
        "env": [{ "name": "GENERATION", "value": "new" }],
        "resources": { "limits": { "memory": "96Mi" } },
    }))
}

/// Starts a run of the old definition, and waits for its fourth turn.
async fn start_with<'c>(ctx: &'c TestContext, old: &Definition, spec: Value) -> Result<Run<'c>> {
    ctx.create_definition("agent", old).await?;
    let run = ctx.start("run", &Agent::from_definition("agent", script()).spec(spec)).await?;
    run.wait_for_turn(4).await?;
    Ok(run)
}

/// The environment variable `GENERATION` and the memory limit of the current attempt's container.
async fn generation_and_memory(run: &Run<'_>) -> Result<(String, String)> {
    let pod = serde_json::to_value(run.pod().await?)?;
    let container = &pod["spec"]["containers"][0];
    let variables = container["env"].as_array().cloned().unwrap_or_default();
    let generation = variables.iter().find(|variable| variable["name"] == "GENERATION");
    let generation = generation.and_then(|variable| variable["value"].as_str()).unwrap_or_default();
    let memory = container["resources"]["limits"]["memory"].as_str().unwrap_or_default();
    Ok((generation.to_owned(), memory.to_owned()))
}

fn digest(status: &AgentRunStatus) -> String {
    status.attempt().image_digest.unwrap_or_default()
}

fn compatibility_reason(status: &AgentRunStatus) -> String {
    status.reason_and_message(ConditionType::VersionCompatible).0
}

#[tokio::test(flavor = "multi_thread")]
async fn pin_resumes_with_the_old_image_and_env_and_the_new_memory_limit() -> Result {
    let ctx = TestContext::new("edited-pin").await?;
    let (old, new) = push_two_images(&ctx).await?;
    let run = start_with(&ctx, &old_definition(&old.by_digest), json!({})).await?;
    ctx.update_definition("agent", &new_definition(&new.by_digest)).await?;
    run.evict().await?;
    let status = run.wait_for_attempt(2, secs(30)).await?;
    assert_eq!(digest(&status), old.digest);
    assert_eq!(compatibility_reason(&status), Reason::Pinned.as_str());
    assert_eq!(generation_and_memory(&run).await?, ("old".to_owned(), "96Mi".to_owned()));
    assert_eq!(run.wait_for_success().await?.attempt().number, 2);
    run.expect_nothing_lost_or_repeated(TURNS).await?;
    ctx.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn block_holds_the_run_with_both_versions_and_a_remedy_that_resumes_it() -> Result {
    let ctx = TestContext::new("edited-block").await?;
    let (old, new) = push_two_images(&ctx).await?;
    let run = start_with(&ctx, &old_definition(&old.by_digest), policy("Block")).await?;
    ctx.update_definition("agent", &new_definition(&new.by_digest)).await?;
    run.evict().await?;
    let status = run.wait_for(Summary::Held, secs(30)).await?;
    assert_eq!(status.reason, Some(Reason::VersionBlocked));
    let (_, message) = status.reason_and_message(ConditionType::Held);
    for expected in [&old.digest, &new.digest, "compatibleWith"] {
        assert!(message.contains(expected), "the message should contain {expected:?}: {message}");
    }
    ctx.audit.expect_pods(&run.name, [1])?;

    let compatible = new_definition(&new.by_digest).spec(json!({ "compatibleWith": [old.digest] }));
    ctx.update_definition("agent", &compatible).await?;
    run.patch_spec(json!({ "recovery": { "resetGeneration": 1 } })).await?;
    let status = run.wait_for_success().await?;
    assert_eq!(digest(&status), new.digest);
    assert_eq!(status.recovery().recovery_attempts, 0);
    run.expect_nothing_lost_or_repeated(TURNS).await?;
    ctx.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn allow_resumes_with_the_new_image_and_reports_it() -> Result {
    let ctx = TestContext::new("edited-allow").await?;
    let (old, new) = push_two_images(&ctx).await?;
    let run = start_with(&ctx, &old_definition(&old.by_digest), policy("Allow")).await?;
    ctx.update_definition("agent", &new_definition(&new.by_digest)).await?;
    run.evict().await?;
    let status = run.wait_for_attempt(2, secs(30)).await?;
    assert_eq!(digest(&status), new.digest);
    assert_eq!(compatibility_reason(&status), Reason::Allowed.as_str());
    assert_eq!(generation_and_memory(&run).await?.0, "new");
    run.wait_for_success().await?;
    run.expect_nothing_lost_or_repeated(TURNS).await?;
    ctx.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn compatible_with_moves_active_runs_to_the_new_image_at_their_next_attempt() -> Result {
    let ctx = TestContext::new("compatible").await?;
    let (old, new) = push_two_images(&ctx).await?;
    let run = start_with(&ctx, &old_definition(&old.by_digest), policy("Block")).await?;
    let compatible = new_definition(&new.by_digest).spec(json!({ "compatibleWith": [old.digest] }));
    ctx.update_definition("agent", &compatible).await?;
    let before = run.status().await?;
    assert_eq!(
        (before.attempt().number, digest(&before)),
        (1, old.digest),
        "a changed definition should not touch a running pod"
    );
    run.evict().await?;
    let status = run.wait_for_attempt(2, secs(30)).await?;
    assert_eq!(digest(&status), new.digest);
    assert_eq!(compatibility_reason(&status), Reason::Compatible.as_str());
    run.wait_for_success().await?;
    run.expect_nothing_lost_or_repeated(TURNS).await?;
    ctx.end().await
}

/// Starts a run whose definition names a tag, pushes another image under the tag, and evicts the run's pod. Each pod
/// pulls the tag anew. The definition does not change.
async fn push_tag_again<'c>(ctx: &'c TestContext, spec: Value) -> Result<(Run<'c>, Image, Image)> {
    let old = ctx.push_image("live", "old").await?;
    let run = start_with(ctx, &old_definition(&old.tagged), spec).await?;
    let new = ctx.push_image("live", "new").await?;
    assert_eq!(old.tagged, new.tagged);
    run.evict().await?;
    Ok((run, old, new))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tag_that_was_pushed_again_is_detected_at_the_attach_and_pin_returns_to_the_old_digest() -> Result {
    let ctx = TestContext::new("pushed-pin").await?;
    let (run, old, _) = push_tag_again(&ctx, json!({})).await?;
    let status = run.wait_for_success().await?;
    assert_eq!(digest(&status), old.digest);
    assert_eq!(status.causes().get(..2), Some([Cause::Evicted, Cause::VersionIncompatible].as_slice()));
    assert_eq!((status.attempt().number, status.recovery().recovery_attempts), (3, 0));
    run.expect_nothing_lost_or_repeated(TURNS).await?;
    ctx.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tag_that_was_pushed_again_holds_the_run_with_the_policy_block() -> Result {
    let ctx = TestContext::new("pushed-block").await?;
    let (run, old, new) = push_tag_again(&ctx, policy("Block")).await?;
    let status = run.wait_for(Summary::Held, secs(40)).await?;
    assert_eq!(status.reason, Some(Reason::VersionBlocked));
    let (_, message) = status.reason_and_message(ConditionType::Held);
    assert!(message.contains(&old.digest) && message.contains(&new.digest), "{message}");
    assert_eq!(status.recovery().recovery_attempts, 0);
    ctx.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tag_that_was_pushed_again_is_used_with_the_policy_allow() -> Result {
    let ctx = TestContext::new("pushed-allow").await?;
    let (run, _, new) = push_tag_again(&ctx, policy("Allow")).await?;
    let status = run.wait_for_success().await?;
    assert_eq!((digest(&status), status.attempt().number), (new.digest, 2));
    assert_eq!(compatibility_reason(&status), Reason::Allowed.as_str());
    run.expect_nothing_lost_or_repeated(TURNS).await?;
    ctx.end().await
}

/// A definition that names a tag is changed to a command that does not exist, and then to an image that does not exist.
#[tokio::test(flavor = "multi_thread")]
async fn pin_survives_a_bad_command_and_a_bad_tag_without_a_charge() -> Result {
    let ctx = TestContext::new("bad-roll-out").await?;
    let old = ctx.push_image("live", "old").await?;
    ctx.create_definition("agent", &old_definition(&old.tagged)).await?;
    // Attempt 3 must not end the run before it is evicted.
    let mut script = script();
    let hang = json!({ "attempt": 3, "turn": TURNS, "at": "start", "do": "hang" });
    objects::merge(&mut script, &json!({ "script": [hang] }));
    let run = ctx.start("run", &Agent::from_definition("agent", script)).await?;
    run.wait_for_turn(4).await?;
    let bad = old_definition(&old.tagged).container(json!({ "command": ["/no-such-command"] }));
    ctx.update_definition("agent", &bad).await?;
    run.evict().await?;
    let status = run.wait_for_attempt(3, secs(60)).await?;
    assert_eq!(status.attempt_end(2)?.cause, Cause::StartFailed);
    assert_eq!(compatibility_reason(&status), Reason::Pinned.as_str());

    ctx.update_definition("agent", &old_definition("registry.dalsegno.test/no-such-image:1")).await?;
    run.evict().await?;
    let status = run.wait_for_success().await?;
    assert_eq!((digest(&status), status.attempt().number), (old.digest, 4));
    assert_eq!(status.recovery().recovery_attempts, 0);
    run.expect_nothing_lost_or_repeated(TURNS).await?;
    ctx.end().await
}

/// Each node keeps the image that it has pulled under the tag.
#[tokio::test(flavor = "multi_thread")]
async fn two_nodes_with_different_images_under_one_tag_do_not_mix_versions() -> Result {
    let ctx = TestContext::new("two-nodes").await?;
    let on = |image: &Image, node: &str| {
        old_definition(&image.tagged)
            .container(json!({ "imagePullPolicy": "IfNotPresent" }))
            .pod(json!({ "nodeSelector": { "kubernetes.io/hostname": node } }))
    };
    let old = ctx.push_image("live", "old").await?;
    ctx.create_definition("agent", &on(&old, "n1")).await?;
    // The run must not end before the first run on the other node.
    let mut script = script();
    let hang = json!({ "attempt": 1, "turn": 6, "at": "start", "do": "hang" });
    objects::merge(&mut script, &json!({ "script": [hang] }));
    let run = ctx.start("run", &Agent::from_definition("agent", script)).await?;
    run.wait_for_turn(5).await?;
    let new = ctx.push_image("live", "new").await?;
    ctx.create_definition("elsewhere", &on(&new, "n2")).await?;
    let first = ctx.start("first", &Agent::from_definition("elsewhere", json!({ "turns": 1 }))).await?;
    assert_eq!(digest(&first.wait_for_success().await?), new.digest, "n2 should have the new image");

    ctx.update_definition("agent", &on(&old, "n2")).await?;
    run.evict().await?;
    let status = run.wait_for_success().await?;
    assert_eq!(status.attempt().node_name.as_deref(), Some("n2"));
    assert_eq!(digest(&status), old.digest);
    assert_eq!(status.recovery().recovery_attempts, 0);
    run.expect_nothing_lost_or_repeated(TURNS).await?;
    ctx.end().await
}
