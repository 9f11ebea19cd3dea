//! The pod of an attempt.

use dalsegno_core::{CaBundle, Effect, GatewayAddress, pod, worker};
use dalsegno_crds::{AgentDefinition, AgentDefinitionSpec, Cause, names};
use k8s_openapi::api::core::v1::{EnvVar, Pod};
use serde_json::{Value, json};

use crate::fixtures::{
    Given, IMAGE_BY_TAG, RUN, UID, case, check_all, digest, image_by_digest, neutral, run,
};

/// The pod that the decision creates.
fn created(given: &Given) -> (Pod, Value) {
    let effect = given.decide().effects.remove(0);
    let Effect::CreateWorker { pod, revision, document, .. } = effect else {
        panic!("no pod is created: {effect:?}")
    };
    assert_eq!(revision, dalsegno_core::revision::hash_of(&document), "a template is stored under its hash");
    (serde_json::from_value(pod.clone()).unwrap(), pod)
}

fn annotation(pod: &Pod, key: &str) -> Option<String> {
    pod.metadata.annotations.as_ref()?.get(key).cloned()
}

fn env(pod: &Pod, container: usize) -> Vec<EnvVar> {
    pod.spec.as_ref().unwrap().containers[container].env.clone().unwrap_or_default()
}

#[test]
fn a_pod_is_named_after_its_attempt_and_belongs_to_its_run() {
    let (pod, json) = created(&run().reserved(4).head(7));
    assert_eq!(pod.metadata.name.as_deref(), Some("triage-4"));
    assert_eq!(pod.metadata.namespace.as_deref(), Some("prod"));
    let labels = pod.metadata.labels.as_ref().unwrap();
    for (key, value) in [
        ("dalsegno.dev/run", RUN),
        ("dalsegno.dev/run-uid", UID),
        ("dalsegno.dev/attempt", "4"),
        ("app.kubernetes.io/managed-by", "dalsegno"),
    ] {
        assert_eq!(labels.get(key).map(String::as_str), Some(value), "{key}");
    }
    assert_eq!(json["metadata"]["ownerReferences"][0]["uid"], UID);
    assert_eq!(json["metadata"]["ownerReferences"][0]["controller"], true);
    assert_eq!(
        json["metadata"]["finalizers"],
        Value::Null,
        "a dead operator must not block a pod's deletion"
    );
    assert_eq!(json["spec"]["restartPolicy"], "Never");
    assert_eq!(annotation(&pod, names::ANNOTATION_TURN).as_deref(), Some("7/70"));
}

#[test]
fn a_worker_gets_the_location_of_its_gateway_token_and_input() {
    let (pod, json) = created(&run().reserved(4));
    let variables: Vec<(String, String)> =
        env(&pod, 0).into_iter().map(|it| (it.name, it.value.unwrap_or_default())).collect();
    let expected = [
        ("DALSEGNO_URL", "http://gateway/v1/runs/01940000-0000-7000-8000-000000000001"),
        ("DALSEGNO_TOKEN_FILE", "/var/run/dalsegno/token"),
        ("DALSEGNO_INPUT_FILE", "/var/run/dalsegno/input"),
        ("DALSEGNO_RUN", "prod/triage"),
        ("DALSEGNO_ATTEMPT", "4"),
    ];
    assert_eq!(variables, expected.map(|(name, value)| (name.to_owned(), value.to_owned())));
    let token = &json["spec"]["volumes"][0]["projected"]["sources"][0]["serviceAccountToken"];
    assert_eq!(token, &json!({ "audience": "dalsegno", "expirationSeconds": 3600, "path": "token" }));
    let mount = &json["spec"]["containers"][0]["volumeMounts"][0];
    assert_eq!(mount, &json!({ "name": "dalsegno", "mountPath": "/var/run/dalsegno", "readOnly": true }));
}

#[test]
fn a_worker_gets_the_ca_of_a_gateway_with_tls_as_a_file_that_follows_the_annotation() {
    let mut given = run().reserved(4);
    let ca = CaBundle { pem: "a PEM".into(), ids: "a,b".into() };
    given.seen.gateway = GatewayAddress { url: "https://gateway:8443".into(), ca: Some(ca) };
    let (pod, json) = created(&given);
    let value = |name: &str| env(&pod, 0).into_iter().find(|it| it.name == name).and_then(|it| it.value);
    let url = "https://gateway:8443/v1/runs/01940000-0000-7000-8000-000000000001";
    assert_eq!(value("DALSEGNO_URL").as_deref(), Some(url));
    assert_eq!(value("DALSEGNO_CA_FILE").as_deref(), Some("/var/run/dalsegno/ca.crt"));
    assert_eq!(annotation(&pod, names::ANNOTATION_CA).as_deref(), Some("a PEM"));
    assert_eq!(annotation(&pod, names::ANNOTATION_CA_IDS).as_deref(), Some("a,b"));
    let sources = json["spec"]["volumes"][0]["projected"]["sources"].as_array().unwrap();
    let field = json!({ "fieldPath": "metadata.annotations['dalsegno.dev/ca']" });
    let item = json!({ "path": "ca.crt", "fieldRef": field });
    assert_eq!(sources.last(), Some(&json!({ "downwardAPI": { "items": [item] } })));
    assert_eq!(pod::trimmed(pod).metadata.annotations.unwrap().get(names::ANNOTATION_CA), None);
}

#[test]
fn a_template_names_no_ca_of_its_own() {
    let template = json!({ "spec": { "containers": [{
        "name": "agent", "image": "x", "env": [{ "name": "DALSEGNO_CA_FILE", "value": "/forged" }],
    }] } });
    let (pod, _) = created(&run().agent(template));
    assert!(env(&pod, 0).iter().all(|it| it.name != "DALSEGNO_CA_FILE"));
}

#[test]
fn an_input_comes_from_an_annotation_a_secret_or_a_config_map() {
    let source = |given: &Given| created(given).1["spec"]["volumes"][0]["projected"]["sources"][1].clone();
    let inline = run().spec(json!({ "input": { "ticket": 7 } }));
    let (pod, _) = created(&inline);
    assert_eq!(annotation(&pod, names::ANNOTATION_INPUT).as_deref(), Some(r#"{"ticket":7}"#));
    let field = json!({ "fieldPath": "metadata.annotations['dalsegno.dev/input']" });
    assert_eq!(source(&inline)["downwardAPI"]["items"], json!([{ "path": "input", "fieldRef": field }]));
    assert_eq!(
        annotation(&created(&run()).0, names::ANNOTATION_INPUT).as_deref(),
        Some("null"),
        "a missing input is null"
    );

    let items = json!([{ "key": "k", "path": "input" }]);
    let secret = run().spec(json!({ "inputFrom": { "secretKeyRef": { "name": "s", "key": "k" } } }));
    assert_eq!(source(&secret), json!({ "secret": { "name": "s", "items": items } }));
    assert_eq!(
        annotation(&created(&secret).0, names::ANNOTATION_INPUT),
        None,
        "the operator does not read Secrets"
    );
    let map = run().spec(json!({ "inputFrom": { "configMapKeyRef": { "name": "c", "key": "k" } } }));
    assert_eq!(source(&map), json!({ "configMap": { "name": "c", "items": items } }));
}

#[test]
fn reserved_names_in_a_template_are_dropped_and_the_rest_is_kept() {
    let (pod, json) = created(&run().agent(json!({
        "metadata": {
            "labels": { "team": "support", "dalsegno.dev/run-uid": "forged", "dalsegno.dev/other": "x" },
            "annotations": { "note": "kept", "dalsegno.dev/pinned": "forged" },
        },
        "spec": {
            "restartPolicy": "Always",
            "tolerations": [{ "key": "spot" }],
            "volumes": [{ "name": "scratch", "emptyDir": {} }],
            "containers": [{
                "name": "agent", "image": "x", "terminationMessagePolicy": "File",
                "env": [{ "name": "DALSEGNO_URL", "value": "forged" }, { "name": "MODE", "value": "$(DALSEGNO_RUN)" }],
            }],
        },
    })));
    let labels = pod.metadata.labels.as_ref().unwrap();
    assert_eq!(labels.get("team").map(String::as_str), Some("support"));
    assert_eq!(labels.get(names::LABEL_RUN_UID).map(String::as_str), Some(UID));
    assert_eq!(labels.get("dalsegno.dev/other"), None);
    assert_eq!(annotation(&pod, "note").as_deref(), Some("kept"));
    assert_eq!(annotation(&pod, names::ANNOTATION_PINNED), None);
    assert_eq!(json["spec"]["restartPolicy"], "Never");
    assert_eq!(json["spec"]["tolerations"][0]["key"], "spot");
    assert_eq!(json["spec"]["volumes"][0]["name"], "scratch");
    assert_eq!(
        json["spec"]["containers"][0]["terminationMessagePolicy"], "File",
        "the template's policy is kept"
    );
    let vars: Vec<String> = env(&pod, 0).into_iter().map(|it| it.name).collect();
    assert_eq!(vars.iter().filter(|it| *it == "DALSEGNO_URL").count(), 1);
    assert_eq!(
        vars.last().map(String::as_str),
        Some("MODE"),
        "the template's variables can refer to the contract's"
    );
}

#[test]
fn fields_that_this_program_does_not_know_are_kept() {
    let (_, json) = created(&run().agent(json!({
        "spec": {
            "futureField": { "a": 1 },
            "volumes": [{ "name": "scratch", "futureSource": {} }],
            "containers": [{
                "name": "agent", "image": "x", "imagePulPolicy": "Always", "env": null,
                "volumeMounts": [{ "name": "scratch", "mountPath": "/s", "futureMode": "x" }],
            }],
        },
    })));
    let (spec, worker) = (&json["spec"], &json["spec"]["containers"][0]);
    assert_eq!(spec["futureField"], json!({ "a": 1 }));
    assert_eq!(spec["volumes"][0], json!({ "name": "scratch", "futureSource": {} }));
    assert_eq!(worker["imagePulPolicy"], "Always", "the API server reports the typing error");
    assert_eq!(worker["volumeMounts"][0]["futureMode"], "x");
    assert_eq!(worker["volumeMounts"][1]["name"], "dalsegno");
    assert_eq!(worker["env"][0]["name"], "DALSEGNO_URL");
}

#[test]
fn the_last_lines_of_the_log_are_the_default_termination_message() {
    let (_, json) = created(&run());
    assert_eq!(json["spec"]["containers"][0]["terminationMessagePolicy"], "FallbackToLogsOnError");
}

#[test]
fn the_cluster_autoscaler_may_evict_a_worker_unless_its_template_forbids_it() {
    let safe = |pod: &Pod| annotation(pod, names::ANNOTATION_SAFE_TO_EVICT);
    assert_eq!(safe(&created(&run()).0).as_deref(), Some("true"));
    let (pod, _) = created(&run().agent(json!({
        "metadata": { "annotations": { "cluster-autoscaler.kubernetes.io/safe-to-evict": "false" } },
        "spec": { "containers": [{ "name": "agent", "image": "a" }] },
    })));
    assert_eq!(safe(&pod).as_deref(), Some("false"));
}

#[test]
fn the_worker_is_the_container_named_agent_or_the_only_one() {
    let (pod, _) = created(&run().agent(json!({
        "spec": { "containers": [{ "name": "helper", "image": "h" }, { "name": "agent", "image": "a" }] },
    })));
    assert_eq!((env(&pod, 0).len(), env(&pod, 1).len()), (0, 5));
    assert_eq!(annotation(&pod, names::ANNOTATION_WORKER).as_deref(), Some("agent"));
    let (pod, _) =
        created(&run().agent(json!({ "spec": { "containers": [{ "name": "solo", "image": "s" }] } })));
    assert_eq!(env(&pod, 0).len(), 5);
    assert_eq!(annotation(&pod, names::ANNOTATION_WORKER).as_deref(), Some("solo"));
}

#[test]
fn a_pinned_pod_has_the_old_image_and_environment_and_the_current_resources_and_placement() {
    let container = |image: &str, mode: &str, memory: &str| {
        json!({ "name": "agent", "image": image, "env": [{ "name": "MODE", "value": mode }],
                "resources": { "limits": { "memory": memory } } })
    };
    let old = run().agent(json!({
        "spec": { "containers": [container("registry.test:5000/agent:1", "old", "64Mi")], "nodeSelector": { "old": "yes" } },
    }));
    let new = old.document();
    let (pod, json) = created(
        &old.reserved(3).head(7).head_revision(&new.hash()).template_stored(&new).agent(json!({ "spec": {
                "containers": [container(&image_by_digest('b'), "new", "96Mi")],
                "tolerations": [{ "key": "spot" }], "hostNetwork": true,
            } })),
    );
    let worker = &json["spec"]["containers"][0];
    assert_eq!(worker["image"], format!("registry.test:5000/agent@{}", digest('a')));
    assert_eq!(env(&pod, 0).last().and_then(|it| it.value.clone()).as_deref(), Some("old"));
    assert_eq!(worker["resources"]["limits"]["memory"], "96Mi");
    assert_eq!(json["spec"]["nodeSelector"], Value::Null, "placement follows the current template");
    assert_eq!(json["spec"]["tolerations"][0]["key"], "spot");
    assert_eq!(json["spec"]["hostNetwork"], Value::Null, "other fields do not follow it");
    assert!(annotation(&pod, names::ANNOTATION_PINNED).is_some());
}

#[test]
fn after_its_digest_failed_a_pinned_pod_names_its_image_as_the_definition_did() {
    let old = run().document();
    let given = run().reserved(4).head(7).template_stored(&old).image(&image_by_digest('b'));
    let image = |given: &Given| created(given).1["spec"]["containers"][0]["image"].clone();
    assert_eq!(image(&given), image_by_digest('a'));
    let failed = |revision: &str| neutral(3, Cause::ImageUnavailable).ago(900).made_from(revision);
    let by_digest = old.clone().pinned(&digest('a'), &given.document()).hash();
    let given = given.after(failed(&by_digest));
    assert_eq!(image(&given), IMAGE_BY_TAG);
    let by_name = old.unpinned(&given.document()).hash();
    assert_eq!(image(&given.after(failed(&by_name))), image_by_digest('a'), "both failed");
}

#[test]
fn the_pod_of_a_dry_run_equals_the_first_attempts_pod_except_for_its_names() {
    let given = run().declares("1.4");
    let (_, json) = created(&given);
    let agent = given.seen.agent().unwrap().clone();
    let mut definition = AgentDefinition::new(
        "agent",
        AgentDefinitionSpec { agent, max_concurrent_runs: None, defaults: None },
    );
    definition.metadata.namespace = Some("prod".into());
    definition.metadata.uid = Some("definition-uid".into());
    let tried = worker::dry_run_pod(&definition, &given.seen.gateway).unwrap();
    let renamed = json!(tried)
        .to_string()
        .replace("dry-run-definition-uid", RUN)
        .replace("definition-uid", UID)
        .replace("00000000-0000-0000-0000-000000000000", &given.row.id.to_string());
    assert_eq!(serde_json::from_str::<Value>(&renamed).unwrap(), json);
}

#[test]
fn a_declared_version_is_an_annotation_of_the_pod() {
    let (pod, _) = created(&run().declares("1.4"));
    assert_eq!(annotation(&pod, names::ANNOTATION_AGENT_VERSION).as_deref(), Some("1.4"));
    check_all(vec![case(
        "a declared version does not prevent the pod",
        run().declares("1.4"),
        crate::fixtures::expect_effect("create triage-1"),
    )]);
}

#[test]
fn a_revision_does_not_depend_on_the_order_of_keys() {
    let one =
        run().agent(json!({ "spec": { "containers": [{ "name": "a", "image": "b" }], "x": 1, "y": 2 } }));
    let two: Value =
        serde_json::from_str(r#"{"spec":{"y":2,"x":1,"containers":[{"image":"b","name":"a"}]}}"#).unwrap();
    assert_eq!(one.document().hash(), run().agent(two).document().hash());
    assert_ne!(one.document().hash(), one.declares("1.0").document().hash());
}
