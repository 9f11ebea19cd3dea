//! A person rewinds a run.

use dalsegno_crds::{Cause, ConditionType, Reason, Summary};
use dalsegno_e2e::wait::secs;
use dalsegno_e2e::{Agent, Result, Run, StatusExt, TestContext, operator, process};
use serde_json::{Value, json};

/// The run's rewind with this number has been made or refused.
async fn wait_for_rewind(run: &Run<'_>, generation: i64) -> Result<dalsegno_crds::AgentRunStatus> {
    run.wait_until(&format!("to observe rewind {generation}"), secs(60), |status| {
        status.rewind.as_ref().is_some_and(|it| it.observed_generation == generation)
    })
    .await
}

/// The details of the audit rows of this kind, as `dalsegno audit show` prints them.
async fn audit(run: &Run<'_>, kind: &str) -> Result<Vec<Value>> {
    let bundle = operator::run(&["export", &run.key()]).await?;
    let lines = bundle.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let rows = lines.filter_map(|line| line.get("audit").cloned()).filter(|row| row["kind"] == kind);
    Ok(rows.filter_map(|row| serde_json::from_str(row["detail"].as_str()?).ok()).collect())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rewind_over_turns_with_effects_is_refused_with_the_list_and_made_once_they_are_named() -> Result {
    let ctx = TestContext::new("rewind").await?;
    let run = ctx.start("run", &Agent::new(json!({ "turns": 14, "turnSeconds": 0.4 }))).await?;
    run.wait_for_turn(5).await?;
    run.suspend().await?;
    let status = run.wait_for(Summary::Suspended, secs(60)).await?;
    let (head, turn) = (status.checkpoint.clone().and_then(|it| it.content_hash), status.turn());

    let rewind = |rewind: Value| run.patch_spec(json!({ "rewind": rewind }));
    rewind(json!({ "generation": 1, "toTurn": 2, "ifHead": head })).await?;
    let status = wait_for_rewind(&run, 1).await?;
    let (reason, message) = status.reason_and_message(ConditionType::Rewound);
    assert_eq!(reason, Reason::RewindRefused.as_str(), "{message}");
    let calls: Vec<_> = (3..=turn).map(|turn| format!("turn-{turn}")).collect();
    let shown = status.rewind.clone().unwrap_or_default();
    assert_eq!(shown.effects, calls, "{message}");
    assert!(message.contains(&calls[0]) && message.contains("acceptEffects"), "{message}");
    assert!(!status.is_true(ConditionType::Rewound) && status.is_true(ConditionType::Suspended));
    assert_eq!((status.turn(), status.summary), (turn, Some(Summary::Suspended)), "nothing was undone");

    rewind(json!({ "generation": 2, "toTurn": 2, "ifHead": head, "acceptEffects": calls })).await?;
    let status = wait_for_rewind(&run, 2).await?;
    let status = match status.turn() {
        2 => status,
        _ => run.wait_until("to be at turn 2", secs(60), |status| status.turn() == 2).await?,
    };
    assert!(status.is_true(ConditionType::Rewound), "{status:#?}");
    assert_eq!(status.summary, Some(Summary::Suspended), "a suspended run stays suspended");

    // Whoever has seen the undone head comes too late.
    rewind(json!({ "generation": 3, "toTurn": 1, "ifHead": head })).await?;
    let status = wait_for_rewind(&run, 3).await?;
    let (reason, message) = status.reason_and_message(ConditionType::Rewound);
    assert_eq!((reason.as_str(), status.turn()), (Reason::RewindRefused.as_str(), 2), "{message}");
    assert!(message.contains("ifHead"), "{message}");

    let me = process::kubectl(["auth", "whoami", "-o", "jsonpath={.status.userInfo.username}"]).await?;
    let [made] = &audit(&run, "rewound").await?[..] else { panic!("one rewind was made") };
    assert_eq!((&made["generation"], &made["user"]), (&json!(2), &json!(me)), "{made}");
    assert_eq!((&made["from"]["hash"], &made["to"]["turn"]), (&json!(head), &json!(2)), "{made}");
    assert_eq!(made["acceptedEffects"], json!(calls), "{made}");
    assert_eq!(audit(&run, "rewind-refused").await?.len(), 2);

    run.resume().await?;
    run.wait_for_success().await?;
    // The calls of the undone turns have kept their results: the ledger has each effect once.
    run.expect_nothing_lost_up_to(2, 14).await?;
    rewind(json!({ "generation": 4, "toTurn": 3, "acceptEffects": [] })).await?;
    let status = run
        .wait_until("to refuse the rewind of a finished run", secs(60), |status| {
            status.reason_and_message(ConditionType::Rewound).1.contains("resumeFrom")
        })
        .await?;
    assert_eq!((status.summary, status.turn()), (Some(Summary::Succeeded), 14));
    ctx.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rewind_fences_a_running_worker_and_the_next_one_goes_on_from_the_earlier_turn() -> Result {
    let ctx = TestContext::new("rewind-running").await?;
    let run = ctx.start("run", &Agent::new(json!({ "turns": 30, "turnSeconds": 0.3 }))).await?;
    run.wait_for_turn(4).await?;
    let all: Vec<_> = (1..=30).map(|turn| format!("turn-{turn}")).collect();
    run.patch_spec(json!({ "rewind": { "generation": 1, "toTurn": 3, "acceptEffects": all } })).await?;
    let status = run.wait_for_attempt(2, secs(60)).await?;
    assert_eq!(status.attempt().resumed_from_turn, Some(3));
    let end = status.attempt_end(1)?;
    assert_eq!((end.cause, end.charged), (Cause::Rewound, false), "{end:?}");
    let status = run.wait_for_success().await?;
    assert_eq!((status.attempt().number, status.recovery().recovery_attempts), (2, 0));
    run.expect_nothing_lost_up_to(3, 30).await?;
    ctx.end().await
}

/// Attempts crash at turn 3 whatever they do. Before the last one the run goes back one turn, over a call that changes
/// nothing.
#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_keeps_dying_at_one_checkpoint_goes_one_turn_back_before_its_last_try() -> Result {
    let ctx = TestContext::new("same-checkpoint").await?;
    let crash = json!([{ "turn": 3, "at": "start", "do": "exit:1" }]);
    let agent = |policy: &str| {
        let script = json!({ "turns": 5, "turnSeconds": 0.1, "callPolicy": policy, "script": crash });
        Agent::new(script).spec(json!({
            "recovery": { "maxAttemptsWithoutProgress": 3, "onSameCheckpoint": "Rewind" },
        }))
    };
    let reads = ctx.start("reads", &agent("readOnly")).await?;
    let pays = ctx.start("pays", &agent("retrySameKey")).await?;
    for (run, resumed) in [(&reads, 1), (&pays, 2)] {
        let status = run.wait_for(Summary::Held, secs(120)).await?;
        assert_eq!(status.reason, Some(Reason::RecoveryLoop));
        let last = status.recovery().history[0].clone();
        assert_eq!((last.turn_at_start, last.turn_at_end), (resumed, 2), "{}: {last:?}", run.name);
        assert_eq!(status.recovery().attempts_without_progress, 3);
    }
    ctx.end().await
}
