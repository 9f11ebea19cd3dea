//! Agents that keep their own checkpoints (`checkpointing: External`). A script of Python stands for the agent.

use dalsegno_crds::{AgentDefinition, Cause, ConditionType, Reason, Summary, names};
use dalsegno_e2e::agent::PYTHON;
use dalsegno_e2e::objects::{self, has_ended, refusal};
use dalsegno_e2e::wait::{consistently, eventually, secs};
use dalsegno_e2e::{Agent, Definition, Result, Run, StatusExt, TestContext};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::{Api, DeleteParams};
use serde_json::{Value, json};

/// Crashes in its first attempt. Then it checks what the pod has, and does its task.
const ONE_CRASH: &str = r#"
import os, sys
attempt = int(os.environ["DALSEGNO_ATTEMPT"])
if attempt == 1:
    sys.exit(7)
assert os.environ["VMID"] and os.environ["DALSEGNO_RUN"] and open(os.environ["DALSEGNO_INPUT_FILE"]).read()
unset = [name for name in ("DALSEGNO_URL", "DALSEGNO_TOKEN_FILE", "DALSEGNO_CA_FILE") if name in os.environ]
files = [name for name in os.listdir("/var/run/dalsegno") if not name.startswith(".")]
print(unset, files, flush=True)
sys.exit(0 if (unset, files) == ([], ["input"]) else 8)
"#;

/// The program runs until it gets SIGTERM, and then exits with 0, as many programs do.
const UNTIL_TERM: &str = r#"
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
time.sleep(1000)
"#;

/// Runs, and does not hear that it should stop.
const DEAF: &str = r#"
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
time.sleep(1000)
"#;

fn definition(script: &str) -> Definition {
    let vmid = json!({ "fieldRef": { "fieldPath": format!("metadata.labels['{}']", names::LABEL_RUN_UID) } });
    Definition::new().spec(json!({ "checkpointing": "External" })).image(PYTHON).container(
        json!({ "command": ["python3", "-c", script], "env": [{ "name": "VMID", "valueFrom": vmid }] }),
    )
}

fn agent(script: &str) -> Agent {
    Agent::new(json!({})).with_definition(|_| definition(script))
}

async fn wait_until_running(run: &Run<'_>, attempt: i32) -> Result {
    let status = run.wait_for_attempt(attempt, secs(60)).await?;
    assert_eq!(status.reason_and_message(ConditionType::WorkerReady).0, Reason::Started.as_str());
    Ok(())
}

/// The pods of the run that have not ended.
async fn running_pods(run: &Run<'_>) -> Result<Vec<String>> {
    Ok(run.pods().await?.iter().filter(|it| !has_ended(it)).map(ResourceExt::name_any).collect())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_external_run_recovers_from_a_crash_and_its_exit_with_0_is_success() -> Result {
    let ctx = TestContext::new("external").await?;
    let run = ctx.start("run", &agent(ONE_CRASH)).await?;
    let status = run.wait_for_success().await?;
    let first = status.attempt_end(1)?;
    assert_eq!((first.cause, first.exit_code, first.charged), (Cause::ExitedWithError, Some(7), true));
    assert_eq!(status.attempt().number, 2);
    let pods = run.pods().await?;
    assert!(pods.iter().all(|it| it.finalizers().is_empty()), "an ended pod is held");
    run.delete(secs(60)).await?;
    ctx.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn an_external_worker_is_suspended_resumed_and_cancelled_by_its_pod() -> Result {
    let ctx = TestContext::new("external-stops").await?;
    let run = ctx.start("run", &agent(UNTIL_TERM)).await?;
    wait_until_running(&run, 1).await?;
    run.suspend().await?;
    let status = run.wait_for(Summary::Suspended, secs(60)).await?;
    assert_eq!(running_pods(&run).await?, Vec::<String>::new());
    assert_eq!((status.attempt_end(1)?.cause, status.attempt_end(1)?.charged), (Cause::Suspended, false));
    run.resume().await?;
    wait_until_running(&run, 2).await?;

    run.evict().await?;
    wait_until_running(&run, 3).await?;
    let status = run.status().await?;
    assert_eq!(status.attempt_end(2)?.cause, Cause::Evicted, "an exit with 0 after SIGTERM is no success");

    run.cancel().await?;
    run.wait_for(Summary::Cancelled, secs(60)).await?;
    assert_eq!(running_pods(&run).await?, Vec::<String>::new());
    ctx.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_that_is_deleted_by_force_stays_until_its_worker_has_ended() -> Result {
    let ctx = TestContext::new("external-force").await?;
    let grace = json!({ "terminationGracePeriodSeconds": 8 });
    let run = ctx.start("run", &agent(DEAF).pod(grace)).await?;
    wait_until_running(&run, 1).await?;
    let pod = run.pod().await?;
    // Like `kubectl delete --force`.
    let pods: Api<Pod> = ctx.api();
    pods.delete(&pod.name_any(), &DeleteParams::default().grace_period(0)).await?;
    let worker = run.processes().await?;
    while worker.any_alive() {
        let pods = run.pods().await?;
        anyhow::ensure!(pods.len() == 1, "a second pod exists while the first worker runs: {}", pods.len());
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    }
    wait_until_running(&run, 2).await?;
    // A deleted run does not leave a pod that nobody lets go.
    run.delete(secs(90)).await?;
    ctx.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn what_an_external_agent_does_not_support_is_refused_at_admission_or_holds_the_run() -> Result {
    let ctx = TestContext::new("external-refused").await?;
    let defaults = json!({ "defaults": { "liveness": { "heartbeatTimeoutSeconds": 20 } } });
    let refused = definition(UNTIL_TERM).spec(defaults).manifest("refused");
    let message = refusal(objects::create::<AgentDefinition>(&ctx.client, &ctx.namespace, refused).await)?;
    assert!(message.contains("checkpointing: External does not support defaults.liveness"), "{message}");
    let inline = |spec: Value| agent(UNTIL_TERM).spec(spec).manifest("refused", "http://ledger");
    for (spec, expected) in [
        (json!({ "limits": { "tokens": 5 } }), "does not support limits.tokens"),
        (
            json!({ "recovery": { "onSameCheckpoint": "Rewind" } }),
            "does not support recovery.onSameCheckpoint: Rewind",
        ),
        (json!({ "resumeFrom": { "runName": "other" } }), "does not support resumeFrom"),
    ] {
        let message = refusal(ctx.create_run(inline(spec)).await)?;
        assert!(message.contains(expected), "{message}");
    }

    // The API server does not see the definition of a run. The operator does, before the first pod.
    ctx.create_definition("helper", &definition(UNTIL_TERM)).await?;
    let change = definition(UNTIL_TERM).spec(json!({ "checkpointing": "Gateway" })).manifest("helper");
    let patched = objects::patch::<AgentDefinition>(&ctx.client, &ctx.namespace, "helper", &change).await;
    assert!(refusal(patched)?.contains("checkpointing cannot change"));
    let run = Agent::from_definition("helper", json!({})).spec(json!({ "limits": { "tokens": 5 } }));
    let run = ctx.start("run", &run).await?;
    let status = run.wait_for(Summary::Held, secs(30)).await?;
    let (reason, message) = status.reason_and_message(ConditionType::Held);
    assert_eq!(reason, Reason::NotSupported.as_str());
    assert!(message.contains("spec.limits.tokens"), "{message}");
    consistently("no pod", secs(3), async || {
        anyhow::ensure!(run.pods().await?.is_empty());
        Ok(())
    })
    .await?;
    run.patch_spec(json!({ "limits": null })).await?;
    wait_until_running(&run, 1).await?;

    run.patch_spec(json!({ "rewind": { "generation": 1, "toTurn": 1 } })).await?;
    eventually("the rewind to be refused", secs(30), async || {
        let (reason, message) = run.status().await?.reason_and_message(ConditionType::Rewound);
        Ok((reason == "TurnNotAvailable" && message.contains("checkpointing: External")).then_some(()))
    })
    .await?;
    let plugin = ctx.plugin().await?;
    let answer = plugin.try_run(&["send", "run", "hello"]).await?;
    assert!(answer.code != 0 && answer.stderr.contains("checkpointing: External"), "{answer:?}");
    ctx.end().await
}
