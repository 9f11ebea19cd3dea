//! Anchors: chained and signed records of where every run was. A copy that is stored outside of the database proves
//! what the rows alone cannot: that nobody has cut the end of a chain, removed a run, or rebuilt a chain.
//!
//! # Format, version 1
//!
//! An anchor is one line of JSON, `{"anchor": {…}}`. It names the runs that have moved since the anchors before it,
//! so that all anchors together name every run. `hash` is the SHA-256 of these fields, with `f(x)` and integers as in
//! [`dalsegno_format::header`]:
//!
//! ```text
//! f("dalsegno/anchor/v1") f(parent hash, 32 bytes) f(store, 16 bytes) f(seq, i64) f(at, i64)
//! and for each run: f(run, 16 bytes) f(audit seq, i64) f(audit hash, 32 bytes), then f("") if it has no head, else
//! f(turn, i32) f(boundary, 1 byte) f(epoch, i64) f(content hash, 32 bytes)
//! ```
//!
//! `signature` is the Ed25519 signature of these 32 bytes by the key `publicKey`.

use dalsegno_format::fields::FramedHasher;
use dalsegno_format::header::{NO_PARENT, boundary_number};
use dalsegno_model::AnchorRow;
use dalsegno_model::anchor::{AnchoredHead, HeadsToAnchor};
use dalsegno_model::{BoundaryId, Digest, Error, Result};
use dalsegno_protocol::Boundary;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::encoding::{Bytes, Hash};
use crate::signing::{PublicKey, Signer, is_signed};

/// First field of an anchor's hash.
const TAG: &[u8] = b"dalsegno/anchor/v1";

/// An anchor.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Anchor {
    version: u32,
    store: Uuid,
    seq: i64,
    at: i64,
    runs: Vec<Run>,
    parent_hash: Hash,
    hash: Hash,
    public_key: Bytes<32>,
    signature: Bytes<64>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Run {
    id: Uuid,
    audit_seq: i64,
    audit_hash: Hash,
    head: Option<Head>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Head {
    turn: i32,
    boundary: Boundary,
    epoch: i64,
    content_hash: Hash,
}

/// The line of an anchor.
#[derive(Serialize, Deserialize)]
struct Line<A> {
    anchor: A,
}

/// The start of every anchor's line. In any other line of a log these bytes are part of a string, and their quotes
/// are escaped.
const BEGINNING: &str = "{\"anchor\":{";

impl Anchor {
    /// The next anchor. `at` is the time of its creation.
    pub fn next(moved: &HeadsToAnchor, store: Uuid, at: Timestamp, signer: &Signer) -> Self {
        let (before, parent_hash) = moved.last.unwrap_or((0, NO_PARENT));
        let mut anchor = Self {
            version: 1,
            store,
            seq: before + 1,
            at: at.as_millisecond(),
            runs: moved.heads.iter().map(Run::from).collect(),
            parent_hash: Hash(parent_hash),
            hash: Hash(NO_PARENT),
            public_key: Bytes(signer.public_key()),
            signature: Bytes([0; 64]),
        };
        anchor.hash = Hash(anchor.digest());
        anchor.signature = Bytes(signer.sign(&anchor.hash.0));
        anchor
    }

    /// Finds the anchor at the end of a log line, also if a log collector has put a prefix before it. `None` if there
    /// is no anchor.
    ///
    /// # Errors
    ///
    /// As for [`Anchor::parse`].
    pub fn find(line: &str) -> Option<std::result::Result<Self, String>> {
        Self::parse(&line[line.find(BEGINNING)?..])
    }

    /// Parses a line that is an anchor. `None` if the line is something else.
    ///
    /// # Errors
    ///
    /// The line is an anchor, but not a valid one.
    pub fn parse(line: &str) -> Option<std::result::Result<Self, String>> {
        line.starts_with(BEGINNING).then(|| {
            let line: Line<Self> =
                serde_json::from_str(line).map_err(|error| format!("it cannot be read: {error}"))?;
            let anchor = line.anchor;
            if anchor.version != 1 {
                return Err(format!("it is of version {}, and this program reads 1", anchor.version));
            }
            if anchor.hash.0 != anchor.digest() {
                return Err("it was edited: it does not have the hash it must have".into());
            }
            if !is_signed(&anchor.public_key.0, &anchor.hash.0, &anchor.signature.0) {
                return Err("it is not signed by the key that it names".into());
            }
            Ok(anchor)
        })
    }

    /// The anchor as one line of JSON.
    pub fn line(&self) -> Result<String> {
        serde_json::to_string(&Line { anchor: self })
            .map_err(|error| Error::Corrupt { operation: "writing an anchor", detail: error.to_string() })
    }

    /// The anchor as it is stored.
    ///
    /// # Errors
    ///
    /// As for [`Anchor::line`].
    pub fn row(&self) -> Result<AnchorRow> {
        let (seq, hash, line) = (self.seq, self.hash.0, self.line()?);
        Ok(AnchorRow { seq, hash, line, heads: self.heads().collect() })
    }

    /// The anchor's number; the first is 1.
    pub fn seq(&self) -> i64 {
        self.seq
    }

    /// When the anchor was created, in milliseconds since 1970.
    pub fn at(&self) -> i64 {
        self.at
    }

    /// Id of the anchor's store.
    pub fn store(&self) -> Uuid {
        self.store
    }

    /// Hash of the anchor before.
    pub fn parent_hash(&self) -> Digest {
        self.parent_hash.0
    }

    /// The anchor's hash.
    pub fn hash(&self) -> Digest {
        self.hash.0
    }

    /// The public key of the signer.
    pub fn public_key(&self) -> PublicKey {
        self.public_key.0
    }

    /// The runs that the anchor names.
    pub fn heads(&self) -> impl Iterator<Item = AnchoredHead> + '_ {
        self.runs.iter().map(Run::anchored_head)
    }

    fn digest(&self) -> Digest {
        let mut hash = FramedHasher::new(TAG);
        hash.field(&self.parent_hash.0);
        hash.field(self.store.as_bytes());
        hash.field(&self.seq.to_be_bytes());
        hash.field(&self.at.to_be_bytes());
        for Run { id, audit_seq, audit_hash, head } in &self.runs {
            hash.field(id.as_bytes());
            hash.field(&audit_seq.to_be_bytes());
            hash.field(&audit_hash.0);
            let Some(Head { turn, boundary, epoch, content_hash }) = head else {
                hash.field(&[]);
                continue;
            };
            hash.field(&turn.to_be_bytes());
            hash.field(&[boundary_number(*boundary)]);
            hash.field(&epoch.to_be_bytes());
            hash.field(&content_hash.0);
        }
        hash.finish()
    }
}

impl From<&AnchoredHead> for Run {
    fn from(AnchoredHead { run, audit_seq, audit_hash, head }: &AnchoredHead) -> Self {
        let head = head.map(|(BoundaryId { turn, boundary, epoch }, hash)| Head {
            turn,
            boundary,
            epoch,
            content_hash: Hash(hash),
        });
        Self { id: *run, audit_seq: *audit_seq, audit_hash: Hash(*audit_hash), head }
    }
}

impl Run {
    fn anchored_head(&self) -> AnchoredHead {
        let head = self.head.as_ref().map(|&Head { turn, boundary, epoch, content_hash }| {
            (BoundaryId { turn, boundary, epoch }, content_hash.0)
        });
        AnchoredHead { run: self.id, audit_seq: self.audit_seq, audit_hash: self.audit_hash.0, head }
    }
}
