//! Taking runs up, looking them up, closing them for good.

use serde::Deserialize;
use sqlx::Row as _;
use sqlx::types::Json;
use uuid::Uuid;

use super::Postgres;
use super::operate::asking;
use super::row::{optional_record, record, text};
use crate::fault::{Fault, Work, timestamp};
use crate::{AskedBy, Attempt, Created, LookUp, NewRun, OnPrior, PriorRun, RunId, RunRecord};

const CREATE: &str = "SELECT * FROM ds_create_run_v1($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)";

/// The store's row is there in any case.
const LOOK_UP: &str = "SELECT store.id AS store_id, ds_now_v1() AS now, ds_run_record_v1(runs.id) AS record \
     FROM store LEFT JOIN runs ON runs.object_uid = $1 WHERE only_row";

const RUN: &str = "SELECT ds_run_record_v1(id) AS record FROM runs WHERE id = $1";

const ATTEMPT: &str = "SELECT ds_attempt_v1(a, a.lease_renewed_at) AS attempt FROM attempts a \
     WHERE a.run = $1 AND a.number = $2";

const FIND: &str = "SELECT ds_run_record_v1(id) AS record FROM runs WHERE namespace = $1 AND name = $2 \
     ORDER BY created_at DESC, id DESC";

const MARK_DELETED: &str = "SELECT ds_mark_deleted_v1($1, $2, $3)";

const ADOPT_NAMESPACE: &str = "SELECT ds_adopt_namespace_v1($1, $2, $3, $4) AS moved";

const GET_REVISION: &str = "SELECT document FROM revisions WHERE hash = $1";

/// A prior run, as `ds_create_run_v1` answers it.
#[derive(Deserialize)]
struct Prior {
    id: Uuid,
    object_uid: String,
    tenant: String,
    turn: i32,
}

impl Postgres {
    pub(super) async fn do_create_run(&self, new: &NewRun) -> Work<Created> {
        let NewRun { id, tenant, namespace, name, object_uid, reset_generation, deadlines, on_prior } = new;
        let query = sqlx::query(CREATE)
            .bind(id)
            .bind(tenant)
            .bind(namespace)
            .bind(name)
            .bind(object_uid)
            .bind(reset_generation)
            .bind(deadlines.heartbeat_ms)
            .bind(deadlines.start_ms)
            .bind(deadlines.progress_ms)
            .bind(match on_prior {
                OnPrior::Hold => "hold",
                OnPrior::Adopt => "adopt",
                OnPrior::Ignore => "ignore",
            });
        let row = self.pool.one(query).await?;
        if let Some(Json(prior)) = row.try_get::<Option<Json<Prior>>, _>("prior")? {
            return Ok(Created::Prior(PriorRun {
                id: prior.id,
                object_uid: prior.object_uid,
                tenant: prior.tenant,
                asked_by: tenant.clone(),
                turn: prior.turn,
            }));
        }
        Ok(Created::Run(Box::new(record(&row, *id)?)))
    }

    pub(super) async fn do_look_up(&self, object_uid: &str) -> Work<LookUp> {
        let row = self.pool.one(sqlx::query(LOOK_UP).bind(object_uid)).await?;
        Ok(match optional_record(&row)? {
            Some(record) => LookUp::Found(Box::new(record)),
            None => {
                LookUp::NotFound { store_id: row.try_get("store_id")?, now: timestamp(row.try_get("now")?)? }
            }
        })
    }

    pub(super) async fn do_get_run(&self, run: RunId) -> Work<Option<RunRecord>> {
        match self.pool.optional(sqlx::query(RUN).bind(run)).await? {
            Some(row) => optional_record(&row),
            None => Ok(None),
        }
    }

    pub(super) async fn do_attempt(&self, run: RunId, number: i32) -> Work<Option<Attempt>> {
        let row = self.pool.optional(sqlx::query(ATTEMPT).bind(run).bind(number)).await?;
        Ok(row.map(|row| row.try_get::<Json<Attempt>, _>("attempt")).transpose()?.map(|json| json.0))
    }

    pub(super) async fn do_find(&self, namespace: &str, name: &str) -> Work<Vec<RunRecord>> {
        let rows = self.pool.all(sqlx::query(FIND).bind(namespace).bind(name)).await?;
        rows.iter()
            .map(|row| {
                optional_record(row)?.ok_or_else(|| Fault::Corrupt("a run has no attempt at all".into()))
            })
            .collect()
    }

    pub(super) async fn do_mark_deleted(&self, object_uid: &str, asked: &AskedBy) -> Work<()> {
        self.pool.all(asking(sqlx::query(MARK_DELETED).bind(object_uid), asked)).await?;
        Ok(())
    }

    pub(super) async fn do_adopt_namespace(
        &self,
        old: &str,
        new: &str,
        actor: &str,
        reason: &str,
    ) -> Work<u64> {
        let query = sqlx::query(ADOPT_NAMESPACE).bind(old).bind(new).bind(text(actor)).bind(text(reason));
        let moved: i64 = self.pool.one(query).await?.try_get("moved")?;
        Ok(moved.unsigned_abs())
    }

    pub(super) async fn do_get_revision(&self, hash: &str) -> Work<Option<String>> {
        let row = self.pool.optional(sqlx::query(GET_REVISION).bind(hash)).await?;
        Ok(row.map(|row| row.try_get("document")).transpose()?)
    }
}
