//! Manifests that the API server refuses, each with a sentence that says what to do.

use dalsegno_crds::AgentDefinition;
use dalsegno_e2e::objects::{self, merge, refusal};
use dalsegno_e2e::{Agent, Definition, Result, TestContext};
use serde_json::{Value, json};

/// A good run's manifest with a change.
fn changed(change: Value) -> Value {
    let mut manifest = Agent::new(json!({ "turns": 1 })).manifest("run", "http://ledger");
    merge(&mut manifest, &change);
    manifest
}

/// A good run's manifest with a change of its template's pod.
fn with_pod(pod: Value) -> Value {
    changed(json!({ "spec": { "agent": { "template": { "spec": pod } } } }))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_malformed_run_is_refused_with_a_sentence_that_says_what_to_do() -> Result {
    let ctx = TestContext::new("malformed").await?;
    let exactly_one = "set exactly one of agentRef";
    let no_label = "DNS label of at most 52 characters";
    let second = json!({ "name": "helper", "image": "helper:1" });
    let cases = [
        ("neither agentRef nor agent", changed(json!({ "spec": { "agent": null } })), exactly_one),
        ("both", changed(json!({ "spec": { "agentRef": { "name": "a" } } })), exactly_one),
        (
            "no worker among several containers",
            with_pod(json!({ "containers": null }))
                .merged(json!({ "containers": [{ "name": "one", "image": "one:1" }, second] })),
            "name the worker's container agent",
        ),
        ("restartPolicy: Always", with_pod(json!({ "restartPolicy": "Always" })), "set it to Never"),
        ("restartPolicy: OnFailure", with_pod(json!({ "restartPolicy": "OnFailure" })), "set it to Never"),
        ("nodeName", with_pod(json!({ "nodeName": "n1" })), "use nodeSelector or affinity"),
        ("no container at all", with_pod(json!({ "containers": null })), "containers"),
        ("a name of 53 characters", changed(json!({ "metadata": { "name": "a".repeat(53) } })), no_label),
        ("a name with a dot", changed(json!({ "metadata": { "name": "a.b" } })), no_label),
        ("a name that is no label", changed(json!({ "metadata": { "name": "A_b" } })), "RFC 1123"),
        (
            "input and inputFrom",
            changed(json!({ "spec": { "inputFrom": { "configMapKeyRef": { "name": "c", "key": "k" } } } })),
            "at most one of input and inputFrom",
        ),
        (
            "two sources of input",
            changed(json!({ "spec": { "input": null, "inputFrom": {
                "configMapKeyRef": { "name": "c", "key": "k" },
                "secretKeyRef": { "name": "s", "key": "k" },
            } } })),
            "exactly one of secretKeyRef and configMapKeyRef",
        ),
        (
            "a mode of another system",
            changed(json!({ "spec": { "operatingMode": "Paused" } })),
            "supported values",
        ),
    ];
    for (what, manifest, told) in cases {
        let said = refusal(ctx.create_run(manifest).await).map_err(|error| error.context(what))?;
        assert!(said.contains(told), "{what}: {said:?} should tell {told:?}");
    }
    ctx.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn numbers_out_of_bounds_are_refused_with_the_bound() -> Result {
    let ctx = TestContext::new("numbers").await?;
    let huge = 1_000_000_000_000_i64;
    let cases = [
        (json!({ "recovery": { "maxRecoveryAttempts": -1 } }), "greater than or equal to 0"),
        (json!({ "recovery": { "maxRecoveryAttempts": huge } }), "maxRecoveryAttempts"),
        (json!({ "recovery": { "maxAttemptsWithoutProgress": 0 } }), "greater than or equal to 1"),
        (json!({ "recovery": { "maxDisruptions": -1 } }), "greater than or equal to 0"),
        (json!({ "recovery": { "backoff": { "initialSeconds": -1 } } }), "greater than or equal to 0"),
        (
            json!({ "recovery": { "backoff": { "initialSeconds": 9, "maxSeconds": 3 } } }),
            "not be larger than maxSeconds",
        ),
        (json!({ "recovery": { "resetGeneration": -1 } }), "greater than or equal to 0"),
        (json!({ "recovery": { "maxDisruptions": 1.5 } }), "integer"),
        (json!({ "recovery": { "maxDisruptions": "many" } }), "integer"),
        (json!({ "liveness": { "heartbeatTimeoutSeconds": 0 } }), "greater than or equal to 10"),
        (json!({ "liveness": { "startDeadlineSeconds": huge } }), "startDeadlineSeconds"),
        (json!({ "liveness": { "progressDeadlineSeconds": -5 } }), "greater than or equal to 5"),
        (json!({ "retention": { "keepPods": -1 } }), "greater than or equal to 0"),
    ];
    for (spec, told) in cases {
        let said = refusal(ctx.create_run(changed(json!({ "spec": spec }))).await)
            .map_err(|error| error.context(format!("{spec}")))?;
        assert!(said.contains(told), "{spec}: {said:?} should tell {told:?}");
    }
    ctx.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_definition_obeys_the_same_rules_and_grants_no_reset() -> Result {
    let ctx = TestContext::new("misdefined").await?;
    let cases = [
        (Definition::new().pod(json!({ "restartPolicy": "Always" })), "set it to Never"),
        (
            Definition::new().spec(json!({ "defaults": { "recovery": { "resetGeneration": 1 } } })),
            "resetGeneration belongs to one run",
        ),
        (
            Definition::new().spec(json!({ "defaults": { "recovery": { "maxRecoveryAttempts": -1 } } })),
            "greater than or equal to 0",
        ),
    ];
    for (definition, told) in cases {
        let manifest = definition.manifest("agent");
        let made = objects::create::<AgentDefinition>(&ctx.client, &ctx.namespace, manifest).await;
        let said = refusal(made)?;
        assert!(said.contains(told), "{said:?} should tell {told:?}");
    }
    ctx.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_run_is_made_of_cannot_change() -> Result {
    let ctx = TestContext::new("immutable").await?;
    let held = ctx.start("held", &Agent::from_definition("missing", json!({ "turns": 1 }))).await?;
    let cases = [
        (json!({ "agentRef": { "name": "other" } }), "agentRef cannot change"),
        (json!({ "input": { "turns": 2 } }), "input"),
        (json!({ "inputFrom": { "configMapKeyRef": { "name": "c", "key": "k" } } }), "inputFrom"),
    ];
    for (change, told) in cases {
        let said = refusal(held.try_patch_spec(change.clone()).await)
            .map_err(|error| error.context(format!("{change}")))?;
        assert!(said.contains(told), "{change}: {said:?} should tell {told:?}");
    }
    held.patch_spec(json!({ "recovery": { "maxDisruptions": 3 } })).await?;
    ctx.end().await
}

/// A template's pod, merged over after a list was taken out.
trait Merged {
    fn merged(self, pod: Value) -> Self;
}

impl Merged for Value {
    fn merged(mut self, pod: Value) -> Self {
        merge(&mut self, &json!({ "spec": { "agent": { "template": { "spec": pod } } } }));
        self
    }
}
