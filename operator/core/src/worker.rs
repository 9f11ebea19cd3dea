//! Builds the pod of an attempt.
//!
//! # Invariant
//!
//! The pod is JSON: the template as the user wrote it, with the operator's additions. So the API server receives also the
//! fields that this program does not know, and reports the ones that it does not know itself.

use std::collections::BTreeMap;
use std::fmt;

use dalsegno_crds::{AgentDefinition, AgentRun, AgentRunSpec, InputSource, names};
use dalsegno_model::{RunId, RunRecord};
use dalsegno_protocol::{AUDIENCE, env};
use k8s_openapi::api::core::v1::{
    ConfigMapProjection, DownwardAPIProjection, DownwardAPIVolumeFile, KeyToPath, ObjectFieldSelector,
    ProjectedVolumeSource, SecretProjection, ServiceAccountTokenProjection, Volume, VolumeProjection,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::{Value, json};

use crate::avoided_nodes;
use crate::json::take_list;
use crate::observed::{CaBundle, GatewayAddress, Observed};
use crate::revision::Document;
use crate::version::ChosenTemplate;

const VOLUME_NAME: &str = "dalsegno";
const MOUNT_PATH: &str = "/var/run/dalsegno";
const TOKEN_FILE: &str = "token";
const INPUT_FILE: &str = "input";
const CA_FILE: &str = "ca.crt";

/// Lifetime of a worker's token, in seconds. The kubelet renews it.
const TOKEN_SECONDS: i64 = 3600;

/// Why no pod can be built from a template.
#[derive(Debug)]
pub enum TemplateError {
    /// The template is not a valid pod template. The source names the field.
    Malformed(serde_json::Error),
    /// The template has several containers, and none of them has the worker's name.
    NoWorker,
}

impl fmt::Display for TemplateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Malformed(error) => write!(f, "the template is not a valid pod template: {error}"),
            Self::NoWorker => {
                write!(f, "none of the template's containers is named {}", names::WORKER_CONTAINER)
            }
        }
    }
}

impl std::error::Error for TemplateError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Malformed(error) => Some(error),
            Self::NoWorker => None,
        }
    }
}

/// Name of an attempt's pod.
pub fn pod_name(run: &str, attempt: i32) -> String {
    format!("{run}-{attempt}")
}

/// Builds the pod of the current attempt from a template.
///
/// Labels and annotations of the template with the reserved prefix are dropped. `restartPolicy` becomes `Never`. The
/// worker gets its environment variables, token and input.
///
/// # Errors
///
/// The template is not a valid pod template, or has no worker.
pub fn build_pod(
    run: &AgentRun,
    row: &RunRecord,
    template: &ChosenTemplate,
    observed: &Observed,
) -> Result<Value, TemplateError> {
    let gateway = &observed.gateway;
    let (turn, position) = row.head.as_ref().map_or((0, 0), |head| (head.turn, head.position));
    let gateway = (!row.is_external).then_some(gateway);
    let params = PodParams { run, id: row.id, attempt: row.attempt.number, turn, position, gateway };
    let ChosenTemplate { document, pinned } = template;
    let mut pod = build(&params, document)?;
    if *pinned {
        pod["metadata"]["annotations"][names::ANNOTATION_PINNED] = document.hash().into();
    }
    avoided_nodes::apply(&mut pod, row, observed);
    Ok(pod)
}

/// Builds the pod for a dry run of a definition's template: the pod of the first attempt of a run without input. The
/// run's UID is the definition's UID, and so is the end of its name.
///
/// # Errors
///
/// The template is not a valid pod template, or has no worker.
pub fn dry_run_pod(definition: &AgentDefinition, gateway: &GatewayAddress) -> Result<Value, TemplateError> {
    let uid = definition.metadata.uid.clone().unwrap_or_default();
    // The name must not be random: error messages contain it, and the status would change with every dry run.
    let mut run = AgentRun::new(&format!("dry-run-{uid}"), AgentRunSpec::default());
    run.metadata.namespace.clone_from(&definition.metadata.namespace);
    run.metadata.uid = Some(uid);
    let gateway = (!definition.spec.agent.is_external()).then_some(gateway);
    let params = PodParams { run: &run, id: RunId::nil(), attempt: 1, turn: 0, position: 0, gateway };
    build(&params, &Document::of(&definition.spec.agent))
}

/// The attempt that a pod is built for.
struct PodParams<'a> {
    run: &'a AgentRun,
    id: RunId,
    attempt: i32,
    /// Turn that the attempt resumes from.
    turn: i32,
    /// Event position that the attempt resumes from.
    position: i64,
    /// `None`: the agent keeps its own checkpoints, and its worker gets neither the address nor a token.
    gateway: Option<&'a GatewayAddress>,
}

impl PodParams<'_> {
    fn ca(&self) -> Option<&CaBundle> {
        self.gateway?.ca.as_ref()
    }
}

fn build(params: &PodParams, document: &Document) -> Result<Value, TemplateError> {
    // Parsed for its errors and its metadata only. Afterwards the fields used below have the type of a pod's field.
    let template = document.template.pod_template().map_err(TemplateError::Malformed)?;
    let mut spec = document.template.0.get("spec").cloned().unwrap_or_default();
    let mut containers = take_list(&mut spec, "containers");
    let worker = worker_container_name(&containers).to_owned();
    let container = containers.iter_mut().find(|it| it["name"] == worker);
    configure_worker(container.ok_or(TemplateError::NoWorker)?, params);
    let mut volumes = take_list(&mut spec, "volumes");
    volumes.push(json!(volume(params)));
    spec["containers"] = containers.into();
    spec["volumes"] = volumes.into();
    spec["restartPolicy"] = "Never".into();
    let mut metadata = json!(metadata(params, template.metadata.unwrap_or_default(), document));
    metadata["annotations"][names::ANNOTATION_WORKER] = worker.into();
    Ok(json!({ "apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec }))
}

/// Name of the worker's container in a template: `agent`, or the name of the only container.
fn worker_container_name(containers: &[Value]) -> &str {
    match containers {
        [only] => only["name"].as_str().unwrap_or_default(),
        _ => names::WORKER_CONTAINER,
    }
}

fn metadata(params: &PodParams, template: ObjectMeta, document: &Document) -> ObjectMeta {
    let PodParams { run, attempt, turn, position, .. } = params;
    let name = run.metadata.name.clone().unwrap_or_default();
    let mut labels = without_reserved_keys(template.labels);
    labels.extend([
        (names::LABEL_MANAGED_BY.to_owned(), names::MANAGED_BY.to_owned()),
        (names::LABEL_RUN.to_owned(), name.clone()),
        (names::LABEL_RUN_UID.to_owned(), run.metadata.uid.clone().unwrap_or_default()),
        (names::LABEL_ATTEMPT.to_owned(), attempt.to_string()),
    ]);
    let mut annotations = without_reserved_keys(template.annotations);
    annotations.entry(names::ANNOTATION_SAFE_TO_EVICT.to_owned()).or_insert_with(|| "true".to_owned());
    annotations.extend([
        (names::ANNOTATION_REVISION.to_owned(), document.hash()),
        (names::ANNOTATION_TURN.to_owned(), format!("{turn}/{position}")),
    ]);
    if let Some(version) = &document.agent_version {
        annotations.insert(names::ANNOTATION_AGENT_VERSION.to_owned(), version.clone());
    }
    if let Some(CaBundle { pem, ids }) = params.ca() {
        annotations.insert(names::ANNOTATION_CA.to_owned(), pem.clone());
        annotations.insert(names::ANNOTATION_CA_IDS.to_owned(), ids.clone());
    }
    if run.spec.input_from.is_none() {
        annotations.insert(names::ANNOTATION_INPUT.to_owned(), input_text(run));
    }
    ObjectMeta {
        name: Some(pod_name(&name, *attempt)),
        namespace: run.metadata.namespace.clone(),
        labels: Some(labels),
        annotations: Some(annotations),
        owner_references: Some(vec![run.owner_reference()]),
        finalizers: params.gateway.is_none().then(|| vec![names::POD_FINALIZER.to_owned()]),
        ..ObjectMeta::default()
    }
}

/// The inline input as the worker reads it. `null` if the run has none.
pub fn input_text(run: &AgentRun) -> String {
    run.spec.input.as_ref().map_or_else(|| "null".to_owned(), ToString::to_string)
}

fn without_reserved_keys(map: Option<BTreeMap<String, String>>) -> BTreeMap<String, String> {
    map.unwrap_or_default().into_iter().filter(|(key, _)| !key.starts_with(names::PREFIX)).collect()
}

/// Adds the environment variables and the mount of the worker's contract to the worker's container.
fn configure_worker(worker: &mut Value, params: &PodParams) {
    let PodParams { run, id, attempt, gateway, .. } = params;
    let (namespace, name) = (run.metadata.namespace.as_deref(), run.metadata.name.as_deref());
    let of_gateway = gateway.iter().flat_map(|gateway| {
        [
            (env::URL, format!("{}/v1/runs/{id}", gateway.url)),
            (env::TOKEN_FILE, format!("{MOUNT_PATH}/{TOKEN_FILE}")),
        ]
    });
    let of_run = [
        (env::INPUT_FILE, format!("{MOUNT_PATH}/{INPUT_FILE}")),
        (env::RUN, format!("{}/{}", namespace.unwrap_or_default(), name.unwrap_or_default())),
        (env::ATTEMPT, attempt.to_string()),
    ];
    let ca_file = params.ca().map(|_| (env::CA_FILE, format!("{MOUNT_PATH}/{CA_FILE}")));
    let contract: Vec<_> = of_gateway.chain(of_run).chain(ca_file).collect();
    // The contract's variables come first, so that the template's variables can refer to them.
    let mut template = take_list(worker, "env");
    // A template must not name what the operator does not set either: the SDKs would read it.
    let is_reserved = |it: &Value| {
        let unset = [env::URL, env::TOKEN_FILE, env::CA_FILE];
        unset.iter().chain(contract.iter().map(|(name, _)| name)).any(|name| it["name"] == *name)
    };
    template.retain(|it| !is_reserved(it));
    let contract = contract.into_iter().map(|(name, value)| json!({ "name": name, "value": value }));
    worker["env"] = contract.chain(template).collect();
    let mut mounts = take_list(worker, "volumeMounts");
    mounts.push(json!({ "name": VOLUME_NAME, "mountPath": MOUNT_PATH, "readOnly": true }));
    worker["volumeMounts"] = mounts.into();
    if worker["terminationMessagePolicy"].is_null() {
        worker["terminationMessagePolicy"] = "FallbackToLogsOnError".into();
    }
}

/// The volume with the worker's token, the run's input and the gateway's CA.
fn volume(params: &PodParams) -> Volume {
    let token = params.gateway.map(|_| VolumeProjection {
        service_account_token: Some(ServiceAccountTokenProjection {
            audience: Some(AUDIENCE.to_owned()),
            expiration_seconds: Some(TOKEN_SECONDS),
            path: TOKEN_FILE.to_owned(),
        }),
        ..VolumeProjection::default()
    });
    let ca = params.ca().map(|_| annotation_projection(CA_FILE, names::ANNOTATION_CA));
    let input = input_projection(params.run.spec.input_from.as_ref());
    let sources = Some(token.into_iter().chain([input]).chain(ca).collect());
    Volume {
        name: VOLUME_NAME.to_owned(),
        projected: Some(ProjectedVolumeSource { default_mode: None, sources }),
        ..Volume::default()
    }
}

/// The input as a file: from a Secret, a ConfigMap, or the pod's own annotation.
fn input_projection(input: Option<&InputSource>) -> VolumeProjection {
    let items =
        |key: &str| Some(vec![KeyToPath { key: key.to_owned(), path: INPUT_FILE.to_owned(), mode: None }]);
    match input {
        Some(InputSource { secret_key_ref: Some(secret), .. }) => VolumeProjection {
            secret: Some(SecretProjection {
                name: secret.name.clone(),
                items: items(&secret.key),
                optional: None,
            }),
            ..VolumeProjection::default()
        },
        Some(InputSource { config_map_key_ref: Some(map), .. }) => VolumeProjection {
            config_map: Some(ConfigMapProjection {
                name: map.name.clone(),
                items: items(&map.key),
                optional: None,
            }),
            ..VolumeProjection::default()
        },
        _ => annotation_projection(INPUT_FILE, names::ANNOTATION_INPUT),
    }
}

/// An annotation of the pod as a file. The file follows each change of the annotation.
fn annotation_projection(file: &str, annotation: &str) -> VolumeProjection {
    let item = DownwardAPIVolumeFile {
        path: file.to_owned(),
        field_ref: Some(ObjectFieldSelector {
            field_path: format!("metadata.annotations['{annotation}']"),
            ..ObjectFieldSelector::default()
        }),
        ..DownwardAPIVolumeFile::default()
    };
    VolumeProjection {
        downward_api: Some(DownwardAPIProjection { items: Some(vec![item]) }),
        ..VolumeProjection::default()
    }
}
