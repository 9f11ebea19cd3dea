//! Reads of records.

use std::sync::LazyLock;

use dalsegno_protocol::{Record, RecordOrder};
use sqlx::postgres::{PgArguments, PgRow};
use sqlx::query::Query;
use sqlx::{AssertSqlSafe, Row as _};

use super::Postgres;
use super::row::{any_sealed, without_nul};
use crate::db_error::DbResult;
use crate::record_statements::{LAST_REPLACEMENT, RecordJoins, held_keys, held_records};
use dalsegno_format::record_pages::{PageBounds, key_page, page};
use dalsegno_format::records::payload;
use dalsegno_format::seal::{AadContext, PayloadCipher};
use dalsegno_model::{RecordKeyPage, RecordKeysQuery, RecordPage, RecordQuery, RunId};

/// LATERAL and LIMIT keep the planner from reading all that a key ever held, whatever number of rows it expects.
const JOINS: RecordJoins = RecordJoins {
    of_each_key: "LATERAL ( \
         SELECT r.key, r.seq, r.size FROM records r \
         WHERE r.run = $1 AND r.space = $2 AND r.key = starts.key AND {range} \
           AND r.op <> 'delete' AND NOT r.undone \
         ORDER BY r.seq {order} LIMIT $6 \
     ) AS r",
    of_each_entry: "LATERAL ( \
         SELECT r.key, r.seq, r.entry_id, r.value, r.turn, r.size FROM records r \
         WHERE r.run = $1 AND r.space = $2 AND r.key = weighed.key AND r.seq = weighed.seq LIMIT 1 \
     ) AS r WHERE true",
};

static READ: LazyLock<String> = LazyLock::new(|| held_records(RecordOrder::Asc, &JOINS));
static READ_DOWN: LazyLock<String> = LazyLock::new(|| held_records(RecordOrder::Desc, &JOINS));
static KEYS: LazyLock<String> = LazyLock::new(|| held_keys(RecordOrder::Asc));
static KEYS_DOWN: LazyLock<String> = LazyLock::new(|| held_keys(RecordOrder::Desc));

/// A page of what the keys `$3` of the run `$1` in the space `$2` hold, in their order: of the first key only numbers
/// above `$4`; at most `$6` entries, or one entry more than `$5` bytes.
static READ_OF: LazyLock<String> = LazyLock::new(|| {
    let first = format!(
        "CASE WHEN keys.place = 1 AND $4 >= {LAST_REPLACEMENT} THEN $4 + 1 ELSE {LAST_REPLACEMENT} END"
    );
    let of_each_key = JOINS.of_each_key.replace("{range}", "r.seq >= starts.first").replace("{order}", "ASC");
    format!(
        "WITH RECURSIVE keys (place, key, found) AS ( \
             SELECT 1, (CAST($3 AS text[]))[1], CAST(0 AS bigint) \
             UNION ALL \
             SELECT keys.place + 1, (CAST($3 AS text[]))[keys.place + 1], keys.found + (SELECT count(*) FROM ( \
                 SELECT 1 FROM records r \
                 WHERE r.run = $1 AND r.space = $2 AND r.key = keys.key AND r.op <> 'delete' AND NOT r.undone \
                   AND r.seq >= {first} ORDER BY r.seq LIMIT $6 \
             ) AS held) \
             FROM keys WHERE keys.key IS NOT NULL AND keys.found < $6 \
         ), starts AS MATERIALIZED ( \
             SELECT place, key, {first} AS first FROM keys WHERE key IS NOT NULL \
         ), page AS ( \
             SELECT starts.place, r.key, r.seq, r.size FROM starts CROSS JOIN {of_each_key} \
             ORDER BY starts.place, r.seq LIMIT $6 \
         ), weighed AS ( \
             SELECT place, key, seq, count(*) OVER () AS found, \
                 sum(size) OVER (ORDER BY place, seq) - size AS before FROM page \
         ) \
         SELECT r.key, r.seq, r.entry_id, r.value, r.turn, r.size, weighed.found FROM weighed CROSS JOIN {} \
           AND weighed.before < $5 ORDER BY weighed.place, r.seq",
        JOINS.of_each_entry
    )
});

impl Postgres {
    pub(super) async fn do_read_records(&self, run: RunId, query: &RecordQuery) -> DbResult<RecordPage> {
        let sql = match query.order {
            RecordOrder::Asc => &READ,
            RecordOrder::Desc => &READ_DOWN,
        };
        let rows = in_bounds(sql, run, query).bind(i64::try_from(query.bytes).unwrap_or(i64::MAX));
        let rows = self.pool.all(rows).await?;
        self.record_page(&rows, (run, &query.space), query.limit).await
    }

    pub(super) async fn do_read_record_keys(
        &self,
        run: RunId,
        query: &RecordQuery,
    ) -> DbResult<RecordKeyPage> {
        let sql = match query.order {
            RecordOrder::Asc => &KEYS,
            RecordOrder::Desc => &KEYS_DOWN,
        };
        let rows = self.pool.all(in_bounds(sql, run, query)).await?;
        let keys = rows.iter().map(|row| Ok((row.try_get("key")?, row.try_get("seq")?)));
        Ok(key_page(keys.collect::<DbResult<_>>()?, query.limit))
    }

    pub(super) async fn do_read_records_of(
        &self,
        run: RunId,
        query: &RecordKeysQuery,
    ) -> DbResult<RecordPage> {
        let keys: Vec<_> = query.keys.iter().map(|key| without_nul(key)).collect();
        let rows = sqlx::query(AssertSqlSafe(READ_OF.as_str()))
            .bind(run)
            .bind(without_nul(&query.space))
            .bind(keys)
            .bind(query.after)
            .bind(i64::try_from(query.bytes).unwrap_or(i64::MAX))
            .bind(i64::from(query.limit) + 1);
        let rows = self.pool.all(rows).await?;
        self.record_page(&rows, (run, &query.space), query.limit).await
    }

    async fn record_page(&self, rows: &[PgRow], of: (RunId, &str), limit: u32) -> DbResult<RecordPage> {
        let (run, space) = of;
        let found = rows.first().map_or(Ok(0), |row| row.try_get("found"))?;
        let cipher = self.cipher_to_read(run, any_sealed(rows, "value")).await?;
        let entries = rows.iter().map(|row| entry(row, space, &cipher));
        Ok(page(entries.collect::<DbResult<_>>()?, found, limit))
    }
}

/// A read from where the query begins to where it ends. It asks for one more than the page holds, to know whether more follow.
fn in_bounds<'q>(sql: &'q str, run: RunId, query: &'q RecordQuery) -> Query<'q, sqlx::Postgres, PgArguments> {
    let PageBounds { first, end, seq } = PageBounds::of(query);
    sqlx::query(AssertSqlSafe(sql))
        .bind(run)
        .bind(without_nul(&query.space))
        .bind(without_nul(&first))
        .bind(seq)
        .bind(without_nul(&end))
        .bind(i64::from(query.limit) + 1)
}

fn entry(row: &PgRow, space: &str, cipher: &PayloadCipher) -> DbResult<(Record, i64)> {
    let (key, entry_id): (String, Option<String>) = (row.try_get("key")?, row.try_get("entry_id")?);
    let aad = AadContext::Record(space, &key, entry_id.as_deref());
    let value = payload(row.try_get("value")?, aad, cipher)?;
    let record = Record { key, entry_id, value, turn: row.try_get("turn")? };
    Ok((record, row.try_get("seq")?))
}
