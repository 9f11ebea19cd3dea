//! A run is created, or a prior run of its name is adopted or abandoned.
//!
//! Invariant: at most one run of a namespace and name is not closed; a partial unique index enforces it. So a creator
//! whose write conflicts with another creator's looks again.

use serde_json::json;

use super::end::{end_with_audit, fence_and_end, neutral_ending, reserve_next};
use super::settings::set_deadlines;
use super::waits::withdraw_waits;
use super::{Change, Decision, Rows, Transition};
use crate::db_error::DbResult;
use crate::reads::{EnumText, FoundRuns, Hash, RunRow, RunRows};
use dalsegno_format::header;
use dalsegno_model::audit::{actor, kind};
use dalsegno_model::{
    AttemptState, Cause, Created, ForkState, Lifecycle, NewRun, OnPrior, PriorRun, RunId, RunRecord,
};

/// SQL: the rows `r` that [`next_create_step`] needs: the object's own run, and the prior run of its name.
/// Parameters: the object's UID, the namespace, the name.
pub(crate) const OWN_OR_PRIOR_RUN: &str = "r.object_uid = $1 \
     OR (r.namespace = $2 AND r.name = $3 AND r.lifecycle IN ('live', 'finished'))";

/// The next step towards the answer of [`dalsegno_model::Store::create_run`].
#[derive(Debug)]
pub(crate) enum CreateStep {
    /// None: this is the answer.
    Answer(Created),
    /// [`Adopt`] this run, then look again.
    Adopt(RunId),
    /// [`Abandon`] this run and [`create`] the new one, in one transaction.
    Replace(RunId),
    /// [`create`] the run.
    Create,
}

/// The next step, from what was found. No row is locked, so each step checks its rows again under the lock.
pub(crate) fn next_create_step(found: &FoundRuns, new: &NewRun) -> DbResult<CreateStep> {
    if let Some(own) = found.runs.iter().find(|rows| rows.run.object_uid == new.object_uid) {
        return Ok(CreateStep::Answer(Created::Run(Box::new(own.record()?))));
    }
    let Some(RunRows { run: prior, .. }) = found.runs.first() else { return Ok(CreateStep::Create) };
    Ok(match new.on_prior {
        OnPrior::Ignore => CreateStep::Replace(prior.id),
        // Nothing fences the worker of a run with checkpoints of its own, so no other run takes its place.
        OnPrior::Adopt if prior.tenant == new.tenant && !prior.external && !new.is_external => {
            CreateStep::Adopt(prior.id)
        }
        OnPrior::Hold | OnPrior::Adopt => CreateStep::Answer(Created::Prior(PriorRun {
            id: prior.id,
            object_uid: prior.object_uid.clone(),
            tenant: prior.tenant.clone(),
            asked_by: new.tenant.clone(),
            turn: prior.head_turn.unwrap_or_default(),
        })),
    })
}

/// Whether the run is an open prior run of this object's name.
fn is_prior(run: &RunRow, new: &NewRun) -> bool {
    (&run.namespace, &run.name) == (&new.namespace, &new.name)
        && run.object_uid != new.object_uid
        && matches!(run.lifecycle.0, Lifecycle::Live | Lifecycle::Finished)
}

/// Assigns a prior run to the new object, under a new epoch. A finished run stays finished.
#[derive(Clone, Debug)]
pub(crate) struct Adopt(pub NewRun);

impl Transition for Adopt {
    type Answer = ();
    const OPERATION: &'static str = "creating a run";

    fn decide(&self, rows: Rows) -> DbResult<Decision<()>> {
        let Self(new) = self;
        let mut change = Change::of(rows);
        if !is_prior(change.row(), new) || change.row().tenant != new.tenant {
            return Ok(change.decide(()));
        }
        let detail = json!({ "from": change.row().object_uid, "to": new.object_uid });
        change.audit(kind::ADOPTED, actor::OPERATOR, detail);
        set_deadlines(&mut change, &new.deadlines);
        let run = change.run();
        run.object_uid = new.object_uid.clone();
        run.observed_reset_generation = run.observed_reset_generation.max(new.reset_generation);
        run.observed_rewind_generation = run.observed_rewind_generation.max(new.rewind_generation);
        let (attempt, has_ended) = (run.attempt, run.attempt_state.0 == AttemptState::Ended);
        if change.is_live() && !has_ended {
            end_with_audit(&mut change, &neutral_ending(attempt, Cause::Adopted))?;
        } else {
            fence_and_end(&mut change, Cause::Adopted)?;
        }
        if change.is_live() {
            reserve_next(&mut change);
        }
        Ok(change.decide(()))
    }
}

/// Closes a prior run permanently: later runs of its name ignore it.
#[derive(Clone, Debug)]
pub(crate) struct Abandon(pub NewRun);

impl Transition for Abandon {
    /// False: it is no longer a prior run.
    type Answer = bool;
    const OPERATION: &'static str = Adopt::OPERATION;

    fn decide(&self, rows: Rows) -> DbResult<Decision<bool>> {
        let Self(new) = self;
        let mut change = Change::of(rows);
        if !is_prior(change.row(), new) {
            return Ok(change.decide(false));
        }
        fence_and_end(&mut change, Cause::Abandoned)?;
        let now = change.now();
        let run = change.run();
        (run.lifecycle, run.over_at) = (EnumText(Lifecycle::Abandoned), Some(now));
        let detail = json!({ "by": new.object_uid, "epoch": run.epoch });
        change.audit(kind::ABANDONED, actor::OPERATOR, detail);
        withdraw_waits(&mut change);
        Ok(change.decide(true))
    }
}

/// Creates a run with attempt 1 reserved. It must be written only if there is no run of this object, and no open run
/// of its name. `found`: for the store's row and its clock.
pub(crate) fn create(found: &FoundRuns, new: &NewRun) -> DbResult<Decision<RunRecord>> {
    let FoundRuns { now, store, .. } = *found;
    let mut change = Change::of_new(RunRows {
        now,
        store,
        lease_gateway: None,
        outages: Vec::new(),
        run: empty(now, new),
        attempts: Vec::new(),
        waits: Vec::new(),
    });
    let NewRun { tenant, namespace, name, object_uid, .. } = new;
    let detail = json!({ "tenant": tenant, "namespace": namespace, "name": name, "objectUID": object_uid });
    change.audit(kind::CREATED, actor::OPERATOR, detail);
    reserve_next(&mut change);
    change.with_record()
}

/// The row of a new run. Attempt 0 does not exist: the first reserved attempt has number 1.
fn empty(now: i64, new: &NewRun) -> RunRow {
    RunRow {
        id: new.id,
        tenant: new.tenant.clone(),
        namespace: new.namespace.clone(),
        name: new.name.clone(),
        object_uid: new.object_uid.clone(),
        created_at: now,
        lifecycle: EnumText(Lifecycle::Live),
        epoch: 1,
        capability: None,
        last_capability: None,
        attempt: 0,
        attempt_state: EnumText(AttemptState::Ended),
        pod_uid: None,
        attempt_turn: 0,
        attempt_completed: 0,
        verdict: None,
        remark: None,
        scheduled_at: None,
        attached_at: None,
        lease_renewed_at: None,
        lease_ms: 0,
        spent: false,
        head_turn: None,
        head_boundary: None,
        head_epoch: None,
        head_attempt: None,
        head_commit_id: None,
        head_digest: None,
        head_hash: None,
        head_position: 0,
        head_at: None,
        highest_turn: 0,
        completed_calls: 0,
        unsettled_retry_same_key: 0,
        unsettled_probe: 0,
        unsettled_ask: 0,
        unsettled_read_only: 0,
        keys_refused: 0,
        recovery_attempts: 0,
        recovery_attempts_base: 0,
        attempts_without_progress: 0,
        disruptions: 0,
        disruptions_base: 0,
        disruptions_without_progress: 0,
        observed_reset_generation: new.reset_generation,
        reset_attempt: 0,
        stored_bytes: 0,
        tokens_in: 0,
        tokens_out: 0,
        tool_calls: 0,
        cost_micro_usd: 0,
        cancel_requested_at: None,
        cancel_told_at: None,
        suspend: false,
        suspend_requested_at: None,
        suspend_told_at: None,
        heartbeat_ms: new.deadlines.heartbeat_ms,
        start_ms: new.deadlines.start_ms,
        progress_ms: new.deadlines.progress_ms,
        suspend_ms: new.deadlines.suspend_ms,
        limit_turns: None,
        limit_tokens: None,
        limit_cost: None,
        limit_active_ms: None,
        limit_reached_at: None,
        active_ms: 0,
        limits_near: 0,
        announced: None,
        finish_outcome: None,
        finish_reason: None,
        finish_message: None,
        finish_output: None,
        finish_commit_id: None,
        finish_digest: None,
        finish_at: None,
        changed_at: now,
        audit_seq: 0,
        audit_hash: Hash(header::NO_PARENT),
        records_digest: None,
        retention_days: 30,
        expired_at: None,
        emptied: false,
        keep_last: None,
        snapshot_every: None,
        dropped_turn: None,
        dropped_boundary: None,
        dropped_epoch: None,
        over_at: None,
        state_bytes: Some(0),
        state_hash: None,
        open_calls_bytes: None,
        open_calls_turn: None,
        own_open_calls: 0,
        rewinds: 0,
        park_id: None,
        last_wait: 0,
        open_waits: 0,
        open_wait_bytes: 0,
        parked_on: None,
        park_mode: None,
        parked_at: None,
        parks_without_progress: 0,
        wake_at: None,
        inbox: 0,
        unread: 0,
        unread_bytes: 0,
        observed_rewind_generation: new.rewind_generation,
        rewind_result: None,
        fork_state: new.is_fork.then_some(EnumText(ForkState::Pending)),
        fork_parent: None,
        fork_turn: None,
        fork_epoch: None,
        fork_hash: None,
        fork_space: None,
        fork_key: None,
        fork_seq: None,
        external: new.is_external,
    }
}
