//! Stores the template from which the pod of a reserved attempt will be made, and the nonce that the pod will carry.

use super::{Change, Decision, Needs, Rows, Transition};
use crate::db_error::DbResult;
use dalsegno_model::{AttemptState, CANDIDATES, Recorded, Template};

/// [`dalsegno_model::Store::put_revision`].
#[derive(Clone, Debug)]
pub(crate) struct PutRevision {
    pub attempt: i32,
    pub template: Template,
    /// The nonce of the attempt's pod, unless the attempt has one already: its pod may exist.
    pub nonce: String,
}

impl Transition for PutRevision {
    type Answer = Recorded;
    const OPERATION: &'static str = "storing a template";

    fn needs(&self) -> Needs<'_> {
        Needs::Templates
    }

    fn decide(&self, rows: Rows) -> DbResult<Decision<Recorded>> {
        let Self { attempt: number, template, nonce } = self;
        let mut change = Change::of(rows);
        let is_reserved = change.is_live() && change.row().attempt_state.0 == AttemptState::Reserved;
        if !is_reserved || change.row().attempt != *number {
            return change.refused();
        }
        change.insert_template(template.clone());
        let attempt = change.attempt()?;
        // An attempt without the column's value was reserved by an older program, which may have created its pod.
        if attempt.pod_nonce.as_deref() == Some("") {
            attempt.pod_nonce = Some(nonce.clone());
        }
        let candidates = &mut attempt.candidates;
        candidates.retain(|hash| *hash != template.hash);
        candidates.insert(0, template.hash.clone());
        candidates.truncate(CANDIDATES);
        change.recorded()
    }
}
