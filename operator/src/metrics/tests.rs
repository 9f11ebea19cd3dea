//! The metrics as `/metrics` serves them, and the page of the documentation that lists them.

use prometheus_client::encoding::text::encode;

use super::*;

const PAGE: &str = include_str!("../../../docs/reference/metrics.md");
const SOURCE: &str = include_str!("../metrics.rs");

/// Name and type of every metric in a section of docs/reference/metrics.md.
pub fn documented(title: &str) -> Vec<(String, String)> {
    let section = PAGE.split("\n## ").find(|section| section.starts_with(title)).unwrap_or_default();
    let rows = section.lines().filter(|line| line.starts_with("| `"));
    let mut found: Vec<_> = rows
        .map(|row| {
            let mut cells = row.trim_matches('|').split('|').map(|it| it.trim().replace('`', ""));
            (cells.next().unwrap_or_default(), cells.next().unwrap_or_default())
        })
        .collect();
    found.sort();
    found
}

/// Name and type of every metric in the text that `/metrics` serves.
pub fn registered(text: &str) -> Vec<(String, String)> {
    let types = text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' '));
    let mut found: Vec<_> = types
        .map(|(name, kind)| {
            let total = if kind == "counter" { "_total" } else { "" };
            (format!("{name}{total}"), kind.to_owned())
        })
        .collect();
    found.sort();
    found
}

/// The text that `/metrics` serves.
fn rendered(metrics: &Metrics) -> String {
    let (mut registry, mut text) = (Registry::with_prefix("dalsegno"), String::new());
    metrics.register(&mut registry);
    encode(&mut text, &registry).expect("metrics are text");
    text
}

#[test]
fn series_that_are_alerted_on_start_at_0() {
    let text = rendered(&Metrics::default());
    for series in [
        r#"invalid_objects{kind="AgentRun"}"#,
        r#"invalid_objects{kind="AgentDefinition"}"#,
        r#"damage_total{place="head"}"#,
        r#"damage_total{place="run"}"#,
        r#"damage_total{place="retention"}"#,
    ] {
        assert!(text.contains(&format!("\ndalsegno_operator_{series} 0\n")), "{series}\n{text}");
    }
}

#[test]
fn the_alert_on_the_duration_of_a_reconcile_is_within_the_buckets() {
    let alert = PAGE.split("| time that a reconcile took | p99 over ").nth(1).unwrap_or_default();
    let seconds = alert.split(' ').next().and_then(|it| it.parse().ok()).unwrap_or(f64::INFINITY);
    let text = rendered(&Metrics::default());
    let bounds = text.lines().filter_map(|line| {
        line.strip_prefix("dalsegno_operator_reconcile_seconds_bucket{le=\"")?.split('"').next()
    });
    let largest =
        bounds.filter_map(|it| it.parse().ok()).filter(|it: &f64| it.is_finite()).fold(0.0, f64::max);
    assert!(seconds < largest, "{seconds} {largest}");
}

#[test]
fn a_namespace_has_a_series_while_it_is_among_those_with_the_most_bytes() {
    let metrics = Metrics::default();
    let usage =
        |namespace: Option<&str>, bytes| NamespaceUsage { namespace: namespace.map(str::to_owned), bytes };
    metrics.set_stored_bytes(vec![usage(None, 3), usage(Some("bank"), 10), usage(Some("shop"), 20)]);
    metrics.set_stored_bytes(vec![usage(None, 13), usage(Some("shop"), 25)]);
    let text = rendered(&metrics);
    let mut series: Vec<_> =
        text.lines().filter(|line| line.starts_with("dalsegno_operator_stored_bytes{")).collect();
    series.sort();
    let expected = [
        r#"dalsegno_operator_stored_bytes{namespace="(others)"} 13"#,
        r#"dalsegno_operator_stored_bytes{namespace="shop"} 25"#,
    ];
    assert_eq!(series, expected);
}

#[test]
fn the_page_of_metrics_lists_exactly_the_registered_metrics() {
    let metrics = Metrics::default();
    metrics.count_effect("status");
    metrics.count_attempt_ended("OOMKilled");
    metrics.observe_reconcile(Duration::from_millis(5), true);
    metrics.count_deadline_poll(true);
    metrics.count_lookup("found");
    metrics.set_stored_bytes(vec![NamespaceUsage { namespace: Some("shop".into()), bytes: 1 }]);
    metrics.set_active_runs(1);
    metrics.set_watch_age("pods", Duration::from_secs(1));
    let state = StateLabel { summary: "Held".into(), reason: "RecoveryLoop".into() };
    metrics.runs.set_runs([(state, 1)].into());
    metrics.runs.observe_fence(Duration::from_millis(5));
    metrics.set_anchored_until("none", Timestamp::UNIX_EPOCH);
    metrics.set_certificates(Some(Timestamp::UNIX_EPOCH), Some(Timestamp::UNIX_EPOCH), [0, 0]);
    metrics.retention_round_ended(Timestamp::UNIX_EPOCH);
    let text = rendered(&metrics);
    let registered = registered(&text);
    // A metric that was never used is missing in the text.
    let sources = [SOURCE, include_str!("runs.rs"), include_str!("people_api.rs")]
        .map(|it| it.split("#[cfg(test)]").next().unwrap_or_default());
    assert_eq!(registered.len(), sources.concat().matches("registry.register(").count(), "{registered:#?}");
    assert_eq!(documented("Operator"), registered);
}
