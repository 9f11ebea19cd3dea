//! The floor: a committed insert of one row with the driver that the store uses.

use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqliteSynchronous};
use sqlx::{ConnectOptions as _, PgConnection, SqliteConnection};

/// A table in a database of its own, with one connection.
pub enum Floor {
    Sqlite(SqliteConnection),
    Postgres(PgConnection),
}

impl Floor {
    /// A new SQLite file with the store's durability.
    pub async fn sqlite(file: &std::path::Path) -> Self {
        let mut conn = SqliteConnectOptions::new()
            .filename(file)
            .create_if_missing(true)
            .journal_mode(SqliteJournalMode::Wal)
            .synchronous(SqliteSynchronous::Full)
            .connect()
            .await
            .unwrap();
        let table = "CREATE TABLE floor (id INTEGER PRIMARY KEY, payload BLOB NOT NULL) STRICT";
        sqlx::query(table).execute(&mut conn).await.unwrap();
        // Writes are slow while the WAL grows. Fill it once, so that it is overwritten from now on, as in a store that
        // has run for a while.
        let fill = "INSERT INTO floor (payload) VALUES (zeroblob(6000000))";
        sqlx::query(fill).execute(&mut conn).await.unwrap();
        sqlx::query("DELETE FROM floor").execute(&mut conn).await.unwrap();
        Self::Sqlite(conn)
    }

    /// An empty PostgreSQL database.
    pub async fn postgres(url: &str) -> Self {
        let options: sqlx::postgres::PgConnectOptions = url.parse().unwrap();
        let mut conn = options.connect().await.unwrap();
        let table =
            "CREATE TABLE floor (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, payload bytea NOT NULL)";
        sqlx::query(table).execute(&mut conn).await.unwrap();
        // The payload is compressed already.
        let storage = "ALTER TABLE floor ALTER COLUMN payload SET STORAGE EXTERNAL";
        sqlx::query(storage).execute(&mut conn).await.unwrap();
        Self::Postgres(conn)
    }

    /// Inserts one row; returns once it is on disk.
    pub async fn insert(&mut self, payload: &[u8]) {
        match self {
            Self::Sqlite(conn) => {
                let insert = sqlx::query("INSERT INTO floor (payload) VALUES (?)").bind(payload);
                insert.execute(conn).await.unwrap();
            }
            Self::Postgres(conn) => {
                let insert = sqlx::query("INSERT INTO floor (payload) VALUES ($1)").bind(payload);
                insert.execute(conn).await.unwrap();
            }
        }
    }

    /// Bytes of all payloads.
    pub async fn kept(&mut self) -> usize {
        let sum = "SELECT sum(length(payload)) FROM floor";
        let bytes: i64 = match self {
            Self::Sqlite(conn) => sqlx::query_scalar(sum).fetch_one(conn).await.unwrap(),
            Self::Postgres(conn) => sqlx::query_scalar(sum).fetch_one(conn).await.unwrap(),
        };
        bytes as usize
    }
}
