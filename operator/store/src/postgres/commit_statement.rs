//! The statement that commits boundaries: one boundary with everything that it brings, or many small ones.

use std::sync::{Arc, LazyLock};

use dalsegno_protocol::{Limits, PlannedCall, Usage};
use sqlx::postgres::{PgArguments, PgRow, Postgres};
use sqlx::query::Query;
use sqlx::{Encode, Row as _, Type};
use uuid::Uuid;

use super::record_columns::RecordColumns;
use super::row::{
    boundary_number, enum_str, head, optional_boundary, optional_digest, sealed_key, without_nul,
    worker_signals,
};
use crate::db_error::{DbError, DbResult};
use crate::encoded_ops::EncodedOps;
use crate::keys::WriteCipher;
use crate::reads::encode_payload;
use crate::texts::sealed_finish;
use dalsegno_format::seal::{AadContext, CallDigestsExt as _, DigestKeyExt as _, PayloadCipher};
use dalsegno_format::{codec, header, size};
use dalsegno_model::{Commit, CommitReceipt, Committed, Digest, NewFinish, Result, RunId};

/// Commits any number of boundaries. Waits for the locks of their runs' rows.
static COMMIT: LazyLock<String> = LazyLock::new(|| {
    include_str!("commit.sql")
        .replace("{state_bytes}", &Limits::STATE_BYTES.to_string())
        .replace("{open_calls_bytes}", &Limits::OPEN_CALLS_BYTES.to_string())
        .replace("{prefix_keys}", &Limits::PREFIX_KEYS.to_string())
});

/// Commits one boundary: its parameters are values instead of arrays, and the planner expects one row.
static COMMIT_ONE: LazyLock<String> = LazyLock::new(|| for_one(&COMMIT));

/// Commits boundaries without extras and waits for no lock: a run whose row is locked has no row in the result.
static COMMIT_WITHOUT_EXTRAS: LazyLock<String> = LazyLock::new(|| skip_locked(&without_extras(&COMMIT)));

/// Commits one boundary without extras and waits for no lock.
static COMMIT_ONE_WITHOUT_EXTRAS: LazyLock<String> = LazyLock::new(|| for_one(&COMMIT_WITHOUT_EXTRAS));

fn for_one(sql: &str) -> String {
    sql.replace("array_position($1, id)", "1").replace("ANY ($1)", "$1").replace("[idx]", "")
}

fn skip_locked(sql: &str) -> String {
    sql.replace("FOR UPDATE", "FOR UPDATE SKIP LOCKED")
}

/// The statement without the parts for calls, records and a finish: PostgreSQL spends time on each part of a statement,
/// even if it does nothing.
fn without_extras(sql: &str) -> String {
    let mut parts = sql.split("-- extras {");
    let first = parts.next().into_iter();
    let rest = parts.filter_map(|part| part.split_once("-- }")).map(|(_, after)| after);
    let left: String = first.chain(rest).collect();
    left.replace("$22", "NULL::text").replace("$30", "NULL::bytea")
}

/// A boundary as its statement takes it.
pub(super) struct Proposed {
    pub run: RunId,
    capability: Digest,
    turn: i32,
    boundary: i16,
    commit_id: Uuid,
    digest: Digest,
    unkeyed_digest: Option<Digest>,
    ops: EncodedOps,
    ops_digest: Option<Digest>,
    full: bool,
    events: Option<Vec<u8>>,
    events_digest: Option<Digest>,
    event_count: i64,
    usage: Usage,
    trigger: Option<String>,
    data_key: Option<Arc<[u8]>>,
}

impl Proposed {
    /// `unkeyed_digest`: the digest that the body had before the run had a key; a boundary stored under it is a
    /// duplicate.
    pub fn new(
        commit: &Commit,
        ops: EncodedOps,
        cipher: &WriteCipher,
        unkeyed_digest: Option<Digest>,
    ) -> DbResult<Self> {
        let Commit { run, capability, turn, boundary, commit_id, .. } = *commit;
        let events = codec::encode_events(&commit.events);
        let aad = AadContext::Events(turn, boundary, commit_id);
        let digest_key = cipher.digest_key(turn, boundary, commit_id);
        let keyed = |plain: Digest| digest_key.map_or(plain, |key| key.digest(plain));
        Ok(Self {
            events: events.map(|events| cipher.seal(aad, events)).transpose()?,
            run,
            capability,
            turn,
            boundary: boundary_number(boundary),
            commit_id,
            digest: cipher.body(commit.digest).stored,
            unkeyed_digest,
            ops,
            ops_digest: header::ops_digest(commit.ops.as_deref()).map(keyed),
            full: commit.full,
            events_digest: header::events_digest(&commit.events).map(keyed),
            event_count: commit.events.len() as i64,
            usage: commit.usage,
            trigger: commit.trigger.as_deref().map(without_nul),
            data_key: cipher.data_key().cloned(),
        })
    }

    /// Its turn, and the number of its boundary.
    pub fn turn_and_boundary(&self) -> (i32, i16) {
        (self.turn, self.boundary)
    }

    /// Bytes of its payloads.
    pub fn size(&self) -> usize {
        [&self.ops.ops, &self.events].into_iter().flatten().map(Vec::len).sum()
    }
}

/// What a boundary may bring only if it is the only one in its statement.
#[derive(Default)]
pub(super) struct Extras {
    finish: FinishColumns,
    calls: CallColumns,
    records: RecordColumns,
    open_calls: Vec<String>,
}

impl Extras {
    pub fn of(commit: &Commit, cipher: &PayloadCipher) -> DbResult<Self> {
        Ok(Self {
            finish: FinishColumns::of(commit.finish.as_ref().map(|it| sealed_finish(it, Some(cipher))))?,
            calls: CallColumns::of(&commit.calls, cipher)?,
            records: RecordColumns::of(&commit.records, cipher)?,
            // As with a finish, no call may stay without an outcome.
            open_calls: match commit.park {
                None => commit.open_calls.iter().map(|id| without_nul(id)).collect(),
                Some(_) => Vec::new(),
            },
        })
    }
}

/// The statement for one boundary and its extras. It waits for the lock of the run's row. No row: there is no such run.
pub(super) fn commit_one(one: &Proposed, extras: Extras) -> Query<'_, Postgres, PgArguments> {
    let Extras { finish, calls, records, open_calls } = extras;
    let query = bind(&COMMIT_ONE, &[one])
        .bind(finish.outcome)
        .bind(finish.reason)
        .bind(finish.message)
        .bind(finish.output)
        .bind(calls.ids)
        .bind(calls.policies)
        .bind(calls.keys)
        .bind(calls.arguments)
        .bind(records.digest.map(Vec::from));
    records
        .bind(query)
        .bind(calls.arguments_bytes)
        .bind(calls.key_digests)
        .bind(calls.arguments_digests)
        .bind(open_calls)
}

/// The statement for boundaries without extras, each of another run. It waits for no lock. No row: the row of the run
/// is locked, or there is no such run.
pub(super) fn commit_batch<'q>(batch: &[&'q Proposed]) -> Query<'q, Postgres, PgArguments> {
    bind(if batch.len() == 1 { &COMMIT_ONE_WITHOUT_EXTRAS } else { &COMMIT_WITHOUT_EXTRAS }, batch)
}

fn bind<'q>(sql: &'static str, batch: &[&'q Proposed]) -> Query<'q, Postgres, PgArguments> {
    fn bytes(digest: &Option<Digest>) -> Option<&[u8]> {
        digest.as_ref().map(Digest::as_slice)
    }
    let query = sqlx::query(sql);
    let query = bind_each(query, batch, |it| it.run);
    let query = bind_each(query, batch, |it| it.capability.as_slice());
    let query = bind_each(query, batch, |it| it.turn);
    let query = bind_each(query, batch, |it| it.boundary);
    let query = bind_each(query, batch, |it| it.commit_id);
    let query = bind_each(query, batch, |it| it.digest.as_slice());
    let query = bind_each(query, batch, |it| it.ops.ops.as_deref());
    let query = bind_each(query, batch, |it| bytes(&it.ops_digest));
    let query = bind_each(query, batch, |it| it.full);
    let query = bind_each(query, batch, |it| it.events.as_deref());
    let query = bind_each(query, batch, |it| bytes(&it.events_digest));
    let query = bind_each(query, batch, |it| it.event_count);
    let query = bind_each(query, batch, |it| it.usage.tokens_in);
    let query = bind_each(query, batch, |it| it.usage.tokens_out);
    let query = bind_each(query, batch, |it| it.usage.tool_calls);
    let query = bind_each(query, batch, |it| it.usage.cost_micro_usd);
    let query = bind_each(query, batch, |it| it.trigger.as_deref());
    let query = bind_each(query, batch, |it| bytes(&it.ops.base));
    let query = bind_each(query, batch, |it| bytes(&it.unkeyed_digest));
    let query = bind_each(query, batch, |it| it.ops.size);
    bind_each(query, batch, |it| it.data_key.as_deref())
}

/// Binds the next parameter: a value for one boundary, an array for several.
fn bind_each<'q, T>(
    query: Query<'q, Postgres, PgArguments>,
    batch: &[&'q Proposed],
    of: impl Fn(&'q Proposed) -> T,
) -> Query<'q, Postgres, PgArguments>
where
    T: Encode<'q, Postgres> + Type<Postgres> + 'q,
    Vec<T>: Encode<'q, Postgres> + Type<Postgres>,
{
    match batch {
        [one] => query.bind(of(one)),
        _ => query.bind(batch.iter().map(|it| of(it)).collect::<Vec<_>>()),
    }
}

/// The result for one boundary. `None`: its turn is the next one, but it was encoded against another head.
pub(super) fn parse_committed(row: &PgRow) -> DbResult<Option<Committed>> {
    let receipt = |parent| -> DbResult<CommitReceipt> {
        Ok(CommitReceipt { head: head(row)?, parent, signals: worker_signals(row)? })
    };
    Ok(Some(match row.try_get("verdict")? {
        "ok" => Committed::Ok(receipt(optional_digest(row, "parent_hash")?)?),
        "duplicate" => Committed::Duplicate(receipt(None)?),
        "other base" => return Ok(None),
        "conflict" => Committed::Conflict {
            head: row.try_get::<Option<i32>, _>("turn")?.zip(optional_boundary(row, "boundary")?),
        },
        "fenced" => {
            Committed::Fenced { committed: row.try_get::<Option<bool>, _>("committed")?.unwrap_or_default() }
        }
        "finished" => Committed::Finished,
        "unsettled" => Committed::UnsettledCalls,
        "open calls" => Committed::OpenCalls,
        "too large" => Committed::TooLarge,
        "calls too large" => Committed::CallsTooLarge,
        "too many keys" => Committed::TooManyKeys,
        "not found" => Committed::NotFound,
        "other data key" => return Err(DbError::OtherDataKey),
        other => return Err(DbError::unknown_value("verdict on a commit", other)),
    }))
}

/// A finish, column by column.
#[derive(Default)]
struct FinishColumns {
    outcome: Option<String>,
    reason: Option<String>,
    message: Option<String>,
    output: Option<String>,
}

impl FinishColumns {
    fn of(finish: Option<NewFinish>) -> DbResult<Self> {
        let Some(NewFinish { outcome, reason, message, output }) = finish else {
            return Ok(Self::default());
        };
        Ok(Self {
            outcome: Some(enum_str(&outcome)?),
            reason: Some(without_nul(&reason)),
            message: Some(without_nul(&message)),
            output: output.as_deref().map(without_nul),
        })
    }
}

/// Planned calls, column by column.
#[derive(Default)]
struct CallColumns {
    ids: Vec<String>,
    policies: Vec<String>,
    keys: Vec<String>,
    arguments: Vec<Option<Vec<u8>>>,
    arguments_bytes: Vec<i64>,
    key_digests: Vec<String>,
    arguments_digests: Vec<Option<String>>,
}

impl CallColumns {
    fn of(calls: &[PlannedCall], cipher: &PayloadCipher) -> DbResult<Self> {
        let arguments = |call: &PlannedCall| {
            encode_payload(call.arguments.as_deref(), AadContext::Arguments(&call.id), cipher)
        };
        let audit_digests = |call: &PlannedCall| {
            let digests = cipher.call_digests(&call.id);
            (
                digests.render(&without_nul(&call.key)),
                call.arguments.as_deref().map(|json| digests.render(json.get())),
            )
        };
        let (key_digests, arguments_digests) = calls.iter().map(audit_digests).unzip();
        Ok(Self {
            key_digests,
            arguments_digests,
            ids: calls.iter().map(|call| without_nul(&call.id)).collect(),
            policies: calls.iter().map(|call| enum_str(&call.policy)).collect::<DbResult<_>>()?,
            keys: calls.iter().map(|call| sealed_key(&call.id, &call.key, cipher)).collect::<Result<_>>()?,
            arguments: calls.iter().map(arguments).collect::<Result<_>>()?,
            arguments_bytes: calls.iter().map(|call| size::of_json(call.arguments.as_deref())).collect(),
        })
    }
}
