//! Reads the audit of one run, and explains its rows to a user.

use anyhow::Context as _;
use dalsegno_model::read_transaction::AuditKey;
use dalsegno_model::{AuditRow, RunId, Store};
use jiff::Timestamp;
use serde_json::Value;

/// All rows of a run's audit, the oldest first.
///
/// # Errors
///
/// The store is unavailable.
pub async fn read_audit(store: &dyn Store, run: RunId) -> anyhow::Result<Vec<AuditRow>> {
    let mut reading = store.begin_read().await.context("starting to read")?;
    let (mut after, mut rows) = (AuditKey::before(run), Vec::new());
    loop {
        let page = reading.audit(after, run).await.context("reading the audit")?;
        let Some((_, last)) = page.last() else { return Ok(rows) };
        after.seq = last.seq;
        rows.extend(page.into_iter().map(|(_, row)| row));
    }
}

/// Who did what an audit row records, and why.
pub struct Explanation {
    /// When.
    pub at: Timestamp,
    /// Who: the operator, the worker or a person. If the operator carried out a request, also the user who wrote it,
    /// or the field manager of the client if the user is not proven.
    pub actor: String,
    /// The call, if the row is about one.
    pub call: Option<String>,
    /// The outcome or the cause, and the reason that was given; empty if the row names none of these.
    pub text: String,
}

impl Explanation {
    /// Explains a row. A detail that is not the JSON of this program is ignored.
    pub fn of(row: &AuditRow) -> Self {
        let detail: Value = serde_json::from_str(&row.detail).unwrap_or_default();
        let word = |name: &str| detail[name].as_str().filter(|word| !word.is_empty()).map(str::to_owned);
        let actor = match word("user").or_else(|| word("manager")) {
            Some(by) => format!("{} for {by}", row.actor),
            None => row.actor.clone(),
        };
        // A message may repeat what a reason says; it only stands alone.
        let why = word("reason").or_else(|| word("message"));
        let text = [word("outcome"), word("cause"), why].into_iter().flatten().collect::<Vec<_>>().join(": ");
        let call = word("call");
        Self { at: row.at, actor, call, text }
    }
}
