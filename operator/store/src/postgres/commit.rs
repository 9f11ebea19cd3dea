//! Boundaries and finishes.

use std::sync::LazyLock;

use dalsegno_protocol::{Limits, PlannedCall, Usage};
use sqlx::postgres::{PgArguments, PgRow, Postgres as Database};
use sqlx::query::Query;
use sqlx::{Encode, Row as _, Type};
use uuid::Uuid;

use super::Postgres;
use super::records::Columns;
use super::row::{asked, boundary, digest, head, number, optional_digest, text, word};
use crate::db_error::{DbError, DbResult};
use crate::encoded_ops::{self, EncodedOps, MAX_BATCHED_BYTES};
use crate::reads::encode_payload;
use crate::seal::{AadContext, CallDigestsExt as _, DigestKeyExt as _, PayloadCipher};
use crate::transitions::Finish;
use crate::{Commit, Committed, Digest, FinishCall, NewFinish, Result, RunId, Standing, codec, header, size};

/// Of any number of boundaries. It waits for whoever holds their runs' rows.
static COMMIT: LazyLock<String> = LazyLock::new(|| {
    include_str!("commit.sql")
        .replace("{state_bytes}", &Limits::STATE_BYTES.to_string())
        .replace("{open_calls_bytes}", &Limits::OPEN_CALLS_BYTES.to_string())
});

/// Of one boundary: its parameters are no arrays, and its plan is made for one row.
static COMMIT_ONE: LazyLock<String> = LazyLock::new(|| of_one(&COMMIT));

/// Of boundaries that bring nothing, without the waiting: no answer for those whose run's row is locked.
static COMMIT_BARE: LazyLock<String> = LazyLock::new(|| unlocked(&bare(&COMMIT)));

/// The same of one.
static COMMIT_ONE_BARE: LazyLock<String> = LazyLock::new(|| of_one(&COMMIT_BARE));

fn of_one(sql: &str) -> String {
    sql.replace("array_position($1, id)", "1").replace("ANY ($1)", "$1").replace("[place]", "")
}

fn unlocked(sql: &str) -> String {
    sql.replace("FOR UPDATE", "FOR UPDATE SKIP LOCKED")
}

/// Without what is there for calls, records and a finish: what a statement does not have, it need not set up.
fn bare(sql: &str) -> String {
    let mut more = sql.split("-- more {");
    let first = more.next().into_iter();
    let rest = more.filter_map(|part| part.split_once("-- }")).map(|(_, after)| after);
    let left: String = first.chain(rest).collect();
    left.replace("$21", "NULL::text").replace("$29", "NULL::bytea")
}

/// The digest of the commit of this id on the live branch.
const STANDS: &str = "SELECT digest FROM boundaries \
     WHERE run = $1 AND turn = $2 AND boundary = $3 AND commit_id = $4 AND NOT undone";

impl Postgres {
    pub(super) async fn do_commit(&self, commit: &Commit) -> DbResult<Committed> {
        let cipher = self.cipher_to_write(commit.run).await?;
        let committed = match self.send(commit, EncodedOps::smallest(commit, &cipher)?, &cipher, None).await?
        {
            Some(committed) => committed,
            None => self.send_plain(commit, &cipher, None).await?,
        };
        let committed = match committed {
            Committed::TooLarge if !commit.full => self.send_counted(commit, &cipher).await?,
            committed => committed,
        };
        match (&committed, cipher.body(commit.digest).older()) {
            // It stands from before the run had a key: no second try writes it anew. Only then is the plain digest told to
            // the database, whose log may keep it.
            (
                Committed::Conflict { .. } | Committed::Finished | Committed::UnsettledCalls,
                older @ Some(_),
            ) if self.standing(commit).await? == older => self.send_plain(commit, &cipher, older).await,
            (
                Committed::Conflict { .. } | Committed::Finished | Committed::Fenced { committed: false },
                None,
            ) => self.ensure_comparable(commit.run).await.map(|()| committed),
            _ => Ok(committed),
        }
    }

    /// As it can stand on any head.
    async fn send_plain(
        &self,
        commit: &Commit,
        cipher: &PayloadCipher,
        older: Option<Digest>,
    ) -> DbResult<Committed> {
        let sent = self.send(commit, EncodedOps::plain(commit, cipher)?, cipher, older).await?;
        sent.ok_or_else(|| {
            DbError::Corrupt("a boundary that patches nothing was refused for its base".into())
        })
    }

    /// The state at the head is counted; anew where the head has moved meanwhile.
    async fn send_counted(&self, commit: &Commit, cipher: &PayloadCipher) -> DbResult<Committed> {
        while let Some(ops) = encoded_ops::encode_with_state_size(&self.rows(), commit, cipher).await? {
            if let Some(committed) = self.send(commit, ops, cipher, None).await? {
                return Ok(committed);
            }
        }
        Ok(Committed::TooLarge)
    }

    /// `older`: a digest under which it may stand too. `None`: it is the next boundary, but cannot stand on this head.
    async fn send(
        &self,
        commit: &Commit,
        ops: EncodedOps,
        cipher: &PayloadCipher,
        older: Option<Digest>,
    ) -> DbResult<Option<Committed>> {
        let proposed = Proposed::new(commit, ops, cipher, older)?;
        let brings_more = !commit.calls.is_empty() || !commit.records.is_empty() || commit.finish.is_some();
        let ruling = if !brings_more && proposed.size() <= MAX_BATCHED_BYTES {
            self.gather.commit(proposed).await?
        } else {
            let more = More::of(commit, cipher)?;
            let row = self.pool.of(commit.run).optional(alone(&proposed, more)).await?;
            row.as_ref().map_or(Ok(Some(Committed::NotFound)), ruling)?
        };
        Ok(match ruling {
            Some(Committed::Fenced { .. }) => {
                let body = cipher.body(commit.digest);
                let committed = self.standing(commit).await?.is_some_and(|stands| body.matches(&stands));
                Some(Committed::Fenced { committed })
            }
            other => other,
        })
    }

    /// The digest of what stands under its id.
    async fn standing(&self, commit: &Commit) -> DbResult<Option<Digest>> {
        let query = sqlx::query(STANDS)
            .bind(commit.run)
            .bind(commit.turn)
            .bind(number(commit.boundary))
            .bind(commit.commit_id);
        self.pool.optional(query).await?.map(|row| digest(&row, "digest")).transpose()
    }

    pub(super) async fn do_finish(&self, call: &FinishCall) -> DbResult<Committed> {
        let body = self.cipher_to_write(call.run).await?.body(call.digest);
        let committed = self.transact(call.run, &Finish::of(call, body)).await?;
        if matches!(committed, Committed::Finished | Committed::Fenced { committed: false }) {
            self.ensure_comparable(call.run).await?;
        }
        Ok(committed)
    }
}

/// A boundary as its statement takes it.
pub(super) struct Proposed {
    pub run: RunId,
    capability: Digest,
    turn: i32,
    boundary: i16,
    commit_id: Uuid,
    digest: Digest,
    older: Option<Digest>,
    ops: EncodedOps,
    ops_digest: Option<Digest>,
    full: bool,
    events: Option<Vec<u8>>,
    events_digest: Option<Digest>,
    event_count: i64,
    usage: Usage,
    trigger: Option<String>,
}

impl Proposed {
    fn new(
        commit: &Commit,
        ops: EncodedOps,
        cipher: &PayloadCipher,
        older: Option<Digest>,
    ) -> DbResult<Self> {
        let Commit { run, capability, turn, boundary, commit_id, .. } = *commit;
        let events = codec::encode_events(&commit.events);
        let spot = AadContext::Events(turn, boundary, commit_id);
        let digest_key = cipher.digest_key(turn, boundary, commit_id);
        let keyed = |plain: Digest| digest_key.map_or(plain, |key| key.digest(plain));
        Ok(Self {
            events: events.map(|events| cipher.seal(spot, events)).transpose()?,
            run,
            capability,
            turn,
            boundary: number(boundary),
            commit_id,
            digest: cipher.body(commit.digest).kept,
            older,
            ops,
            ops_digest: header::ops_digest(commit.ops.as_deref()).map(keyed),
            full: commit.full,
            events_digest: header::events_digest(&commit.events).map(keyed),
            event_count: commit.events.len() as i64,
            usage: commit.usage,
            trigger: commit.trigger.as_deref().map(text),
        })
    }

    /// Bytes of its payloads.
    pub fn size(&self) -> usize {
        [&self.ops.ops, &self.events].into_iter().flatten().map(Vec::len).sum()
    }
}

/// What only a boundary that comes alone may have.
#[derive(Default)]
pub(super) struct More {
    finish: Words,
    calls: Planned,
    records: Columns,
}

impl More {
    fn of(commit: &Commit, cipher: &PayloadCipher) -> DbResult<Self> {
        Ok(Self {
            finish: Words::of(commit.finish.as_ref())?,
            calls: Planned::of(&commit.calls, cipher)?,
            records: Columns::of(&commit.records, cipher)?,
        })
    }
}

/// The statement for a boundary and what it brings. No answer: there is no such run.
pub(super) fn alone<'q>(one: &'q Proposed, more: More) -> Query<'q, Database, PgArguments> {
    let More { finish, calls, records } = more;
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
    records.bind(query).bind(calls.arguments_bytes).bind(calls.key_digests).bind(calls.arguments_digests)
}

/// The statement for boundaries that bring nothing, each of another run. It waits for nobody: no answer for a run whose row
/// is locked, or that is not there.
pub(super) fn together<'q>(all: &[&'q Proposed]) -> Query<'q, Database, PgArguments> {
    bind(if all.len() == 1 { &COMMIT_ONE_BARE } else { &COMMIT_BARE }, all)
}

fn bind<'q>(sql: &'static str, all: &[&'q Proposed]) -> Query<'q, Database, PgArguments> {
    fn bytes(digest: &Option<Digest>) -> Option<&[u8]> {
        digest.as_ref().map(Digest::as_slice)
    }
    let query = sqlx::query(sql);
    let query = each(query, all, |it| it.run);
    let query = each(query, all, |it| it.capability.as_slice());
    let query = each(query, all, |it| it.turn);
    let query = each(query, all, |it| it.boundary);
    let query = each(query, all, |it| it.commit_id);
    let query = each(query, all, |it| it.digest.as_slice());
    let query = each(query, all, |it| it.ops.ops.as_deref());
    let query = each(query, all, |it| bytes(&it.ops_digest));
    let query = each(query, all, |it| it.full);
    let query = each(query, all, |it| it.events.as_deref());
    let query = each(query, all, |it| bytes(&it.events_digest));
    let query = each(query, all, |it| it.event_count);
    let query = each(query, all, |it| it.usage.tokens_in);
    let query = each(query, all, |it| it.usage.tokens_out);
    let query = each(query, all, |it| it.usage.tool_calls);
    let query = each(query, all, |it| it.usage.cost_micro_usd);
    let query = each(query, all, |it| it.trigger.as_deref());
    let query = each(query, all, |it| bytes(&it.ops.base));
    let query = each(query, all, |it| bytes(&it.older));
    each(query, all, |it| it.ops.size)
}

/// A parameter: of one boundary a value, of several an array.
fn each<'q, T>(
    query: Query<'q, Database, PgArguments>,
    all: &[&'q Proposed],
    of: impl Fn(&'q Proposed) -> T,
) -> Query<'q, Database, PgArguments>
where
    T: Encode<'q, Database> + Type<Database> + 'q,
    Vec<T>: Encode<'q, Database> + Type<Database>,
{
    match all {
        [one] => query.bind(of(one)),
        _ => query.bind(all.iter().map(|it| of(it)).collect::<Vec<_>>()),
    }
}

/// What a statement says of a boundary. `None`: it is the next, but cannot stand on this head.
pub(super) fn ruling(row: &PgRow) -> DbResult<Option<Committed>> {
    if row.try_get::<&str, _>("verdict")? == "other base" {
        return Ok(None);
    }
    Ok(Some(match committed(row)? {
        Committed::Ok(standing) => {
            Committed::Ok(Standing { parent: optional_digest(row, "parent_hash")?, ..standing })
        }
        other => other,
    }))
}

fn committed(row: &PgRow) -> DbResult<Committed> {
    let standing =
        || -> DbResult<Standing> { Ok(Standing { head: head(row)?, parent: None, asked: asked(row)? }) };
    Ok(match row.try_get("verdict")? {
        "ok" => Committed::Ok(standing()?),
        "duplicate" => Committed::Duplicate(standing()?),
        "conflict" => Committed::Conflict {
            head: row.try_get::<Option<i32>, _>("turn")?.zip(boundary(row, "boundary")?),
        },
        "fenced" => {
            Committed::Fenced { committed: row.try_get::<Option<bool>, _>("committed")?.unwrap_or_default() }
        }
        "finished" => Committed::Finished,
        "unsettled" => Committed::UnsettledCalls,
        "too large" => Committed::TooLarge,
        "calls too large" => Committed::CallsTooLarge,
        "not found" => Committed::NotFound,
        other => return Err(DbError::unknown_value("verdict on a commit", other)),
    })
}

/// A finish, column by column.
#[derive(Default)]
pub(super) struct Words {
    pub outcome: Option<String>,
    pub reason: Option<String>,
    pub message: Option<String>,
    pub output: Option<String>,
}

impl Words {
    pub fn of(finish: Option<&NewFinish>) -> DbResult<Self> {
        let Some(NewFinish { outcome, reason, message, output }) = finish else {
            return Ok(Self::default());
        };
        Ok(Self {
            outcome: Some(word(outcome)?),
            reason: Some(text(reason)),
            message: Some(text(message)),
            output: output.as_deref().map(text),
        })
    }
}

/// Planned calls, column by column.
#[derive(Default)]
struct Planned {
    ids: Vec<String>,
    policies: Vec<String>,
    keys: Vec<String>,
    arguments: Vec<Option<Vec<u8>>>,
    arguments_bytes: Vec<i64>,
    key_digests: Vec<String>,
    arguments_digests: Vec<Option<String>>,
}

impl Planned {
    fn of(calls: &[PlannedCall], cipher: &PayloadCipher) -> DbResult<Self> {
        let arguments = |call: &PlannedCall| {
            encode_payload(call.arguments.as_deref(), AadContext::Arguments(&call.id), cipher)
        };
        let told = |call: &PlannedCall| {
            let digests = cipher.call_digests(&call.id);
            (
                digests.render(&text(&call.key)),
                call.arguments.as_deref().map(|json| digests.render(json.get())),
            )
        };
        let (key_digests, arguments_digests) = calls.iter().map(told).unzip();
        Ok(Self {
            key_digests,
            arguments_digests,
            ids: calls.iter().map(|call| text(&call.id)).collect(),
            policies: calls.iter().map(|call| word(&call.policy)).collect::<DbResult<_>>()?,
            keys: calls.iter().map(|call| text(&call.key)).collect(),
            arguments: calls.iter().map(arguments).collect::<Result<_>>()?,
            arguments_bytes: calls.iter().map(|call| size::of_json(call.arguments.as_deref())).collect(),
        })
    }
}
