//! Records the identity of the worker's image, and whether the run may continue with it.

use serde_json::json;

use super::{Change, Decision, Rows, Transition, text};
use crate::db_error::DbResult;
use crate::reads::EnumText;
use dalsegno_model::audit::{actor, kind};
use dalsegno_model::{AttemptState, Identity, Recorded, Verdict};

/// [`dalsegno_model::Store::record_identity`].
#[derive(Clone, Debug)]
pub(crate) struct RecordIdentity {
    pub attempt: i32,
    pub identity: Identity,
}

impl Transition for RecordIdentity {
    type Answer = Recorded;
    const OPERATION: &'static str = "recording an image's identity";

    fn decide(&self, rows: Rows) -> DbResult<Decision<Recorded>> {
        let mut change = Change::of(rows);
        if change.row().attempt != self.attempt {
            return change.refused();
        }
        if change.is_live() && change.row().attempt_state.0 != AttemptState::Ended {
            identify(&mut change, &self.identity)?;
        }
        change.recorded()
    }
}

/// Records an identity, if it is the attempt's first one.
pub(super) fn identify(change: &mut Change, identity: &Identity) -> DbResult<()> {
    if change.row().verdict.is_some() {
        return Ok(());
    }
    let Identity { image_digest, in_registry, agent_version, verdict, remark } = identity;
    let (image_digest, agent_version) = (text(image_digest), text(agent_version));
    let (verdict, remark) = (Some(EnumText(*verdict)), Some(text(remark)));
    let run = change.run();
    (run.verdict, run.remark) = (verdict, remark.clone());
    let attempt = change.attempt()?;
    (attempt.verdict, attempt.remark) = (verdict, remark);
    attempt.image_digest = Some(image_digest.clone());
    attempt.image_in_registry = *in_registry;
    attempt.agent_version = Some(agent_version.clone());
    let detail = json!({
        "attempt": attempt.number,
        "imageDigest": image_digest,
        "agentVersion": agent_version,
        "verdict": identity.verdict,
    });
    change.audit(kind::IDENTITY, actor::OPERATOR, detail);
    note_writer(change);
    Ok(())
}

/// Notes that the current attempt may write a checkpoint of its own, so that its row is found however many attempts follow.
/// Its worker has started, and its version was not refused.
pub(super) fn note_writer(change: &mut Change) {
    let run = change.row();
    let has_started = run.attempt_state.0 == AttemptState::Attached;
    let is_allowed = run.verdict.as_ref().is_some_and(|verdict| verdict.0 != Verdict::Refused);
    if run.external && has_started && is_allowed {
        let attempt = run.attempt;
        change.run().head_attempt = Some(attempt);
    }
}
