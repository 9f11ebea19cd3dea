//! What people apply with kubectl and read with kubectl or over HTTP.

use dalsegno_crds::Summary;
use dalsegno_e2e::http::Request;
use dalsegno_e2e::process::{kubectl, run};
use dalsegno_e2e::wait::secs;
use dalsegno_e2e::worker::Worker;
use dalsegno_e2e::{Agent, Result, Rights, StatusExt, TestContext};
use dalsegno_protocol::{Checkpoint, Code};
use serde_json::json;

/// The root of the repository.
const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");

#[tokio::test(flavor = "multi_thread")]
async fn every_custom_resource_definition_and_every_example_is_accepted_without_a_warning() -> Result {
    let ctx = TestContext::new("examples").await?;
    let printed = run("git", ["-C", ROOT, "ls-files", "crds/*.yaml", "deploy/examples/*.yaml"]).await?;
    let files: Vec<String> = printed.lines().map(|file| format!("{ROOT}/{file}")).collect();
    assert!(files.len() >= 4, "there should be at least two kinds and two examples: {files:?}");
    for file in &files {
        let strict = ["--dry-run=server", "--validate=strict", "--warnings-as-errors", "--namespace"];
        let server_side = ["--server-side", "--force-conflicts", "--field-manager=e2e"];
        let applied =
            [&["apply"], &strict[..], &[&ctx.namespace], &server_side, &["--filename", file]].concat();
        kubectl(applied).await?;
    }
    ctx.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn kubectl_selects_held_runs_shows_columns_and_explains_fields() -> Result {
    let ctx = TestContext::new("columns").await?;
    let held = ctx.start("lost", &Agent::from_definition("missing", json!({ "turns": 1 }))).await?;
    let done = ctx.start("done", &Agent::new(json!({ "turns": 2, "turnSeconds": 0.1 }))).await?;
    held.wait_for(Summary::Held, secs(60)).await?;
    done.wait_for_success().await?;

    let list = ["get", "arun", "--namespace", &ctx.namespace];
    let table = kubectl([&list[..], &["--output", "wide"]].concat()).await?;
    let header: Vec<&str> = table.lines().next().unwrap_or_default().split_whitespace().collect();
    let short = ["NAME", "SUMMARY", "REASON", "TURN", "RECOVERIES", "DISRUPTIONS", "AGENT", "AGE"];
    let wide = ["ATTEMPT", "NODE", "VERSION", "POD"];
    assert_eq!(header, [&short[..], &wide].concat(), "{table}");
    let row = table.lines().find(|line| line.starts_with("done")).unwrap_or_default();
    let cells: Vec<&str> = row.split_whitespace().collect();
    assert_eq!(
        cells.get(..7),
        Some(["done", "Succeeded", "Completed", "2", "0", "0", "<inline>"].as_slice()),
        "{table}"
    );

    let selected =
        kubectl([&list[..], &["--field-selector", "status.summary=Held", "--no-headers"]].concat()).await?;
    assert!(selected.starts_with("lost") && selected.lines().count() == 1, "{selected}");
    let explained = kubectl(["explain", "agentrun.spec.recovery.maxAttemptsWithoutProgress"]).await?;
    assert!(explained.contains("without progress"), "{explained}");
    ctx.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn only_a_user_with_the_right_reads_a_runs_checkpoints_over_http() -> Result {
    let ctx = TestContext::new("readers").await?;
    let run = ctx.start("run", &Agent::new(json!({ "turns": 300, "turnSeconds": 0.5 }))).await?;
    run.wait_for_turn(3).await?;
    let gateway = Worker::for_pod(&ctx.client, &run.pod().await?).await?.user_api_url();
    let mut tokens = Vec::new();
    for reader in ["auditor", "viewer"] {
        kubectl(["create", "serviceaccount", reader, "--namespace", &ctx.namespace]).await?;
        let create = ["create", "token", reader, "--audience", "dalsegno", "--namespace", &ctx.namespace];
        tokens.push(kubectl(create).await?.trim().to_owned());
    }
    let [auditor, viewer] = tokens.as_slice() else { anyhow::bail!("two tokens: {tokens:?}") };
    let user = |name: &str| format!("system:serviceaccount:{}:{name}", ctx.namespace);
    ctx.grant(
        &user("auditor"),
        Rights {
            group: "subresources.dalsegno.dev",
            resources: &[
                "agentruns/state",
                "agentruns/events",
                "agentruns/checkpoint",
                "agentruns/export",
                "agentruns/memory-delta",
                "agentruns/records",
            ],
            verbs: &["get"],
        },
    )
    .await?;
    ctx.grant(&user("viewer"), Rights { group: "dalsegno.dev", resources: &["agentruns"], verbs: &["get"] })
        .await?;

    let read = async |token: &str, call: &str| {
        let url = format!("{gateway}/{}/agentruns/run/{call}", ctx.namespace);
        Request::get(url).bearer(token).send().await
    };
    dalsegno_e2e::wait::eventually("the new right to take effect", secs(30), async || {
        Ok((read(auditor, "state").await?.status == 200).then_some(()))
    })
    .await?;
    let checkpoint: Checkpoint = read(auditor, "checkpoint?turn=3").await?.json()?;
    assert_eq!((checkpoint.turn, checkpoint.run), (3, run.key()));
    assert_eq!(
        checkpoint.image_digest,
        run.status().await?.attempt().image_digest.clone().unwrap_or_default()
    );
    let bundle = read(auditor, "export").await?;
    let last = bundle.body.lines().last().unwrap_or_default();
    assert!(bundle.status == 200 && last.contains("signature"), "{last}");
    for call in ["state", "events", "checkpoint", "export"] {
        assert_eq!(read(viewer, call).await?.problem()?.code, Code::Forbidden, "{call}");
        assert_eq!(read("nonsense", call).await?.problem()?.code, Code::Unauthenticated, "{call}");
    }
    ctx.end().await
}
