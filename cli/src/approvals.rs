//! AgentApprovals, as the API server has them.

use dalsegno_crds::{AgentApproval, AgentRun, ApprovalConditionType, ConditionStatus, has_status};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::api::{Api, ListParams};

use crate::failure::{Failure, Result};
use crate::session::Session;

/// The approvals of a namespace, or of all: those that wait first, then the latest.
pub async fn list(session: &Session, all_namespaces: bool) -> Result<Vec<AgentApproval>> {
    let api: Api<AgentApproval> =
        if all_namespaces { Api::all(session.client.clone()) } else { session.api() };
    let listed = api.list(&ListParams::default()).await;
    let mut found = listed.map_err(|error| Failure::of_api("listing the AgentApprovals", &error))?.items;
    found.sort_by_key(|it| {
        let created = it.metadata.creation_timestamp.as_ref().map(|at| at.0);
        (!is_pending(it), std::cmp::Reverse(created))
    });
    Ok(found)
}

/// The approvals of a run.
pub async fn of_run(session: &Session, run: &AgentRun) -> Result<Vec<AgentApproval>> {
    let uid = run.metadata.uid.as_deref().unwrap_or_default();
    let all = list(session, false).await?;
    Ok(all.into_iter().filter(|it| it.spec.run_ref.uid == uid).collect())
}

/// Whether an approval waits for a decision. One without a status was just created.
pub fn is_pending(approval: &AgentApproval) -> bool {
    condition(approval, ApprovalConditionType::Pending).is_none_or(|it| has_status(it, ConditionStatus::True))
}

/// The condition of an approval.
pub fn condition(approval: &AgentApproval, kind: ApprovalConditionType) -> Option<&Condition> {
    let conditions = approval.status.as_ref().map_or(&[][..], |it| it.conditions.as_slice());
    conditions.iter().find(|it| it.type_ == kind.as_str())
}
