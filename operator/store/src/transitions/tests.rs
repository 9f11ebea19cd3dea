//! Tests of the rules without a database: from rows to a set of writes and an answer.

mod admissions;
mod ends;
mod rewinds_and_forks;
mod runs_that_are_over;
mod writes;

use std::collections::BTreeMap;

use dalsegno_protocol::Boundary;
use uuid::Uuid;

use super::*;
use crate::reads::{Assignment, EnumText, FoundRuns, Hash, RunRow, StoreRow, Value};
use dalsegno_model::{
    AttemptState, Deadlines, Digest, Identity, Lifecycle, NewFinish, NewRun, OnPrior, PodRecord, RunOutcome,
    Verdict,
};

/// The store's clock when a rule decides.
const NOW: i64 = 2_000;

const INSTANCE: Digest = [7; 32];

fn new_run() -> NewRun {
    NewRun {
        id: Uuid::from_u128(1),
        tenant: "tenant".into(),
        namespace: "agents".into(),
        name: "nightly".into(),
        object_uid: "object".into(),
        reset_generation: 0,
        rewind_generation: 0,
        is_fork: false,
        is_external: false,
        deadlines: Deadlines {
            heartbeat_ms: 15_000,
            start_ms: 600_000,
            progress_ms: 1_800_000,
            suspend_ms: 300_000,
        },
        on_prior: OnPrior::Hold,
    }
}

/// What is found in a store with these runs.
fn found(runs: Vec<RunRows>) -> FoundRuns {
    let store = StoreRow { id: Uuid::nil(), created_at: 0, beat_last: 0, beat_since: 0, gap_from: 0 };
    FoundRuns { now: 1_000, store, runs }
}

/// A run whose first attempt is reserved.
fn reserved() -> Rows {
    let found = found(Vec::new());
    let WriteSet { created, reserved, .. } = create(&found, &new_run()).unwrap().write;
    let (run, store) = (*created.unwrap(), found.store);
    Rows::new(
        RunRows {
            now: NOW,
            store,
            lease_gateway: None,
            outages: Vec::new(),
            run,
            attempts: reserved,
            waits: Vec::new(),
        },
        BTreeMap::new(),
    )
}

/// A run whose first attempt has this state. If it has a pod, its image is accepted.
fn with_attempt(state: AttemptState) -> Rows {
    let mut rows = reserved();
    let RunRows { run, attempts, .. } = &mut rows.of_run;
    run.attempt_state = EnumText(state);
    attempts[0].state = EnumText(state);
    if state != AttemptState::Reserved {
        run.pod_uid = Some("pod".into());
        run.verdict = Some(EnumText(Verdict::Accepted));
    }
    if state == AttemptState::Attached {
        run.capability = Some(Hash(INSTANCE));
    }
    rows
}

/// A run whose worker is attached and has committed a turn.
fn attached() -> Rows {
    let mut rows = with_attempt(AttemptState::Attached);
    let head = crate::reads::HeadPoint {
        turn: 1,
        boundary: Boundary::Result,
        epoch: 1,
        attempt: 1,
        commit_id: Uuid::nil(),
        digest: [1; 32],
        hash: [2; 32],
        at: 1_500,
    };
    rows.of_run.run.set_head(head, 3);
    rows.of_run.run.highest_turn = 1;
    rows
}

/// The same run with another lifecycle.
fn of(lifecycle: Lifecycle, mut rows: Rows) -> Rows {
    rows.of_run.run.lifecycle = EnumText(lifecycle);
    rows
}

fn pod() -> PodRecord {
    PodRecord { uid: "pod".into(), name: "nightly-1".into(), revision: "revision".into(), identity: None }
}

fn identity() -> Identity {
    Identity {
        in_registry: Some(true),
        image_digest: "sha256:1".into(),
        agent_version: "v1".into(),
        verdict: Verdict::Accepted,
        remark: String::new(),
    }
}

fn succeeded() -> NewFinish {
    NewFinish {
        outcome: RunOutcome::Succeeded,
        reason: "GoalReached".into(),
        message: "all done".into(),
        output: None,
    }
}

fn decide<T: Transition>(rule: &T, rows: &Rows) -> Decision<T::Answer> {
    rule.decide(rows.clone()).unwrap()
}

/// The names of columns that are set.
fn names(columns: &[Assignment]) -> Vec<&'static str> {
    columns.iter().map(|(column, _)| *column).collect()
}

/// The value that a column of the run's row is set to.
fn value<'w>(write: &'w WriteSet, column: &str) -> Option<&'w Value> {
    write.run_columns.iter().find(|(name, _)| *name == column).map(|(_, value)| value)
}

/// The kinds of the audit rows that are appended.
fn kinds(write: &WriteSet) -> Vec<&'static str> {
    write.audit.iter().map(|entry| entry.kind).collect()
}

/// The rows with a changed row of the run.
fn changed(rows: Rows, change: impl FnOnce(&mut RunRow)) -> Rows {
    let mut rows = rows;
    change(&mut rows.of_run.run);
    rows
}
