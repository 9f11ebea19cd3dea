//! `dalsegno audit show`: prints what was done to a run, by whom, and why.

use dalsegno_model::AuditRow;
use serde_json::{Value, json};

use super::audit_rows::{Explanation, read_audit};
use super::runs::{find_last, utc};
use crate::config::{OutputFormat, ShowAuditArgs};
use crate::output::print_line;

/// Prints the audit of a run.
///
/// # Errors
///
/// There is no such run, or the store is unavailable.
pub async fn run(args: ShowAuditArgs) -> anyhow::Result<()> {
    let ShowAuditArgs { store, run, output } = args;
    let store = store.open_read_only().await?;
    let run = find_last(store.as_ref(), &run).await?;
    for row in read_audit(store.as_ref(), run.id).await? {
        match output {
            OutputFormat::Table => print_row(&row),
            OutputFormat::Json => print_json(&row),
        }
    }
    Ok(())
}

fn print_row(row: &AuditRow) {
    let Explanation { at, actor, call, text } = Explanation::of(row);
    let parts = [call.map(|call| format!("call {call}")), Some(text).filter(|it| !it.is_empty())];
    // A worker may have written the text: a line break in it would look like a row of its own.
    let text = parts.into_iter().flatten().collect::<Vec<_>>().join(": ").replace(['\n', '\r'], " ");
    print_line!("{}", format!("{}  {:<17} {actor:<10} {text}", utc(at), row.kind).trim_end());
}

fn print_json(row: &AuditRow) {
    let AuditRow { seq, at, kind, actor, detail, parent_hash: _, hash: _ } = row;
    let detail = serde_json::from_str(detail).unwrap_or_else(|_| Value::from(detail.as_str()));
    print_line!("{}", json!({ "seq": seq, "at": at, "kind": kind, "actor": actor, "detail": detail }));
}
