//! What a worker commits appears in no status, event, log or metric.

use anyhow::Context;
use dalsegno_crds::{Reason, Summary};
use dalsegno_e2e::http::Request;
use dalsegno_e2e::process::kubectl;
use dalsegno_e2e::wait::{eventually, secs};
use dalsegno_e2e::worker::Worker;
use dalsegno_e2e::{Agent, Result, Run, StatusExt, TestContext};
use dalsegno_protocol::Code;
use kube::api::DeleteParams;
use serde_json::json;

/// The port of the metrics of operator and gateway.
const METRICS_PORT: u16 = 8081;

/// More lines than operator and gateway have logged since the cluster started.
const LOG_LINES: i64 = 1_000_000;

/// Turns: a snapshot is due after the tenth boundary.
const TURNS: i32 = 15;

/// The log and the metrics of operator and gateway, which are one process here.
async fn log_and_metrics(ctx: &TestContext) -> Result<[String; 2]> {
    let pod = ctx.operator.pod().await?;
    let address = pod.status.and_then(|status| status.pod_ip).context("a ready pod without an address")?;
    let metrics = Request::get(format!("http://{address}:{METRICS_PORT}/metrics")).send().await?;
    Ok([ctx.operator.log_tail(LOG_LINES).await?, metrics.body])
}

/// The events of the test's namespace.
async fn events(ctx: &TestContext) -> Result<String> {
    kubectl(["get", "events.events.k8s.io", "--namespace", &ctx.namespace, "--output", "yaml"]).await
}

async fn status(run: &Run<'_>) -> Result<String> {
    Ok(serde_yaml::to_string(&run.status().await?)?)
}

/// The secret is in the input, in every state, in the arguments of every call and at the beginning of every key. The
/// termination message is written for people: it appears in the status and in the event of the attempt's end, and
/// nowhere else.
#[tokio::test(flavor = "multi_thread")]
async fn the_input_state_and_calls_of_an_agent_appear_in_no_status_event_log_or_metric() -> Result {
    let ctx = TestContext::new("canaries").await?;
    let [secret, termination_message] =
        ["canary", "termination"].map(|prefix| format!("{prefix}-{}", uuid::Uuid::new_v4().simple()));
    let agent = Agent::new(json!({
        "turns": 6,
        "turnSeconds": 0.2,
        "callPolicy": "ask",
        "stateBytes": 200,
        "secret": secret,
        "script": [
            { "attempt": 1, "turn": 3, "at": "start", "do": "hang" },
            { "attempt": 2, "turn": 5, "at": "afterClaim", "do": format!("selfReport:crash:{termination_message}") },
        ],
    }));
    let run = ctx.start("run", &agent).await?;
    run.wait_until("to have committed turn 2", secs(60), |status| status.turn() == 2).await?;
    run.delete_pod(&DeleteParams::default()).await?;
    let held = run.wait_for(Summary::Held, secs(60)).await?;
    assert_eq!(held.reason, Some(Reason::EffectUnknown));
    assert_eq!((held.turn(), held.attempt_end(2)?.message.as_deref()), (4, Some(&*termination_message)));
    let entries = ctx.ledger.entries(&run.key()).await?;
    assert!(
        entries.iter().all(|entry| entry.key.starts_with(&secret)),
        "the agent should have used the secret: {entries:?}"
    );

    eventually("the event of the attempt's end", secs(30), async || {
        Ok(events(&ctx).await?.contains(&termination_message).then_some(()))
    })
    .await?;
    expect_absent(&ctx, &run, &secret).await?;
    let [log, metrics] = log_and_metrics(&ctx).await?;
    for (source, text) in [("log", &log), ("metric", &metrics)] {
        let leaks: Vec<_> = text.lines().filter(|line| line.contains(&termination_message)).collect();
        assert!(leaks.is_empty(), "{source}: {leaks:#?}");
    }
    ctx.end().await
}

/// The worker puts a canary into every other field of the contract, over two attempts and enough turns for a snapshot.
/// Then the test reads everything back.
#[tokio::test(flavor = "multi_thread")]
async fn the_events_channels_and_records_of_a_worker_appear_in_no_status_event_log_or_metric() -> Result {
    let ctx = TestContext::new("canaries-others").await?;
    let run = ctx.start("run", &Agent::new(json!({ "neverAttach": true }))).await?;
    let canary = format!("canary-{}", uuid::Uuid::new_v4().simple());
    let id = || uuid::Uuid::new_v4();
    let boundary = || {
        json!({ "commitId": id(), "trigger": canary, "events": [{ (&canary): canary }],
                "records": [{ "append": { "space": canary, "key": canary, "entryId": canary, "value": { "json": canary } } }],
                "channels": { "set": { (&canary): { "json": canary } },
                              "append": { format!("{canary}.list"): [{ "json": canary }], "memoryReferences": [{ "json": canary }] } } })
    };

    let first = Worker::for_pod(&ctx.client, &run.pod().await?).await?;
    first.attach_when_ready().await?;
    let mut plan = boundary();
    plan["calls"] = json!([{ "id": canary, "policy": "probe", "key": canary, "arguments": canary }]);
    let put =
        json!({ "put": { "space": canary, "key": format!("{canary}/put"), "value": { "json": canary } } });
    for (path, body) in [
        ("turns/1/plan".to_owned(), plan),
        (format!("calls/{canary}/claim"), json!({ "claimId": id(), "policy": "probe" })),
        ("records".to_owned(), json!({ "batchId": id(), "operations": [put] })),
    ] {
        assert_eq!(first.post(&path, body).await?.status, 200, "{path}");
    }
    run.delete_pod(&DeleteParams::default()).await?;
    run.wait_until("to take its second attempt", secs(60), |status| status.attempt().number == 2).await?;

    let second = Worker::for_pod(&ctx.client, &run.pod().await?).await?;
    second.attach_when_ready().await?;
    assert_eq!(second.post("turns/1", boundary()).await?.problem()?.code, Code::UnsettledCalls);
    let found = json!({ "outcome": "completed", "reason": canary, "result": canary });
    assert_eq!(second.post(&format!("calls/{canary}/settle"), found).await?.status, 200);
    for turn in 1..=TURNS {
        assert_eq!(second.post(&format!("turns/{turn}"), boundary()).await?.status, 200, "turn {turn}");
    }
    assert_eq!(second.post(&format!("turns/{TURNS}"), boundary()).await?.problem()?.code, Code::Conflict);
    assert_eq!(second.post("records", json!({ (&canary): canary })).await?.problem()?.code, Code::Invalid);
    for path in ["state", "events?from=1", "checkpoint", "memory-delta"] {
        let read = second.get(path).await?;
        assert!(read.status == 200 && read.body.contains(&canary), "{path}: {read:?}");
    }
    let records = second.get(&format!("records?space={canary}&prefix={canary}")).await?;
    assert!(records.status == 200 && records.body.contains(&canary), "{records:?}");
    expect_absent(&ctx, &run, &canary).await?;
    ctx.end().await
}

/// Checks that the secret is in nothing that an administrator sees.
async fn expect_absent(ctx: &TestContext, run: &Run<'_>, secret: &str) -> Result {
    let [log, metrics] = log_and_metrics(ctx).await?;
    let (status, events) = (status(run).await?, events(ctx).await?);
    assert!(log.contains(&ctx.namespace), "the log should be from the operator of this run");
    for prefix in ["dalsegno_operator_", "dalsegno_gateway_"] {
        assert!(metrics.contains(prefix), "{prefix}: {metrics}");
    }
    for (source, text) in [("status", &status), ("event", &events), ("log", &log), ("metric", &metrics)] {
        let leaks: Vec<_> = text.lines().filter(|line| line.contains(secret)).collect();
        assert!(leaks.is_empty(), "{source}: {leaks:#?}");
    }
    Ok(())
}
