//! The manifest of a snapshot: the list of chunks that form the snapshot's text. Pure.
//!
//! FastCDC cuts chunks at positions determined by the content, so that unchanged text keeps its chunks. A chunk is
//! stored as a payload of [`crate::codec`], under the SHA-256 of its bytes.
//!
//! # Format, version 1
//!
//! ```text
//! document = version, 1 byte: 1
//!            length of the text, u64 big-endian
//!            SHA-256 of the text, 32 bytes
//!            SHA-256 of each chunk, 32 bytes each, in order
//! ```

use dalsegno_model::{Digest, Error, Result};
use dalsegno_protocol::Limits;
use fastcdc::v2020::FastCDC;

use crate::codec;
use crate::header::sha256;

const VERSION: u8 = 1;

/// Minimum (except for the last chunk), average and maximum size of a chunk, in bytes.
const CHUNK: (usize, usize, usize) = (4 << 10, 16 << 10, 64 << 10);

/// The contents of a snapshot's document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Manifest {
    /// Bytes of the text.
    pub length: u64,
    /// SHA-256 of the text.
    pub digest: Digest,
    /// SHA-256 of each of its chunks, in order; a chunk may occur several times.
    pub chunks: Vec<Digest>,
}

impl Manifest {
    /// Cuts a text. Returns its manifest and the bytes of each chunk. `digest` maps a SHA-256 to the digest that is
    /// stored, such as a keyed one.
    pub fn cut<'t>(text: &'t [u8], digest: &dyn Fn(Digest) -> Digest) -> (Self, Vec<&'t [u8]>) {
        let (least, average, most) = CHUNK;
        let pieces: Vec<_> = FastCDC::new(text, least, average, most)
            .map(|piece| &text[piece.offset..piece.offset + piece.length])
            .collect();
        let chunks = pieces.iter().map(|piece| digest(sha256(piece))).collect();
        (Self { length: text.len() as u64, digest: digest(sha256(text)), chunks }, pieces)
    }

    /// Encodes the document.
    pub fn document(&self) -> Vec<u8> {
        let Self { length, digest, chunks } = self;
        [[VERSION].as_slice(), &length.to_be_bytes(), digest, chunks.as_flattened()].concat()
    }

    /// Parses a document. [`Error::Corrupt`] if its form is unknown.
    pub fn parse(document: &[u8]) -> Result<Self> {
        let parse = || {
            let (version, rest) = document.split_first()?;
            let (length, rest) = rest.split_first_chunk::<8>()?;
            let (digest, rest) = rest.split_first_chunk::<32>()?;
            let (chunks, rest) = rest.as_chunks::<32>();
            (*version == VERSION && rest.is_empty()).then(|| Self {
                length: u64::from_be_bytes(*length),
                digest: *digest,
                chunks: chunks.to_vec(),
            })
        };
        parse().ok_or_else(|| corrupt("the form of its document is unknown"))
    }

    /// Rebuilds the text from its encoded chunks, with the same `digest` as in [`Self::cut`]. [`Error::Corrupt`] if a
    /// chunk is missing or damaged, or if the text would be larger than a state may be. The limit is needed because a
    /// chunk can be repeated at a cost of only 32 bytes in the document.
    pub fn assemble<'p>(
        &self,
        digest: &dyn Fn(Digest) -> Digest,
        chunk: impl Fn(&Digest) -> Option<&'p [u8]>,
    ) -> Result<Vec<u8>> {
        let length = usize::try_from(self.length).ok().filter(|length| *length <= Limits::STATE_BYTES);
        let length =
            length.ok_or_else(|| corrupt("its document claims a text longer than a state may be"))?;
        let mut text = Vec::with_capacity(length);
        for hash in &self.chunks {
            let payload = chunk(hash).ok_or_else(|| corrupt("a chunk is missing"))?;
            let bytes = codec::decode(payload, CHUNK.2)?;
            if digest(sha256(&bytes)) != *hash {
                return Err(corrupt("a chunk does not have its hash"));
            }
            if text.len() + bytes.len() > length {
                return Err(corrupt("its chunks are longer than its text"));
            }
            text.extend(bytes);
        }
        if text.len() != length || digest(sha256(&text)) != self.digest {
            return Err(corrupt("its chunks are not its text"));
        }
        Ok(text)
    }
}

fn corrupt(detail: impl Into<String>) -> Error {
    Error::Corrupt { operation: "reading a snapshot", detail: detail.into() }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    fn plain(digest: Digest) -> Digest {
        digest
    }

    fn text() -> Vec<u8> {
        (0..40_000_u32).flat_map(|number| number.wrapping_mul(2_654_435_761).to_be_bytes()).collect()
    }

    #[test]
    fn a_cut_text_is_rebuilt_from_its_encoded_document() {
        for text in [b"".to_vec(), b"{}".to_vec(), vec![b'a'; 1 << 20], text()] {
            let (manifest, pieces) = Manifest::cut(&text, &plain);
            let kept: HashMap<_, _> = manifest
                .chunks
                .iter()
                .zip(pieces)
                .map(|(hash, piece)| (*hash, codec::encode(piece)))
                .collect();
            let back = Manifest::parse(&manifest.document()).unwrap();
            assert_eq!(back, manifest);
            assert_eq!(back.assemble(&plain, |hash| kept.get(hash).map(Vec::as_slice)).unwrap(), text);
        }
    }

    /// The bytes by hand, so that a change of the format cannot go unseen.
    #[test]
    fn a_document_is_the_documented_bytes() {
        let (text, hash) = (b"{}", sha256(b"{}"));
        let bytes = [&[1][..], &[0, 0, 0, 0, 0, 0, 0, 2], &hash, &hash].concat();
        assert_eq!(Manifest::cut(text, &plain).0.document(), bytes);
        let manifest = Manifest::parse(&bytes).unwrap();
        assert_eq!(manifest.assemble(&plain, |_| Some(b"\0{}")).unwrap(), text);
    }

    #[test]
    fn a_text_is_not_rebuilt_beyond_its_length() {
        let chunk = codec::encode(&[b'a'; 1_000]);
        let hash = sha256(&[b'a'; 1_000]);
        let manifest = Manifest { length: 2_500, digest: [0; 32], chunks: vec![hash; 1 << 30 >> 10] };
        let counted = std::cell::Cell::new(0);
        let refused = manifest.assemble(&plain, |_| {
            counted.set(counted.get() + 1);
            Some(chunk.as_slice())
        });
        assert!(refused.is_err());
        assert_eq!(counted.get(), 3);
    }

    #[test]
    fn documents_of_another_form_are_rejected() {
        let (manifest, _) = Manifest::cut(b"text", &plain);
        let document = manifest.document();
        let mut other = document.clone();
        other[0] = 2;
        for document in [&document[..document.len() - 1], &document[..40], b"", &other] {
            assert!(Manifest::parse(document).is_err());
        }
    }
}
