//! Rows of the outbox: notifications of people, which are stored in the same step as their fact.

use serde_json::{Value as Json, json};
use uuid::{Builder, Uuid};

use crate::db_error::{DbResult, timestamp};
use crate::reads::{Assignment, Column as _, RunRow, WaitRow};
use dalsegno_format::header;
use dalsegno_model::{NotificationKind, RunId};

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
        let [bytes @ .., _, _, _, _, _, _, _, _, _, _, _, _, _, _, _, _] =
            header::sha256(format!("notification/{run}/{kind}/{at}/{detail}").as_bytes());
        Self { id: Builder::from_random_bytes(bytes).into_uuid(), kind, detail, at }
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
