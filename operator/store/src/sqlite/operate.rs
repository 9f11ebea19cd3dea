//! What the operator records of attempts, and the ends it makes.

use sqlx::SqliteConnection;

use super::read::record;
use super::row::RunRow;
use crate::Recorded;
use crate::fault::Work;

pub(super) async fn done(conn: &mut SqliteConnection, now: i64, row: RunRow) -> Work<Recorded> {
    Ok(Recorded::Done(Box::new(record(conn, now, row).await?)))
}

pub(super) async fn refused(conn: &mut SqliteConnection, now: i64, row: RunRow) -> Work<Recorded> {
    Ok(Recorded::Refused(Box::new(record(conn, now, row).await?)))
}
