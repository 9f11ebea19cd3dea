//! Whether the store is consistent with what is known of the run: it is the store that the run was created in, and it
//! knows at least as much as the status and the pods show. Otherwise nothing is changed.

use std::fmt;

use dalsegno_crds::{AgentRun, ConditionStatus, ConditionType, Reason, find_condition, has_status, names};
use dalsegno_model::{Lifecycle, PriorRun, RunRecord};
use uuid::Uuid;

use crate::cli_location::CliLocation;
use crate::observed::{Observed, ObservedStore};
use crate::pod::annotation;
use crate::recovery::Hold;

/// The result of the check.
#[derive(Debug)]
pub(crate) enum StoreConsistency<'a> {
    /// The store did not respond. Holds the error.
    Unknown(&'a str),
    /// The store has no row, and nothing shows that it ever had one.
    NewRun,
    /// The run's row. It is at least as new as everything that is known of the run.
    Row(&'a RunRecord),
    /// The store is not consistent. A person must act.
    Hold(Hold),
    /// The status says that the run has ended, and the store does not. An end is final.
    OrphanedTerminal,
}

impl<'a> StoreConsistency<'a> {
    /// The row, if the store is consistent.
    pub(crate) fn row(&self) -> Option<&'a RunRecord> {
        match self {
            Self::Row(row) => Some(row),
            Self::Unknown(_) | Self::NewRun | Self::Hold(_) | Self::OrphanedTerminal => None,
        }
    }
}

/// Checks the store's answer against what is known of the run.
pub(crate) fn check<'a>(run: &AgentRun, observed: &'a Observed) -> StoreConsistency<'a> {
    let consistency = match &observed.store {
        ObservedStore::Unknown(error) => StoreConsistency::Unknown(error),
        ObservedStore::NotFound { store_id } => find_inconsistency(run, observed, *store_id, None)
            .map_or(StoreConsistency::NewRun, StoreConsistency::Hold),
        ObservedStore::Prior(prior) => StoreConsistency::Hold(prior_run_hold(prior, &observed.cli)),
        ObservedStore::Found(row) => find_inconsistency(run, observed, row.store_id, Some(row))
            .map_or(StoreConsistency::Row(row), StoreConsistency::Hold),
    };
    let store_agrees = consistency.row().is_some_and(|row| row.finish.is_some());
    if is_finished(run) && !store_agrees { StoreConsistency::OrphanedTerminal } else { consistency }
}

/// Whether the status says that the run has ended.
fn is_finished(run: &AgentRun) -> bool {
    let conditions = run.status.as_ref().map(|it| it.conditions.as_slice()).unwrap_or_default();
    let finished = find_condition(conditions, ConditionType::Finished);
    finished.is_some_and(|it| has_status(it, ConditionStatus::True))
}

fn find_inconsistency(
    run: &AgentRun,
    observed: &Observed,
    store_id: Uuid,
    row: Option<&RunRecord>,
) -> Option<Hold> {
    if let Some(known) = run.status.as_ref().and_then(|it| it.store_id.as_deref())
        && known != store_id.to_string()
    {
        let message = format!("the run was created in store {known}, but this is store {store_id}");
        return Some(Hold::new(Reason::StoreChanged, message));
    }
    let closed = |row: &RunRecord| matches!(row.lifecycle, Lifecycle::Deleted | Lifecycle::Abandoned);
    if row.is_some_and(|row| closed(row) && row.finish.is_none()) {
        let message =
            "the store has closed this run: it was deleted, or abandoned for a later run of the same name";
        return Some(Hold::new(Reason::StoreBehind, message));
    }
    let known = HighWaterMark::of_status_and_pods(run, observed);
    let stored = row.map_or_else(HighWaterMark::default, HighWaterMark::of_row);
    known.is_beyond(&stored).then(|| {
        let store = match row {
            Some(_) => format!("the store is at {stored}"),
            None => "the store does not have this run".to_owned(),
        };
        Hold::new(Reason::StoreBehind, format!("{store}; the run is known to have reached {known}"))
    })
}

/// The furthest point that a run has reached.
#[derive(Default)]
struct HighWaterMark {
    attempt: i32,
    turn: i32,
    /// Event position.
    position: i64,
}

impl HighWaterMark {
    /// From the row. A rewind does not lower the highest turn.
    fn of_row(row: &RunRecord) -> Self {
        let position = row.head.as_ref().map_or(0, |head| head.position);
        Self { attempt: row.attempt.number, turn: row.highest_turn, position }
    }

    /// From the status, and from the labels and annotations of the run's pods.
    fn of_status_and_pods(run: &AgentRun, observed: &Observed) -> Self {
        let status = run.status.as_ref();
        let checkpoint = status.and_then(|it| it.checkpoint.as_ref());
        let mut known = Self {
            attempt: status.and_then(|it| it.attempt.as_ref()).map_or(0, |it| it.number),
            turn: checkpoint.map_or(0, |it| it.turn),
            position: checkpoint.map_or(0, |it| it.event_position),
        };
        for seen in observed.own_pods(run) {
            let resumed = annotation(&seen.pod, names::ANNOTATION_TURN).and_then(|it| it.split_once('/'));
            let (turn, position) = resumed.unwrap_or_default();
            known.attempt = known.attempt.max(seen.attempt().unwrap_or_default());
            known.turn = known.turn.max(turn.parse().unwrap_or_default());
            known.position = known.position.max(position.parse().unwrap_or_default());
        }
        known
    }

    fn is_beyond(&self, other: &Self) -> bool {
        self.attempt > other.attempt || self.turn > other.turn || self.position > other.position
    }
}

impl fmt::Display for HighWaterMark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "attempt {}, turn {}, event position {}", self.attempt, self.turn, self.position)
    }
}

fn prior_run_hold(prior: &PriorRun, cli: &CliLocation) -> Hold {
    let PriorRun { id: _, object_uid, tenant, asked_by, turn } = prior;
    let adoption = if tenant == asked_by {
        String::new()
    } else {
        format!(
            "; its namespace had another UID: before the run can be adopted, an administrator must run `{} {}`",
            cli.command("adopt-namespace", &[tenant, asked_by]),
            cli.justification("the namespace was created again")
        )
    };
    let message = format!(
        "the store holds a run of this name at turn {turn} that belonged to object {object_uid}{adoption}"
    );
    Hold::new(Reason::PriorRunFound, message)
}
