//! Who requested a change of a run, and why, as far as its AgentRun shows: the stamp of the user, the field manager of the
//! changed field, and an annotation with the reason.
//!
//! A stamp names the generation of its change. It proves something only if the operator has not seen that generation
//! before: an old stamp may be kept while somebody else changes the field.

use dalsegno_crds::{AgentRun, names};
use dalsegno_model::RequestedBy;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{FieldsV1, ManagedFieldsEntry, ObjectMeta};
use serde_json::json;

use crate::approvals::four_eyes::parse;

/// Longest reason that is recorded, in characters.
pub const MAX_REASON_CHARS: usize = 512;

/// What a user requests by writing to an AgentRun.
#[derive(Clone, Copy)]
pub enum Request {
    /// Cancel or suspend the run, or lift the suspend.
    OperatingMode,
    /// Grant a fresh budget.
    Reset,
    /// Rewind the run.
    Rewind,
    /// Begin the run as a fork. Who created the run did this.
    Fork,
    /// Delete the AgentRun. The API server does not record who deletes an object.
    Deletion,
}

impl Request {
    /// Path of the field that carries the request, in the notation of managed fields.
    fn field(self) -> Option<&'static str> {
        match self {
            Self::OperatingMode => Some("/f:spec/f:operatingMode"),
            Self::Reset => Some("/f:spec/f:recovery/f:resetGeneration"),
            Self::Rewind => Some("/f:spec/f:rewind"),
            Self::Fork => Some("/f:spec/f:resumeFrom"),
            Self::Deletion => None,
        }
    }

    /// The annotation that says which user changed the field.
    fn stamp(self) -> Option<&'static str> {
        match self {
            Self::OperatingMode => Some(names::ANNOTATION_OPERATING_MODE_BY),
            Self::Reset => Some(names::ANNOTATION_RESET_GENERATION_BY),
            Self::Rewind => Some(names::ANNOTATION_REWIND_BY),
            Self::Fork | Self::Deletion => None,
        }
    }

    fn is_managed_by(self, entry: &ManagedFieldsEntry) -> bool {
        let fields = entry.fields_v1.as_ref().map(|it| &it.0);
        self.field().is_some_and(|field| fields.is_some_and(|it| it.pointer(field).is_some()))
    }
}

/// Who made the request, and why. If several managers own the field, the one that wrote last. `observed`: the last generation
/// that the operator has seen.
pub fn of(run: &ObjectMeta, request: Request, observed: Option<i64>) -> RequestedBy {
    let fields = run.managed_fields.as_deref().unwrap_or_default();
    let managers = fields.iter().filter(|entry| request.is_managed_by(entry));
    let last = managers.max_by_key(|entry| entry.time.as_ref().map(|time| time.0));
    let reason = run.annotations.as_ref().and_then(|it| it.get(names::ANNOTATION_REASON)).map(|it| it.trim());
    RequestedBy {
        manager: last.and_then(|entry| entry.manager.clone()),
        user: user_of(run, request, observed),
        reason: reason.filter(|it| !it.is_empty()).map(|it| it.chars().take(MAX_REASON_CHARS).collect()),
    }
}

/// The user who made the request, if a stamp proves it. A field that was set on creation has the creator.
fn user_of(run: &ObjectMeta, request: Request, observed: Option<i64>) -> Option<String> {
    let annotation = |name: &str| run.annotations.as_ref()?.get(name).map(String::as_str);
    if matches!(request, Request::Fork) {
        return annotation(names::ANNOTATION_CREATED_BY).map(str::to_owned);
    }
    let stamp = request.stamp()?;
    match annotation(stamp).and_then(parse) {
        Some((generation, user)) => {
            let is_new = observed.is_none_or(|observed| generation > observed);
            (is_new && Some(generation) <= run.generation).then(|| user.to_owned())
        }
        None if run.generation == Some(1) => annotation(names::ANNOTATION_CREATED_BY).map(str::to_owned),
        None => None,
    }
}

/// The last generation that the operator has seen of this run.
pub fn observed(run: &AgentRun) -> Option<i64> {
    run.status.as_ref()?.observed_generation
}

/// Who lifted the suspend of this run, and why. The reason of the suspend may still be there, and is no reason to lift it.
pub fn of_resume(run: &AgentRun) -> RequestedBy {
    let suspend = run.status.as_ref().and_then(|it| it.suspend.as_ref());
    let why_suspended = suspend.and_then(|it| it.reason.as_deref());
    let by = of(&run.metadata, Request::OperatingMode, observed(run));
    RequestedBy { reason: by.reason.filter(|it| why_suspended != Some(it)), ..by }
}

/// Reduces the managed fields of an AgentRun to those that [`of`] reads. Managed fields are long, and of thousands of runs
/// few carry a request.
pub fn trim(fields: &mut Vec<ManagedFieldsEntry>) {
    fields.retain_mut(|entry| {
        let mut kept = json!({});
        for (request, name, field) in [
            (Request::OperatingMode, "f:operatingMode", json!({})),
            (Request::Reset, "f:recovery", json!({ "f:resetGeneration": {} })),
            (Request::Rewind, "f:rewind", json!({})),
            (Request::Fork, "f:resumeFrom", json!({})),
        ] {
            if request.is_managed_by(entry) {
                kept[name] = field;
            }
        }
        let is_request = kept != json!({});
        entry.fields_v1 = Some(FieldsV1(json!({ "f:spec": kept })));
        is_request
    });
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a panic fails the test")]

    use dalsegno_crds::SuspendStatus;
    use serde_json::Value;

    use super::*;

    fn entry(manager: &str, time: &str, fields: Value) -> ManagedFieldsEntry {
        let entry = json!({ "manager": manager, "operation": "Update", "time": time, "fieldsType": "FieldsV1",
                            "apiVersion": "dalsegno.dev/v1alpha1", "fieldsV1": fields });
        serde_json::from_value(entry).unwrap()
    }

    fn run(reason: &str) -> AgentRun {
        let mut run = AgentRun::new("nightly", Default::default());
        run.metadata.annotations = Some([(names::ANNOTATION_REASON.into(), reason.into())].into());
        let spec = |fields: Value| json!({ "f:spec": fields });
        run.metadata.managed_fields = Some(vec![
            entry("gitops", "2026-05-01T00:00:00Z", spec(json!({ "f:agentRef": {}, "f:operatingMode": {} }))),
            entry("kubectl-edit", "2026-05-03T00:00:00Z", spec(json!({ "f:operatingMode": {} }))),
            entry(
                "k9s",
                "2026-05-02T00:00:00Z",
                spec(json!({ "f:recovery": { ".": {}, "f:resetGeneration": {} } })),
            ),
            entry("dalsegno", "2026-05-04T00:00:00Z", json!({ "f:status": { "f:summary": {} } })),
        ]);
        run
    }

    #[test]
    fn the_manager_that_wrote_the_field_last_made_the_request() {
        let mut run = run(" wrong input ");
        for _ in 0..2 {
            let requests = [Request::OperatingMode, Request::Reset, Request::Deletion]
                .map(|request| of(&run.metadata, request, None));
            assert_eq!(requests.clone().map(|it| it.reason.unwrap_or_default()), ["wrong input"; 3]);
            let managers = requests.map(|it| it.manager.unwrap_or_default());
            assert_eq!(managers, ["kubectl-edit", "k9s", ""]);
            // The trimmed fields give the same answer.
            trim(run.metadata.managed_fields.get_or_insert_default());
        }
        assert_eq!(
            run.metadata.managed_fields.map(|it| it.len()),
            Some(3),
            "a manager without a request is removed"
        );
    }

    #[test]
    fn the_reason_of_a_suspend_is_no_reason_to_lift_it() {
        let mut run = run("the model is too expensive");
        let suspend =
            SuspendStatus { reason: Some("the model is too expensive".into()), ..Default::default() };
        run.status.get_or_insert_default().suspend = Some(suspend);
        assert_eq!(
            of_resume(&run),
            RequestedBy { manager: Some("kubectl-edit".into()), ..RequestedBy::default() }
        );
        let reason = "the price fell".to_owned();
        run.metadata.annotations = Some([(names::ANNOTATION_REASON.into(), reason.clone())].into());
        assert_eq!(of_resume(&run).reason, Some(reason));
    }

    #[test]
    fn a_request_without_a_manager_or_a_reason_has_no_attribution() {
        assert_eq!(
            of(&AgentRun::new("nightly", Default::default()).metadata, Request::OperatingMode, None),
            RequestedBy::default()
        );
        assert_eq!(of(&run("  ").metadata, Request::Deletion, None), RequestedBy::default());
        let long = of(&run(&"é".repeat(600)).metadata, Request::Deletion, None).reason.unwrap_or_default();
        assert_eq!(long.chars().count(), MAX_REASON_CHARS);
    }

    #[test]
    fn a_stamp_proves_the_user_of_a_generation_that_was_not_seen_before() {
        let mut run = run("enough");
        run.metadata.generation = Some(5);
        let mut user = |stamp: &str, observed: Option<i64>| {
            let annotations = run.metadata.annotations.get_or_insert_default();
            annotations.insert(names::ANNOTATION_OPERATING_MODE_BY.into(), stamp.into());
            of(&run.metadata, Request::OperatingMode, observed).user
        };
        assert_eq!(user("5 alice", Some(4)).as_deref(), Some("alice"));
        assert_eq!(user("5 alice", None).as_deref(), Some("alice"));
        assert_eq!(user("4 alice", Some(4)), None, "an old stamp was kept");
        assert_eq!(user("6 alice", Some(4)), None, "there is no such generation");
        assert_eq!([user("alice", Some(4)), user("5 ", Some(4)), user("", None)], [None, None, None]);
        assert_eq!(of(&run.metadata, Request::Reset, Some(4)).user, None, "each field has its own stamp");
    }

    #[test]
    fn what_was_set_on_creation_was_set_by_the_creator() {
        let mut run = run("enough");
        run.metadata.generation = Some(1);
        let annotations = run.metadata.annotations.get_or_insert_default();
        annotations.insert(names::ANNOTATION_CREATED_BY.into(), "alice".into());
        assert_eq!(of(&run.metadata, Request::OperatingMode, None).user.as_deref(), Some("alice"));
        run.metadata.generation = Some(2);
        assert_eq!(of(&run.metadata, Request::OperatingMode, None).user, None);
    }
}
