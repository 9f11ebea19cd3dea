//! Who asked for what, and why, as far as an AgentRun tells: by the manager of the field that says so, and by an annotation.

use dalsegno_crds::names;
use dalsegno_store::AskedBy;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{FieldsV1, ManagedFieldsEntry};
use kube::ResourceExt;
use serde_json::json;

/// Longest reason that is kept, in characters.
pub const REASON: usize = 512;

/// What a person asks for by writing to an AgentRun.
#[derive(Clone, Copy)]
pub enum Wish {
    /// That it is cancelled.
    Cancel,
    /// One fresh budget.
    Reset,
    /// That it goes. The API server does not say who deletes.
    Deletion,
}

impl Wish {
    /// The field that says so, as managed fields name it.
    fn field(self) -> Option<&'static str> {
        match self {
            Self::Cancel => Some("/f:spec/f:operatingMode"),
            Self::Reset => Some("/f:spec/f:recovery/f:resetGeneration"),
            Self::Deletion => None,
        }
    }

    fn is_of(self, entry: &ManagedFieldsEntry) -> bool {
        let fields = entry.fields_v1.as_ref().map(|it| &it.0);
        self.field().is_some_and(|field| fields.is_some_and(|it| it.pointer(field).is_some()))
    }
}

/// What is known of who wants it: of several managers of the field, the one that wrote last.
pub fn of(run: &impl ResourceExt, wish: Wish) -> AskedBy {
    let managers = run.managed_fields().iter().filter(|entry| wish.is_of(entry));
    let last = managers.max_by_key(|entry| entry.time.as_ref().map(|time| time.0));
    let reason = run.annotations().get(names::ANNOTATION_REASON).map(|it| it.trim());
    AskedBy {
        manager: last.and_then(|entry| entry.manager.clone()),
        reason: reason.filter(|it| !it.is_empty()).map(|it| it.chars().take(REASON).collect()),
    }
}

/// Leaves what [`of`] needs of an AgentRun's managed fields: they are long, and of thousands of runs few have a wish.
pub fn trim(fields: &mut Vec<ManagedFieldsEntry>) {
    fields.retain_mut(|entry| {
        let kept = match (Wish::Cancel.is_of(entry), Wish::Reset.is_of(entry)) {
            (false, false) => return false,
            (true, false) => json!({ "f:operatingMode": {} }),
            (false, true) => json!({ "f:recovery": { "f:resetGeneration": {} } }),
            (true, true) => json!({ "f:operatingMode": {}, "f:recovery": { "f:resetGeneration": {} } }),
        };
        entry.fields_v1 = Some(FieldsV1(json!({ "f:spec": kept })));
        true
    });
}

#[cfg(test)]
mod tests {
    use dalsegno_crds::AgentRun;
    use serde_json::Value;

    use super::*;

    fn entry(manager: &str, time: &str, fields: Value) -> ManagedFieldsEntry {
        let entry = json!({ "manager": manager, "operation": "Update", "time": time, "fieldsType": "FieldsV1",
                            "apiVersion": "dalsegno.dev/v1alpha1", "fieldsV1": fields });
        serde_json::from_value(entry).expect("an entry")
    }

    fn run(reason: &str) -> AgentRun {
        let mut run = AgentRun::new("nightly", Default::default());
        run.annotations_mut().insert(names::ANNOTATION_REASON.into(), reason.into());
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
    fn the_manager_that_wrote_a_wish_last_is_who_asked() {
        let mut run = run(" wrong input ");
        for _ in 0..2 {
            let asked = [Wish::Cancel, Wish::Reset, Wish::Deletion].map(|wish| of(&run, wish));
            assert_eq!(asked.clone().map(|it| it.reason.unwrap_or_default()), ["wrong input"; 3]);
            let managers = asked.map(|it| it.manager.unwrap_or_default());
            assert_eq!(managers, ["kubectl-edit", "k9s", ""]);
            // What is kept of them tells the same.
            trim(run.managed_fields_mut());
        }
        assert_eq!(run.managed_fields().len(), 3, "whoever has no wish is not kept");
    }

    #[test]
    fn what_nobody_wrote_is_not_known() {
        assert_eq!(of(&AgentRun::new("nightly", Default::default()), Wish::Cancel), AskedBy::default());
        assert_eq!(of(&run("  "), Wish::Deletion), AskedBy::default());
        let long = of(&run(&"é".repeat(600)), Wish::Deletion).reason.unwrap_or_default();
        assert_eq!(long.chars().count(), REASON);
    }
}
