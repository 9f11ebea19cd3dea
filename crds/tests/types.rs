//! The types: enums, reasons, conditions and templates.

use std::fs;

use dalsegno_crds::{
    Agent, AgentRun, AgentRunSpec, Cause, ConditionStatus, ConditionType, PodTemplate, Reason, Summary,
    condition, find_condition,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use serde_json::json;

#[test]
fn a_variant_has_the_same_spelling_everywhere() {
    assert_eq!(serde_json::to_value(Cause::OOMKilled).unwrap(), json!("OOMKilled"));
    assert_eq!(serde_json::from_value::<Summary>(json!("BackingOff")).unwrap(), Summary::BackingOff);
    assert_eq!("NodeLost".parse(), Ok(Cause::NodeLost));
    assert_eq!(format!("{:>6}", Summary::Held), "  Held");
    let error = "Paused".parse::<Summary>().unwrap_err();
    assert_eq!(error.to_string(), "there is no Summary \"Paused\"");
    for reason in Reason::ALL {
        assert_eq!(reason.as_str().parse(), Ok(*reason));
        assert_eq!(serde_json::to_value(reason).unwrap(), reason.as_str());
    }
}

#[test]
fn every_reason_has_a_meaning_and_a_remediation() {
    for reason in Reason::ALL {
        for sentence in [reason.meaning(), reason.remediation()] {
            assert!(sentence.ends_with('.') && !sentence.contains("  "), "{reason}: {sentence}");
        }
    }
}

#[test]
fn the_reference_lists_every_reason_and_cause() {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/reference/conditions.md");
    let page = fs::read_to_string(page).unwrap();
    let names = Reason::ALL.iter().map(|it| it.as_str()).chain(Cause::ALL.iter().map(|it| it.as_str()));
    let missing: Vec<_> = names.filter(|name| !page.contains(&format!("`{name}`"))).collect();
    assert!(missing.is_empty(), "docs/reference/conditions.md does not list {missing:?}");
}

#[test]
fn the_drawing_of_the_states_has_every_summary_and_the_table_every_arrow() {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/guides/state-machine.md");
    let page = fs::read_to_string(page).unwrap();
    let arrows: Vec<_> = page.lines().filter_map(|line| line.trim().split_once(" --> ")).collect();
    for summary in Summary::ALL {
        let enters = arrows.iter().any(|(_, to)| to.starts_with(&format!("{summary}:")));
        let leaves = arrows.iter().any(|(from, _)| *from == summary.as_str());
        assert!(enters && leaves, "{summary} is not drawn");
    }
    for (from, to) in arrows {
        let (to, label) = to.split_once(": ").unwrap();
        let number = label.split(' ').next().unwrap();
        assert!(page.contains(&format!("\n| {number} | ")), "{from} --> {to}: there is no row {number}");
    }
}

#[test]
fn a_condition_is_found_by_its_type() {
    let since = Time(Timestamp::UNIX_EPOCH);
    let held = condition(ConditionType::Held, true, Reason::RecoveryLoop, since);
    assert_eq!((held.type_.as_str(), held.status.as_str()), ("Held", "True"));
    assert_eq!(held.reason, "RecoveryLoop");
    let conditions = [held];
    assert!(find_condition(&conditions, ConditionType::Held).is_some());
    assert!(find_condition(&conditions, ConditionType::Ready).is_none());
    assert_eq!(ConditionStatus::from(false).as_str(), "False");
}

#[test]
fn a_template_keeps_unknown_fields() {
    let text = json!({
        "metadata": { "labels": { "team": "search" } },
        "spec": { "containers": [{ "name": "agent", "image": "a:1", "fieldOfTomorrow": { "x": 1 } }] },
    });
    let template: PodTemplate = serde_json::from_value(text.clone()).unwrap();
    assert_eq!(serde_json::to_value(&template).unwrap(), text);
    let pod = template.pod_template().unwrap();
    assert_eq!(pod.spec.unwrap().containers[0].image.as_deref(), Some("a:1"));
}

#[test]
fn the_error_for_an_invalid_template_names_the_value() {
    let template: PodTemplate =
        serde_json::from_value(json!({ "spec": { "containers": [{ "name": "agent", "command": "sh" }] } }))
            .unwrap();
    let error = template.pod_template().unwrap_err().to_string();
    assert!(error.contains("string \"sh\""), "{error}");
}

#[test]
fn unset_fields_are_not_serialized() {
    let run = AgentRun::new(
        "nightly",
        AgentRunSpec {
            agent: Some(Agent {
                template: PodTemplate::default(),
                agent_version: None,
                compatible_with: Vec::new(),
                checkpointing: None,
            }),
            ..AgentRunSpec::default()
        },
    );
    assert_eq!(serde_json::to_value(run.spec).unwrap(), json!({ "agent": { "template": {} } }));
}
