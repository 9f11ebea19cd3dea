//! The bytes that each table takes in a database, and the figures made from them.

use std::collections::BTreeMap;
use std::ops::Sub;

use sqlx::{Connection as _, Executor as _, PgConnection, Row as _, SqliteConnection};

/// The bytes of one table.
#[derive(Clone, Copy, Debug, Default)]
pub struct Bytes {
    /// Its rows, and in PostgreSQL its large values (TOAST).
    pub rows: i64,
    pub indexes: i64,
}

impl Bytes {
    pub fn total(self) -> i64 {
        self.rows + self.indexes
    }
}

/// The bytes of all tables, and of the write-ahead log that was written so far (PostgreSQL only).
#[derive(Clone, Debug, Default)]
pub struct Sizes {
    pub tables: BTreeMap<String, Bytes>,
    pub log: i64,
}

impl Sizes {
    /// The bytes of these tables.
    pub fn of(&self, tables: &[&str]) -> i64 {
        tables.iter().filter_map(|table| self.tables.get(*table)).map(|bytes| bytes.total()).sum()
    }

    /// The bytes of all tables.
    pub fn total(&self) -> i64 {
        self.tables.values().map(|bytes| bytes.total()).sum()
    }

    /// The bytes of all indexes.
    pub fn indexes(&self) -> i64 {
        self.tables.values().map(|bytes| bytes.indexes).sum()
    }
}

impl Sub for &Sizes {
    type Output = Sizes;

    fn sub(self, before: Self) -> Sizes {
        let minus = |(table, after): (&String, &Bytes)| {
            let before = before.tables.get(table).copied().unwrap_or_default();
            (table.clone(), Bytes { rows: after.rows - before.rows, indexes: after.indexes - before.indexes })
        };
        Sizes { tables: self.tables.iter().map(minus).collect(), log: self.log - before.log }
    }
}

/// The sizes of the tables of a database at this URL.
pub async fn sizes(url: &str) -> Sizes {
    if url.starts_with("postgres") { of_postgres(url).await } else { of_sqlite(url).await }
}

async fn of_postgres(url: &str) -> Sizes {
    let mut conn = PgConnection::connect(url).await.unwrap();
    let tables = "SELECT relname::text AS name, pg_table_size(oid) AS rows, pg_indexes_size(oid) AS indexes \
         FROM pg_class WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace";
    let rows = sqlx::query(tables).fetch_all(&mut conn).await.unwrap();
    let tables = rows.iter().map(|row| {
        let bytes = Bytes { rows: row.get("rows"), indexes: row.get("indexes") };
        (row.get("name"), bytes)
    });
    let log = sqlx::query_scalar("SELECT pg_wal_lsn_diff(pg_current_wal_lsn(), '0/0')::bigint");
    Sizes { tables: tables.collect(), log: log.fetch_one(&mut conn).await.unwrap() }
}

/// Pages in use: free pages of the file do not count.
async fn of_sqlite(url: &str) -> Sizes {
    let mut conn = SqliteConnection::connect(url).await.unwrap();
    let tables = "SELECT s.tbl_name AS name, sum(CASE s.type WHEN 'table' THEN d.bytes ELSE 0 END) AS rows, \
                sum(CASE s.type WHEN 'index' THEN d.bytes ELSE 0 END) AS indexes \
         FROM (SELECT name, sum(pgsize) AS bytes FROM dbstat GROUP BY name) AS d \
         JOIN sqlite_schema AS s ON s.name = d.name GROUP BY s.tbl_name";
    let rows = sqlx::query(tables).fetch_all(&mut conn).await.unwrap();
    let tables = rows.iter().map(|row| {
        let bytes = Bytes { rows: row.get("rows"), indexes: row.get("indexes") };
        (row.get("name"), bytes)
    });
    Sizes { tables: tables.collect(), log: 0 }
}

/// Gives pages without rows back, so that [`sizes`] returns what the rows that are left need.
pub async fn give_back(url: &str) {
    if url.starts_with("postgres") {
        PgConnection::connect(url).await.unwrap().execute("VACUUM FULL").await.unwrap();
    } else {
        SqliteConnection::connect(url).await.unwrap().execute("VACUUM").await.unwrap();
    }
}
