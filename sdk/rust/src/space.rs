//! A space of a run's records: keys with entries, and blobs.

use std::marker::PhantomData;

use base64::prelude::{BASE64_STANDARD, Engine};
use dalsegno_protocol::{Code, Limits, Record};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::run::decode;
use crate::{Error, RecordChanges, RecordKeys, Records, Result, Run};

/// Bytes of a blob in one record: its base64, with both quotes, is below the 4 MiB that a record's value may have.
const CHUNK_BYTES: usize = (3 << 20) - 3;

/// Chunks in one batch, so that its body stays below the 16 MiB of a request.
const BATCH_CHUNKS: usize = 3;

/// The longest key of a blob: those of its chunks are longer by this suffix.
const BLOB_KEY_BYTES: usize = Limits::RECORD_NAME_BYTES - "/.chunk.0123456789abcdef.000000".len();

/// The records of one space: [`Run::space`] makes it. Each write is durable when it returns.
///
/// [`Run::write_records`] writes several changes together or not at all, and [`crate::Turn::records`] writes them with a
/// turn. A space needs no creation. A key, a space and an entry's id have at most 512 bytes and no control characters; the
/// key of a blob has at most 481 bytes, because those of its chunks are longer. A value has at most 4 MiB.
///
/// ```no_run
/// # fn main() -> dalsegno_sdk::Result<()> {
/// # let agent = dalsegno_sdk::Agent::<()>::attach()?;
/// # let bytes = [0; 8];
/// let notes = agent.run().space("notes");
/// notes.put("crane", &"winters in Spain")?; // durable when it returns
/// let note: Option<String> = notes.get("crane")?;
/// for item in notes.items::<String>("c") {
///     println!("{}", item?.key); // fetched page by page
/// }
/// notes.put_blob("map.png", &bytes)?; // any length; a reader sees the old bytes or the new ones
/// # Ok(())
/// # }
/// ```
///
/// # Errors
///
/// The gateway refuses each write with [`crate::Code::UnsettledCalls`] while a call of an earlier attempt has no outcome.
pub struct Space<'a> {
    run: &'a Run,
    name: String,
}

/// An entry of a space.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item<T> {
    /// Its key.
    pub key: String,
    /// Its value.
    pub value: T,
    /// The turn that was open when it was written.
    pub turn: i32,
    /// The id of an appended entry; `None` for one that was put.
    pub entry_id: Option<String>,
}

/// Entries, fetched page by page: [`Space::items`]. It ends after an error.
pub struct Items<'a, T> {
    records: Records<'a>,
    value: PhantomData<fn() -> T>,
}

impl<T> Items<'_, T> {
    /// The greatest key first, and of a key the latest entry: so a long thread is read from its end. To be called before
    /// the first entry is read.
    pub fn newest_first(self) -> Self {
        Self { records: self.records.newest_first(), value: PhantomData }
    }
}

impl<T: DeserializeOwned> Iterator for Items<'_, T> {
    type Item = Result<Item<T>>;

    fn next(&mut self) -> Option<Self::Item> {
        Some(self.records.next()?.and_then(item))
    }
}

/// Where a blob is. The Python package writes the same.
#[derive(PartialEq, Eq, Serialize, Deserialize)]
struct Pointer {
    sha256: String,
    chunks: usize,
    prefix: String,
}

/// What stands under the key of a blob.
#[derive(Serialize, Deserialize)]
struct Blob {
    #[serde(rename = "dalsegno.blob")]
    pointer: Pointer,
}

impl Run {
    /// The records of a space.
    pub fn space(&self, name: &str) -> Space<'_> {
        Space { run: self, name: name.to_owned() }
    }
}

impl<'a> Space<'a> {
    /// Makes the value the key's only entry.
    pub fn put(&self, key: &str, value: &impl Serialize) -> Result<()> {
        self.run.write_records(RecordChanges::new().put(&self.name, key, value)?)
    }

    /// Makes the value the key's only entry, if the key has none.
    pub fn put_if_absent(&self, key: &str, value: &impl Serialize) -> Result<()> {
        self.run.write_records(RecordChanges::new().put_if_absent(&self.name, key, value)?)
    }

    /// Adds an entry at the end of the key, unless the key has one with this id.
    pub fn append(&self, key: &str, entry_id: &str, value: &impl Serialize) -> Result<()> {
        self.run.write_records(RecordChanges::new().append(&self.name, key, entry_id, value)?)
    }

    /// Deletes all entries of the key, and the chunks of a blob.
    pub fn delete(&self, key: &str) -> Result<()> {
        let (name, prefix) = (&self.name, chunk_prefix(key));
        let changes = RecordChanges::new().delete(name, key);
        if key.len() > BLOB_KEY_BYTES {
            return self.run.write_records(changes);
        }
        let all = changes.clone().delete_prefix(name, &prefix);
        if self.run.has_changes(&all) {
            return self.run.write_records(all);
        }
        let chunks = self.run.records(name, &prefix).map(|record| Ok(record?.key));
        let chunks = chunks.collect::<Result<Vec<_>>>()?;
        self.delete_after(changes, chunks)
    }

    /// Deletes all entries of all keys that begin with `prefix`, which is not empty, in one request.
    ///
    /// If more than 10,000 keys hold something, it reads the keys and deletes them in batches of 1,000: a crash may then
    /// leave some of them.
    pub fn delete_prefix(&self, prefix: &str) -> Result<()> {
        match self.run.write_records(RecordChanges::new().delete_prefix(&self.name, prefix)) {
            Err(Error::Refused { problem, .. }) if problem.code == Code::TooLarge => {
                let keys = self.keys(prefix).collect::<Result<Vec<_>>>()?;
                self.delete_after(RecordChanges::new(), keys)
            }
            written => written,
        }
    }

    /// The keys that begin with `prefix` and have entries, in the order of bytes, without their values.
    pub fn keys(&self, prefix: &str) -> RecordKeys<'a> {
        self.run.record_keys(&self.name, prefix)
    }

    /// The entries of these keys, in the order of the keys and within a key as they were added. A key without entries is
    /// left out. One request reads up to 1,000 keys.
    pub fn get_many<T: DeserializeOwned>(&self, keys: &[&str]) -> Result<Vec<Item<T>>> {
        self.run.records_of(&self.name, keys)?.into_iter().map(item).collect()
    }

    /// The entries under keys that begin with `prefix`: by key, in the order of bytes, and then as they were added.
    pub fn items<T: DeserializeOwned>(&self, prefix: &str) -> Items<'a, T> {
        Items { records: self.run.records(&self.name, prefix), value: PhantomData }
    }

    /// The value of the key's first entry; `None` if it has none.
    pub fn get<T: DeserializeOwned>(&self, key: &str) -> Result<Option<T>> {
        // The key itself is sorted before what begins with it.
        let first = self.run.first_record(&self.name, key)?.filter(|record| record.key == key);
        first.map(|record| decode(&record.value)).transpose()
    }

    /// Stores bytes of any length under the key.
    ///
    /// They are cut into chunks of 3 MiB under keys that begin with the key and a slash. What points to them is written
    /// last, so a reader sees the old bytes or the new ones. Writing the same bytes again costs a read.
    ///
    /// # Errors
    ///
    /// [`Error::BlobKeyTooLong`] for a key above 481 bytes.
    pub fn put_blob(&self, key: &str, content: &[u8]) -> Result<()> {
        if key.len() > BLOB_KEY_BYTES {
            return Err(Error::BlobKeyTooLong);
        }
        let sha256 = hex(content);
        let old = self.pointer(key)?;
        if old.as_ref().is_some_and(|old| old.sha256 == sha256) {
            return Ok(());
        }
        let prefix = format!("{}{}.", chunk_prefix(key), &sha256[..16]);
        let chunks: Vec<_> = content.chunks(CHUNK_BYTES).collect();
        for (batch, first) in chunks.chunks(BATCH_CHUNKS).zip((0..).step_by(BATCH_CHUNKS)) {
            let mut changes = RecordChanges::new();
            for (chunk, number) in batch.iter().zip(first..) {
                let value = BASE64_STANDARD.encode(chunk);
                changes = changes.put(&self.name, &chunk_key(&prefix, number), &value)?;
            }
            self.run.write_records(changes)?;
        }
        let blob = Blob { pointer: Pointer { sha256, chunks: chunks.len(), prefix } };
        let pointer = RecordChanges::new().put(&self.name, key, &blob)?;
        let Some(old) = old else { return self.run.write_records(pointer) };
        let all = pointer.clone().delete_prefix(&self.name, &old.prefix);
        if self.run.has_changes(&all) {
            return self.run.write_records(all);
        }
        self.delete_after(pointer, (0..old.chunks).map(|number| chunk_key(&old.prefix, number)))
    }

    /// The bytes under the key; `None` if it has no blob.
    ///
    /// # Errors
    ///
    /// [`Error::BlobChanged`] if the chunks are not what was stored: another process has written the blob meanwhile.
    pub fn blob(&self, key: &str) -> Result<Option<Vec<u8>>> {
        let Some(pointer) = self.pointer(key)? else { return Ok(None) };
        let mut content = Vec::new();
        for item in self.items::<String>(&pointer.prefix) {
            let chunk = BASE64_STANDARD.decode(item?.value).map_err(|_| Error::BlobChanged)?;
            content.extend(chunk);
        }
        if hex(&content) == pointer.sha256 { Ok(Some(content)) } else { Err(Error::BlobChanged) }
    }

    fn pointer(&self, key: &str) -> Result<Option<Pointer>> {
        let value: Option<serde_json::Value> = self.get(key)?;
        Ok(value.and_then(|value| Some(Blob::deserialize(value).ok()?.pointer)))
    }

    /// Makes the changes, and then deletes these keys, in as few batches as it takes.
    fn delete_after(&self, changes: RecordChanges, keys: impl IntoIterator<Item = String>) -> Result<()> {
        let all = keys.into_iter().fold(changes, |changes, key| changes.delete(&self.name, &key));
        all.batches().try_for_each(|batch| self.run.write_records(batch))
    }
}

fn item<T: DeserializeOwned>(record: Record) -> Result<Item<T>> {
    let value = decode(&record.value)?;
    let Record { key, entry_id, turn, .. } = record;
    Ok(Item { key, value, turn, entry_id })
}

fn chunk_prefix(key: &str) -> String {
    format!("{key}/.chunk.")
}

fn chunk_key(prefix: &str, number: usize) -> String {
    format!("{prefix}{number:06}")
}

fn hex(content: &[u8]) -> String {
    Sha256::digest(content).iter().map(|byte| format!("{byte:02x}")).collect()
}
