//! Going back to an earlier boundary, the pages of a survey, and the ids of all runs.

use sqlx::Row as _;
use sqlx::postgres::PgRow;

use super::Postgres;
use super::branch::kept;
use super::fault::{Fault, Work};
use super::row::{boundary, number, record, text};
use crate::survey::{PAGE_BYTES, PAGE_ROWS};
use crate::{Link, Place, Rewind, Rewound, RunId};

const REWIND: &str = "SELECT * FROM ds_rewind_v1($1, $2, $3, $4, $5, $6, $7)";

/// At least one boundary, if there is one; no more than these bytes of payloads beyond it. Their lengths are known
/// without reading them.
const PAGE: &str = "SELECT b.*, true AS has_payloads FROM ( \
         SELECT turn, boundary, epoch, \
                sum(bytes) OVER (ORDER BY turn, boundary, epoch ROWS UNBOUNDED PRECEDING) - bytes AS before \
         FROM ( \
             SELECT turn, boundary, epoch, \
                    coalesce(octet_length(ops), 0)::bigint + coalesce(octet_length(events), 0) AS bytes \
             FROM boundaries \
             WHERE run = $1 AND (turn, boundary, epoch) > ($2, $3, $4) \
             ORDER BY turn, boundary, epoch \
             LIMIT $5 \
         ) AS lengths \
     ) AS page \
     JOIN boundaries b \
       ON b.run = $1 AND b.turn = page.turn AND b.boundary = page.boundary AND b.epoch = page.epoch \
     WHERE page.before < $6 \
     ORDER BY b.turn, b.boundary, b.epoch";

const RUN_IDS: &str = "SELECT id FROM runs WHERE id > $1 ORDER BY id LIMIT $2";

impl Postgres {
    pub(super) async fn do_rewind(&self, run: RunId, rewind: &Rewind) -> Work<Rewound> {
        let Rewind { epoch, to, reason, actor } = rewind;
        let query = sqlx::query(REWIND)
            .bind(run)
            .bind(epoch)
            .bind(to.turn)
            .bind(number(to.boundary))
            .bind(to.epoch)
            .bind(text(reason))
            .bind(text(actor));
        let row = self.pool.one(query).await?;
        let record = Box::new(record(&row, run)?);
        Ok(if row.try_get("done")? { Rewound::Done(record) } else { Rewound::Refused(record) })
    }

    pub(super) async fn do_links(&self, run: RunId, after: Option<Place>) -> Work<Vec<Link>> {
        let query = sqlx::query(PAGE)
            .bind(run)
            .bind(after.map_or(i32::MIN, |place| place.turn))
            .bind(after.map_or(0, |place| number(place.boundary)))
            .bind(after.map_or(0, |place| place.epoch))
            .bind(PAGE_ROWS)
            .bind(PAGE_BYTES);
        self.pool.all(query).await?.iter().map(|row| link(run, row)).collect()
    }

    pub(super) async fn do_run_ids(&self, after: RunId) -> Work<Vec<RunId>> {
        let rows = self.pool.all(sqlx::query(RUN_IDS).bind(after).bind(PAGE_ROWS)).await?;
        rows.iter().map(|row| Ok(row.try_get("id")?)).collect()
    }
}

fn link(run: RunId, row: &PgRow) -> Work<Link> {
    let place = Place {
        turn: row.try_get("turn")?,
        boundary: boundary(row, "boundary")?
            .ok_or_else(|| Fault::Corrupt("a boundary is neither plan nor result".into()))?,
        epoch: row.try_get("epoch")?,
    };
    let sound = match kept(row) {
        Ok(kept) => kept.sound(run),
        // What cannot be read is told of, and the survey goes on.
        Err(Fault::Corrupt(detail)) => Err(detail),
        Err(fault) => return Err(fault),
    };
    Ok(Link { place, undone: row.try_get("undone")?, sound })
}
