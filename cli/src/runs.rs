//! AgentRuns, as the API server has them.

use dalsegno_crds::{AgentRun, ConditionStatus, ConditionType, find_condition, has_status};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::api::{Api, DynamicObject, ListParams, Patch};
use kube::core::{ApiResource, Resource as _};
use kube::{Client, ResourceExt as _};
use serde_json::Value;

use crate::failure::{Exit, Failure, Result};
use crate::session::Session;

/// Objects of one page of a list.
const PAGE: u32 = 500;

/// Which runs.
#[derive(Clone, Copy, Debug, Default)]
pub struct Scope<'a> {
    /// Of all namespaces.
    pub all_namespaces: bool,
    /// Labels.
    pub selector: Option<&'a str>,
}

/// A run, as it was read, and as its kind says if this program can read it.
#[derive(Clone, Debug)]
pub struct ReadRun {
    /// Every field.
    pub object: DynamicObject,
    /// `Err`: what this program does not understand.
    pub run: std::result::Result<AgentRun, String>,
}

impl ReadRun {
    /// What the API server returned.
    pub fn of(object: DynamicObject) -> Self {
        let run = serde_json::to_value(&object)
            .and_then(serde_json::from_value::<AgentRun>)
            .map_err(|error| error.to_string());
        Self { object, run }
    }

    /// The run, if this program can read it.
    pub fn understood(self, session: &Session) -> Result<AgentRun> {
        let name = self.object.name_any();
        self.run.map_err(|error| {
            Failure::new(
                Exit::Failed,
                format!("this program cannot read the AgentRun {name:?}: {error}"),
                format!(
                    "use the plugin of the version that is installed in the cluster, or `kubectl get agentrun {name}{} -o yaml`",
                    session.options()
                ),
            )
        })
    }
}

/// The runs of a namespace, or of all.
pub async fn list(session: &Session, scope: Scope<'_>) -> Result<Vec<ReadRun>> {
    let api = untyped(session, scope.all_namespaces);
    let mut params = ListParams::default().limit(PAGE);
    params.label_selector = scope.selector.map(str::to_owned);
    let mut runs = Vec::new();
    loop {
        let page =
            api.list(&params).await.map_err(|error| Failure::of_api("listing the AgentRuns", &error))?;
        runs.extend(page.items.into_iter().map(ReadRun::of));
        match page.metadata.continue_.filter(|it| !it.is_empty()) {
            Some(next) => params.continue_token = Some(next),
            None => return Ok(runs),
        }
    }
}

fn untyped(session: &Session, all_namespaces: bool) -> Api<DynamicObject> {
    let resource = ApiResource::erase::<AgentRun>(&());
    let client: Client = session.client.clone();
    if all_namespaces {
        Api::all_with(client, &resource)
    } else {
        Api::namespaced_with(client, &session.namespace, &resource)
    }
}

/// The run of this name.
pub async fn get(session: &Session, name: &str) -> Result<AgentRun> {
    read(session, name).await?.understood(session)
}

/// The run of this name, and every field of it.
pub async fn read(session: &Session, name: &str) -> Result<ReadRun> {
    let found = untyped(session, false).get_opt(name).await;
    match found.map_err(|error| Failure::of_api("reading the AgentRun", &error))? {
        Some(object) => Ok(ReadRun::of(object)),
        None => Err(no_such_run(session, name)),
    }
}

/// The error for a name that no run has.
pub fn no_such_run(session: &Session, name: &str) -> Failure {
    let namespace = &session.namespace;
    Failure::new(
        Exit::NotFound,
        format!("there is no AgentRun {name:?} in the namespace {namespace:?}"),
        "list the runs with `kubectl dalsegno list -A`, and name the namespace with -n".to_owned(),
    )
}

/// Changes a run by a merge patch.
pub async fn patch(session: &Session, name: &str, change: &Value) -> Result<AgentRun> {
    let api: Api<AgentRun> = session.api();
    let patched = api.patch(name, &Session::patch_params(), &Patch::Merge(change)).await;
    patched.map_err(|error| match &error {
        kube::Error::Api(status) if status.code == 404 => no_such_run(session, name),
        error => Failure::of_api("changing the AgentRun", error),
    })
}

/// The condition of a run.
pub fn condition(run: &AgentRun, kind: ConditionType) -> Option<&Condition> {
    find_condition(run.status.as_ref().map_or(&[], |it| it.conditions.as_slice()), kind)
}

/// Whether a condition of a run is True.
pub fn is_true(run: &AgentRun, kind: ConditionType) -> bool {
    condition(run, kind).is_some_and(|it| has_status(it, ConditionStatus::True))
}

/// Fails if the run has ended.
pub fn refuse_ended(run: &AgentRun) -> Result {
    if !is_true(run, ConditionType::Finished) {
        return Ok(());
    }
    let summary = run.status.as_ref().and_then(|it| it.summary).map_or("Finished", |it| it.as_str());
    let name = run.name_any();
    Err(Failure::new(
        Exit::Refused,
        format!("the run {name:?} has ended: {summary}"),
        format!(
            "start another one from it with `kubectl dalsegno fork {name} NEW-NAME`, or create a new AgentRun"
        ),
    ))
}

/// The full name of an object for `-o name`.
pub fn full_name(run: &DynamicObject) -> String {
    format!("{}.dalsegno.dev/{}", AgentRun::kind(&()).to_lowercase(), run.name_any())
}
