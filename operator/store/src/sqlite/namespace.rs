//! The statements that give a re-created namespace the runs of its predecessor, one page after the other.

use std::sync::LazyLock;

use sqlx::{AssertSqlSafe, SqliteConnection};

use super::audit::append;
use super::database::Sqlite;
use super::row::RunRow;
use crate::db_error::DbResult;
use crate::pages::PAGE_ROWS;
use crate::transitions::AuditEvent;
use dalsegno_model::audit::kind;
use dalsegno_model::read_transaction::EVERY_RUN;
use dalsegno_model::{NamespaceAdoption, Result, RunId};

static PAGE: LazyLock<String> = LazyLock::new(|| {
    let run = RunRow::columns_of("runs");
    format!("SELECT {run} FROM runs WHERE tenant = ? AND id < ? ORDER BY id DESC LIMIT ?")
});

impl Sqlite {
    /// Moves all runs, page by page. Returns how many.
    pub(super) async fn adopt_pages(&self, adoption: &NamespaceAdoption) -> Result<u64> {
        if adoption.from == adoption.to {
            return Ok(0);
        }
        let (mut before, mut moved) = (EVERY_RUN, 0);
        loop {
            let adoption = adoption.clone();
            let page = self.write("adopting a namespace", move |conn, now| {
                Box::pin(adopt_page(conn, now, adoption, before))
            });
            let page = page.await?;
            moved += page.moved;
            let Some(last) = page.last else { return Ok(moved) };
            before = last;
        }
    }
}

/// What a page has moved.
#[derive(Clone, Copy, Debug, Default)]
struct AdoptedPage {
    /// The number of its runs.
    moved: u64,
    /// The last of them; `None`: there was none left.
    last: Option<RunId>,
}

/// Moves a page of runs, those before `before`, the last id first.
async fn adopt_page(
    conn: &mut SqliteConnection,
    now: i64,
    adoption: NamespaceAdoption,
    before: RunId,
) -> DbResult<AdoptedPage> {
    let NamespaceAdoption { from, to, actor, reason } = adoption;
    let query = sqlx::query(AssertSqlSafe(PAGE.as_str())).bind(&from).bind(before).bind(PAGE_ROWS);
    let rows = query.fetch_all(&mut *conn).await?;
    let mut page = AdoptedPage::default();
    for row in &rows {
        let mut row = RunRow::read(row)?;
        sqlx::query("UPDATE runs SET tenant = ? WHERE id = ?")
            .bind(&to)
            .bind(row.id)
            .execute(&mut *conn)
            .await?;
        let detail = serde_json::json!({ "from": from, "to": to, "reason": reason });
        append(conn, &mut row, now, AuditEvent { kind: kind::NAMESPACE_ADOPTED, actor: &actor, detail })
            .await?;
        row.save(conn).await?;
        page = AdoptedPage { moved: page.moved + 1, last: Some(row.id) };
    }
    Ok(page)
}
