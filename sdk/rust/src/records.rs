//! Records: entries under keys, beside the state. They need no turn to be over, and are read key by key.

use std::collections::VecDeque;

use dalsegno_protocol::{Payload, Record, RecordOp, RecordsRequest, RecordsResponse};
use serde::Serialize;
use uuid::Uuid;

use crate::http::{CALL, encoded};
use crate::json::{raw, to_bytes};
use crate::{Commit, Result, Run};

/// Changes of records, in order: all of them take effect, or none does.
#[derive(Clone, Debug, Default)]
pub struct Changes(Vec<RecordOp>);

impl Changes {
    /// None yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// The key holds this one entry, whatever it held.
    pub fn put(self, space: &str, key: &str, value: &impl Serialize) -> Result<Self> {
        let value = entry(value)?;
        Ok(self.and(RecordOp::Put { space: space.to_owned(), key: key.to_owned(), value }))
    }

    /// The same, where the key holds nothing; else nothing happens.
    pub fn put_if_absent(self, space: &str, key: &str, value: &impl Serialize) -> Result<Self> {
        let value = entry(value)?;
        Ok(self.and(RecordOp::PutIfAbsent { space: space.to_owned(), key: key.to_owned(), value }))
    }

    /// One entry more at the end of a key, unless it holds one of this id.
    pub fn append(self, space: &str, key: &str, entry_id: &str, value: &impl Serialize) -> Result<Self> {
        let (space, key, entry_id) = (space.to_owned(), key.to_owned(), entry_id.to_owned());
        let value = entry(value)?;
        Ok(self.and(RecordOp::Append { space, key, entry_id, value }))
    }

    /// The key holds nothing.
    pub fn delete(self, space: &str, key: &str) -> Self {
        self.and(RecordOp::Delete { space: space.to_owned(), key: key.to_owned() })
    }

    fn and(mut self, operation: RecordOp) -> Self {
        self.0.push(operation);
        self
    }
}

impl Commit {
    /// Records that change with the boundary, if it is committed.
    pub fn records(mut self, changes: Changes) -> Self {
        self.request.records.extend(changes.0);
        self
    }
}

impl Run {
    /// Changes records; returns once that is durable.
    pub fn write_records(&self, changes: Changes) -> Result<()> {
        let body = to_bytes(&RecordsRequest { batch_id: Uuid::new_v4(), operations: changes.0 })?;
        self.client.send("records", Some(&body), CALL)?;
        Ok(())
    }

    /// The entries of a space under keys that begin with `prefix`, in the order of the keys' bytes, those of a key as they
    /// were added; fetched page by page.
    pub fn records(&self, space: &str, prefix: &str) -> Records<'_> {
        let query = format!("records?space={}&prefix={}", encoded(space), encoded(prefix));
        Records { run: self, query, page: VecDeque::new(), next: Some(String::new()) }
    }
}

/// Entries, page by page. After an error it ends.
pub struct Records<'a> {
    run: &'a Run,
    query: String,
    page: VecDeque<Record>,
    /// What the next page is asked for with; `None`: this one was the last.
    next: Option<String>,
}

impl Iterator for Records<'_> {
    type Item = Result<Record>;

    fn next(&mut self) -> Option<Self::Item> {
        while self.page.is_empty() {
            let after = self.next.take()?;
            match self.run.client.call::<RecordsResponse>(&format!("{}{after}", self.query), None) {
                Ok(answer) => {
                    self.page = answer.records.into();
                    self.next = answer.next.map(|next| format!("&after={}", encoded(&next)));
                }
                Err(error) => return Some(Err(error)),
            }
        }
        self.page.pop_front().map(Ok)
    }
}

fn entry(value: &impl Serialize) -> Result<Payload> {
    Ok(Payload::Json(raw("write a record as JSON", value)?))
}
