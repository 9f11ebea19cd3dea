//! The audit of a run, as people read it: `GET audit`.

use serde::{Deserialize, Serialize};

/// The answer to `GET audit`.
#[derive(Debug, Serialize, Deserialize)]
pub struct AuditResponse {
    /// A page of rows, in order.
    pub rows: Vec<AuditEntry>,
    /// `after` for the next page; absent if the page is empty, which is the end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<i64>,
}

/// A row of the audit: who changed what. `docs/reference/audit.md` lists the kinds.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AuditEntry {
    /// Its number: 1, 2, 3 …
    pub seq: i64,
    /// When, by the store's clock: RFC 3339, UTC.
    pub at: String,
    /// What happened.
    pub kind: String,
    /// `operator`, `worker`, or the name of a person.
    pub actor: String,
    /// The details, as the JSON text that the hash covers.
    pub detail: String,
    /// Hash of the row before, `sha256:…`.
    pub parent_hash: String,
    /// Hash of the row, `sha256:…`.
    pub hash: String,
}
