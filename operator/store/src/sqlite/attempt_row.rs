//! An attempt's row.

use sqlx::SqliteConnection;
use uuid::Uuid;

use super::columns::{Word, table};
use super::row::RunRow;
use crate::fault::{Fault, Work, timestamp};
use crate::{Attempt, AttemptEnd, AttemptState, Cause, Class, Identity, RunId, Verdict};

table! {
    /// One pod's life.
    AttemptRow in "attempts"
    fixed {
        run: Uuid,
        number: i32,
        reserved_at: i64,
    }
    moving {
        epoch: i64,
        turn_at_start: i32,
        state: Word<AttemptState>,
        pod_uid: Option<String>,
        pod_name: Option<String>,
        node: Option<String>,
        revision: Option<String>,
        image_digest: Option<String>,
        agent_version: Option<String>,
        verdict: Option<Word<Verdict>>,
        remark: Option<String>,
        spent: bool,
        turn_at_end: Option<i32>,
        created_at: Option<i64>,
        scheduled_at: Option<i64>,
        attached_at: Option<i64>,
        lease_renewed_at: Option<i64>,
        ended_at: Option<i64>,
        cause: Option<String>,
        class: Option<Word<Class>>,
        charged: Option<bool>,
        progress: Option<bool>,
        exit_code: Option<i32>,
        message: Option<String>,
    }
    where "run = ? AND number = ?" { run, number }
}

impl AttemptRow {
    pub async fn load(conn: &mut SqliteConnection, run: RunId, number: i32) -> Work<Option<Self>> {
        let row = sqlx::query("SELECT * FROM attempts WHERE run = ? AND number = ?")
            .bind(run)
            .bind(number)
            .fetch_optional(conn)
            .await?;
        Ok(row.as_ref().map(Self::read).transpose()?)
    }

    /// The row of the run's current attempt.
    pub async fn current(conn: &mut SqliteConnection, run: &RunRow) -> Work<Self> {
        Self::load(conn, run.id, run.attempt)
            .await?
            .ok_or_else(|| Fault::Corrupt(format!("run {} has no attempt {}", run.id, run.attempt)))
    }

    pub fn identity(&self) -> Option<Identity> {
        Some(Identity {
            image_digest: self.image_digest.clone()?,
            agent_version: self.agent_version.clone()?,
            verdict: self.verdict?.0,
            remark: self.remark.clone().unwrap_or_default(),
        })
    }

    pub fn record(&self) -> Work<Attempt> {
        let end = match (&self.cause, self.class) {
            (Some(cause), Some(Word(class))) => Some(AttemptEnd {
                cause: Cause::stored(cause),
                class,
                charged: self.charged.unwrap_or_default(),
                progress: self.progress.unwrap_or_default(),
                exit_code: self.exit_code,
                message: self.message.clone().unwrap_or_default(),
            }),
            _ => None,
        };
        let optional = |at: Option<i64>| at.map(timestamp).transpose();
        Ok(Attempt {
            number: self.number,
            state: self.state.0,
            epoch: self.epoch,
            pod_uid: self.pod_uid.clone(),
            pod_name: self.pod_name.clone(),
            node: self.node.clone(),
            revision: self.revision.clone(),
            identity: self.identity(),
            spent: self.spent,
            turn_at_start: self.turn_at_start,
            turn_at_end: self.turn_at_end,
            reserved_at: timestamp(self.reserved_at)?,
            created_at: optional(self.created_at)?,
            scheduled_at: optional(self.scheduled_at)?,
            attached_at: optional(self.attached_at)?,
            lease_renewed_at: optional(self.lease_renewed_at)?,
            ended_at: optional(self.ended_at)?,
            end,
        })
    }
}
