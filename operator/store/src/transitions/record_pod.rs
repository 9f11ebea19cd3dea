//! `reserved → created`: records the attempt's pod. An attempt has exactly one pod.

use serde_json::json;

use super::record_identity::identify;
use super::{Change, Decision, Rows, Transition};
use crate::db_error::DbResult;
use crate::reads::EnumText;
use dalsegno_model::audit::{actor, kind};
use dalsegno_model::{AttemptState, PodRecord, Recorded};

/// [`dalsegno_model::Store::record_pod`].
#[derive(Clone, Debug)]
pub(crate) struct RecordPod {
    pub attempt: i32,
    pub pod: PodRecord,
}

impl Transition for RecordPod {
    type Answer = Recorded;
    const OPERATION: &'static str = "recording a pod";

    fn decide(&self, rows: Rows) -> DbResult<Decision<Recorded>> {
        let PodRecord { uid, name, revision, identity } = &self.pod;
        let mut change = Change::of(rows);
        let run = change.row();
        let state = run.attempt_state.0;
        let is_same = run.pod_uid.as_ref() == Some(uid);
        if run.attempt != self.attempt || !(is_same || state == AttemptState::Reserved) {
            return change.refused();
        }
        if !change.is_live() || state == AttemptState::Ended {
            return change.recorded();
        }
        if state == AttemptState::Reserved {
            let now = change.now();
            let run = change.run();
            run.attempt_state = EnumText(AttemptState::Created);
            run.pod_uid = Some(uid.clone());
            let attempt = change.attempt()?;
            attempt.state = EnumText(AttemptState::Created);
            attempt.pod_uid = Some(uid.clone());
            attempt.pod_name = Some(name.clone());
            attempt.revision = Some(revision.clone());
            attempt.created_at = Some(now);
            let detail = json!({
                "attempt": self.attempt, "pod": name, "podUID": uid, "revision": revision,
            });
            change.audit(kind::POD, actor::OPERATOR, detail);
        }
        if let Some(identity) = identity {
            identify(&mut change, identity)?;
        }
        change.recorded()
    }
}
