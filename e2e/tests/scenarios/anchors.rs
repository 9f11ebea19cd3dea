//! The anchors that the operator keeps in a ConfigMap: a copy outside of the store, with which the store is verified.

use dalsegno_e2e::operator::NAMESPACE;
use dalsegno_e2e::process::{kubectl, run};
use dalsegno_e2e::wait::{eventually, secs};
use dalsegno_e2e::{Agent, Result, TestContext};
use serde_json::json;

#[tokio::test(flavor = "multi_thread")]
async fn the_config_map_has_short_lines_that_prove_the_store() -> Result {
    let ctx = TestContext::new("anchors").await?;
    let done = ctx.start("done", &Agent::new(json!({ "turns": 2, "turnSeconds": 0.1 }))).await?;
    done.wait_for_success().await?;
    let path = r"jsonpath={.data.anchors\.jsonl}";
    let get = ["get", "configmap", "dalsegno-anchors", "--namespace", NAMESPACE, "--output", path];
    let before = kubectl(get).await.unwrap_or_default();
    // An anchor is written once a minute, because runs of other scenarios move all the time.
    let lines = eventually("two more anchors", secs(240), async || {
        let lines = kubectl(get).await?;
        let more = lines.lines().filter(|line| !before.contains(line)).count();
        Ok((more >= 2).then_some(lines))
    })
    .await?;
    assert!(lines.lines().all(|line| line.len() <= 300 && line.starts_with(r#"{"anchor":{"#)), "{lines}");

    let last = lines.lines().last().unwrap_or_default();
    let verify = format!(
        "printf '%s\\n' '{last}' | kubectl exec -i --namespace {NAMESPACE} deployment/dalsegno -- \
         /dalsegno audit verify --anchors - || true"
    );
    let verified = run("sh", ["-c", &verify]).await?;
    // Rows that other tests have damaged are reported too.
    let is_about_anchors = |line: &str| line.starts_with("anchor") || line.contains("an anchor names it");
    assert!(verified.contains(", 1 in the copy: ") && !verified.lines().any(is_about_anchors), "{verified}");
    assert!(!verified.contains("\n0 runs are exactly where the copy proves"), "{verified}");

    let log = kubectl(["logs", "--namespace", NAMESPACE, "deployment/dalsegno"]).await?;
    assert!(!log.contains(r#"{"anchor":{"#), "the operator's log has no anchors");
    ctx.end().await
}
