//! A wait's row.

use dalsegno_protocol::{OnTimeout, RawValue, WaitKind, WaitOutcome, WaitState};
use serde::Deserialize;
use serde_json::{Map, Value as Json};
use uuid::Uuid;

use super::table::table;
use super::{BoundaryColumn, Columns, EnumText, Hash, decode_payload};
use crate::db_error::{DbError, DbResult, redacted_json_error, timestamp};
use dalsegno_format::seal::{AadContext, PayloadCipher, is_sealed};
use dalsegno_model::{AnsweredWait, BoundaryId, OpenWait, Proposal, Wait, WaitDecision};

table! {
    /// A wait, without its payloads `request` and `answer`.
    WaitRow in "waits" {
        run: Uuid,
        id: String,
        epoch: i64,
        ordinal: i64,
        turn: i32,
        boundary: BoundaryColumn,
        undone: bool,
        attempt: i32,
        kind: EnumText<WaitKind>,
        state: EnumText<WaitState>,
        digest: Hash,
        bytes: i64,
        deadline_at: Option<i64>,
        on_timeout: EnumText<OnTimeout>,
        timed_out_at: Option<i64>,
        wake_at: Option<i64>,
        reset_at: Option<i64>,
        provider: Option<String>,
        topic: Option<String>,
        proposal_hash: Option<Hash>,
        opened_at: i64,
        answered_at: Option<i64>,
        outcome: Option<EnumText<WaitOutcome>>,
        position: Option<i64>,
    }
}

/// Columns with bytes: JSON has none, so they are read as hexadecimal digits.
const BYTES: [&str; 3] = ["run", "digest", "proposal_hash"];

/// SQL for the column `waits` of a run's record: its open waits as a JSON array; NULL if it has none. The run's row is
/// `r`, and only the row of its current attempt `a` has them.
#[derive(Clone, Copy, Debug)]
pub(crate) enum OpenWaitsSql {
    #[cfg(feature = "postgres")]
    Postgres,
    #[cfg(feature = "sqlite")]
    Sqlite,
}

impl OpenWaitsSql {
    /// The text.
    pub fn text(self) -> String {
        let columns = || WaitRow::COLUMNS.iter();
        let rows = match self {
            #[cfg(feature = "postgres")]
            Self::Postgres => {
                let column = |column: &&str| {
                    if BYTES[1..].contains(column) {
                        format!("encode({column}, 'hex') AS {column}")
                    } else {
                        (*column).to_owned()
                    }
                };
                let columns = columns().map(column).collect::<Vec<_>>().join(", ");
                format!(
                    "SELECT json_agg(row_to_json(w))::text FROM (SELECT {columns} FROM waits \
                     WHERE run = r.id AND state = 'open' AND NOT undone) AS w"
                )
            }
            #[cfg(feature = "sqlite")]
            Self::Sqlite => {
                let column = |column: &&str| {
                    if BYTES.contains(column) {
                        format!("'{column}', CASE WHEN w.{column} IS NOT NULL THEN hex(w.{column}) END")
                    } else {
                        format!("'{column}', w.{column}")
                    }
                };
                let columns = columns().map(column).collect::<Vec<_>>().join(", ");
                format!(
                    "SELECT json_group_array(json_object({columns})) FROM waits AS w \
                     WHERE w.run = r.id AND w.state = 'open' AND NOT w.undone"
                )
            }
        };
        format!("CASE WHEN a.number = r.attempt AND r.open_waits > 0 THEN ({rows}) END AS waits")
    }
}

impl WaitRow {
    /// The rows in the text of [`OpenWaitsSql`], in the order of their opening.
    pub fn read_list(text: &str) -> DbResult<Vec<Self>> {
        let rows: Vec<Map<String, Json>> = serde_json::from_str(text).map_err(|error| {
            DbError::Corrupt(format!("the waits of a run: {}", redacted_json_error(&error)))
        })?;
        let mut waits = rows.iter().map(|row| Self::read(&JsonRow(row))).collect::<DbResult<Vec<_>>>()?;
        waits.sort_by_key(|wait| wait.ordinal);
        Ok(waits)
    }

    /// Whether it is an open wait of the live branch.
    pub fn is_open(&self) -> bool {
        self.state.0 == WaitState::Open && !self.undone
    }

    /// The wait without its payloads.
    pub fn open_wait(&self) -> DbResult<OpenWait> {
        let optional = |at: Option<i64>| at.map(timestamp).transpose();
        Ok(OpenWait {
            id: self.id.clone(),
            epoch: self.epoch,
            ordinal: self.ordinal,
            kind: self.kind.0,
            turn: self.turn,
            attempt: self.attempt,
            opened_at: timestamp(self.opened_at)?,
            deadline_at: optional(self.deadline_at)?,
            on_timeout: self.on_timeout.0,
            timed_out_at: optional(self.timed_out_at)?,
            wake_at: optional(self.wake_at)?,
            provider: self.provider.clone(),
            topic: self.topic.clone(),
            proposal_hash: self.proposal_hash.map(|hash| hash.0),
        })
    }
}

/// A wait with its answer as it is stored.
#[derive(Clone, Debug)]
pub(crate) struct StoredWait {
    pub row: WaitRow,
    pub answer: Option<Vec<u8>>,
}

impl StoredWait {
    /// All columns of [`WaitRow`] and the answer, each of this table or alias.
    pub fn columns_of(table: &str) -> String {
        format!("{}, {table}.answer", WaitRow::columns_of(table))
    }

    pub fn read(row: &impl Columns) -> DbResult<Self> {
        Ok(Self { row: WaitRow::read(row)?, answer: super::Column::read(row, "answer")? })
    }

    /// Whether the answer is only readable with the run's data key.
    pub fn looks_sealed(&self) -> bool {
        self.answer.as_deref().is_some_and(is_sealed)
    }

    /// The wait for workers and people.
    pub fn public(&self, cipher: &PayloadCipher) -> DbResult<Wait> {
        let Self { row, answer } = self;
        let context = AadContext::WaitAnswer(&row.id, row.epoch);
        let decision = decode_payload(answer.as_deref(), context, cipher)
            .map_err(|error| error.of(format!("wait {:?}", row.id)))?
            .map(|json| decision(&row.id, &json))
            .transpose()?;
        let answered = match (row.outcome, row.answered_at) {
            (Some(outcome), Some(at)) => Some(AnsweredWait {
                outcome: outcome.0,
                at: timestamp(at)?,
                position: row.position,
                decision,
            }),
            _ => None,
        };
        Ok(Wait { facts: row.open_wait()?, state: row.state.0, answer: answered })
    }
}

/// The stored request: the body as it came, and for an approval the salt of its hash.
#[derive(Deserialize)]
struct StoredRequest {
    salt: Option<String>,
    request: Box<RawValue>,
}

/// The wait for checks of the store and exports of a run.
pub(crate) fn stored_wait(
    row: &impl Columns,
    cipher: &PayloadCipher,
) -> DbResult<dalsegno_model::read_transaction::StoredWait> {
    let (wait, request): (_, Option<Vec<u8>>) =
        (StoredWait::read(row)?, super::Column::read(row, "request")?);
    let StoredWait { row, answer } = &wait;
    let answer = decode_payload(answer.as_deref(), AadContext::WaitAnswer(&row.id, row.epoch), cipher);
    let decoded = proposal(&StoredWait { answer: None, ..wait.clone() }, request.as_deref(), cipher)
        .and_then(|proposal| Ok((proposal.request, answer?)));
    let (request, answer, damage) = match decoded {
        Ok((request, answer)) => (request, answer, None),
        Err(DbError::Corrupt(damage)) => (None, None, Some(format!("wait {:?}: {damage}", row.id))),
        Err(error) => return Err(error),
    };
    Ok(dalsegno_model::read_transaction::StoredWait {
        facts: row.open_wait()?,
        boundary: BoundaryId { turn: row.turn, boundary: row.boundary.0, epoch: row.epoch },
        undone: row.undone,
        state: row.state.0,
        outcome: row.outcome.map(|outcome| outcome.0),
        request,
        answer,
        digests: cipher.wait_digests(&row.id, row.epoch),
        damage,
    })
}

/// The wait with its request, for the people who decide.
pub(crate) fn proposal(
    wait: &StoredWait,
    request: Option<&[u8]>,
    cipher: &PayloadCipher,
) -> DbResult<Proposal> {
    let WaitRow { id, epoch, .. } = &wait.row;
    let invalid = |why: String| DbError::Corrupt(format!("the request of wait {id:?}: {why}"));
    let stored = decode_payload(request, AadContext::WaitRequest(id, *epoch), cipher)
        .map_err(|error| error.of(format!("wait {id:?}")))?
        .map(|json| serde_json::from_str::<StoredRequest>(json.get()))
        .transpose()
        .map_err(|error| invalid(redacted_json_error(&error)))?;
    let salt = stored.as_ref().and_then(|stored| stored.salt.as_deref());
    let salt = salt
        .map(|salt| u128::from_str_radix(salt, 16).map(u128::to_be_bytes))
        .transpose()
        .map_err(|_| invalid("its salt is not hexadecimal".into()))?;
    let mut public = wait.public(cipher)?;
    // A rewind leaves the state as it was. Nobody can answer the wait any more.
    if wait.row.undone && public.state == WaitState::Open {
        public.state = WaitState::Withdrawn;
    }
    Ok(Proposal { wait: public, request: stored.map(|stored| stored.request), salt })
}

fn decision(id: &str, json: &RawValue) -> DbResult<WaitDecision> {
    serde_json::from_str(json.get()).map_err(|error| {
        DbError::Corrupt(format!("the answer of wait {id:?}: {}", redacted_json_error(&error)))
    })
}

/// A row as a JSON object. Bytes are hexadecimal digits, and a boolean may be 0 or 1.
struct JsonRow<'a>(&'a Map<String, Json>);

impl JsonRow<'_> {
    fn get<T>(&self, column: &str, read: impl FnOnce(&Json) -> Option<T>) -> DbResult<Option<T>> {
        match self.0.get(column) {
            None | Some(Json::Null) => Ok(None),
            Some(value) => {
                read(value).map(Some).ok_or_else(|| DbError::Corrupt(format!("column {column} of a wait")))
            }
        }
    }
}

impl Columns for JsonRow<'_> {
    fn integer(&self, column: &str) -> DbResult<Option<i64>> {
        self.get(column, Json::as_i64)
    }

    fn boolean(&self, column: &str) -> DbResult<Option<bool>> {
        self.get(column, |value| value.as_bool().or_else(|| Some(value.as_i64()? != 0)))
    }

    fn text(&self, column: &str) -> DbResult<Option<String>> {
        self.get(column, |value| value.as_str().map(str::to_owned))
    }

    fn bytes(&self, column: &str) -> DbResult<Option<Vec<u8>>> {
        self.get(column, |value| {
            let (pairs, []) = value.as_str()?.as_bytes().as_chunks::<2>() else { return None };
            pairs.iter().map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()).collect()
        })
    }

    fn uuid(&self, column: &str) -> DbResult<Option<Uuid>> {
        self.get(column, |value| value.as_str()?.parse().ok())
    }

    fn texts(&self, column: &str) -> DbResult<Option<Vec<String>>> {
        self.get(column, |value| serde_json::from_value(value.clone()).ok())
    }
}
