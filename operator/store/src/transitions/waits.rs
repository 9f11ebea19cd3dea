//! The steps that the rules of waits share: a wait is answered, the run's park is looked at, waits are undone or
//! withdrawn.

use std::collections::BTreeSet;

use dalsegno_protocol::{ParkMode, WaitKind, WaitOutcome, WaitState};
use serde_json::{Value as Json, json};

use super::Change;
use crate::reads::{EnumText, RunRow, WaitRow};
use dalsegno_model::BoundaryId;
use dalsegno_model::audit::{actor, kind};

/// An answer to a wait.
pub(super) struct NewAnswer<'a> {
    pub id: &'a str,
    pub outcome: WaitOutcome,
    /// Who answered, for the audit.
    pub actor: &'a str,
    /// More for the audit's detail.
    pub detail: Json,
}

/// Answers an open wait, and wakes the run if it was parked on it and need not wait for another one.
pub(super) fn answer_wait(change: &mut Change, answer: &NewAnswer<'_>) {
    let now = change.now();
    let NewAnswer { id, outcome, actor, detail } = answer;
    let Some(wait) = change.waits_mut().iter_mut().find(|wait| wait.id == *id && wait.is_open()) else {
        return;
    };
    wait.state = EnumText(WaitState::Answered);
    wait.outcome = Some(EnumText(*outcome));
    wait.answered_at = Some(now);
    wait.position = detail["position"].as_i64();
    let mut entry = json!({ "wait": wait.id, "epoch": wait.epoch, "kind": wait.kind.0, "outcome": outcome });
    if let (Some(entry), Some(detail)) = (entry.as_object_mut(), detail.as_object()) {
        entry.extend(detail.clone());
    }
    change.audit(kind::WAIT_ANSWERED, actor, entry);
    update_waits(change);
}

/// The store's clock answers an open wait.
pub(super) fn answer_by_clock(change: &mut Change, id: &str, outcome: WaitOutcome) {
    answer_wait(change, &NewAnswer { id, outcome, actor: actor::OPERATOR, detail: json!({}) });
}

/// Updates the columns of the run's row that follow from its open waits. A run whose park has its answers is woken.
pub(super) fn update_waits(change: &mut Change) {
    let open: Vec<_> = change.waits().iter().filter(|wait| wait.is_open()).cloned().collect();
    if let Some((on, mode)) = parked_on(change.row())
        && is_met(&on, mode, |id| open.iter().any(|wait| wait.id == id))
    {
        change.run().unpark();
        change.notify();
    }
    let on = parked_on(change.row()).map(|(on, _)| on).unwrap_or_default();
    let run = change.run();
    run.open_waits = open.len() as i64;
    run.open_wait_bytes = open.iter().map(|wait| wait.bytes).sum();
    run.wake_at = open.iter().filter_map(|wait| wake_at(wait, on.contains(&wait.id))).min();
}

/// The ids of the waits that the run is parked on.
pub(super) fn parked_on(run: &RunRow) -> Option<(Vec<String>, ParkMode)> {
    Some((run.parked_on.clone()?, run.park_mode?.0))
}

/// Whether a run that parks on these waits need not wait.
pub(super) fn is_met(on: &[String], mode: ParkMode, is_open: impl Fn(&str) -> bool) -> bool {
    match mode {
        ParkMode::All => !on.iter().any(|id| is_open(id)),
        ParkMode::Any => on.is_empty() || on.iter().any(|id| !is_open(id)),
    }
}

/// When the wait needs the store's clock next. `is_parked_on`: whether the run is parked on it.
fn wake_at(wait: &WaitRow, is_parked_on: bool) -> Option<i64> {
    wait.wake_at.into_iter().chain(wait.deadline_at.filter(|_| obeys_deadline(wait, is_parked_on))).min()
}

/// Whether the deadline of an open wait has an effect.
pub(super) fn obeys_deadline(wait: &WaitRow, is_parked_on: bool) -> bool {
    dalsegno_model::obeys_deadline(wait.on_timeout.0, wait.timed_out_at.is_some(), is_parked_on)
}

/// Undoes the waits that were opened after this boundary. A run that was parked is not parked any more. The engines mark
/// the rows: that includes the answered ones, which are not read.
pub(super) fn undo_waits(change: &mut Change, to: BoundaryId) {
    change.waits_mut().retain(|wait| (wait.turn, wait.boundary.0) <= (to.turn, to.boundary));
    change.run().unpark();
    update_waits(change);
}

/// Withdraws the open waits of a run that has ended.
pub(super) fn withdraw_waits(change: &mut Change) {
    let mut withdrawn = Vec::new();
    for wait in change.waits_mut().iter_mut().filter(|wait| wait.is_open()) {
        wait.state = EnumText(WaitState::Withdrawn);
        withdrawn.push((wait.id.clone(), wait.epoch));
    }
    change.run().clear_waits();
    if !withdrawn.is_empty() {
        change.audit(kind::WAIT_WITHDRAWN, actor::OPERATOR, withdrawn_detail(&withdrawn));
    }
}

/// The detail of the audit row for withdrawn waits: their ids and opening epochs.
pub(crate) fn withdrawn_detail(waits: &[(String, i64)]) -> Json {
    let waits: Vec<_> = waits.iter().map(|(id, epoch)| json!({ "wait": id, "epoch": epoch })).collect();
    json!({ "waits": waits })
}

/// The wait that a message of this topic answers: one that the run is parked on before any other, and of these the one
/// that was opened first. A message answers at most one wait.
pub(super) fn wait_for_message<'a>(
    waits: &'a [WaitRow],
    on: &[String],
    topic: Option<&str>,
) -> Option<&'a WaitRow> {
    let on: BTreeSet<_> = on.iter().map(String::as_str).collect();
    waits
        .iter()
        .filter(|wait| wait.is_open() && wait.kind.0 == WaitKind::Message)
        .filter(|wait| wait.topic.is_none() || wait.topic.as_deref() == topic)
        .min_by_key(|wait| (!on.contains(wait.id.as_str()), wait.ordinal))
}

/// Whether a message of this topic would answer a wait of the run.
pub(super) fn is_waited_for(change: &Change, topic: Option<&str>) -> bool {
    wait_for_message(change.waits(), &[], topic).is_some()
}

/// Answers the wait that a message of this topic is for, if there is one. `position`: the message's in the inbox.
pub(super) fn answer_message_wait(change: &mut Change, topic: Option<&str>, position: i64) {
    let on = parked_on(change.row()).map(|(on, _)| on).unwrap_or_default();
    let id = wait_for_message(change.waits(), &on, topic).map(|wait| wait.id.clone());
    if let Some(id) = id {
        answer_by_message(change, &id, position);
    }
}

/// A message answers this open wait.
pub(super) fn answer_by_message(change: &mut Change, id: &str, position: i64) {
    let detail = json!({ "position": position });
    let (outcome, actor) = (WaitOutcome::Message, actor::OPERATOR);
    answer_wait(change, &NewAnswer { id, outcome, actor, detail });
}
