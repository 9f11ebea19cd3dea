//! Manifests that the API server refuses with a message that says what to do.

use dalsegno_crds::AgentDefinition;
use dalsegno_e2e::objects::{self, merge, refusal};
use dalsegno_e2e::{Agent, Definition, Result, TestContext};
use serde_json::{Value, json};

/// A valid run's manifest with a change.
fn run_with(change: Value) -> Value {
    let mut manifest = Agent::new(json!({ "turns": 1 })).manifest("run", "http://ledger");
    merge(&mut manifest, &change);
    manifest
}

/// A valid run's manifest with a change of its template's pod.
fn run_with_pod(pod: Value) -> Value {
    run_with(json!({ "spec": { "agent": { "template": { "spec": pod } } } }))
}

#[tokio::test(flavor = "multi_thread")]
async fn an_invalid_run_is_refused_with_a_message_that_says_what_to_do() -> Result {
    let ctx = TestContext::new("malformed").await?;
    let exactly_one = "set exactly one of agentRef";
    let invalid_name = "DNS label of at most 52 characters";
    let one = json!({ "name": "one", "image": "one:1" });
    let helper = json!({ "name": "helper", "image": "helper:1" });
    let cases = [
        ("neither agentRef nor agent", run_with(json!({ "spec": { "agent": null } })), exactly_one),
        ("agentRef and agent", run_with(json!({ "spec": { "agentRef": { "name": "a" } } })), exactly_one),
        (
            "no worker among several containers",
            run_with_containers(json!([one, helper])),
            "name the worker's container agent",
        ),
        ("restartPolicy: Always", run_with_pod(json!({ "restartPolicy": "Always" })), "set it to Never"),
        (
            "restartPolicy: OnFailure",
            run_with_pod(json!({ "restartPolicy": "OnFailure" })),
            "set it to Never",
        ),
        ("nodeName", run_with_pod(json!({ "nodeName": "n1" })), "use nodeSelector or affinity"),
        ("no container at all", run_with_pod(json!({ "containers": null })), "containers"),
        (
            "a name of 53 characters",
            run_with(json!({ "metadata": { "name": "a".repeat(53) } })),
            invalid_name,
        ),
        ("a name with a dot", run_with(json!({ "metadata": { "name": "a.b" } })), invalid_name),
        ("a name that is not a DNS label", run_with(json!({ "metadata": { "name": "A_b" } })), "RFC 1123"),
        (
            "input and inputFrom",
            run_with(json!({ "spec": { "inputFrom": { "configMapKeyRef": { "name": "c", "key": "k" } } } })),
            "at most one of input and inputFrom",
        ),
        (
            "two sources of input",
            run_with(json!({ "spec": { "input": null, "inputFrom": {
                "configMapKeyRef": { "name": "c", "key": "k" },
                "secretKeyRef": { "name": "s", "key": "k" },
            } } })),
            "exactly one of secretKeyRef and configMapKeyRef",
        ),
        (
            "an unknown operatingMode",
            run_with(json!({ "spec": { "operatingMode": "Paused" } })),
            "supported values",
        ),
    ];
    for (case, manifest, expected) in cases {
        let message = refusal(ctx.create_run(manifest).await).map_err(|error| error.context(case))?;
        assert!(message.contains(expected), "{case}: {message:?} should contain {expected:?}");
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
    for (spec, expected) in cases {
        let message = refusal(ctx.create_run(run_with(json!({ "spec": spec }))).await)
            .map_err(|error| error.context(format!("{spec}")))?;
        assert!(message.contains(expected), "{spec}: {message:?} should contain {expected:?}");
    }
    ctx.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn an_invalid_definition_is_refused_and_so_is_a_reset_in_its_defaults() -> Result {
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
    for (definition, expected) in cases {
        let manifest = definition.manifest("agent");
        let created = objects::create::<AgentDefinition>(&ctx.client, &ctx.namespace, manifest).await;
        let message = refusal(created)?;
        assert!(message.contains(expected), "{message:?} should contain {expected:?}");
    }
    ctx.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn the_agent_and_the_input_of_a_run_cannot_change() -> Result {
    let ctx = TestContext::new("immutable").await?;
    let held = ctx.start("held", &Agent::from_definition("missing", json!({ "turns": 1 }))).await?;
    let cases = [
        (json!({ "agentRef": { "name": "other" } }), "agentRef cannot change"),
        (json!({ "input": { "turns": 2 } }), "input"),
        (json!({ "inputFrom": { "configMapKeyRef": { "name": "c", "key": "k" } } }), "inputFrom"),
    ];
    for (change, expected) in cases {
        let message = refusal(held.try_patch_spec(change.clone()).await)
            .map_err(|error| error.context(format!("{change}")))?;
        assert!(message.contains(expected), "{change}: {message:?} should contain {expected:?}");
    }
    held.patch_spec(json!({ "recovery": { "maxDisruptions": 3 } })).await?;
    ctx.end().await
}

/// A valid run's manifest with other containers.
fn run_with_containers(containers: Value) -> Value {
    // A merge joins lists, so the original list is removed first.
    let mut manifest = run_with_pod(json!({ "containers": null }));
    merge(
        &mut manifest,
        &json!({ "spec": { "agent": { "template": { "spec": { "containers": containers } } } } }),
    );
    manifest
}
