//! Reads of records.

use std::sync::LazyLock;

use dalsegno_protocol::{Record, RecordOrder};
use sqlx::sqlite::SqliteRow;
use sqlx::{AssertSqlSafe, Row as _, SqliteConnection};

use super::records::HAS_VALUE;
use crate::db_error::DbResult;
use crate::record_statements::{RecordJoins, held_keys, held_records};
use dalsegno_format::record_pages::PageBounds;
use dalsegno_format::records::payload;
use dalsegno_format::seal::{AadContext, PayloadCipher};
use dalsegno_model::{RecordKeysQuery, RecordQuery, Result, RunId};

/// CROSS JOIN: SQLite goes through the starts first.
const JOINS: RecordJoins = RecordJoins {
    of_each_key: "records r \
         WHERE r.run = $1 AND r.space = $2 AND r.key = starts.key AND {range} \
           AND r.op <> 'delete' AND NOT r.undone",
    of_each_entry: "records r WHERE r.run = $1 AND r.space = $2 AND r.key = weighed.key AND r.seq = weighed.seq",
};

static READ: LazyLock<String> = LazyLock::new(|| held_records(RecordOrder::Asc, &JOINS));
static READ_DOWN: LazyLock<String> = LazyLock::new(|| held_records(RecordOrder::Desc, &JOINS));
static KEYS: LazyLock<String> = LazyLock::new(|| held_keys(RecordOrder::Asc));
static KEYS_DOWN: LazyLock<String> = LazyLock::new(|| held_keys(RecordOrder::Desc));

/// The statement that reads a page of records in this order.
pub(super) fn page_sql(order: RecordOrder) -> &'static str {
    match order {
        RecordOrder::Asc => &READ,
        RecordOrder::Desc => &READ_DOWN,
    }
}

/// The statement that reads a page of keys in this order.
pub(super) fn keys_sql(order: RecordOrder) -> &'static str {
    match order {
        RecordOrder::Asc => &KEYS,
        RecordOrder::Desc => &KEYS_DOWN,
    }
}

/// A value or an entry of a key, as it is stored.
pub(super) struct Entry {
    key: String,
    seq: i64,
    entry_id: Option<String>,
    pub value: Vec<u8>,
    turn: i32,
    /// Bytes of its value.
    size: i64,
    /// Entries that the query found, those without room on the page included.
    found: i64,
}

impl Entry {
    /// Returns the record and its number among the changes of its key.
    pub fn decrypt(self, space: &str, cipher: &PayloadCipher) -> Result<(Record, i64)> {
        let Self { key, seq, entry_id, value, turn, size: _, found: _ } = self;
        let value = payload(&value, AadContext::Record(space, &key, entry_id.as_deref()), cipher)?;
        Ok((Record { key, entry_id, value, turn }, seq))
    }
}

/// The entries of a page, and how many were available. There may be one entry more than the page holds.
#[derive(Default)]
pub(super) struct Entries {
    pub entries: Vec<Entry>,
    pub found: i64,
}

/// The most entries and bytes of a page.
#[derive(Clone, Copy)]
struct Room {
    entries: i64,
    bytes: i64,
}

/// Returns the entries of a page.
pub(super) async fn read(conn: &mut SqliteConnection, run: RunId, query: RecordQuery) -> DbResult<Entries> {
    let room = Room { entries: query.limit.into(), bytes: i64::try_from(query.bytes).unwrap_or(i64::MAX) };
    let of = Place { run, space: &query.space, order: query.order };
    read_between(conn, of, &PageBounds::of(&query), room).await
}

/// Where records are read, and in which order.
#[derive(Clone, Copy)]
struct Place<'a> {
    run: RunId,
    space: &'a str,
    order: RecordOrder,
}

async fn read_between(
    conn: &mut SqliteConnection,
    of: Place<'_>,
    bounds: &PageBounds,
    room: Room,
) -> DbResult<Entries> {
    // One entry more than fits on the page, to find out whether there is another page.
    let rows = sqlx::query(AssertSqlSafe(page_sql(of.order)))
        .bind(of.run)
        .bind(of.space)
        .bind(&bounds.first)
        .bind(bounds.seq)
        .bind(&bounds.end)
        .bind(room.entries + 1)
        .bind(room.bytes)
        .fetch_all(conn)
        .await?;
    let entries = rows.iter().map(read_entry).collect::<DbResult<Vec<_>>>()?;
    Ok(Entries { found: entries.first().map_or(0, |entry| entry.found), entries })
}

/// Returns the keys of a page, each with the number of its last entry. There may be one more than the page holds.
pub(super) async fn read_keys(
    conn: &mut SqliteConnection,
    run: RunId,
    query: RecordQuery,
) -> DbResult<Vec<(String, i64)>> {
    let bounds = PageBounds::of(&query);
    let rows = sqlx::query(AssertSqlSafe(keys_sql(query.order)))
        .bind(run)
        .bind(&query.space)
        .bind(&bounds.first)
        .bind(bounds.seq)
        .bind(&bounds.end)
        .bind(i64::from(query.limit) + 1)
        .fetch_all(conn)
        .await?;
    rows.iter().map(|row| Ok((row.try_get("key")?, row.try_get("seq")?))).collect()
}

/// Returns the entries of these keys, key by key, until the page is full.
pub(super) async fn read_of(
    conn: &mut SqliteConnection,
    run: RunId,
    query: RecordKeysQuery,
) -> DbResult<Entries> {
    let of = Place { run, space: &query.space, order: RecordOrder::Asc };
    let mut room =
        Room { entries: query.limit.into(), bytes: i64::try_from(query.bytes).unwrap_or(i64::MAX) };
    let (mut page, mut after) = (Entries::default(), query.after);
    for key in &query.keys {
        let bounds = PageBounds::of_key(key, std::mem::take(&mut after));
        if room.entries > 0 && room.bytes > 0 {
            let mut next = read_between(conn, of, &bounds, room).await?;
            let is_cut = next.found > next.entries.len() as i64;
            next.entries.truncate(room.entries as usize);
            room.entries -= next.entries.len() as i64;
            room.bytes -= next.entries.iter().map(|entry| entry.size).sum::<i64>();
            page.found += next.found;
            page.entries.extend(next.entries);
            if is_cut {
                return Ok(page);
            }
        } else if has_value(conn, of, key).await? {
            page.found += 1;
            return Ok(page);
        }
    }
    Ok(page)
}

async fn has_value(conn: &mut SqliteConnection, of: Place<'_>, key: &str) -> DbResult<bool> {
    Ok(sqlx::query_scalar(HAS_VALUE).bind(of.run).bind(of.space).bind(key).fetch_one(conn).await?)
}

fn read_entry(row: &SqliteRow) -> DbResult<Entry> {
    Ok(Entry {
        key: row.try_get("key")?,
        seq: row.try_get("seq")?,
        entry_id: row.try_get("entry_id")?,
        value: row.try_get("value")?,
        turn: row.try_get("turn")?,
        size: row.try_get("size")?,
        found: row.try_get("found")?,
    })
}
