//! Tool calls: claimed before their effect, completed after it, settled where the effect is unknown.

use std::sync::LazyLock;

use dalsegno_protocol::{Call, CallState, Limits, RawValue};
use sqlx::postgres::{PgArguments, PgRow};
use sqlx::query::Query;
use sqlx::{AssertSqlSafe, Row as _};

use super::Postgres;
use super::data_keys::with_known_key;
use super::row::{enum_str, parse_enum, sealed_key, without_nul};
use crate::db_error::{DbError, DbResult};
use crate::keys::WriteCipher;
use crate::reads::{CallRow, Columns, decode_payload, encode_payload};
use crate::reads::{has_other_arguments, key_refused_message, not_granted_message, other_arguments_message};
use crate::statements::CALLS_TO_SETTLE;
use crate::transitions::SettleCall;
use dalsegno_format::seal::{AadContext, CallDigestsExt as _, PayloadCipher};
use dalsegno_format::size;
use dalsegno_model::audit::kind;
use dalsegno_model::{CallFilter, Claim, Claimed, Complete, Completed, RunId, Settle};

static CLAIM: LazyLock<String> = LazyLock::new(|| {
    let call = CallRow::columns_of("(call)");
    let known = with_known_key!("$15");
    format!(
        "{known} SELECT verdict, {call} \
         FROM known, LATERAL ds_claim_v3(known.run, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14)"
    )
});

/// Whether a rewind undid the turn of a call. The parameters are the run, and when the call was first seen and its turn.
const IS_UNDONE: &str = "SELECT EXISTS (SELECT FROM audit WHERE run = $1 AND kind = $2 AND at >= $3 \
     AND (detail::jsonb #>> '{to,turn}')::integer < $4)";

const COMPLETE: &str = concat!(
    with_known_key!("$14"),
    "SELECT verdict, state, result, live \
     FROM known, LATERAL ds_complete_v2(known.run, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13)"
);

/// A query of calls. `{calls}`: the columns of a call.
fn query_of_calls(sql: &str) -> String {
    sql.replace("{calls}", &CallRow::columns_of("calls"))
}

static ALL: LazyLock<String> =
    LazyLock::new(|| query_of_calls("SELECT {calls} FROM calls WHERE run = $1 ORDER BY ordinal"));

static TOUCHED_SINCE: LazyLock<String> = LazyLock::new(|| {
    query_of_calls(
        "SELECT {calls} FROM calls WHERE run = $1 AND coalesce(touched_turn, turn) >= $2 ORDER BY ordinal",
    )
});

/// Two halves, so that each can use its own index.
static PENDING: LazyLock<String> = LazyLock::new(|| {
    query_of_calls(
        "SELECT {calls} FROM calls JOIN runs ON runs.id = calls.run \
         WHERE calls.run = $1 AND calls.state = 'planned' AND calls.turn = ds_open_turn_v1(runs) \
         UNION ALL SELECT {calls} FROM calls WHERE run = $1 AND state = 'started' ORDER BY ordinal",
    )
});

/// Started calls whose attempt is over.
static UNSETTLED: LazyLock<String> = LazyLock::new(|| {
    query_of_calls(
        "SELECT {calls} FROM calls JOIN runs ON runs.id = calls.run \
         WHERE calls.run = $1 AND calls.state = 'started' \
           AND (calls.attempt <> runs.attempt OR runs.attempt_state = 'ended') \
         ORDER BY calls.ordinal",
    )
});

/// A call that was last claimed before a rewind to an earlier turn is not the open turn's. The rewinds are read once.
static OPEN_TURN: LazyLock<String> = LazyLock::new(|| {
    query_of_calls(
        "WITH rewound AS MATERIALIZED ( \
             SELECT at, (detail::jsonb #>> '{to,turn}')::integer AS turn FROM audit \
             WHERE run = $1 AND kind = 'rewound' AND (SELECT rewinds FROM runs WHERE id = $1) > 0 \
         ) \
         SELECT {calls} FROM calls JOIN runs ON runs.id = calls.run \
         WHERE calls.run = $1 AND calls.state IN ('completed', 'failed') \
           AND calls.turn = ds_open_turn_v1(runs) \
           AND NOT EXISTS ( \
               SELECT FROM rewound \
               WHERE rewound.at >= coalesce(calls.started_at, calls.created_at) AND rewound.turn < calls.turn \
           ) \
         ORDER BY calls.ordinal",
    )
});

/// Largest sum of the open calls of a run, in bytes.
const OPEN_CALLS_LIMIT: i64 = Limits::OPEN_CALLS_BYTES as i64;

impl Postgres {
    pub(super) async fn do_claim(&self, claim: &Claim) -> DbResult<Claimed> {
        let cipher = self.cipher_to_write(claim.run).await?;
        let arguments =
            encode_payload(claim.arguments.as_deref(), AadContext::Arguments(&claim.id), &cipher)?;
        let key = claim.key.as_deref().map(|key| sealed_key(&claim.id, key, &cipher)).transpose()?;
        let claim = EncodedClaim { claim, key, arguments: arguments.as_deref(), cipher: &cipher };
        let claimed = match claim.claim.approval {
            None => self.claim_at_once(&claim).await?,
            Some(_) => self.claim_with_approval(&claim).await?,
        };
        match claimed {
            ClaimRow::Row(row) => claim.parse(&row),
            ClaimRow::OtherArguments(call) => {
                let is_undone = self.is_undone(&call).await?;
                Ok(Claimed::Invalid(other_arguments_message(&call, is_undone)))
            }
        }
    }

    /// Claims a call that uses no approval: one statement, or more if the stored key or arguments must be compared first.
    async fn claim_at_once(&self, claim: &EncodedClaim<'_>) -> DbResult<ClaimRow> {
        let executor = self.pool.for_run(claim.claim.run);
        let mut sent = ClaimedTexts { key: true, arguments: true };
        loop {
            let row = executor.optional(claim.query(sent)?).await?.ok_or(DbError::OtherDataKey)?;
            if let Some(call) = claim.with_other_arguments(&row)? {
                return Ok(ClaimRow::OtherArguments(Box::new(call)));
            }
            match claim.without_equal(sent, &row)? {
                Some(fewer) => sent = fewer,
                None => return Ok(ClaimRow::Row(row)),
            }
        }
    }

    /// Claims a call that uses an approval, in a transaction: if the call has other arguments, the approval stays unused.
    async fn claim_with_approval(&self, claim: &EncodedClaim<'_>) -> DbResult<ClaimRow> {
        let queued = self.pool.join(claim.claim.run);
        let work = async {
            let _served = queued.acquire().await?;
            let (mut transaction, _) = self.pool.begin("").await?;
            let mut sent = ClaimedTexts { key: true, arguments: true };
            loop {
                let Some(row) = transaction.all(claim.query(sent)?).await?.pop() else {
                    transaction.rollback().await?;
                    return Err(DbError::OtherDataKey);
                };
                if let Some(call) = claim.with_other_arguments(&row)? {
                    transaction.rollback().await?;
                    return Ok(ClaimRow::OtherArguments(Box::new(call)));
                }
                if let Some(fewer) = claim.without_equal(sent, &row)? {
                    sent = fewer;
                    continue;
                }
                transaction.commit().await?;
                return Ok(ClaimRow::Row(row));
            }
        };
        self.pool.with_timeout(work).await
    }

    async fn is_undone(&self, call: &CallRow) -> DbResult<bool> {
        let query =
            sqlx::query(IS_UNDONE).bind(call.run).bind(kind::REWOUND).bind(call.created_at).bind(call.turn);
        Ok(self.pool.for_run(call.run).one(query).await?.try_get(0)?)
    }

    pub(super) async fn do_complete(&self, complete: &Complete) -> DbResult<Completed> {
        let cipher = self.cipher_to_write(complete.run).await?;
        let result = encode_payload(complete.result.as_deref(), AadContext::Result(&complete.id), &cipher)?;
        let query = sqlx::query(COMPLETE)
            .bind(complete.run)
            .bind(complete.capability.as_slice())
            .bind(without_nul(&complete.id))
            .bind(complete.claim_id)
            .bind(enum_str(&complete.outcome)?)
            .bind(result)
            .bind(size::of_json(complete.result.as_deref()))
            .bind(OPEN_CALLS_LIMIT)
            .bind(result_digest(&complete.id, complete.result.as_deref(), &cipher))
            .bind(complete.usage.tokens_in)
            .bind(complete.usage.tokens_out)
            .bind(complete.usage.tool_calls)
            .bind(complete.usage.cost_micro_usd)
            .bind(cipher.data_key().map(|key| &**key));
        let row = self.pool.for_run(complete.run).optional(query).await?.ok_or(DbError::OtherDataKey)?;
        parse_completed(&row, complete, &cipher)
    }

    pub(super) async fn do_settle(&self, settle: &Settle) -> DbResult<Completed> {
        // A person settles rarely: the data key is read anew, so that it is the stored one.
        self.keys.forget(settle.run);
        let cipher = self.cipher_to_write(settle.run).await?;
        self.transact(settle.run, &SettleCall::of(settle, PayloadCipher::clone(&cipher))?).await
    }

    pub(super) async fn do_calls(&self, run: RunId, which: CallFilter) -> DbResult<Vec<Call>> {
        let sql = match which {
            CallFilter::All => &ALL,
            CallFilter::TouchedSince(_) => &TOUCHED_SINCE,
            CallFilter::Pending => &PENDING,
            CallFilter::Unsettled => &UNSETTLED,
            CallFilter::OpenTurn => &OPEN_TURN,
        };
        let query = sqlx::query(AssertSqlSafe(sql.as_str())).bind(run);
        let query = if let CallFilter::TouchedSince(turn) = which { query.bind(turn) } else { query };
        let rows = self.pool.all(query).await?;
        let rows = rows.iter().map(CallRow::read).collect::<DbResult<Vec<_>>>()?;
        let cipher = self.cipher_to_read(run, rows.iter().any(CallRow::looks_sealed)).await?;
        rows.iter().map(|row| row.public(&cipher)).collect()
    }

    pub(super) async fn do_calls_to_settle(&self, run: RunId, limit: u32) -> DbResult<Vec<String>> {
        let rows = self.pool.all(sqlx::query(CALLS_TO_SETTLE).bind(run).bind(i64::from(limit))).await?;
        rows.iter().map(|row| Ok(row.try_get(0)?)).collect()
    }
}

/// A claim whose payload is encoded.
struct EncodedClaim<'a> {
    claim: &'a Claim,
    /// The key as it is stored.
    key: Option<String>,
    arguments: Option<&'a [u8]>,
    cipher: &'a WriteCipher,
}

/// What a try of a claim sends. Without its key or arguments it is a claim with those of the stored call.
#[derive(Clone, Copy)]
struct ClaimedTexts {
    key: bool,
    arguments: bool,
}

/// The answer to a claim.
enum ClaimRow {
    /// With the verdict.
    Row(PgRow),
    /// The stored call has other arguments. Nothing was changed.
    OtherArguments(Box<CallRow>),
}

impl EncodedClaim<'_> {
    /// The statement.
    fn query(&self, sent: ClaimedTexts) -> DbResult<Query<'static, sqlx::Postgres, PgArguments>> {
        let Self { claim, key, cipher, .. } = self;
        let digests = cipher.call_digests(&claim.id);
        let encoded = self.arguments.filter(|_| sent.arguments);
        let arguments = claim.arguments.as_deref().filter(|_| sent.arguments);
        Ok(sqlx::query(AssertSqlSafe(CLAIM.as_str()))
            .bind(claim.run)
            .bind(claim.capability.to_vec())
            .bind(without_nul(&claim.id))
            .bind(claim.claim_id)
            .bind(enum_str(&claim.policy)?)
            .bind(key.clone().filter(|_| sent.key))
            .bind(encoded.map(<[u8]>::to_vec))
            .bind(size::of_json(arguments))
            .bind(OPEN_CALLS_LIMIT)
            .bind(claim.key.as_deref().map(|key| digests.render(&without_nul(key))))
            .bind(arguments.map(|json| digests.render(json.get())))
            .bind(cipher.has_keys())
            .bind(claim.approval.as_deref().map(without_nul))
            .bind(claim.tool.as_deref().map(without_nul))
            .bind(cipher.data_key().map(|key| key.to_vec())))
    }

    /// The stored call, if it has other arguments than the claim.
    fn with_other_arguments(&self, row: &PgRow) -> DbResult<Option<CallRow>> {
        if !matches!(row.try_get("verdict")?, "go" | "done" | "uncertain" | "compare") {
            return Ok(None);
        }
        let call = CallRow::read(row)?;
        let has_other = has_other_arguments(&call, self.arguments, self.cipher)?;
        Ok(has_other.then_some(call))
    }

    /// What to send next, if what the database could not compare is equal: arguments that are encoded otherwise, or a key
    /// that was stored before the run's texts were sealed.
    fn without_equal(&self, sent: ClaimedTexts, row: &PgRow) -> DbResult<Option<ClaimedTexts>> {
        Ok(match row.try_get("verdict")? {
            "compare" => Some(ClaimedTexts { arguments: false, ..sent }),
            "other key" if sent.key => {
                let stored = CallRow::read(row)?.opened_key(self.cipher)?;
                let is_same = self.claim.key.as_deref().map(without_nul) == Some(stored);
                is_same.then_some(ClaimedTexts { key: false, ..sent })
            }
            _ => None,
        })
    }

    fn parse(&self, row: &PgRow) -> DbResult<Claimed> {
        let Self { claim, cipher, .. } = self;
        let id = &claim.id;
        Ok(match row.try_get("verdict")? {
            "go" => Claimed::Go(Box::new(CallRow::read(row)?.public(cipher)?)),
            "done" => Claimed::Done(Box::new(CallRow::read(row)?.public(cipher)?)),
            "uncertain" => Claimed::Uncertain(Box::new(CallRow::read(row)?.public(cipher)?)),
            "no key" => Claimed::Invalid(format!("call {id:?} is new, and a new call needs a key")),
            "other key" => Claimed::Invalid(format!("call {id:?} has another key")),
            "other policy" => Claimed::Invalid(format!(
                "call {id:?} has another policy: {:?}",
                CallRow::read(row)?.policy.0
            )),
            "too large" => Claimed::TooLarge,
            "not granted" => Claimed::ApprovalNotGranted(not_granted_message(claim.approval.as_deref())),
            "spent" => Claimed::ApprovalSpent,
            "fenced" => Claimed::Fenced,
            "finished" => Claimed::Finished,
            "not found" => Claimed::NotFound,
            other => return Err(DbError::unknown_value("verdict on a claim", other)),
        })
    }
}

fn result_digest(id: &str, result: Option<&RawValue>, cipher: &PayloadCipher) -> Option<String> {
    result.map(|json| cipher.call_digests(id).render(json.get()))
}

fn parse_completed(row: &PgRow, complete: &Complete, cipher: &PayloadCipher) -> DbResult<Completed> {
    let Complete { id, outcome, result, .. } = complete;
    let conflict = |why: String| Ok(Completed::Conflict(why));
    match row.try_get("verdict")? {
        "ok" => Ok(Completed::Ok),
        "ended" => {
            let stored = parse_enum::<CallState>(row.try_get("state")?)?;
            let is_same = stored == CallState::from(*outcome)
                && decode_payload(Columns::bytes(row, "result")?.as_deref(), AadContext::Result(id), cipher)?
                    .as_deref()
                    .map(RawValue::get)
                    == result.as_deref().map(RawValue::get);
            if is_same {
                Ok(Completed::Duplicate)
            } else if row.try_get("live")? && stored == CallState::KeyRefused {
                conflict(key_refused_message(id))
            } else if row.try_get("live")? {
                conflict(format!("call {id:?} has ended otherwise"))
            } else {
                Ok(Completed::Finished)
            }
        }
        "no such call" => Ok(Completed::NoSuchCall),
        "not claimed" => conflict(format!("call {id:?} was never claimed")),
        "other claim" => conflict(format!("call {id:?} is not started under this claim")),
        "too large" => Ok(Completed::TooLarge),
        "fenced" => Ok(Completed::Fenced),
        "finished" => Ok(Completed::Finished),
        "not found" => Ok(Completed::NotFound),
        other => Err(DbError::unknown_value("verdict on a call", other)),
    }
}
