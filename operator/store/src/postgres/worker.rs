//! Workers come, and stop where a person cancelled their run.

use sqlx::Row as _;

use super::Postgres;
use super::row::record;
use crate::fault::{Fault, Work};
use crate::{Acknowledged, Attached, Digest, RunId, SNAPSHOT_DUE};

const ATTACH: &str = "SELECT * FROM ds_attach_v1($1, $2, $3)";

const ACKNOWLEDGE: &str = "SELECT ds_acknowledge_cancel_v1($1, $2) AS verdict";

const TAIL_BYTES: &str = "SELECT coalesce(sum(bytes), 0)::bigint AS bytes FROM ( \
         SELECT coalesce(octet_length(ops), 0) + coalesce(octet_length(events), 0) AS bytes FROM boundaries \
         WHERE run = $1 AND turn <= (SELECT head_turn FROM runs WHERE id = $1) AND NOT undone \
         ORDER BY turn DESC, boundary DESC LIMIT $2 \
     ) AS tail";

const STATE_BYTES: &str = "SELECT CASE WHEN state_hash IS NOT DISTINCT FROM head_hash THEN state_bytes END AS bytes FROM runs WHERE id = $1";

const IS_CURRENT: &str = "SELECT EXISTS (SELECT FROM runs WHERE id = $1 AND capability = $2) AS is_current";

impl Postgres {
    pub(super) async fn do_attach(&self, run: RunId, pod_uid: &str, instance: &Digest) -> Work<Attached> {
        let query = sqlx::query(ATTACH).bind(run).bind(pod_uid).bind(instance.as_slice());
        let row = self.pool.of(run).one(query).await?;
        Ok(match row.try_get("verdict")? {
            "ok" => Attached::Ok(Box::new(record(&row, run)?)),
            "not found" => Attached::NotFound,
            "not recorded" => Attached::NotRecorded,
            "version pending" => Attached::VersionPending,
            "version incompatible" => {
                Attached::VersionIncompatible(row.try_get::<Option<_>, _>("detail")?.unwrap_or_default())
            }
            "spent" => Attached::Spent,
            "fenced" => Attached::Fenced,
            "finished" => Attached::Finished,
            other => return Err(Fault::unknown("verdict on an attach", other)),
        })
    }

    pub(super) async fn do_acknowledge_cancel(&self, run: RunId, capability: &Digest) -> Work<Acknowledged> {
        let query = sqlx::query(ACKNOWLEDGE).bind(run).bind(capability.as_slice());
        Ok(match self.pool.of(run).one(query).await?.try_get("verdict")? {
            "cancelled" => Acknowledged::Cancelled,
            "not requested" => Acknowledged::NotRequested,
            "finished" => Acknowledged::Finished,
            "fenced" => Acknowledged::Fenced,
            other => return Err(Fault::unknown("verdict on a cancel", other)),
        })
    }

    pub(super) async fn do_state_bytes(&self, run: RunId) -> Work<Option<i64>> {
        let row = self.pool.optional(sqlx::query(STATE_BYTES).bind(run)).await?;
        Ok(row.map(|row| row.try_get("bytes")).transpose()?.flatten())
    }

    pub(super) async fn do_tail_bytes(&self, run: RunId) -> Work<i64> {
        let query = sqlx::query(TAIL_BYTES).bind(run).bind(i64::from(SNAPSHOT_DUE) * 2);
        Ok(self.pool.one(query).await?.try_get("bytes")?)
    }

    pub(super) async fn do_is_current(&self, run: RunId, capability: &Digest) -> Work<bool> {
        let query = sqlx::query(IS_CURRENT).bind(run).bind(capability.as_slice());
        Ok(self.pool.one(query).await?.try_get("is_current")?)
    }
}
