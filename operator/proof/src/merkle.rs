//! The Merkle root over the leaves of an anchor.
//!
//! The tree has the shape of RFC 6962: each inner node's left side is the largest complete tree. With `f(x)` and
//! integers as in [`dalsegno_format::header`]:
//!
//! ```text
//! leaf = SHA-256 of f("dalsegno/anchor-leaf/v1") f(run, 16 bytes) f(audit seq, i64) f(audit hash, 32 bytes), then
//!        f("") if the run has no head, else f(turn, i32) f(boundary, 1 byte) f(epoch, i64) f(content hash, 32 bytes)
//! node = SHA-256 of f("dalsegno/anchor-node/v1") f(left, 32 bytes) f(right, 32 bytes)
//! root of no leaves = SHA-256 of f("dalsegno/anchor-node/v1")
//! ```

use dalsegno_format::fields::FramedHasher;
use dalsegno_format::header::boundary_number;
use dalsegno_model::anchor::AnchoredHead;
use dalsegno_model::{BoundaryId, Digest};

/// First field of a leaf's hash.
const LEAF_TAG: &[u8] = b"dalsegno/anchor-leaf/v1";
/// First field of an inner node's hash.
const NODE_TAG: &[u8] = b"dalsegno/anchor-node/v1";

/// Computes a root leaf by leaf, in little memory.
#[derive(Clone, Debug, Default)]
pub(super) struct MerkleRoot {
    /// Roots of complete trees and their heights; heights decrease.
    complete: Vec<(u32, Digest)>,
    leaves: u32,
}

impl MerkleRoot {
    /// The root over these leaves.
    pub fn of<'l>(leaves: impl IntoIterator<Item = &'l AnchoredHead>) -> Digest {
        let mut root = Self::default();
        leaves.into_iter().for_each(|leaf| root.push(leaf));
        root.finish()
    }

    /// Adds the next leaf.
    pub fn push(&mut self, leaf: &AnchoredHead) {
        let (mut height, mut hash) = (0, leaf_hash(leaf));
        while let Some((_, left)) = self.complete.pop_if(|(of, _)| *of == height) {
            (height, hash) = (height + 1, node_hash(&left, &hash));
        }
        self.complete.push((height, hash));
        self.leaves = self.leaves.saturating_add(1);
    }

    /// The number of leaves.
    pub fn leaves(&self) -> u32 {
        self.leaves
    }

    /// The root over all leaves.
    pub fn finish(self) -> Digest {
        let mut trees = self.complete.into_iter().rev().map(|(_, hash)| hash);
        match trees.next() {
            Some(last) => trees.fold(last, |right, left| node_hash(&left, &right)),
            None => FramedHasher::new(NODE_TAG).finish(),
        }
    }
}

fn leaf_hash(AnchoredHead { run, audit_seq, audit_hash, head }: &AnchoredHead) -> Digest {
    let mut hash = FramedHasher::new(LEAF_TAG);
    hash.field(run.as_bytes());
    hash.field(&audit_seq.to_be_bytes());
    hash.field(audit_hash);
    match head {
        Some((BoundaryId { turn, boundary, epoch }, content_hash)) => {
            hash.field(&turn.to_be_bytes());
            hash.field(&[boundary_number(*boundary)]);
            hash.field(&epoch.to_be_bytes());
            hash.field(content_hash);
        }
        None => hash.field(&[]),
    }
    hash.finish()
}

fn node_hash(left: &Digest, right: &Digest) -> Digest {
    let mut hash = FramedHasher::new(NODE_TAG);
    hash.field(left);
    hash.field(right);
    hash.finish()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use uuid::Uuid;

    use super::*;

    fn leaf(number: u128) -> AnchoredHead {
        AnchoredHead { run: Uuid::from_u128(number), audit_seq: 1, audit_hash: [3; 32], head: None }
    }

    /// The root as RFC 6962 defines it.
    fn root_of(leaves: &[AnchoredHead]) -> Digest {
        match leaves {
            [] => FramedHasher::new(NODE_TAG).finish(),
            [one] => leaf_hash(one),
            _ => {
                let (left, right) = leaves.split_at(leaves.len().next_power_of_two() / 2);
                node_hash(&root_of(left), &root_of(right))
            }
        }
    }

    #[test]
    fn the_root_has_the_shape_of_rfc_6962_and_no_two_are_equal() {
        let leaves: Vec<_> = (0..70).map(leaf).collect();
        let mut roots = BTreeSet::new();
        for number in 0..=leaves.len() {
            let root = MerkleRoot::of(&leaves[..number]);
            assert_eq!(root, root_of(&leaves[..number]), "{number} leaves");
            assert!(roots.insert(root), "{number} leaves");
        }
        let mut exchanged = leaves.clone();
        exchanged.swap(3, 40);
        assert!(roots.insert(MerkleRoot::of(&exchanged)), "the order counts");
    }
}
