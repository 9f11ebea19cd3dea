//! Runs that begin as a fork of another run.

use std::collections::BTreeSet;

use dalsegno_crds::{AgentRun, ConditionType, Reason, Summary};
use dalsegno_e2e::objects::{self, refusal};
use dalsegno_e2e::wait::secs;
use dalsegno_e2e::{Agent, Result, Rights, Run, StatusExt, TestContext, operator};
use serde_json::{Value, json};

/// The lines of the run's bundle that are the same in each export: not the first, which has the time of the export, and
/// not the last, which signs it.
async fn bundle(run: &Run<'_>) -> Result<Vec<String>> {
    let bundle = operator::run(&["export", &run.key()]).await?;
    let lines: Vec<_> = bundle.lines().map(str::to_owned).collect();
    anyhow::ensure!(lines.len() > 2, "a short bundle: {bundle}");
    Ok(lines[1..lines.len() - 1].to_vec())
}

/// The turns of the effects in the ledger, and their keys.
async fn effects(ctx: &TestContext, run: &Run<'_>) -> Result<(Vec<i32>, BTreeSet<String>)> {
    let entries = ctx.ledger.entries(&run.key()).await?;
    Ok((entries.iter().map(|it| it.turn).collect(), entries.into_iter().map(|it| it.key).collect()))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fork_below_effects_is_held_until_they_are_named_and_reaches_the_parents_ledger_and_its_own()
-> Result {
    let ctx = TestContext::new("fork").await?;
    let script = json!({ "turns": 12, "turnSeconds": 0.1, "recordBytes": 2_000 });
    let parent = ctx.start("parent", &Agent::new(script.clone())).await?;
    parent.wait_for_success().await?;
    let before = bundle(&parent).await?;

    let from = |accepted: Value| json!({ "resumeFrom": { "runName": "parent", "turn": 8, "acceptEffects": accepted } });
    let fork = ctx.start("fork", &Agent::new(script).spec(from(json!([])))).await?;
    let status = fork.wait_for(Summary::Held, secs(60)).await?;
    assert_eq!(status.reason, Some(Reason::ForkRefused));
    let calls: Vec<_> = (9..=12).map(|turn| format!("turn-{turn}")).collect();
    assert_eq!(status.fork.clone().unwrap_or_default().effects, calls);
    let (_, message) = status.reason_and_message(ConditionType::Held);
    assert!(message.contains("turn-9") && message.contains("acceptEffects"), "{message}");
    ctx.audit.expect_pods(&fork.name, 1..1)?;

    fork.patch_spec(from(json!(calls))).await?;
    let status = fork.wait_for_success().await?;
    assert_eq!((status.turn(), status.attempt().number), (12, 1));
    assert_eq!(status.attempt().resumed_from_turn, Some(8));
    let usage = status.usage.clone().unwrap_or_default();
    let of_parent = parent.status().await?.usage.unwrap_or_default();
    assert!(usage.tool_calls <= of_parent.tool_calls, "the usage of a fork starts at 0: {usage:?}");

    let (parents, keys) = effects(&ctx, &parent).await?;
    let (own, own_keys) = effects(&ctx, &fork).await?;
    assert_eq!(parents, (1..=12).collect::<Vec<_>>());
    assert_eq!(own, (9..=12).collect::<Vec<_>>(), "the parent's turns up to the fork are not made again");
    assert!(keys.is_disjoint(&own_keys), "the calls of the fork have keys of their own");
    assert_eq!(bundle(&parent).await?, before, "the parent is untouched");
    let records = bundle(&fork).await?.iter().filter(|line| line.starts_with(r#"{"record":"#)).count();
    assert_eq!(records, 24, "the parent's records up to turn 8, and its own");
    for run in [&parent, &fork] {
        let verified = operator::run(&["verify", &run.key()]).await?;
        assert!(verified.contains("0 problems"), "{verified}");
    }
    ctx.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fork_of_a_live_run_goes_its_own_way() -> Result {
    let ctx = TestContext::new("fork-live").await?;
    let script = json!({ "turns": 25, "turnSeconds": 0.3, "callPolicy": "readOnly" });
    let parent = ctx.start("parent", &Agent::new(script)).await?;
    parent.wait_for_turn(4).await?;
    let short = json!({ "turns": 6, "turnSeconds": 0.1, "callPolicy": "readOnly" });
    let from = json!({ "resumeFrom": { "runName": "parent", "turn": 3 } });
    let fork = ctx.start("fork", &Agent::new(short).spec(from)).await?;
    let status = fork.wait_for_success().await?;
    assert_eq!((status.turn(), status.attempt().resumed_from_turn), (6, Some(3)));
    assert!(parent.status().await?.turn() < 25, "the parent is still running");
    let status = parent.wait_for_success().await?;
    assert_eq!((status.turn(), status.attempt().number), (25, 1), "its worker was not disturbed");
    ctx.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fork_needs_the_right_to_read_its_parent_and_its_names_cannot_change() -> Result {
    let ctx = TestContext::new("fork-rights").await?;
    let script = json!({ "turns": 3, "turnSeconds": 0.1, "callPolicy": "readOnly" });
    let parent = ctx.start("parent", &Agent::new(script.clone())).await?;
    parent.wait_for_success().await?;
    ctx.grant("carol", Rights { group: "dalsegno.dev", resources: &["agentruns"], verbs: &["*"] }).await?;
    ctx.grant("carol", Rights { group: "", resources: &["pods"], verbs: &["create"] }).await?;
    let carol = ctx.as_user("carol").await?;
    let uid = parent.object().await?.metadata.uid;
    let by_name = json!({ "resumeFrom": { "runName": "parent", "turn": 2 } });
    let by_uid = json!({ "resumeFrom": { "runUID": uid, "turn": 2 } });
    let create = async |name: &str, spec: &Value| {
        let manifest = Agent::new(script.clone()).spec(spec.clone()).manifest(name, &ctx.ledger.url());
        objects::create::<AgentRun>(&carol, &ctx.namespace, manifest).await
    };
    let what = ["agentruns/state", "agentruns/records"];
    for (right, missing) in [(None, what[0]), (Some(what[0]), what[1])] {
        if let Some(right) = right {
            let rights = Rights { group: "subresources.dalsegno.dev", resources: &[right], verbs: &["get"] };
            ctx.grant("carol", rights).await?;
        }
        for spec in [&by_name, &by_uid] {
            let message = refusal(create("hers", spec).await)?;
            assert!(message.contains(missing) && message.contains("carol"), "{message}");
        }
    }
    let rights = Rights { group: "subresources.dalsegno.dev", resources: &[what[1]], verbs: &["get"] };
    ctx.grant("carol", rights).await?;
    create("by-name", &by_name).await?;
    create("by-uid", &by_uid).await?;
    for name in ["by-name", "by-uid"] {
        let status = ctx.run(name).wait_for_success().await?;
        assert_eq!((status.turn(), status.attempt().resumed_from_turn), (3, Some(2)));
    }
    for change in [json!({ "runName": "another" }), json!({ "turn": 1 })] {
        let message = refusal(ctx.run("by-name").try_patch_spec(json!({ "resumeFrom": change })).await)?;
        assert!(message.contains("resumeFrom cannot change"), "{message}");
    }
    let both = json!({ "resumeFrom": { "runName": "parent", "runUID": "x" } });
    let message = refusal(create("both", &both).await)?;
    assert!(message.contains("exactly one of runName and runUID"), "{message}");
    ctx.end().await
}
