//! Rows of the outbox: notifications of people, which are stored in the same step as their fact.

use serde_json::{Value as Json, json};
use uuid::{Builder, Uuid};

use crate::db_error::{DbResult, timestamp};
use crate::reads::{Assignment, Column as _, RunRow, WaitRow};
use dalsegno_format::header;
use dalsegno_model::{NotificationDetail, NotificationKind, ObjectHold, RunId};

/// SQL that adds a notification of an AgentRun whose run in the store cannot be used, unless one of this id waits: the same
/// for both databases. `$1`: its id. `$2`: its detail. `$3`: no run. `now`: the store's clock in SQL.
pub(crate) fn announce_object_sql(now: &str) -> String {
    format!(
        "INSERT INTO outbox (id, run, kind, detail, created_at, next_try_at, tries) \
         VALUES ($1, $3, '{}', $2, {now}, {now}, 0) ON CONFLICT (id) DO NOTHING",
        NotificationKind::RunHeld
    )
}

/// The id and the detail of such a notification. The same hold has the same id.
pub(crate) fn held_object(ObjectHold { object, key }: &ObjectHold) -> (Uuid, String) {
    let detail = NotificationDetail { object: Some(object.clone()), ..NotificationDetail::default() };
    (sha256_id(&format!("notification/{}/{key}", object.uid)), json!(detail).to_string())
}

/// An id that is made from a text.
fn sha256_id(text: &str) -> Uuid {
    let [bytes @ .., _, _, _, _, _, _, _, _, _, _, _, _, _, _, _, _] = header::sha256(text.as_bytes());
    Builder::from_random_bytes(bytes).into_uuid()
}

/// A new row of the outbox.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct OutboxEntry {
    id: Uuid,
    kind: NotificationKind,
    /// A [`dalsegno_model::NotificationDetail`].
    detail: Json,
    at: i64,
}

impl OutboxEntry {
    pub const TABLE: &'static str = "outbox";

    /// The notification of a fact at this time. Its id is a hash of the fact: a rule has no randomness.
    fn new(run: RunId, kind: NotificationKind, at: i64, detail: Json) -> Self {
        let id = sha256_id(&format!("notification/{run}/{kind}/{at}/{detail}"));
        Self { id, kind, detail, at }
    }

    /// A hold that began or was found at this attempt.
    pub fn held(run: &RunRow, now: i64, attempt: i32) -> Self {
        Self::new(run.id, NotificationKind::RunHeld, now, json!({ "attempt": attempt }))
    }

    /// Notes which limits are almost used up, and returns a notification of each that was not noted before.
    pub fn near_limits(run: &mut RunRow, now: i64) -> Vec<Self> {
        let (near, run) = (run.note_near_limits(now), run.id);
        let entry = |limit| Self::new(run, NotificationKind::LimitNear, now, json!({ "limit": limit }));
        near.into_iter().map(entry).collect()
    }

    /// A run asks a person for an approval, with this wait.
    pub fn approval_requested(wait: &WaitRow) -> DbResult<Self> {
        let mut detail = json!({ "attempt": wait.attempt, "waitID": wait.id });
        if let Some(at) = wait.deadline_at {
            detail["deadline"] = timestamp(at)?.to_string().into();
        }
        Ok(Self::new(wait.run, NotificationKind::ApprovalRequested, wait.opened_at, detail))
    }

    /// The run has failed.
    pub fn failed(run: &RunRow, now: i64) -> Self {
        Self::new(run.id, NotificationKind::RunFailed, now, json!({ "attempt": run.attempt }))
    }

    /// All columns of the row.
    pub fn assignments(self, run: RunId) -> Vec<Assignment> {
        let Self { id, kind, detail, at } = self;
        vec![
            ("id", id.value()),
            ("run", run.value()),
            ("kind", kind.as_str().to_owned().value()),
            ("detail", detail.to_string().value()),
            ("created_at", at.value()),
            ("next_try_at", at.value()),
            ("tries", 0_i32.value()),
        ]
    }
}
