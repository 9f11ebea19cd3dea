//! The pod of an attempt.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use dalsegno_crds::{AgentDefinition, AgentRun, AgentRunSpec, Cause, InputSource, names};
use dalsegno_model::{RunId, RunRecord};
use dalsegno_protocol::{AUDIENCE, env};
use k8s_openapi::api::core::v1::{
    Affinity, ConfigMapProjection, Container, DownwardAPIProjection, DownwardAPIVolumeFile, EnvVar,
    KeyToPath, NodeAffinity, NodeSelectorRequirement, NodeSelectorTerm, ObjectFieldSelector, Pod,
    PreferredSchedulingTerm, ProjectedVolumeSource, SecretProjection, ServiceAccountTokenProjection, Volume,
    VolumeMount, VolumeProjection,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use crate::pod;
use crate::revision::Document;

const VOLUME: &str = "dalsegno";
const MOUNT: &str = "/var/run/dalsegno";
const TOKEN: &str = "token";
const INPUT: &str = "input";

/// How long a worker's token lives; the kubelet renews it.
const TOKEN_SECONDS: i64 = 3600;

/// No pod can be made of a template.
#[derive(Debug)]
pub enum TemplateError {
    /// It is no pod template; the source names the place.
    Malformed(serde_json::Error),
    /// It has several containers, and none is named as the worker's must be.
    NoWorker,
}

impl fmt::Display for TemplateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Malformed(error) => write!(f, "the template is no pod template: {error}"),
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

/// The pod of the current attempt, from this template.
///
/// The template's labels and annotations under our prefix are dropped, `restartPolicy` becomes `Never`; environment,
/// token and input are ours.
///
/// # Errors
///
/// The template is no pod template, or has no worker.
pub fn pod_of(
    run: &AgentRun,
    row: &RunRecord,
    document: &Document,
    pinned: bool,
    gateway_url: &str,
) -> Result<Pod, TemplateError> {
    let head = row.head.as_ref().map_or((0, 0), |head| (head.turn, head.position));
    let place = Place { run, id: row.id, attempt: row.attempt.number, head, gateway_url };
    let mut pod = pod_at(&place, document)?;
    if pinned {
        let annotations = pod.metadata.annotations.get_or_insert_default();
        annotations.insert(names::ANNOTATION_PINNED.to_owned(), document.hash());
    }
    avoid_lost_nodes(&mut pod.spec.get_or_insert_default().affinity, row);
    Ok(pod)
}

/// The pod that a definition's runs get, to be tried: of the first attempt of a run without input. The run has the
/// definition's UID, also in its name.
///
/// # Errors
///
/// The template is no pod template, or has no worker.
pub fn trial_of(definition: &AgentDefinition, gateway_url: &str) -> Result<Pod, TemplateError> {
    let uid = definition.metadata.uid.clone().unwrap_or_default();
    // A generated name would be another in each refusal that names the pod, and so the status.
    let mut run = AgentRun::new(&format!("dry-run-{uid}"), AgentRunSpec::default());
    run.metadata.namespace.clone_from(&definition.metadata.namespace);
    run.metadata.uid = Some(uid);
    let place = Place { run: &run, id: RunId::nil(), attempt: 1, head: (0, 0), gateway_url };
    pod_at(&place, &Document::of(&definition.spec.agent))
}

/// The attempt that a pod is of.
struct Place<'a> {
    run: &'a AgentRun,
    id: RunId,
    attempt: i32,
    /// Turn and position.
    head: (i32, i64),
    gateway_url: &'a str,
}

fn pod_at(place: &Place, document: &Document) -> Result<Pod, TemplateError> {
    let template = document.template.pod_template().map_err(TemplateError::Malformed)?;
    let mut pod = Pod {
        metadata: metadata(place, template.metadata.unwrap_or_default(), document),
        spec: template.spec,
        status: None,
    };
    let worker = pod::worker_name(&pod).to_owned();
    let spec = pod.spec.get_or_insert_default();
    spec.restart_policy = Some("Never".to_owned());
    spec.volumes.get_or_insert_default().push(volume(place.run.spec.input_from.as_ref()));
    let container = spec.containers.iter_mut().find(|it| it.name == worker);
    equip(container.ok_or(TemplateError::NoWorker)?, place);
    Ok(pod)
}

fn metadata(place: &Place, template: ObjectMeta, document: &Document) -> ObjectMeta {
    let Place { run, attempt, head: (turn, position), .. } = place;
    let name = run.metadata.name.clone().unwrap_or_default();
    let mut labels = ours_dropped(template.labels);
    labels.extend([
        (names::LABEL_MANAGED_BY.to_owned(), names::MANAGED_BY.to_owned()),
        (names::LABEL_RUN.to_owned(), name.clone()),
        (names::LABEL_RUN_UID.to_owned(), run.metadata.uid.clone().unwrap_or_default()),
        (names::LABEL_ATTEMPT.to_owned(), attempt.to_string()),
    ]);
    let mut annotations = ours_dropped(template.annotations);
    annotations.extend([
        (names::ANNOTATION_REVISION.to_owned(), document.hash()),
        (names::ANNOTATION_TURN.to_owned(), format!("{turn}/{position}")),
    ]);
    if let Some(version) = &document.agent_version {
        annotations.insert(names::ANNOTATION_AGENT_VERSION.to_owned(), version.clone());
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
        ..ObjectMeta::default()
    }
}

/// The inline input as the worker reads it: `null` where there is none.
pub fn input_text(run: &AgentRun) -> String {
    run.spec.input.as_ref().map_or_else(|| "null".to_owned(), ToString::to_string)
}

fn ours_dropped(map: Option<BTreeMap<String, String>>) -> BTreeMap<String, String> {
    map.unwrap_or_default().into_iter().filter(|(key, _)| !key.starts_with(names::PREFIX)).collect()
}

fn equip(worker: &mut Container, place: &Place) {
    let Place { run, id, attempt, gateway_url, .. } = place;
    let (namespace, name) = (run.metadata.namespace.as_deref(), run.metadata.name.as_deref());
    let ours = [
        (env::URL, format!("{gateway_url}/v1/runs/{id}")),
        (env::TOKEN_FILE, format!("{MOUNT}/{TOKEN}")),
        (env::INPUT_FILE, format!("{MOUNT}/{INPUT}")),
        (env::RUN, format!("{}/{}", namespace.unwrap_or_default(), name.unwrap_or_default())),
        (env::ATTEMPT, attempt.to_string()),
    ];
    // Ours come first, so that the template's own variables may refer to them.
    let mut theirs = worker.env.take().unwrap_or_default();
    theirs.retain(|it| ours.iter().all(|(name, _)| it.name != *name));
    let ours =
        ours.map(|(name, value)| EnvVar { name: name.to_owned(), value: Some(value), value_from: None });
    worker.env = Some(ours.into_iter().chain(theirs).collect());
    worker.volume_mounts.get_or_insert_default().push(VolumeMount {
        name: VOLUME.to_owned(),
        mount_path: MOUNT.to_owned(),
        read_only: Some(true),
        ..VolumeMount::default()
    });
    worker.termination_message_policy.get_or_insert_with(|| "FallbackToLogsOnError".to_owned());
}

fn volume(input: Option<&InputSource>) -> Volume {
    let key_to_path = |key: &str| vec![KeyToPath { key: key.to_owned(), path: INPUT.to_owned(), mode: None }];
    let input = match input {
        Some(InputSource { secret_key_ref: Some(secret), .. }) => VolumeProjection {
            secret: Some(SecretProjection {
                name: secret.name.clone(),
                items: Some(key_to_path(&secret.key)),
                optional: None,
            }),
            ..VolumeProjection::default()
        },
        Some(InputSource { config_map_key_ref: Some(map), .. }) => VolumeProjection {
            config_map: Some(ConfigMapProjection {
                name: map.name.clone(),
                items: Some(key_to_path(&map.key)),
                optional: None,
            }),
            ..VolumeProjection::default()
        },
        _ => VolumeProjection {
            downward_api: Some(DownwardAPIProjection {
                items: Some(vec![DownwardAPIVolumeFile {
                    path: INPUT.to_owned(),
                    field_ref: Some(ObjectFieldSelector {
                        field_path: format!("metadata.annotations['{}']", names::ANNOTATION_INPUT),
                        ..ObjectFieldSelector::default()
                    }),
                    ..DownwardAPIVolumeFile::default()
                }]),
            }),
            ..VolumeProjection::default()
        },
    };
    let token = VolumeProjection {
        service_account_token: Some(ServiceAccountTokenProjection {
            audience: Some(AUDIENCE.to_owned()),
            expiration_seconds: Some(TOKEN_SECONDS),
            path: TOKEN.to_owned(),
        }),
        ..VolumeProjection::default()
    };
    Volume {
        name: VOLUME.to_owned(),
        projected: Some(ProjectedVolumeSource { default_mode: None, sources: Some(vec![token, input]) }),
        ..Volume::default()
    }
}

/// The scheduler learns of a dead node later than we do: prefer another one than those we have just lost.
fn avoid_lost_nodes(affinity: &mut Option<Affinity>, row: &RunRecord) {
    let lost_by = |cause: Cause| matches!(cause, Cause::NodeLost | Cause::Silent);
    let just_lost = row.past.iter().take_while(|it| it.end.as_ref().is_some_and(|end| lost_by(end.cause)));
    let lost: BTreeSet<String> = just_lost.filter_map(|it| it.node.clone()).collect();
    if lost.is_empty() {
        return;
    }
    let node: &mut NodeAffinity = affinity.get_or_insert_default().node_affinity.get_or_insert_default();
    node.preferred_during_scheduling_ignored_during_execution.get_or_insert_default().push(
        PreferredSchedulingTerm {
            weight: 100,
            preference: NodeSelectorTerm {
                match_expressions: None,
                match_fields: Some(lost.into_iter().map(not_this_node).collect()),
            },
        },
    );
}

/// A requirement on a node's name takes one name only.
fn not_this_node(node: String) -> NodeSelectorRequirement {
    NodeSelectorRequirement {
        key: "metadata.name".to_owned(),
        operator: "NotIn".to_owned(),
        values: Some(vec![node]),
    }
}
