//! Every refusal, with its message, by the same rules that the API server evaluates.

#![allow(clippy::unwrap_used)] // a test's helpers may panic as the test itself

use dalsegno_crds::crds;
use kube::core::cel::Validator;
use serde_json::{Value, json};

/// What the rules of `kind` say about `object`, as an update of `old` if there is one.
///
/// Evaluation without the API server has no types, so that its `dyn(self)` is `self`.
fn refusals(kind: &str, object: &Value, old: Option<&Value>) -> Vec<String> {
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
fn accepted(object: Value) {
    assert_eq!(refusals("AgentRun", &object, None), Vec::<String>::new());
}

#[track_caller]
fn assert_refused(found: &[String], expected: &str) {
    assert!(found.len() == 1 && found[0].contains(expected), "expected {expected:?}, found {found:?}");
}

#[track_caller]
fn refused(object: Value, expected: &str) {
    assert_refused(&refusals("AgentRun", &object, None), expected);
}

#[track_caller]
fn may_become(old: Value, new: Value) {
    assert_eq!(refusals("AgentRun", &new, Some(&old)), Vec::<String>::new());
}

#[track_caller]
fn may_not_become(old: Value, new: Value, expected: &str) {
    assert_refused(&refusals("AgentRun", &new, Some(&old)), expected);
}

/// The template is judged alike in a definition and in a run.
#[track_caller]
fn template_refused(spec: Value, expected: &str) {
    refused(run(json!({ "agent": { "template": template(spec.clone()) } })), expected);
    let definition = run(json!({ "template": template(spec) }));
    assert_refused(&refusals("AgentDefinition", &definition, None), expected);
}

#[track_caller]
fn template_accepted(spec: Value) {
    accepted(run(json!({ "agent": { "template": template(spec.clone()) } })));
    let definition = run(json!({ "template": template(spec) }));
    assert_eq!(refusals("AgentDefinition", &definition, None), Vec::<String>::new());
}

#[test]
fn a_run_names_an_agent_or_writes_it_out() {
    let agent = json!({ "template": template(json!({ "containers": [worker()] })) });
    accepted(by_ref(json!({})));
    accepted(run(json!({ "agent": agent })));
    refused(run(json!({})), "set exactly one of agentRef");
    refused(by_ref(json!({ "agent": agent })), "set exactly one of agentRef");
}

#[test]
fn a_run_has_one_input_at_most() {
    let from = json!({ "secretKeyRef": { "name": "task", "key": "input.json" } });
    accepted(by_ref(json!({ "input": "any" })));
    accepted(by_ref(json!({ "input": { "any": ["thing", 1] } })));
    accepted(by_ref(json!({ "inputFrom": from })));
    refused(by_ref(json!({ "input": 1, "inputFrom": from })), "set at most one of input and inputFrom");
}

#[test]
fn an_input_has_one_source() {
    let key = json!({ "name": "task", "key": "input.json" });
    accepted(by_ref(json!({ "inputFrom": { "configMapKeyRef": key } })));
    let expected = "set exactly one of secretKeyRef and configMapKeyRef";
    refused(by_ref(json!({ "inputFrom": {} })), expected);
    refused(by_ref(json!({ "inputFrom": { "configMapKeyRef": key, "secretKeyRef": key } })), expected);
}

#[test]
fn a_runs_name_is_a_short_label() {
    let spec = json!({ "agentRef": { "name": "researcher" } });
    accepted(run_named(&"n".repeat(52), spec.clone()));
    refused(run_named(&"n".repeat(53), spec.clone()), "use a DNS label of at most 52 characters");
    refused(run_named("nightly.1", spec), "use a DNS label of at most 52 characters");
}

#[test]
fn the_agent_of_a_run_cannot_be_exchanged() {
    let agent = json!({ "template": template(json!({ "containers": [worker()] })) });
    let other = json!({ "template": template(json!({ "containers": [worker()] })), "agentVersion": "2" });
    let expected = "agentRef cannot change: create a new AgentRun";
    may_become(by_ref(json!({})), by_ref(json!({ "recovery": { "resetGeneration": 1 } })));
    may_become(run(json!({ "agent": agent })), run(json!({ "agent": other })));
    may_not_become(by_ref(json!({})), run(json!({ "agentRef": { "name": "other" } })), expected);
    may_not_become(by_ref(json!({})), run(json!({ "agent": agent })), expected);
    may_not_become(run(json!({ "agent": agent })), by_ref(json!({})), expected);
}

#[test]
fn the_source_of_an_input_cannot_be_exchanged() {
    let from =
        |key: &str| by_ref(json!({ "inputFrom": { "configMapKeyRef": { "name": "task", "key": key } } }));
    let expected = "inputFrom cannot change: create a new AgentRun";
    may_become(from("a"), from("a"));
    may_not_become(from("a"), from("b"), expected);
    may_not_become(from("a"), by_ref(json!({})), expected);
    may_not_become(by_ref(json!({})), from("a"), expected);
}

#[test]
fn a_cancelled_run_stays_cancelled() {
    let mode = |mode: &str| by_ref(json!({ "operatingMode": mode }));
    let expected = "a cancelled run stays cancelled";
    may_become(by_ref(json!({})), mode("Cancelled"));
    may_become(mode("Running"), mode("Cancelled"));
    may_become(mode("Running"), by_ref(json!({})));
    may_become(mode("Cancelled"), mode("Cancelled"));
    may_not_become(mode("Cancelled"), mode("Running"), expected);
    may_not_become(mode("Cancelled"), by_ref(json!({})), expected);
}

#[test]
fn the_first_wait_is_not_longer_than_the_longest() {
    let backoff = |backoff: Value| by_ref(json!({ "recovery": { "backoff": backoff } }));
    accepted(backoff(json!({ "initialSeconds": 5 })));
    accepted(backoff(json!({ "initialSeconds": 5, "maxSeconds": 5 })));
    refused(
        backoff(json!({ "initialSeconds": 6, "maxSeconds": 5 })),
        "initialSeconds must not be larger than maxSeconds",
    );
}

#[test]
fn a_definition_grants_no_fresh_budget() {
    let definition = |recovery: Value| {
        let template = template(json!({ "containers": [worker()] }));
        run(json!({ "template": template, "defaults": { "recovery": recovery } }))
    };
    assert_eq!(
        refusals("AgentDefinition", &definition(json!({ "maxRecoveryAttempts": 5 })), None),
        Vec::<String>::new()
    );
    assert_refused(
        &refusals("AgentDefinition", &definition(json!({ "resetGeneration": 5 })), None),
        "resetGeneration belongs to one run",
    );
}

#[test]
fn a_worker_is_never_restarted_in_place() {
    template_accepted(json!({ "containers": [worker()], "restartPolicy": "Never" }));
    for policy in ["Always", "OnFailure"] {
        template_refused(
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
        template_refused(json!({ "containers": [container] }), expected);
    }
}

#[test]
fn an_init_container_may_be_a_sidecar() {
    let sidecar = json!({ "name": "proxy", "image": "registry.example/proxy:1", "restartPolicy": "Always" });
    template_accepted(json!({ "containers": [worker()], "initContainers": [sidecar] }));
}

#[test]
fn a_template_does_not_go_round_the_scheduler() {
    template_accepted(json!({ "containers": [worker()], "nodeName": "" }));
    template_refused(
        json!({ "containers": [worker()], "nodeName": "node-1" }),
        "remove nodeName, which goes round the scheduler",
    );
}

#[test]
fn the_worker_is_the_only_container_or_the_one_named_agent() {
    let helper = |name: &str| json!({ "name": name, "image": "registry.example/helper:1" });
    template_accepted(json!({ "containers": [helper("anything")] }));
    template_accepted(json!({ "containers": [helper("helper"), worker()] }));
    template_refused(
        json!({ "containers": [helper("one"), helper("two")] }),
        "name the worker's container agent",
    );
}
