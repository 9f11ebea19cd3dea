//! The template that the pod of a reserved attempt is about to be made of is kept.

use super::{Change, Decision, Needs, Rows, Template, Transition};
use crate::fault::Work;
use crate::{AttemptState, CANDIDATES, Recorded};

/// [`crate::Store::put_revision`].
#[derive(Clone, Debug)]
pub(crate) struct PutRevision {
    pub attempt: i32,
    pub template: Template,
}

impl Transition for PutRevision {
    type Answer = Recorded;
    const OPERATION: &'static str = "keeping a template";

    fn needs(&self) -> Needs<'_> {
        Needs::Templates
    }

    fn decide(&self, rows: Rows) -> Work<Decision<Recorded>> {
        let Self { attempt: number, template } = self;
        let mut change = Change::of(rows);
        let is_reserved = change.is_live() && change.row().attempt_state.0 == AttemptState::Reserved;
        if !is_reserved || change.row().attempt != *number {
            return change.refused();
        }
        change.keep(template.clone());
        let candidates = &mut change.attempt()?.candidates;
        candidates.retain(|hash| *hash != template.hash);
        candidates.insert(0, template.hash.clone());
        candidates.truncate(CANDIDATES);
        change.recorded()
    }
}
