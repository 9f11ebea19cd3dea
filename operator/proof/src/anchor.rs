//! Anchors: chained and signed records of where runs were. A copy of their lines that is stored outside of the
//! database proves what the rows alone cannot: that nobody has cut the end of a chain, removed a run, or rebuilt a
//! chain.
//!
//! # Format, version 2
//!
//! An anchor names the runs that have moved since the anchors before it: these are its leaves, which only the store
//! has. With `f(x)` and integers as in [`dalsegno_format::header`], and the Merkle root of `merkle.rs`:
//!
//! ```text
//! hash = SHA-256 of f("dalsegno/anchor/v2") f(parent hash, 32 bytes) f(store, 16 bytes) f(seq, i64) f(at, i64)
//!        f(first, i64) f(number of leaves, u32) f(root, 32 bytes)
//! signed = SHA-256 of f("dalsegno/anchor-line/v2") f(store) f(seq) f(at) f(first) f(hash)
//! ```
//!
//! Its line is JSON of at most [`AnchorLine::MAX_BYTES`] bytes, whatever the number of leaves. It has all fields of
//! `signed`, and the Ed25519 signature of that hash. `first` announces which anchor is the first that the store keeps:
//! earlier ones may be deleted. Because each hash includes the hash before, one line outside of the store vouches for
//! all anchors up to it.

use dalsegno_format::fields::FramedHasher;
use dalsegno_format::header::NO_PARENT;
use dalsegno_model::anchor::{AnchorRow, HeadsToAnchor, NewAnchor};
use dalsegno_model::{Digest, Error, Result};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::encoding::Unpadded;
use crate::merkle::MerkleRoot;
use crate::signing::{PublicKey, Signer, is_signed};

/// First field of an anchor's hash.
const TAG: &[u8] = b"dalsegno/anchor/v2";
/// First field of the hash that is signed.
const LINE_TAG: &[u8] = b"dalsegno/anchor-line/v2";
/// The version of the format.
const VERSION: u32 = 2;

/// The start of every anchor's line. In any other line of a log these bytes are part of a string, and their quotes
/// are escaped.
const BEGINNING: &str = "{\"anchor\":{";

/// What is signed of an anchor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct AnchorLine {
    version: u32,
    store: Uuid,
    seq: i64,
    at: i64,
    first: i64,
    hash: Unpadded<32>,
    signature: Unpadded<64>,
}

/// The JSON of a line.
#[derive(Serialize, Deserialize)]
struct Line<A> {
    anchor: A,
}

impl AnchorLine {
    /// The longest line, without its line break.
    pub const MAX_BYTES: usize = 300;

    /// Finds the anchor at the end of a log line, also if a log collector has put a prefix before it. `None` if there
    /// is no anchor.
    ///
    /// # Errors
    ///
    /// As for [`AnchorLine::parse`].
    pub fn find(line: &str) -> Option<std::result::Result<Self, String>> {
        Self::parse(&line[line.find(BEGINNING)?..])
    }

    /// Parses a line that is an anchor. `None` if the line is something else. Its signature is not checked.
    ///
    /// # Errors
    ///
    /// The line is an anchor, but not a valid one.
    pub fn parse(line: &str) -> Option<std::result::Result<Self, String>> {
        line.starts_with(BEGINNING).then(|| {
            let Line { anchor } = serde_json::from_str::<Line<Self>>(line)
                .map_err(|error| format!("it cannot be read: {error}"))?;
            if anchor.version != VERSION {
                return Err(format!("it is of version {}, and this program reads {VERSION}", anchor.version));
            }
            let Self { seq, first, .. } = anchor;
            if !(1..=seq).contains(&first) {
                return Err(format!(
                    "anchor {seq} cannot announce {first} as the first that the store keeps"
                ));
            }
            Ok(anchor)
        })
    }

    /// The line as JSON.
    pub fn text(&self) -> Result<String> {
        serde_json::to_string(&Line { anchor: self })
            .map_err(|error| Error::Corrupt { operation: "writing an anchor", detail: error.to_string() })
    }

    /// The anchor's number; the first is 1.
    pub fn seq(&self) -> i64 {
        self.seq
    }

    /// When the anchor was created, in milliseconds since 1970.
    pub fn at(&self) -> i64 {
        self.at
    }

    /// Number of the first anchor that the store keeps, as this one announces it.
    pub fn first(&self) -> i64 {
        self.first
    }

    /// The anchor's hash.
    pub fn hash(&self) -> Digest {
        self.hash.0
    }

    /// Whether this key has signed the line.
    pub fn is_signed_by(&self, key: &PublicKey) -> bool {
        is_signed(key, &self.signed(), &self.signature.0)
    }

    /// Whether the row has the content that this line proves: what is chained, and the root over its leaves.
    pub fn proves(&self, row: &AnchorRow) -> bool {
        self.seq == row.seq && self.hash.0 == self.hash_with(row)
    }

    fn hash_with(&self, row: &AnchorRow) -> Digest {
        let mut hash = FramedHasher::new(TAG);
        hash.field(&row.parent_hash);
        hash.field(self.store.as_bytes());
        hash.field(&self.seq.to_be_bytes());
        hash.field(&self.at.to_be_bytes());
        hash.field(&self.first.to_be_bytes());
        hash.field(&row.leaves.to_be_bytes());
        hash.field(&row.root);
        hash.finish()
    }

    fn signed(&self) -> Digest {
        let mut hash = FramedHasher::new(LINE_TAG);
        hash.field(self.store.as_bytes());
        hash.field(&self.seq.to_be_bytes());
        hash.field(&self.at.to_be_bytes());
        hash.field(&self.first.to_be_bytes());
        hash.field(&self.hash.0);
        hash.finish()
    }
}

/// An anchor that was just created.
#[derive(Clone, Debug)]
pub struct Anchor {
    line: AnchorLine,
    new: NewAnchor,
}

impl Anchor {
    /// The next anchor. `at` is the time of its creation. It announces [`HeadsToAnchor::keep_from`] if it names all
    /// runs that have moved: then every run is named by an anchor from there on.
    ///
    /// # Errors
    ///
    /// The line of the last anchor cannot be read.
    pub fn next(moved: &HeadsToAnchor, store: Uuid, at: Timestamp, signer: &Signer) -> Result<Self> {
        let last = moved.last.as_ref().map(last_line).transpose()?;
        let (before, parent_hash, announced) =
            last.map_or((0, NO_PARENT, 1), |last| (last.seq, last.hash.0, last.first));
        let seq = before.checked_add(1).ok_or(Error::Corrupt {
            operation: "creating an anchor",
            detail: "no number follows that of the last anchor".into(),
        })?;
        let row = AnchorRow {
            seq,
            parent_hash,
            root: MerkleRoot::of(&moved.heads),
            // At most `LEAVES_PER_ANCHOR`.
            leaves: moved.heads.len() as u32,
            public_key: signer.public_key(),
            line: String::new(),
        };
        let mut line = AnchorLine {
            version: VERSION,
            store,
            seq,
            at: at.as_millisecond(),
            first: if moved.is_complete { announced.max(moved.keep_from.min(seq)) } else { announced },
            hash: Unpadded(NO_PARENT),
            signature: Unpadded([0; 64]),
        };
        line.hash = Unpadded(line.hash_with(&row));
        line.signature = Unpadded(signer.sign(&line.signed()));
        let row = AnchorRow { line: line.text()?, ..row };
        Ok(Self { line, new: NewAnchor { row, heads: moved.heads.clone() } })
    }

    /// Whether there is anything to anchor: a run has moved, or the store shall keep less.
    ///
    /// # Errors
    ///
    /// The line of the last anchor cannot be read.
    pub fn is_due(moved: &HeadsToAnchor) -> Result<bool> {
        let announced = moved.last.as_ref().map(last_line).transpose()?.map_or(1, |last| last.first);
        Ok(!moved.heads.is_empty() || moved.is_complete && announced < moved.keep_from)
    }

    /// What is signed.
    pub fn line(&self) -> &AnchorLine {
        &self.line
    }

    /// The anchor as it is stored.
    pub fn stored(&self) -> &NewAnchor {
        &self.new
    }
}

fn last_line(last: &AnchorRow) -> Result<AnchorLine> {
    let corrupt = |detail| Error::Corrupt { operation: "reading the last anchor", detail };
    match AnchorLine::parse(&last.line) {
        Some(parsed) => parsed.map_err(corrupt),
        None => Err(corrupt("its line is no anchor".into())),
    }
}
