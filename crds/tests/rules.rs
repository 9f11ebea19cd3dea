//! Every validation rule, with its message. The tests evaluate the same CEL rules as the API server.

#![allow(clippy::unwrap_used)] // helpers of tests may panic

use dalsegno_crds::crds;
use kube::core::cel::Validator;
use serde_json::{Value, json};

/// Evaluates the rules of `kind` for `object`, as an update of `old` if it is given. Returns the error messages.
///
/// Evaluation outside the API server has no types, so `dyn(self)` is replaced by `self`.
fn violations(kind: &str, object: &Value, old: Option<&Value>) -> Vec<String> {
    let crd = crds().into_iter().find(|crd| crd.spec.names.kind == kind).unwrap();
    let schema =
        serde_json::to_string(&crd.spec.versions[0].schema.as_ref().unwrap().open_api_v3_schema).unwrap();
    let schema = serde_json::from_str(&schema.replace("dyn(self)", "self")).unwrap();
    match Validator::new().validate(&schema, object, old) {
        Ok(()) => Vec::new(),
        Err(errors) => errors.into_iter().map(|error| error.to_string()).collect(),
    }
}

fn run_named(name: &str, spec: Value) -> Value {
    json!({ "metadata": { "name": name }, "spec": spec })
}

fn run(spec: Value) -> Value {
    run_named("nightly", spec)
}

fn by_ref(mut more: Value) -> Value {
    more["agentRef"] = json!({ "name": "researcher" });
    run(more)
}

fn template(spec: Value) -> Value {
    json!({ "metadata": {}, "spec": spec })
}

fn worker() -> Value {
    json!({ "name": "agent", "image": "registry.example/agent:1" })
}

#[track_caller]
fn assert_accepted(object: Value) {
    assert_eq!(violations("AgentRun", &object, None), Vec::<String>::new());
}

#[track_caller]
fn assert_rejected(found: &[String], expected: &str) {
    assert!(found.len() == 1 && found[0].contains(expected), "expected {expected:?}, found {found:?}");
}

#[track_caller]
fn assert_run_rejected(object: Value, expected: &str) {
    assert_rejected(&violations("AgentRun", &object, None), expected);
}

#[track_caller]
fn assert_update_accepted(old: Value, new: Value) {
    assert_eq!(violations("AgentRun", &new, Some(&old)), Vec::<String>::new());
}

#[track_caller]
fn assert_update_rejected(old: Value, new: Value, expected: &str) {
    assert_rejected(&violations("AgentRun", &new, Some(&old)), expected);
}

/// The rules for a template are the same in a definition and in a run.
#[track_caller]
fn assert_template_rejected(spec: Value, expected: &str) {
    assert_run_rejected(run(json!({ "agent": { "template": template(spec.clone()) } })), expected);
    let definition = run(json!({ "template": template(spec) }));
    assert_rejected(&violations("AgentDefinition", &definition, None), expected);
}

#[track_caller]
fn assert_template_accepted(spec: Value) {
    assert_accepted(run(json!({ "agent": { "template": template(spec.clone()) } })));
    let definition = run(json!({ "template": template(spec) }));
    assert_eq!(violations("AgentDefinition", &definition, None), Vec::<String>::new());
}

#[test]
fn a_run_has_either_an_agent_ref_or_an_inline_agent() {
    let agent = json!({ "template": template(json!({ "containers": [worker()] })) });
    assert_accepted(by_ref(json!({})));
    assert_accepted(run(json!({ "agent": agent })));
    assert_run_rejected(run(json!({})), "set exactly one of agentRef");
    assert_run_rejected(by_ref(json!({ "agent": agent })), "set exactly one of agentRef");
}

#[test]
fn a_run_has_at_most_one_input() {
    let from = json!({ "secretKeyRef": { "name": "task", "key": "input.json" } });
    assert_accepted(by_ref(json!({ "input": "any" })));
    assert_accepted(by_ref(json!({ "input": { "any": ["thing", 1] } })));
    assert_accepted(by_ref(json!({ "inputFrom": from })));
    assert_run_rejected(
        by_ref(json!({ "input": 1, "inputFrom": from })),
        "set at most one of input and inputFrom",
    );
}

#[test]
fn an_input_has_exactly_one_source() {
    let key = json!({ "name": "task", "key": "input.json" });
    assert_accepted(by_ref(json!({ "inputFrom": { "configMapKeyRef": key } })));
    let expected = "set exactly one of secretKeyRef and configMapKeyRef";
    assert_run_rejected(by_ref(json!({ "inputFrom": {} })), expected);
    assert_run_rejected(
        by_ref(json!({ "inputFrom": { "configMapKeyRef": key, "secretKeyRef": key } })),
        expected,
    );
}

#[test]
fn the_name_of_a_run_is_a_short_dns_label() {
    let spec = json!({ "agentRef": { "name": "researcher" } });
    assert_accepted(run_named(&"n".repeat(52), spec.clone()));
    assert_run_rejected(run_named(&"n".repeat(53), spec.clone()), "use a DNS label of at most 52 characters");
    assert_run_rejected(run_named("nightly.1", spec), "use a DNS label of at most 52 characters");
}

#[test]
fn the_agent_ref_of_a_run_is_immutable() {
    let agent = json!({ "template": template(json!({ "containers": [worker()] })) });
    let other = json!({ "template": template(json!({ "containers": [worker()] })), "agentVersion": "2" });
    let expected = "agentRef cannot change: create a new AgentRun";
    assert_update_accepted(by_ref(json!({})), by_ref(json!({ "recovery": { "resetGeneration": 1 } })));
    assert_update_accepted(run(json!({ "agent": agent })), run(json!({ "agent": other })));
    assert_update_rejected(by_ref(json!({})), run(json!({ "agentRef": { "name": "other" } })), expected);
    assert_update_rejected(by_ref(json!({})), run(json!({ "agent": agent })), expected);
    assert_update_rejected(run(json!({ "agent": agent })), by_ref(json!({})), expected);
}

#[test]
fn the_source_of_an_input_is_immutable() {
    let from =
        |key: &str| by_ref(json!({ "inputFrom": { "configMapKeyRef": { "name": "task", "key": key } } }));
    let expected = "inputFrom cannot change: create a new AgentRun";
    assert_update_accepted(from("a"), from("a"));
    assert_update_rejected(from("a"), from("b"), expected);
    assert_update_rejected(from("a"), by_ref(json!({})), expected);
    assert_update_rejected(by_ref(json!({})), from("a"), expected);
}

#[test]
fn a_cancelled_run_stays_cancelled() {
    let mode = |mode: &str| by_ref(json!({ "operatingMode": mode }));
    let expected = "a cancelled run stays cancelled";
    assert_update_accepted(by_ref(json!({})), mode("Cancelled"));
    assert_update_accepted(mode("Running"), mode("Cancelled"));
    assert_update_accepted(mode("Running"), by_ref(json!({})));
    assert_update_accepted(mode("Cancelled"), mode("Cancelled"));
    assert_update_rejected(mode("Cancelled"), mode("Running"), expected);
    assert_update_rejected(mode("Cancelled"), by_ref(json!({})), expected);
}

#[test]
fn the_first_delay_is_not_longer_than_the_longest() {
    let backoff = |backoff: Value| by_ref(json!({ "recovery": { "backoff": backoff } }));
    assert_accepted(backoff(json!({ "initialSeconds": 5 })));
    assert_accepted(backoff(json!({ "initialSeconds": 5, "maxSeconds": 5 })));
    assert_run_rejected(
        backoff(json!({ "initialSeconds": 6, "maxSeconds": 5 })),
        "initialSeconds must not be larger than maxSeconds",
    );
}

#[test]
fn a_definition_cannot_grant_a_budget() {
    let definition = |recovery: Value| {
        let template = template(json!({ "containers": [worker()] }));
        run(json!({ "template": template, "defaults": { "recovery": recovery } }))
    };
    assert_eq!(
        violations("AgentDefinition", &definition(json!({ "maxRecoveryAttempts": 5 })), None),
        Vec::<String>::new()
    );
    assert_rejected(
        &violations("AgentDefinition", &definition(json!({ "resetGeneration": 5 })), None),
        "resetGeneration belongs to one run",
    );
}

#[test]
fn a_worker_is_never_restarted_in_place() {
    assert_template_accepted(json!({ "containers": [worker()], "restartPolicy": "Never" }));
    for policy in ["Always", "OnFailure"] {
        assert_template_rejected(
            json!({ "containers": [worker()], "restartPolicy": policy }),
            "remove restartPolicy or set it to Never",
        );
    }
    let mut with_policy = worker();
    with_policy["restartPolicy"] = json!("OnFailure");
    let mut with_rules = worker();
    with_rules["restartPolicyRules"] = json!([{ "action": "Restart" }]);
    for container in [with_policy, with_rules] {
        let expected = "remove restartPolicy and restartPolicyRules from the containers";
        assert_template_rejected(json!({ "containers": [container] }), expected);
    }
}

#[test]
fn an_init_container_may_be_a_sidecar() {
    let sidecar = json!({ "name": "proxy", "image": "registry.example/proxy:1", "restartPolicy": "Always" });
    assert_template_accepted(json!({ "containers": [worker()], "initContainers": [sidecar] }));
}

#[test]
fn a_rule_of_an_init_container_restarts_only_that_container() {
    let init = |rules: Value| {
        let container = json!({ "name": "fetch", "image": "registry.example/fetch:1", "restartPolicy": "Never",
                                "restartPolicyRules": rules });
        json!({ "containers": [worker()], "initContainers": [container] })
    };
    let exit_codes = json!({ "operator": "In", "values": [42] });
    assert_template_accepted(init(json!([{ "action": "Restart", "exitCodes": exit_codes }])));
    for action in ["RestartAllContainers", "RestartPod"] {
        let rules = json!([{ "action": "Restart" }, { "action": action, "exitCodes": exit_codes }]);
        assert_template_rejected(init(rules), "use only the action Restart in restartPolicyRules");
    }
    assert_template_rejected(init(json!([{}])), "use only the action Restart in restartPolicyRules");
}

#[test]
fn a_template_cannot_bypass_the_scheduler() {
    assert_template_accepted(json!({ "containers": [worker()], "nodeName": "" }));
    assert_template_rejected(
        json!({ "containers": [worker()], "nodeName": "node-1" }),
        "remove nodeName, because it bypasses the scheduler",
    );
}

#[test]
fn the_worker_is_the_only_container_or_the_one_named_agent() {
    let helper = |name: &str| json!({ "name": name, "image": "registry.example/helper:1" });
    assert_template_accepted(json!({ "containers": [helper("anything")] }));
    assert_template_accepted(json!({ "containers": [helper("helper"), worker()] }));
    assert_template_rejected(
        json!({ "containers": [helper("one"), helper("two")] }),
        "name the worker's container agent",
    );
}

fn approval(change: impl FnOnce(&mut Value)) -> Value {
    let mut spec = json!({
        "runRef": { "name": "nightly", "uid": "u" }, "waitID": "pay", "epoch": 1, "turn": 1, "proposalHash": "sha256:1",
        "title": "t", "summary": "s", "onTimeout": "Answer", "fourEyes": false,
    });
    change(&mut spec);
    run(spec)
}

fn decision(by: &str, hash: &str) -> Value {
    json!({ "verdict": "Approved", "proposalHash": hash, "reason": "r", "by": by })
}

fn approval_violations(old: &Value, new: &Value) -> Vec<String> {
    violations("AgentApproval", new, Some(old))
}

#[test]
fn only_the_decisions_of_an_approval_may_be_written_and_each_of_them_once() {
    let open = approval(|_| {});
    let first = approval(|it| it["decision"] = decision("ann", "sha256:1"));
    let both = approval(|it| {
        it["decision"] = decision("ann", "sha256:1");
        it["secondDecision"] = decision("bob", "sha256:1");
    });
    for (old, new) in [(&open, &first), (&first, &both), (&first, &first), (&both, &open)] {
        assert_eq!(approval_violations(old, new), Vec::<String>::new());
    }
    let expected = "only decision and secondDecision may be written";
    for (field, value) in [
        ("title", json!("x")),
        ("summary", json!("x")),
        ("proposalHash", json!("x")),
        ("waitID", json!("x")),
        ("epoch", json!(2)),
        ("turn", json!(2)),
        ("fourEyes", json!(true)),
        ("onTimeout", json!("Hold")),
        ("runRef", json!({ "name": "x", "uid": "u" })),
        ("deadlineTime", json!("2026-11-26T00:00:00Z")),
    ] {
        assert_rejected(&approval_violations(&open, &approval(|it| it[field] = value)), expected);
    }
    let other = approval(|it| it["decision"] = decision("bob", "sha256:1"));
    assert_rejected(&approval_violations(&first, &other), "a decision cannot be changed");
    let other = approval(|it| {
        it["decision"] = decision("ann", "sha256:1");
        it["secondDecision"] = decision("carol", "sha256:1");
    });
    assert_rejected(&approval_violations(&both, &other), "a second decision cannot be changed");
}

#[test]
fn a_decision_names_the_proposal_and_the_second_one_is_by_another_person() {
    let open = approval(|_| {});
    let other = approval(|it| it["decision"] = decision("ann", "sha256:2"));
    assert_rejected(&approval_violations(&open, &other), "decide about this proposal");
    let alone = approval(|it| it["secondDecision"] = decision("bob", "sha256:1"));
    assert_rejected(&approval_violations(&open, &alone), "write decision first");
    let twice = approval(|it| {
        it["decision"] = decision("ann", "sha256:1");
        it["secondDecision"] = decision("ann", "sha256:1");
    });
    assert_rejected(&approval_violations(&open, &twice), "by another person");
    let mut changes = decision("ann", "sha256:1");
    changes["changes"] = json!({ "cents": 1 });
    let unasked = approval(|it| it["decision"] = changes.clone());
    assert_rejected(&approval_violations(&open, &unasked), "changes belong to the verdict Changed");
    changes["verdict"] = json!("Changed");
    assert_eq!(approval_violations(&open, &approval(|it| it["decision"] = changes)), Vec::<String>::new());
}

#[test]
fn four_eyes_of_a_run_cannot_be_taken_back() {
    let eyes = |value: bool| by_ref(json!({ "fourEyes": value }));
    assert_update_accepted(by_ref(json!({})), eyes(true));
    assert_update_accepted(eyes(false), by_ref(json!({})));
    assert_update_accepted(eyes(true), eyes(true));
    assert_update_rejected(eyes(true), eyes(false), "fourEyes cannot be taken back");
    assert_update_rejected(eyes(true), by_ref(json!({})), "fourEyes cannot be taken back");
}

/// The rules for an agent with checkpoints of its own are the same in a definition's defaults and in a run.
#[test]
fn an_external_agent_refuses_what_it_does_not_support() {
    let agent =
        json!({ "template": template(json!({ "containers": [worker()] })), "checkpointing": "External" });
    let of_run = |mut more: Value| {
        more["agent"] = agent.clone();
        run(more)
    };
    let of_definition = |defaults: Value| {
        let mut definition = agent.clone();
        definition["defaults"] = defaults;
        run(definition)
    };
    for (fields, path) in [
        (json!({ "liveness": { "startDeadlineSeconds": 60 } }), "liveness: the worker sends no heartbeats"),
        (json!({ "suspend": { "graceSeconds": 5 } }), "suspend: a suspend deletes the pod"),
        (json!({ "limits": { "turns": 5 } }), "limits.turns: "),
        (json!({ "limits": { "tokens": 5 } }), "limits.tokens: "),
        (json!({ "limits": { "costMicroUSD": 5 } }), "limits.costMicroUSD: "),
        (json!({ "fourEyes": true }), "fourEyes: true: "),
        (json!({ "checkpoints": { "snapshotEvery": 5 } }), "checkpoints: "),
        (json!({ "retention": { "keepLast": 5 } }), "retention.keepLast: "),
        (json!({ "recovery": { "onSameCheckpoint": "Rewind" } }), "recovery.onSameCheckpoint: Rewind: "),
        (
            json!({ "recovery": { "onCorruptCheckpoint": "LastGood" } }),
            "recovery.onCorruptCheckpoint: LastGood: ",
        ),
        (json!({ "onPriorRun": "Adopt" }), "onPriorRun: Adopt: nothing fences"),
    ] {
        assert_run_rejected(of_run(fields.clone()), &format!("External does not support {path}"));
        assert_rejected(
            &violations("AgentDefinition", &of_definition(fields), None),
            &format!("External does not support defaults.{path}"),
        );
    }
    let rewind = json!({ "rewind": { "generation": 1, "toTurn": 2 } });
    assert_run_rejected(of_run(rewind), "External does not support rewind");
    let fork = json!({ "resumeFrom": { "runName": "other" } });
    assert_run_rejected(of_run(fork), "External does not support resumeFrom");

    let supported = json!({
        "limits": { "activeSeconds": 60 }, "fourEyes": false, "onPriorRun": "Ignore",
        "recovery": { "onSameCheckpoint": "Retry", "maxRecoveryAttempts": 5 }, "retention": { "keepPods": 2 },
    });
    assert_accepted(of_run(supported.clone()));
    assert_eq!(violations("AgentDefinition", &of_definition(supported), None), Vec::<String>::new());
}

#[test]
fn checkpointing_does_not_change() {
    let with = |checkpointing: Option<&str>| {
        let mut agent = json!({ "template": template(json!({ "containers": [worker()] })) });
        if let Some(checkpointing) = checkpointing {
            agent["checkpointing"] = json!(checkpointing);
        }
        agent
    };
    let change = |from: Value, to: Value| violations("AgentDefinition", &run(to), Some(&run(from)));
    assert_rejected(&change(with(None), with(Some("External"))), "checkpointing cannot change");
    assert_rejected(&change(with(Some("External")), with(None)), "checkpointing cannot change");
    assert_eq!(change(with(None), with(Some("Gateway"))), Vec::<String>::new());
    assert_eq!(change(with(Some("External")), with(Some("External"))), Vec::<String>::new());
    let inline = |agent| run(json!({ "agent": agent }));
    assert_update_rejected(inline(with(None)), inline(with(Some("External"))), "checkpointing cannot change");
    assert_update_accepted(inline(with(None)), inline(with(Some("Gateway"))));
    assert_update_accepted(by_ref(json!({})), by_ref(json!({})));
}
