//! What people apply, type and read.

use dalsegno_crds::Summary;
use dalsegno_e2e::process::{kubectl, run};
use dalsegno_e2e::wait::secs;
use dalsegno_e2e::{Agent, Result, World};
use serde_json::json;

/// The root of the repository.
const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");

#[tokio::test(flavor = "multi_thread")]
async fn every_definition_of_a_kind_and_every_example_is_accepted_without_a_warning() -> Result {
    let world = World::new("examples").await?;
    let printed = run("git", ["-C", ROOT, "ls-files", "crds/*.yaml", "deploy/examples/*.yaml"]).await?;
    let files: Vec<String> = printed.lines().map(|file| format!("{ROOT}/{file}")).collect();
    assert!(files.len() >= 4, "two kinds and two examples at least: {files:?}");
    for file in &files {
        let strict = ["--dry-run=server", "--validate=strict", "--warnings-as-errors", "--namespace"];
        let server_side = ["--server-side", "--force-conflicts", "--field-manager=e2e"];
        let applied =
            [&["apply"], &strict[..], &[&world.namespace], &server_side, &["--filename", file]].concat();
        kubectl(applied).await?;
    }
    world.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn kubectl_lists_held_runs_tells_their_story_in_columns_and_explains_the_fields() -> Result {
    let world = World::new("columns").await?;
    let held = world.start("lost", &Agent::of("missing", json!({ "turns": 1 }))).await?;
    let done = world.start("done", &Agent::new(json!({ "turns": 2, "turnSeconds": 0.1 }))).await?;
    held.reaches(Summary::Held, secs(60)).await?;
    done.succeeds().await?;

    let list = ["get", "arun", "--namespace", &world.namespace];
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
    world.end().await
}
