//! The Helm release is uninstalled while runs are active, and installed again.

use dalsegno_e2e::install::Version;
use dalsegno_e2e::operator::{NAMESPACE, RELEASE};
use dalsegno_e2e::process::{self, UndoGuard};
use dalsegno_e2e::wait::{eventually, secs};
use dalsegno_e2e::{Agent, Result, StatusExt, TestContext, install};
use k8s_openapi::api::core::v1::Namespace;
use kube::api::{Api, DeleteParams};
use serde_json::json;

/// The command in the release's notes that removes the finalizer from every AgentRun.
async fn finalizer_command_of_notes() -> Result<String> {
    let notes = process::run("helm", ["get", "notes", RELEASE, "--namespace", NAMESPACE]).await?;
    let line = notes.lines().find(|line| line.contains("xargs") && line.contains("finalizers"));
    line.map(str::to_owned)
        .ok_or_else(|| anyhow::anyhow!("the notes have no command that removes the finalizers:\n{notes}"))
}

#[tokio::test(flavor = "multi_thread")]
async fn after_an_uninstall_pods_and_namespaces_can_be_deleted_and_a_new_install_resumes_the_runs() -> Result
{
    let ctx = TestContext::new("uninstalled").await?;
    let doomed = TestContext::new("uninstalled-doomed").await?;
    let script = json!({ "turns": 30, "turnSeconds": 0.3, "onTerm": "exit143" });
    let run = ctx.start("run", &Agent::new(script.clone())).await?;
    let moved = ctx.start("moved", &Agent::new(script.clone())).await?;
    let lost = doomed.start("run", &Agent::new(script)).await?;
    for one in [&run, &moved, &lost] {
        one.wait_for_turn(3).await?;
    }
    let command = finalizer_command_of_notes().await?;
    let reinstall = UndoGuard::new(Version::current().helm_command(&install::values()));
    process::run("helm", ["uninstall", RELEASE, "--namespace", NAMESPACE, "--wait"]).await?;

    moved.evict().await?;
    eventually("the evicted pod to be gone", secs(30), async || {
        Ok(moved.pods().await?.is_empty().then_some(()))
    })
    .await?;
    assert_eq!(run.pods().await?.len(), 1, "an uninstall should not stop running workers");
    process::run("sh", ["-c", &command]).await?;
    let namespaces: Api<Namespace> = Api::all(doomed.client.clone());
    namespaces.delete(&doomed.namespace, &DeleteParams::default()).await?;
    eventually("the namespace to be gone", secs(60), async || {
        Ok(namespaces.get_opt(&doomed.namespace).await?.is_none().then_some(()))
    })
    .await?;

    reinstall.undo().await?;
    ctx.operator.wait_for_rollout().await?;
    assert_eq!(run.wait_for_success().await?.attempt().number, 1);
    let status = moved.wait_for_success().await?;
    assert_eq!(status.attempt().number, 2);
    assert_eq!((status.recovery().recovery_attempts, status.recovery().disruptions), (0, 1));
    for one in [&run, &moved] {
        one.expect_nothing_lost_or_repeated(30).await?;
        one.delete(secs(30)).await?;
    }
    doomed.end_without_namespace()?;
    ctx.end().await
}
