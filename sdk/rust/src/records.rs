//! Records: entries under keys, apart from the state. They can change in the middle of a turn and are read by key.

use std::collections::VecDeque;

use dalsegno_protocol::{
    Limits, Payload, ReadRecordsRequest, Record, RecordKey, RecordKeysResponse, RecordOp, RecordsRequest,
    RecordsResponse,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
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

    /// Deletes all entries of all keys that start with this prefix, which is not empty. It takes effect in its place among
    /// the changes: what a later change writes under the prefix stays.
    pub fn delete_prefix(self, space: &str, prefix: &str) -> Self {
        self.push(RecordOp::DeletePrefix { space: space.to_owned(), prefix: prefix.to_owned() })
    }

    /// The same changes, in their order, as batches that a gateway takes.
    pub(crate) fn batches(&self) -> impl Iterator<Item = Self> {
        self.0.chunks(Limits::RECORDS).map(|batch| Self(batch.to_vec()))
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
        self.client.await_contract("records", RecordOp::contract_of(&changes.0))?;
        let body = to_bytes(&RecordsRequest { batch_id: Uuid::new_v4(), operations: changes.0 })?;
        self.client.send("records", Some(&body), CALL_TIMEOUT)?;
        Ok(())
    }

    /// Whether every gateway has all of these changes.
    pub(crate) fn has_changes(&self, changes: &RecordChanges) -> bool {
        self.client.has_contract(RecordOp::contract_of(&changes.0))
    }

    /// The entries of a space under keys that begin with `prefix`, fetched page by page. Keys are ordered by their
    /// bytes, the entries of a key by the time they were added; [`Records::newest_first`] reverses both.
    pub fn records(&self, space: &str, prefix: &str) -> Records<'_> {
        Records(Pages::new(self, space, prefix))
    }

    /// The first of these entries.
    pub(crate) fn first_record(&self, space: &str, prefix: &str) -> Result<Option<Record>> {
        let path = format!("{}&limit=1", query(space, prefix));
        Ok(self.client.call::<RecordsResponse>(&path, None)?.records.into_iter().next())
    }

    /// The keys of a space that begin with `prefix` and have entries, each once, fetched page by page without their
    /// values.
    pub fn record_keys(&self, space: &str, prefix: &str) -> RecordKeys<'_> {
        let mut pages = Pages::new(self, space, prefix);
        pages.query += "&keysOnly=true";
        RecordKeys(pages)
    }

    /// The entries of these keys, in the order of the keys and within a key in the order in which they were added. A key
    /// without entries is left out. One request reads up to 1,000 keys.
    ///
    /// # Errors
    ///
    /// A key occurs twice within 1,000 keys, or is no key.
    pub fn records_of(&self, space: &str, keys: &[&str]) -> Result<Vec<Record>> {
        let mut records = Vec::new();
        for keys in keys.chunks(Limits::RECORDS) {
            let keys = keys.iter().map(|&key| key.to_owned()).collect();
            let mut request = ReadRecordsRequest { space: space.to_owned(), keys, after: None };
            loop {
                let page: RecordsResponse = self.client.call("records/read", Some(&to_bytes(&request)?))?;
                records.extend(page.records);
                request.after = page.next;
                if request.after.is_none() {
                    break;
                }
            }
        }
        Ok(records)
    }
}

/// An iterator over entries, which fetches them page by page. It ends after an error.
pub struct Records<'a>(Pages<'a, Record>);

impl Records<'_> {
    /// The greatest key first, and of a key the latest entry: so a long thread is read from its end. To be called before
    /// the first entry is read.
    pub fn newest_first(mut self) -> Self {
        self.0.order = "&order=desc";
        self
    }
}

impl Iterator for Records<'_> {
    type Item = Result<Record>;

    fn next(&mut self) -> Option<Self::Item> {
        self.0.next(|answer: RecordsResponse| (answer.records, answer.next))
    }
}

/// An iterator over keys, which fetches them page by page. It ends after an error.
pub struct RecordKeys<'a>(Pages<'a, RecordKey>);

impl RecordKeys<'_> {
    /// The greatest key first. To be called before the first key is read.
    pub fn greatest_first(mut self) -> Self {
        self.0.order = "&order=desc";
        self
    }
}

impl Iterator for RecordKeys<'_> {
    type Item = Result<String>;

    fn next(&mut self) -> Option<Self::Item> {
        let next = self.0.next(|answer: RecordKeysResponse| (answer.records, answer.next))?;
        Some(next.map(|it| it.key))
    }
}

/// Pages of entries or keys.
struct Pages<'a, T> {
    run: &'a Run,
    query: String,
    order: &'static str,
    page: VecDeque<T>,
    /// The end of the next page's query, or `None` after the last page.
    next_query: Option<String>,
}

impl<'a, T> Pages<'a, T> {
    fn new(run: &'a Run, space: &str, prefix: &str) -> Self {
        let (query, page) = (query(space, prefix), VecDeque::new());
        Self { run, query, order: "", page, next_query: Some(String::new()) }
    }

    fn next<A: DeserializeOwned>(
        &mut self,
        parts: impl Fn(A) -> (Vec<T>, Option<String>),
    ) -> Option<Result<T>> {
        while self.page.is_empty() {
            let after = self.next_query.take()?;
            let path = format!("{}{}{after}", self.query, self.order);
            match self.run.client.call(&path, None).map(&parts) {
                Ok((page, next)) => {
                    self.page = page.into();
                    self.next_query = next.map(|next| format!("&after={}", percent_encode(&next)));
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
