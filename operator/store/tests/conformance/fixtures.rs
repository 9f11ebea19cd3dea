//! Fixtures: values for the cases, and unwrapping of answers.

use std::time::Duration;

use dalsegno_model::{
    Attached, BoundaryId, Cause, Class, Commit, CommitReceipt, Committed, Deadlines, Digest, Ending,
    GatewayHeartbeat, Identity, NewFinish, NewRun, OnPrior, PodRecord, RecordQuery, Recorded, Rewind, RunId,
    RunOutcome, RunRecord, Settle, SettledBy, Template, Verdict,
};
use dalsegno_protocol::{Boundary, CallOutcome, PlannedCall, Policy, RawValue};
use uuid::Uuid;

/// Deadlines that no test reaches.
pub const LONG_DEADLINES: Deadlines =
    Deadlines { heartbeat_ms: 600_000, start_ms: 600_000, progress_ms: 600_000, suspend_ms: 600_000 };

pub fn person_settles(run: RunId, id: &str) -> Settle {
    Settle {
        run,
        by: SettledBy::Person("ada".into()),
        id: id.into(),
        outcome: CallOutcome::Completed,
        result: Some(json(r#"{"found":  1}"#)),
        reason: "looked at the ledger".into(),
        audit_id: None,
    }
}

pub fn planned(id: &str, policy: Policy) -> PlannedCall {
    PlannedCall {
        id: id.into(),
        policy,
        key: format!("key-of-{id}"),
        arguments: Some(json(r#"{"amount":  1}"#)),
    }
}

pub fn template(hash: &str, document: &str) -> Template {
    Template { hash: hash.into(), document: document.into() }
}

/// A run with a name of its own.
pub fn new_run() -> NewRun {
    let id = Uuid::now_v7();
    NewRun {
        id,
        tenant: "tenant-1".into(),
        namespace: "agents".into(),
        name: format!("run-{id}"),
        object_uid: format!("object-{id}"),
        reset_generation: 0,
        rewind_generation: 0,
        is_fork: false,
        is_external: false,
        deadlines: LONG_DEADLINES,
        on_prior: OnPrior::Hold,
    }
}

/// Another object with the same namespace and name.
pub fn namesake(of: &NewRun, on_prior: OnPrior) -> NewRun {
    let id = Uuid::now_v7();
    NewRun { id, object_uid: format!("object-{id}"), on_prior, ..of.clone() }
}

/// A pod of the current attempt. Its image is named by digest and accepted.
pub fn pod(run: &RunRecord) -> PodRecord {
    PodRecord {
        uid: format!("pod-{}-{}", run.id, run.attempt.number),
        name: format!("{}-{}", run.name, run.attempt.number),
        revision: format!("revision-{}", run.attempt.number),
        identity: Some(identity(Verdict::Accepted)),
    }
}

pub fn identity(verdict: Verdict) -> Identity {
    Identity {
        in_registry: Some(true),
        image_digest: "sha256:1111".into(),
        agent_version: "v1".into(),
        verdict,
        remark: format!("it is {verdict:?}"),
    }
}

pub fn ending(attempt: i32, class: Class) -> Ending {
    Ending {
        attempt,
        cause: Cause::Evicted,
        class,
        exit_code: Some(137),
        message: "the last words".into(),
        ran: None,
    }
}

pub fn succeeded() -> NewFinish {
    NewFinish {
        outcome: RunOutcome::Succeeded,
        reason: "GoalReached".into(),
        message: "all done".into(),
        output: Some(r#"{"answer":  42}"#.into()),
    }
}

/// The result of this turn, committed in epoch 1.
pub fn result_place(turn: i32) -> BoundaryId {
    BoundaryId { turn, boundary: Boundary::Result, epoch: 1 }
}

/// A person's rewind to this boundary. The run must be in this epoch.
pub fn rewind_to(epoch: i64, to: BoundaryId) -> Rewind {
    Rewind { epoch, to, reason: "it went astray".into(), actor: "ada".into() }
}

/// The first entries of the space `s`, up to 99 entries and 1 MiB.
pub fn all_records() -> RecordQuery {
    RecordQuery { space: "s".into(), limit: 99, bytes: 1 << 20, ..RecordQuery::default() }
}

pub fn json(text: &str) -> Box<RawValue> {
    RawValue::from_string(text.into()).unwrap()
}

/// This number of characters without repetition. Compression halves it.
pub fn noise(seed: u64, length: usize) -> String {
    (1..=length as u64 / 16).map(|n| format!("{:016x}", (n * seed).wrapping_mul(n << 33 | 0x9e37))).collect()
}

pub fn random_digest() -> Digest {
    let mut digest = [0; 32];
    digest[..16].copy_from_slice(Uuid::new_v4().as_bytes());
    digest[16..].copy_from_slice(Uuid::new_v4().as_bytes());
    digest
}

/// The same commit under a new id, as another process would send it.
pub fn with_new_id(commit: &Commit) -> Commit {
    Commit { commit_id: Uuid::new_v4(), digest: random_digest(), ..resend(commit) }
}

/// The same bytes, sent again.
pub fn resend(commit: &Commit) -> Commit {
    Commit {
        run: commit.run,
        capability: commit.capability,
        turn: commit.turn,
        boundary: commit.boundary,
        commit_id: commit.commit_id,
        digest: commit.digest,
        ops: commit.ops.clone(),
        full: commit.full,
        size: commit.size,
        base: commit.base.clone(),
        events: commit.events.clone(),
        calls: commit.calls.clone(),
        open_calls: commit.open_calls.clone(),
        records: commit.records.clone(),
        inbox: commit.inbox.clone(),
        usage: commit.usage,
        trigger: commit.trigger.clone(),
        finish: commit.finish.clone(),
        park: commit.park.clone(),
    }
}

#[track_caller]
pub fn ok(committed: Committed) -> CommitReceipt {
    match committed {
        Committed::Ok(receipt) => receipt,
        other => panic!("the commit was not accepted: {other:?}"),
    }
}

/// The answer to the same commit sent again. It has no parent hash: the store knows only the head.
pub fn duplicate(first: &CommitReceipt) -> Committed {
    Committed::Duplicate(CommitReceipt { parent: None, ..first.clone() })
}

#[track_caller]
pub fn attached(attached: Attached) -> RunRecord {
    match attached {
        Attached::Ok(run) => *run,
        other => panic!("the attach was not accepted: {other:?}"),
    }
}

#[track_caller]
pub fn recorded(recorded: Recorded) -> RunRecord {
    match recorded {
        Recorded::Done(run) => *run,
        Recorded::Refused(run) => panic!("refused, with {:?}", run.attempt),
    }
}

#[track_caller]
pub fn refused(recorded: Recorded) -> RunRecord {
    match recorded {
        Recorded::Refused(run) => *run,
        Recorded::Done(run) => panic!("not refused, with {:?}", run.attempt),
    }
}

/// A record without the times that change by themselves: the time of the read and of the gateways' heartbeats.
pub fn without_times(run: RunRecord) -> RunRecord {
    let zero = jiff::Timestamp::UNIX_EPOCH;
    RunRecord { now: zero, beat: GatewayHeartbeat { last: zero, since: zero, gap_from: zero }, ..run }
}

pub async fn sleep_ms(ms: u64) {
    tokio::time::sleep(Duration::from_millis(ms)).await;
}
