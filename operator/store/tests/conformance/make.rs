//! Values that cases are made of, and answers taken apart.

use std::time::Duration;

use dalsegno_protocol::{CallOutcome, PlannedCall, Policy, RawValue};
use dalsegno_store::{
    Attached, BeatRow, Cause, Class, Commit, Committed, Deadlines, Digest, Ending, Identity, NewFinish,
    NewRun, OnPrior, PodRecord, Recorded, RunId, RunOutcome, RunRecord, Settle, SettledBy, Standing, Verdict,
};
use uuid::Uuid;

/// Long enough for no test to meet them.
pub const LONG: Deadlines = Deadlines { heartbeat_ms: 600_000, start_ms: 600_000, progress_ms: 600_000 };

pub fn person_settles(run: RunId, id: &str) -> Settle {
    Settle {
        run,
        by: SettledBy::Person("ada".into()),
        id: id.into(),
        outcome: CallOutcome::Completed,
        result: Some(json(r#"{"found":  1}"#)),
        reason: "looked at the ledger".into(),
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

/// A run that no other bears the name of.
pub fn new_run() -> NewRun {
    let id = Uuid::now_v7();
    NewRun {
        id,
        tenant: "tenant-1".into(),
        namespace: "agents".into(),
        name: format!("run-{id}"),
        object_uid: format!("object-{id}"),
        reset_generation: 0,
        deadlines: LONG,
        on_prior: OnPrior::Hold,
    }
}

/// Another object of the same namespace and name.
pub fn namesake(of: &NewRun, on_prior: OnPrior) -> NewRun {
    let id = Uuid::now_v7();
    NewRun { id, object_uid: format!("object-{id}"), on_prior, ..of.clone() }
}

/// A pod for the current attempt, its image named by digest and accepted.
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
        image_digest: "sha256:1111".into(),
        agent_version: "v1".into(),
        verdict,
        remark: format!("it is {verdict:?}"),
    }
}

pub fn ending(attempt: i32, class: Class) -> Ending {
    Ending { attempt, cause: Cause::Evicted, class, exit_code: Some(137), message: "the last words".into() }
}

pub fn succeeded() -> NewFinish {
    NewFinish {
        outcome: RunOutcome::Succeeded,
        reason: "GoalReached".into(),
        message: "all done".into(),
        output: Some(r#"{"answer":  42}"#.into()),
    }
}

pub fn json(text: &str) -> Box<RawValue> {
    RawValue::from_string(text.into()).unwrap()
}

/// So many characters of which nothing repeats; as it is kept it is half as long.
pub fn noise(seed: u64, length: usize) -> String {
    (1..=length as u64 / 16).map(|n| format!("{:016x}", (n * seed).wrapping_mul(n << 33 | 0x9e37))).collect()
}

pub fn random() -> Digest {
    let mut digest = [0; 32];
    digest[..16].copy_from_slice(Uuid::new_v4().as_bytes());
    digest[16..].copy_from_slice(Uuid::new_v4().as_bytes());
    digest
}

/// The same commit under a new id, as another process would send it.
pub fn remade(commit: &Commit) -> Commit {
    Commit { commit_id: Uuid::new_v4(), digest: random(), ..again(commit) }
}

/// The same bytes again.
pub fn again(commit: &Commit) -> Commit {
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
        records: commit.records.clone(),
        usage: commit.usage,
        trigger: commit.trigger.clone(),
        finish: commit.finish.clone(),
    }
}

#[track_caller]
pub fn ok(committed: Committed) -> Standing {
    match committed {
        Committed::Ok(standing) => standing,
        other => panic!("the commit came to {other:?}"),
    }
}

/// What the same commit is answered after this: of the boundary before it nothing is known any more.
pub fn duplicate(first: &Standing) -> Committed {
    Committed::Duplicate(Standing { parent: None, ..first.clone() })
}

#[track_caller]
pub fn attached(attached: Attached) -> RunRecord {
    match attached {
        Attached::Ok(run) => *run,
        other => panic!("the attach came to {other:?}"),
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

/// A record without the times at which it was read and at which the gateways beat: what must not change.
pub fn still(run: RunRecord) -> RunRecord {
    let zero = jiff::Timestamp::UNIX_EPOCH;
    RunRecord { now: zero, beat: BeatRow { last: zero, since: zero, gap_from: zero }, ..run }
}

pub async fn pause(ms: u64) {
    tokio::time::sleep(Duration::from_millis(ms)).await;
}
