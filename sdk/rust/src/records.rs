//! Records: entries under keys, apart from the state. They can change in the middle of a turn and are read by key.

use std::collections::VecDeque;

use dalsegno_protocol::{Payload, Record, RecordOp, RecordsRequest, RecordsResponse};
use serde::Serialize;
use uuid::Uuid;

use crate::http::{CALL_TIMEOUT, percent_encode};
use crate::json::{raw, to_bytes};
use crate::{Commit, Result, Run};

/// Changes of records, in order. Either all of them take effect, or none does.
#[derive(Clone, Debug, Default)]
pub struct RecordChanges(Vec<RecordOp>);

impl RecordChanges {
    /// No changes yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Makes this the key's only entry.
    pub fn put(self, space: &str, key: &str, value: &impl Serialize) -> Result<Self> {
        let value = payload(value)?;
        Ok(self.push(RecordOp::Put { space: space.to_owned(), key: key.to_owned(), value }))
    }

    /// Makes this the key's only entry if the key has none, else changes nothing.
    pub fn put_if_absent(self, space: &str, key: &str, value: &impl Serialize) -> Result<Self> {
        let value = payload(value)?;
        Ok(self.push(RecordOp::PutIfAbsent { space: space.to_owned(), key: key.to_owned(), value }))
    }

    /// Appends an entry to a key, unless the key has an entry with this id.
    #[expect(clippy::too_many_arguments, reason = "four besides the changes")]
    pub fn append(self, space: &str, key: &str, entry_id: &str, value: &impl Serialize) -> Result<Self> {
        let (space, key, entry_id) = (space.to_owned(), key.to_owned(), entry_id.to_owned());
        let value = payload(value)?;
        Ok(self.push(RecordOp::Append { space, key, entry_id, value }))
    }

    /// Deletes all entries of the key.
    pub fn delete(self, space: &str, key: &str) -> Self {
        self.push(RecordOp::Delete { space: space.to_owned(), key: key.to_owned() })
    }

    fn push(mut self, operation: RecordOp) -> Self {
        self.0.push(operation);
        self
    }
}

impl Commit {
    /// Adds changes of records. They take effect together with the boundary.
    pub fn records(mut self, changes: RecordChanges) -> Self {
        self.push_records(changes);
        self
    }

    pub(crate) fn push_records(&mut self, changes: RecordChanges) {
        self.request.records.extend(changes.0);
    }
}

impl Run {
    /// Changes records. Returns when the changes are durable.
    pub fn write_records(&self, changes: RecordChanges) -> Result<()> {
        let body = to_bytes(&RecordsRequest { batch_id: Uuid::new_v4(), operations: changes.0 })?;
        self.client.send("records", Some(&body), CALL_TIMEOUT)?;
        Ok(())
    }

    /// The entries of a space under keys that begin with `prefix`, fetched page by page. Keys are ordered by their
    /// bytes, the entries of a key by the time they were added.
    pub fn records(&self, space: &str, prefix: &str) -> Records<'_> {
        Records {
            run: self,
            query: query(space, prefix),
            page: VecDeque::new(),
            next_query: Some(String::new()),
        }
    }

    /// The first of these entries.
    pub(crate) fn first_record(&self, space: &str, prefix: &str) -> Result<Option<Record>> {
        let path = format!("{}&limit=1", query(space, prefix));
        Ok(self.client.call::<RecordsResponse>(&path, None)?.records.into_iter().next())
    }
}

/// An iterator over entries, which fetches them page by page. It ends after an error.
pub struct Records<'a> {
    run: &'a Run,
    query: String,
    page: VecDeque<Record>,
    /// The end of the next page's query, or `None` after the last page.
    next_query: Option<String>,
}

impl Iterator for Records<'_> {
    type Item = Result<Record>;

    fn next(&mut self) -> Option<Self::Item> {
        while self.page.is_empty() {
            let after = self.next_query.take()?;
            match self.run.client.call::<RecordsResponse>(&format!("{}{after}", self.query), None) {
                Ok(answer) => {
                    self.page = answer.records.into();
                    self.next_query = answer.next.map(|next| format!("&after={}", percent_encode(&next)));
                }
                Err(error) => return Some(Err(error)),
            }
        }
        self.page.pop_front().map(Ok)
    }
}

fn query(space: &str, prefix: &str) -> String {
    format!("records?space={}&prefix={}", percent_encode(space), percent_encode(prefix))
}

fn payload(value: &impl Serialize) -> Result<Payload> {
    Ok(Payload::Json(raw("write a record as JSON", value)?))
}
