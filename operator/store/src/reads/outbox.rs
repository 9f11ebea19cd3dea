//! The notifications of the outbox that are due.

use dalsegno_model::{
    DueNotifications, Notification, NotificationDetail, NotificationKind, ObjectName, RunId,
};

use super::{Column, Columns};
use crate::db_error::{DbError, DbResult, timestamp};

/// SQL that finds them, the same for both databases. `$1`: most of them. `now`: the store's clock in SQL. There is always a
/// row, because of the store's columns. A kind that only a later version knows is left to that version.
pub(crate) fn due_notifications_sql(now: &str) -> String {
    let kinds = NotificationKind::ALL.iter().map(|kind| format!("'{kind}'")).collect::<Vec<_>>().join(", ");
    format!(
        "SELECT {now} AS now, s.id AS store_id, o.id, o.run, o.kind, o.detail, o.created_at, o.tries, \
         r.namespace, r.name, r.object_uid, \
         (SELECT count(*) FROM outbox) AS waiting, (SELECT min(created_at) FROM outbox) AS oldest \
         FROM store s \
         LEFT JOIN (SELECT id, run, kind, detail, created_at, next_try_at, tries FROM outbox WHERE next_try_at <= {now} AND kind IN ({kinds}) \
             ORDER BY next_try_at LIMIT $1) AS o ON true \
         LEFT JOIN runs r ON r.id = o.run \
         ORDER BY o.next_try_at"
    )
}

/// The result of [`due_notifications_sql`].
pub(crate) fn due_notifications<R: Columns>(rows: &[R]) -> DbResult<DueNotifications> {
    let first =
        rows.first().ok_or_else(|| DbError::Corrupt("the store has no row in its own table".into()))?;
    Ok(DueNotifications {
        store_id: Column::read(first, "store_id")?,
        now: timestamp(Column::read(first, "now")?)?,
        waiting: Column::read(first, "waiting")?,
        oldest: first.integer("oldest")?.map(timestamp).transpose()?,
        due: rows.iter().filter_map(|row| notification(row).transpose()).collect::<DbResult<_>>()?,
    })
}

/// A notification; `None` if the row has only the store's columns.
fn notification(row: &impl Columns) -> DbResult<Option<Notification>> {
    let Some(id) = row.uuid("id")? else { return Ok(None) };
    let kind: String = Column::read(row, "kind")?;
    let detail: String = Column::read(row, "detail")?;
    let invalid = |error: String| DbError::Corrupt(format!("notification {id}: {error}"));
    let detail: NotificationDetail =
        serde_json::from_str(&detail).map_err(|error| invalid(error.to_string()))?;
    let object = match &detail.object {
        Some(object) => object.clone(),
        None => ObjectName {
            namespace: row.text("namespace")?.unwrap_or_default(),
            name: row.text("name")?.unwrap_or_default(),
            uid: row.text("object_uid")?.unwrap_or_default(),
        },
    };
    let run: RunId = Column::read(row, "run")?;
    Ok(Some(Notification {
        id,
        run: Some(run).filter(|run| !run.is_nil()),
        namespace: object.namespace,
        name: object.name,
        object_uid: object.uid,
        kind: kind.parse().map_err(|error: dalsegno_model::UnknownVariant| invalid(error.to_string()))?,
        detail,
        created_at: timestamp(Column::read(row, "created_at")?)?,
        tries: Column::read(row, "tries")?,
    }))
}
