//! The chart for clusters that differ from this one.

use dalsegno_e2e::operator::RELEASE;
use dalsegno_e2e::{Result, process};

/// A namespace without a release, so that nothing is merged into what is installed.
const NAMESPACE: &str = "default";

/// Renders the chart with these values, and has the API server check every object without storing it.
async fn check(name: &str, values: &[&str]) -> Result {
    let chart = format!("{}/../charts/dalsegno", env!("CARGO_MANIFEST_DIR"));
    let mut render = vec!["template", RELEASE, &chart, "--namespace", NAMESPACE, "--set", "image.tag=dev"];
    values.iter().for_each(|value| render.extend(["--set", value]));
    let folder = std::env::temp_dir().join(format!("dalsegno-chart-{name}-{}", std::process::id()));
    tokio::fs::create_dir_all(&folder).await?;
    let file = folder.join("rendered.yaml");
    tokio::fs::write(&file, process::run("helm", &render).await?).await?;
    let apply = ["apply", "--server-side", "--dry-run=server", "--force-conflicts", "--validate=strict"];
    let file = file.to_string_lossy().into_owned();
    let applied = process::kubectl(apply.into_iter().chain(["--filename", &file])).await;
    tokio::fs::remove_dir_all(&folder).await?;
    applied.map(drop)
}

#[tokio::test(flavor = "multi_thread")]
async fn the_api_server_accepts_the_chart_for_other_kinds_of_clusters() -> Result {
    let postgres = ["postgres.existingSecret.name=dsn", "encryption.existingSecret=keys"];
    check("postgres", &postgres).await?;
    check("single-operator", &[&postgres[..], &["operator.replicas=1"]].concat()).await?;
    check("watched-namespaces", &["watchNamespaces={default,kube-public}"]).await?;
    let open_shift = ["runAsUser", "runAsGroup", "fsGroup"].map(|it| format!("podSecurityContext.{it}=null"));
    check("openshift", &open_shift.each_ref().map(String::as_str)).await?;
    check("ipv4-only", &["listenAddress=0.0.0.0"]).await?;
    let network = [
        "networkPolicy.enabled=true",
        "networkPolicy.gatewayFrom[0].podSelector.matchLabels.app=reader",
        "networkPolicy.metricsFrom[0].namespaceSelector.matchLabels.team=monitoring",
    ];
    check("network-policy", &network).await?;
    check("environment", &["operator.env[0].name=HTTPS_PROXY", "operator.env[0].value=http://proxy:3128"])
        .await
}
