//! An attempt's row.

use uuid::Uuid;

use super::EnumText;
use super::table::table;
use crate::db_error::{DbResult, timestamp};
use dalsegno_model::{Attempt, AttemptEnd, AttemptState, Cause, Class, Identity, Verdict};

table! {
    /// One attempt: the life of one pod.
    AttemptRow in "attempts" {
        run: Uuid,
        number: i32,
        reserved_at: i64,
        epoch: i64,
        turn_at_start: i32,
        state: EnumText<AttemptState>,
        pod_uid: Option<String>,
        pod_name: Option<String>,
        node: Option<String>,
        revision: Option<String>,
        candidates: Vec<String>,
        pod_nonce: Option<String>,
        image_digest: Option<String>,
        image_in_registry: Option<bool>,
        agent_version: Option<String>,
        verdict: Option<EnumText<Verdict>>,
        remark: Option<String>,
        spent: bool,
        turn_at_end: Option<i32>,
        created_at: Option<i64>,
        scheduled_at: Option<i64>,
        attached_at: Option<i64>,
        lease_renewed_at: Option<i64>,
        ended_at: Option<i64>,
        cause: Option<String>,
        class: Option<EnumText<Class>>,
        charged: Option<bool>,
        progress: Option<bool>,
        exit_code: Option<i32>,
        message: Option<String>,
    }
}

impl AttemptRow {
    pub fn identity(&self) -> Option<Identity> {
        Some(Identity {
            image_digest: self.image_digest.clone()?,
            in_registry: self.image_in_registry,
            agent_version: self.agent_version.clone()?,
            verdict: self.verdict?.0,
            remark: self.remark.clone().unwrap_or_default(),
        })
    }

    pub fn record(&self) -> DbResult<Attempt> {
        let end = match (&self.cause, self.class) {
            (Some(cause), Some(EnumText(class))) => Some(AttemptEnd {
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
            pod_nonce: self.pod_nonce.clone(),
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
