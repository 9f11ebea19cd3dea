//! Workers come, and stop where a person cancelled their run.

use sqlx::Row as _;

use super::Postgres;
use crate::db_error::DbResult;
use crate::{Digest, RunId, SNAPSHOT_DUE, Sizes};

const SIZES: &str = "SELECT CASE WHEN state_hash IS NOT DISTINCT FROM head_hash THEN state_bytes END AS state, ( \
         SELECT coalesce(sum(bytes), 0)::bigint FROM ( \
             SELECT coalesce(octet_length(ops), 0) + coalesce(octet_length(events), 0) AS bytes FROM boundaries \
             WHERE run = runs.id AND turn <= runs.head_turn AND NOT undone \
             ORDER BY turn DESC, boundary DESC LIMIT $2 \
         ) AS latest \
     ) AS tail, ds_open_calls_v1(runs) AS calls FROM runs WHERE id = $1";

const IS_CURRENT: &str = "SELECT EXISTS (SELECT FROM runs WHERE id = $1 AND capability = $2) AS is_current";

impl Postgres {
    pub(super) async fn do_sizes(&self, run: RunId) -> DbResult<Sizes> {
        let query = sqlx::query(SIZES).bind(run).bind(i64::from(SNAPSHOT_DUE) * 2);
        let Some(row) = self.pool.optional(query).await? else { return Ok(Sizes::default()) };
        Ok(Sizes { state: row.try_get("state")?, tail: row.try_get("tail")?, calls: row.try_get("calls")? })
    }

    pub(super) async fn do_is_current(&self, run: RunId, capability: &Digest) -> DbResult<bool> {
        let query = sqlx::query(IS_CURRENT).bind(run).bind(capability.as_slice());
        Ok(self.pool.one(query).await?.try_get("is_current")?)
    }
}
