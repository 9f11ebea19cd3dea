//! The worker parks: its attempt ends, and the next one is reserved. Or the operator parks it.

use dalsegno_protocol::{ParkMode, ParkRequest};
use serde_json::json;
use uuid::Uuid;

use super::acknowledge_cancel::{acknowledge, set_acknowledged};
use super::end::{end_with_audit, neutral_ending, reserve_next};
use super::waits::{is_met, update_waits};
use super::worker::{has_capability, has_unsettled};
use super::{Change, Decision, Needs, Rows, Transition, WaitsQuery, text};
use crate::db_error::DbResult;
use crate::reads::{EnumText, Hash, StoredWait};
use dalsegno_model::audit::{actor, kind};
use dalsegno_model::{
    AttemptState, Cause, Commit, CommitReceipt, Committed, Digest, Ending, Park, Parked, RunId, RunRecord,
};

impl Transition for Park {
    type Answer = Parked;
    const OPERATION: &'static str = "parking a run";

    fn needs(&self) -> Needs<'_> {
        if self.on.is_empty() {
            Needs::Nothing
        } else {
            Needs::Waits(WaitsQuery { ids: &self.on, rate_limit: None, unread: None })
        }
    }

    fn decide(&self, rows: Rows) -> DbResult<Decision<Parked>> {
        ParkOf { park: self, with_boundary: false }.decide(rows)
    }

    fn without_run(&self, _: RunId) -> DbResult<Parked> {
        Ok(Parked::Fenced)
    }
}

/// The park of a boundary that was just committed in the same transaction.
#[derive(Clone, Debug)]
pub(crate) struct ParkWithBoundary(pub Park);

impl ParkWithBoundary {
    /// The park of this commit, if it has one.
    pub fn of(commit: &Commit) -> Option<Self> {
        let Commit { run, capability, ref park, .. } = *commit;
        let ParkRequest { park_id, on, mode } = park.clone()?;
        Some(Self(Park { run, capability, park_id, on, mode }))
    }
}

impl Transition for ParkWithBoundary {
    type Answer = Parked;
    const OPERATION: &'static str = Park::OPERATION;

    fn needs(&self) -> Needs<'_> {
        self.0.needs()
    }

    fn decide(&self, rows: Rows) -> DbResult<Decision<Parked>> {
        ParkOf { park: &self.0, with_boundary: true }.decide(rows)
    }

    fn without_run(&self, run: RunId) -> DbResult<Parked> {
        self.0.without_run(run)
    }
}

/// The answer to a commit that parks, from the answer to its park. Everything but [`Committed::Parked`] means that
/// nothing may be stored.
pub(crate) fn parked(parked: Parked, receipt: CommitReceipt) -> Committed {
    match parked {
        Parked::Parked | Parked::Ready => Committed::Parked(receipt),
        Parked::UnsettledCalls => Committed::UnsettledCalls,
        Parked::OpenCalls => Committed::OpenCalls,
        Parked::NoSuchWait(id) => Committed::NoSuchWait(id),
        Parked::Finished => Committed::Finished,
        Parked::Fenced => Committed::Fenced { committed: false },
    }
}

/// A park, alone or of a boundary.
#[derive(Clone, Copy, Debug)]
struct ParkOf<'a> {
    park: &'a Park,
    /// It is committed with a boundary, which is never ready: an answer that is already there wakes the run at once.
    with_boundary: bool,
}

impl ParkOf<'_> {
    /// The rule.
    fn decide(self, rows: Rows) -> DbResult<Decision<Parked>> {
        let Park { run: _, capability, park_id, on, mode } = self.park;
        let is_known = |id: &String| rows.named_waits.iter().any(|StoredWait { row, .. }| row.id == text(id));
        let unknown = on.iter().find(|id| !is_known(id)).cloned();
        let mut change = Change::of(rows);
        let run = change.row();
        let is_asked = run.suspend || run.cancel_requested_at.is_some();
        let refused = if !has_capability(run, capability) {
            let is_retry = run.last_capability == Some(Hash(*capability)) && run.park_id == Some(*park_id);
            Some(if is_retry { Parked::Parked } else { Parked::Fenced })
        } else if !change.is_live() {
            Some(Parked::Finished)
        } else if has_unsettled(run) {
            Some(Parked::UnsettledCalls)
        } else if run.own_open_calls > 0 {
            Some(Parked::OpenCalls)
        } else if let Some(id) = unknown {
            Some(Parked::NoSuchWait(id))
        } else if !self.with_boundary && !is_asked && is_ready(&change, on, *mode) {
            Some(Parked::Ready)
        } else {
            None
        };
        if let Some(answer) = refused {
            return Ok(change.decide(answer));
        }
        let who = Parker { capability: *capability, park_id: *park_id };
        if change.row().cancel_requested_at.is_some() {
            acknowledge(&mut change, who.capability, Some(who.park_id))?;
        } else if on.is_empty() && !self.with_boundary {
            let ending = ending(&change, Cause::Suspended);
            end_with_audit(&mut change, &ending)?;
            reserve_and_remember(&mut change, Some(who));
        } else {
            let on: Vec<_> = on.iter().map(|id| text(id)).collect();
            park_on(&mut change, &on, *mode, Some(who))?;
        }
        Ok(change.decide(Parked::Parked))
    }
}

/// [`dalsegno_model::Operator::park_unattended`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct ParkUnattended {
    pub attempt: i32,
}

impl Transition for ParkUnattended {
    type Answer = RunRecord;
    const OPERATION: &'static str = "parking a run for its worker";

    fn decide(&self, rows: Rows) -> DbResult<Decision<RunRecord>> {
        let mut change = Change::of(rows);
        let run = change.row();
        let is_current = run.attempt == self.attempt && run.attempt_state.0 == AttemptState::Attached;
        let has_unattended = change.record()?.unattended_wait().is_some();
        if change.is_live() && is_current && has_unattended {
            let on: Vec<_> = change.waits().iter().map(|wait| wait.id.clone()).collect();
            park_on(&mut change, &on, ParkMode::Any, None)?;
        }
        change.with_record()
    }
}

/// Who parks, so that a retry is recognized.
#[derive(Clone, Copy, Debug)]
struct Parker {
    capability: Digest,
    park_id: Uuid,
}

/// Whether there is nothing to wait for.
fn is_ready(change: &Change, on: &[String], mode: ParkMode) -> bool {
    on.is_empty()
        || is_met(on, mode, |id| change.waits().iter().any(|wait| wait.is_open() && wait.id == text(id)))
}

fn ending(change: &Change, cause: Cause) -> Ending {
    neutral_ending(change.row().attempt, cause)
}

/// Ends the attempt and parks the run on these waits. If they are answered already, the next attempt may start at once.
/// `who`: the worker; `None`: the operator parks the run.
fn park_on(change: &mut Change, on: &[String], mode: ParkMode, who: Option<Parker>) -> DbResult<()> {
    let parks = change.row().parks_without_progress + 1;
    let before = change.row().attempt;
    // The end resets the number if the attempt made progress.
    change.run().parks_without_progress = parks;
    let ending = ending(change, Cause::Parked);
    end_with_audit(change, &ending)?;
    let actor = if who.is_some() { actor::WORKER } else { actor::OPERATOR };
    change.audit(kind::PARKED, actor, json!({ "attempt": before, "on": on, "mode": mode }));
    let now = change.now();
    let run = change.run();
    run.parked_on = Some(on.to_vec());
    run.park_mode = Some(EnumText(mode));
    run.parked_at = Some(now);
    reserve_and_remember(change, who);
    update_waits(change);
    Ok(())
}

fn reserve_and_remember(change: &mut Change, who: Option<Parker>) {
    if let Some(Parker { capability, park_id }) = who {
        set_acknowledged(change.run(), capability, Some(park_id));
    }
    reserve_next(change);
    change.notify();
}
